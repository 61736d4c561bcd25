"""A worker tells a supervisor over HTTP that it lives, and whether it claims jobs."""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from fdbqueue import FDBError, PriorityQueue, Worker, WorkerReport
from fdbqueue.coordination.store import Store
from fdbqueue.jobs import App
from fdbqueue.queue.base import store_of
from fdbqueue.testing import FaultyDatabase
from fdbqueue.worker.claiming import Source, Turns
from fdbqueue.worker.presence import serving_health
from tests.support.waiting import MAX_WAIT, wait_until


@pytest.fixture
def address(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """Return a function that waits for the address that a worker has logged."""
    caplog.set_level(logging.INFO)

    def found() -> str:
        wait_until(lambda: "answering /live and /ready" in caplog.text)
        return str(re.findall(r"http://\S+", caplog.text)[0])

    return found


@pytest.fixture
def start() -> Iterator[Callable[..., Future[WorkerReport]]]:
    """Return a function that runs a worker in a thread, which the end of the test awaits."""
    with ThreadPoolExecutor() as pool:
        yield lambda worker, **options: pool.submit(worker.run, **options)


def status_of(address: str, path: str) -> tuple[int, str]:
    answer = httpx.get(f"{address}{path}", timeout=60)
    return answer.status_code, answer.json()["status"]


def is_ready(address: str) -> bool:
    return status_of(address, "/ready") == (200, "ok")


def test_a_worker_is_ready_until_it_stops(
    db: Any, queue: PriorityQueue, address: Callable[[], str], start: Any
) -> None:
    began, go = threading.Event(), threading.Event()

    def hold(item: object) -> None:
        began.set()
        assert go.wait(MAX_WAIT)

    worker = Worker(db, queue, hold)
    ended = start(worker, health=0)
    base = address()
    wait_until(lambda: is_ready(base))
    queue.push(db, 1)
    assert began.wait(MAX_WAIT)
    assert is_ready(base)  # a worker that is busy claims jobs as soon as it can
    worker.stop()
    assert status_of(base, "/ready") == (503, "the worker is about to stop")
    assert status_of(base, "/live") == (200, "ok")
    assert status_of(base, "/other")[0] == 404
    go.set()
    ended.result(MAX_WAIT)
    with pytest.raises(httpx.ConnectError):
        httpx.get(base)


def test_a_worker_is_ready_if_it_can_claim_from_each_of_its_queues(
    db: Any, name: str, address: Callable[[], str], start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = [PriorityQueue.named(db, f"{name}{n}") for n in range(2)]
    worker = Worker(db, Turns([*map(Source, queues)]), print, concurrency=2)
    is_broken = True
    claim: Any = Store.claim

    def fail(store: Any, *args: Any) -> Any:
        if store is store_of(queues[1]) and is_broken:
            raise FDBError(1031)
        return claim(store, *args)

    monkeypatch.setattr(Store, "claim", fail)
    start(worker, health="127.0.0.1:0")
    base = address()
    trouble = f"the worker cannot claim jobs from {name}1, or does not yet"
    wait_until(lambda: status_of(base, "/ready") == (503, trouble))
    is_broken = False
    wait_until(lambda: is_ready(base))
    worker.stop()


def test_a_worker_is_not_ready_while_its_database_does_not_answer(
    db: Any, queue: PriorityQueue, address: Callable[[], str], start: Any
) -> None:
    class Cut(FaultyDatabase):
        """A database that raises the error of a time-out instead of beginning a transaction."""

        is_cut = False

        def create_transaction(self) -> Any:
            if self.is_cut:
                raise FDBError(1031)
            return super().create_transaction()

    cut: Any = Cut(db)
    worker = Worker(cut, queue, print)
    start(worker, health=0)
    base = address()
    wait_until(lambda: is_ready(base))
    cut.is_cut = True
    code, text = status_of(base, "/ready")
    assert code == 503
    assert text.startswith("the database does not answer: ")
    assert status_of(base, "/live") == (200, "ok")
    cut.is_cut = False
    wait_until(lambda: is_ready(base))
    worker.stop()


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
