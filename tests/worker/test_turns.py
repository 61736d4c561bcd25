"""What a worker claims: from several queues in order or by weight, and how much ahead."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from fdbqueue import PriorityQueue, Worker, WorkerReport
from fdbqueue.worker import claiming
from fdbqueue.worker.claiming import Source, Turns
from tests.support.waiting import MAX_WAIT, wait_until
from tests.support.workers import make_quick, running


def worker_of(
    db: Any,
    queues: Sequence[PriorityQueue],
    handler: Any,
    most: int | None = None,
    weights: Sequence[float] = (),
    **options: Any,
) -> Worker:
    """Return a worker of several queues: in order, or by weight if there are any weights."""
    sources = [
        Source(queue, at_most=most, weight=weight)
        for queue, weight in zip(queues, weights or [1.0] * len(queues))
    ]
    return Worker(db, Turns(sources, in_order=not weights), handler, **options)


class Program:
    """A worker of the queues `mail` and `images`, whose jobs end when the test lets them.

    Attributes:
        began: The names of the queues of the jobs that have begun.
    """

    def __init__(self, db: Any, name: str) -> None:
        self.db = db
        self.queues = {
            each: PriorityQueue.named(db, f"{name}{each}") for each in ("mail", "images")
        }
        self.began: list[str] = []
        self._may_end = threading.Semaphore(0)

    @contextmanager
    def works(
        self, concurrency: int, *, most: int | None = None, weights: tuple[float, ...] = ()
    ) -> Iterator[Worker]:
        queues = [*self.queues.values()]
        worker = worker_of(self.db, queues, self._work, most, weights, concurrency=concurrency)
        with running(worker, on_end=lambda: self.let_end(1000)):
            yield worker

    def _work(self, item: Any) -> None:
        self.began.append(item.value)
        assert self._may_end.acquire(timeout=MAX_WAIT)

    def push(self, queue: str, n: int = 1) -> None:
        self.queues[queue].push_many(self.db, [queue] * n)

    def let_end(self, n: int = 1) -> None:
        self._may_end.release(n)

    def wait_for(self, n: int) -> None:
        """Wait until this many jobs have begun, and no more."""
        wait_until(lambda: len(self.began) >= n)
        assert len(self.began) == n

    def let_end_until(self, n: int) -> None:
        """Let jobs end, one after the other, until this many have begun."""
        while len(self.began) < n:
            self.let_end()
            self.wait_for(len(self.began) + 1)

    def counts(self, since: int = 0) -> Counter[str]:
        return Counter(self.began[since:])


@pytest.fixture
def program(db: Any, name: str) -> Program:
    return Program(db, name)


def test_concurrency_is_that_of_all_queues(program: Program) -> None:
    """Nothing is claimed that cannot run."""
    program.push("mail", 3)
    program.push("images", 3)
    with program.works(2) as worker:
        for n in (2, 3, 4, 5):
            program.wait_for(n)
            claimed = [queue.stats(program.db).claimed for queue in program.queues.values()]
            assert sum(claimed) == 2
            program.let_end()
        program.let_end(2)
        wait_until(lambda: worker.report.done == 6)
    assert program.began == 3 * ["mail"] + 3 * ["images"]


def test_in_order_the_first_queue_that_has_jobs_comes_first(program: Program) -> None:
    """What was pushed a moment before a slot becomes free counts as well."""
    program.push("images", 20)
    with program.works(1):
        for n in range(1, 21, 2):
            program.wait_for(n)
            program.push("mail")
            program.let_end()
            program.wait_for(n + 1)
            program.let_end()
    assert program.began[:20] == ["images", "mail"] * 10


def test_by_weight_each_queue_gets_its_share(program: Program) -> None:
    program.push("mail", 100)
    program.push("images", 100)
    with program.works(4, weights=(3, 1)):  # many free slots are shared at once
        program.wait_for(4)
        program.let_end_until(40)
        assert program.counts() == {"mail": 30, "images": 10}
        assert all("images" in program.began[n : n + 4] for n in range(36))


def test_a_queue_that_had_no_jobs_does_not_make_up_for_it(program: Program) -> None:
    program.push("images", 200)
    with program.works(1, weights=(1, 1)):
        program.wait_for(1)
        program.let_end_until(20)
        program.push("mail", 100)
        while "mail" not in program.began:  # its worker wakes a moment later
            program.let_end_until(len(program.began) + 1)
        n = len(program.began)
        program.let_end_until(n + 20)
        assert 9 <= program.counts(since=n)["mail"] <= 11


def test_a_queue_has_a_limit_of_its_own(program: Program) -> None:
    program.push("mail", 10)
    program.push("images", 10)
    with program.works(5, most=3):
        program.wait_for(5)
        assert program.counts() == {"mail": 3, "images": 2}


@pytest.mark.parametrize("concurrency", [1, 3])
def test_an_idle_program_begins_a_job_of_any_queue(
    program: Program, concurrency: int, asleep: threading.Event
) -> None:
    """It sleeps on all queues, although there are fewer slots than queues."""
    queues = ["images", "mail", "images", "mail"]
    with program.works(concurrency):
        for n, queue in enumerate(queues):
            assert asleep.wait(MAX_WAIT)
            program.push(queue)
            program.wait_for(n + 1)
            program.let_end()
    assert program.began == queues


@pytest.mark.parametrize("weights", [(), (1, 1, 1)])
def test_it_is_drained_once_no_queue_has_jobs(
    db: Any, name: str, weights: tuple[float, ...]
) -> None:
    """A job of the last queue pushes to the one before, and so on."""
    queues = [PriorityQueue.named(db, f"{name}{n}") for n in range(3)]

    def work(item: Any) -> None:
        n, left = item.value
        if left:
            queues[n - 1].push(db, [(n - 1) % 3, left - 1])

    queues[2].push(db, [2, 20])
    worker = worker_of(db, queues, work, weights=weights, concurrency=2)
    assert worker.run(drain=True) == WorkerReport(done=21)


# Jobs that are claimed ahead do not wait for a long one while another worker is idle


class Long:
    """A handler whose jobs are quick, except for the jobs "long", which the test ends.

    Attributes:
        began: The values of the jobs that have begun.
        held: How many jobs the worker held each time.
    """

    worker: Worker

    def __init__(self) -> None:
        self.began: list[Any] = []
        self.held: list[int] = []
        self.go = threading.Event()

    def __call__(self, item: Any) -> None:
        self.began.append(item.value)
        self.held.append(len(self.worker._pool.held))
        if item.value == "long":
            assert self.go.wait(MAX_WAIT)


@contextmanager
def working(
    db: Any, queue: PriorityQueue, handler: Long, *, is_quick: bool = True, **options: Any
) -> Iterator[Worker]:
    """Run a worker, by default as if it had run quick jobs for a while."""
    worker = handler.worker = Worker(db, queue, handler, **options)
    if is_quick:
        make_quick(worker)
    with running(worker, on_end=handler.go.set):
        yield worker


def test_what_waits_for_a_long_job_goes_back_in_its_order(db: Any, queue: PriorityQueue) -> None:
    queue.push_many(db, ["long", *range(150)])
    handler, other = Long(), Long()
    with working(db, queue, handler) as worker:
        wait_until(lambda: handler.began == ["long"] and len(worker._pool.held) == 1)
        # Another worker gets them all, in their order, and no attempt was counted.
        with working(db, PriorityQueue(queue.subspace), other, is_quick=False) as idle:
            wait_until(lambda: idle.report.done == 150)
        assert other.began == [*range(150)]
        assert handler.began == ["long"]
        assert queue.stats(db).total_failed == 0


@pytest.mark.parametrize("prefetch", [None, 0, 5])
def test_what_is_claimed_ahead_is_limited_by_prefetch_and_by_how_long_jobs_take(
    db: Any, queue: PriorityQueue, monkeypatch: pytest.MonkeyPatch, prefetch: int | None
) -> None:
    if prefetch is None:
        monkeypatch.setattr(claiming, "_AHEAD", 1e-9)  # seconds, which every job takes
    queue.push_many(db, range(200))
    handler, options = Long(), {} if prefetch is None else {"prefetch": prefetch}
    with working(db, queue, handler, concurrency=2, **options):
        wait_until(lambda: len(handler.began) == 200)
    assert max(handler.held) <= 2 + (prefetch or 0)
