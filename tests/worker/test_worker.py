"""Each job takes effect exactly once, even if workers are killed or stopped."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import threading
import time
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue, Worker, WorkerReport
from fdbqueue.admin import check
from fdbqueue.coordination import store
from fdbqueue.database import clock
from fdbqueue.layout.values import utc_time
from fdbqueue.testing import FaultyDatabase
from fdbqueue.worker import claiming
from tests.support.leases import come_due, lapse, let_versions_pass
from tests.support.waiting import MAX_WAIT, wait_until
from tests.support.workers import make_quick

LEASE = 3.0
"""Seconds. A worker extends a lease after a third, so a busy machine has two thirds left."""


def test_a_handler_gets_each_item_in_order(db: Any, queue: PriorityQueue) -> None:
    queue.push_many(db, "abc", priorities=[3, 1, 2])
    seen: list[Any] = []
    report = Worker(db, queue, seen.append).run(drain=True)
    assert report == WorkerReport(done=3)
    assert [item.value for item in seen] == ["b", "c", "a"]
    assert check(db, queue) == fdbqueue.admin.CheckReport(0, 0, 0, 0, 0, (), False)


def test_a_transaction_that_takes_long_lets_others_begin(db: Any, queue: PriorityQueue) -> None:
    queue.push_many(db, range(2))
    began: set[int] = set()

    def handle(tr: fdbqueue.Transaction, item: fdbqueue.Item) -> None:
        began.add(item.value)
        wait_until(lambda: len(began) == 2)

    report = Worker(db, queue, handle, concurrency=2).run(drain=True)
    assert report == WorkerReport(done=2)


def test_a_transactional_handler_commits_together_with_its_ack(
    db: Any, queue: PriorityQueue, space: Subspace, rng: random.Random
) -> None:
    """Bodies run again, conflict and lose replies, while others run, but every job counts once."""
    db.options.set_transaction_max_retry_delay(1)
    faulty = FaultyDatabase(db, before=0.1, after=0.1, conflict=0.1, seed=rng.randrange(2**32))
    queue.push_many(db, range(1, 101))
    key = space["read and written by all"].key()

    def add(tr: Any, item: Any) -> None:
        tr[key] = b"%d" % (int(tr[key].value or b"0") + item.value)
        tr.add(space["done"][item.value], b"\x01")

    assert Worker(faulty, queue, add, concurrency=4).run(drain=True) == WorkerReport(done=100)
    assert int(db[key]) == 5050
    assert [row.value for row in db[space["done"].range()]] == 100 * [b"\x01"]
    assert faulty.lost > 0


def test_a_failing_job_becomes_a_dead_letter_and_does_not_block_others(
    db: Any, space: Subspace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "retry_delay", lambda _: 600.0)  # seconds, which no drain takes
    queue = PriorityQueue(space["queue"], max_attempts=2)
    queue.push_many(db, ["good", "bad", "exit", "good too"])

    def handler(item: Any) -> None:
        if item.value == "bad":
            raise RuntimeError("no such address")
        if item.value == "exit":
            sys.exit(3)

    with caplog.at_level(logging.INFO, "fdbqueue.worker"):
        assert Worker(db, queue, handler).run(drain=True) == WorkerReport(done=2, failed=2)
        assert "failed, attempt 1" in caplog.text
        assert "RuntimeError: no such address" in caplog.text
    assert queue.stats(db).delayed == 2
    come_due(db, queue)
    assert Worker(db, queue, handler).run(drain=True).failed == 2
    letters = {letter.item.value: letter.error for letter in queue.items(db, state="dead")}
    assert letters == {"bad": "RuntimeError: no such address", "exit": "SystemExit: 3"}
    advice = [each.message for each in caplog.records if "the last attempt" in each.message]
    assert len(advice) == 2
    assert "`fdbq retry` makes it ready again" in advice[0]


def test_the_lease_of_a_long_job_is_extended(db: Any, queue: PriorityQueue) -> None:
    def handler(item: Any) -> None:
        let_versions_pass(db, LEASE * 1.2)
        assert PriorityQueue(queue.subspace).claim(db) is None  # no other client gets it

    queue.push(db, "long")
    assert Worker(db, queue, handler, lease=LEASE).run(drain=True) == WorkerReport(done=1)


def test_undecodable_items_do_not_block_the_other_items(
    db: Any, space: Subspace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "retry_delay", lambda _: 600.0)  # seconds, which no drain takes
    queue = PriorityQueue(space["queue"], max_attempts=2)
    items = queue.push_many(db, range(6))
    for item in items[:3]:
        db[item.key] = b"no JSON"
    seen: list[Any] = []
    worker = Worker(db, queue, lambda item: seen.append(item.value))
    with caplog.at_level(logging.WARNING, "fdbqueue"):
        assert worker.run(drain=True).done == 3
    assert seen == [3, 4, 5]
    assert items[0].id in caplog.text
    assert {queue.state(db, item) for item in items[:3]} == {"delayed"}
    come_due(db, queue)
    assert fdbqueue.transactional(lambda tr: queue.claim(tr))(db) is None
    assert queue.claim(db) is None
    letters = list(queue.items(db, state="dead"))
    assert [letter.id for letter in letters] == [item.id for item in items[:3]]
    assert {(letter.item, letter.attempts) for letter in letters} == {(None, 2)}
    assert "cannot be decoded" in str(letters[0].error)


def test_a_worker_stopped_past_its_lease_leaves_the_job_to_another_worker(
    db: Any, queue: PriorityQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "_AHEAD", 1000.0)
    queue.push_many(db, ["first", "claimed ahead"])
    seen: list[Any] = []

    def handler(item: Any) -> None:
        seen.append(item.value)
        if item.value == "first":  # as if the process had been stopped in the middle of it
            wait_until(lambda: len(worker._pool.held) == 2)
            lapse(db, queue)
            other = PriorityQueue(queue.subspace)
            claim = other.claim(db, n=2)
            other.ack(db, claim)
            for job in worker._pool.all():
                job.lease.seconds = 0.0

    worker = Worker(db, queue, handler, concurrency=1)
    make_quick(worker, 1)
    assert worker.run(drain=True) == WorkerReport(lost=2)
    assert seen == ["first"]


def test_a_worker_extends_its_leases_once_its_machine_has_slept(
    db: Any, queue: PriorityQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.push(db, "a job")

    def handler(_: Any) -> None:
        monkeypatch.setattr(clock, "time_ns", lambda: time.time_ns() + 10**13)
        now = utc_time(clock.milliseconds())
        wait_until(lambda: all((each.lease_ends or now) > now for each in queue.items(db)))

    worker = Worker(db, queue, handler, lease=9_000)
    assert worker.run(drain=True) == WorkerReport(done=1)


LIMITS: dict[str, Any] = {
    # A job that kills its worker must not cost other items an attempt.
    "have failed before": lambda db, queue: queue.nack(db, queue.claim(db, n=30), delay=0),
    "have one attempt": lambda db, queue: queue.configure(db, max_attempts=1),
    # What goes back must not use up a start.
    "have a rate": lambda db, queue: queue.configure(db, rate=(1_000, "1h")),
    "group has a rate": lambda db, queue: queue.set_group(db, "g", rate=(1_000, "1h")),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_nothing_is_claimed_ahead_that_would_lose_by_it(
    db: Any, queue: PriorityQueue, limit: str
) -> None:
    queue.push_many(db, range(30), groups=["g"] * 30)
    LIMITS[limit](db, queue)
    held: list[int] = []
    worker: Worker = Worker(db, queue, lambda _: held.append(len(worker._pool.held)), concurrency=2)
    assert worker.run(drain=True).done == 30
    assert max(held) <= 2
    assert queue.stats(db).dead == 0


def test_a_job_that_cannot_be_acknowledged_does_not_keep_others_from_it(
    db: Any, queue: PriorityQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs are acknowledged together, and alone if that fails."""
    acknowledge, together = store.Store.ack_each, list[int]()
    meeting = threading.Barrier(5, timeout=MAX_WAIT)

    def fail(self: Any, db: Any, requests: Any) -> Any:
        together.append(len(requests))
        if len(together) == 1:
            wait_until(lambda: len(requests) + len(worker._endings._returned) == 5)
        if "broken" in [request.claim.item.value for request in requests]:
            raise ValueError("broken")
        return acknowledge(self, db, requests)

    monkeypatch.setattr(store.Store, "ack_each", fail)
    queue.push_many(db, [1, 2, "broken", 3, 4])
    worker = Worker(db, queue, lambda _: meeting.wait(), concurrency=5)
    assert worker.run(drain=True) == WorkerReport(done=4, failed=1)
    assert max(together) > 1


def test_a_returned_awaitable_is_awaited_and_other_results_are_reported(
    db: Any, queue: PriorityQueue, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []

    async def send(item: Any) -> None:
        await asyncio.sleep(0.001)
        seen.append(item.value)

    class Sender:
        async def __call__(self, item: Any) -> None:
            await send(item)

    def generate(item: Any) -> Any:
        yield seen.append(item.value)

    for number, handler in enumerate((lambda item: send(item), Sender(), generate)):
        queue.push(db, number)
        report = Worker(db, queue, handler).run(drain=True)
        assert (report.done, report.failed) == ((0, 1) if handler is generate else (1, 0))
    assert seen == [0, 1]
    assert "returned a generator" in caplog.text


def test_what_a_claim_of_many_must_not_keep_ahead_goes_back(db: Any, queue: PriorityQueue) -> None:
    queue.configure(db, max_attempts=1)
    queue.push_many(db, range(8))
    worker: Worker = Worker(db, queue, lambda _: None, concurrency=2)
    make_quick(worker, 8, 1e-6)  # so that the first claim is of many
    assert worker.run(drain=True) == WorkerReport(done=8)
    assert queue.stats(db).claimed == 0


def test_a_stopped_worker_does_not_retry_transactions(db: Any, queue: PriorityQueue) -> None:
    queue.push(db, 1)

    def conflicts(tr: Any, item: Any) -> None:
        worker.stop()
        raise fdbqueue.FDBError(1020)

    worker = Worker(db, queue, conflicts)
    assert worker.run() == WorkerReport()
    assert queue.claim(db).attempt == 1


def test_invalid_worker_arguments_are_rejected(db: Any, queue: PriorityQueue) -> None:
    async def coroutine(tr: Any, item: Any) -> None:
        """A coroutine cannot be the body of a transaction."""

    bad: Any
    for bad in (
        lambda: Worker(None, queue, print),
        lambda: Worker(db, None, print),
        lambda: Worker(db, queue, "print"),
        lambda: Worker(db, queue, coroutine),
        lambda: Worker(db, queue, lambda: None),
        lambda: Worker(db, queue, lambda tr: None),
        lambda: Worker(db, queue, lambda one, two: None),
        lambda: Worker(db, queue, print, concurrency=0),
        lambda: Worker(db, queue, print, lease=0),
        *[lambda wrong=wrong: Worker(db, queue, print, name=wrong) for wrong in ("", "a\nb", 7)],
        *[lambda wrong=wrong: Worker(db, queue, print, timeout=wrong) for wrong in (0, "soon")],
    ):
        with pytest.raises((TypeError, ValueError)):
            bad()
