"""Logging that raises stops no worker, is reported, and leaves no job claimed."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue, Worker
from fdbqueue.queue.base import store_of
from tests.support.waiting import MAX_WAIT

JOBS = 8


class Broken(BaseException):
    """Not an `Exception`, and without text."""

    def __str__(self) -> str:
        raise OSError


@pytest.fixture(autouse=True)
def logging_that_raises(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Let each line of the log raise an error."""

    def fail(_: object) -> None:
        raise Broken

    caplog.set_level(logging.INFO, "fdbqueue.worker")
    monkeypatch.setattr(logging.getLogger("fdbqueue.worker"), "handle", fail)


def succeed(tr: object, _: object) -> None: ...


def fail(_: object) -> None:
    raise ConnectionError("no answer")


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("handler", [print, succeed, fail])
def test_logging_that_raises_stops_no_worker_and_leaves_no_job_claimed(
    db: Any, name: str, handler: Any, concurrency: int, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = PriorityQueue.named(db, name, keep=100)
    queue.push_many(db, range(JOBS))
    Worker(db, queue, handler, concurrency=concurrency, lease=600).run(drain=True)
    stats = queue.stats(db)
    waiting = stats.ready + stats.delayed  # for another attempt
    assert (waiting if handler is fail else stats.done) == JOBS
    assert stats.claimed == 0
    assert "cannot log to fdbqueue.worker" in capsys.readouterr().err


def test_leases_that_can_neither_be_extended_nor_logged_stop_no_worker(
    db: Any, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.push(db, "job")
    tried = threading.Event()

    def raise_timeout(*_: Any) -> None:
        tried.set()
        raise fdbqueue.FDBError(1031)

    worker = Worker(db, jobs, lambda _: tried.wait(MAX_WAIT), lease=0.3)
    monkeypatch.setattr(store_of(jobs), "extend_each", raise_timeout)
    worker.run(drain=True)
    assert worker.report.done + worker.report.lost == 1
