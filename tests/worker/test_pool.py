"""One thread runs the jobs of quick transactions, which overlap; other jobs have a thread each."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue, Worker, WorkerReport
from fdbqueue.admin import check
from fdbqueue.database.exactly_once import commits_overlap
from fdbqueue.testing import FaultyDatabase
from fdbqueue.worker import pool as module
from fdbqueue.worker.pool import Pausing, Pool
from tests.support.waiting import wait_until

N = 8
FOREVER = 1e6  # seconds
TIMEOUT = 30  # seconds after which a test fails instead of waiting


class Jobs:
    """Jobs that pause twice, as a transaction does that commits and is repeated."""

    def __init__(self) -> None:
        self.guard = threading.Lock()
        self.begun: list[int] = []
        self.done = 0
        self.most_under_way = 0
        self.threads: set[int] = set()

    def run(self, number: int) -> Pausing:
        with self.guard:
            self.begun.append(number)
            self.most_under_way = max(self.most_under_way, len(self.begun) - self.done)
        yield
        self.threads.add(threading.get_ident())
        yield
        with self.guard:
            self.done += 1


def new_pool(n: int = N, *, is_quick: bool) -> Pool[int]:
    pool = Pool[int](n)
    if is_quick:
        make_quick(pool)
    return pool


def make_quick(pool: Pool[int]) -> None:
    for _ in range(1_000):
        pool.note(0.0)


@pytest.mark.parametrize("n", [1, N])
def test_jobs_have_begun_once_they_were_put(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller would keep the interpreter busy with its next claim."""
    monkeypatch.setattr(module, "_HANDOVER", FOREVER)
    go = threading.Event()

    def run(_: int) -> Pausing:
        yield from ()
        go.wait(TIMEOUT)

    pool = new_pool(n, is_quick=False)
    with pool.working(run):
        pool.put(range(2 * n))
        begun = pool._under_way
        go.set()
    assert begun == n


def test_one_thread_runs_quick_jobs() -> None:
    jobs, pool = Jobs(), new_pool(is_quick=True)
    with pool.working(jobs.run):
        pool.put(range(1_000))
        wait_until(lambda: jobs.done == 1_000)
        assert len(jobs.threads) == 1
    assert sorted(jobs.begun) == [*range(1_000)]
    assert jobs.most_under_way == N


@pytest.mark.parametrize("was_quick", [False, True])
def test_each_slow_job_has_a_thread(was_quick: bool) -> None:
    meeting = threading.Barrier(N, timeout=TIMEOUT)

    def run(_: int) -> Pausing:
        yield
        meeting.wait()

    pool = new_pool(is_quick=was_quick)
    with pool.working(run):
        pool.note(FOREVER)
        pool.put(range(3 * N))
    assert not meeting.broken


def test_all_threads_help_if_a_quick_job_suddenly_takes_long() -> None:
    """So jobs that wait for each other go on, however quick they were before."""
    meeting, done = threading.Barrier(N, timeout=TIMEOUT), list[int]()

    def run(number: int) -> Pausing:
        yield
        meeting.wait()
        done.append(number)

    pool = new_pool(is_quick=True)
    with pool.working(run):
        pool.put(range(N))
        wait_until(lambda: meeting.n_waiting == 1)
        pool.look()
        assert pool.overlap
        pool.look()
        wait_until(lambda: len(done) == N)


def test_a_look_leaves_a_thread_met_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, pool = Jobs(), new_pool(is_quick=True)
    with pool.working(jobs.run):
        for number in range(100):
            pool.put([number])
            wait_until(lambda: jobs.done > number)  # noqa: B023
            pool.look()
        pool.look()  # no thread works
        assert pool.overlap
        assert len(jobs.threads) <= N


def test_the_thread_of_quick_jobs_continues_those_that_others_have_begun() -> None:
    """The others stop in the middle of a job once jobs are quick."""
    meeting, done = threading.Barrier(N, timeout=TIMEOUT), list[int]()
    pool = new_pool(is_quick=False)

    def run(number: int) -> Pausing:
        meeting.wait()  # so each thread has a job
        make_quick(pool)
        yield
        done.append(number)

    with pool.working(run):
        pool.put(range(N))
        wait_until(lambda: len(done) == N)


def test_a_single_thread_runs_one_job_after_the_other() -> None:
    jobs, pool = Jobs(), new_pool(1, is_quick=True)
    with pool.working(jobs.run):
        pool.put(range(100))
    assert jobs.begun == [*range(100)]
    assert jobs.most_under_way == 1


def test_the_end_waits_for_all_jobs_in_any_order(rng: random.Random) -> None:
    for _ in range(200):
        jobs, pool = Jobs(), new_pool(rng.randint(1, N), is_quick=rng.random() < 0.5)
        with pool.working(jobs.run):
            for begin in range(0, 50, 10):
                pool.note(rng.choice([0.0, 0.0, FOREVER]))
                pool.put(range(begin, begin + 10))
        assert jobs.done == 50


def test_a_thread_that_hangs_is_replaced() -> None:
    go, hangs, done = threading.Event(), list[int](), list[int]()

    def run(number: int) -> Pausing:
        yield from ()
        if number == 0:
            hangs.append(threading.get_ident())
            go.wait(TIMEOUT)
        done.append(number)

    pool = new_pool(1, is_quick=False)
    with pool.working(run):
        pool.put(range(3))
        wait_until(lambda: hangs)
        pool.replace(hangs[0])
        wait_until(lambda: done == [1, 2])
    go.set()
    wait_until(lambda: done == [1, 2, 0])


def test_overlapping_jobs_take_effect_once_despite_faults(
    db: Any,
    queue: PriorityQueue,
    space: Subspace,
    rng: random.Random,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Commits fail, conflict, or succeed without an answer, while others are under way."""
    db.options.set_transaction_max_retry_delay(1)
    monkeypatch.setattr(module, "_QUICK", FOREVER)
    faulty = FaultyDatabase(db, before=0.1, after=0.1, conflict=0.1, seed=rng.randrange(2**32))
    queue.push_many(db, range(300))
    is_running, met = threading.Lock(), list[int]()

    def count(tr: Any, item: Any) -> None:
        if is_running.acquire(blocking=False):
            tr.add(space["done"][item.value], b"\x01")
            is_running.release()
        else:
            met.append(item.value)

    report = Worker(faulty, queue, count, concurrency=N).run(drain=True)
    assert report == WorkerReport(done=300)
    assert not (met and commits_overlap(db))
    assert [row.value for row in db[space["done"].range()]] == 300 * [b"\x01"]
    assert faulty.lost > 0
    assert check(db, queue).ok


def test_overlapping_jobs_of_one_process_share_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_QUICK", FOREVER)
    synced: list[int] = []
    with fdbqueue.open(f"embedded:{tmp_path}/db") as db:
        jobs = PriorityQueue.named(db, "jobs")
        jobs.push_many(db, range(400))
        monkeypatch.setattr("fdbqueue.embedded.storage.sync._data_sync", synced.append)

        def write(tr: Any, item: Any) -> None:
            tr[b"%d" % item.value] = b"done"

        assert Worker(db, jobs, write, concurrency=N).run(drain=True).done == 400
        assert len(db[b"0":b":"]) == 400
    assert len(synced) < 400  # those of the claims included


def test_a_conflict_of_an_overlapping_job_repeats_that_job_alone(
    db: Any, queue: PriorityQueue, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All jobs read and write one key, so most that are under way at the same time conflict."""
    db.options.set_transaction_max_retry_delay(1)
    monkeypatch.setattr(module, "_QUICK", FOREVER)
    queue.push_many(db, range(50))
    key = space["sum"].key()

    def add(tr: Any, item: Any) -> None:
        tr[key] = b"%d" % (int(tr[key].value or b"0") + item.value)

    worker = Worker(FaultyDatabase(db), queue, add, concurrency=N)
    assert worker.run(drain=True) == WorkerReport(done=50)
    assert int(db[key]) == sum(range(50))
