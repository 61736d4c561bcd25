"""A queue with a bound never has more items than that, and has room for every one up to it."""

from __future__ import annotations

import multiprocessing
import os
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
import fdbqueue.testing
from fdbqueue import PriorityQueue, Queue
from fdbqueue.errors import OptionsMismatch, QueueFull

from .many_processes import injected, until_told

PUSHES = int(os.environ.get("FDBQ_RACING_PUSHES", "4000"))
"""Of the race of processes; by hand a million."""


def length(db: Any, queue: PriorityQueue) -> int:
    """How many items there are, by counting them."""
    begin, end = queue.layout.range_of(queue.layout.items)
    return len(list(db.get_range(begin, end)))


def test_a_push_to_a_full_queue_stores_nothing(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space, max_size=2)
    assert [queue.push(db, number) is None for number in range(4)] == [False, False, True, True]
    with pytest.raises(QueueFull, match="at most 2 items and has no room for 1 more") as caught:
        queue.push(db, 4, raise_if_full=True)
    assert (caught.value.max_size, caught.value.wanted) == (2, 1)
    assert queue.size(db) == length(db, queue) == 2
    assert queue.pop(db).value == 0
    assert queue.push(db, "again", raise_if_full=True).value == "again"
    assert [item.value for item in queue.items(db)] == [1, "again"]


def test_several_are_pushed_all_or_none_or_as_many_as_fit(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space, max_size=5)
    assert len(queue.push_many(db, "abc", priorities=[3, 2, 1])) == 3
    assert queue.push_many(db, "defg") == []
    with pytest.raises(QueueFull, match="no room for 4 more"):
        queue.push_many(db, "defg", raise_if_full=True)
    assert queue.push_many(db, []) == []
    fitted = queue.push_many(db, "defg", 9, as_many_as_fit=True, raise_if_full=True)
    assert [item.value for item in fitted] == ["d", "e"]
    assert queue.push_many(db, "fg", as_many_as_fit=True) == []
    with pytest.raises(QueueFull):
        queue.push_many(db, "fg", as_many_as_fit=True, raise_if_full=True)
    assert [item.value for item in queue.items(db)] == ["c", "b", "a", "d", "e"]


def test_a_fifo_queue_has_a_bound_too(db: Any, space: Subspace) -> None:
    queue = Queue(space, max_size=1)
    assert queue.enqueue(db, "a").value == "a"
    assert queue.enqueue(db, "b") is None
    assert queue.enqueue_many(db, "bc", as_many_as_fit=True) == []
    assert queue.dequeue(db).value == "a"
    assert queue.enqueue_many(db, "bc", as_many_as_fit=True)[0].value == "b"


def test_a_transaction_that_pushes_and_pops_has_room_for_what_it_popped(
    db: Any, space: Subspace
) -> None:
    queue = PriorityQueue(space, max_size=3)

    @fdbqueue.transactional
    def exchange(tr: Any) -> list[bool]:
        pushed = [queue.push(tr, number) is not None for number in range(4)]
        queue.pop(tr)
        return [*pushed, queue.push(tr, 4) is not None, queue.push(tr, 5) is not None]

    assert exchange(db) == [True, True, True, False, True, False]
    assert [item.value for item in queue.items(db)] == [1, 2, 4]


def test_the_bound_is_stored_and_holds_for_those_who_were_not_told(
    db: Any, space: Subspace
) -> None:
    early = PriorityQueue(space)
    PriorityQueue(space, max_size=1).push(db, "a")
    assert early.push(db, "b") is None
    with pytest.raises(OptionsMismatch, match="has max_size 1 and was opened with 2"):
        PriorityQueue(space, max_size=2).push(db, "b")
    early.set_max_size(db, 2)
    assert PriorityQueue(space, max_size=2).push(db, "b").value == "b"
    assert early.push(db, "c") is None
    early.set_max_size(db, 1)
    assert early.size(db) == 2
    assert early.push(db, "c") is None
    early.set_max_size(db, None)
    assert early.push(db, "c").value == "c"
    assert early.options(db).max_size is None


@pytest.mark.parametrize("bound", [0, -1, True, 1.5, "2"])
def test_what_is_no_bound_is_refused(db: Any, space: Subspace, bound: Any) -> None:
    with pytest.raises(ValueError, match="max_size is a number from 1, or None"):
        PriorityQueue(space, max_size=bound)
    with pytest.raises(ValueError, match="max_size"):
        PriorityQueue(space).set_max_size(db, bound)


def test_transactions_in_any_order_never_exceed_the_bound(
    db: Any, space: Subspace, rng: random.Random, engine: str
) -> None:
    """Transactions that began and commit in any order, some of which push several items."""
    refused = 0
    for number in range(10 if engine == "cluster" else 100):
        bound = rng.randrange(1, 7)
        queue = PriorityQueue(space[number], max_size=bound)
        queue.push(db, "first")
        under_way: list[Any] = []
        for _ in range(80):
            if rng.random() < 0.5 or not under_way:
                tr = db.create_transaction()
                if rng.random() < 0.35:
                    queue.pop(tr)
                for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
                    size = rng.randrange(1, 3)
                    queue.push_many(tr, range(size), as_many_as_fit=rng.random() < 0.5)
                under_way.append(tr)
            else:
                tr = under_way.pop(rng.randrange(len(under_way)))
                refused += not commits(tr)
                assert length(db, queue) == queue.size(db) <= bound
    assert refused > 20


def commits(tr: Any) -> bool:
    """Whether a transaction commits; the other way is a conflict."""
    try:
        tr.commit().wait()
    except fdbqueue.error_classes() as error:
        return {1020: False}[error.code]
    return True


@pytest.mark.parametrize("turn", range(12))
def test_a_push_that_began_long_ago_finds_that_the_queue_has_filled_up(
    db: Any, space: Subspace, turn: int
) -> None:
    """Whatever place it took, and though each of the others saw the one before."""
    queue = PriorityQueue(space, max_size=3)
    queue.push(db, "made")
    queue.clear(db)
    old = db.create_transaction()
    queue.push(old, "old")
    for number in range(3):
        queue.push(db, number, raise_if_full=True)
    assert not commits(old)
    assert length(db, queue) == 3


@pytest.mark.parametrize("turn", range(12))
def test_a_push_finds_that_an_older_one_took_the_last_place(
    db: Any, space: Subspace, turn: int
) -> None:
    """It saw more items than the older one, and took another place."""
    queue = PriorityQueue(space, max_size=2)
    queue.push(db, "made")
    queue.clear(db)
    old, new = db.create_transaction(), db.create_transaction()
    queue.push(old, "old")
    queue.push(db, "between", raise_if_full=True)
    queue.push(new, "new")
    assert [commits(old), commits(new)].count(True) == 1
    assert length(db, queue) == 2


def test_far_from_the_bound_pushes_do_not_conflict(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space, max_size=10**9)
    queue.push_many(db, range(100))
    transactions = [db.create_transaction() for _ in range(50)]
    for tr in transactions:
        queue.push(tr, "x")
    for tr in transactions:
        tr.commit().wait()
    assert queue.size(db) == 150


def push_and_pop(url: str, space: Subspace, seed: int, pushes: int, pipe: Any) -> None:
    """One process of the race: four threads that push, and pop sometimes."""
    db = injected(url, seed)
    queue = PriorityQueue(space, codec="bytes")

    def work(thread: int) -> tuple[int, int]:
        rng = random.Random(seed * 10 + thread)
        stored = taken = 0
        for _ in range(pushes // 4):
            stored += until_told(queue.push, db, b"x") is not None
            if rng.random() < 0.3:
                taken += len(until_told(queue.pop_many, db, rng.randrange(1, 4)))
        return stored, taken

    with ThreadPoolExecutor(4) as threads:
        done = [*threads.map(work, range(4))]
    pipe.send((sum(stored for stored, _ in done), sum(taken for _, taken in done)))


def test_racing_processes_never_exceed_the_bound(
    db: Any, shared_url: str, space: Subspace, rng: random.Random
) -> None:
    """Seen at any read version, and answers get lost; at the end every item is accounted for."""
    bound = 40
    queue = PriorityQueue(space, codec="bytes", max_size=bound)
    queue.push(db, b"x")
    context = multiprocessing.get_context("spawn")
    pipes = []
    for _ in range(4):
        ours, theirs = context.Pipe()
        arguments = (shared_url, space, rng.randrange(2**32), PUSHES // 4, theirs)
        context.Process(target=push_and_pop, args=arguments, daemon=True).start()
        theirs.close()
        pipes.append(ours)
    seen = set()
    while not all(pipe.poll() for pipe in pipes):
        seen.add(length(db, queue))
    done = [pipe.recv() for pipe in pipes]
    assert max(seen) <= bound
    assert max(seen) > bound // 2, "the race never came near the bound"
    left = queue.size(db)
    assert left == length(db, queue) <= bound
    assert 1 + sum(stored for stored, _ in done) - sum(taken for _, taken in done) == left


@pytest.mark.parametrize("lose", ["before", "after"])
def test_a_push_whose_answer_is_lost_takes_one_place(
    db: Any, space: Subspace, lose: str, rng: random.Random
) -> None:
    faults: dict[str, Any] = {lose: 0.5}
    faulty = fdbqueue.testing.FaultyDatabase(db, seed=rng.randrange(2**32), **faults)
    queue = PriorityQueue(space, max_size=20)
    assert sum(queue.push(faulty, number) is not None for number in range(30)) == 20
    assert [item.value for item in queue.items(db)] == list(range(20))
