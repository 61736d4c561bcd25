"""All views of a queue agree with a scan of its rows at any moment.

A look at a database sweeps first; a look in a transaction shows what is stored.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue, Queue, TaskQueue
from fdbqueue.coordination import sweeper
from fdbqueue.errors import InvalidItemId, LeaseLost, QueueFull, WrongState
from fdbqueue.testing import Clock
from tests.support.counting import CountingDatabase
from tests.support.kinds import KINDS, push
from tests.support.leases import come_due, lapse
from tests.support.scan import assert_views_agree


@pytest.mark.parametrize("kind", KINDS)
def test_an_item_is_in_one_state_after_each_transition(db: Any, name: str, kind: Any) -> None:
    queue = kind.named(db, name, max_attempts=2) if kind is not Queue else kind.named(db, name)
    queue.configure(db, max_attempts=2)
    item_id = push(db, queue, "job")
    steps: list[tuple[Callable[[], object], str]] = [
        (lambda: queue.release(db, queue.claim(db)), "ready"),
        (lambda: queue.claim(db), "claimed"),
        (lambda: lapse(db, queue), "ready"),
        (lambda: queue.nack(db, queue.claim(db), delay=600, error="busy"), "dead"),
        (lambda: queue.retry(db, item_id), "ready"),
        (lambda: queue.nack(db, queue.claim(db), delay=600, error="busy"), "delayed"),
        (lambda: come_due(db, queue), "ready"),
        (lambda: queue.claim(db), "claimed"),
        (lambda: lapse(db, queue), "dead"),
        (lambda: queue.retry(db, item_id), "ready"),
    ]
    assert assert_views_agree(db, queue).ready == 1
    for step, state in steps:
        step()
        stats = assert_views_agree(db, queue)
        assert getattr(stats, state) == stats.unfinished + stats.dead == 1
        assert queue.get(db, item_id).state == state
    queue.ack(db, queue.claim(db))
    stats = assert_views_agree(db, queue)
    assert stats.is_empty
    assert queue.get(db, item_id) is None
    assert stats.done == 0
    totals = (stats.total_pushed, stats.total_completed, stats.total_failed, stats.total_retried)
    assert totals == (1, 1, 4, 4)
    assert (stats.total_died, stats.total_expired, stats.total_removed) == (2, 0, 0)


def left_alone(db: Any, name: str) -> PriorityQueue:
    """Return a queue with a lease that is over and an item that is due; no consumer is alive."""
    queue = PriorityQueue.named(db, name)
    queue.push_many(db, ["second", "third"], 2)
    queue.claim(db, n=1)
    queue.push(db, "first", 1, delay=600)
    lapse(db, queue)
    come_due(db, queue)
    return queue


def test_views_of_a_database_show_what_is_over_and_due(db: Any, name: str) -> None:
    """No consumer is alive."""
    queue = left_alone(db, name)
    assert [item.value for item in queue.items(db)] == ["first", "second", "third"]
    assert [item.value for item in queue.peek_many(db, 2)] == ["first", "second"]
    assert [item.value for item in queue.peek_many(db, 2, max=True)] == ["second", "third"]
    assert [item.value for item in queue.items(db, reverse=True, limit=2)] == ["third", "second"]
    assert (queue.size(db), queue.counts(db)) == (3, {1: 1, 2: 2})
    assert fdbqueue.admin.overview(db)[name].ready == 3


LOOKS: dict[str, Callable[[Any, PriorityQueue], object]] = {
    "peek": lambda db, queue: queue.peek(db),
    "size": lambda db, queue: queue.size(db),
    "is_empty": lambda db, queue: queue.is_empty(db),
    "counts": lambda db, queue: queue.counts(db),
    "stats": lambda db, queue: queue.stats(db),
    "items": lambda db, queue: [*queue.items(db)],
    "items in a state": lambda db, queue: [*queue.items(db, state="dead")],
    "search": lambda db, queue: queue.search(db, state="dead"),
    "count": lambda db, queue: queue.count(db, state="dead"),
    "an item": lambda db, queue: queue.get(db, queue.peek(db.create_transaction())),
}


@pytest.mark.parametrize("look", LOOKS)
def test_each_look_at_a_database_sweeps(db: Any, name: str, look: str) -> None:
    queue = left_alone(db, name)
    LOOKS[look](db, queue)
    stats = queue.stats(db.create_transaction())
    assert (stats.ready, stats.delayed, stats.claimed, stats.total_failed) == (3, 0, 0, 1)


def test_views_of_a_transaction_show_what_is_stored_and_write_nothing(db: Any, name: str) -> None:
    """They say when something is due."""
    queue = left_alone(db, name)
    tr = db.create_transaction()
    reads = tr.snapshot
    assert [item.value for item in queue.items(reads)] == ["third"]
    assert [item.value for item in queue.peek_many(reads, 2)] == ["third"]
    assert (queue.size(reads), queue.counts(reads)) == (1, {2: 1})
    stats: Any = queue.stats(reads)
    now = datetime.now(timezone.utc)
    assert (stats.ready, stats.delayed, stats.claimed, stats.total_failed) == (1, 1, 1, 0)
    assert stats.next_due < now
    shown: list[Any] = [*queue.items(reads, state="delayed"), *queue.items(reads, state="claimed")]
    delayed, claimed = shown
    assert delayed.due_at < now
    assert claimed.lease_ends < now
    assert queue.state(reads, delayed.item) == "delayed"
    assert queue.get(reads, claimed.item).state == "claimed"
    assert queue.position(reads, delayed.item) is None
    tr.commit().wait()
    assert tr.get_committed_version() == -1
    overview = fdbqueue.admin.overview(db)[name]  # of many queues, likewise
    assert overview.ready == 1
    assert (overview.delayed, overview.claimed) == (1, 1)


def test_a_look_at_one_item_sweeps_it_although_the_last_sweep_was_just_now(
    db: Any, name: str
) -> None:
    queue = PriorityQueue.named(db, name)
    item = queue.push(db, "job", ttl=0.001)
    while queue.state(db, item):
        pass
    assert queue.size(db.create_transaction()) == 0


def test_a_look_sweeps_in_one_transaction_at_most(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name)
    queue.push_many(db, range(700), delay=600)
    come_due(db, queue)
    sizes = [queue.size(db) for _ in range(4)]  # a look that leaves some lets the next one go on
    assert sizes == [256, 512, 700, 700]


def test_looks_at_a_queue_without_timers_cost_one_more_read_from_time_to_time(
    db: Any, name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "_LOOK", 600.0)
    queue = PriorityQueue.named(db, name)
    queue.push(db, "job")
    reads = []
    for seconds in (0, 0, 0, 601, 0):
        clock.advance(seconds)
        counted = CountingDatabase(db)
        queue.size(counted)
        reads.append(counted.reads)
    assert reads == [2, 1, 1, 2, 1]


def test_items_that_have_expired_are_not_shown(db: Any, name: str, clock: Clock) -> None:
    queue = PriorityQueue.named(db, name)
    queue.push(db, "gone", 1, ttl=60)
    queue.push(db, "stays", 2)
    clock.advance(61)
    assert [item.value for item in queue.items(db)] == ["stays"]
    assert queue.peek(db).value == "stays"
    stats = assert_views_agree(db, queue)
    assert (stats.ready, stats.total_expired, stats.by_priority) == (1, 1, {2: 1})
    assert stats.oldest == queue.pushed_at(queue.peek(db))
    assert queue.pop(db).value == "stays"  # and deletes the other one
    assert assert_views_agree(db, queue).total_expired == 1


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


def test_tasks_that_are_over_and_due_are_found_by_agent_and_client(db: Any, name: str) -> None:
    tasks = TaskQueue.named(db, name)
    ids = [
        tasks.push(db, priority=n, agent_name=agent, client_id="7", payload=n)
        for n, agent in ((1, "ada"), (2, "bob"), (3, "ada"))
    ]
    tasks.claim(db, within=1)
    tasks.nack(db, tasks.claim(db, within=1), delay=600)
    assert [task.id for task in tasks.get_tasks_for_client(db, "7")] == ids[2:]
    lapse(db, tasks)
    come_due(db, tasks)
    assert [task.id for task in tasks.get_tasks_for_client(db, "7")] == ids
    assert [task.id for task in tasks.get_tasks_for_agent(db, "ada")] == [ids[0], ids[2]]
    assert tasks.get_stats(db).by_agent == {"ada": 2, "bob": 1}
    assert [tasks.position(db, task) for task in ids] == [0, 1, 2]
    assert_views_agree(db, tasks)


@pytest.mark.parametrize("kind", KINDS)
def test_a_delayed_item_is_run_at_once_and_a_claimed_one_taken_away(
    db: Any, name: str, kind: Any
) -> None:
    queue = kind.named(db, name)
    item_id = push(db, queue, "job")
    assert not queue.retry(db, item_id)
    assert not queue.release(db, item_id)
    queue.nack(db, queue.claim(db), delay=600)
    assert queue.retry(db, item_id)
    assert assert_views_agree(db, queue).ready == 1
    queue.configure(db, concurrency=1)
    claim = queue.claim(db)
    assert claim.attempt == 2
    assert queue.release(db, item_id)
    stats = assert_views_agree(db, queue)
    assert (stats.ready, stats.claimed, stats.total_failed, stats.total_retried) == (1, 0, 1, 1)
    with pytest.raises(LeaseLost):
        queue.ack(db, claim)
    again = queue.claim(db)  # the slot is free, and the attempt did not count
    assert again.attempt == 2
    queue.ack(db, again)
    assert not queue.release(db, item_id)
    assert assert_views_agree(db, queue).is_empty


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


def test_a_client_that_waits_is_woken_by_an_item_that_is_run_at_once(
    db: Any, queue: PriorityQueue, asleep: threading.Event
) -> None:
    item = queue.push(db, "job", delay=600)
    popped: list[Any] = []
    thread = threading.Thread(target=lambda: popped.append(queue.pop(db, wait=60)))
    thread.start()
    assert asleep.wait(60)
    assert queue.retry(db, item)
    thread.join(30)
    assert [found.value for found in popped] == ["job"]


def overdue(db: Any, queue: Any, state: str) -> str:
    """Return the id of an item that a view shows in a state which no sweep has stored yet."""
    item_id = push(db, queue, "job")
    if state == "dead":
        queue.configure(db, max_attempts=1)
    queue.claim(db)
    lapse(db, queue)
    assert queue.state(db, item_id) == state
    return item_id


@pytest.mark.parametrize("kind", KINDS)
def test_operations_on_single_items_find_the_state_that_views_show(
    db: Any, name: str, kind: Any
) -> None:
    queue = kind.named(db, name)
    assert queue.remove(db, overdue(db, queue, "ready"))
    assert not queue.release(db, overdue(db, queue, "ready"))
    assert queue.state(db, queue.peek(db)) == "ready"
    queue.clear(db)
    push(db, queue, "later")
    queue.nack(db, queue.claim(db), delay=600)
    (item,) = [info.item for info in queue.items(db, state="delayed")]
    come_due(db, queue)
    assert not queue.retry(db, item)
    assert queue.remove(db, item)
    tr = db.create_transaction()
    dead = overdue(db, queue, "dead")
    assert queue.retry(tr, dead)
    tr.commit().wait()
    queue.configure(db, max_attempts=None)
    queue.clear(db)
    assert queue.remove(db, overdue(db, queue, "dead"))
    stats = assert_views_agree(db, queue)
    assert (stats.is_empty, stats.total_died, stats.total_removed) == (True, 1, 1)


def test_an_expired_item_cannot_be_changed(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name)
    item = queue.push(db, "gone", ttl=0.001)
    delayed = queue.push(db, "gone", ttl=0.001, delay=0.001)
    while queue.state(db, item) or queue.state(db, delayed):
        pass
    assert not queue.remove(db, item)
    assert queue.reprioritize(db, item, 1) is None
    assert not queue.retry(db, delayed)
    stats = assert_views_agree(db, queue)
    assert (stats.is_empty, stats.total_expired, stats.total_removed) == (True, 2, 0)


def test_a_late_worker_can_end_its_job_until_a_look_at_the_database(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name, max_attempts=1)
    queue.push_many(db, ["job", "another"])
    claim, other = queue.claim(db), queue.claim(db)
    lapse(db, queue)
    before = queue.stats(db.create_transaction())
    assert (before.claimed, before.dead, before.total_failed) == (2, 0, 0)
    queue.ack(db, claim)
    after = assert_views_agree(db, queue)
    assert (after.dead, after.total_completed, after.total_failed) == (1, 1, 1)
    with pytest.raises(LeaseLost):
        queue.ack(db, other)


@pytest.mark.parametrize("kind", [PriorityQueue, Queue])
@pytest.mark.parametrize("state", ["ready", "delayed", "claimed", "dead"])
def test_an_item_that_is_back_is_not_put_back_again(
    db: Any, name: str, kind: Any, state: str
) -> None:
    queue = kind.named(db, name)
    value = "x" * 200_000
    push(db, queue, value)
    (item,) = queue.pop_many(db, 1) if kind is PriorityQueue else queue.dequeue_many(db, 1)
    queue.put_back(db, [item, item])
    if state != "ready":
        claim = queue.claim(db)
        if state == "dead":
            queue.configure(db, max_attempts=1)
        if state != "claimed":
            queue.nack(db, claim, delay=600)
    queue.put_back(db, [item])
    stats = assert_views_agree(db, queue)
    assert getattr(stats, state) == stats.unfinished + stats.dead == 1
    assert queue.get(db, item).item.value == value


def test_tasks_in_a_state_are_listed_behind_a_task(db: Any, name: str) -> None:
    tasks = TaskQueue.named(db, name)
    for priority in (5, 1, 3):
        tasks.push(db, payload=priority, priority=priority, delay=600)
    ids = [info.id for info in tasks.items(db, state="delayed")]
    assert [info.id for info in tasks.items(db, state="delayed", after=ids[0])] == ids[1:]
    before = tasks.items(db, state="delayed", after=ids[2], reverse=True)
    assert [info.id for info in before] == ids[1::-1]
    with pytest.raises(InvalidItemId):
        [*tasks.items(db, state="delayed", after="0" * 32)]


def test_expired_tasks_count_for_no_agent(db: Any, name: str) -> None:
    tasks = TaskQueue.named(db, name)
    task = tasks.push(db, payload=1, agent_name="ada", ttl=0.001)
    while tasks.state(db, str(task)):
        pass
    stats = tasks.get_stats(db)
    assert (stats.by_agent, stats.by_priority, stats.current_size) == ({}, {}, 0)


def test_a_unique_key_is_free_once_its_item_has_expired_among_many(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name)
    queue.push_many(db, range(300), ttl=0.2)
    first = queue.push(db, "first", unique="k", ttl=0.21)
    while queue.state(db, first):
        pass
    second = queue.push(db, "second", unique="k")
    assert (second.value, second.is_new, queue.state(db, second)) == ("second", True, "ready")
    assert_views_agree(db, queue)


def test_max_size_bounds_ready_delayed_and_claimed_items_but_no_dead_letters(
    db: Any, name: str
) -> None:
    queue = PriorityQueue.named(db, name, max_size=3, max_attempts=1)
    queue.push(db, "ready")
    queue.push(db, "delayed", delay=600)
    claim = queue.claim(db)
    queue.push(db, "another")
    with pytest.raises(QueueFull):
        queue.push(db, "too many")
    queue.nack(db, claim)
    queue.push(db, "in place of the dead one")
    stats = assert_views_agree(db, queue)
    assert (stats.ready, stats.delayed, stats.claimed, stats.dead) == (2, 1, 0, 1)
    assert (stats.unfinished, stats.total_rejected) == (3, 1)


def test_a_paused_queue_is_listed_as_paused(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name)
    queue.push(db, 1)
    for _ in range(2):
        queue.configure(db, paused=True)
        queue.configure(db, paused=True)
        assert queue.stats(db).paused
        assert fdbqueue.admin.overview(db)[name].paused
        assert fdbqueue.admin.check(db, queue).ok
        queue.configure(db, paused=False)
        assert not queue.stats(db).paused
        assert not fdbqueue.admin.overview(db)[name].paused


def test_items_in_a_state_are_read_by_pages(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name)
    for priority in (1, 2):
        queue.push_many(db, range(700), priority, delay=600)
    ids = [info.id for info in queue.items(db, state="delayed")]
    assert len(ids) == len(set(ids)) == 1400
    assert [info.id for info in queue.items(db, state="delayed", reverse=True)] == ids[::-1]
    page = [info.id for info in queue.items(db, state="delayed", after=ids[9], limit=3)]
    assert page == ids[10:13]
    assert len([*queue.items(db, state="delayed", priority=2)]) == 700
    come_due(db, queue)
    while queue.stats(db).delayed:  # each look makes some available
        pass
    assert [item.id for item in queue.items(db)] == ids
    assert list(queue.items(db, state="delayed")) == []


def test_an_unknown_state_is_rejected(db: Any, queue: PriorityQueue) -> None:
    state: Any = "waiting"
    with pytest.raises(ValueError, match="'dead', 'done', not 'waiting'"):
        queue.items(db, state=state)


def work(db: Any, queue: PriorityQueue, seed: int, stop: threading.Event) -> None:
    """Do everything that clients do, at random, until `stop` is set."""
    rng = random.Random(seed)
    held: list[Any] = []
    popped: list[Any] = []
    while not stop.is_set():
        act = rng.randrange(12)
        try:
            if act < 4:
                delay = rng.choice([None, None, 0.01, 0.05])
                ttl = rng.choice([None, None, 0.02, 0.1])
                queue.push(db, act, rng.randrange(3), delay=delay, ttl=ttl)
            elif act < 7:
                if claim := queue.claim(db, n=rng.randrange(1, 4), lease=rng.choice([0.03, 30])):
                    held.append(claim)
            elif act < 10 and held:
                claim = held.pop(rng.randrange(len(held)))
                ends: list[Any] = [queue.ack, queue.release, queue.nack]
                end = rng.choice(ends)
                end(db, claim, **({"delay": 0.02} if end == queue.nack else {}))
            elif act == 10:
                popped += queue.pop_many(db, 2)
                if popped and rng.random() < 0.3:
                    queue.put_back(db, [popped.pop()])
            else:
                letters = [letter.id for letter in queue.items(db, state="dead")]
                if letters:
                    change = rng.choice([queue.retry, queue.remove])
                    change(db, rng.choice(letters))
                elif item := queue.peek(db):
                    queue.reprioritize(db, item, rng.randrange(3))
        except (LeaseLost, WrongState):  # another thread was faster
            pass


def test_all_views_agree_with_a_scan_at_random_moments_under_load(
    db: Any, name: str, rng: random.Random
) -> None:
    queue = PriorityQueue.named(db, name, max_attempts=2, keep=rng.choice([None, 5, 1000]))
    queue.push(db, "first")
    stop = threading.Event()
    seeds = [rng.randrange(2**32) for _ in range(4)]
    threads = [threading.Thread(target=work, args=(db, queue, seed, stop)) for seed in seeds]
    for thread in threads:
        thread.start()
    try:
        for _ in range(25):
            time.sleep(rng.random() / 50)
            assert_views_agree(db, PriorityQueue.named(db, name))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    lapse(db, queue, math.inf)
    come_due(db, queue)
    stats = assert_views_agree(db, queue)
    assert stats.total_pushed > 10
    popped = len(queue.pop_many(db, 100_000))
    after = assert_views_agree(db, queue)
    assert (
        popped + after.total_expired - stats.total_expired == stats.ready
    )  # some expire meanwhile
    assert after.unfinished == 0
