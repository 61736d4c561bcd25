"""A transaction conflicts if its reads were overwritten before its commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fdb import fdboptions

import fdbqueue
from fdbqueue.embedded import KeySelector

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


def reads(*arguments: Any) -> Action:
    return lambda tr: list(tr.get_range(*arguments))


def without_range(*later: Action) -> Action:
    """Write without a conflict range, and then do something else."""

    def action(tr: Any) -> None:
        tr.options.set_next_write_no_write_conflict_range()
        for each in later:
            each(tr)

    return action


def read(key: bytes) -> Action:
    return lambda tr: tr[key].wait()


def selects(selector: KeySelector) -> Action:
    return lambda tr: tr.get_key(selector).wait()


def stamps(tr: Any) -> None:
    tr.set_versionstamped_key(b"s" + bytes(10) + b"\1\0\0\0", b"")


def own_and_two(tr: Any) -> None:
    tr[b"c"] = b"own"
    list(tr.get_range(b"a", b"z", 2))


read_b, read_d = read(b"b"), read(b"d")
FAR = KeySelector(b"d", False, 9)  # behind the last key
FIRST = KeySelector.last_less_or_equal(b"aa")  # before the first key

CASES: list[tuple[str, Action, Action, bool]] = [
    ("a read of the written key", read_b, write(b"b"), True),
    ("a read of another key", read_b, write(b"d"), False),
    ("a read of a key that is cleared", read_b, lambda tr: tr.clear_range(b"", b"c"), True),
    ("a snapshot read", lambda tr: tr.snapshot[b"b"].wait(), write(b"b"), False),
    ("a blind write of the same key", write(b"b"), write(b"b"), False),
    ("an insert into a read range", reads(b"a", b"e"), write(b"c"), True),
    ("an insert behind a read range", reads(b"a", b"e"), write(b"e"), False),
    ("a snapshot range", lambda tr: list(tr.snapshot[b"a":b"e"]), write(b"c"), False),
    ("behind a limit", reads(b"a", b"z", 1), write(b"c"), False),
    ("at a limit", reads(b"a", b"z", 1), write(b"b"), True),
    ("limit, reverse", reads(b"a", b"z", 1, True), write(b"e"), False),
    ("reverse, in it", reads(b"a", b"z", 1, True), write(b"g"), True),
    ("an empty range", reads(b"g", b"i"), write(b"h"), True),
    ("own set, then read", lambda tr: (write(b"b")(tr), read_b(tr)), write(b"b"), False),
    ("read, then own set", lambda tr: (read_b(tr), write(b"b")(tr)), write(b"b"), True),
    ("own atomic, read", lambda tr: (tr.add(b"b", b"\1"), read_b(tr)), write(b"b"), True),
    ("own clear, then range", lambda t: (t.clear(b"b"), list(t[b"a":b"c"])), write(b"b"), False),
    ("own clear, its gap", lambda t: (t.clear(b"b"), list(t[b"a":b"c"])), write(b"bb"), True),
    ("an atomic against a read", read_b, lambda tr: tr.add(b"b", b"\1"), True),
    ("two atomics", lambda tr: tr.add(b"b", b"\1"), lambda tr: tr.add(b"b", b"\1"), False),
    ("an added read key", lambda tr: tr.add_read_conflict_key(b"x"), write(b"x"), True),
    ("an added read range", lambda t: t.add_read_conflict_range(b"x", b"z"), write(b"y"), True),
    ("an added write key", read_b, touch(b"b"), True),
    ("an added write range", read_b, lambda tr: tr.add_write_conflict_range(b"a", b"z"), True),
    ("a write without its conflict range", read_b, without_range(write(b"b")), False),
    ("only the next write is without", read_d, without_range(write(b"b"), write(b"d")), True),
    ("between a selector and its key", selects(KeySelector(b"b", True, 1)), write(b"c"), True),
    ("behind a selector's key", selects(KeySelector(b"b", True, 1)), write(b"e"), False),
    ("before a backward selector's key", selects(KeySelector(b"d", False, 0)), write(b"a"), False),
    ("before the first key, which a begin passes", reads(FIRST, b"z", 1), write(b"a"), True),
    ("behind the last key, which an end passes", reads(b"a", FAR, 1, True), write(b"x"), True),
    ("behind the end, as the begin passes it", reads(FAR, b"z"), write(b"zz"), True),
    ("own write, to a limit", own_and_two, write(b"bb"), True),
    ("own write, behind a limit", own_and_two, write(b"cc"), False),
    ("a stamped key in a read range", reads(b"s", b"t"), stamps, True),
    ("a stamped key outside of it", reads(b"s", b"s" + bytes(8)), stamps, False),
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
        *(("iterator", 0, 16), ("iterator", 50, 16), ("iterator", 5, 5), ("large", 0, 16)),
        *(("serial", 0, 256), ("want_all", 0, 256), ("want_all", 50, 50), ("exact", 50, 50)),
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


def test_a_transaction_that_only_reads_never_conflicts(filled: Any) -> None:
    tr = filled.create_transaction()
    assert tr[b"b"] == b"1"
    filled[b"b"] = b"2"
    tr.commit().wait()
    assert tr.get_committed_version() == -1


def test_a_failed_commit_changes_nothing_and_is_repeated_after_on_error(
    filled: Any, fdb_error: Any
) -> None:
    tr = filled.create_transaction()
    tr[b"b"].wait()
    tr.clear_range(b"", b"e")
    filled[b"b"] = b"theirs"
    with fdb_error(1020):
        tr.commit().wait()
    assert [row.key for row in filled[:]] == [b"b", b"d", b"f"]
    tr.on_error(1020).wait()
    assert tr[b"b"] == b"theirs"
    tr[b"b"] = b"mine"
    tr.commit().wait()
    assert filled[b"b"] == b"mine"
