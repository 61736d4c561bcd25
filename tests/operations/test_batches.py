"""Batches: each end counts once, and the last one makes the item that follows ready."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.admin import check
from fdbqueue.errors import error_classes
from fdbqueue.layout.batches import decode_batch
from fdbqueue.layout.jobs import BatchClosed, BatchNotFound
from fdbqueue.layout.values import ONE, decode_count
from fdbqueue.operations.maintainers import batches as operations
from fdbqueue.queue.base import store_of
from fdbqueue.queue.batches import Batches, BatchProgress, Members
from fdbqueue.testing import Clock, FaultyDatabase
from fdbqueue.types import OnDead
from tests.support.keys import layout_of, rows_in
from tests.support.leases import expire, lapse

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


# How jobs end


def ack(db: Any, queue: Queue) -> None:
    queue.ack(db, claimed(db, queue))


def discard(db: Any, queue: Queue) -> None:
    queue.ack(db, claimed(db, queue), discarded="no")


def die(db: Any, queue: Queue) -> None:
    queue.nack(db, claimed(db, queue), dead=True)


def pop(db: Any, queue: Queue) -> None:
    queue.pop(db)


def remove(db: Any, queue: Queue) -> None:
    queue.remove(db, next(iter(queue.items(db, state="ready"))).id)


def cancel(db: Any, queue: Queue) -> None:
    claim = claimed(db, queue)
    queue.cancel(db, claim.item)
    queue.nack(db, claim)


def expiry(db: Any, queue: Queue) -> None:
    expire(db, queue)
    queue.wait(db, 0)


def die_with_the_lease(db: Any, queue: Queue) -> None:
    queue.configure(db, max_attempts=1)
    claimed(db, queue)
    lapse(db, queue)
    store_of(queue).sweeper.invalidate()
    queue.wait(db, 0)


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (ack, (1, 0, 0)),
        (discard, (1, 0, 0)),
        (pop, (1, 0, 0)),
        (die, (0, 1, 0)),
        (die_with_the_lease, (0, 1, 0)),
        (remove, (0, 0, 1)),
        (cancel, (0, 0, 1)),
        (expiry, (0, 0, 1)),
    ],
)
def test_an_end_is_counted_by_its_outcome(
    db: Any,
    queue: Queue,
    end: Callable[[Any, Queue], None],
    expected: tuple[int, int, int],
    is_closed: bool,
) -> None:
    id = begin(db, queue, 1, ttl=3600 if end is expiry else None)
    if is_closed:
        Batches(queue).close(db, id)
    assert counts(db, queue, id) == (1, 0, 0, 0)
    end(db, queue)
    assert counts(db, queue, id) == (1, *expected)
    assert (follows(db, queue, id) is not None) == is_closed
    Batches(queue).close(db, id)
    done, dead, cancelled = expected
    ends = {"of": "May", "done": done, "dead": dead, "cancelled": cancelled}
    assert follows(db, queue, id) == ends


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
    assert check(db, queue).ok


def test_an_empty_batch_ends_when_it_is_closed(db: Any, queue: Queue) -> None:
    id = begin(db, queue)
    Batches(queue).close(db, id)
    assert follows(db, queue, id) is not None


def test_a_batch_that_was_closed_halfway_can_be_closed_again(db: Any, queue: Queue) -> None:
    id = begin(db, queue, 1)
    position = store_of(queue).codec.reference(id)
    layout = layout_of(queue)
    one_step = fdbqueue.transactional(operations.close)
    assert one_step(db, layout, 1, position)
    ack(db, queue)
    assert Batches(queue).progress(db, id).is_open
    assert follows(db, queue, id) is None
    with pytest.raises(BatchClosed):
        add(db, queue, id, 1)
    Batches(queue).close(db, id)
    assert follows(db, queue, id) is not None
    Batches(queue).close(db, id)
    assert Batches(queue).progress(db, id) == BatchProgress(1, 1, 0, 0, False, False)


def test_nothing_can_be_added_to_a_closed_batch(db: Any, queue: Queue) -> None:
    id = begin(db, queue, 1)
    Batches(queue).close(db, id)
    with pytest.raises(BatchClosed):
        add(db, queue, id, 1)
    assert queue.size(db) == 1


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


def test_attempts_and_moves_are_no_ends(db: Any, queue: Queue) -> None:
    id = begin(db, queue, 1)
    claim = claimed(db, queue)
    queue.release(db, claim)
    queue.nack(db, claimed(db, queue), delay=0)
    queue.reprioritize(db, claim.item, 7)
    assert counts(db, queue, id) == (1, 0, 0, 0)
    ack(db, queue)
    assert counts(db, queue, id) == (1, 1, 0, 0)


def test_the_item_that_follows_may_be_moved(db: Any, queue: Queue) -> None:
    id = begin(db, queue, 1)
    queue.reprioritize(db, id, 7)
    Batches(queue).close(db, id)
    ack(db, queue)
    claim = claimed(db, queue)
    assert (claim.item.id, claim.item.value["kwargs"]["done"]) == (id, 1)
    queue.nack(db, claim, dead=True)
    queue.reprioritize(db, id, 8)
    assert counts(db, queue, id) == (1, 1, 0, 0)
    queue.remove(db, id)
    assert rows(db, queue) == 0


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


def test_jobs_may_be_in_other_queues(db: Any, queue: Queue, name: str) -> None:
    other = PriorityQueue[Any].named(db, f"{name}other")
    id = begin(db, queue, 1)
    add(db, queue, id, 2, other)
    Batches(queue).close(db, id)
    claims = [claimed(db, other), claimed(db, queue), claimed(db, other)]

    @fdbqueue.transactional
    def end_all(tr: Any) -> None:
        other.ack(tr, claims[0])
        queue.ack(tr, claims[1])
        other.nack(tr, claims[2], dead=True)

    end_all(db)
    assert follows(db, queue, id) == {"of": "May", "done": 2, "dead": 1, "cancelled": 0}


def test_the_first_death_cancels_a_batch_that_is_to_be_cancelled(db: Any, queue: Queue) -> None:
    id = begin(db, queue, 2, "cancel")
    assert not Batches(queue).progress(db, id).is_cancelled
    die(db, queue)
    assert Batches(queue).progress(db, id).is_cancelled
    add(db, queue, id, 1, on_dead="cancel")  # counted, but not to begin
    assert counts(db, queue, id) == (3, 0, 1, 0)


def test_a_waiting_item_does_not_let_anybody_sleep_until_a_time(db: Any, queue: Queue) -> None:
    begin(db, queue)
    with Clock() as clock:
        began = clock.now()
        sweeper = store_of(queue).sweeper
        assert sweeper.seconds_left(db.create_transaction()) == float("inf")
        assert clock.now() >= began


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


# Interleavings


class Interleaving:
    """Ends of the jobs of a batch, and its closing, in transactions that overlap at random."""

    def __init__(self, db: Any, queue: Queue, others: list[Queue], rng: Random, n: int) -> None:
        self.db = db
        self.rng = rng
        self.queue = queue
        self.id = begin(db, queue)
        self.position = store_of(queue).codec.reference(self.id)
        self.ends: list[Callable[[Any], object]] = []
        self.expected: dict[str, Any] = {"of": "May", "done": 0, "dead": 0, "cancelled": 0}
        for _ in range(n):
            self.add(rng.choice([queue, *others]))

    def add(self, to: Queue) -> None:
        """Add a job to the batch, and choose how it ends."""
        add(self.db, self.queue, self.id, 1, to)
        kind = self.rng.choice(["done", "done", "dead", "cancelled"])
        self.expected[kind] += 1
        if kind == "cancelled":
            item = next(iter(to.items(self.db, state="ready")))
            to.reprioritize(self.db, item.id, 9)  # so that no claim takes it
            self.ends.append(lambda tr: to.remove(tr, item.id))
            return
        claim = claimed(self.db, to)
        if kind == "done":
            self.ends.append(lambda tr: to.ack(tr, claim))
        else:
            self.ends.append(lambda tr: to.nack(tr, claim, dead=True))

    def close(self, tr: Any) -> None:
        operations.close(tr, layout_of(self.queue), 1, self.position)

    def run(self) -> None:
        """Begin, fill and commit transactions at random; repeat those that conflict."""
        rng = self.rng
        waiting: list[list[Callable[[Any], object]]] = [[self.close]]
        rng.shuffle(self.ends)
        while self.ends:
            waiting.append([self.ends.pop() for _ in range(min(rng.randint(1, 3), len(self.ends)))])
        rng.shuffle(waiting)
        running: list[tuple[Any, list[Callable[[Any], object]]]] = []
        closings = 2
        while waiting or running:
            if waiting and (not running or rng.random() < 0.6):
                acts = waiting.pop()
                tr = self.db.create_transaction()
                for act in acts:
                    act(tr)
                running.append((tr, acts))
                continue
            tr, acts = running.pop(rng.randrange(len(running)))
            try:
                tr.commit().wait()
            except error_classes() as error:
                tr.on_error(error).wait()
                waiting.append(acts)
            else:
                if acts == [self.close] and (closings := closings - 1):
                    waiting.insert(rng.randint(0, len(waiting)), acts)


@pytest.fixture
def ready_count(space: Subspace, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Return a key that counts how often an item that follows was made ready."""
    key = space.pack(("made ready",))
    make_ready = operations.make_ready

    def counting(tr: Any, *args: Any) -> None:
        make_ready(tr, *args)
        tr.add(key, ONE)

    monkeypatch.setattr(operations, "make_ready", counting)
    return key


def begin_interleavings(db: Any, name: str, rng: Random) -> Iterator[Interleaving]:
    others = [PriorityQueue[Any].named(db, f"{name}other")]
    for number in range(40):
        queue = PriorityQueue[Any].named(db, f"{name}{number}")
        yield Interleaving(db, queue, others, rng, rng.randint(0, 8))


def test_one_of_overlapping_transactions_makes_the_item_ready(
    db: Any, name: str, rng: Random, ready_count: bytes
) -> None:
    for n, interleaving in enumerate(begin_interleavings(db, name, rng), 1):
        interleaving.run()
        assert decode_count(db[ready_count]) == n
        queue, id = interleaving.queue, interleaving.id
        assert follows(db, queue, id) == interleaving.expected


def test_the_item_is_made_ready_once_although_answers_of_commits_are_lost(
    db: Any, name: str, rng: Random, queue: Queue
) -> None:
    faulty: Any = FaultyDatabase(db, before=0.2, after=0.2, seed=rng.randrange(2**32))
    id = begin(faulty, queue, 5)
    add(faulty, queue, id, 5)
    for _ in range(5):
        queue.ack(faulty, claimed(faulty, queue))
    Batches(queue).close(faulty, id)
    for _ in range(5):
        queue.ack(faulty, claimed(faulty, queue))
    assert follows(db, queue, id) == {"of": "May", "done": 10, "dead": 0, "cancelled": 0}
    assert counts(db, queue, id) == (10, 10, 0, 0)


def test_the_definition_is_stored_as_documented(db: Any, queue: Queue) -> None:
    begin(db, queue, 1, "cancel")
    stored = rows_in(db, queue, "batches")[0]
    assert decode_batch(stored.value) == ("cancel", "open", False, "then", b"", ())
