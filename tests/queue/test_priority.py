"""The priority queue: order, counts, browsing, bad input."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta, timezone
from enum import IntEnum
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.errors import (
    InvalidItemId,
    InvalidPriority,
    InvalidQueueName,
    InvalidValue,
    PayloadTooLarge,
    UndecodableItem,
)
from tests.support.keys import layout_of
from tests.support.leases import values


def stored(db: Any, queue: PriorityQueue) -> list[Any]:
    """Return all rows of a queue except the receipts of commits."""
    whole, receipts = queue.subspace.range(), layout_of(queue).receipts
    return [row for row in db[whole.start : whole.stop] if not receipts.contains(row.key)]


@pytest.fixture
def mixed(db: Any, queue: PriorityQueue) -> PriorityQueue:
    """Return a queue with two items of priority 1, three of 5 and one of 9, pushed unordered."""
    for value, priority in [("5a", 5), ("1a", 1), ("9a", 9), ("5b", 5), ("1b", 1), ("5c", 5)]:
        queue.push(db, value, priority)
    return queue


def test_pop_min_returns_the_oldest_item_of_the_lowest_priority(
    db: Any, mixed: PriorityQueue
) -> None:
    popped = [mixed.pop_min(db) for _ in range(6)]
    assert values(popped) == ["1a", "1b", "5a", "5b", "5c", "9a"]
    assert mixed.pop_min(db) is None


def test_pop_max_returns_the_oldest_item_of_the_highest_priority(
    db: Any, mixed: PriorityQueue
) -> None:
    popped = [mixed.pop_max(db) for _ in range(6)]
    assert values(popped) == ["9a", "5a", "5b", "5c", "1a", "1b"]
    assert mixed.pop_max(db) is None


def test_pop_and_peek_are_aliases_of_pop_min_and_peek_min() -> None:
    kind: Any = PriorityQueue
    assert kind.pop is kind.pop_min
    assert kind.peek is kind.peek_min


@pytest.mark.parametrize("max", [False, True])
@pytest.mark.parametrize("n", [0, 1, 2, 4, 6, 7])
def test_pop_many_returns_the_first_n_items_in_order(
    db: Any, mixed: PriorityQueue, n: int, max: bool
) -> None:
    order = ["9a", "5a", "5b", "5c", "1a", "1b"] if max else ["1a", "1b", "5a", "5b", "5c", "9a"]
    assert values(mixed.peek_many(db, n, max=max)) == order[:n]
    assert values(mixed.pop_many(db, n, max=max)) == order[:n]
    assert mixed.size(db) == 6 - min(n, 6)
    assert fdbqueue.admin.check(db, mixed).ok


def test_peek_leaves_the_item_in_the_queue(db: Any, mixed: PriorityQueue) -> None:
    assert mixed.peek_min(db).value == "1a"
    assert mixed.peek_max(db).value == "9a"
    assert mixed.size(db) == 6


def test_negative_zero_and_large_priorities_are_ordered(db: Any, queue: PriorityQueue) -> None:
    priorities = [0, -1, 255, 256, -256, 2**63 - 1, -(2**63), 65536]
    for priority in priorities:
        queue.push(db, priority, priority)
    assert [item.priority for item in queue.pop_many(db, 9)] == sorted(priorities)


def test_counts_size_and_emptiness(db: Any, mixed: PriorityQueue) -> None:
    assert mixed.counts(db) == {1: 2, 5: 3, 9: 1}
    assert mixed.size(db) == 6
    assert not mixed.is_empty(db)
    mixed.pop_many(db, 3)
    assert mixed.counts(db) == {5: 2, 9: 1}
    mixed.pop_many(db, 3)
    assert mixed.counts(db) == {}
    assert mixed.size(db) == 0
    assert mixed.is_empty(db)
    assert mixed.peek(db) is None


def test_items_lists_all_items_or_a_part_in_order(db: Any, mixed: PriorityQueue) -> None:
    order = ["1a", "1b", "5a", "5b", "5c", "9a"]
    assert values(mixed.items(db)) == order
    assert values(mixed.items(db, reverse=True)) == order[::-1]
    assert values(mixed.items(db, limit=4)) == order[:4]
    assert values(mixed.items(db, priority=5)) == ["5a", "5b", "5c"]
    assert values(mixed.items(db, priority=5, reverse=True, limit=1)) == ["5c"]
    assert values(mixed.items(db, priority=4)) == []
    third = list(mixed.items(db))[2]
    assert values(mixed.items(db, after=third)) == order[3:]
    assert values(mixed.items(db, after=third.id, limit=2)) == order[3:5]
    assert values(mixed.items(db, after=third, reverse=True)) == order[1::-1]
    assert values(mixed.items(db.create_transaction())) == order
    assert values(mixed.items(db.create_transaction().snapshot, after=third)) == order[3:]
    with pytest.raises(ValueError, match="limit"):
        list(mixed.items(db, limit=-1))


def test_items_reads_a_long_queue_in_pages(db: Any, queue: PriorityQueue) -> None:
    queue.push_many(db, range(1700), priority=3)
    assert values(queue.items(db)) == list(range(1700))
    assert values(queue.items(db, reverse=True)) == list(range(1699, -1, -1))
    assert values(queue.items(db, limit=1000)) == list(range(1000))
    browsing = queue.items(db)
    first = next(browsing)
    queue.pop_many(db, 600)
    assert values(browsing)[-1] == 1699
    assert first.value == 0


def test_an_item_is_frozen_and_can_be_found_by_its_id(db: Any, queue: PriorityQueue) -> None:
    item = queue.push(db, {"a": [1, None]}, 4)
    assert (item.value, item.priority) == ({"a": [1, None]}, 4)
    assert queue.peek(db) == item
    with pytest.raises(AttributeError):
        item.value = 2  # type: ignore[misc]
    assert queue.remove(db, item.id)
    assert not queue.remove(db, item)
    assert queue.is_empty(db)


def test_remove_deletes_one_item_from_the_middle(db: Any, mixed: PriorityQueue) -> None:
    middle = list(mixed.items(db))[3]
    assert mixed.remove(db, middle)
    assert values(mixed.items(db)) == ["1a", "1b", "5a", "5c", "9a"]
    assert mixed.counts(db) == {1: 2, 5: 2, 9: 1}


def test_reprioritize_appends_an_item_to_its_new_priority(db: Any, mixed: PriorityQueue) -> None:
    last = list(mixed.items(db))[-1]
    moved = mixed.reprioritize(db, last, 1)
    assert (moved.value, moved.priority) == ("9a", 1)
    assert values(mixed.items(db)) == ["1a", "1b", "9a", "5a", "5b", "5c"]
    assert mixed.counts(db) == {1: 3, 5: 3}
    assert moved.id == last.id
    assert mixed.reprioritize(db, moved.id, 1).value == "9a"
    assert fdbqueue.admin.check(db, mixed).ok


def test_clear_empties_only_its_own_queue(db: Any, mixed: PriorityQueue, space: Subspace) -> None:
    other = PriorityQueue(space["other"])
    other.push(db, "stays")
    mixed.clear(db)
    assert mixed.is_empty(db)
    assert mixed.counts(db) == {}
    assert mixed.size(db) == 0
    assert other.size(db) == 1
    mixed.push(db, "new")
    assert mixed.pop(db).value == "new"


def test_push_many_is_all_or_nothing(db: Any, queue: PriorityQueue) -> None:
    items = queue.push_many(db, ["a", "b", "c"], priorities=[2, 1, 2])
    assert [item.priority for item in items] == [2, 1, 2]
    assert values(queue.items(db)) == ["b", "a", "c"]
    with pytest.raises(InvalidPriority):
        queue.push_many(db, ["d", "e"], priorities=[1, "high"])
    with pytest.raises(InvalidValue):
        queue.push_many(db, ["d", {1}])
    with pytest.raises(ValueError, match="2 values and 1 priorities"):
        queue.push_many(db, ["d", "e"], priorities=[1])
    assert queue.push_many(db, []) == []
    assert queue.size(db) == 3


def test_calls_in_a_callers_transaction_commit_together(
    db: Any, queue: PriorityQueue, space: Subspace
) -> None:
    """A pop, the write of its result and the next push commit together or not at all."""
    queue.push(db, "job", 1)

    @fdbqueue.transactional
    def work(tr: Any, fail: bool) -> None:
        item = queue.pop(tr)
        tr[space["result"]] = item.value.encode()
        queue.push(tr, "follow-up", 2)
        queue.push(tr, "follow-up too", 2)
        if fail:
            raise RuntimeError("the job failed")

    with pytest.raises(RuntimeError):
        work(db, fail=True)
    assert (queue.peek(db).value, queue.size(db), db[space["result"]]) == ("job", 1, None)
    work(db, fail=False)
    assert values(queue.items(db)) == ["follow-up", "follow-up too"]
    assert db[space["result"]] == b"job"
    assert queue.counts(db) == {2: 2}


def test_only_pops_conflict(db: Any, queue: PriorityQueue, fdb_error: Any) -> None:
    queue.push(db, "made by the first push")
    queue.clear(db)
    one, two = db.create_transaction(), db.create_transaction()
    queue.push(one, "one"), queue.push(two, "two")
    one.commit().wait(), two.commit().wait()
    assert sorted(values(queue.items(db))) == ["one", "two"]
    one, two = db.create_transaction(), db.create_transaction()
    assert queue.pop(one) == queue.pop(two)
    one.commit().wait()
    with fdb_error(1020):
        two.commit().wait()


def test_a_push_behind_the_popped_item_does_not_conflict(db: Any, queue: PriorityQueue) -> None:
    queue.push_many(db, ["a", "b"], priority=1)
    pop, push = db.create_transaction(), db.create_transaction()
    assert queue.pop(pop).value == "a"
    queue.push(push, "c", 1)
    push.commit().wait()
    pop.commit().wait()
    assert values(queue.items(db)) == ["b", "c"]


def test_a_push_ahead_of_the_popped_item_conflicts(
    db: Any, queue: PriorityQueue, fdb_error: Any
) -> None:
    queue.push(db, "second", 2)
    pop = db.create_transaction()
    assert queue.pop(pop).value == "second"
    queue.push(db, "first", 1)
    with fdb_error(1020):
        pop.commit().wait()


@pytest.mark.parametrize("value", [None, True, 0, -1.5, "", "tëxt", [], {}, {"a": [{"b": None}]}])
def test_json_values_are_returned_unchanged(db: Any, queue: PriorityQueue, value: Any) -> None:
    queue.push(db, value)
    popped = queue.pop(db)
    assert popped.value == value
    assert type(popped.value) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        b"bytes",
        {1, 2},
        {1: "a"},
        (1, 2),
        float("nan"),
        float("inf"),
        object(),
        [object()],
        "\ud800",
    ],
)
def test_a_value_that_is_not_json_is_rejected(db: Any, queue: PriorityQueue, value: Any) -> None:
    with pytest.raises(InvalidValue, match="cannot be stored"):
        queue.push(db, value)
    assert stored(db, queue) == []


def test_a_value_that_contains_itself_is_rejected(db: Any, queue: PriorityQueue) -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidValue):
        queue.push(db, value)


class Level(IntEnum):
    URGENT = 1


@pytest.mark.parametrize("priority", [True, False, 1.0, "1", None, (1,), b"1", 2**63, -(2**63) - 1])
def test_a_non_integer_priority_is_rejected(db: Any, queue: PriorityQueue, priority: Any) -> None:
    with pytest.raises(InvalidPriority, match="must be a 64-bit integer") as error:
        queue.push(db, "x", priority)
    assert error.value.priority is priority
    assert stored(db, queue) == []
    item = queue.push(db, "x", 1)
    with pytest.raises(InvalidPriority):
        queue.reprioritize(db, item, priority)
    assert queue.peek(db) == item


def test_an_int_enum_is_a_valid_priority(db: Any, queue: PriorityQueue) -> None:
    item = queue.push(db, "x", Level.URGENT)
    assert type(item.priority) is int
    assert queue.counts(db) == {1: 1}


def test_an_item_of_another_queue_is_rejected(
    db: Any, mixed: PriorityQueue, space: Subspace
) -> None:
    other = PriorityQueue(space["another"])
    foreign = other.push(db, "foreign")
    for call in (
        lambda: mixed.remove(db, foreign),
        lambda: mixed.reprioritize(db, foreign, 1),
        lambda: mixed.put_back(db, [foreign]),
        lambda: list(mixed.items(db, after=foreign)),
    ):
        with pytest.raises(InvalidItemId):
            call()
    assert other.size(db) == 1
    assert fdbqueue.admin.check(db, mixed).ok


@pytest.mark.parametrize(("n", "size"), [(150, 80_000), (3, 7_900_000), (18_000, 10)])
def test_put_back_returns_any_number_of_items(db: Any, space: Subspace, n: int, size: int) -> None:
    """A pop only clears keys, so it can take more items than one transaction can put back."""
    queue = PriorityQueue(space, codec="bytes")
    for begin in range(0, n, max(1, 5_000_000 // (size + 250))):
        end = min(n, begin + max(1, 5_000_000 // (size + 250)))
        queue.push_many(db, [b"%d " % number + b"x" * size for number in range(begin, end)])
    items = queue.pop_many(db, n)
    assert len(items) == n
    queue.put_back(db, items)
    queue.put_back(db, items)
    assert queue.size(db) == n
    assert list(queue.items(db)) == items
    assert fdbqueue.admin.check(db, queue).ok


def test_put_back_returns_items_to_their_positions(db: Any, mixed: PriorityQueue) -> None:
    before = list(mixed.items(db))
    taken = mixed.pop_many(db, 4)
    mixed.push(db, "5d", 5)
    mixed.put_back(db, taken)
    mixed.put_back(db, taken)
    assert values(mixed.items(db)) == ["1a", "1b", "5a", "5b", "5c", "5d", "9a"]
    assert list(mixed.items(db))[:5] == before[:5]
    assert fdbqueue.admin.check(db, mixed).ok


def test_tuple_priorities_are_ordered_by_their_elements(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space, priorities=(int, float, str))
    priorities = [(2, 0.5, "a"), (1, 9.0, "z"), (1, -3.5, "b"), (1, 9.0, "a")]
    for priority in priorities:
        queue.push(db, list(priority), priority)
    assert [item.priority for item in queue.items(db)] == sorted(priorities)
    assert queue.counts(db) == dict.fromkeys(sorted(priorities), 1)
    assert [item.priority for item in queue.pop_many(db, 4)] == sorted(priorities)
    assert fdbqueue.admin.check(db, queue).ok


@pytest.mark.parametrize(
    "priority",
    [
        1,
        (1,),
        (1, 2),
        (1, 2.0),
        [1, 2.0, "a"],
        (1, 2.0, 3),
        (True, 2.0, "a"),
        (1, float("nan"), ""),
    ],
)
def test_a_tuple_of_another_shape_is_rejected(db: Any, space: Subspace, priority: Any) -> None:
    queue = PriorityQueue(space, priorities=(int, float, str))
    with pytest.raises(InvalidPriority, match=r"must be a tuple \(int, float, str\)"):
        queue.push(db, "x", priority)
    assert stored(db, queue) == []


def test_minus_zero_is_zero(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space, priorities=(float,))
    queue.push_many(db, ["a", "b", "c"], priorities=[(0.0,), (-0.0,), (0.0,)])
    assert queue.counts(db) == {(0.0,): 3}
    assert values(queue.pop_many(db, 3)) == ["a", "b", "c"]
    assert fdbqueue.admin.check(db, queue).ok


@pytest.mark.parametrize("priority", [("\ud800",), ("x" * 11_000,)])
def test_a_priority_that_cannot_be_encoded_is_rejected(
    db: Any, space: Subspace, priority: tuple[str]
) -> None:
    queue = PriorityQueue(space, priorities=(str,))
    with pytest.raises(InvalidPriority):
        queue.push(db, "x", priority)
    assert stored(db, queue) == []


@pytest.mark.parametrize("kind", [str, (), (list,), "int", (bool,)])
def test_an_unordered_type_of_priorities_is_rejected(space: Subspace, kind: Any) -> None:
    with pytest.raises(ValueError, match="priorities must be int or a tuple"):
        PriorityQueue(space, priorities=kind)


@pytest.mark.parametrize("n", [-1, True, 1.0, "2", None])
def test_an_invalid_number_of_items_is_rejected(db: Any, queue: PriorityQueue, n: Any) -> None:
    with pytest.raises(ValueError, match="n is a number"):
        queue.pop_many(db, n)


@pytest.mark.parametrize("item_id", ["", "?", "é", "AAAA", "FQE", "FQEUAQA=", "x" * 1000, None, 7])
def test_an_invalid_item_id_is_rejected(db: Any, mixed: PriorityQueue, item_id: Any) -> None:
    with pytest.raises(InvalidItemId, match="is not the id of an item"):
        mixed.remove(db, item_id)
    assert mixed.size(db) == 6


def test_bytes_tuples_and_custom_codecs(db: Any, space: Subspace) -> None:
    class Upper:
        def encode(self, value: str) -> bytes:
            return value.upper().encode()

        def decode(self, payload: bytes) -> str:
            return payload.decode()

    for number, (codec, value, back) in enumerate(
        [
            ("bytes", b"\x00\xff", b"\x00\xff"),
            ("tuple", (1, "a", b"b"), (1, "a", b"b")),
            (Upper(), "a", "A"),
        ]
    ):
        queue = PriorityQueue(space[number], codec=codec)
        queue.push(db, value)
        assert queue.pop(db).value == back
    for codec, value in [("bytes", "text"), ("tuple", [1]), ("tuple", (object(),))]:
        with pytest.raises(InvalidValue):
            PriorityQueue(space, codec=codec).push(db, value)
    with pytest.raises(ValueError, match="no codec is named 'pickle'"):
        PriorityQueue(space, codec="pickle")


def test_a_codec_that_does_not_return_bytes_is_rejected(db: Any, space: Subspace) -> None:
    class Broken:
        def encode(self, value: Any) -> Any:
            return "text"

        def decode(self, payload: bytes) -> Any: ...

    with pytest.raises(InvalidValue, match="the codec returned str, not bytes"):
        PriorityQueue(space, codec=Broken()).push(db, 1)


def test_an_undecodable_item_stays_and_can_be_removed(db: Any, space: Subspace) -> None:
    PriorityQueue(space, codec="bytes").push(db, b"\xff not JSON")
    queue = PriorityQueue(space)
    for call in (queue.pop, queue.peek, lambda db: list(queue.items(db))):
        with pytest.raises(UndecodableItem, match="still in the queue") as error:
            call(db)
    assert queue.size(db) == 1
    assert queue.remove(db, error.value.item_id)
    assert fdbqueue.admin.check(db, queue).ok


def remaining_keys(db: Any, queue: PriorityQueue) -> list[bytes]:
    """Return the keys of an empty queue except its totals and its history."""
    layout = layout_of(queue)
    kept = layout.totals, layout.history
    return [row.key for row in stored(db, queue) if not row.key.startswith(kept)]


@pytest.mark.parametrize("size", [89_999, 90_000, 90_001, 100_001, 1_000_000, 7_999_000])
def test_a_large_payload_is_returned_completely_and_leaves_no_keys(
    db: Any, space: Subspace, size: int
) -> None:
    queue = PriorityQueue(space, codec="bytes")
    payload = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    queue.push(db, payload, 1)
    queue.push(db, b"small", 2)
    assert queue.peek(db).value == payload
    assert fdbqueue.admin.check(db, queue).ok
    assert queue.reprioritize(db, queue.peek(db), 3).value == payload
    assert fdbqueue.admin.check(db, queue).ok
    assert values(queue.pop_many(db, 2)) == [b"small", payload]
    assert remaining_keys(db, queue) == [layout_of(queue).options]


def test_remove_and_clear_delete_large_payloads(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space, codec="bytes")
    item = queue.push(db, b"x" * 300_000)
    queue.remove(db, item)
    assert remaining_keys(db, queue) == [layout_of(queue).options]
    queue.push(db, b"x" * 300_000)
    queue.clear(db)
    assert remaining_keys(db, queue) == [layout_of(queue).options]


def test_a_payload_that_resembles_the_marker_of_pieces_is_returned_unchanged(
    db: Any, space: Subspace
) -> None:
    queue = PriorityQueue(space, codec="bytes")
    for payload in (b"\xffpieces:", b"\xffpieces:" + bytes(16)):
        queue.push(db, payload)
        assert queue.pop(db).value == payload


def test_a_payload_over_the_limit_is_rejected(db: Any, queue: PriorityQueue) -> None:
    with pytest.raises(
        PayloadTooLarge, match="8,000,003 bytes and an item holds at most 8,000,000"
    ):
        queue.push(db, "x" * 8_000_001)
    assert stored(db, queue) == []


@pytest.mark.parametrize("wrong", ["", " ", "a ", "a\nb", "a\x00", "x" * 256, None, 7, b"bytes"])
def test_an_invalid_queue_name_is_rejected(db: Any, wrong: Any) -> None:
    with pytest.raises(InvalidQueueName, match="cannot be the name of a queue"):
        PriorityQueue.named(db, wrong)


def test_pushed_at_returns_the_time_of_the_push(db: Any, queue: PriorityQueue) -> None:
    before = datetime.now(timezone.utc) - timedelta(milliseconds=1)
    item = queue.push(db, "x", 5)
    after = datetime.now(timezone.utc)
    at = queue.pushed_at(item)
    assert at is not None
    assert before <= at <= after
    moved = queue.reprioritize(db, item, 1)
    assert queue.pushed_at(moved.id) == queue.pushed_at(item)
    with pytest.raises(InvalidItemId):
        queue.pushed_at("nonsense")


def test_totals_count_what_happened_to_items_until_the_queue_is_cleared(
    db: Any, queue: PriorityQueue
) -> None:
    empty = queue.stats(db)
    assert (empty.total_pushed, empty.total_completed, empty.is_empty) == (0, 0, True)
    item, *_ = queue.push_many(db, range(5), 1)
    queue.pop_many(db, 2)
    queue.put_back(db, [item])
    stats = queue.stats(db)
    assert (stats.total_pushed, stats.total_completed, stats.total_put_back) == (5, 2, 1)
    assert (stats.ready, stats.unfinished) == (4, 4)
    queue.clear(db)
    assert queue.stats(db) == dataclasses.replace(empty, options=stats.options)


def test_pushes_and_pops_are_logged_at_debug(
    db: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = PriorityQueue.named(db, name)
    with caplog.at_level("DEBUG"):
        queue.push(db, "a", 5)
        queue.pop(db)
        queue.pop(db)
    assert [record.getMessage() for record in caplog.records] == [
        f"pushed to {name}, priority 5",
        f"popped from {name}, priority 5",
    ]
