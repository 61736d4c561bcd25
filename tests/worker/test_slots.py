"""The workers of several queues share the slots of one process: in order, or by weight."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from fdbqueue import FdbqueueError, PriorityQueue, Worker, WorkerReport
from fdbqueue.admin import workers
from fdbqueue.coordination import sans_io
from fdbqueue.coordination.sans_io import sans_io_of, sleep_on
from fdbqueue.queue.base import Stop
from fdbqueue.worker import slots
from fdbqueue.worker.processes.group import run_together
from fdbqueue.worker.slots import Share, Slots
from tests.support.counting import CountingDatabase
from tests.support.waiting import MAX_WAIT, wait_until


class Program:
    """Workers of the queues `mail` and `images`, whose jobs end when the test lets them.

    Attributes:
        began: The names of the queues of the jobs that have begun.
        report: The report at the end.
    """

    def __init__(self, db: Any, name: str) -> None:
        self.db = db
        self.queues = {
            each: PriorityQueue.named(db, f"{name}{each}") for each in ("mail", "images")
        }
        self.workers: list[Worker] = []
        self.began: list[str] = []
        self.report: WorkerReport | None = None
        self._may_end = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def start(self, concurrency: int, *, most: int = 100, **options: Any) -> None:
        self.workers += [
            Worker(self.db, queue, partial(self._work, each), concurrency=min(concurrency, most))
            for each, queue in self.queues.items()
        ]
        self._thread = threading.Thread(
            target=self._run, kwargs={"concurrency": concurrency, **options}
        )
        self._thread.start()

    def _run(self, **options: Any) -> None:
        self.report = run_together(self.workers, **options)

    def _work(self, queue: str, item: object) -> None:
        self.began.append(queue)
        assert self._may_end.acquire(timeout=MAX_WAIT)

    def push(self, queue: str, n: int = 1) -> None:
        self.queues[queue].push_many(self.db, range(n))

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
        for worker in self.workers:
            worker.stop()
        if self._thread is not None:
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
    wait_until(lambda: sum(worker.report.done for worker in program.workers) == 6)
    assert program.began == 3 * ["mail"] + 3 * ["images"]


def test_a_worker_is_listed_with_its_own_concurrency_and_that_of_each_queue(
    program: Program, name: str
) -> None:
    program.push("images", 3)
    program.start(4, most=2)
    program.wait_for("images", "images")

    def listed() -> list[tuple[int, int]]:
        names = f"{name}mail", f"{name}images"
        found = [each for each in workers(program.db) if each.queue in names]
        return [(each.at_most, each.concurrency) for each in found]

    wait_until(lambda: listed() == [(2, 4), (2, 4)])


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
    program.start(1, weights=[3, 1])
    for n in range(1, 40):
        program.wait_for_number(n)
        program.let_end()
    program.wait_for_number(40)
    assert program.counts() == {"mail": 30, "images": 10}
    assert all("images" in program.began[n : n + 4] for n in range(36))


def test_many_free_slots_are_shared_by_weight_at_once(program: Program) -> None:
    program.push("mail", 100)
    program.push("images", 100)
    program.start(8, weights=[3, 1])
    program.wait_for_number(8)
    assert program.counts() == {"mail": 6, "images": 2}


def test_a_queue_that_had_no_jobs_does_not_make_up_for_it(program: Program) -> None:
    program.push("images", 200)
    program.start(1, weights=[1, 1])
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
    program.start(8, weights=[100, 1])
    wait_until(lambda: program.counts() == {"images": 8})


def test_a_queue_has_a_limit_of_its_own(program: Program) -> None:
    program.push("mail", 10)
    program.push("images", 10)
    program.start(5, most=3)
    program.wait_for_number(5)
    assert program.counts() == {"mail": 3, "images": 2}


@pytest.mark.parametrize("concurrency", [1, 2, 3])
def test_an_idle_program_begins_a_job_of_any_queue(
    program: Program, concurrency: int, asleep: threading.Event
) -> None:
    """It sleeps on all queues, although there are fewer slots than queues."""
    program.start(concurrency)
    expected: list[str] = []
    for queue in ("images", "mail", "images", "images", "mail", "mail"):
        assert asleep.wait(MAX_WAIT)
        program.push(queue)
        expected.append(queue)
        program.wait_for(*expected)
        program.let_end()


def test_each_queue_of_an_idle_program_costs_a_transaction_in_20_seconds(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.db = counting = CountingDatabase(program.db)
    sleeps: list[float] = []

    def sleep(watches: list[Any], seconds: float, *others: Any) -> Any:
        sleeps.append(seconds)
        if len(sleeps) == 40:
            for worker in program.workers:
                worker.stop()
        return sleep_on(watches, 0, *others)  # as if the time were over

    monkeypatch.setattr(sans_io, "sleep_on", sleep)
    program.start(2)
    wait_until(lambda: program.report == WorkerReport())
    assert counting.transactions <= 0.05 * sum(sleeps)
    assert counting.commits == 2 * 4  # as for a single worker


def test_an_idle_program_ends_at_once(program: Program, asleep: Any) -> None:
    program.start(2)
    wait_until(lambda: asleep.count >= 2)
    program.end()
    assert program.report == WorkerReport()


def test_it_is_drained_once_no_queue_has_jobs(db: Any, name: str) -> None:
    """A job of the last queue pushes to the first one, and so on."""
    queues = [PriorityQueue.named(db, f"{name}{n}") for n in range(3)]

    def work(n: int, item: Any) -> None:
        if item.value:
            queues[n - 1].push(db, item.value - 1)

    workers = [Worker(db, queue, partial(work, n), concurrency=2) for n, queue in enumerate(queues)]
    queues[2].push(db, 20)
    assert run_together(workers, concurrency=2, drain=True) == WorkerReport(done=21)


def test_what_a_job_pushed_is_seen_with_its_end(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long a worker takes to let go of a job, the others do not end meanwhile."""
    monkeypatch.setattr(slots, "_LOOK", 0.001)
    queues = [PriorityQueue.named(db, f"{name}{n}") for n in range(2)]

    class Slow(dict[Any, None]):
        def pop(self, *arguments: Any) -> Any:
            super().pop(*arguments)
            time.sleep(20 * slots._LOOK)

    def push(item: Any) -> None:
        queues[0].push(db, "next")

    workers = [Worker(db, queues[0], print), Worker(db, queues[1], push)]
    for worker in workers:
        worker._held = Slow()
    queues[1].push(db, "first")
    assert run_together(workers, concurrency=2, drain=True) == WorkerReport(done=2)


def test_a_look_that_began_before_a_job_ended_is_not_the_last_one() -> None:
    shared = Slots(2, drain=True)
    ends, looks = (Share(shared, held=lambda: 0, most=2) for _ in range(2))
    ends.is_away = True

    def find_nothing(n: int) -> int:
        with ends.freeing():  # the end of a job that has pushed others since the look
            pass
        return 0

    assert looks.feed(Stop(), find_nothing, sleep=pytest.fail)
    assert not looks.feed(Stop(), lambda n: 0, sleep=pytest.fail)


def test_a_queue_that_cannot_be_read_does_not_hold_up_others(
    program: Program, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker of the first queue tries again each second."""
    broken = program.queues["mail"]
    claim: Any = sans_io_of(type(broken).claim)

    def fail(queue: Any, *arguments: Any, **options: Any) -> Any:
        if queue is broken:
            raise FdbqueueError("broken")
        return claim(queue, *arguments, **options)

    monkeypatch.setattr(fail, "operation", fail, raising=False)
    monkeypatch.setattr(type(broken), "claim", fail)
    program.push("images", 50)
    program.start(1)
    program.let_end(50)
    wait_until(lambda: program.counts() == {"images": 50})
    assert "cannot claim jobs: broken" in caplog.text
