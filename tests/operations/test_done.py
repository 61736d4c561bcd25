"""Done items that a queue keeps, and the results of their handlers."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue, TaskQueue, Worker
from fdbqueue.coordination import combiner, sweeper
from fdbqueue.errors import InvalidItemId, InvalidValue, LeaseLost, NoResult, PayloadTooLarge
from fdbqueue.testing import Clock
from tests.support.keys import number_in
from tests.support.kinds import KINDS, push
from tests.support.scan import assert_views_agree


def finish(db: Any, queue: Any, n: int, result: Any = None) -> list[str]:
    """Push, claim and acknowledge `n` items; return their ids."""
    ids = [push(db, queue, number) for number in range(n)]
    for _ in range(n):
        queue.ack(db, queue.claim(db), result=result)
    return ids


def done_ids(db: Any, queue: Any, **options: Any) -> list[str]:
    return [info.id for info in queue.items(db, state="done", **options)]


def trim(db: Any, queue: Any, clock: Clock) -> None:
    """Let the process trim, which it does once a second when it claims."""
    clock.advance(1)
    assert queue.claim(db) is None


@pytest.mark.parametrize("kind", KINDS)
def test_an_acknowledged_item_is_done_and_keeps_its_id(db: Any, name: str, kind: Any) -> None:
    queue = kind.named(db, name, keep=100)
    item_id = push(db, queue, "job")
    queue.nack(db, queue.claim(db), delay=0, error="busy")
    before = time.time()
    queue.ack(db, queue.claim(db), result={"sent": 1})
    stats = assert_views_agree(db, queue)
    assert (stats.done, stats.total_completed, stats.is_empty) == (1, 1, True)
    assert queue.state(db, item_id) == "done"
    info = queue.get(db, item_id)
    assert (info.state, info.attempts, info.result) == ("done", 2, {"sent": 1})
    assert before - 1 < info.finished_at.timestamp() < time.time() + 1
    assert [attempt.error for attempt in info.failed_attempts] == ["busy"]
    value = info.item.payload if kind is TaskQueue else info.item.value
    assert value == "job"
    assert queue.result(db, item_id) == {"sent": 1}
    assert queue.claim(db) is None
    assert queue.position(db, item_id) is None


@pytest.mark.parametrize("kind", KINDS)
def test_done_items_are_listed_newest_first(db: Any, name: str, kind: Any) -> None:
    queue = kind.named(db, name, keep=timedelta(days=1))
    ids = finish(db, queue, 6)
    listed = done_ids(db, queue)
    assert sorted(listed) == sorted(ids)
    times = [info.finished_at for info in queue.items(db, state="done")]
    assert times == sorted(times, reverse=True)
    assert done_ids(db, queue, reverse=True) == listed[::-1]
    assert done_ids(db, queue, limit=2) == listed[:2]
    assert done_ids(db, queue, after=listed[1], limit=2) == listed[2:4]
    assert done_ids(db, queue, after=listed[4], reverse=True) == listed[:4][::-1]
    assert done_ids(db, queue, after=listed[-1]) == []
    waiting = push(db, queue, "waits")
    with pytest.raises(InvalidItemId):
        done_ids(db, queue, after=waiting)

    @fdbqueue.transactional
    def listed_in(tr: Any) -> list[str]:
        return done_ids(tr.snapshot, queue, limit=3)

    assert listed_in(db) == listed[:3]


# What is kept


def test_the_last_items_are_kept(
    db: Any, name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "_MAX_TRIMMED", 4)
    queue = PriorityQueue.named(db, name, keep=3)
    ids = finish(db, queue, 10)
    trim(db, queue, clock)
    assert sorted(done_ids(db, queue)) == sorted(ids[-3:])
    assert assert_views_agree(db, queue).done == 3
    assert queue.state(db, ids[0]) is None
    queue.configure(db, keep=1)
    trim(db, queue, clock)  # its claim reads the new number, and the next one obeys it
    trim(db, queue, clock)
    assert done_ids(db, queue) == ids[-1:]
    assert done_ids(db, queue, after=ids[0]) == []  # a page that has been trimmed
    queue.configure(db, keep=None)
    trim(db, queue, clock)
    trim(db, queue, clock)
    assert done_ids(db, queue) == []
    finish(db, queue, 1)
    assert assert_views_agree(db, queue).done == 0
    assert number_in(db, queue, "done", "done_times", "attempts", "pieces") == 0


@pytest.mark.parametrize(
    ("keep", "left"),
    [(timedelta(seconds=2), 2), ((timedelta(seconds=2), 1), 1), ((timedelta(days=1), 3), 3)],
)
def test_items_are_kept_for_a_time(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch, keep: Any, left: int, clock: Clock
) -> None:
    queue = PriorityQueue.named(db, name, keep=keep)
    finish(db, queue, 4)
    now = time.time_ns() // 10**6
    monkeypatch.setattr(sweeper, "milliseconds", lambda: now + 2500)
    monkeypatch.setattr(combiner, "milliseconds", lambda: now + 1000)
    ids = finish(db, queue, 2)
    trim(db, queue, clock)
    assert len(done_ids(db, queue)) == left
    assert {*done_ids(db, queue)[:1]} <= {*ids}


def test_a_process_that_soon_ends_trims_too(db: Any, name: str) -> None:
    for _ in range(5):
        finish(db, PriorityQueue.named(db, name, keep=3), 4)  # as a new process
    assert PriorityQueue.named(db, name).stats(db).done <= 3 + 4


# Results


@pytest.mark.parametrize("in_transaction", [False, True])
@pytest.mark.parametrize(
    ("returned", "error"), [({1, 2}, "InvalidValue"), ("x" * 90_001, "PayloadTooLarge")]
)
def test_a_job_whose_result_cannot_be_stored_is_not_tried_again(
    db: Any, name: str, returned: Any, error: str, in_transaction: bool
) -> None:
    queue = PriorityQueue.named(db, name, keep=100)
    item = queue.push(db, 1)

    with_tr, without = (lambda tr, item: returned), (lambda item: returned)
    handler: Any = with_tr if in_transaction else without
    assert Worker(db, queue, handler, store_results=True).run(drain=True).failed == 1
    info = queue.get(db, item)
    assert info.state == "dead"
    assert error in str(info.error)
    with pytest.raises(NoResult, match="it is a dead letter") as caught:
        queue.result(db, item)
    assert caught.value.error == info.error


def test_an_acknowledgement_checks_its_result(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name, keep=100)
    item = queue.push(db, 1)
    claim = queue.claim(db)
    with pytest.raises(InvalidValue):
        queue.ack(db, claim, result={1})
    with pytest.raises(PayloadTooLarge):
        queue.ack(db, claim, result="x" * 90_000)
    assert queue.state(db, item) == "claimed"

    @fdbqueue.transactional
    def body(tr: Any) -> None:
        queue.ack(tr, claim, result="in a transaction")

    body(db)
    assert queue.result(db, item) == "in a transaction"
    with pytest.raises(LeaseLost):
        queue.ack(db, claim, result="again")
    assert queue.result(db, item) == "in a transaction"


def test_a_claim_of_large_items_has_room_for_results_and_logs(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name, keep=1000)
    for _ in range(4):
        queue.push_many(db, ["x" * 9_990] * 80)
    claim = queue.claim(db, n=1000)
    n = len(claim)
    result, log = "x" * (6_500_000 // n - 8_010), "l" * 8_000
    with pytest.raises(PayloadTooLarge, match="a claim holds at most 6,500,000"):
        queue.ack(db, claim, result=result + "x" * 100, log=log)
    queue.ack(db, claim, result=result, log=log)
    assert queue.stats(db).done == n


@pytest.mark.parametrize("end", ["done", "moved and done", "dead"])
def test_a_result_is_waited_for(db: Any, name: str, end: str, asleep: threading.Event) -> None:
    """The waiting client is woken: it would sleep for ten minutes."""
    queue = PriorityQueue.named(db, name, keep=100, max_attempts=1)
    item = queue.push(db, 1)
    with ThreadPoolExecutor(1) as threads:
        other = PriorityQueue.existing(db, name)
        waits = threads.submit(other.result, db, item.id, wait=500)
        assert asleep.wait(60)
        if end == "moved and done":
            asleep.clear()
            assert queue.update(db, item, priority=1)
            assert asleep.wait(60)  # it looked, and sleeps again
        claim = queue.claim(db)
        if end == "dead":
            queue.nack(db, claim, error="broken")
            with pytest.raises(NoResult, match="broken"):
                waits.result(60)
        else:
            queue.ack(db, claim, result="done")
            assert waits.result(60) == "done"


def test_a_result_that_is_not_there_says_why(db: Any, jobs: Any) -> None:
    item = jobs.push(db, 1)
    with pytest.raises(NoResult, match="it is ready, not done yet") as caught:
        jobs.result(db, item, wait=0.01)
    assert (caught.value.id, caught.value.state) == (item.id, "ready")
    jobs.pop(db)
    with pytest.raises(NoResult, match="the queue does not know it"):
        jobs.result(db, item)
    with pytest.raises(InvalidItemId):
        jobs.result(db, "no id")
    with pytest.raises(ValueError, match="given a database"):
        jobs.result(db.create_transaction(), item, wait=1)
