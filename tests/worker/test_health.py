"""A worker tells a supervisor over HTTP that it lives, and whether it claims jobs."""

from __future__ import annotations

import logging
import math
import re
import socket
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from fdbqueue import FDBError, PriorityQueue, Worker
from fdbqueue.coordination.store import Store
from fdbqueue.jobs import App
from fdbqueue.queue.base import store_of
from fdbqueue.worker.claiming import Source, Turns
from fdbqueue.worker.presence import serving_health
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
