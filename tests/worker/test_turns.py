"""A worker of several queues claims from them in order, or by weight."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from fdbqueue import FdbqueueError, PriorityQueue, Worker, WorkerReport
from fdbqueue.coordination.store import Store
from fdbqueue.queue.base import store_of
from fdbqueue.worker.claiming import Source, Turns
from tests.support.waiting import MAX_WAIT, wait_until


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
        worker: The worker.
        report: Its report at the end.
    """

    worker: Worker

    def __init__(self, db: Any, name: str) -> None:
        self.db = db
        self.queues = {
            each: PriorityQueue.named(db, f"{name}{each}") for each in ("mail", "images")
        }
        self.began: list[str] = []
        self.report: WorkerReport | None = None
        self._may_end = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def start(
        self, concurrency: int, *, most: int | None = None, weights: tuple[float, ...] = ()
    ) -> None:
        self.worker = worker_of(
            self.db,
            [*self.queues.values()],
            self._work,
            most,
            weights,
            concurrency=concurrency,
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.report = self.worker.run()

    def _work(self, item: Any) -> None:
        self.began.append(item.value)
        assert self._may_end.acquire(timeout=MAX_WAIT)

    def push(self, queue: str, n: int = 1) -> None:
        self.queues[queue].push_many(self.db, [queue] * n)

    def let_end(self, n: int = 1) -> None:
        self._may_end.release(n)

    def wait_for(self, *began: str) -> None:
        """Wait until these jobs have begun, and no others."""
        wait_until(lambda: len(self.began) >= len(began))
        assert self.began == [*began]

    def wait_for_number(self, n: int) -> None:
        """Wait until this many jobs have begun, and no more."""
        wait_until(lambda: len(self.began) >= n)
        assert len(self.began) == n

    def counts(self, since: int = 0) -> Counter[str]:
        return Counter(self.began[since:])

    def end(self) -> None:
        self.let_end(1000)
        if self._thread is not None:
            self.worker.stop()
            self._thread.join(MAX_WAIT)
            assert not self._thread.is_alive()


@pytest.fixture
def program(db: Any, name: str) -> Iterator[Program]:
    program = Program(db, name)
    yield program
    program.end()


def test_concurrency_is_that_of_all_queues(program: Program) -> None:
    """Nothing is claimed that cannot run."""
    program.push("mail", 3)
    program.push("images", 3)
    program.start(2)
    program.wait_for("mail", "mail")
    for n in (3, 4, 5):
        program.let_end()
        program.wait_for_number(n)
        claimed = [queue.stats(program.db).claimed for queue in program.queues.values()]
        assert sum(claimed) == 2
    program.let_end(3)
    wait_until(lambda: program.worker.report.done == 6)
    assert program.began == 3 * ["mail"] + 3 * ["images"]


def test_in_order_the_first_queue_that_has_jobs_comes_first(program: Program) -> None:
    """What was pushed a moment before a slot becomes free counts as well."""
    program.push("images", 20)
    program.start(1)
    expected = ["images"]
    for _ in range(10):
        program.wait_for(*expected)
        program.push("mail")
        program.let_end()
        expected += ["mail"]
        program.wait_for(*expected)
        program.let_end()
        expected += ["images"]
    program.wait_for(*expected)


def test_by_weight_each_queue_gets_its_share(program: Program) -> None:
    program.push("mail", 100)
    program.push("images", 100)
    program.start(4, weights=(3, 1))  # many free slots are shared at once
    for n in range(4, 40):
        program.wait_for_number(n)
        program.let_end()
    program.wait_for_number(40)
    assert program.counts() == {"mail": 30, "images": 10}
    assert all("images" in program.began[n : n + 4] for n in range(36))


def test_a_queue_that_had_no_jobs_does_not_make_up_for_it(program: Program) -> None:
    program.push("images", 200)
    program.start(1, weights=(1, 1))
    for n in range(1, 20):
        program.wait_for_number(n)
        program.let_end()
    program.wait_for_number(20)
    program.push("mail", 100)
    n = 20
    while "mail" not in program.began:  # its worker wakes a moment later
        program.let_end()
        n += 1
        program.wait_for_number(n)
    for end in range(n + 1, n + 21):
        program.let_end()
        program.wait_for_number(end)
    assert 9 <= program.counts(since=n)["mail"] <= 11


def test_slots_that_one_queue_leaves_are_those_of_others(program: Program) -> None:
    program.push("images", 8)
    program.start(8, weights=(100, 1))
    wait_until(lambda: program.counts() == {"images": 8})


def test_a_queue_has_a_limit_of_its_own(program: Program) -> None:
    program.push("mail", 10)
    program.push("images", 10)
    program.start(5, most=3)
    program.wait_for_number(5)
    assert program.counts() == {"mail": 3, "images": 2}


@pytest.mark.parametrize("concurrency", [1, 3])
def test_an_idle_program_begins_a_job_of_any_queue(
    program: Program, concurrency: int, asleep: threading.Event
) -> None:
    """It sleeps on all queues, although there are fewer slots than queues."""
    program.start(concurrency)
    expected: list[str] = []
    for queue in ("images", "mail", "images", "mail"):
        assert asleep.wait(MAX_WAIT)
        program.push(queue)
        expected.append(queue)
        program.wait_for(*expected)
        program.let_end()


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


def test_a_queue_that_cannot_be_read_does_not_hold_up_others(
    program: Program, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker of the first queue tries again each second."""
    broken = program.queues["mail"]
    claim: Any = Store.claim

    def fail(store: Any, *arguments: Any) -> Any:
        if store is store_of(broken):
            raise FdbqueueError("broken")
        return claim(store, *arguments)

    monkeypatch.setattr(Store, "claim", fail)
    program.push("images", 50)
    program.start(1)
    program.let_end(50)
    wait_until(lambda: program.counts() == {"images": 50})
    assert "cannot claim jobs: broken" in caplog.text
