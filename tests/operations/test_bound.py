"""A queue exceeds none of its limits, and accepts pushes up to its bound."""

from __future__ import annotations

import random
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
import fdbqueue.testing
from fdbqueue import PriorityQueue, Queue
from fdbqueue.errors import QueueFull
from fdbqueue.layout.keys import Layout
from tests.support.full import unless_full


def stored(db: Any, space: Subspace) -> dict[bytes, bytes]:
    """Read all rows of a subspace, without the receipts and the number of refused items."""
    layout = Layout(space)
    rows = {row.key: row.value for row in db[space.range()] if row.key != layout.total_rejected}
    return {key: value for key, value in rows.items() if not layout.receipts.contains(key)}


def test_push_many_stores_all_or_none_or_as_many_as_fit(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space, max_size=5)
    assert len(queue.push_many(db, "abc", priorities=[3, 2, 1])) == 3
    before = stored(db, space)
    with pytest.raises(QueueFull, match="at most 5 items and has no room for 4 more") as caught:
        queue.push_many(db, "defg")
    assert (caught.value.max_size, caught.value.wanted) == (5, 4)
    assert stored(db, space) == before
    assert queue.push_many(db, []) == []
    fitted = queue.push_many(db, "defg", 9, as_many_as_fit=True)
    assert [item.value for item in fitted] == ["d", "e"]
    assert queue.push_many(db, "fg", as_many_as_fit=True) == []
    assert [item.value for item in queue.items(db)] == ["c", "b", "a", "d", "e"]
    with pytest.raises(QueueFull, match="no room for 1 more"):
        queue.push(db, "f")
    assert queue.pop(db).value == "c"
    assert queue.push(db, "f").value == "f"


def test_a_pop_makes_room_for_a_push_in_the_same_transaction(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space, max_size=3)

    @fdbqueue.transactional
    def exchange(tr: Any) -> list[bool]:
        pushed = [unless_full(queue.push, tr, number) is not None for number in range(4)]
        queue.pop(tr)
        return [
            *pushed,
            unless_full(queue.push, tr, 4) is not None,
            unless_full(queue.push, tr, 5) is not None,
        ]

    assert exchange(db) == [True, True, True, False, True, False]
    assert [item.value for item in queue.items(db)] == [1, 2, 4]


@pytest.mark.parametrize("limit", ["max_size", "max_attempts"])
def test_the_stored_limit_holds_and_a_client_with_another_one_is_warned(
    db: Any, space: Subspace, name: str, limit: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A deployment that changes a limit in its code must not stop."""
    stored, given = {limit: 1}, {limit: 2}
    PriorityQueue.named(db, name, **stored).push(db, "a")
    PriorityQueue(space, **stored).push(db, "a")
    assert caplog.text == ""
    said = (
        f"has {limit} 1 and was opened with 2; omit the option, or change it with "
        f"`configure(db, {limit}=...)`"
    )
    reopened = PriorityQueue.named(db, name, **given)
    assert said in caplog.text
    caplog.clear()
    other = PriorityQueue(space, **given)
    for _ in range(2):
        unless_full(other.push, db, "b")
    assert caplog.text.count(said) == 1
    assert getattr(reopened.options(db), limit) == getattr(other.options(db), limit) == 1


def test_the_stored_bound_applies_to_handles_opened_without_it(db: Any, space: Subspace) -> None:
    early = Queue(space)
    Queue(space, max_size=1).push(db, "a")
    assert unless_full(early.push, db, "b") is None
    early.configure(db, max_size=2)
    assert Queue(space, max_size=2).push(db, "b").value == "b"
    assert unless_full(early.push, db, "c") is None
    early.configure(db, max_size=1)
    assert early.size(db) == 2
    assert unless_full(early.push, db, "c") is None
    early.configure(db, max_size=None)
    early.push(db, "c")
    early.configure(db, max_size=3)
    claim = early.claim(db, n=2)  # claimed before there was a bound of 2
    early.configure(db, max_size=2)
    assert claim is not None
    first, second = claim
    early.ack(db, first)
    assert unless_full(early.push, db, "d") is None
    early.ack(db, second)
    assert early.push(db, "d").value == "d"
    early.configure(db, max_size=None)
    assert early.options(db).max_size is None


def test_a_claimed_item_counts_towards_the_bound_until_it_is_finished(
    db: Any, space: Subspace
) -> None:
    queue = PriorityQueue(space, max_size=3, max_attempts=2)
    queue.push_many(db, "abc")
    claims = [queue.claim(db, within=1) for _ in range(3)]
    assert queue.push_many(db, "def", as_many_as_fit=True) == []
    with pytest.raises(QueueFull, match="claimed items count"):
        queue.push(db, "d")
    queue.release(db, claims[0])
    assert unless_full(queue.push, db, "d") is None
    queue.nack(db, claims[1], delay=0)
    assert unless_full(queue.push, db, "d") is None
    queue.extend(db, claims[2])
    assert unless_full(queue.push, db, "d") is None
    queue.ack(db, claims[2])
    assert queue.push(db, "d").value == "d"
    assert unless_full(queue.push, db, "e") is None
    queue.nack(db, queue.claim(db, within=1), delay=60)
    assert unless_full(queue.push, db, "e") is None, "delayed"
    queue.nack(db, queue.claim(db, within=1), error="dead")
    assert [letter.item.value for letter in queue.items(db, state="dead")] == ["b"]
    assert queue.push(db, "e").value == "e"
    assert queue.stats(db).unfinished == 3
    assert fdbqueue.admin.check(db, queue).ok


def test_a_dead_letter_cannot_be_retried_into_a_full_queue(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space, max_size=1, max_attempts=1)
    dead = queue.push(db, "dead")
    queue.nack(db, queue.claim(db))
    queue.push(db, "other")
    before = stored(db, space)
    with pytest.raises(QueueFull, match="at most 1 item and has no room for 1 more") as caught:
        queue.retry(db, dead)
    assert (caught.value.max_size, caught.value.wanted) == (1, 1)
    assert stored(db, space) == before
    claim = queue.claim(db)
    with pytest.raises(QueueFull):
        queue.retry(db, dead)
    queue.ack(db, claim)
    assert queue.retry(db, dead)
    assert queue.claim(db).item.value == "dead"


@pytest.mark.parametrize("unique", [None, "k"])
@pytest.mark.parametrize("end", ["ack", "nack"])
def test_a_transaction_with_a_rejected_push_conflicts_with_the_end_of_a_claim(
    db: Any, space: Subspace, end: str, unique: str | None, fdb_error: Any
) -> None:
    """Its other writes may depend on the queue being full."""
    queue = PriorityQueue(space, max_size=1, max_attempts=1)
    queue.push(db, "a")
    claim = queue.claim(db)
    tr = db.create_transaction()
    assert unless_full(queue.push, tr, "b", unique=unique) is None
    tr[space.pack(("note",))] = b"the queue is full"
    getattr(queue, end)(db, claim)
    with fdb_error(1020):
        tr.commit().wait()


def test_pushes_far_from_the_bound_do_not_conflict(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space, max_size=10**9)
    queue.push_many(db, range(100))
    transactions = [db.create_transaction() for _ in range(10)]
    for tr in transactions:
        queue.push(tr, "x")
    for tr in transactions:
        tr.commit().wait()
    assert queue.size(db) == 110


@pytest.mark.parametrize("lose", ["before", "after"])
def test_a_push_with_a_lost_reply_takes_one_slot(
    db: Any, space: Subspace, lose: str, rng: random.Random
) -> None:
    faults: dict[str, Any] = {lose: 0.5}
    faulty = fdbqueue.testing.FaultyDatabase(db, seed=rng.randrange(2**32), **faults)
    queue = PriorityQueue(space, max_size=20)
    assert sum(unless_full(queue.push, faulty, number) is not None for number in range(30)) == 20
    assert [item.value for item in queue.items(db)] == list(range(20))
