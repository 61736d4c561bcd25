"""The priority queue: order, counts, browsing, bad input."""

from __future__ import annotations

from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.errors import UndecodableItem
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


ORDER = ["1a", "1b", "5a", "5b", "5c", "9a"]
MAX_ORDER = ["9a", "5a", "5b", "5c", "1a", "1b"]


@pytest.mark.parametrize("max", [False, True])
def test_items_come_by_priority_and_the_oldest_of_each_first(
    db: Any, mixed: PriorityQueue, max: bool
) -> None:
    order = MAX_ORDER if max else ORDER
    pop, peek = (mixed.pop_max, mixed.peek_max) if max else (mixed.pop_min, mixed.peek_min)
    assert mixed.counts(db) == {1: 2, 5: 3, 9: 1}
    assert (peek(db).value, mixed.size(db), mixed.is_empty(db)) == (order[0], 6, False)
    assert values(pop(db) for _ in range(6)) == order
    assert pop(db) is peek(db) is None
    assert (mixed.counts(db), mixed.size(db), mixed.is_empty(db)) == ({}, 0, True)
    kind: Any = PriorityQueue
    assert (kind.pop, kind.peek) == (kind.pop_min, kind.peek_min)


@pytest.mark.parametrize("max", [False, True])
@pytest.mark.parametrize("n", [0, 1, 4, 7])
def test_pop_many_returns_the_first_n_items_in_order(
    db: Any, mixed: PriorityQueue, n: int, max: bool
) -> None:
    order = MAX_ORDER if max else ORDER
    assert values(mixed.peek_many(db, n, max=max)) == order[:n]
    popped = mixed.pop_many(db, n, max=max)
    assert values(popped) == order[:n]
    assert values(mixed.items(db)) == sorted(order[n:])
    mixed.push(db, "5d", 5)
    for _ in range(2):  # the second time, they are there
        mixed.put_back(db, popped)
    assert values(mixed.items(db)) == [*ORDER[:5], "5d", "9a"]


def test_items_lists_all_items_or_a_part_in_order(db: Any, mixed: PriorityQueue) -> None:
    assert values(mixed.items(db)) == ORDER
    assert values(mixed.items(db, reverse=True)) == ORDER[::-1]
    assert values(mixed.items(db, limit=4)) == ORDER[:4]
    assert values(mixed.items(db, priority=5)) == ["5a", "5b", "5c"]
    assert values(mixed.items(db, priority=5, reverse=True, limit=1)) == ["5c"]
    assert values(mixed.items(db, priority=4)) == []
    third = list(mixed.items(db))[2]
    assert values(mixed.items(db, after=third)) == ORDER[3:]
    assert values(mixed.items(db, after=third.id, limit=2)) == ORDER[3:5]
    assert values(mixed.items(db, after=third, reverse=True)) == ORDER[1::-1]
    assert values(mixed.items(db.create_transaction())) == ORDER
    assert values(mixed.items(db.create_transaction().snapshot, after=third)) == ORDER[3:]


def test_items_reads_a_long_queue_in_pages(db: Any, queue: PriorityQueue) -> None:
    queue.push_many(db, range(700), priority=3)
    assert values(queue.items(db)) == list(range(700))
    assert values(queue.items(db, reverse=True)) == list(range(699, -1, -1))
    assert values(queue.items(db, limit=600)) == list(range(600))
    browsing = queue.items(db)
    assert next(browsing).value == 0
    queue.pop_many(db, 600)
    assert values(browsing)[-1] == 699


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


@pytest.mark.parametrize("value", [None, True, 0, -1.5, "", "tëxt", [], {}, {"a": [{"b": None}]}])
def test_json_values_are_returned_unchanged(db: Any, queue: PriorityQueue, value: Any) -> None:
    queue.push(db, value)
    popped = queue.pop(db)
    assert popped.value == value
    assert type(popped.value) is type(value)


def test_put_back_returns_any_number_of_items(db: Any, space: Subspace) -> None:
    """A pop only clears keys, so it can take more items than one transaction can put back."""
    queue = PriorityQueue(space, codec="bytes")
    values = [b"%d " % number + b"x" * 80_000 for number in range(150)]
    for begin in range(0, 150, 50):
        queue.push_many(db, values[begin : begin + 50])
    items = queue.pop_many(db, 150)
    for _ in range(2):
        queue.put_back(db, items)
    assert list(queue.items(db)) == items
    assert [item.value for item in items] == values
    assert fdbqueue.admin.check(db, queue).ok


def test_tuple_priorities_are_ordered_by_their_elements(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space, priorities=(int, float, str))
    priorities = [(2, 0.5, "a"), (1, 9.0, "z"), (1, -3.5, "b"), (1, 9.0, "a"), (0, 0.0, "")]
    for priority in priorities:
        queue.push(db, list(priority), priority)
    queue.push(db, "minus zero", (0, -0.0, ""))
    assert queue.counts(db) == dict.fromkeys(sorted(priorities), 1) | {(0, 0.0, ""): 2}
    popped = queue.pop_many(db, 6)
    assert popped[1].value == "minus zero"
    assert [item.priority for item in popped[1:]] == sorted(priorities)
    assert fdbqueue.admin.check(db, queue).ok


def test_bytes_tuples_and_custom_codecs(db: Any, space: Subspace) -> None:
    class Upper:
        def encode(self, value: str) -> bytes:
            return value.upper().encode()

        def decode(self, payload: bytes) -> str:
            return payload.decode()

    codec: Any
    for number, (codec, value, back) in enumerate(
        [
            ("bytes", b"\x00\xff", b"\x00\xff"),
            ("bytes", b"\xffpieces:" + bytes(16), b"\xffpieces:" + bytes(16)),
            ("tuple", (1, "a", b"b"), (1, "a", b"b")),
            (Upper(), "a", "A"),
        ]
    ):
        queue = PriorityQueue(space[number], codec=codec)
        queue.push(db, value)
        assert queue.pop(db).value == back


def test_an_undecodable_item_stays_and_can_be_removed(db: Any, space: Subspace) -> None:
    PriorityQueue(space, codec="bytes").push(db, b"\xff not JSON")
    queue = PriorityQueue(space)
    for call in (queue.pop, queue.peek, lambda db: list(queue.items(db))):
        with pytest.raises(UndecodableItem, match="still in the queue") as error:
            call(db)
    assert queue.size(db) == 1
    assert queue.remove(db, error.value.item_id)
    assert fdbqueue.admin.check(db, queue).ok


@pytest.mark.parametrize("size", [90_000, 90_001, 7_999_000])
def test_a_large_payload_is_returned_completely(db: Any, space: Subspace, size: int) -> None:
    queue: Any = PriorityQueue(space, codec="bytes")
    payload = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    queue.push(db, payload, 1)
    queue.push(db, b"small", 2)
    assert queue.peek(db).value == payload
    assert queue.update(db, queue.peek(db), priority=3).value == payload
    assert fdbqueue.admin.check(db, queue).ok
    assert values(queue.pop_many(db, 2)) == [b"small", payload]
    queue.push(db, payload)
    queue.clear(db)
    assert [*db.get_range_startswith(layout_of(queue).pieces)] == []


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
