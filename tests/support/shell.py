"""`fdbq` as people and programs run it: as a separate process."""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from tempfile import NamedTemporaryFile
from typing import Any

import click
import pytest
from fdbq.main import cli, main

from fdbqueue.testing import FaultyDatabase
from tests.support.forked import Forked

Result = subprocess.CompletedProcess[str]


READ_AT_THE_START = ("PYTHON", "LANG", "LC_", "TZ")
"""Python reads variables with these prefixes before a program starts."""


def read_at_the_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in environment.items() if k.startswith(READ_AT_THE_START)}


class Shell:
    """Run `fdbq` on one database in a separate directory; `$q` is the queue of the test.

    A call forks, which is fast; a script starts `fdbq` as users do.
    """

    def __init__(self, path: Path, url: str, name: str = "jobs") -> None:
        self.path = path
        self.environment = {
            **{k: v for k, v in os.environ.items() if k not in ("FDBQ_DB", "FDB_CLUSTER_FILE")},
            "FDBQ_DB": url,
            "q": name,
            "HOME": str(path),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        self._started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the programs that `start` has started."""
        for process in self._started:
            with process:
                process.kill()

    def __call__(self, *arguments: str, stdin: str | bytes = "") -> Result:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        if read_at_the_start(self.environment) == read_at_the_start(os.environ):
            forked = Forked(self.path, self.environment, *arguments)
            output, errors = forked.communicate(given)
            return Result(arguments, forked.wait(), output, errors)
        done = subprocess.run(
            [sys.executable, "-m", "fdbq", *arguments],
            input=given,
            capture_output=True,
            env=self.environment,
            cwd=self.path,
        )
        return Result(arguments, done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(
        self, *arguments: str, program: Sequence[str] = ("-m", "fdbq")
    ) -> subprocess.Popen[str]:
        """Start `fdbq` as users do, without input."""
        process = subprocess.Popen(
            [sys.executable, *program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
            cwd=self.path,
            text=True,
        )
        self._started.append(process)
        return process

    def output(self, *arguments: str, stdin: str = "") -> str:
        """Return the output of a command that must succeed without errors or warnings."""
        done = self(*arguments, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    def script(self, text: str) -> Result:
        return subprocess.run(
            ["bash", "-c", text],
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=self.path,
        )


class Inside(Shell):
    """`fdbq` within the process of the test, on its open database, which may be in memory.

    This takes a tenth of the time of a process of its own. Signals, streams that fail, and what
    happens before `main` need a process.
    """

    def __init__(self, path: Path, db: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(path, "", name)
        self._monkeypatch = monkeypatch
        # A database of another type than the engine's own, which a command does not close.
        self._opened = FaultyDatabase(db)

    def __call__(self, *arguments: str, stdin: str | bytes = "") -> Result:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        stdout, stderr = io.BytesIO(), io.BytesIO()
        code: Any = 0
        with self._monkeypatch.context() as patch, NamedTemporaryFile() as stdin:
            stdin.write(given)
            stdin.seek(0)
            patch.setattr("fdbq.main._drop_output", lambda: None)
            patch.setattr("fdbq.command.open_database", lambda *_: self._opened)
            if arguments[0] == "work":  # a job of another test may hang in this process
                patch.setattr("fdbq.work.exit_after_work", sys.exit)
            patch.setattr(sys, "argv", ["fdbq", *arguments])
            patch.chdir(self.path)
            for name, stream in (("stdin", stdin), ("stdout", stdout), ("stderr", stderr)):
                text = io.TextIOWrapper(stream, "utf-8", write_through=True)  # type: ignore[type-var]
                patch.setattr(sys, name, text)
            try:
                main()
            except SystemExit as end:
                code = end.code
            output, errors = stdout.getvalue().decode(), stderr.getvalue().decode()
        return Result(arguments, code or 0, output, errors)


def assert_prints(fdbq: Shell, transcript: str, **names: str) -> None:
    """Run the commands of a transcript, and assert what they print, errors included.

    A line with a command begins with `$ `, and `[1]` below it is an exit code other than 0. `...`
    matches anything, and a run of spaces counts as one.

    Args:
        fdbq: What runs the commands.
        transcript: The commands and their output. It has `$q` for the queue of the test.
        names: What else it has, such as `id="..."` for `$id`.
    """
    text = Template(transcript).safe_substitute(q=fdbq.environment["q"], **names)
    for step in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, _, expected = step.partition("\n")
        done = fdbq(*shlex.split(command))
        code = f"[{done.returncode}]\n" if done.returncode else ""
        printed = re.sub(" +", " ", done.stdout + done.stderr) + code
        pattern = re.escape(re.sub(" +", " ", expected).rstrip("\n")).replace(r"\.\.\.", ".*")
        assert re.fullmatch(pattern + "\n?", printed, re.S), f"$ {command}\n{printed}"


def has_handlers(process: subprocess.Popen[str] | Forked) -> bool:
    """Return whether a process handles signals yet; until then Python prints a traceback."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the process has not started, or has ended
        return True
    caught = [int(line.split()[1], 16) for line in status.split("\n") if "SigCgt" in line]
    return not caught or bool(
        caught[0] >> (signal.SIGTERM - 1) & 1
    )  # no mask: the process has ended


def has_locked_a_file(process: subprocess.Popen[str]) -> bool:
    """Return whether a process has the lock of a file, as one that has opened a database."""
    locks = Path("/proc/locks").read_text().split("\n")
    return any(str(process.pid) in line.split() for line in locks)


def error_of(done: Result) -> str:
    """Return the one-line error of a command that printed nothing else and exited with 2."""
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.endswith("\n")
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def commands(group: click.Group = cli, prefix: str = "") -> dict[str, click.Command]:
    """Return all commands of `fdbq` by name, including those of groups."""
    found: dict[str, click.Command] = {}
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            found |= commands(command, f"{prefix}{name} ")
        else:
            found[prefix + name] = command
    return found
