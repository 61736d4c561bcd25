"""Failed attempts of an item are kept until it ends, with client, error and traceback."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime, timedelta
from typing import Any

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.database import clock
from tests.support.keys import layout_of
from tests.support.leases import come_due, lapse


def info_of(db: Any, queue: Any, item: Any) -> Any:
    info = queue.get(db, item)
    assert info is not None
    return info


def attempts_left(db: Any, queue: Any) -> int:
    layout = layout_of(queue)
    return len([*db[slice(*layout.range_of(layout.attempts))]])


def fail(number: int) -> None:
    raise ValueError(f"attempt {number} went wrong")


def test_each_failed_attempt_is_kept_with_client_error_and_traceback(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name, max_attempts=3)
    item = queue.push(db, "job")
    claim = queue.claim(db, client="shelf 7")
    assert info_of(db, queue, item).claimed_by == "shelf 7"
    queue.extend(db, claim)
    info = info_of(db, queue, item)
    assert info.claimed_by == "shelf 7"
    now = datetime.now(UTC)
    assert now - timedelta(minutes=1) < info.claimed_at <= now < info.lease_ends
    try:
        fail(1)
    except ValueError as error:
        queue.nack(db, claim, delay=600, error=error)
    info = info_of(db, queue, item)
    assert (info.state, info.error) == ("delayed", "ValueError: attempt 1 went wrong")
    come_due(db, queue)
    queue.claim(db)
    assert info_of(db, queue, item).claimed_by.endswith(f":{os.getpid()}")
    lapse(db, queue)
    queue.nack(db, queue.claim(db), error="busy")
    info = info_of(db, queue, item)
    assert (info.state, info.attempts, info.error) == ("dead", 3, "busy")
    assert [attempt.number for attempt in info.failed_attempts] == [1, 2, 3]
    first, second, third = info.failed_attempts
    assert (first.client, third.client) == ("shelf 7", clock.client_name())
    assert first.started_at is not None
    assert first.started_at <= first.ended_at
    assert "in fail" in first.traceback
    assert "attempt 1 went wrong" in first.traceback
    assert (second.error, second.traceback) == ("its lease ran out", None)
    assert (third.error, third.traceback) == ("busy", None)
    assert first.ended_at <= second.ended_at <= third.ended_at


def test_a_queue_keeps_as_many_attempts_as_its_options_say(db: Any, queue: PriorityQueue) -> None:
    item = queue.push(db, "job")

    def fail_often(n: int) -> None:
        for number in range(n):
            queue.nack(db, queue.claim(db), delay=0, error=ValueError(f"error {number}"))

    fail_often(13)
    assert [each.number for each in info_of(db, queue, item).failed_attempts] == [*range(4, 14)]
    queue.configure(db, kept_attempts=15)
    fail_often(17)
    assert [each.number for each in info_of(db, queue, item).failed_attempts] == [*range(16, 31)]
    queue.configure(db, kept_attempts=2, traceback_bytes=5)
    fail_often(1)
    attempts = info_of(db, queue, item).failed_attempts
    assert [(each.number, each.traceback[-4:]) for each in attempts] == [
        (30, " 16\n"),
        (31, "r 0\n"),
    ]
    assert [len(each.traceback) <= 5 for each in attempts] == [False, True]
    assert attempts_left(db, queue) == 2
    queue.configure(db, traceback_bytes=0)
    fail_often(1)
    assert info_of(db, queue, item).failed_attempts[-1].traceback is None
    options = queue.options(db)
    assert (options.kept_attempts, options.traceback_bytes) == (2, 0)
    assert PriorityQueue.named(db, queue.subspace).options(db) == options
    queue.configure(db, traceback_bytes=8_000)
    error = ValueError("é" * 10_000 + "the end")
    queue.nack(db, queue.claim(db), error=error)
    text = info_of(db, queue, item).failed_attempts[-1].traceback
    assert len(text.encode()) <= 8_000
    assert text.endswith("the end\n")


def test_a_retried_dead_letter_keeps_its_failed_attempts_and_who_retried_it(
    db: Any, name: str
) -> None:
    queue = PriorityQueue.named(db, name, max_attempts=2, keep=10)
    item = queue.push(db, "job")
    for error in ("no such host", "busy"):
        queue.nack(db, queue.claim(db), delay=0, error=error)
    assert queue.retry(db, item, by="ada@office")
    moved = queue.update(db, item, priority=5)
    info = info_of(db, queue, item)
    assert (info.state, info.attempts, info.error) == ("ready", 0, "busy")
    for attempt in (1, 2):
        claim = queue.claim(db)
        assert claim.attempt == attempt
        queue.nack(db, claim, delay=0, error="still busy")
    assert info_of(db, queue, item).state == "dead"
    assert queue.retry(db, item)
    failed = info_of(db, queue, item).failed_attempts
    assert [attempt.number for attempt in failed] == [1, 2, 3, 4]
    assert [attempt.error for attempt in failed] == ["no such host", "busy", *["still busy"] * 2]
    assert [attempt.retried_by for attempt in failed] == [
        *(None, "ada@office", None, clock.client_name())
    ]
    assert failed[0].retried_at is None
    assert failed[1].ended_at <= failed[1].retried_at <= failed[2].ended_at
    queue.ack(db, queue.claim(db))
    info = info_of(db, queue, moved)
    assert (info.state, info.error, len(info.failed_attempts)) == ("done", None, 4)
    assert fdbqueue.admin.check(db, queue).ok
    assert queue.remove(db, moved)
    assert attempts_left(db, queue) == 0


def test_an_attempt_shows_what_a_command_wrote_to_standard_error(
    db: Any, queue: PriorityQueue
) -> None:
    item = queue.push(db, "job")
    failed = subprocess.CalledProcessError(1, ["send"], stderr=b"no such host \xff\n")
    queue.nack(db, queue.claim(db), error=failed)
    (attempt,) = info_of(db, queue, item).failed_attempts
    assert attempt.traceback.endswith("Standard error:\nno such host \ufffd\n")
