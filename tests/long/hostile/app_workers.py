"""Processes of `fdbq work --app` that a program kills and stops, and the ledgers of their jobs.

A job writes a line for what it does. A line is one `write`, so it outlives the process.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue.jobs import App
from fdbqueue.testing import FaultyDatabase

ROOT = Path(__file__).parents[3]
_DATABASE, _LEDGER = "HOSTILE_DATABASE", "HOSTILE_LEDGER"
_END = 60.0  # seconds that a process may take to end
_INTERRUPTED = 128 + signal.SIGTERM  # the code of `fdbq` before its workers work

# Programs


@contextmanager
def run_directory(given: Path | None, prefix: str) -> Iterator[Path]:
    """Yield the directory of a run, by default a temporary one."""
    with ExitStack() as stack:
        directory = given
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix)))
        directory.mkdir(parents=True, exist_ok=True)
        yield directory.resolve()


def show_run(counts: Counter[str], problems: Sequence[str], began: float) -> int:
    """Print what a run has counted and found since `began`; return the code of the program."""
    for name, number in sorted(counts.items()):
        print(f"{name:50}{number:>10,}")
    print(*problems[:20], sep="\n")
    print(f"{len(problems)} problems, {time.monotonic() - began:.0f} s")
    return 1 if problems else 0


# What the jobs call


def bind_worker(app: App, faulty: Callable[..., FaultyDatabase] = FaultyDatabase) -> None:
    """In a process of workers, bind an app to its database, whose commits lose their answers."""
    if _DATABASE in os.environ:
        db = fdbqueue.open(os.environ[_DATABASE])
        faults = {"before": 0.02, "after": 0.02, "conflict": 0.02}
        app.bind(faulty(db, **faults, lost_as=(1021, 1039), seed=os.getpid()))


_ledger = -1


def write_line(*fields: object) -> None:
    """Write a line to the ledger of this process."""
    global _ledger
    if _ledger < 0:
        _ledger = os.open(os.environ[_LEDGER], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(_ledger, json.dumps(fields).encode() + b"\n")


# What the program calls


@dataclass(frozen=True)
class Command:
    """How to start processes.

    Attributes:
        app: The app, as `module:app`.
        url: The URL of the database.
        queues: The names of the queues.
        directory: Where ledgers and output are.
        options: Other options of `fdbq work`.
    """

    app: str
    url: str
    queues: Sequence[str]
    directory: Path
    options: Sequence[str]


class Process:
    """A process of `fdbq work --app`, with its ledger and its output."""

    def __init__(self, name: str, command: Command) -> None:
        self.name = name
        self.ledger = command.directory / f"{name}.ledger"
        self.output = command.directory / f"{name}.stderr"
        self.ended_at = float("inf")
        arguments = [sys.executable, "-X", "faulthandler", "-m", "fdbq", "work"]
        arguments += ["--app", command.app, *command.queues, "--name", name, *command.options]
        environment = os.environ | {_DATABASE: command.url, _LEDGER: str(self.ledger)}
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(arguments, cwd=ROOT, stderr=output, env=environment)
        self._read = 0
        self._stopped: threading.Timer | None = None

    @property
    def is_running(self) -> bool:
        """Return whether it runs; raise its output if it ended by itself, unless it was killed."""
        code = self._process.poll()
        if code is not None:
            self.ended_at = min(self.ended_at, time.time())
            assert code == -signal.SIGKILL, f"{self.name}: {code}\n{self.output.read_text()}"
        return code is None

    def lines(self) -> Iterator[Any]:
        """Yield the new lines of the ledger."""
        if not self.ledger.exists() or self.ledger.stat().st_size == self._read:
            return
        with self.ledger.open("rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")
        self._read += len(whole[0]) + len(whole[1])
        yield from map(json.loads, whole[0].splitlines())

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def stop_for(self, seconds: float) -> None:
        """Stop it for a time, and return at once: it may hold the lock of an embedded database."""
        self.send(signal.SIGSTOP)
        self._stopped = threading.Timer(seconds, self.send, [signal.SIGCONT])
        self._stopped.start()

    @property
    def is_stopped(self) -> bool:
        """Return whether it will be continued."""
        return self._stopped is not None and self._stopped.is_alive()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.ended_at = min(self.ended_at, time.time())

    def stop(self) -> None:
        """Let it end as SIGTERM does, whatever hangs in it, once it is continued."""
        if self._stopped is not None:
            self._stopped.join()
        self._process.terminate()
        try:
            code = self._process.wait(_END)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)  # prints the stacks of all threads
            code = self._process.wait()
        is_early = code == _INTERRUPTED and not self.ledger.exists()
        assert code == 0 or is_early, f"{self.name}: {code}\n{self.output.read_text()}"


class Processes:
    """Some processes, of which a new one is started for each that has ended.

    Attributes:
        all: All processes, also those that have ended.
        restarts: How many were started for others.
    """

    def __init__(self, n: int, command: Command) -> None:
        self._n = n
        self._command = command
        self.all: list[Process] = []
        self.restarts = 0
        for _ in range(n):
            self._start()

    def _start(self) -> None:
        self.all.append(Process(f"worker-{len(self.all)}", self._command))

    def running(self) -> list[Process]:
        """Return the processes that run; start others instead of those that have ended."""
        for _ in range(self._n - sum(each.is_running for each in self.all)):
            self.restarts += 1
            self._start()
        return [each for each in self.all if each.is_running]

    def named(self, name: str) -> Process:
        """Return the process of this name."""
        return next(process for process in self.all if process.name == name)

    def stop(self) -> None:
        """Let those that run end as SIGTERM does."""
        for process in self.running():
            process.stop()

    def kill(self) -> None:
        """Kill all."""
        for process in self.all:
            process.kill()


class Sometimes:
    """Does something at random times, the first of which is now.

    Args:
        seconds: The mean of the pauses.
        do: What to do.
        rng: Where the pauses come from.
    """

    def __init__(self, seconds: float, do: Callable[[], bool], rng: random.Random) -> None:
        self._seconds, self._do, self._rng = seconds, do, rng
        self._next = 0.0

    def look(self) -> None:
        """Do it if its time has come; again at the next look if it could not be done."""
        if time.monotonic() >= self._next and self._do():
            self._next = time.monotonic() + self._seconds * self._rng.uniform(0.5, 1.5)


class Trouble:
    """Kills and stops processes at random.

    Args:
        processes: The processes.
        lease: The leases of their jobs, in seconds.
        rng: What decides.
        counts: How often each happened.
    """

    _KILLS, _STOPS = 1.0, 15.0  # seconds between them
    _BETWEEN_KILLS = 20  # jobs that end between two of them, however slow the machine is

    def __init__(
        self, processes: Processes, lease: float, rng: random.Random, counts: Counter[str]
    ) -> None:
        self._processes = processes
        self._lease, self._rng, self._counts = lease, rng, counts
        self._ended, self._ended_at_kill = 0, -self._BETWEEN_KILLS
        self._events = [
            Sometimes(self._KILLS, self._kill, rng),
            Sometimes(self._STOPS, self._stop_one, rng),
        ]

    def look(self, ended: int) -> None:
        """Do what is due, given how many jobs have ended; start processes for those killed."""
        self._ended = ended
        self._processes.running()
        for event in self._events:
            event.look()

    def _kill(self) -> bool:
        """Kill a process, if some jobs have ended since the last kill: so all of them end."""
        if self._ended < self._ended_at_kill + self._BETWEEN_KILLS:
            return False
        going = [each for each in self._processes.running() if not each.is_stopped]
        if going:
            self._rng.choice(going).kill()
            self._ended_at_kill = self._ended
            self._counts["kills"] += 1
        return bool(going)

    def _stop_one(self) -> bool:
        """Stop a process that has begun jobs for longer than a lease."""
        begun = [each for each in self._processes.running() if each.ledger.exists()]
        going = [each for each in begun if not each.is_stopped]
        if going:
            self._rng.choice(going).stop_for(self._lease * self._rng.uniform(1.1, 2))
            self._counts["stops past a lease"] += 1
        return bool(going)
