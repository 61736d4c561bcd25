"""Threads that share a queue object share transactions; each gets its own result or error."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from weakref import ref

import pytest

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.coordination.combiner import Batch, Combiner
from fdbqueue.errors import LeaseLost
from fdbqueue.queue.base import store_of
from tests.support.scripted import ScriptedDatabase
from tests.support.waiting import wait_until


class Database:
    """An object that supports weak references."""


class Work:
    """The work of a combiner; its first batch waits until `may_finish` is set."""

    def __init__(self, outcome: Callable[[list[int]], list[int]], budget: int = 100) -> None:
        self.batches: list[list[int]] = []
        self.may_finish = threading.Event()
        self.begun = threading.Event()
        self.is_released: bool | None = None
        self._outcome = outcome
        self.combiner: Combiner[int, int] = Combiner(
            lambda db: self.perform, lambda request: request, budget
        )
        self.db = Database()

    def perform(self, db: Any, batch: Batch[int]) -> list[int]:
        requests = list(batch)
        self.batches.append(requests)
        if len(self.batches) == 1:
            self.begun.set()
            self.is_released = self.may_finish.wait(60)
            assert self.is_released
        return self._outcome(requests)

    def run(self, requests: list[int]) -> list[Future[int]]:
        """Run each request in a thread; the others queue up in order while the first runs."""
        pool = ThreadPoolExecutor(len(requests))
        futures = [pool.submit(self.combiner, self.db, requests[0])]
        assert self.begun.wait(60)
        for number, request in enumerate(requests[1:]):
            futures.append(pool.submit(self.combiner, self.db, request))
            while len(self.combiner._lines[ref(self.db)].waiting) <= number:
                pass
        self.may_finish.set()
        pool.shutdown()
        return futures


def doubled(requests: list[int]) -> list[int]:
    return [2 * request for request in requests]


def test_only_a_request_that_exceeds_the_budget_alone_makes_a_batch_exceed_it() -> None:
    work = Work(doubled, budget=10)
    work.run([1, 6, 4, 5, 50, 5])
    assert work.batches == [[1], [6, 4], [5], [50], [5]]


def test_requests_that_a_batch_leaves_over_come_first_in_the_next_batch() -> None:
    work = Work(lambda requests: doubled(requests)[:2])
    futures = work.run([1, 2, 3, 4, 5])
    assert [future.result() for future in futures] == [2, 4, 6, 8, 10]
    assert work.batches == [[1], [2, 3, 4, 5], [4, 5]]


def test_an_invalid_request_fails_alone() -> None:
    def picky(requests: list[int]) -> list[int]:
        if 3 in requests:
            raise ValueError("not 3")
        return doubled(requests)

    work = Work(picky)
    futures = work.run([1, 2, 3, 4])
    assert [future.exception() is None for future in futures] == [True, True, False, True]
    assert futures[3].result() == 8


@pytest.mark.parametrize(
    ("error", "codes"), [(fdbqueue.FDBError(1031), [1031, 1031]), (SystemExit(), [None, 1021])]
)
def test_an_error_of_the_batch_fails_every_request(error: BaseException, codes: list[Any]) -> None:
    """If the combining thread exits, the outcome of the others is unknown."""

    def fails(requests: list[int]) -> list[int]:
        if len(requests) > 1:
            raise error
        return doubled(requests)

    work = Work(fails)
    errors = [future.exception() for future in work.run([1, 2, 3])]
    assert errors[0] is None
    assert isinstance(errors[1], type(error))
    assert [getattr(each, "code", None) for each in errors[1:]] == codes
    assert errors[1] is not errors[2]
    assert work.combiner(work.db, 4) == 8


def test_a_submitted_request_is_performed_once_if_its_turn_comes_at_once() -> None:
    """The batch before it may end at any moment, also before `submit` has returned."""
    work = Work(doubled)
    combiner = work.combiner
    jobs: list[Callable[[], None]] = []
    results: list[int] = []

    def submit(request: int) -> None:
        future = combiner.submit(work.db, request, jobs.append)
        future.add_done_callback(lambda done: results.append(done.result()))

    submit(1)
    first = threading.Thread(target=jobs[0])
    first.start()
    assert work.begun.wait(60)

    line = combiner._lines[ref(work.db)]
    enter = line.enter

    def enter_and_let_first_end(*call: Any) -> bool:
        must_combine: bool = enter(*call)
        work.may_finish.set()
        first.join()
        return must_combine

    line.enter = enter_and_let_first_end
    submit(2)
    assert len(jobs) == 2
    jobs[1]()
    assert results == [2, 4]
    assert work.batches == [[1], [2]]


def test_the_main_thread_neither_combines_nor_waits() -> None:
    work = Work(doubled)
    thread = threading.Thread(target=work.combiner, args=[work.db, 1])
    thread.start()
    assert work.begun.wait(60)
    assert work.combiner(work.db, 2) == 4
    assert work.is_released is None  # the other thread still combines
    assert work.batches == [[1], [2]]
    assert not work.combiner._lines[ref(work.db)].waiting
    work.may_finish.set()
    thread.join()


def test_a_nested_call_does_not_deadlock() -> None:
    """For example, a codec may use the queue that it encodes for."""

    def again(requests: list[int]) -> list[int]:
        if requests == [1]:
            return [work.combiner(work.db, 10)]
        return doubled(requests)

    work = Work(again)
    work.may_finish.set()
    assert work.combiner(work.db, 1) == 20
    assert work.combiner(work.db, 2) == 4


def test_a_forked_child_does_not_wait_for_threads_of_its_parent() -> None:
    work = Work(doubled)
    thread = threading.Thread(target=work.combiner, args=[work.db, 1])
    thread.start()
    assert work.begun.wait(60)
    child = os.fork()
    if child == 0:
        os._exit(0 if work.combiner(work.db, 2) == 4 else 1)
    work.may_finish.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# Queues


def call_beside_a_commit(db: Any, combiner: Any, call: Callable[[Any, int], object]) -> int:
    """Call in one thread, and in seven others while it commits; return the number of commits."""
    held = ScriptedDatabase(db, {})

    def others_wait() -> bool:
        return len(combiner._lines[ref(held)].waiting) == 7

    held.before_commit[1] = lambda: wait_until(others_wait)
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(call, held, 0)]
        assert held.wait_for_commits(1)
        calls += [pool.submit(call, held, n) for n in range(1, 8)]
        for each in calls:
            each.result(60)
    return held.commits


def test_threads_share_commits(db: Any, queue: PriorityQueue) -> None:
    """Threads that call while another one commits take part in the next commit, all together."""
    store, popped = store_of(queue), list[Any]()
    assert queue.pop(db) is None  # the first pop also sweeps
    assert call_beside_a_commit(db, store.pushes, queue.push) == 2
    assert queue.size(db) == 8
    assert call_beside_a_commit(db, store.pops, lambda db, _: popped.append(queue.pop(db))) == 2
    assert sorted(item.value for item in popped) == [*range(8)]


def test_a_claim_that_threads_acknowledge_together_ends_once(db: Any, queue: PriorityQueue) -> None:
    queue.push_many(db, "ab")
    claims = [queue.claim(db) for _ in range(2)]
    outcomes = Counter[str]()

    def ack(db: Any, number: int) -> None:
        try:
            queue.ack(db, claims[number > 0])
            outcomes["done"] += 1
        except LeaseLost:
            outcomes["lost"] += 1

    call_beside_a_commit(db, store_of(queue).acks, ack)
    assert outcomes == {"done": 2, "lost": 6}


def test_large_payloads_are_split_over_transactions(db: Any, queue: PriorityQueue) -> None:
    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(lambda n: queue.push(db, f"{n}" * 3_000_000), range(6)))
        popped = [*pool.map(lambda _: queue.pop(db).value[0], range(6))]
    assert sorted(popped) == [*"012345"]
