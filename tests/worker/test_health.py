"""A worker tells a supervisor that it lives and claims jobs, and others that it is there."""

from __future__ import annotations

import logging
import math
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

import fdbqueue
from fdbqueue import FDBError, PriorityQueue, Worker, admin
from fdbqueue.admin import workers
from fdbqueue.coordination.store import Store
from fdbqueue.database import clock as machine
from fdbqueue.errors import QueueRenamed
from fdbqueue.jobs import App
from fdbqueue.queue.base import store_of
from fdbqueue.testing import Clock
from fdbqueue.worker import presence
from fdbqueue.worker.claiming import Source, Turns
from fdbqueue.worker.presence import serving_health
from tests.support.counting import CountingDatabase
from tests.support.waiting import MAX_WAIT, wait_until
from tests.support.workers import Cut, running


@pytest.fixture
def address(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """Return a function that waits for the address that a worker has logged."""
    caplog.set_level(logging.INFO)

    def found() -> str:
        wait_until(lambda: "answering /live and /ready" in caplog.text)
        return str(re.findall(r"http://\S+", caplog.text)[0])

    return found


def status_of(address: str, path: str) -> tuple[int, str]:
    answer = httpx.get(f"{address}{path}", timeout=60)
    return answer.status_code, answer.json()["status"]


def is_ready(address: str) -> bool:
    return status_of(address, "/ready") == (200, "ok")


def test_a_worker_is_ready_until_it_stops(
    db: Any, queue: PriorityQueue, address: Callable[[], str]
) -> None:
    began, go = threading.Event(), threading.Event()

    def hold(item: object) -> None:
        began.set()
        assert go.wait(MAX_WAIT)

    worker = Worker(db, queue, hold)
    with running(worker, health=0, on_end=go.set):
        base = address()
        wait_until(lambda: is_ready(base))
        queue.push(db, 1)
        assert began.wait(MAX_WAIT)
        assert is_ready(base)  # a worker that is busy claims jobs as soon as it can
        worker.stop()
        assert status_of(base, "/ready") == (503, "the worker is about to stop")
        assert status_of(base, "/live") == (200, "ok")
        assert status_of(base, "/other")[0] == 404
    with pytest.raises(httpx.ConnectError):
        httpx.get(base)


def test_a_queue_from_which_a_worker_cannot_claim_is_named_and_does_not_hold_up_others(
    db: Any, name: str, address: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = [PriorityQueue.named(db, f"{name}{n}") for n in range(2)]
    queues[1].push_many(db, range(50))
    worker = Worker(db, Turns([*map(Source, queues)], in_order=True), print, concurrency=2)
    is_broken = True
    claim: Any = Store.claim

    def fail(store: Any, *args: Any) -> Any:
        if store is store_of(queues[0]) and is_broken:
            raise FDBError(1031)
        return claim(store, *args)

    monkeypatch.setattr(Store, "claim", fail)
    with running(worker, health="127.0.0.1:0"):
        base = address()
        trouble = f"the worker cannot claim jobs from {name}0, or does not yet"
        wait_until(lambda: status_of(base, "/ready") == (503, trouble))
        wait_until(lambda: worker.report.done == 50)
        assert status_of(base, "/ready") == (503, trouble)
        is_broken = False
        wait_until(lambda: is_ready(base))


def test_a_worker_whose_queue_was_renamed_is_not_ready_once_another_one_has_the_name(
    db: Any,
    name: str,
    address: Callable[[], str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It serves the renamed queue, so nobody would serve the new one."""
    queue = PriorityQueue.named(db, name)
    queue.push(db, 1)
    monkeypatch.setattr(presence, "_IDLE", 0.5)
    worker = Worker(db, queue, print)
    with running(worker, health=0):
        base = address()
        wait_until(lambda: [each for each in workers(db) if name in each.queues])
        admin.rename(db, name, f"{name} before")
        assert is_ready(base)
        new = PriorityQueue.named(db, name)
        new.push(db, 2)
        code, status = status_of(base, "/ready")
        assert (code, status) == (503, str(QueueRenamed(name)))
        wait_until(lambda: "this worker cannot be listed" in caplog.text)
    admin.drop(db, name)
    admin.rename(db, f"{name} before", name)


def test_a_busy_worker_is_ready_although_a_claim_has_failed(
    db: Any, name: str, address: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for that fails if it never is."""
    queues = [PriorityQueue.named(db, f"{name}{n}") for n in range(2)]
    queues[1].push_many(db, range(2))
    go = threading.Event()
    worker = Worker(
        db, Turns([*map(Source, queues)], in_order=True), lambda item: go.wait(), concurrency=2
    )
    claim: Any = Store.claim

    def fail(store: Any, *args: Any) -> Any:
        if store is store_of(queues[0]):
            raise FDBError(1031)
        return claim(store, *args)

    monkeypatch.setattr(Store, "claim", fail)
    with running(worker, health="127.0.0.1:0", on_end=go.set):
        base = address()
        wait_until(lambda: queues[1].stats(db).claimed == 2)
        wait_until(lambda: is_ready(base))


def test_a_worker_is_not_ready_while_its_database_does_not_answer(
    db: Any, queue: PriorityQueue, address: Callable[[], str]
) -> None:
    cut: Any = Cut(db)
    with running(Worker(cut, queue, print), health=0):
        base = address()
        wait_until(lambda: is_ready(base))
        cut.left = math.inf
        code, text = status_of(base, "/ready")
        assert code == 503
        assert text.startswith("the database does not answer: ")
        assert status_of(base, "/live") == (200, "ok")
        cut.left = 0
        wait_until(lambda: is_ready(base))


def test_the_end_does_not_wait_for_a_client_that_sends_nothing(address: Any) -> None:
    with serving_health(0, lambda: None) as port, socket.create_connection(("127.0.0.1", port)):
        assert is_ready(f"http://127.0.0.1:{port}")
    with serving_health("[::1]:0", lambda: None) as port:
        assert is_ready(f"http://[::1]:{port}")


@pytest.mark.parametrize("wrong", [-1, 65536, "http", "localhost", "::1:80", "", True, 1.5])
def test_a_wrong_address_is_refused(db: Any, queue: PriorityQueue, wrong: Any) -> None:
    with pytest.raises(ValueError, match="an address is PORT or HOST:PORT"):
        Worker(db, queue, print).run(drain=True, health=wrong)


def test_an_address_that_is_taken_is_named(db: Any, name: str) -> None:
    app = App(db)
    app.job(queue=name)(print)
    message = "cannot listen: Address already in use"
    with serving_health(0, lambda: None) as port, pytest.raises(OSError, match=message) as caught:
        app.work(drain=True, health=port)
    assert caught.value.filename == f"127.0.0.1:{port}"


# Workers are listed while they run, and gone when their leases are


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
    dead, other = (presence.Presence(each, {name: 1}, 1, 30, print) for each in ("dead", "other"))
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
