"""A process is stopped in the middle of a commit, for example by Ctrl-Z or a debugger."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from fdbqueue.embedded import Database
from fdbqueue.embedded.directory import LOG_FILE
from fdbqueue.embedded.storage import lock, storage
from fdbqueue.errors import LockTimeout
from tests.support.programs import python
from tests.support.waiting import wait_until

STOPS = """
import os, signal, sys
from fdbqueue.embedded import Database
from fdbqueue.embedded.storage import tables
apply = tables.apply
def stop(*arguments):
    stamped = apply(*arguments)
    print("stopped", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    print(arguments[2], flush=True)  # the version of the commit
    return stamped
tables.apply = stop
with Database(sys.argv[1]) as db:
    db[b"k"] = b"of the stopped one"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Database(tmp_path / "db") as db:
        db[b"k"] = b"before"
    return tmp_path / "db"


@pytest.fixture
def stopped(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that is stopped while it holds the writers' lock."""
    program = [sys.executable, "-c", STOPS, str(path)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "stopped\n"
        wait_until(lambda: Path(f"/proc/{process.pid}/stat").read_text().split()[2] == "T")
        yield process
        process.kill()


# These tests must not hang, so they run in processes that end.
@pytest.mark.parametrize(
    ("what", "program", "printed"),
    [
        ("reading", "print(db[b'k'])", "b'before'"),
        ("a read version", "print(db.create_transaction().get_read_version().wait() > 0)", "True"),
        ("a fork", "pid = os.fork(); pid or os._exit(0); print(os.waitpid(pid, 0)[1])", "0"),
        (
            "a watch",
            "tr = db.create_transaction(); watch = tr.watch(b'k'); tr.commit().wait();"
            "time.sleep(0.1); print(watch.is_ready())",
            "False",
        ),
    ],
)
def test_only_writers_wait_for_the_stopped_process(
    stopped: subprocess.Popen[str], path: Path, what: str, program: str, printed: str
) -> None:
    whole = (
        f"import os, sys, time, fdbqueue; db = fdbqueue.open(sys.argv[1]); {program}; db.close()"
    )
    done = python(whole, path)
    assert (done.stdout.strip(), done.stderr) == (printed, "")


def test_waiting_for_the_lock_counts_towards_the_transaction_timeout(
    stopped: subprocess.Popen[str], path: Path
) -> None:
    with Database(path) as db:
        tr = db.create_transaction()
        tr.options.set_timeout(1000)
        tr[b"k"] = b"mine"
        with pytest.raises(LockTimeout) as error:
            tr.commit().wait()
        assert (error.value.code, error.value.process) == (1031, stopped.pid)
        assert error.value.is_stopped
        assert f"kill -CONT {stopped.pid}" in str(error.value)
        assert db[b"k"] == b"before"
        stopped.send_signal(signal.SIGCONT)
        stopped.wait()
        db[b"k"] = b"mine"
        assert db[b"k"] == b"mine"


def test_a_writer_without_a_timeout_logs_the_process_for_which_it_waits(
    stopped: subprocess.Popen[str],
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(lock, "_SLOW", 0.1)
    with Database(path) as db, ThreadPoolExecutor() as threads:
        writing = threads.submit(db.set, b"k", b"mine")
        wait_until(lambda: f"process {stopped.pid} is stopped" in caplog.text)
        assert db[b"k"] == b"before"
        stopped.send_signal(signal.SIGCONT)
        writing.result()
        assert db[b"k"] == b"mine"


def test_a_read_version_is_below_that_of_a_commit_under_way(
    stopped: subprocess.Popen[str], path: Path
) -> None:
    with Database(path) as db:
        tr = db.create_transaction()
        version = tr.get_read_version().wait()
        assert tr[b"k"] == b"before"
        stopped.send_signal(signal.SIGCONT)
        assert stopped.stdout is not None
        assert version < int(stopped.stdout.readline())
        stopped.wait()
        assert db.create_transaction()[b"k"] == b"of the stopped one"


def test_a_killed_writer_does_not_hold_back_read_versions(
    stopped: subprocess.Popen[str], path: Path
) -> None:
    with Database(path) as db:
        held_back = db.create_transaction().get_read_version().wait()
        os.kill(stopped.pid, signal.SIGKILL)
        stopped.wait()
        assert db.create_transaction().get_read_version().wait() >= held_back + 50_000


READS = """
import os, signal, sys
from fdbqueue.embedded import Database
with Database(sys.argv[1]) as db:
    tr = db.create_transaction()
    tr[b"k"].wait()
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_warning_names_the_stopped_process_that_lets_the_log_grow(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(storage, "LONG_LOG", 1 << 20)
    reader = subprocess.Popen([sys.executable, "-c", READS, str(path)])
    with Database(path) as db, ExitStack() as always:
        always.callback(reader.wait)
        always.callback(reader.kill)
        wait_until(lambda: Path(f"/proc/{reader.pid}/stat").read_text().split()[2] == "T")
        for _ in range(100):
            db[b"large"] = bytes(100_000)
        warning = f"{path / LOG_FILE} has "
        wait_until(lambda: warning in caplog.text)
        assert f"stopped: {reader.pid}" in caplog.text.partition(warning)[2].splitlines()[0]
        always.close()
        size = (path / LOG_FILE).stat().st_size
        for _ in range(100):
            db[b"large"] = bytes(100_000)
        assert (path / LOG_FILE).stat().st_size < size + 1_000_000  # it began anew
    assert caplog.text.count(warning) == 1
