"""A worker without jobs costs next to nothing, and ends at once."""

from __future__ import annotations

import asyncio
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
from tests.support.workers import running

WAITING = 60
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
    with running(worker):
        assert asleep.wait(60)
        counting.clear()
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
