"""Programs that a test starts, which end with it: fixtures of the tests of signals."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.shell import Shell

Process = subprocess.Popen[str]

started: list[Process] = []


@pytest.fixture
def fdbq(db: Any, shared_url: str, name: str, tmp_path: Path) -> Shell:
    """Return the command line on the database of the test."""
    return Shell(tmp_path, shared_url, name)


@pytest.fixture(autouse=True)
def kill_started() -> Iterator[None]:
    """Kill the programs that the test has left."""
    yield
    while started:
        process = started.pop()
        process.kill()
        process.communicate()


def start(fdbq: Shell, *arguments: str, program: Sequence[str] = ("-m", "fdbq")) -> Process:
    """Start a program on the database of the test."""
    started.append(fdbq.start(*arguments, program=program))
    return started[-1]
