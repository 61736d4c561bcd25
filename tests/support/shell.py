"""`fdbq` as a person and a program use it: a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import click
from fdbq.main import cli

from tests.support.forked import Forked

__all__ = ["Shell", "commands", "error_of"]

Result = subprocess.CompletedProcess[str]


READ_AT_THE_START = ("PYTHON", "LANG", "LC_", "TZ")
"""Python reads variables that begin so before the first line of a program."""


def read_at_the_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in environment.items() if k.startswith(READ_AT_THE_START)}


class Shell:
    """Runs `fdbq` on one database, in a directory of its own; `$q` is a queue of the test's own.

    A call forks, which is fast; a script starts `fdbq` as its users do.
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

    def output(self, *arguments: str, stdin: str = "") -> str:
        """The output of a command that must succeed in silence."""
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


def error_of(done: Result) -> str:
    """The one line of an error; nothing on standard output, exit code 2."""
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.endswith("\n")
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def commands(group: click.Group = cli, prefix: str = "") -> dict[str, click.Command]:
    """All commands of `fdbq` by name, those of groups too."""
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
