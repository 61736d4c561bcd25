"""A worker without jobs costs next to nothing, and ends at once."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import PriorityQueue, Worker, WorkerReport, aio
from fdbqueue.coordination import sans_io
from fdbqueue.coordination.sans_io import sleep_on
from fdbqueue.jobs import Context
from tests.support.counting import CountingDatabase
from tests.support.waiting import until

WAITING = int(os.environ.get("FDBQ_WAITING", "60"))
"""How many jobs sleep or wait while a worker is idle."""


def sleep_or_wait(context: Context) -> None:
    if context.item.value % 2:
        context.sleep("nap", "1d")
    context.wait("never sent", timeout="1d" if context.item.value % 4 else None)


@pytest.mark.parametrize("waiting", [None, 0, WAITING])
def test_an_idle_worker_makes_a_transaction_in_20_seconds(
    db: Any, queue: PriorityQueue, waiting: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if jobs sleep or wait for signals.

    The thread that extends leases wakes all the time here, but has none to extend.
    """
    if waiting is not None:
        queue.push(db, "a job")
        queue.ack(db, queue.claim(db))
        queue.push_many(db, range(waiting))
        Worker(db, queue, sleep_or_wait, concurrency=4).run(drain=True)
        assert queue.stats(db).delayed == waiting
    counting = CountingDatabase(db)
    worker = Worker(counting, queue, print, lease=0.01)
    sleeps: list[float] = []

    def sleep(watches: list[Any], seconds: float, *others: Any) -> Any:
        sleeps.append(seconds)
        if len(sleeps) == 20:
            worker.stop()
        return sleep_on(watches, 0, *others)  # as if the time were over

    monkeypatch.setattr(sans_io, "sleep_on", sleep)
    assert worker.run() == WorkerReport()
    print(f"{waiting} jobs: {counting.transactions} transactions, {counting.reads} reads")
    assert counting.transactions <= 0.05 * sum(sleeps)
    assert counting.watches <= 3 * len(sleeps)
    assert counting.reads <= 10 * len(sleeps)  # however many jobs wait
    # It begins to be there, begins to wait, leaves, and ends.
    assert counting.commits <= 4


def test_an_idle_worker_stops_without_another_look(
    db: Any, queue: PriorityQueue, asleep: threading.Event
) -> None:
    counting = CountingDatabase(db)
    worker = Worker(counting, queue, print)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    assert asleep.wait(60)
    counting.clear()
    worker.stop()
    thread.join(60)
    assert not thread.is_alive()
    # It leaves, and ends if it was listed.
    assert (counting.transactions, counting.reads) in {(1, 0), (2, 0)}


@pytest.mark.parametrize("end", ["stop", "cancel", "close"])
def test_an_idle_asyncio_worker_ends(
    db: Any, space: Subspace, end: str, asleep: threading.Event
) -> None:
    """Closing its event loop does not even cancel it."""
    loop = asyncio.new_event_loop()
    worker = aio.Worker(db, aio.PriorityQueue(PriorityQueue(space["queue"])), print)
    running = loop.create_task(worker.run())
    loop.run_until_complete(until(asleep.is_set))
    threads = [each for each in threading.enumerate() if "aio.worker" in each.name]
    if end == "stop":
        worker.stop()
        assert loop.run_until_complete(asyncio.wait_for(running, 60)) == WorkerReport()
    elif end == "cancel":
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(asyncio.wait_for(running, 60))
    else:
        running._log_destroy_pending = False
    loop.close()
    assert threads
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


INTERRUPTED = """
import os, random, signal, sys
import fdbqueue
from fdbqueue.coordination import sans_io, waiting

url, seed, by, rounds = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
rng = random.Random(seed)
waiting.MAX_SLEEP = 10_000  # only the signal ends the sleep
sans_io._SIGNALS = 0.02  # a signal that meets the thread as it falls asleep is handled after this
sleep_on = sans_io.sleep_on

def interrupt_soon(seconds):
    signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.00001, seconds))

def sleep(*arguments):
    interrupt_soon(0.001)  # from now on the worker has handlers
    return sleep_on(*arguments)

def interrupt(*_):
    if by == "stop":
        worker.stop()
    else:
        os.kill(os.getpid(), getattr(signal, by))

db = fdbqueue.open(url)
queue = fdbqueue.PriorityQueue(fdbqueue.Subspace(("interrupted", os.getpid())))
signal.signal(signal.SIGALRM, interrupt)
if by != "stop":
    sans_io.sleep_on = sleep
for _ in range(rounds):
    worker = fdbqueue.Worker(db, queue, print)
    if by == "stop":
        interrupt_soon(0.005)
    worker.run()
db.clear_range_startswith(queue.subspace.key())
print("ended")
"""


@pytest.mark.parametrize("by", ["stop", "SIGTERM"])
def test_a_signal_at_any_moment_ends_an_idle_worker(url: str, by: str, rng: random.Random) -> None:
    """The handler interrupts the main thread while it runs the worker, asleep or about to be."""
    arguments = [url, str(rng.randrange(2**32)), by, "40"]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *arguments], capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
