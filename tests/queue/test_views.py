"""All views of a queue agree with a scan of its rows at any moment.

A look at a database sweeps first; a look in a transaction shows what is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue, Queue, TaskQueue
from fdbqueue.errors import InvalidItemId
from fdbqueue.testing import Clock
from tests.support.kinds import KINDS, push
from tests.support.leases import come_due, lapse
from tests.support.scan import assert_views_agree


def left_alone(db: Any, queue: Any) -> list[str]:
    """Leave a lease that is over and an item that is due; return the ids of all three, in order."""
    ids = [push(db, queue, "job", group="ada", **_at(queue, 2)) for _ in range(2)]
    queue.claim(db, n=1)
    first = push(db, queue, "job", delay=600, **_at(queue, 1))
    lapse(db, queue)
    come_due(db, queue)
    return [*ids, first] if isinstance(queue, Queue) else [first, *ids]


def _at(queue: Any, priority: int) -> dict[str, Any]:
    return {} if isinstance(queue, Queue) else {"priority": priority}


LOOKS: dict[str, Callable[[Any, Any], object]] = {
    "peek": lambda db, queue: queue.peek(db),
    "peek_many": lambda db, queue: queue.peek_many(db, 2),
    "size": lambda db, queue: queue.size(db),
    "is_empty": lambda db, queue: queue.is_empty(db),
    "counts": lambda db, queue: queue.counts(db),
    "stats": lambda db, queue: queue.stats(db),
    "items": lambda db, queue: [*queue.items(db)],
    "items in a state": lambda db, queue: [*queue.items(db, state="dead")],
    "search": lambda db, queue: queue.search(db, state="dead"),
    "count": lambda db, queue: queue.count(db, state="dead"),
    "an item": lambda db, queue: queue.get(db, queue.peek(db.create_transaction())),
    "an agent": lambda db, queue: [*queue.get_tasks_for_agent(db, "ada")],
    "all tasks": lambda db, queue: [*queue.get_all_tasks(db)],
    "statistics": lambda db, queue: queue.get_stats(db),
}


@pytest.mark.parametrize("look", LOOKS)
def test_each_look_at_a_database_sweeps(db: Any, name: str, look: str) -> None:
    """It shows what is over and due, although no consumer is alive."""
    queue = TaskQueue.named(db, name)
    left_alone(db, queue)
    LOOKS[look](db, queue)
    stats = queue.stats(db.create_transaction())
    assert (stats.ready, stats.delayed, stats.claimed, stats.total_failed) == (3, 0, 0, 1)
    assert fdbqueue.admin.overview(db)[name].ready == 3


def test_views_of_a_transaction_show_what_is_stored_and_write_nothing(db: Any, name: str) -> None:
    """They say when something is due. A look at many queues does, too."""
    queue = PriorityQueue.named(db, name)
    first, second, third = left_alone(db, queue)
    tr = db.create_transaction()
    reads = tr.snapshot
    assert [item.id for item in queue.items(reads)] == [third]
    assert [item.id for item in queue.peek_many(reads, 2)] == [third]
    assert (queue.size(reads), queue.counts(reads)) == (1, {2: 1})
    now = datetime.now(UTC)
    for stats in (queue.stats(reads), fdbqueue.admin.overview(db)[name]):
        assert (stats.ready, stats.delayed, stats.claimed, stats.total_failed) == (1, 1, 1, 0)
    shown: Any = [queue.stats(reads)]
    shown += [*queue.items(reads, state="delayed"), *queue.items(reads, state="claimed")]
    stored, delayed, claimed = shown
    assert (delayed.id, claimed.id) == (first, second)
    assert max(stored.next_due, delayed.due_at, claimed.lease_ends) < now
    assert queue.state(reads, first) == "delayed"
    assert queue.get(reads, second).state == "claimed"
    assert queue.position(reads, first) is None
    tr.commit().wait()
    assert tr.get_committed_version() == -1


def test_the_timers_of_schedules_and_rates_are_not_the_next_due_item(db: Any, jobs: Any) -> None:
    jobs.configure(db, rate=(1, 60))
    jobs.schedules.add(db, "soon", "x", every=60)
    jobs.push_many(db, ["a", "b"])
    jobs.pop_many(db, 2)
    delayed = jobs.push(db, "c", delay=3600)
    info = jobs.get(db, delayed)
    assert info is not None
    assert jobs.stats(db).next_due == info.due_at


CHANGES: list[tuple[str, str, bool]] = [
    *(("remove", each, True) for each in ("ready", "due", "dead")),
    *(("release", "ready", False), ("retry", "due", False), ("retry", "dead", True)),
]


@pytest.mark.parametrize(("change", "shown", "has_effect"), CHANGES)
def test_changes_find_the_state_that_views_show(
    db: Any, name: str, change: str, shown: str, has_effect: bool
) -> None:
    """Also if no sweep has stored it yet."""
    queue = PriorityQueue.named(db, name, max_attempts=1 if shown == "dead" else None)
    item = queue.push(db, "job", delay=600 if shown == "due" else None)
    if shown == "due":
        come_due(db, queue)
    else:
        queue.claim(db)
        lapse(db, queue)
    tr = db.create_transaction()
    assert getattr(queue, change)(tr, item) is has_effect
    tr.commit().wait()
    state = "ready" if (change, shown) != ("remove", shown) else None
    assert queue.state(db, item) == state
    assert_views_agree(db, queue)


def test_items_that_have_expired_are_not_shown(db: Any, jobs: Any, clock: Clock) -> None:
    jobs.push(db, "gone", 1, ttl=60)
    jobs.push(db, "stays", 2)
    clock.advance(61)
    assert [item.value for item in jobs.items(db)] == ["stays"]
    assert jobs.peek(db).value == "stays"
    stats = assert_views_agree(db, jobs)
    assert (stats.ready, stats.total_expired, stats.by_priority) == (1, 1, {2: 1})
    assert stats.oldest == jobs.pushed_at(jobs.peek(db))
    assert jobs.pop(db).value == "stays"  # and deletes the other one
    assert assert_views_agree(db, jobs).total_expired == 1


@pytest.mark.parametrize("kind", [PriorityQueue, Queue])
def test_items_of_groups_age_too(db: Any, name: str, clock: Clock, kind: Any) -> None:
    queue = kind.named(db, name)
    pushed = []
    for group, ttl in (("ada", 60), ("bob", None), ("ada", None), (None, None)):
        pushed.append(queue.push(db, group, group=group, ttl=ttl))
        clock.advance(1)
    assert queue.stats(db).oldest == queue.pushed_at(pushed[0])
    clock.advance(60)
    for item in pushed[1:]:
        assert queue.stats(db).oldest == queue.pushed_at(item)
        assert queue.remove(db, item)
    assert queue.stats(db).oldest is None


@pytest.mark.parametrize("kind", KINDS)
def test_the_position_of_an_item_counts_the_ready_items_ahead(
    db: Any, name: str, kind: Any
) -> None:
    queue = kind.named(db, name)
    ids = [push(db, queue, number) for number in range(4)]
    queue.nack(db, queue.claim(db, within=1), delay=600)
    held = queue.claim(db, within=1)
    assert [queue.position(db, each) for each in ids] == [None, None, 0, 1]
    come_due(db, queue)
    assert [queue.position(db, each) for each in ids] == [0, None, 1, 2]
    lapse(db, queue)
    assert [queue.position(db, each) for each in ids] == [0, 1, 2, 3]
    assert held is not None


@pytest.mark.parametrize("kind", [PriorityQueue, TaskQueue])
def test_items_in_a_state_are_read_by_pages(db: Any, name: str, kind: Any) -> None:
    queue, n = kind.named(db, name), 150
    for priority in (1, 2):
        if kind is TaskQueue:
            queue.push_many(db, [{"priority": priority, "delay": 600}] * n)
        else:
            queue.push_many(db, range(n), priority, delay=600)
    ids = [info.id for info in queue.items(db, state="delayed")]
    assert len(ids) == len(set(ids)) == 2 * n
    assert [info.id for info in queue.items(db, state="delayed", reverse=True)] == ids[::-1]
    page = [info.id for info in queue.items(db, state="delayed", after=ids[9], limit=3)]
    assert page == ids[10:13]
    before = queue.items(db, state="delayed", after=ids[3], reverse=True)
    assert [info.id for info in before] == ids[2::-1]
    assert len([*queue.items(db, state="delayed", priority=2)]) == n
    come_due(db, queue)
    # Each look makes some of them ready.
    assert [queue.size(db) for _ in range(3)] == [256, 300, 300]
    assert [info.id for info in queue.items(db, state="ready")] == ids
    assert list(queue.items(db, state="delayed")) == []
    with pytest.raises(InvalidItemId):
        [*queue.items(db, state="delayed", after="0" * 32)]
    state: Any = "waiting"
    with pytest.raises(ValueError, match="'dead', 'done', not 'waiting'"):
        queue.items(db, state=state)


def test_an_item_has_the_time_that_its_last_attempt_ran(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name, keep=1)
    item = queue.push(db, {"job": "send", "args": [1], "kwargs": {"to": "ada"}})
    info: Any = queue.get(db, item)
    assert (info.run_time, str(info.job)) == (None, "send(1, to='ada')")
    claim = queue.claim(db)
    assert queue.get(db, item).run_time is None
    queue.nack(db, claim, delay=0)
    info = queue.get(db, item)
    (attempt,) = info.failed_attempts
    assert info.run_time == attempt.run_time == attempt.ended_at - attempt.started_at
    queue.ack(db, queue.claim(db))
    info = queue.get(db, item)
    assert info.run_time == info.finished_at - info.claimed_at
