"""A job whose worker died runs alone in its worker the next time."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import PriorityQueue, Worker
from fdbqueue.admin import check
from fdbqueue.jobs import App, Context, Retry, Snooze
from fdbqueue.layout.values import NOW, runs_alone
from fdbqueue.operations.timers import LEASE_OVER
from fdbqueue.queue.base import store_of
from fdbqueue.worker import claiming
from fdbqueue.worker.claiming import Source, Turns
from fdbqueue.worker.endings import unclaim
from tests.support.leases import come_due, lapse
from tests.support.waiting import MAX_WAIT, wait_until
from tests.support.workers import running


class Program:
    """Jobs in one process that run until the test lets them end.

    Attributes:
        running: The values of the jobs that run.
        began: The values of all jobs that have begun.
        together: The values of jobs that have run at the same time as a job called "lone".
        others_must_end: Set once a worker waits for its jobs to end, to run one alone.
    """

    def __init__(self) -> None:
        self.running: list[Any] = []
        self.began: list[Any] = []
        self.together: set[Any] = set()
        self.others_must_end = threading.Event()
        self._ends: dict[Any, threading.Event] = defaultdict(threading.Event)
        self._guard = threading.Lock()

    def work(self, item: Any) -> None:
        with self._guard:
            self.running.append(item.value)
            self.began.append(item.value)
            self._note()
            end = self._ends[item.value]
        assert end.wait(MAX_WAIT)
        with self._guard:
            self._note()
            self.running.remove(item.value)

    def _note(self) -> None:
        if any(str(value).startswith("lone") for value in self.running):
            self.together |= {*self.running}

    def end(self, *values: Any) -> None:
        """Let jobs end, now or as soon as they begin."""
        with self._guard:
            for value in values:
                self._ends[value].set()

    def wait_for(self, *values: Any) -> None:
        """Wait until these jobs run, and no others."""
        wait_until(lambda: sorted(self.running, key=str) == sorted(values, key=str))

    def worker(self, db: Any, queue: Any) -> Worker:
        worker = Worker(db, queue, self.work, concurrency=3, lease=1000)
        wait = worker._pool.wait

        def noted(*seconds: float) -> bool:
            self.others_must_end.set()
            return wait(*seconds)

        worker._pool.wait = noted
        return worker

    @contextmanager
    def runs(self, worker: Worker) -> Iterator[None]:
        with running(worker, on_end=lambda: self.end(*self.began)):
            yield


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    """Return the jobs of workers that wait for as long as it takes to run one alone."""
    monkeypatch.setattr(claiming, "_PATIENCE", 2 * MAX_WAIT)
    return Program()


def claim_to_die(db: Any, queue: Any, n: int = 1) -> None:
    """Claim the first items as the worker of another process, which `die` ends."""
    assert len(PriorityQueue(queue.subspace).claim(db, n=n, within=1, lease=30)) == n


def die(db: Any, queue: Any) -> None:
    lapse(db, queue, seconds=100)  # the workers of a program have longer leases
    store_of(PriorityQueue(queue.subspace)).sweeper.sweep(db)  # which wakes them


def lone(db: Any, queue: Any, *values: str) -> None:
    """Push jobs whose worker dies."""
    queue.push_many(db, values)
    claim_to_die(db, queue, len(values))
    die(db, queue)


@contextmanager
def beside_a_long_job(
    db: Any, queue: PriorityQueue, program: Program, *others: Any
) -> Iterator[Worker]:
    """Run a worker with the job "long", push others, and let the worker of the job "lone" die."""
    queue.push(db, "lone", priority=-1, group="g")
    claim_to_die(db, queue)
    queue.push(db, "long", group="g")
    worker = program.worker(db, queue)
    with program.runs(worker):
        program.wait_for("long")
        queue.push_many(db, others)
        die(db, queue)
        yield worker


def test_no_other_job_of_any_queue_begins_beside_one_whose_worker_died(
    db: Any, name: str, program: Program
) -> None:
    queues = [PriorityQueue.named(db, f"{name}{number}") for number in range(2)]
    lone(db, queues[0], "lone 1", "lone 2")
    queues[0].push(db, "a")
    queues[1].push(db, "b")
    worker = program.worker(db, Turns([Source(queue) for queue in queues]))
    with program.runs(worker):
        for value in ("lone 1", "lone 2"):
            program.wait_for(value)
            claimed = [info for queue in queues for info in queue.items(db, state="claimed")]
            assert [info.item.value for info in claimed] == [value]
            program.end(value)
        program.wait_for("a", "b")
    assert program.together == {"lone 1", "lone 2"}


def test_an_idle_client_gets_it_while_a_long_job_runs_elsewhere(
    db: Any, queue: PriorityQueue, program: Program
) -> None:
    with beside_a_long_job(db, queue, program):
        assert program.others_must_end.wait(MAX_WAIT)
        claim = PriorityQueue(queue.subspace).claim(db, wait=MAX_WAIT)
        assert (claim.item.value, claim.attempt) == ("lone", 2)
        queue.ack(db, claim)
        assert program.running == ["long"]


def test_other_jobs_go_on_if_a_long_job_holds_it_up(
    db: Any, queue: PriorityQueue, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "_PATIENCE", 0.05)
    with beside_a_long_job(db, queue, program, *range(20)) as worker:
        program.end(*range(20))
        wait_until(lambda: worker.report.done == 20)
        assert program.running == ["long"]
        program.end("long")
        program.wait_for("lone")
        (info,) = queue.items(db, state="claimed")
        assert info.attempts == 2
    assert program.together == {"lone"}


def test_a_stopped_worker_gives_it_back(db: Any, queue: PriorityQueue, program: Program) -> None:
    with beside_a_long_job(db, queue, program):
        assert program.others_must_end.wait(MAX_WAIT)
    assert program.began == ["long"]
    (info,) = queue.items(db, state="ready")
    assert (info.item.value, info.attempts) == ("lone", 1)


def test_it_uses_up_no_start_before_it_begins(
    db: Any, queue: PriorityQueue, program: Program
) -> None:
    """The starts are those of its first attempt, of the long job, and of its second attempt."""
    queue.configure(db, rate=(3, "1h"))
    queue.set_group(db, "g", rate=(3, "1h"))
    with beside_a_long_job(db, queue, program) as worker:
        assert program.others_must_end.wait(MAX_WAIT)
        wait_until(lambda: list(queue.items(db, state="ready")))
        program.end("long", "lone")
        wait_until(lambda: worker.report.done == 2)
    assert program.together == {"lone"}


# What is stored


def alone(db: Any, queue: PriorityQueue, item: Any) -> bool:
    """Return whether an item is to run alone, by claiming it as a client that is no worker."""
    claim = queue.claim(db, within=1)
    assert claim.item == item
    queue.release(db, claim)
    return runs_alone(claim.item)


def fail(_: Any) -> None:
    raise OSError("busy")


def snooze(_: Any) -> None:
    raise Snooze(3600)


def sleep(context: Context) -> None:
    context.sleep("an hour", 3600)


@pytest.mark.parametrize("handler", [fail, snooze, sleep])
def test_an_attempt_that_ends_in_any_other_way_clears_the_job(
    db: Any, queue: PriorityQueue, handler: Any
) -> None:
    lone(db, queue, "lone")
    (item,) = queue.items(db)
    assert alone(db, queue, item)
    Worker(db, queue, handler).run(drain=True)
    come_due(db, queue)
    assert not alone(db, queue, item)


def test_the_error_says_whether_it_ran_alone(db: Any, space: Subspace) -> None:
    """Only a worker runs it alone. What other clients do with a claim is not known."""
    queue = PriorityQueue(space["queue"])
    item = queue.push(db, "job")
    for number in range(4):
        claim = queue.claim(db)
        if number == 2:
            store_of(queue).extend(db, (claim, None, 30), alone=NOW)
        lapse(db, queue)
    assert queue.claim(db) is not None
    errors = [attempt.error for attempt in queue.get(db, item).failed_attempts]
    died = "its worker died, or was stopped, while it ran alone in its worker"
    assert errors == [LEASE_OVER, LEASE_OVER, died, LEASE_OVER]


def test_a_dead_letter_that_is_retried_runs_alone(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space["queue"], max_attempts=1)
    item = queue.push(db, "job")
    claim = queue.claim(db)
    store_of(queue).extend(db, (claim, None, 30), alone=NOW)
    lapse(db, queue)
    assert queue.state(db, item) == "dead"
    assert "alone" in str(queue.get(db, item).error)
    assert queue.claim(db) is None  # which sweeps
    assert "alone" in str(queue.get(db, item).error)
    assert queue.retry(db, item)
    assert alone(db, queue, item)


# Attempts


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_the_attempts_of_a_policy_are_runs(db: Any, name: str, attempts: int) -> None:
    """The claim that finds them used up is none."""
    app = App(db)
    ran: list[int] = []

    @app.job(queue=name, retry=Retry(attempts=attempts))
    def job() -> None:
        ran.append(1)

    handle = job.push()
    queue: Any = app.queue(name)
    for _ in range(attempts):
        claim_to_die(db, queue)
        die(db, queue)
    assert app.work(name, drain=True).failed == 1
    info = handle.info()
    assert (info.state, info.attempts, info.error) == ("dead", attempts, LEASE_OVER)
    assert len(info.failed_attempts) == attempts
    assert not ran
    assert check(db, queue).ok
    assert queue.retry(db, handle.id)
    assert app.work(name, drain=True).done == 1


def test_a_job_that_is_to_run_alone_does_not_wait_for_all_jobs_of_another_group(
    db: Any, queue: PriorityQueue
) -> None:
    queue.set_group(db, None, concurrency=1)
    for group in ("a", "b", None):
        queue.push(db, f"lone {group}", group=group)
    claim_to_die(db, queue, 3)
    die(db, queue)
    queue.push_many(db, range(10), group="a")
    began: list[Any] = []
    worker = Worker(db, queue, lambda item: began.append(item.value), concurrency=4)
    worker.run(drain=True)
    assert sorted(began[:3], key=str) == ["lone None", "lone a", "lone b"]
    assert began[3:] == [*range(10)]


def test_a_group_whose_job_goes_back_before_it_begins_keeps_its_turn(
    db: Any, queue: PriorityQueue
) -> None:
    for group in ("a", "b", None):
        queue.push_many(db, [f"{group} 1", f"{group} 2"], group=group)
    store = store_of(queue)
    for first in ("None 1", "a 1", "b 1"):
        claim = queue.claim(db)
        assert claim.item.value == first
        job: Any = SimpleNamespace(source=SimpleNamespace(store=store), claim=claim)
        store.change(db, lambda tr, now, job=job: unclaim(tr, now, job))
        assert queue.pop(db).value == first
        assert check(db, queue).problems == ()
