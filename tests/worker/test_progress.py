"""A job says how far it is, and logs lines that stay with its attempt."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fdbqueue import PriorityQueue, Worker, WorkerReport
from fdbqueue.jobs import Context, Dead, Discard
from fdbqueue.types import Progress
from tests.support.leases import lapse
from tests.support.waiting import MAX_WAIT, wait_until
from tests.support.workers import running


def lines(log: str) -> list[str]:
    """Return the lines of a log without their times."""
    return [line.split(" ", 1)[1] for line in log.splitlines()]


def info_of(db: Any, queue: PriorityQueue, item: Any) -> Any:
    return queue.get(db, item)


def test_a_running_job_shows_its_progress_and_its_log(db: Any, queue: PriorityQueue) -> None:
    go = threading.Event()

    def handler(context: Context) -> None:
        context.log("began")
        context.progress(0.25, "page 1")
        context.progress(0.5, "page 2")
        assert go.wait(MAX_WAIT)

    queue.configure(db, keep=10)
    item = queue.push(db, "job")
    with running(Worker(db, queue, handler), on_end=go.set):
        wait_until(lambda: info_of(db, queue, item).progress)
        info = info_of(db, queue, item)
        assert (info.progress.fraction, info.progress.message) == (0.5, "page 2")
        assert info.claimed_at <= info.progress.reported_at
        assert lines(info.log) == ["began"]
        assert queue.search(db, state="claimed").items[0].progress == info.progress
    info = info_of(db, queue, item)
    assert (info.state, info.progress, lines(info.log)) == ("done", None, ["began"])


@pytest.mark.parametrize("error", [ValueError("no"), Dead("no"), Discard("no")])
def test_the_end_of_a_log_is_kept_however_the_attempt_ends(
    db: Any, queue: PriorityQueue, error: Exception
) -> None:
    def handler(context: Context) -> None:
        for number in range(1_000):
            context.log(f"Größe {number}")
        raise error

    queue.configure(db, keep=10, max_attempts=2)
    item = queue.push(db, "job")
    Worker(db, queue, handler).run(drain=True)
    info = info_of(db, queue, item)
    log = info.log if isinstance(error, Discard) else info.failed_attempts[0].log
    assert 7_900 < len(log.encode()) <= 8_000
    assert lines(log)[-2:] == ["Größe 998", "Größe 999"]


def test_a_worker_that_dies_leaves_what_it_has_logged(db: Any, queue: PriorityQueue) -> None:
    item = queue.push(db, "job")
    claim = queue.claim(db, client="host:7")
    queue.extend(db, claim, progress=Progress(0.4, "page 4"), log="began\n")
    lapse(db, queue)
    queue.release(db, PriorityQueue(queue.subspace).claim(db))
    info = info_of(db, queue, item)
    (attempt,) = info.failed_attempts
    assert (attempt.client, attempt.log) == ("host:7", "began\n")
    assert (info.progress, info.log) == (None, "")


def test_a_handler_that_extends_its_lease_keeps_its_report(db: Any, queue: PriorityQueue) -> None:
    seen: list[Any] = []

    def handler(context: Context) -> None:
        context.progress(0.5, "half")
        for _ in range(2):
            context.extend()
            seen.append(info_of(db, queue, context.item).progress.message)

    queue.push(db, "job")
    assert Worker(db, queue, handler).run(drain=True) == WorkerReport(done=1)
    assert seen == ["half", "half"]


@pytest.mark.parametrize(
    ("report", "problem"),
    [
        (lambda context: context.progress(1.5), "a number from 0 to 1, not 1.5"),
        (lambda context: context.progress(float("nan")), "a number from 0 to 1, not nan"),
        (lambda context: context.progress("half"), "a number from 0 to 1, not 'half'"),
        (lambda context: context.progress(0.5, 4), "the message of a progress is text, not 4"),
        (lambda context: context.log(b"line"), "is text, not b'line'"),
    ],
)
def test_a_wrong_report_fails_the_attempt(
    db: Any, queue: PriorityQueue, report: Any, problem: str
) -> None:
    def handler(context: Context) -> None:
        report(context)

    queue.configure(db, max_attempts=1)  # on a slow machine, a retry would be due at once
    item = queue.push(db, "job")
    assert Worker(db, queue, handler).run(drain=True) == WorkerReport(failed=1)
    assert info_of(db, queue, item).error.endswith(problem)
