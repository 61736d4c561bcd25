"""The history of a queue: what happened within the last 5 minutes, hour and day."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue, Queue
from fdbqueue.database import clock
from fdbqueue.layout.values import TIME_BOUNDS
from fdbqueue.types import HistoryBucket, HistoryWindow
from tests.support.counting import CountingDatabase
from tests.support.keys import layout_of, number_in
from tests.support.kinds import KINDS, push
from tests.support.leases import lapse

MINUTE, HOUR, DAY = 60, 3_600, 86_400
NOON = 1_900_800_000  # a multiple of a day


class Clock:
    """The clock of this machine, which stands still unless a test moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = float(NOON)
        monkeypatch.setattr(clock, "nanoseconds", lambda: int(self.time * 10**9))

    def passes(self, seconds: float) -> None:
        self.time += seconds


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def numbers(window: HistoryWindow | HistoryBucket) -> tuple[int, int, int, int, int]:
    return window.pushed, window.taken, window.completed, window.failed, window.died


@pytest.mark.parametrize("kind", KINDS)
def test_every_change_of_the_totals_counts_in_each_window(
    db: Any, name: str, now: Clock, kind: Any
) -> None:
    queue = kind.named(db, name)
    queue.configure(db, max_attempts=2)
    for number in range(6):
        push(db, queue, number)
    queue.dequeue(db) if kind is Queue else queue.pop(db)
    queue.ack(db, queue.claim(db))
    queue.release(db, queue.claim(db))
    for _ in range(2):
        queue.nack(db, queue.claim(db), delay=0, error="busy")
    windows = queue.history(db)
    assert [window.seconds for window in windows] == [5 * MINUTE, HOUR, DAY]
    assert [*map(numbers, windows)] == [(6, 5, 2, 2, 1)] * 3
    now.time += 5 * MINUTE
    assert [*map(numbers, queue.history(db))] == [(0,) * 5, (6, 5, 2, 2, 1), (6, 5, 2, 2, 1)]
    now.time += HOUR
    assert [*map(numbers, queue.history(db))] == [(0,) * 5, (0,) * 5, (6, 5, 2, 2, 1)]
    now.time += DAY
    assert [*map(numbers, queue.history(db))] == [(0,) * 5] * 3


def test_a_busy_client_pays_once_in_a_period(db: Any, queue: PriorityQueue, now: Clock) -> None:
    counting = CountingDatabase(db)

    def cost() -> int:
        """Return how many keys of the history a push, a claim and an acknowledgement write."""
        counting.clear()
        now.time += 0.1
        queue.push(counting, "x")
        queue.ack(counting, queue.claim(counting))
        prefix = layout_of(queue).history
        return sum(bytes(key).startswith(prefix) for key in counting.mutations)

    assert [cost() for _ in range(3)][2] == 0
    now.time += 5
    assert cost() == 2  # a client notes a waiting time and a run time once a second
    now.time += 30
    assert cost() == 4


def test_the_history_takes_a_bounded_number_of_keys(
    db: Any, queue: PriorityQueue, now: Clock
) -> None:
    for _ in range(200):
        queue.push(db, "x")
        now.time += 30
    assert number_in(db, queue, "samples") <= 121 + 97
    for _ in range(110):
        queue.push(db, "x")
        now.time += 15 * MINUTE
    assert number_in(db, queue, "samples") <= 121 + 97
    assert queue.history(db)[2].pushed == 95
    now.time += 10 * DAY
    queue.push(db, "x")
    assert number_in(db, queue, "samples") == 2


def fail(db: Any, queue: PriorityQueue, **options: Any) -> None:
    queue.push(db, "x")
    queue.nack(db, queue.claim(db), **options)


WAITS: dict[str, Callable[[Any, PriorityQueue, Clock], object]] = {
    "push": lambda db, queue, now: queue.push(db, "x"),
    "end of the delay": lambda db, queue, now: (queue.push(db, "x", delay=HOUR), now.passes(HOUR)),
    "failure": lambda db, queue, now: fail(db, queue, delay=0),
    "retry of a dead letter": lambda db, queue, now: (
        fail(db, queue, dead=True),
        now.passes(HOUR),
        queue.change_all(db, "retry", state="dead"),
    ),
}


@pytest.mark.parametrize("begin", WAITS)
def test_an_item_waits_from_when_it_became_ready(
    db: Any, queue: PriorityQueue, now: Clock, begin: str
) -> None:
    WAITS[begin](db, queue, now)
    now.passes(6 * MINUTE)  # so that the last five minutes have one wait
    assert PriorityQueue(queue.subspace).pop(db) is not None  # as another process opens it
    assert queue.history(db)[0].waiting_median == pytest.approx(6 * MINUTE, rel=0.2)


@pytest.mark.parametrize("end", ["ack", "nack", "lease"])
def test_an_attempt_runs_from_its_claim_until_its_end(
    db: Any, queue: PriorityQueue, now: Clock, end: str
) -> None:
    """A lease ends when it is found to be over."""
    queue.push(db, "x")
    claim = queue.claim(db)
    now.passes(90)
    if end == "lease":
        lapse(db, queue)
        assert PriorityQueue(queue.subspace).claim(db) is not None  # as another process opens it
    else:
        getattr(queue, end)(db, claim)
    minutes = queue.history(db)[0]
    assert minutes.running_median == pytest.approx(90, rel=0.2)
    assert minutes.running_p95 is not None
    assert 90 < minutes.running_p95 < 1.5 * 90
    now.passes(5 * MINUTE)
    assert queue.history(db)[0].running_median is None


def test_the_median_and_the_95th_percentile_of_waits(
    db: Any, queue: PriorityQueue, now: Clock
) -> None:
    for n, seconds in ((90, 10), (10, 100)):
        queue.push_many(db, range(n))
        now.passes(seconds)
        assert len(queue.pop_many(db, n)) == n
    minutes = queue.history(db)[0]
    assert minutes.waiting_median == pytest.approx(10, rel=0.2)
    assert minutes.waiting_p95 == pytest.approx(100, rel=0.2)
    queue.push(db, "x")
    now.passes(90 * DAY)
    assert queue.pop(db) is not None
    assert queue.history(db)[0].waiting_median == TIME_BOUNDS[-1] / 1000  # the longest time


def test_a_cleared_queue_begins_its_history_again(
    db: Any, queue: PriorityQueue, now: Clock
) -> None:
    queue.push_many(db, range(3))
    now.passes(10)
    for n in (1, 2):
        queue.clear(db)
        assert queue.history(db)[0].pushed == 0
        queue.push_many(db, range(n))
        assert [window.pushed for window in queue.history(db)] == [n] * 3


def test_a_transaction_that_fails_leaves_the_sample_to_the_next_one(
    db: Any, queue: PriorityQueue, now: Clock
) -> None:
    queue.push(db, "x")
    now.time += MINUTE

    @fdbqueue.transactional
    def push_twice_and_fail(tr: Any) -> None:
        queue.push(tr, "x")
        queue.push(tr, "x")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        push_twice_and_fail(db)
    queue.push(db, "x")
    queue.push(db, "x")
    buckets = queue.history(db)[0].buckets
    assert [(bucket.begin.timestamp() - NOON, bucket.pushed) for bucket in buckets] == [
        (0, 1),
        (MINUTE, 2),
    ]
