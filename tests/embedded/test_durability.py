"""What is told is on disk, also if a sync fails or hangs."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue.embedded import Database, KeySelector
from fdbqueue.embedded.directory import LOG_FILE
from fdbqueue.errors import CommitUnknownResult, FDBError, StorageError, SyncFailed
from tests.support.failing_disk import Disk
from tests.support.waiting import wait_until


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


# Commits


@pytest.mark.parametrize("use", ["wait", "block_until_ready", "is_ready", "on_ready"])
def test_each_use_of_a_commit_waits_for_the_disk(
    two: tuple[Database, Database], disk: Disk, use: str
) -> None:
    """One sync covers all commits that a thread has not waited for."""
    commits = [committed(two[0], b"%d" % number) for number in range(3)]
    assert disk.syncs == 0
    called: list[object] = []
    getattr(commits[2], use)(*([called.append] if use == "on_ready" else []))
    assert disk.syncs == 1
    assert called == ([commits[2]] if use == "on_ready" else [])
    for commit in commits:
        commit.wait()
    assert disk.syncs == 1


@pytest.mark.parametrize("durability", ["full", "os"])
def test_closing_a_database_syncs_the_commits_that_nobody_has_waited_for(
    tmp_path: Path, disk: Disk, durability: str
) -> None:
    """Without durability nothing is synced."""
    with Database(tmp_path / "db", durability) as db:
        disk.syncs = 0
        commit = committed(db, b"k")
    assert disk.syncs == (durability == "full")
    commit.wait()


def test_a_versionstamp_is_ready_once_its_commit_is_on_disk(
    two: tuple[Database, Database], disk: Disk
) -> None:
    stamped = two[0].create_transaction()
    stamped[b"k"] = b"v"
    stamp = stamped.get_versionstamp()
    stamped.commit()
    assert stamp.is_ready()
    assert disk.syncs == 1


def test_threads_share_a_sync_and_processes_do_not_wait_for_each_other(
    two: tuple[Database, Database], disk: Disk
) -> None:
    one, other = two
    disk.flows.clear()
    pool = ThreadPoolExecutor(4)
    commits = [pool.submit(one.set, b"1", b"v")]
    assert disk.hanging.acquire(timeout=60)
    commits += [pool.submit(one.set, b"%d" % n, b"v") for n in (2, 3, 4)]

    def is_there() -> bool:
        ahead = other.create_transaction()
        ahead.read_ahead()
        return len(list(ahead[:])) == 4

    wait_until(is_there)
    disk.flows.set()
    for commit in commits:
        commit.result()
    assert disk.syncs == 2


# Reads

READS: list[Callable[[Database], object]] = [
    lambda db: db.create_transaction()[b"k"].value,
    lambda db: db.create_transaction().get_key(KeySelector(b"", True, 1)).value,
    lambda db: db.create_transaction()[b"":b"z"].to_list(),
    lambda db: db.create_transaction().get_read_version().wait(),
    lambda db: db.create_transaction().snapshot[b"k"].value,
    lambda db: db[b"k"],
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
    assert disk.syncs == 1 + process  # each process syncs for itself
    read(two[process])
    assert disk.syncs == 1 + process  # nothing is pending


def test_a_function_learns_early_but_tells_nothing_before_it_is_on_disk(
    two: tuple[Database, Database], disk: Disk
) -> None:
    """Also if all that it tells is an error."""
    committed(two[0], b"k")
    seen: list[object] = []

    @fdbqueue.transactional
    def look(tr: fdbqueue.Transaction) -> None:
        seen.append((tr[b"k"].value, disk.syncs))
        raise LookupError

    with pytest.raises(LookupError):
        look(two[1])
    assert seen == [(b"v", 0)]
    assert disk.syncs == 1


def test_a_watch_fires_before_the_change_is_on_disk_and_the_read_that_follows_waits(
    two: tuple[Database, Database], disk: Disk
) -> None:
    one, other = two
    _, watch = other.get_and_watch(b"k")
    disk.syncs = 0
    fired = threading.Event()
    watch.on_ready(lambda _: fired.set())
    committed(one, b"k")
    assert fired.wait(60)
    assert disk.syncs == 0
    assert other[b"k"] == b"v"
    assert disk.syncs == 1


# A sync that fails


@pytest.mark.parametrize("process", [0, 1], ids=["same process", "other process"])
def test_after_a_failed_sync_nothing_commits_and_nothing_is_told(
    two: tuple[Database, Database], disk: Disk, process: int
) -> None:
    one, db = two[0], two[process]
    pending = committed(one, b"pending")
    disk.failures = 1
    with pytest.raises(CommitUnknownResult, match="the disk has not confirmed it") as unknown:
        one[b"k"] = b"v"
    assert unknown.value.code == 1021
    with pytest.raises(CommitUnknownResult):
        pending.wait()
    for _ in range(2):
        with pytest.raises(SyncFailed, match="check the system log"):
            db[b"refused"] = b"v"
        for read in READS:
            with pytest.raises(SyncFailed):
                read(db)


def test_the_first_process_that_opens_it_after_all_have_closed_it_writes_it_again(
    two: tuple[Database, Database], disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = two
    other[b"before"] = b"1"
    disk.failures = 1
    with pytest.raises(CommitUnknownResult):
        one[b"k"] = b"v"
    one.close()
    with pytest.raises(SyncFailed):
        Database(one.path)
    other.close()
    for _ in range(2):
        with Database(one.path) as db:
            assert (db[b"before"], db[b"k"]) == (b"1", b"v")
            db[b"after"] = b"1"
    assert [each.message.split(" ", 1)[1] for each in caplog.records] == [
        "was written again because a sync had failed"
    ]
    assert {each.name for each in one.path.iterdir()} == {"fdbqueue.sqlite", "fdbqueue.lock"}


def test_pages_that_the_disk_lost_are_not_taken_for_commits(tmp_path: Path, disk: Disk) -> None:
    """After a failed sync the system may drop a page, and read an older one from the disk."""
    with Database(tmp_path / "db") as db:
        db[b"before"] = b"1"
        disk.failures = 1
        with pytest.raises(CommitUnknownResult):
            db[b"k"] = b"v"
    with (tmp_path / "db" / LOG_FILE).open("rb+") as file:
        file.seek(-100, os.SEEK_END)
        file.write(bytes(100))
    with Database(tmp_path / "db") as db:
        assert (db[b"before"], db[b"k"]) == (b"1", None)
        assert db.check_integrity()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_copy_that_cannot_be_made_is_tried_again_at_the_next_opening(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    with Database(tmp_path / "db") as db:
        disk.failures = 1
        with pytest.raises(CommitUnknownResult):
            db[b"k"] = b"v"

    def fail(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    for owner, name in ((shutil, "copyfile"), (Path, "rename")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            with pytest.raises(StorageError):
                Database(tmp_path / "db")
    with Database(tmp_path / "db") as db:
        assert db[b"k"] == b"v"


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
    db.close()
    with pytest.raises(CommitUnknownResult):
        commits[0].wait()


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
