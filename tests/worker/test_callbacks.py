"""Logging that raises stops no worker, and leaves no job claimed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue, Worker
from fdbqueue.errors import LeaseLost
from fdbqueue.queue.base import store_of
from tests.support.workers import make_quick

JOBS = 8


class Broken(BaseException):
    """Not an `Exception`."""


@contextmanager
def logging_that_raises(level: int) -> Iterator[None]:
    logger = logging.getLogger("fdbqueue.worker")
    before = logger.level

    def fail(_: object) -> bool:
        raise Broken

    logger.addFilter(fail)
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.removeFilter(fail)
        logger.setLevel(before)


def run(worker: Worker) -> BaseException | None:
    """Run a worker until it ends, and return its error."""
    errors: list[BaseException | None] = []

    def target() -> None:
        try:
            worker.run(drain=True)
        except BaseException as error:
            errors.append(error)
        else:
            errors.append(None)

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "the worker does not end"
    return errors[0]


def succeed(_: object) -> None:
    pass


def succeed_in_transaction(tr: object, _: object) -> None:
    pass


def fail(_: object) -> None:
    raise ConnectionError("no answer")


HANDLERS = [succeed, succeed_in_transaction, fail]


@pytest.fixture
def queue(db: Any, name: str) -> PriorityQueue:
    queue = PriorityQueue.named(db, name, keep=100)
    queue.push_many(db, range(JOBS))
    return queue


def assert_none_is_claimed(db: Any, queue: PriorityQueue, handler: Callable[..., None]) -> None:
    stats = queue.stats(db)
    assert stats.claimed == 0
    waiting = stats.ready + stats.delayed  # for another attempt
    assert (waiting if handler is fail else stats.done) == JOBS
    assert fdbqueue.admin.check(db, queue).ok


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("handler", HANDLERS)
def test_logging_that_raises_stops_no_worker_and_leaves_no_job_claimed(
    db: Any, queue: PriorityQueue, handler: Any, concurrency: int
) -> None:
    worker = Worker(db, queue, handler, concurrency=concurrency, lease=600)
    with logging_that_raises(logging.INFO):
        assert run(worker) is None
    assert_none_is_claimed(db, queue, handler)


def test_jobs_that_are_not_claimed_ahead_are_returned_although_logging_raises(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = PriorityQueue.named(db, name, max_attempts=1)  # so the worker keeps none ahead
    queue.push_many(db, range(JOBS))
    release, ids = PriorityQueue.release, list[str]()

    def release_all_but_one(queue: Any, tr: Any, claim: Any) -> None:
        ids.append(claim.item.id)
        if claim.item.id == ids[0]:
            raise LeaseLost(claim.item.id)
        release(queue, tr, claim)

    monkeypatch.setattr(PriorityQueue, "release", release_all_but_one)
    worker = Worker(db, queue, succeed, concurrency=2, lease=600)
    # As if jobs were quick: the first claim is of many.
    make_quick(worker, JOBS, 1e-6)
    with logging_that_raises(logging.ERROR):
        assert run(worker) is None
    # The one that could not be returned stays claimed until its lease ends.
    assert [info.id for info in queue.items(db, state="claimed")] == ids[:1]


def test_leases_that_can_neither_be_extended_nor_logged_stop_no_worker(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = PriorityQueue.named(db, name)
    queue.push(db, "job")
    tried = threading.Event()

    def raise_timeout(*_: Any) -> None:
        tried.set()
        raise fdbqueue.FDBError(1031)

    worker = Worker(db, queue, lambda _: tried.wait(60), lease=0.3)
    monkeypatch.setattr(store_of(queue), "extend_each", raise_timeout)
    with logging_that_raises(logging.ERROR):
        assert run(worker) is None
    assert worker.report.done + worker.report.lost == 1
