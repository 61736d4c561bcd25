"""The write-ahead log stays bounded although a stopped process reads from it."""

from __future__ import annotations

import errno
import logging
import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fdbqueue.embedded import Database
from fdbqueue.embedded.disk import files, generations, rotation
from fdbqueue.embedded.disk.commit_log import COMMITS_FILE
from fdbqueue.embedded.disk.sync import SharedSync
from fdbqueue.errors import FDBError, FilesReplaced
from tests.support.waiting import wait_until

STOPS = """
import os, signal, sys, time
from fdbqueue.embedded import Database
from fdbqueue.errors import FDBError
db = Database(sys.argv[1])
watch = db.get_and_watch(b"k")[1]
tr, idle = db.create_transaction(), db.create_transaction()
print(tr[b"k"].value, flush=True)
tr[b"mine"] = b"v"
os.kill(os.getpid(), signal.SIGSTOP)
try:
    print(tr[b"k"].value)
except FDBError as error:
    print(error.code)
try:
    tr.commit().wait()
except FDBError as error:
    print(error.code)
watch.wait()
print(idle[b"k"].value, db[b"k"])
db[b"continued"] = db[b"k"]
db.close()
"""
LONG = 1_000_000


def is_stopped(process: subprocess.Popen[str]) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().split()[2] == "T"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Database(tmp_path / "db") as db:
        db[b"k"] = b"before"
    return tmp_path / "db"


Stop = Callable[[], subprocess.Popen[str]]


@pytest.fixture
def stop(path: Path) -> Iterator[Stop]:
    """Return a function that starts a process which stops in the middle of a transaction."""
    processes: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        program = [sys.executable, "-c", STOPS, str(path)]
        process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("b'")
        wait_until(lambda: is_stopped(process))
        return process

    yield start
    for process in processes:
        with process:
            process.kill()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy the database once its log exceeds a megabyte for a fifth of a second."""
    monkeypatch.setattr(files, "_LONG_LOG", LONG)
    monkeypatch.setattr(rotation, "_STUCK", 0.2)


def used(path: Path) -> int:
    """Return the total size of all files; other processes may remove some meanwhile."""
    size = 0
    for name in os.listdir(path):
        with suppress(FileNotFoundError):
            size += (path / name).stat().st_size
    return size


def write_until(db: Database, generation: int) -> None:
    """Write with pauses, so that a thread of the database can make a new generation."""

    def is_reached() -> bool:
        for _ in range(5):
            db[b"large"] = random.randbytes(50_000)
        return generations.current(db.path) >= generation

    wait_until(is_reached)


def files_of(path: Path, generation: int) -> set[str]:
    name = generations.database_file(path, generation).name
    return {name, f"{name}-wal", f"{name}-shm", files.LOCK_FILE, COMMITS_FILE}


def are_alone(path: Path, generation: int) -> Callable[[], bool]:
    """Return a condition: only files of this generation exist."""
    return lambda: set(os.listdir(path)) == files_of(path, generation)


def test_the_log_stays_bounded_although_a_stopped_process_reads(
    stop: Stop, soon: None, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Database(path, "os") as db, caplog.at_level(logging.WARNING, "fdbqueue"):
        short = used(path)
        stopped = []
        for generation in (1, 2):
            stopped.append(stop())
            write_until(db, generation)
            wait_until(are_alone(path, generation))
            assert f"it is read by stopped process {stopped[-1].pid};" in caplog.text
        for _ in range(10):
            write_until(db, 2)
        db.storage._next_checkpoint = 0
        db[b"k"] = b"after"
        assert used(path) < short + 2 * LONG
        assert generations.current(path) == 2
        for process in stopped:
            process.send_signal(signal.SIGCONT)
            output, _ = process.communicate(timeout=60)
            assert output.split("\n")[-2] == "b'after' b'after'"
            assert db[b"continued"] == b"after"
        assert are_alone(path, 2)()
    with Database(path) as db:
        assert (db[b"k"], db[b"continued"]) == (b"after", b"after")


DIES = """
import os, pathlib, sys
from fdbqueue.embedded import Database
from fdbqueue.embedded.disk import commit_log
from fdbqueue.embedded.disk import files
from fdbqueue.embedded.disk import generations
from fdbqueue.embedded.disk import rotation
files._LONG_LOG, rotation._STUCK = 1_000_000, 0.2
path, step, when = sys.argv[1:]
CommitLog, Path = commit_log.CommitLog, pathlib.Path
db = Database(path)
def dies(function):
    def call(*arguments, **options):
        if when == "after":
            function(*arguments, **options)
        os.kill(os.getpid(), 9)
    return call
if step == "number":
    CommitLog.begin_generation = dies(CommitLog.begin_generation)
elif step in ("rename", "unlink"):
    setattr(Path, step, dies(getattr(Path, step)))
else:
    setattr(generations, step, dies(getattr(generations, step)))
for count in range(1_000):
    db[b"large"] = os.urandom(50_000)
    db[b"n"] = b"%d" % count
    print(count, flush=True)
"""
STEPS = [
    ("create_like", "after"),
    ("sync_path", "before"),
    ("rename", "before"),
    ("rename", "after"),
    ("number", "before"),
    ("number", "after"),
    ("unlink", "before"),
    ("unlink", "after"),
]
KILLS = [(*step, "others") for step in STEPS] + [(*step, "none") for step in STEPS[1:8:2]]


@pytest.mark.parametrize(("step", "when", "survivors"), KILLS)
def test_a_process_killed_at_any_step_of_a_copy_loses_nothing(
    stop: Stop, path: Path, step: str, when: str, survivors: str
) -> None:
    stopped = stop()
    reader = Database(path)
    assert reader[b"n"] is None
    program = [sys.executable, "-c", DIES, str(path), step, when]
    died = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert (died.returncode, died.stderr) == (-signal.SIGKILL, "")
    last = int(died.stdout.split()[-1])
    if survivors == "none":
        reader.close()
        stopped.kill()
        stopped.wait()
        reader = Database(path)
    with reader, Database(path) as writer:
        # A thread makes the copy, so the main thread may have committed without printing it.
        assert int(reader[b"n"]) in (last, last + 1)
        for db in (writer, reader, writer):
            last += 10
            db[b"n"] = b"%d" % last
            assert int(reader[b"n"]) == int(writer[b"n"]) == last
        if survivors == "none":
            assert are_alone(path, generations.current(path))()
    with Database(path) as db:
        assert int(db[b"n"]) == last


def test_the_next_copy_removes_files_of_a_killed_process(
    stop: Stop, soon: None, path: Path
) -> None:
    stop()
    left = generations.database_file(path, 7).name + ".new"
    (path / left).write_bytes(b"half a copy")
    (path / f"{left}-journal").write_bytes(b"half a journal")
    with Database(path, "os") as db:
        write_until(db, 1)
        wait_until(are_alone(path, 1))


WRITES = """
import logging, os, sys
from fdbqueue.embedded import Database
from fdbqueue.embedded.disk import files
from fdbqueue.embedded.disk import rotation
from fdbqueue.errors import FDBError
logging.disable()
files._LONG_LOG, rotation._STUCK = 1_000_000, 0.2
path, name = sys.argv[1:]
with Database(path, "os" if name.endswith("0") else "full") as db:
    for count in range(1, 1_000_000):
        tr = db.create_transaction()
        while True:
            try:
                own, total = (int(tr[key].value or 0) for key in (name.encode(), b"total"))
                tr[name.encode()], tr[b"total"] = b"%d" % (own + 1), b"%d" % (total + 1)
                tr[b"large"] = os.urandom(20_000)
                tr.commit().wait()
                break
            except FDBError as error:
                tr.on_error(error).wait()
        assert own == count - 1, (own, count)
        print(count, flush=True)
"""


def test_killed_processes_lose_no_commits_while_copies_are_made(stop: Stop, path: Path) -> None:
    """Each process counts its own commits, and a shared counter counts all commits."""
    acknowledged = {}
    for part in ("first", "second"):
        begun = generations.current(path)
        stop()
        writers = {
            f"{part}-{number}": subprocess.Popen(
                [sys.executable, "-c", WRITES, str(path), f"{part}-{number}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in range(3)
        }
        wait_until(lambda begun=begun: generations.current(path) > begun)  # type: ignore[misc]
        begun = generations.current(path)
        stop()  # it reads the newest files, or files that writers have replaced meanwhile
        wait_until(lambda begun=begun: generations.current(path) > begun)  # type: ignore[misc]
        for writer in writers.values():
            writer.kill()
        for name, writer in writers.items():
            output, errors = writer.communicate(timeout=60)
            assert errors == ""
            lines = ["0", *output.split("\n")[:-1]]  # it may have been killed before its first one
            acknowledged[name] = int(lines[-1])
    with Database(path) as db:
        stored = {name: int(db[name.encode()] or 0) for name in acknowledged}
        for name, count in acknowledged.items():
            assert stored[name] in (count, count + 1)
        assert int(db[b"total"]) == sum(stored.values())


def test_a_transaction_sees_commits_acknowledged_before_it_began(
    stop: Stop, soon: None, path: Path
) -> None:
    stop()
    with Database(path, "os") as db, Database(path, "os") as other:
        count = 0

        def is_copied() -> bool:
            nonlocal count
            for _ in range(20):
                count += 1
                db[b"n"] = b"%d" % count
                db[b"large"] = random.randbytes(20_000)
                assert int(other[b"n"]) == count
            return generations.current(path) > 0 and are_alone(path, generations.current(path))()

        wait_until(is_copied)


def test_a_transaction_that_spans_a_copy_detects_conflicts(
    stop: Stop, soon: None, path: Path
) -> None:
    stop()
    with Database(path, "os") as db, Database(path, "os") as other:
        while not generations.current(path):
            undisturbed, disturbed = other.create_transaction(), other.create_transaction()
            assert (undisturbed[b"k"].value, disturbed[b"large"].value) is not None
            undisturbed[b"k"] = disturbed[b"mine"] = b"written"
            for _ in range(5):
                db[b"large"] = random.randbytes(50_000)
                time.sleep(0.05)  # leaves time to the thread that copies
        undisturbed.commit().wait()
        with pytest.raises(FDBError, match="1020"):
            disturbed.commit().wait()
        assert (db[b"k"], db[b"mine"]) == (b"written", None)


def test_a_forked_child_uses_the_newest_files(stop: Stop, soon: None, path: Path) -> None:
    stop()
    with Database(path, "os") as db:
        write_until(db, 1)
        child = os.fork()
        if not child:
            status = 1
            with suppress(BaseException):
                db[b"child"] = db[b"k"]
                status = 0
            os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert db[b"child"] == b"before"


def test_a_copy_that_does_not_fit_changes_nothing(
    stop: Stop,
    soon: None,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A process limit simulates the full disk: no copy can be synced."""
    stop()

    def fails(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Database(path, "os") as db, caplog.at_level(logging.WARNING, "fdbqueue"):
        with monkeypatch.context() as patch:
            patch.setattr(generations, "sync_path", fails)
            for _ in range(60):
                db[b"large"] = random.randbytes(50_000)
            wait_until(lambda: "No space left on device" in caplog.text)
            assert are_alone(path, 0)()
            db[b"k"] = b"after"
        monkeypatch.setattr(rotation, "_PAUSE", 0.0)
        assert db[b"k"] == b"after"


def test_a_copy_keeps_the_permissions_of_the_files(stop: Stop, soon: None, path: Path) -> None:
    generations.database_file(path).chmod(0o660)
    stop()
    with Database(path, "os") as db:
        write_until(db, 1)
        wait_until(are_alone(path, 1))
        for name in files_of(path, 1) - {files.LOCK_FILE, COMMITS_FILE}:
            assert stat.S_IMODE((path / name).stat().st_mode) == 0o660


def test_a_restored_older_generation_is_detected(stop: Stop, soon: None, path: Path) -> None:
    stop()
    with Database(path, "os") as db:
        write_until(db, 1)
        wait_until(are_alone(path, 1))
        generations.database_file(path).rename(path / generations.DATABASE_FILE)
        with pytest.raises(FilesReplaced, match=r"fdbqueue\.1\.sqlite"):
            db[b"k"] = b"after"


def test_a_snapshot_is_too_old_if_the_files_are_replaced_before_its_first_read(
    stop: Stop, path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection would miss later commits."""
    stop()
    with Database(path, "os") as db, Database(path, "os") as other:
        take = other.storage._take

        def take_late(*arguments: Any) -> Any:
            monkeypatch.undo()
            request.getfixturevalue("soon")
            write_until(db, 1)
            wait_until(are_alone(path, 1))
            db[b"k"] = b"after"
            return take(*arguments)

        monkeypatch.setattr(other.storage, "_take", take_late)
        with pytest.raises(FDBError, match="1007"):
            other.create_transaction()[b"k"].wait()
        assert other.create_transaction()[b"k"] == b"after"


def test_a_commit_synced_by_a_copy_needs_no_sync_of_the_old_files(path: Path) -> None:
    with Database(path) as db:
        write_ahead_log = generations.database_file(path).with_name("fdbqueue.sqlite-wal")
        sync = SharedSync(write_ahead_log, db.storage.log, 0)
        tail = db.storage.log.published[0] + 100
        sync.note_commit(tail)
        sync.retire()
        sync.wait(tail)
