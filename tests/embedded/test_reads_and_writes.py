"""Reads and writes of a transaction behave as FoundationDB's API documents."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue.embedded import KeySelector

ROWS = {b"a": b"1", b"b": b"2", b"c": b"3", b"d": b"4"}


@pytest.fixture
def filled(db: Any) -> Any:
    for key, value in ROWS.items():
        db[key] = value
    return db


def pairs(rows: Any) -> list[tuple[bytes, bytes]]:
    return [(row.key, row.value) for row in rows]


def test_a_missing_value_equals_none_and_an_empty_one_is_present(db: Any) -> None:
    value = db.create_transaction()[b"k"]
    assert value == None  # noqa: E711  the binding's idiom
    assert not value.present()
    assert value.wait().value is None
    db[b"k"] = b""
    assert db.create_transaction()[b"k"].present()
    assert db[b"k"] == b""


def test_a_value_behaves_like_its_bytes(db: Any) -> None:
    db[b"k"] = b"value"
    value = db.create_transaction()[b"k"]
    assert value.present()
    assert value == b"value"
    assert value != b"other"
    assert value < b"w"
    assert bytes(value) == b"value"
    assert value + b"!" == b"value!"
    assert b"<" + value == b"<value"
    assert value[0] == ord("v")
    assert value[1:3] == b"al"
    assert len(value) == 5
    assert value.startswith(b"va")
    assert isinstance(value, bytes)
    assert {value: 1}[value] == 1
    assert value.is_ready()
    assert value.wait() == b"value"


def test_a_value_can_be_used_as_key_and_value(db: Any) -> None:
    db[b"pointer"] = b"target"
    tr = db.create_transaction()
    tr[tr[b"pointer"]] = tr[b"pointer"]
    tr.commit().wait()
    assert db[b"target"] == b"target"


@pytest.mark.parametrize("bad", ["text", 7, None, 1.5])
def test_keys_and_values_are_bytes(db: Any, bad: Any) -> None:
    tr = db.create_transaction()
    with pytest.raises(TypeError):
        tr[bad] = b"v"
    with pytest.raises(TypeError):
        tr[b"k"] = bad
    with pytest.raises(TypeError):
        tr.get(bad)
    tr.commit().wait()
    assert db[b"":b"\xff"] == []


def test_slices_are_range_reads(filled: Any) -> None:
    tr = filled.create_transaction()
    assert pairs(tr[b"b":b"d"]) == [(b"b", b"2"), (b"c", b"3")]
    assert pairs(tr[:b"c"]) == [(b"a", b"1"), (b"b", b"2")]
    assert pairs(tr[b"c":]) == [(b"c", b"3"), (b"d", b"4")]
    assert pairs(tr[b"a":b"c":-1]) == [(b"b", b"2"), (b"a", b"1")]
    rows = tr[b"a":b"c"]
    assert pairs(rows) == pairs(rows) == pairs(rows.to_list())
    assert [value for _, value in tr[:]] == [b"1", b"2", b"3", b"4"]
    del filled[b"b":b"d"]
    assert [row.key for row in filled[:]] == [b"a", b"d"]


def test_key_selectors_find_their_keys(filled: Any) -> None:
    tr = filled.create_transaction()
    assert tr.get_key(KeySelector.first_greater_or_equal(b"b")) == b"b"
    assert tr.get_key(KeySelector.last_less_than(b"b")) == b"a"
    assert tr.get_key(KeySelector.last_less_or_equal(b"b")) == b"b"
    assert tr.get_key(KeySelector.first_greater_or_equal(b"a") + 2) == b"c"
    assert tr.get_key(KeySelector.last_less_than(b"d") - 2) == b"a"
    assert tr.get_key(KeySelector.first_greater_than(b"d")) == b"\xff"


def test_startswith_reads_and_clears_a_prefix(db: Any) -> None:
    for key in (b"p", b"p\x00", b"p\xff", b"q"):
        db[key] = b""
    assert [row.key for row in db.get_range_startswith(b"p")] == [b"p", b"p\x00", b"p\xff"]
    db.clear_range_startswith(b"p")
    assert [row.key for row in db[:]] == [b"q"]


def test_a_long_range_is_read_completely_and_in_order(db: Any) -> None:
    """The range spans several batches, some of them filled by the size of their values."""
    tr = db.create_transaction()
    expected = [(b"%06d" % i, b"x" * (i % 7 * 300)) for i in range(6000)]
    for key, value in expected:
        tr[key] = value
    tr.commit().wait()

    def read(**options: Any) -> list[tuple[bytes, bytes]]:
        return pairs(db.create_transaction().get_range(b"", b"\xff", **options))

    assert read() == expected
    assert read(reverse=True) == expected[::-1]
    assert read(limit=5500) == expected[:5500]
    tr = db.create_transaction()
    tr[b"own"] = b"write"
    assert pairs(tr[:]) == [*expected, (b"own", b"write")]


def test_a_snapshot_read_sees_own_writes_unless_disabled(filled: Any) -> None:
    tr = filled.create_transaction()
    tr[b"a"] = b"own"
    assert tr.snapshot[b"a"] == b"own"
    tr.options.set_snapshot_ryw_disable()
    assert tr.snapshot[b"a"] == b"1"
    assert tr[b"a"] == b"own"
    tr.options.set_snapshot_ryw_enable()
    assert tr.snapshot[b"a"] == b"own"


def test_read_your_writes_can_be_disabled_before_the_first_operation(
    filled: Any, fdb_error: Any
) -> None:
    tr = filled.create_transaction()
    tr.options.set_read_your_writes_disable()
    tr[b"a"] = b"own"
    assert tr[b"a"] == b"1"
    with fdb_error(1034):
        tr.watch(b"a").wait()
    tr = filled.create_transaction()
    tr[b"a"].wait()
    tr.options.set_read_your_writes_disable()
    with fdb_error(2000):
        tr[b"a"].wait()


def test_clear_accepts_a_key_selector(filled: Any) -> None:
    tr = filled.create_transaction()
    del tr[KeySelector.first_greater_than(b"a")]
    tr.clear_range(KeySelector.first_greater_than(b"c"), b"\xff")
    tr.commit().wait()
    assert [row.key for row in filled[:]] == [b"a", b"c"]


def test_objects_with_foundationdb_key_and_value_methods_are_accepted(db: Any) -> None:
    class Named:
        def as_foundationdb_key(self) -> bytes:
            return b"key"

        def as_foundationdb_value(self) -> bytes:
            return b"value"

    db[Named()] = Named()
    assert db[b"key"] == b"value"
