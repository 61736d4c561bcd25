"""Signals end `fdbq` soon, with one line, and lose no item."""

from __future__ import annotations

import fcntl
import signal
import sys

import pytest

from fdbqueue.embedded.directory import LOCK_FILE
from tests.support.server import serving
from tests.support.shell import Shell, has_locked_a_file
from tests.support.waiting import MAX_WAIT, wait_until

INTERRUPTED = "fdbq: interrupted; committed changes are kept\n"

ENDING = [
    getattr(signal, f"SIG{name}")
    for name in ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM", "VTALRM", "PROF", "XCPU")
]
if sys.platform == "linux":
    ENDING += [signal.SIGIO, signal.SIGPWR, signal.SIGRTMIN, signal.SIGRTMAX]


@pytest.mark.parametrize("number", ENDING, ids=lambda number: f"{int(number)}")
def test_every_fatal_signal_splits_the_items_into_printed_and_kept(
    local: Shell, number: int
) -> None:
    """The items are popped, and the output of some waits for a reader that reads only a line."""
    local.environment["PYTHONUNBUFFERED"] = "1" if number % 2 else ""
    lines = [f'"{n}{"x" * 1000}"\n' for n in range(300)]
    local.output("import", "jobs", stdin="".join(lines))
    process = local.start("pop", "jobs", "-n", "300")
    assert process.stdout is not None
    assert process.stderr is not None
    printed = [process.stdout.readline()]
    process.send_signal(number)
    assert process.wait(MAX_WAIT) == 128 + number
    assert process.stderr.read().count("\n") == 1
    printed += [line for line in process.stdout if line.endswith("\n")]
    kept = local.output("pop", "jobs", "-n", "300").splitlines(keepends=True)
    assert printed + kept == lines
    assert 0 < len(kept) < 300


def test_an_ignored_signal_stays_ignored(local: Shell) -> None:
    local.output("limit", "jobs", "--create", "--size", "5")
    done = local.script("(trap '' HUP; fdbq pop $q --wait 2 & sleep 1; kill -HUP $!; wait $!)")
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_a_command_that_waits_for_a_lock_is_interrupted(local: Shell, number: int) -> None:
    """Closing the database on the way out must not wait for the same lock."""
    local.output("push", "jobs", "1")
    with (local.path / "db" / LOCK_FILE).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = local.start("push", "jobs", "2", "--timeout", "0")
        # It has opened the database. Next, it waits for the lock in a loop.
        wait_until(lambda: has_locked_a_file(process))
        process.send_signal(number)
        assert process.wait(MAX_WAIT) == 128 + number
    assert process.stderr is not None
    assert process.stderr.read() == INTERRUPTED


def test_a_main_thread_that_never_returns_to_python_is_interrupted(shell: Shell, name: str) -> None:
    (shell.path / "endless.py").write_text(
        "import sqlite3\n"
        "print('in C', flush=True)\n"
        "rows = 'WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c'\n"
        "sqlite3.connect(':memory:').execute(f'SELECT max(x) FROM ({rows})')\n"
    )
    process = shell.start("work", name, "endless:handler")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "in C\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(MAX_WAIT) == 128 + signal.SIGINT
    assert process.stderr.read() == INTERRUPTED


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_a_signal_stopped_has_time_for_the_functions_of_atexit(
    shell: Shell, name: str, number: int
) -> None:
    leave = "import atexit, time; atexit.register(print, 'left'); atexit.register(time.sleep, 1.5)"
    program = ("-c", f"{leave}; from fdbq import __main__; __main__.main()")
    process = shell.start("work", name, "--exec", "true", program=program)
    assert process.stderr is not None
    assert process.stdout is not None
    assert "waiting until there is one" in process.stderr.readline()
    process.send_signal(number)
    assert process.wait(MAX_WAIT) == 0
    assert "left" in process.stdout.read()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0), (signal.SIGHUP, 0)]
)
def test_a_server_is_stopped_by_a_signal(shared_url: str, number: int, code: int) -> None:
    with serving(shared_url) as (process, _):
        process.send_signal(number)
        assert process.wait(MAX_WAIT) == code
        assert process.stderr is not None
        assert process.stderr.read() == (INTERRUPTED if code else "")
