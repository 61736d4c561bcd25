"""Schedules: each tick is pushed once, and what becomes of late and overlapping ones."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

import fdbqueue
from fdbqueue.testing import Clock
from fdbqueue.types import Database, Missed, Overlap

HOUR = timedelta(hours=1)


@pytest.fixture
def queue(db: Database, name: str) -> fdbqueue.PriorityQueue[Any]:
    return fdbqueue.PriorityQueue.named(db, name)


def ticks_of(queue: fdbqueue.PriorityQueue[Any], db: Database) -> list[datetime]:
    """Pop everything, and return the ticks of the items."""
    ticks: list[datetime] = []
    while (item := queue.pop(db)) is not None:
        assert item.tick is not None
        ticks.append(item.tick)
    return ticks


def next_hour(clock: Clock) -> datetime:
    return clock.now().replace(minute=0, second=0, microsecond=0) + HOUR


def to(clock: Clock, time: datetime) -> None:
    """Move the clock to a time."""
    clock.advance(time - clock.now())


def test_a_tick_is_pushed_once_it_is_due(
    db: Database, queue: fdbqueue.PriorityQueue[Any], clock: Clock
) -> None:
    queue.schedules.add(db, "hourly", {"of": "sales"}, 3, every="1h")
    first = next_hour(clock)
    assert queue.pop(db) is None
    to(clock, first)
    item = queue.pop(db)
    assert (item.value, item.priority, item.tick) == ({"of": "sales"}, 3, first)
    assert queue.pop(db) is None
    schedule = queue.schedules.get(db, "hourly")
    assert schedule.next_ticks(2) == [first + HOUR, first + 2 * HOUR]
    assert (schedule.last_tick, schedule.next_tick) == (first, first + HOUR)
    assert (schedule.last_item, schedule.pushed) == (item.id, 1)


@pytest.mark.parametrize(
    ("missed", "expected"),
    [("latest", [5]), ("skip", []), ("all", [1, 2, 3, 4, 5])],
)
def test_ticks_that_nobody_found_in_time(
    db: Database,
    queue: fdbqueue.PriorityQueue[Any],
    clock: Clock,
    missed: Missed,
    expected: list[int],
) -> None:
    queue.schedules.add(db, "hourly", "tick", every="1h", missed=missed)
    first = next_hour(clock)
    to(clock, first + 4.5 * HOUR)
    assert ticks_of(queue, db) == [first + (n - 1) * HOUR for n in expected]
    to(clock, first + 5 * HOUR)
    assert ticks_of(queue, db) == [first + 5 * HOUR]


def test_of_very_many_missed_ticks_the_last_thousand_are_pushed(
    db: Database, queue: fdbqueue.PriorityQueue[Any], clock: Clock
) -> None:
    queue.schedules.add(db, "seconds", "tick", every="1s", missed="all")
    clock.advance("1d")
    while queue.size(db) < 1000:
        pass  # each call pushes some of them
    ticks = [item.tick for item in queue.items(db)]
    assert len(ticks) < 2000  # some seconds may pass meanwhile
    assert ticks[0] is not None
    assert ticks == [ticks[0] + n * timedelta(seconds=1) for n in range(len(ticks))]


def test_a_tick_that_does_not_overlap_is_skipped(
    db: Database, queue: fdbqueue.PriorityQueue[Any], clock: Clock
) -> None:
    queue.schedules.add(db, "hourly", "tick", every="1h", overlap="skip")
    clock.advance("1h")
    failed = queue.claim(db)
    queue.nack(db, failed, delay="1h")  # which is not its end
    clock.advance("1h")
    claim = queue.claim(db, lease="5h")
    assert (claim.item.id, claim.item.tick) == (failed.item.id, failed.item.tick)
    assert queue.claim(db) is None
    queue.ack(db, claim)
    assert queue.claim(db) is None
    clock.advance("1h")
    assert queue.claim(db) is not None
    schedule = queue.schedules.get(db, "hourly")
    assert (schedule.pushed, schedule.skipped) == (2, 1)


@pytest.mark.parametrize("end", ["ack", "pop"])
def test_a_queued_tick_is_pushed_when_the_last_item_has_ended(
    db: Database, queue: fdbqueue.PriorityQueue[Any], clock: Clock, end: str
) -> None:
    queue.schedules.add(db, "hourly", "tick", every="1h", overlap="queue")
    first = next_hour(clock)
    to(clock, first)
    claim = queue.claim(db, lease="5h")
    assert claim is not None
    if end == "pop":
        queue.release(db, claim)
    to(clock, first + 2.5 * HOUR)
    if end == "ack":
        assert queue.claim(db) is None
        queue.ack(db, claim)
    else:
        assert queue.pop(db) == claim.item
    item = queue.pop(db, wait=30)  # a pop without a wait may have swept a moment ago
    assert item.tick == first + 2 * HOUR


def test_a_paused_schedule_pushes_and_misses_nothing_and_a_removed_one_is_gone(
    db: Database, queue: fdbqueue.PriorityQueue[Any], clock: Clock
) -> None:
    queue.schedules.add(db, "hourly", "tick", every="1h", missed="all")
    assert queue.schedules.pause(db, "hourly")
    clock.advance("3h")
    assert queue.pop(db) is None
    paused = queue.schedules.get(db, "hourly")
    assert paused.paused
    assert paused.next_tick is None
    assert paused.next_ticks(3) == []
    assert queue.schedules.resume(db, "hourly")
    assert queue.pop(db) is None
    expected = next_hour(clock)
    to(clock, expected)
    assert ticks_of(queue, db) == [expected]
    assert [queue.schedules.remove(db, "hourly") for _ in range(2)] == [True, False]
    assert queue.schedules.run_now(db, "hourly") is None
    clock.advance("2h")
    assert queue.pop(db) is None


def test_a_new_definition_keeps_the_state_and_a_new_timing_the_grid(
    db: Database, queue: fdbqueue.PriorityQueue[Any], clock: Clock
) -> None:
    queue.schedules.add(db, "hourly", "one", every="1h")
    to(clock, next_hour(clock))
    assert len(ticks_of(queue, db)) == 1
    queue.schedules.add(db, "hourly", "two", every="1h")
    changed = queue.schedules.get(db, "hourly")
    assert (changed.value, changed.pushed, changed.next_tick) == ("two", 1, next_hour(clock))
    queue.schedules.add(db, "hourly", "two", cron="30 * * * *")
    changed = queue.schedules.get(db, "hourly")
    assert changed.next_tick is not None
    assert changed.next_tick.minute == 30
    clock.advance("1h")
    assert [tick.minute for tick in ticks_of(queue, db)] == [30]
    queue.clear(db)  # which keeps schedules
    clock.advance("1h")
    assert len(ticks_of(queue, db)) == 1


def test_a_full_queue_skips_a_tick(db: Database, name: str, clock: Clock) -> None:
    queue = fdbqueue.PriorityQueue[Any].named(db, name, max_size=1)
    queue.push(db, "in the way")
    queue.schedules.add(db, "hourly", "tick", every="1h")
    clock.advance("1h")
    claim = queue.claim(db)
    assert claim.item.value == "in the way"
    schedule = queue.schedules.get(db, "hourly")
    assert (schedule.pushed, schedule.skipped) == (0, 1)
    assert queue.counts(db) == {}


@pytest.mark.parametrize("overlap", ["allow", "queue"])
def test_a_check_repairs_a_lost_timer(
    db: Database, queue: fdbqueue.PriorityQueue[Any], clock: Clock, overlap: Overlap
) -> None:
    queue.schedules.add(db, "hourly", "tick", every="1h", overlap=overlap)
    clock.advance("1h")
    claim = queue.claim(db, lease="9h")
    clock.advance("1h")
    queue.claim(db)
    assert fdbqueue.admin.check(db, queue).problems == ()
    queue.ack(db, claim)
    db.clear_range_startswith(queue.subspace.pack((19,)))
    assert len(fdbqueue.admin.check(db, queue, repair=True).problems) == 1
    clock.advance("1h")
    assert queue.pop(db) is not None


@pytest.mark.parametrize("kind", [fdbqueue.PriorityQueue, fdbqueue.Queue])
def test_the_items_of_a_schedule_are_in_its_group(
    db: Database, name: str, clock: Clock, kind: Any
) -> None:
    queue = kind.named(db, name)
    queue.push_many(db, ["flood"] * 3, group="ada")
    queue.schedules.add(db, "hourly", "tick", every="1h", group="bob")
    assert queue.schedules.get(db, "hourly").group == "bob"
    clock.advance("1h")
    assert [queue.pop(db).value for _ in range(4)] == ["flood", "tick", "flood", "flood"]
    queue.schedules.add(db, "hourly", "tick", every="1h")
    assert queue.schedules.get(db, "hourly").group is None
    clock.advance("1h")
    claim = queue.claim(db, wait=30)  # one without a wait may have swept a moment ago
    assert queue.get(db, claim.item).group is None
