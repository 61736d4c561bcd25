"""Each thread of a worker runs one job after the other."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import PriorityQueue, Worker, WorkerReport
from fdbqueue.admin import check
from fdbqueue.testing import FaultyDatabase
from fdbqueue.worker import pool as module
from fdbqueue.worker.claiming import Pace
from fdbqueue.worker.pool import Pool
from tests.support.waiting import wait_until

N = 8
FOREVER = 1e6  # seconds
TIMEOUT = 30  # seconds after which a test fails instead of waiting


def pool_of(n: int) -> Any:
    """Return a pool of so many threads, whose jobs are numbers."""
    return Pool(Pace(n, 0))


@pytest.mark.parametrize("n", [1, N])
def test_jobs_have_begun_once_they_were_put(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller would keep the interpreter busy with its next claim."""
    monkeypatch.setattr(module, "_HANDOVER", FOREVER)
    go, begun = threading.Event(), list[int]()

    def run(number: int | threading.Event) -> None:
        if isinstance(number, threading.Event):  # for which a thread starts
            meeting.wait()
            return
        begun.append(number)
        go.wait(TIMEOUT)

    pool = pool_of(n)
    meeting = threading.Barrier(n, timeout=TIMEOUT)
    with pool.working(run):
        pool.put([threading.Event() for _ in range(n)])
        wait_until(lambda: pool._free == n)
        pool.put(range(2 * n))
        assert pool._free == 0
        assert len(pool.withdraw()) == n
        go.set()
    assert len(begun) == n


def test_each_job_has_a_thread() -> None:
    meeting = threading.Barrier(N, timeout=TIMEOUT)
    pool = pool_of(N)
    with pool.working(lambda _: meeting.wait()):
        pool.put(range(3 * N))
    assert not meeting.broken


def test_a_single_thread_runs_one_job_after_the_other() -> None:
    begun, pool = list[int](), pool_of(1)
    with pool.working(begun.append):
        pool.put(range(100))
    assert begun == [*range(100)]


def test_the_end_waits_for_all_jobs(rng: random.Random) -> None:
    for _ in range(100):
        done, pool = list[int](), pool_of(rng.randint(1, N))

        def run(number: int, done: list[int] = done) -> None:
            time.sleep(rng.choice([0, 0, 0.001]))
            done.append(number)

        with pool.working(run):
            for begin in range(0, 50, 10):
                pool.put(range(begin, begin + 10))
        assert sorted(done) == [*range(50)]


def test_a_thread_that_hangs_is_replaced() -> None:
    go, hangs, done = threading.Event(), list[int](), list[int]()

    def run(number: int) -> None:
        if number == 0:
            hangs.append(threading.get_ident())
            go.wait(TIMEOUT)
        done.append(number)

    pool = pool_of(1)
    with pool.working(run):
        pool.put(range(3))
        wait_until(lambda: hangs)
        pool.replace(hangs[0])
        wait_until(lambda: done == [1, 2])
    go.set()
    wait_until(lambda: done == [1, 2, 0])


def test_jobs_take_effect_once_despite_faults(
    db: Any, queue: PriorityQueue, space: Subspace, rng: random.Random
) -> None:
    """Commits fail, conflict, or succeed without an answer, while others are under way."""
    db.options.set_transaction_max_retry_delay(1)
    faulty = FaultyDatabase(db, before=0.1, after=0.1, conflict=0.1, seed=rng.randrange(2**32))
    queue.push_many(db, range(300))

    def count(tr: Any, item: Any) -> None:
        tr.add(space["done"][item.value], b"\x01")

    report = Worker(faulty, queue, count, concurrency=N).run(drain=True)
    assert report == WorkerReport(done=300)
    assert [row.value for row in db[space["done"].range()]] == 300 * [b"\x01"]
    assert faulty.lost > 0
    assert check(db, queue).ok


def test_a_conflict_repeats_that_job_alone(db: Any, queue: PriorityQueue, space: Subspace) -> None:
    """All jobs read and write one key, so most that are under way at the same time conflict."""
    db.options.set_transaction_max_retry_delay(1)
    queue.push_many(db, range(50))
    key = space["sum"].key()

    def add(tr: Any, item: Any) -> None:
        tr[key] = b"%d" % (int(tr[key].value or b"0") + item.value)

    worker = Worker(FaultyDatabase(db), queue, add, concurrency=N)
    assert worker.run(drain=True) == WorkerReport(done=50)
    assert int(db[key]) == sum(range(50))
