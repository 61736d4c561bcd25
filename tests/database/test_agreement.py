"""Details of FoundationDB's API on which both engines must agree."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from tests.support.leases import let_versions_pass
from tests.support.waiting import wait_until


def code(result: Callable[[], Any]) -> Any:
    """Return the code of the error that a call or its future raises, else the result."""
    try:
        future = result()
        return future.wait() if hasattr(future, "wait") else future
    except fdbqueue.error_classes() as error:
        return error.code


# Timeouts


def let_time_out(db: Any, milliseconds: int) -> None:
    """Wait until a timeout is over, and so is each one that began before and is not longer.

    The time must pass, because nothing moves the clock of FoundationDB's client.
    """
    tr = db.create_transaction()
    tr.options.set_timeout(milliseconds)
    wait_until(lambda: code(lambda: tr[b"k"]) == 1031)


def test_a_timeout_counts_from_the_creation_of_the_transaction_or_its_last_reset(db: Any) -> None:
    tr = db.create_transaction()
    let_time_out(db, 60)
    tr.options.set_timeout(50)
    assert code(lambda: tr[b"k"]) == 1031
    tr.reset()
    tr.options.set_timeout(60_000)
    assert not tr[b"k"].present()


@pytest.mark.parametrize("later", [0, 60_000])
def test_an_expired_timeout_stays_expired(db: Any, later: int) -> None:
    tr = db.create_transaction()
    tr.options.set_timeout(20)
    let_time_out(db, 20)
    tr.options.set_timeout(later)
    assert code(lambda: tr[b"k"]) == 1031
    assert code(tr.get_read_version) == 1031
    assert code(tr.commit) == 1031
    assert code(lambda: tr.on_error(1020)) == 1031
    tr.cancel()
    assert code(lambda: tr[b"k"]) == 1031


# Five seconds


def test_a_transaction_with_a_read_version_cannot_commit_writes_after_five_seconds(
    db: Any, space: Subspace
) -> None:
    """The limit holds with and without read conflicts, but not if there is nothing to write."""
    version = db.create_transaction()
    now = version.get_read_version().wait()

    def begun(begin: Callable[[Any], Any]) -> Any:
        tr = db.create_transaction()
        begin(tr)
        return tr

    old = {
        "read": begun(lambda tr: tr[space["k"]].wait()),
        "snapshot read": begun(lambda tr: tr.snapshot[space["k"]].wait()),
        "read version": begun(lambda tr: tr.get_read_version().wait()),
        "set read version": begun(lambda tr: tr.set_read_version(now)),
    }
    writes_conflict_range = begun(lambda tr: tr.get_read_version().wait())
    only_reads = begun(lambda tr: tr[space["k"]].wait())
    only_writes = begun(lambda tr: tr.set(space["written"], b""))
    reads_again = begun(lambda tr: tr[space["k"]].wait())
    let_versions_pass(db, 6)
    db[space["later"]] = b""  # a server notices its age when it commits
    for name, tr in old.items():
        tr[space[name]] = b""
    assert {name: code(tr.commit) for name, tr in old.items()} == dict.fromkeys(old, 1007)
    writes_conflict_range.add_write_conflict_key(space["k"])
    assert code(writes_conflict_range.commit) == 1007
    assert code(lambda: reads_again[space["other"]]) == 1007
    reads_again[space["caught"]] = b""
    assert code(reads_again.commit) == 1007
    assert code(only_reads.commit) is None
    assert code(only_writes.commit) is None
    assert [space.unpack(key) for key, _ in db[space.range()]] == [("later",), ("written",)]


# Watches


def outcome(watch: Any) -> Any:
    """Return the result of a watch that is about to end, or `pending` after a short time."""
    ready = threading.Event()
    watch.on_ready(lambda _: ready.set())
    return code(watch.wait) if ready.wait(0.1) else "pending"


@pytest.fixture
def watched(db: Any, space: Subspace) -> tuple[Any, bytes, Any]:
    """Return a transaction, a key with the value `old`, and a watch of the transaction on it."""
    key = space["watched"].key()
    db[key] = b"old"
    tr = db.create_transaction()
    watch = tr.watch(key)
    tr[key].wait()  # the watch has read its value too
    return tr, key, watch


def mistake(tr: Any, key: bytes) -> None:
    tr.clear_range(b"b", b"a")
    tr[key] = b"new"


ACTS: dict[str, tuple[Callable[[Any, bytes], object], Any]] = {
    "set": (lambda tr, key: tr.set(key, b"new"), None),
    "set, and set back": (lambda tr, key: (tr.set(key, b"new"), tr.set(key, b"old")), None),
    "clear": (lambda tr, key: tr.clear(key), None),
    "clear_range": (lambda tr, key: tr.clear_range(key, key + b"z"), None),
    "add": (lambda tr, key: tr.add(key, bytes(3)), None),
    "versionstamp": (lambda tr, key: tr.set_versionstamped_value(key, bytes(14)), None),
    "set as before": (lambda tr, key: tr.set(key, b"old"), "pending"),
    "set another key": (lambda tr, key: tr.set(key + b"other", b"new"), "pending"),
    "set after a mistake": (mistake, "pending"),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_change_by_its_own_transaction_makes_a_watch_ready_before_the_commit(
    watched: tuple[Any, bytes, Any], act: str
) -> None:
    tr, key, watch = watched
    change, expected = ACTS[act]
    change(tr, key)
    assert outcome(watch) == expected


def test_a_commit_that_changes_nothing_leaves_a_watch_pending(
    db: Any, watched: tuple[Any, bytes, Any]
) -> None:
    tr, key, watch = watched
    tr[key] = b"old"
    tr.commit().wait()
    assert outcome(watch) == "pending"
    db[key] = b"new"
    watch.wait()


def test_a_watch_of_a_missing_key_ignores_clears(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    watch = tr.watch(space["k"].key())
    tr[space["k"]].wait()
    tr.clear(space["k"])
    assert outcome(watch) == "pending"
    tr[space["k"]] = b""
    assert outcome(watch) is None


def conflict(db: Any, tr: Any, key: bytes) -> Any:
    tr[key + b"other"] = b""
    db[key] = b"new"
    return tr.commit()


def too_large(db: Any, tr: Any, key: bytes) -> Any:
    tr.options.set_size_limit(100)
    tr[key + b"other"] = bytes(100)
    return tr.commit()


def inverted_range(db: Any, tr: Any, key: bytes) -> Any:
    tr.clear_range(b"b", b"a")
    return tr.commit()


@pytest.mark.parametrize(
    ("end", "error", "watch_ends", "after_reset"),
    [
        (conflict, 1020, 1020, 1020),
        (too_large, 2101, 2101, 2101),
        (inverted_range, 2005, "pending", 1025),
        (lambda db, tr, key: tr.cancel(), None, "pending", 1025),
        (lambda db, tr, key: tr.on_error(1), 1, "pending", 1025),
    ],
)
def test_a_watch_ends_with_its_transaction(
    db: Any,
    watched: tuple[Any, bytes, Any],
    end: Any,
    error: Any,
    watch_ends: Any,
    after_reset: Any,
) -> None:
    tr, key, watch = watched
    assert code(lambda: end(db, tr, key)) == error
    assert outcome(watch) == watch_ends
    tr.reset()
    assert outcome(watch) == after_reset


def test_a_watch_of_a_key_with_a_pending_versionstamp_is_1036_and_lets_the_commit_pass(
    db: Any, space: Subspace
) -> None:
    tr = db.create_transaction()
    tr.set_versionstamped_value(space["k"], bytes(14))
    watch = tr.watch(space["k"].key())
    assert outcome(watch) == 1036
    assert code(tr.commit) is None
    assert len(db[space["k"]]) == 10


def test_watches_beyond_the_limit_are_1032_and_end_no_other(db: Any, space: Subspace) -> None:
    db.options.set_max_watches(2)
    watches = [db.get_and_watch(space[number].key())[1] for number in range(2)]
    tr = db.create_transaction()
    refused = tr.watch(space["one more"].key())
    assert code(tr.commit) is None
    assert outcome(refused) == 1032
    db.options.set_max_watches(0)
    db.options.set_max_watches(3)
    watches.append(db.get_and_watch(space["one more"].key())[1])
    assert not any(watch.is_ready() for watch in watches)


# Sizes of transactions


def test_a_size_limit_lasts_for_one_attempt(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.options.set_size_limit(100)
    tr[space.key()] = bytes(100)
    assert code(tr.commit) == 2101
    tr.on_error(1020).wait()
    tr[space.key()] = bytes(100)
    tr.commit().wait()
    tr.reset()
    tr.options.set_size_limit(100)
    tr[space.key()] = bytes(100)
    assert code(tr.commit) == 2101
