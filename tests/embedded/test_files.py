"""Directories that are no database, damaged, of another format, full or read-only."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue.embedded import Database, files
from fdbqueue.embedded.locks import SharedSync
from fdbqueue.errors import (
    CorruptDatabase,
    DiskFull,
    FormatVersionMismatch,
    NotADatabase,
    StorageError,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The directory of a database with one key."""
    with Database(tmp_path / "db") as db:
        db[b"k"] = b"v"
    return tmp_path / "db"


def test_what_was_written_is_there_after_a_reopen_and_versions_go_on(path: Path) -> None:
    with Database(path) as db:
        before = db.create_transaction().get_read_version().wait()
    with Database(path) as db:
        assert db[b"k"] == b"v"
        assert db.create_transaction().get_read_version().wait() > before


@pytest.mark.parametrize("lost", ["gone", "empty"])
def test_a_database_that_lost_its_file_is_not_taken_for_a_new_one(path: Path, lost: str) -> None:
    (path / files.DATABASE_FILE).unlink()
    if lost == "empty":
        (path / files.DATABASE_FILE).touch()
    before = sorted(path.iterdir())
    with pytest.raises(CorruptDatabase, match=r"is gone|nothing in"):
        Database(path)
    assert sorted(each for each in path.iterdir() if each.suffix != ".lock") == sorted(
        each for each in before if each.suffix != ".lock"
    )


def test_a_directory_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(NotADatabase, match="holds other files"):
        Database(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["letter.txt"]
    (tmp_path / "new" / "lost+found").mkdir(parents=True)  # a file system of its own
    with Database(tmp_path / "new") as db:
        db[b"k"] = b"v"


def test_a_database_is_made_unless_told_not_to(path: Path, tmp_path: Path) -> None:
    for nowhere in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(NotADatabase, match="there is no database here"):
            fdbqueue.open(nowhere, create=False)
    assert not (tmp_path / "nowhere").exists()
    with fdbqueue.open(path, create=False) as db:
        assert db[b"k"] == b"v"
    with fdbqueue.open("memory:", create=False) as db:
        assert db[b"k"] is None


def test_versions_do_not_go_back_when_the_machines_clock_began_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a reboot the clock that versions come from begins at zero."""
    with Database(path) as db:
        before = db.create_transaction().get_read_version().wait()
        db[b"k"] = b"2"
    clock = time.monotonic_ns
    monkeypatch.setattr(time, "monotonic_ns", lambda: clock() - 10**15)
    with Database(path) as db:
        first = db.create_transaction().get_read_version().wait()
        assert first > before
        tr = db.create_transaction()
        tr[b"k"] = b"3"
        tr.commit().wait()
        assert tr.get_committed_version() > first


def test_a_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    with fdbqueue.open(f"embedded:{tmp_path}/a/b/c") as db:
        db[b"k"] = b"v"
    assert (tmp_path / "a/b/c/fdbqueue.sqlite").exists()


def test_a_file_is_no_database(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    for url in (f"embedded:{file}", f"embedded:{file}/below"):
        with pytest.raises(NotADatabase, match=str(file)) as error:
            fdbqueue.open(url)
        assert "directory that fdbqueue made" in str(error.value)
    assert file.read_text() == "text"


def test_a_file_of_something_else_in_the_place_of_the_database(tmp_path: Path) -> None:
    (tmp_path / files.DATABASE_FILE).write_bytes(b"something else entirely\n" * 100)
    with pytest.raises(NotADatabase, match=str(tmp_path)):
        Database(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    connection = sqlite3.connect(other / files.DATABASE_FILE)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(NotADatabase, match=str(other)):
        Database(other)


def test_another_format_version_is_named(path: Path) -> None:
    connection = sqlite3.connect(path / files.DATABASE_FILE)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(FormatVersionMismatch, match="format 99 and this release reads") as error:
        Database(path)
    assert (error.value.path, error.value.found) == (str(path), 99)


def test_a_damaged_database_says_so(path: Path) -> None:
    with Database(path) as db:
        for number in range(2000):
            db[b"%d" % number] = b"x" * 100
    file = path / files.DATABASE_FILE
    content = bytearray(file.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    file.write_bytes(content)
    with pytest.raises(CorruptDatabase, match=str(path)) as error, Database(path) as db:
        db[:]
    assert "restore it from a copy" in str(error.value)


def test_a_full_disk_loses_nothing_that_was_acknowledged(path: Path) -> None:
    with Database(path) as db:
        tr = db.create_transaction()
        tr[b"k"].wait()
        pages = tr._attempt.snapshot.connection.execute("PRAGMA page_count").fetchone()[0]
        tr._attempt.snapshot.connection.execute(f"PRAGMA max_page_count = {pages + 2}")
        tr.reset()
        with pytest.raises(DiskFull, match=str(path)) as error:
            db[b"large"] = b"x" * 50_000
        assert "free some space" in str(error.value)
        assert db[b"large"] is None
        assert db[b"k"] == b"v"
        db[b"k"] = b"small things still fit"
    with Database(path) as db:
        assert db[b"k"] == b"small things still fit"


AS_NOBODY = """
import os, sys
sys.path[:0] = {paths!r}
import fdbqueue
if os.getuid() == 0:
    os.setgid(65534), os.setuid(65534)
try:
    fdbqueue.open("embedded:" + sys.argv[1])[b"k"]
except fdbqueue.FdbqueueError as error:
    print(type(error).__name__, error)
"""


def test_a_read_only_directory_is_named(path: Path, tmp_path: Path) -> None:
    for parent in [path, *path.parents]:
        if parent.is_relative_to(tmp_path.parent.parent):
            parent.chmod(0o555)
    for file in path.iterdir():
        file.chmod(0o444)
    try:
        for directory in (path, path / "below"):
            program = AS_NOBODY.format(paths=sys.path)
            done = subprocess.run(
                [sys.executable, "-c", program, directory], capture_output=True, text=True
            )
            assert done.stdout.startswith("ReadOnlyDatabase"), done
            assert str(directory) in done.stdout
            assert "writable" in done.stdout
    finally:
        for parent in [path, *path.parents]:
            if parent.is_relative_to(tmp_path.parent.parent):
                parent.chmod(0o755)


def test_durability_is_one_of_two_words(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'full' or 'os'"):
        Database(tmp_path / "db", "sometimes")
    assert not (tmp_path / "db").exists()


def test_an_acknowledged_commit_was_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`full` syncs the log before a commit returns, `os` does not."""
    synced: list[int] = []
    monkeypatch.setattr("fdbqueue.embedded.locks._data_sync", synced.append)
    with Database(tmp_path / "full") as db:
        synced.clear()
        db[b"k"] = b"v"
        assert len(synced) == 1
        db[b"k"]
        assert len(synced) == 1
    synced.clear()
    with Database(tmp_path / "os", "os") as db:
        db[b"k"] = b"v"
        assert synced == []


def test_a_commit_is_on_disk_before_the_file_is_closed_under_its_waiter(tmp_path: Path) -> None:
    """Another thread, or a fork, may close the log between a commit and its sync."""
    (tmp_path / "log").touch()
    sync = SharedSync(tmp_path / "log")
    ticket = sync.ticket()
    sync.close()
    sync.wait(ticket)


def test_a_failed_sync_is_not_acknowledged_then_or_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    with Database(tmp_path / "db") as db:
        with monkeypatch.context() as patch:
            patch.setattr("fdbqueue.embedded.locks._data_sync", fail)
            with pytest.raises(StorageError, match="did not confirm"):
                db[b"k"] = b"v"
        with pytest.raises(StorageError, match="did not confirm"):
            db[b"k"] = b"v2"


def test_a_database_in_memory_is_private_and_leaves_nothing(tmp_path: Path) -> None:
    one, two = fdbqueue.open("memory:"), fdbqueue.open("memory:")
    one[b"k"] = b"v"
    assert two[b"k"] is None
    paths = [one.path, two.path]
    assert all(path.exists() for path in paths)
    one.close(), two.close()
    assert not any(path.exists() for path in paths)


def test_what_a_killed_process_left_in_memory_is_removed(tmp_path: Path) -> None:
    program = (
        "import os, fdbqueue; db = fdbqueue.open('memory:'); print(db.path, flush=True);"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    left = Path(done.stdout.strip())
    assert left.exists()
    os.utime(left, (0, 0))
    fdbqueue.open("memory:").close()
    deadline = time.monotonic() + 5
    while left.exists() and time.monotonic() < deadline:
        time.sleep(0.01)  # another process may be at removing it
    assert not left.exists()


def test_the_write_ahead_log_stays_short_beside_a_reader_that_never_ends(tmp_path: Path) -> None:
    """Forgotten transactions are ended after five seconds, so that the log can begin anew."""
    with Database(tmp_path / "db", "os") as db:
        forgotten = db.create_transaction()
        forgotten[b"k"].wait()
        forgotten._attempt.snapshot.began -= 10
        db.storage._next_expiry = 0
        for number in range(300):
            db[b"k"] = b"%d" % number * 10_000
        assert (tmp_path / "db" / "fdbqueue.sqlite-wal").stat().st_size < 40_000_000
        with pytest.raises(fdbqueue.FDBError, match="1007"):
            forgotten[b"k"].wait()
