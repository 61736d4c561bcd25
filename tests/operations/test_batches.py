"""Batches: each end counts once, and the last one makes the item that follows ready."""

from __future__ import annotations

from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import PriorityQueue
from fdbqueue.admin import rename
from fdbqueue.layout.jobs import BatchClosed, BatchNotFound
from fdbqueue.queue.batches import Batches, BatchProgress, ItemBatch, Members, batches_of
from fdbqueue.types import OnDead
from tests.support.keys import rows_in

CALL: Any = {"job": "report", "args": [], "kwargs": {"of": "May"}}

Queue = PriorityQueue[Any]


@pytest.fixture
def queue(db: Any, name: str) -> Queue:
    return PriorityQueue.named(db, name)


def begin(db: Any, queue: Queue, n: int = 0, on_dead: OnDead = "continue", **options: Any) -> str:
    """Begin a batch of `n` jobs in its own queue; return its id."""
    id = Batches(queue).open(db, CALL, 0, on_dead).id
    if n:
        add(db, queue, id, n, on_dead=on_dead, **options)
    return id


def add(
    db: Any,
    queue: Queue,
    id: str,
    n: int,
    to: Queue | None = None,
    on_dead: OnDead = "continue",
    **options: Any,
) -> None:
    """Add `n` jobs to a batch, in its queue or in another one."""
    pushes = [Members(to or queue, {"values": range(n), "priority": 0, **options})]
    Batches(queue).add(db, id, on_dead, pushes)


def counts(db: Any, queue: Queue, id: str) -> tuple[int, int, int, int]:
    progress = Batches(queue).progress(db, id)
    return progress.pushed, progress.done, progress.dead, progress.cancelled


def follows(db: Any, queue: Queue, id: str) -> dict[str, Any] | None:
    """Return the arguments of the item that follows if it is ready; otherwise `None`."""
    info = queue.get(db, id)
    if info.state == "delayed":
        assert info.due_at is None
        return None
    kwargs: dict[str, Any] = info.item.value["kwargs"]
    return kwargs


def rows(db: Any, queue: Queue) -> int:
    return len(rows_in(db, queue, "batches", "batch_counts", "followers"))


def claimed(db: Any, queue: Queue) -> Any:
    """Claim an item, which must be there."""
    claim = queue.claim(db)
    assert claim is not None
    return claim


def ack(db: Any, queue: Queue) -> None:
    queue.ack(db, claimed(db, queue))


def die(db: Any, queue: Queue) -> None:
    queue.nack(db, claimed(db, queue), dead=True)


def test_the_item_that_follows_waits_for_the_close_and_for_the_last_end(
    db: Any, queue: Queue
) -> None:
    id = begin(db, queue, 3)
    ack(db, queue)
    Batches(queue).close(db, id)
    ack(db, queue)
    assert follows(db, queue, id) is None
    assert not queue.retry(db, id)  # it waits for the batch, not for a time
    ack(db, queue)
    assert follows(db, queue, id) == {"of": "May", "done": 3, "dead": 0, "cancelled": 0}
    claim = claimed(db, queue)
    assert claim.item.id == id
    queue.ack(db, claim)
    assert rows(db, queue) == 0


def test_a_batch_can_be_closed_twice_and_be_empty(db: Any, queue: Queue) -> None:
    id = begin(db, queue, 1)
    ack(db, queue)
    assert Batches(queue).progress(db, id).is_open
    for _ in range(2):
        Batches(queue).close(db, id)
        assert Batches(queue).progress(db, id) == BatchProgress(1, 1, 0, 0, False, False)
    with pytest.raises(BatchClosed):
        add(db, queue, id, 1)
    empty = begin(db, queue)
    Batches(queue).close(db, empty)
    assert follows(db, queue, empty) is not None


def test_an_item_with_a_unique_key_of_another_one_is_no_member(db: Any, queue: Queue) -> None:
    id = begin(db, queue, 2, unique=["a", "a"])
    assert counts(db, queue, id) == (1, 0, 0, 0)


def test_what_returns_after_its_end_is_not_counted_again(db: Any, queue: Queue) -> None:
    id = begin(db, queue, 3)
    die(db, queue)
    (dead,) = queue.items(db, state="dead")
    assert queue.retry(db, dead.id)
    ack(db, queue)
    item = queue.pop(db)
    assert item is not None
    queue.put_back(db, [item])
    ack(db, queue)
    assert counts(db, queue, id) == (3, 1, 1, 0)
    Batches(queue).close(db, id)
    assert follows(db, queue, id) is None
    ack(db, queue)
    assert follows(db, queue, id) is not None


def test_the_batch_goes_with_the_item_that_follows(db: Any, queue: Queue) -> None:
    id = begin(db, queue, 2)
    assert queue.cancel(db, id)
    assert rows(db, queue) == 0
    with pytest.raises(BatchNotFound):
        Batches(queue).progress(db, id)
    with pytest.raises(BatchClosed):
        add(db, queue, id, 1)
    ack(db, queue)
    assert rows(db, queue) == 0
    begin(db, queue, 2)
    queue.clear(db)
    assert rows(db, queue) == 0


def test_the_first_death_cancels_a_batch_that_is_to_be_cancelled(db: Any, queue: Queue) -> None:
    id = begin(db, queue, 2, "cancel")
    assert not Batches(queue).progress(db, id).is_cancelled
    die(db, queue)
    assert Batches(queue).progress(db, id).is_cancelled
    add(db, queue, id, 1, on_dead="cancel")  # counted, but not to begin
    assert counts(db, queue, id) == (3, 0, 1, 0)


def test_neither_pushes_nor_ends_conflict_while_a_batch_is_open(db: Any, queue: Queue) -> None:
    id = begin(db, queue, 10)
    claims = [claimed(db, queue) for _ in range(9)]
    transactions = [db.create_transaction() for _ in claims]
    for tr, claim in zip(transactions, claims):
        queue.ack(tr, claim)
    add(db, queue, id, 1)
    queue.nack(db, claimed(db, queue), dead=True)
    for tr in transactions:
        tr.commit().wait()
    assert counts(db, queue, id) == (11, 9, 1, 0)


# The batches of an item


def one(db: Any, queue: Queue, id: Any) -> ItemBatch:
    (found,) = batches_of(db, queue, id)
    return found


def test_a_batch_names_its_queue_as_it_is_called_now_and_is_gone_after_its_end(
    db: Any, name: str, space: Subspace, queue: Queue
) -> None:
    queue.configure(db, keep=9)
    reports = PriorityQueue.named(db, f"{name}-reports")
    id = begin(db, reports)
    add(db, reports, id, 1, to=queue)
    Batches(reports).close(db, id)
    (job,) = queue.items(db)
    rename(db, f"{name}-reports", f"{name}-new")
    PriorityQueue.named(db, f"{name}-reports").push(db, CALL)
    assert one(db, queue, job).queue == f"{name}-new"
    ack(db, queue)
    assert one(db, queue, job).has_ended
    ack(db, reports)
    assert (batches_of(db, queue, job), batches_of(db, reports, id)) == ([], [])
    nameless: Queue = PriorityQueue(space)
    id = begin(db, nameless)
    add(db, nameless, id, 1, to=queue)
    found = one(db, queue, next(queue.items(db)))
    assert (found.id, found.queue) == (id, None)
