"""Workers say that they are there, and are gone when their leases are."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue, Worker
from fdbqueue.admin import workers
from fdbqueue.database import clock as machine
from fdbqueue.testing import Clock
from fdbqueue.worker import presence
from tests.support.counting import CountingDatabase
from tests.support.waiting import wait_until
from tests.support.workers import running


def mine(db: Any, name: str) -> list[fdbqueue.admin.WorkerInfo]:
    """Return the workers of a queue: a cluster has those of other tests as well."""
    return [worker for worker in workers(db) if name in worker.queues]


def test_a_worker_is_listed_while_it_runs(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name)
    queue.push_many(db, range(3))
    entered, may_end = threading.Event(), threading.Event()

    def handle(_: Any) -> None:
        entered.set()
        may_end.wait()

    assert mine(db, name) == []
    worker = Worker(db, queue, handle, concurrency=2, lease=0.3, name="mailer-1")
    with running(worker, on_end=may_end.set):
        entered.wait()
        wait_until(lambda: [each.jobs for each in mine(db, name)] == [2])
        (found,) = mine(db, name)
        host = socket.gethostname()
        assert (found.name, found.host, found.pid) == ("mailer-1", host, os.getpid())
        assert (found.queues, found.concurrency) == ({name: 2}, 2)
        assert found.since <= found.seen
        claimed = [info.claimed_by for info in queue.items(db, state="claimed")]
        assert claimed == ["mailer-1"] * 2
    assert mine(db, name) == []


def test_a_worker_without_jobs_renews_its_row_once_a_minute(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch, asleep: threading.Event
) -> None:
    now = [time.monotonic()]
    looks: list[float] = []

    def monotonic() -> float:
        looks.append(now[0])
        return now[0]

    monkeypatch.setattr(machine, "monotonic", monotonic)
    counting = CountingDatabase(db)
    queue = PriorityQueue.named(db, name)
    with running(Worker(counting, queue, print, lease=0.03)):
        asleep.wait()
        wait_until(lambda: counting.commits == 2)  # its row, and that it waits
        (first,) = mine(db, name)
        counting.clear()
        now[0] += 59
        wait_until(lambda: looks.count(now[0]) > 3)
        assert counting.commits == 0
        now[0] += 2
        wait_until(lambda: counting.commits == 1)
        assert mine(db, name)[0].seen > first.seen
        assert mine(db, name) == [first]  # it is the same worker
    assert mine(db, name) == []


def test_a_worker_that_died_is_gone_when_the_leases_of_its_jobs_are_over(
    db: Any, name: str, clock: Clock
) -> None:
    dead, other = (presence.Presence(each, {name: 1}, 1, 30) for each in ("dead", "other"))
    dead.write(db, 1)
    assert [each.name for each in mine(db, name)] == ["dead"]
    clock.advance(31)
    assert mine(db, name) == []
    other.write(db, 0)  # deletes the row of the other one
    rows = db[slice(*presence.workers_range())]
    assert len([row for row in rows if name.encode() in row.value]) == 1
    assert [each.name for each in mine(db, name)] == ["other"]
    other.end(db)


def test_a_worker_is_listed_again_once_its_machine_has_slept(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch, asleep: threading.Event
) -> None:
    with running(Worker(db, PriorityQueue.named(db, name), print)):
        asleep.wait()
        wait_until(lambda: mine(db, name))
        monkeypatch.setattr(machine, "time_ns", lambda: time.time_ns() + 3600 * 10**9)
        wait_until(lambda: mine(db, name), 30)  # not after a minute of the monotonic clock
        assert len(mine(db, name)) == 1
