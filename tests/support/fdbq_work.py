"""`fdbq work` in processes of its own, for tests."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.support.shell import Shell
from tests.support.waiting import wait_until


def is_alive(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


class Workers:
    """`fdbq work`, whose processes and lines on standard error the test sees."""

    def __init__(self, fdbq: Shell) -> None:
        self._fdbq = fdbq
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._fdbq.path / "log").open("ab") as log:
            process = subprocess.Popen(
                ["fdbq", "work", *arguments],
                env=self._fdbq.environment,
                cwd=self._fdbq.path,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    @property
    def log(self) -> str:
        return (self._fdbq.path / "log").read_text()

    @property
    def pids(self) -> list[int]:
        """The ids of all processes that were started, in their order."""
        return [int(pid) for pid in re.findall(r"process \d+ of \d+: pid (\d+)", self.log)]

    @property
    def notes(self) -> list[list[str]]:
        """The names of the jobs that ran, and the processes that ran them."""
        path = self._fdbq.path / "notes"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def kill(self) -> None:
        """Kill them, and wait for the end of the processes that they have started.

        These notice it a moment later. One that waits for jobs would write to a queue that the end
        of the test has dropped meanwhile.
        """
        for process in self._started:
            process.kill()
            process.wait()
        wait_until(lambda: not any(map(is_alive, self.pids)))
