"""What is told is on disk, also if a sync fails or hangs."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue.embedded import Database
from fdbqueue.embedded.disk import files, generations
from fdbqueue.embedded.disk.commit_log import COMMITS_FILE
from fdbqueue.embedded.disk.sync import SharedSync
from fdbqueue.embedded.storage import connections
from fdbqueue.errors import CommitUnknownResult, FDBError, SyncFailed
from tests.support.failing_disk import Disk


@pytest.fixture
def two(tmp_path: Path, disk: Disk) -> Iterator[tuple[Database, Database]]:
    """Return a directory, opened twice as by two processes."""
    with Database(tmp_path / "db") as one, Database(tmp_path / "db") as other:
        disk.syncs = 0
        yield one, other


def committed(db: Database, key: bytes) -> Any:
    """Commit, and return the future of the commit."""
    transaction = db.create_transaction()
    transaction[key] = b"v"
    return transaction.commit()


def in_thread(function: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def read_again(db: Database, read: Callable[[Database], object]) -> object:
    """Read as a retry loop does: the first attempt may still see the files from before."""
    with suppress(FDBError):
        return read(db)
    return read(db)


# Reads


def read_value(db: Database) -> object:
    return db.create_transaction()[b"k"].value


def read_key(db: Database) -> object:
    return db.create_transaction().get_key(fdbqueue.embedded.KeySelector(b"", True, 1)).value


def read_range(db: Database) -> object:
    return db.create_transaction()[b"":b"z"].to_list()


def read_version(db: Database) -> object:
    return db.create_transaction().get_read_version().wait()


def read_snapshot(db: Database) -> object:
    return db.create_transaction().snapshot[b"k"].value


def read_from_database(db: Database) -> object:
    return db[b"k"]


def read_size(db: Database) -> object:
    return db.create_transaction().get_estimated_range_size_bytes(b"", b"z").wait()


READS = [
    read_value,
    read_key,
    read_range,
    read_version,
    read_snapshot,
    read_from_database,
    read_size,
]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("process", [0, 1], ids=["same process", "other process"])
def test_a_read_returns_once_what_it_saw_is_on_disk(
    two: tuple[Database, Database], disk: Disk, read: Callable[[Database], object], process: int
) -> None:
    commit = committed(two[0], b"k")
    assert disk.syncs == 0
    read(two[process])
    assert disk.syncs == 1
    commit.wait()
    read(two[process])
    assert disk.syncs == 1  # nothing is pending


def test_a_read_waits_for_a_commit_that_its_snapshot_may_contain(
    two: tuple[Database, Database], disk: Disk
) -> None:
    """SQLite shows a commit a moment before the log of commits does."""
    one, other = two
    log = one.storage.log
    log.begin(log.published[1] + 1)
    read_value(other)
    assert disk.syncs == 1


@pytest.mark.parametrize("fails", [False, True])
def test_a_function_learns_early_but_tells_nothing_before_it_is_on_disk(
    two: tuple[Database, Database], disk: Disk, fails: bool
) -> None:
    committed(two[0], b"k")
    seen: list[object] = []

    @fdbqueue.transactional
    def look(tr: fdbqueue.Transaction) -> None:
        seen.append((tr[b"k"].value, disk.syncs))
        if fails:
            raise LookupError

    if fails:
        with pytest.raises(LookupError):
            look(two[1])
    else:
        look(two[1])
    assert seen == [(b"v", 0)]
    assert disk.syncs == 1


def test_a_watch_fires_once_the_change_is_on_disk(
    two: tuple[Database, Database], disk: Disk
) -> None:
    one, other = two
    _, watch = other.get_and_watch(b"k")
    disk.syncs = 0
    fired = threading.Event()
    seen: list[int] = []

    def note(_: object) -> None:
        seen.append(disk.syncs)
        fired.set()

    watch.on_ready(note)
    commit = committed(one, b"k")
    assert fired.wait(60)
    assert seen[0] >= 1  # a look while the commit was under way may have synced, too
    commit.wait()


def test_a_watch_for_a_client_that_then_reads_fires_before(
    two: tuple[Database, Database], disk: Disk
) -> None:
    one, other = two
    transaction = other.create_transaction()
    watch = transaction.watch_ahead(b"k")
    transaction.commit().wait()
    disk.syncs = 0
    fired = threading.Event()
    watch.on_ready(lambda _: fired.set())
    committed(one, b"k")
    assert fired.wait(60)
    assert disk.syncs == 0
    assert other[b"k"] == b"v"
    assert disk.syncs == 1


def test_many_reads_beside_a_pending_commit_share_a_sync(
    two: tuple[Database, Database], disk: Disk
) -> None:
    one, other = two
    commit = committed(one, b"k")
    disk.flows.clear()
    readers = [in_thread(lambda: read_value(other)) for _ in range(8)]
    assert disk.hanging.acquire(timeout=60)
    assert all(reader.is_alive() for reader in readers)
    disk.flows.set()
    for reader in readers:
        reader.join()
    commit.wait()
    assert disk.syncs == 1


# A sync that fails


def test_after_one_failed_sync_the_commits_are_written_again(
    two: tuple[Database, Database], disk: Disk
) -> None:
    one, other = two
    pending = committed(one, b"pending")
    disk.failures = 1
    one[b"k"] = b"v"
    pending.wait()
    assert one.storage.log.generation == 1
    assert other[b"k"] == other[b"pending"] == b"v"
    other[b"l"] = b"w"
    assert one[b"l"] == b"w"


@pytest.mark.parametrize("process", [0, 1], ids=["same process", "other process"])
def test_while_the_disk_is_broken_nothing_commits_and_nothing_is_told(
    two: tuple[Database, Database], disk: Disk, process: int
) -> None:
    one, db = two[0], two[process]
    disk.breaks()
    with pytest.raises(CommitUnknownResult, match="the disk has not confirmed it") as unknown:
        one[b"k"] = b"v"
    assert unknown.value.code == 1021
    for _ in range(2):
        with pytest.raises(SyncFailed, match="check the system log"):
            db[b"refused"] = b"v"
        for read in READS:
            with pytest.raises(SyncFailed):
                read_again(db, read)
    disk.is_repaired()
    assert db[b"k"] == b"v"  # it was written, and now it is on disk
    assert db[b"refused"] is None
    db[b"k"] = b"w"


def test_an_error_after_a_commit_does_not_claim_that_it_took_no_effect(
    two: tuple[Database, Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(SharedSync, "note_commit", fail)
        with pytest.raises(CommitUnknownResult, match="Input/output error"):
            two[0][b"k"] = b"v"
    assert two[1][b"k"] == b"v"


def test_files_that_cannot_be_opened_after_a_commit_do_not_claim_that_it_took_no_effect(
    two: tuple[Database, Database], disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = two
    jobs = fdbqueue.PriorityQueue.named(one, "jobs")
    jobs.push(one, "first")

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    disk.failures = 1
    with monkeypatch.context() as patch:
        patch.setattr(connections.Connections, "_open", fail)
        with pytest.raises(CommitUnknownResult, match="Input/output error"):
            jobs.push(one, "second")
    assert [item.value for item in jobs.items(other)] == ["first", "second"]


def test_a_commit_log_that_is_truncated_after_a_commit_makes_its_result_unknown(
    tmp_path: Path, disk: Disk
) -> None:
    db = Database(tmp_path / "db")
    commit = committed(db, b"k")
    os.truncate(tmp_path / "db" / COMMITS_FILE, 0)
    with pytest.raises(CommitUnknownResult, match="truncated"):
        commit.wait()
    db.close()
    db.close()


def test_a_commit_that_cannot_be_published_is_unknown_until_the_next_one_publishes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fdb_error: Any
) -> None:
    """The write of the tail fails after SQLite's commit, and so does the one that follows."""
    write = os.pwrite

    def fails(descriptor: int, data: bytes, at: int) -> int:
        if at == 0:
            raise OSError(errno.EIO, "Input/output error")
        return write(descriptor, data, at)

    with fdbqueue.open(tmp_path / "db") as db:
        db[b"before"] = b"1"
        monkeypatch.setattr(os, "pwrite", fails)
        with fdb_error(1021):
            db[b"k"] = b"v"
        monkeypatch.undo()
        db[b"after"] = b"1"
        assert db[b"k"] == b"v"


def test_a_commit_whose_result_is_unknown_is_not_repeated(
    two: tuple[Database, Database], disk: Disk
) -> None:
    jobs = fdbqueue.PriorityQueue.named(two[0], "jobs")
    jobs.push(two[0], "first")
    disk.breaks()
    with pytest.raises(CommitUnknownResult):
        jobs.push(two[0], "second")
    with pytest.raises(SyncFailed):
        jobs.pop(two[0])
    disk.is_repaired()
    assert [item.value for item in jobs.items(two[0])] == ["first", "second"]


def test_each_wait_for_a_commit_that_the_disk_did_not_confirm_raises(
    tmp_path: Path, disk: Disk
) -> None:
    """Also after the database was closed."""
    db = Database(tmp_path / "db")
    transaction = db.create_transaction()
    stamp = transaction.get_versionstamp()
    commits = [committed(db, b"k"), committed(db, b"l")]
    disk.breaks()
    transaction[b"stamped"] = b"v"
    commits.append(transaction.commit())
    with pytest.raises(FDBError, match="2020"):
        stamp.wait()
    for _ in range(2):
        for commit in commits[1:]:
            with pytest.raises(CommitUnknownResult):
                commit.wait()
    assert isinstance(commits[1].exception(), CommitUnknownResult)
    db.close()
    with pytest.raises(CommitUnknownResult):
        commits[0].wait()


def test_a_fork_does_not_forget_a_failed_sync(tmp_path: Path, disk: Disk) -> None:
    with Database(tmp_path / "db") as db:
        disk.breaks()
        with pytest.raises(CommitUnknownResult):
            db[b"k"] = b"v"

        def child(answers: Any) -> None:
            try:
                db[b"l"] = b"v"
            except Exception as error:
                answers.put(type(error).__name__)

        fork = multiprocessing.get_context("fork")
        answers = fork.SimpleQueue()
        process = fork.Process(target=child, args=(answers,))
        process.start()
        assert answers.get() == "SyncFailed"
        process.join()
        with pytest.raises(SyncFailed):
            db[b"l"] = b"v"


def test_pages_that_the_disk_lost_are_not_taken_for_commits(
    two: tuple[Database, Database], disk: Disk
) -> None:
    """After a failed sync the system may drop a page, and read an older one from the disk."""
    one, other = two
    disk.breaks()
    with pytest.raises(CommitUnknownResult):
        one[b"k"] = b"v"
    log = one.storage._connections.files.write_ahead_log
    with log.open("rb+") as file:
        file.seek(-100, os.SEEK_END)
        file.write(bytes(100))
    disk.is_repaired()
    with pytest.raises(SyncFailed):
        other[b"k"] = b"w"
    assert generations.current(one.path) == 0


def fail_a_sync(db: Database, disk: Disk) -> None:
    """Let a sync fail that a read waits for, without a commit."""
    disk.failures = 1
    sync = db.storage._connections.sync
    with pytest.raises(SyncFailed):
        sync.wait(number=sync.next)


def test_new_files_are_written_again_although_nothing_was_committed_to_them(
    two: tuple[Database, Database], disk: Disk
) -> None:
    one, other = two
    disk.failures = 1
    one[b"k"] = b"v"
    fail_a_sync(one, disk)
    other[b"l"] = b"w"
    assert one[b"k"] == b"v"
    assert one.storage.log.generation == 2


def test_files_are_written_again_after_a_commit_that_restarted_the_log_was_rolled_back(
    two: tuple[Database, Database], disk: Disk
) -> None:
    """SQLite restarts its log once all commits are in the database file, and on disk there."""
    one, other = two
    one[b"k"] = b"v"
    file = one.storage.database_file
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN IMMEDIATE")
        rows = [(b"%d" % number, bytes(2_000)) for number in range(100)]
        connection.executemany("INSERT INTO kv (key, value) VALUES (?, ?)", rows)
        connection.execute("ROLLBACK")
    fail_a_sync(one, disk)
    other[b"l"] = b"w"
    assert one[b"k"] == b"v"
    assert one.storage.log.generation == 1


def rotating(db: Database, disk: Disk, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose first result is outdated when it returns: the files were replaced."""
    calls: list[object] = []

    def call(*arguments: Any) -> Any:
        result = function(*arguments)
        calls.append(result)
        if len(calls) == 1:
            fail_a_sync(db, disk)
            db[b"l"] = b"w"
        return result

    return call


def test_files_that_are_removed_for_newer_ones_during_a_check_are_not_taken_for_replaced(
    two: tuple[Database, Database], disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = two
    opened = one.storage._connections.files
    opened._checked = None
    monkeypatch.setattr(files, "current", rotating(other, disk, files.current))
    assert opened.replaced() is None
    assert generations.current(one.path) == 1


def test_files_that_are_removed_for_newer_ones_while_they_are_opened_are_opened_anew(
    two: tuple[Database, Database], disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = two
    path = one.path
    monkeypatch.setattr(connections, "OpenFiles", rotating(other, disk, files.OpenFiles))
    with Database(path) as third:
        assert third[b"l"] == b"w"
    assert generations.current(path) == 1


def test_files_that_cannot_be_opened_because_the_disk_fails_do_not_replace_the_open_ones(
    two: tuple[Database, Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = two[0].storage._connections
    before = opened.files, opened.sync

    def fails(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(connections, "sync_path", fails)
        with pytest.raises(OSError, match="Input/output"):
            opened.open(two[0].storage.log)
    assert (opened.files, opened.sync) == before


def test_a_hold_on_the_writers_lock_ends_although_the_files_have_to_be_written_again(
    two: tuple[Database, Database], disk: Disk
) -> None:
    one, other = two
    one[b"k"] = b"v"
    one.storage.lock.take_hold(None)  # of a transaction that does not go on
    fail_a_sync(one, disk)
    other[b"l"] = b"w"
    assert one[b"k"] == b"v"


def test_closing_and_opening_a_database_ends_the_failure(tmp_path: Path, disk: Disk) -> None:
    with Database(tmp_path / "db") as db:
        disk.breaks()
        with pytest.raises(CommitUnknownResult):
            db[b"k"] = b"v"
    disk.is_repaired()
    with Database(tmp_path / "db") as db:
        assert db[b"k"] == b"v"
        assert db.storage.log.generation == 0


# A sync that hangs


def test_a_timeout_ends_the_wait_for_a_disk_that_hangs(
    two: tuple[Database, Database], disk: Disk
) -> None:
    one, other = two
    for db in two:
        db.options.set_transaction_timeout(100)
    disk.flows.clear()
    with pytest.raises(CommitUnknownResult, match="timed out") as unknown:
        one[b"k"] = b"v"
    assert unknown.value.code == 1021
    for read in READS:
        with pytest.raises(FDBError, match="1031"):
            read(other)
    disk.flows.set()
    for db in two:
        db.options.set_transaction_timeout(0)
    assert other[b"k"] == b"v"


def test_a_timeout_ends_the_wait_until_files_are_written_again(
    two: tuple[Database, Database], disk: Disk
) -> None:
    one, other = two
    fail_a_sync(one, disk)
    with (one.path / files.LOCK_FILE).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as a stopped process does
        late = threading.Timer(30, fcntl.flock, (lock, fcntl.LOCK_UN))
        late.start()
        with pytest.raises(FDBError, match="1007"):
            read_value(other)  # which learns of the failure
        other.options.set_transaction_timeout(100)
        for read in (read_value, read_size):
            with pytest.raises(FDBError, match="1031"):
                read(other)
        assert late.is_alive()
        late.cancel()
    assert read_again(other, read_value) is None


def test_a_transaction_without_timeout_waits_for_the_disk(
    two: tuple[Database, Database], disk: Disk
) -> None:
    disk.flows.clear()
    thread = in_thread(lambda: two[0].set(b"k", b"v"))
    assert disk.hanging.acquire(timeout=60)
    reader = in_thread(lambda: read_value(two[1]))
    assert disk.hanging.acquire(timeout=60)
    assert thread.is_alive()
    assert reader.is_alive()
    disk.flows.set()
    thread.join()
    reader.join()
