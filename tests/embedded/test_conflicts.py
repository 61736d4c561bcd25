"""A transaction conflicts if its reads were overwritten before its commit."""

from __future__ import annotations

import fcntl
import math
import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from fdb import fdboptions

import fdbqueue
from fdbqueue.embedded import Database, KeySelector
from fdbqueue.embedded.directory import LOCK_FILE
from tests.support.waiting import wait_until

Action = Callable[[Any], Any]


def conflicts(db: Any, first: Action, second: Action) -> bool:
    """Return whether a transaction that did `first` fails after another did `second`."""
    tr = db.create_transaction()
    tr.get_read_version().wait()
    first(tr)
    tr[b"unrelated"] = b""
    other = db.create_transaction()
    second(other)
    other.commit().wait()
    try:
        tr.commit().wait()
    except fdbqueue.error_classes() as error:
        if error.code != 1020:
            raise
        return True
    return False


@pytest.fixture
def filled(db: Any) -> Any:
    for key in (b"b", b"d", b"f"):
        db[key] = b"1"
    return db


def fill(db: Any, keys: list[bytes]) -> None:
    tr = db.create_transaction()
    for key in keys:
        tr[key] = b""
    tr.commit().wait()


def write(key: bytes) -> Action:
    return lambda tr: tr.set(key, b"2")


def touch(key: bytes) -> Action:
    """Let transactions that read a key conflict, and leave its value."""
    return lambda tr: tr.add_write_conflict_key(key)


CASES: list[tuple[str, Action, Action, bool]] = [
    ("a read of the written key", lambda tr: tr[b"b"].wait(), write(b"b"), True),
    ("a read of another key", lambda tr: tr[b"b"].wait(), write(b"d"), False),
    ("a read of a key that is cleared", lambda tr: tr[b"b"].wait(), lambda t: t.clear(b"b"), True),
    ("a snapshot read", lambda tr: tr.snapshot[b"b"].wait(), write(b"b"), False),
    ("a blind write of the same key", write(b"b"), write(b"b"), False),
    ("an insert into a read range", lambda tr: list(tr[b"a":b"e"]), write(b"c"), True),
    ("an insert behind a read range", lambda tr: list(tr[b"a":b"e"]), write(b"e"), False),
    ("a snapshot range", lambda tr: list(tr.snapshot[b"a":b"e"]), write(b"c"), False),
    ("behind a limit", lambda tr: list(tr.get_range(b"a", b"z", 1)), write(b"c"), False),
    ("before a limit", lambda tr: list(tr.get_range(b"a", b"z", 1)), write(b"a"), True),
    ("at a limit", lambda tr: list(tr.get_range(b"a", b"z", 1)), write(b"b"), True),
    ("limit, reverse", lambda tr: list(tr.get_range(b"a", b"z", 1, True)), write(b"e"), False),
    ("reverse, in it", lambda tr: list(tr.get_range(b"a", b"z", 1, True)), write(b"g"), True),
    ("an empty range", lambda tr: list(tr[b"g":b"i"]), write(b"h"), True),
    ("a clear over a read key", lambda t: t[b"b"].wait(), lambda t: t.clear_range(b"", b"c"), True),
    ("own set, then read", lambda tr: (write(b"b")(tr), tr[b"b"].wait()), write(b"b"), False),
    ("read, then own set", lambda tr: (tr[b"b"].wait(), write(b"b")(tr)), write(b"b"), True),
    (
        "an own atomic, then read",
        lambda tr: (tr.add(b"b", b"\1"), tr[b"b"].wait()),
        write(b"b"),
        True,
    ),
    ("own clear, then range", lambda t: (t.clear(b"b"), list(t[b"a":b"c"])), write(b"b"), False),
    ("own clear, its gap", lambda t: (t.clear(b"b"), list(t[b"a":b"c"])), write(b"bb"), True),
    ("an atomic against a read", lambda tr: tr[b"b"].wait(), lambda t: t.add(b"b", b"\1"), True),
    ("two atomics", lambda tr: tr.add(b"b", b"\1"), lambda tr: tr.add(b"b", b"\1"), False),
    ("an added read key", lambda tr: tr.add_read_conflict_key(b"x"), write(b"x"), True),
    ("an added read range", lambda t: t.add_read_conflict_range(b"x", b"z"), write(b"y"), True),
    (
        "an added write key",
        lambda t: t[b"x"].wait(),
        lambda t: t.add_write_conflict_key(b"x"),
        True,
    ),
    (
        "an added write range",
        lambda tr: tr[b"y"].wait(),
        lambda tr: tr.add_write_conflict_range(b"x", b"z"),
        True,
    ),
    (
        "a write without its conflict range",
        lambda tr: tr[b"b"].wait(),
        lambda tr: (tr.options.set_next_write_no_write_conflict_range(), tr.set(b"b", b"2")),
        False,
    ),
    (
        "only the next write is without",
        lambda tr: tr[b"d"].wait(),
        lambda tr: (
            tr.options.set_next_write_no_write_conflict_range(),
            tr.set(b"b", b"2"),
            tr.set(b"d", b"2"),
        ),
        True,
    ),
    (
        "a clear of nothing is a write too",
        lambda tr: tr[b"d"].wait(),
        lambda tr: (
            tr.options.set_next_write_no_write_conflict_range(),
            tr.clear_range(b"b", b"b"),
            tr.set(b"d", b"2"),
        ),
        True,
    ),
    (
        "between a selector and its key",
        lambda tr: tr.get_key(KeySelector.first_greater_than(b"b")).wait(),
        write(b"c"),
        True,
    ),
    (
        "behind a selector's key",
        lambda tr: tr.get_key(KeySelector.first_greater_than(b"b")).wait(),
        write(b"e"),
        False,
    ),
    (
        "before a backward selector's key",
        lambda tr: tr.get_key(KeySelector.last_less_than(b"d")).wait(),
        write(b"a"),
        False,
    ),
    (
        "before the first key, which a begin selector with a limit passes",
        lambda tr: list(tr.get_range(KeySelector.last_less_or_equal(b"aa"), b"z", 1)),
        write(b"a"),
        True,
    ),
    (
        "before the first key, also if the read in reverse stops at its limit",
        lambda tr: list(tr.get_range(KeySelector.last_less_or_equal(b"aa"), b"z", 1, True)),
        write(b"a"),
        True,
    ),
    (
        "behind the last key, also if the read stops before its end selector",
        lambda tr: list(tr.get_range(b"a", KeySelector(b"d", False, 9), 1)),
        write(b"x"),
        True,
    ),
    (
        "behind the last key, which an end selector passes in reverse",
        lambda tr: list(tr.get_range(b"a", KeySelector(b"d", False, 9), 1, True)),
        write(b"x"),
        True,
    ),
    (
        "behind the end, as the begin selector passes the last key",
        lambda tr: list(tr.get_range(KeySelector(b"d", False, 9), b"z")),
        write(b"zz"),
        True,
    ),
    (
        "before the end, as the begin selector passes the last key",
        lambda tr: list(tr.get_range(KeySelector(b"d", False, 9), b"z")),
        write(b"e"),
        True,
    ),
    (
        "a stamped key in a read range",
        lambda tr: list(tr[b"s":b"t"]),
        lambda tr: tr.set_versionstamped_key(b"s" + bytes(10) + b"\1\0\0\0", b""),
        True,
    ),
    (
        "a stamped key outside of it",
        lambda tr: list(tr.get_range(b"s", b"s" + bytes(8))),
        lambda tr: tr.set_versionstamped_key(b"s" + bytes(10) + b"\1\0\0\0", b""),
        False,
    ),
]


@pytest.mark.parametrize(
    ("first", "second", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_reads_conflict_with_later_writes_to_the_same_keys(
    filled: Any, first: Action, second: Action, expected: bool
) -> None:
    assert conflicts(filled, first, second) is expected


@pytest.mark.parametrize(
    ("mode", "limit", "rows"),
    [
        ("iterator", 0, 16),
        ("iterator", 50, 16),
        ("iterator", 5, 5),
        ("small", 0, 16),
        ("medium", 0, 16),
        ("large", 0, 16),
        ("serial", 0, 256),
        ("want_all", 0, 256),
        ("want_all", 50, 50),
        ("exact", 50, 50),
    ],
)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_read_conflicts_with_the_rows_of_the_batch_that_it_began(
    db: Any, mode: str, limit: int, rows: int, reverse: bool
) -> None:
    keys = [b"row %03d" % n for n in range(300)]
    fill(db, keys)

    def read(tr: Any) -> None:
        next(iter(tr.get_range(b"a", b"z", limit, reverse, fdboptions.StreamingMode[mode][0])))

    ordered = keys[::-1] if reverse else keys
    assert conflicts(db, read, touch(ordered[rows - 1]))
    assert not conflicts(db, read, touch(ordered[rows]))


def test_a_loop_reads_larger_batches_as_it_goes_on(db: Any) -> None:
    fill(db, [b"row %03d" % n for n in range(100)])

    def read(rows: int) -> Action:
        return lambda tr: list(islice(tr[b"a":b"z"], rows))

    assert not conflicts(db, read(16), touch(b"row 016"))
    assert conflicts(db, read(17), touch(b"row 079"))
    assert not conflicts(db, read(17), touch(b"row 080"))


def test_a_read_to_its_limit_over_own_writes_does_not_depend_on_later_keys(filled: Any) -> None:
    def read(tr: Any) -> None:
        tr[b"c"] = b"own"
        list(tr.get_range(b"a", b"z", 2))

    assert conflicts(filled, read, write(b"bb"))
    assert not conflicts(filled, read, write(b"cc"))


def test_a_commit_before_the_read_version_does_not_conflict(filled: Any) -> None:
    filled[b"b"] = b"2"
    tr = filled.create_transaction()
    assert tr[b"b"] == b"2"
    tr[b"b"] = b"3"
    tr.commit().wait()


def test_a_transaction_that_only_reads_never_conflicts(filled: Any) -> None:
    tr = filled.create_transaction()
    assert tr[b"b"] == b"1"
    filled[b"b"] = b"2"
    tr.commit().wait()
    assert tr.get_committed_version() == -1


def test_a_failed_commit_changes_nothing(filled: Any, fdb_error: Any) -> None:
    tr = filled.create_transaction()
    tr[b"b"].wait()
    tr[b"new"] = b"1"
    tr.clear_range(b"", b"c")
    filled[b"b"] = b"2"
    with fdb_error(1020):
        tr.commit().wait()
    assert [row.key for row in filled[:]] == [b"b", b"d", b"f"]


def test_a_transaction_reads_new_values_and_commits_after_on_error(
    filled: Any, fdb_error: Any
) -> None:
    tr = filled.create_transaction()
    tr[b"b"].wait()
    tr[b"b"] = b"mine"
    filled[b"b"] = b"theirs"
    with fdb_error(1020):
        tr.commit().wait()
    tr.on_error(1020).wait()
    assert tr[b"b"] == b"theirs"
    tr[b"b"] = b"mine"
    tr.commit().wait()
    assert filled[b"b"] == b"mine"


def test_write_skew_is_impossible(filled: Any, fdb_error: Any) -> None:
    """Each transaction reads the key that the other writes, so only one may commit."""
    one, two = filled.create_transaction(), filled.create_transaction()
    one[b"b"].wait(), two[b"d"].wait()
    one[b"d"], two[b"b"] = b"by one", b"by two"
    one.commit().wait()
    with fdb_error(1020):
        two.commit().wait()


def test_a_transaction_that_waits_for_the_lock_notices_a_conflict(
    tmp_path: Path, fdb_error: Any
) -> None:
    with Database(tmp_path / "db") as db, Database(tmp_path / "db") as other:
        conflicting, harmless = db.create_transaction(), db.create_transaction()
        for tr, key in ((conflicting, b"read"), (harmless, b"other")):
            tr[key].wait()
            tr[b"written"] = key
        other[b"read"] = b"new"
        with (tmp_path / "db" / LOCK_FILE).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            harmless.options.set_timeout(100)
            with fdb_error(1031):
                harmless.commit().wait()
            commit = threading.Thread(target=lambda: outcome.append(conflicting.commit()))
            outcome: list[Any] = []
            commit.start()
            wait_until(lambda: db.storage.lock._waits_since < math.inf)
        commit.join()
        with fdb_error(1020):
            outcome[0].wait()
        assert other[b"written"] == None  # noqa: E711
