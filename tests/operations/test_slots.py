"""Limits on claims and pushes: paused queues, concurrency limits, unique items, expiry."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue, TaskQueue
from fdbqueue.admin import check
from fdbqueue.coordination import waiting
from fdbqueue.database import clock
from fdbqueue.database.clock import milliseconds
from fdbqueue.errors import ClockOutOfRange, QueueFull, WrongState
from fdbqueue.layout.values import Header
from fdbqueue.queue.base import store_of
from fdbqueue.testing import Clock, FaultyDatabase
from tests.support.full import unless_full
from tests.support.keys import layout_of
from tests.support.leases import come_due, expire, lapse
from tests.support.waiting import wait_until


def in_transaction(method: Any) -> Any:
    """Return a method as a transactional function."""
    return fdbqueue.transactional(lambda tr: method(tr))


# Unique


def test_a_unique_key_stores_one_item_until_it_is_finished(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space["unique"], max_attempts=1)
    first = queue.push(db, "first", 5, unique="report")
    assert first == next(queue.items(db))
    again = queue.push(db, "second", 1, unique="report")
    assert (again, first.is_new, again.is_new) == (first, True, False)
    assert queue.push(db, "other", 9, unique="another") != first
    claim = queue.claim(db)
    assert queue.push(db, "third", 1, unique="report") == first
    queue.nack(db, claim)  # it becomes a dead letter, which frees the key
    second = queue.push(db, "fourth", 1, unique="report")
    assert second.value == "fourth"
    assert not queue.retry(db, first)  # the key would be in use twice
    queue.ack(db, queue.claim(db))
    assert queue.retry(db, first)
    assert queue.push(db, "fifth", unique="report") == first
    assert check(db, queue).ok


@pytest.mark.parametrize(
    "end", ["pop", "pop_many", "in a transaction", "remove", "clear", "expire"]
)
def test_the_end_of_an_item_frees_its_unique_key(db: Any, space: Subspace, end: str) -> None:
    queue = PriorityQueue(space["unique"])
    item = queue.push(db, 1, unique="k", ttl=1000)
    if end == "pop":
        queue.pop(db)
    elif end == "pop_many":
        queue.pop_many(db, 9, max=True)
    elif end == "in a transaction":
        in_transaction(queue.pop)(db)
    elif end == "remove":
        assert queue.remove(db, item)
    elif end == "clear":
        queue.clear(db)
    else:
        expire(db, queue)
        assert queue.pop(db) is None
    assert check(db, queue).ok
    assert queue.push(db, 2, unique="k").value == 2
    assert check(db, queue).ok


def test_an_expired_item_does_not_block_its_unique_key(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space["unique"])
    queue.push(db, 1, unique="k", ttl=1000)
    expire(db, queue)
    assert queue.push(db, 2, unique="k").value == 2
    assert queue.size(db) == 1


def test_an_item_keeps_its_unique_key_through_moves_delays_and_claims(
    db: Any, space: Subspace
) -> None:
    queue = PriorityQueue(space["unique"])
    queue.push(db, 1, 5, unique="k")
    moved = queue.reprioritize(db, next(queue.items(db)), 7)
    assert queue.push(db, 2, unique="k") == moved
    queue.nack(db, queue.claim(db), delay=1000)
    assert queue.state(db, moved) == "delayed"
    assert queue.push(db, 3, unique="k") == moved
    come_due(db, queue)
    assert queue.claim(db).attempt == 2
    lapse(db, queue)
    assert queue.push(db, 4, unique="k") == moved
    assert queue.pop(db) == moved
    assert check(db, queue).ok


@pytest.mark.parametrize("is_inside", [False, True])
def test_a_push_finds_that_the_last_lease_of_the_item_with_its_unique_key_is_over(
    db: Any, space: Subspace, is_inside: bool
) -> None:
    """The item becomes a dead letter, which has no unique key."""
    queue = PriorityQueue(space["unique"], max_attempts=1)
    first = queue.push(db, "first", unique="k")
    queue.claim(db)
    lapse(db, queue)

    def push(tr: Any) -> Any:
        return queue.push(tr, "second", unique="k")

    second = in_transaction(push)(db) if is_inside else push(db)
    assert (second.value, second.is_new) == ("second", True)
    assert (queue.state(db, first), queue.state(db, second)) == ("dead", "ready")
    assert queue.push(db, "third", unique="k") == second
    assert check(db, queue).ok


def test_an_item_that_is_put_back_leaves_its_unique_key_to_the_item_that_has_it(
    db: Any, space: Subspace
) -> None:
    queue = PriorityQueue(space["unique"])
    first = queue.push(db, "first", unique="k")
    assert queue.pop(db) == first
    second = queue.push(db, "second", unique="k")
    popped = first.key, b'"first"', Header(unique="k")
    in_transaction(lambda tr: store_of(queue).items.put_back(tr, milliseconds(), [popped]))(db)
    assert queue.peek_many(db, 2) == [first, second]
    assert check(db, queue).ok
    assert queue.pop(db) == first
    assert queue.push(db, "third", unique="k") == second


def test_large_and_delayed_unique_items(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space["unique"])
    value = "x" * 200_000
    item = queue.push(db, value, unique="k", delay=1000)
    assert queue.push(db, 1, unique="k") == item
    assert item.value == value
    assert queue.remove(db, item)
    assert queue.size(db) == 0
    assert not list(db[slice(*layout_of(queue).range_of(layout_of(queue).pieces))])
    assert check(db, queue).ok


def test_concurrent_pushes_of_one_unique_key_store_one_item(db: Any, space: Subspace) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    queue = PriorityQueue(space["unique"])
    faulty = FaultyDatabase(db, seed=seed, before=0.2, after=0.2)

    def push(number: int) -> str:
        return queue.push(faulty, number, unique="k").id

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(push, range(40)))) == 1
    assert queue.size(db) == 1
    assert check(db, queue).ok


def test_a_unique_push_to_a_full_queue_returns_the_existing_item(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space["unique"], max_size=1)
    item = queue.push(db, 1, unique="k")
    assert queue.push(db, 2, unique="k") == item
    assert unless_full(queue.push, db, 2, unique="other") is None
    with pytest.raises(QueueFull):
        queue.push(db, 2, unique="other")
    queue.pop(db)
    assert queue.push(db, 2, unique="other").value == 2


@pytest.mark.parametrize("key", ["", 1, b"k", "x" * 256, "\ud800"])
def test_an_invalid_unique_key_is_rejected(db: Any, space: Subspace, key: Any) -> None:
    queue, tasks = PriorityQueue(space["unique"]), TaskQueue(space["tasks"])
    with pytest.raises(ValueError, match="unique is text"):
        queue.push(db, 1, unique=key)
    with pytest.raises(ValueError, match="unique is text"):
        tasks.push(db, unique=key)
    assert queue.is_empty(db)
    assert tasks.is_empty(db)


def test_repeated_pushes_of_a_unique_task_return_one_id(db: Any, space: Subspace) -> None:
    tasks = TaskQueue(space["tasks"])
    task = tasks.push(db, agent_name="ada", unique="k")
    assert tasks.push(db, priority=1, unique="k") == task
    assert tasks.reprioritize(db, task, priority=1)
    assert tasks.push(db, unique="k") == task
    claim = tasks.claim(db)
    assert tasks.push(db, unique="k") == task
    tasks.ack(db, claim)
    assert tasks.push(db, unique="k") != task
    again = tasks.push(db, unique="k")
    assert tasks.push_many(db, [{"unique": "k"}, {"unique": "l"}, {"unique": "l"}])[0] == again
    assert tasks.size(db) == 2
    assert check(db, tasks).ok


# Time to live


@pytest.mark.parametrize("is_inside", [False, True])
def test_an_item_is_dropped_after_its_time_to_live(
    db: Any, space: Subspace, is_inside: bool
) -> None:
    queue = PriorityQueue(space["ttl"])
    queue.push_many(db, range(40), ttl=1000)
    queue.push(db, "stays", 1)
    assert queue.peek(db).value == 0
    expire(db, queue)
    pop = in_transaction(queue.pop) if is_inside else queue.pop
    assert pop(db).value == "stays"
    assert (queue.size(db), queue.pop(db)) == (0, None)
    assert check(db, queue).ok


def test_an_expired_item_is_not_claimed(db: Any, space: Subspace, clock: Clock) -> None:
    tasks = TaskQueue(space["tasks"])
    tasks.push_many(db, [{"ttl": 60, "agent_name": "ada"} for _ in range(300)])
    clock.advance(61)
    assert tasks.claim(db, n=5) is None
    stats = tasks.get_stats(db)
    assert (stats.total_pushed, stats.total_expired, stats.total_popped) == (300, 300, 0)
    assert (stats.current_size, stats.by_agent, stats.oldest) == (0, {}, None)
    assert check(db, tasks).ok


def test_a_claimed_item_expires_only_after_it_returns(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = PriorityQueue(space["ttl"])
    queue.push_many(db, ["done", "failed"], ttl=60)
    claim = queue.claim(db, n=2)
    assert claim is not None
    done, failed = claim
    later = milliseconds() + 61_000
    for module in ("coordination.store", "coordination.claims"):
        monkeypatch.setattr(f"fdbqueue.{module}.milliseconds", lambda: later)
    queue.ack(db, done)
    queue.nack(db, failed, delay=0)
    assert queue.claim(db) is None
    assert queue.size(db) == 0
    assert check(db, queue).ok


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), "1", True, 10**11])
def test_an_invalid_time_to_live_is_rejected(db: Any, space: Subspace, ttl: Any) -> None:
    queue = PriorityQueue(space["ttl"])
    with pytest.raises((TypeError, ValueError), match="ttl is a number of seconds"):
        queue.push(db, 1, ttl=ttl)
    assert queue.is_empty(db)


# Pause and resume


def test_a_paused_queue_accepts_pushes_and_returns_no_items(db: Any, space: Subspace) -> None:
    queue, tasks = PriorityQueue(space["jobs"]), TaskQueue(space["tasks"])
    queue.push(db, 1)
    tasks.push(db, agent_name="ada", payload=1)
    claimed = queue.push(db, 0, -1) and queue.claim(db)
    for each in (queue, tasks):
        each.configure(db, paused=True)
        assert each.options(db).paused
    queue.push(db, 2)
    assert queue.pop(db) is queue.pop_max(db) is queue.claim(db) is None
    assert queue.claim(db, wait=0.02) is queue.pop(db, wait=0.02) is None
    assert in_transaction(queue.pop)(db) is None
    assert tasks.pop(db) is tasks.claim(db) is None
    assert not queue.wait(db, 0.02)
    assert [item.value for item in queue.items(db)] == [1, 2]
    queue.ack(db, claimed)
    for each in (queue, tasks):
        each.configure(db, paused=False)
    assert queue.wait(db, 0.02)
    assert [item.value for item in queue.pop_many(db, 9)] == [1, 2]
    assert tasks.pop(db).payload == 1


def test_another_handle_notices_a_pause_within_a_second(db: Any, name: str, clock: Clock) -> None:
    ours, other = PriorityQueue.named(db, name), PriorityQueue.named(db, name)
    ours.push_many(db, range(3))
    assert other.pop(db).value == 0
    ours.configure(db, paused=True)
    assert other.claim(db) is None  # at once
    clock.advance(1)
    assert other.pop(db) is None
    ours.configure(db, paused=False)
    assert other.claim(db).item.value == 1


@pytest.mark.parametrize("take", ["pop", "claim"])
def test_resume_wakes_waiting_clients(
    db: Any, space: Subspace, take: str, asleep: threading.Event
) -> None:
    tasks = TaskQueue(space["tasks"])
    tasks.push(db, agent_name="ada", payload=1)
    tasks.configure(db, paused=True)
    calls = {
        "pop": lambda: tasks.pop(db, wait=120).payload,
        "claim": lambda: tasks.claim(db, wait=120).item.payload,
    }
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(calls[take])
        assert asleep.wait(60)
        tasks.configure(db, paused=False)
        assert waits.result(60) == 1


def test_a_client_that_waits_on_a_paused_queue_sleeps(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    begin = waiting.begin_sleep
    monkeypatch.setattr(waiting, "begin_sleep", lambda *a: (looks.append(1), begin(*a))[1])
    queue = PriorityQueue(space["jobs"])
    queue.push(db, 1)
    queue.configure(db, paused=True)
    assert queue.pop(db, wait=1) is queue.claim(db, wait=1) is None
    assert len(looks) <= 2  # a slow transaction may take longer than the wait


# Concurrency limits


def test_claims_do_not_exceed_the_concurrency_limit(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space["limit"])
    queue.push_many(db, range(10))
    queue.configure(db, concurrency=3)
    first = queue.claim(db, n=2)
    second = queue.claim(db, n=5)
    assert [len(first), len(second)] == [2, 1]
    assert queue.claim(db) is None
    for end in (queue.ack, partial(queue.nack, delay=3600), queue.release):
        end(db, second)
        second = queue.claim(db, n=5, within=5)
        assert len(second) == 1
        assert check(db, queue).ok
    lapse(db, queue)
    assert len(queue.claim(db, n=5)) == 3
    queue.configure(db, concurrency=None)
    assert len(queue.claim(db, n=9, within=9)) == 5
    assert check(db, queue).ok


def test_overlapping_claims_in_any_order_never_exceed_a_limit(
    db: Any, space: Subspace, engine: str
) -> None:
    """Transactions overlap, claim different tasks, and commit in any order."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    refused = reached = 0
    for number in range(3 if engine == "cluster" else 20):
        tasks = TaskQueue(space[number])
        tasks.push_many(db, [{"agent_name": "ada"} for _ in range(60)])
        limit = rng.randrange(1, 5)
        tasks.configure(db, concurrency=limit)
        in_flight: list[Any] = []
        claims: list[Any] = []
        for _ in range(60):
            if rng.random() < 0.5 or not in_flight:
                tr = db.create_transaction()
                claim = tasks.claim(tr, n=rng.randrange(1, 3), within=40)
                if claim is not None and rng.random() < 0.2:
                    tasks.release(tr, claim)
                    claim = tasks.claim(tr, within=40)
                in_flight.append((tr, claim))
            elif claims and rng.random() < 0.3:
                ends: list[Any] = [tasks.ack, tasks.release]
                rng.choice(ends)(db, claims.pop(rng.randrange(len(claims))))
            else:
                tr, claim = in_flight.pop(rng.randrange(len(in_flight)))
                try:
                    tr.commit().wait()
                except fdbqueue.error_classes() as error:
                    refused += {1020: 1}[error.code]  # any error but a conflict is raised
                else:
                    claims += [] if claim is None else [claim]
            held = sum(len(claim) for claim in claims)
            assert held <= limit
            reached += held == limit
        assert check(db, tasks).ok
    assert refused > 0
    assert reached > 0


def test_an_extended_claim_keeps_its_slot(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space["limit"])
    queue.push_many(db, range(2))
    queue.configure(db, concurrency=1)
    claim = queue.claim(db)
    queue.extend(db, claim, 60)
    assert queue.claim(db) is None
    queue.ack(db, claim)
    assert queue.claim(db) is not None
    assert check(db, queue).ok


def test_a_lowered_limit_applies_to_new_claims(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space["limit"])
    queue.push_many(db, range(20))
    queue.configure(db, concurrency=8)
    claim = queue.claim(db, n=8)
    assert claim is not None
    claims = [*claim]
    queue.configure(db, concurrency=3)
    random.shuffle(claims)
    while len(claims) > 3:
        assert queue.claim(db) is None
        queue.ack(db, claims.pop())
    queue.ack(db, claims.pop())
    assert len(queue.claim(db, n=9)) == 1


def test_the_limit_applies_across_all_workers(db: Any, space: Subspace) -> None:
    tasks = TaskQueue(space["tasks"])
    tasks.push_many(db, [{}] * 60)
    tasks.configure(db, concurrency=5)
    guard = threading.Lock()
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    begun: Counter[str] = Counter()

    def are_enough() -> bool:
        return running["all"] >= 4 or begun["all"] == 60

    def handle(task: Any) -> None:
        with guard:
            begun.update(["all"])
            running.update(["all"])
            most.update({key: max(0, running[key] - most[key]) for key in running})
        # It lasts until as many run as surely can: a worker has four threads, and may hold a fifth
        # task that waits for one of them.
        wait_until(are_enough)
        with guard:
            running.subtract(["all"])

    workers = [fdbqueue.Worker(db, tasks, handle, concurrency=4) for _ in range(3)]
    with ThreadPoolExecutor(3) as threads:
        reports = list(threads.map(lambda worker: worker.run(drain=True), workers))
    assert sum(report.done for report in reports) == 60
    assert 3 <= most["all"] <= 5
    assert check(db, tasks).ok


def test_a_free_slot_wakes_a_waiting_claim(
    db: Any, space: Subspace, asleep: threading.Event
) -> None:
    tasks = TaskQueue(space["tasks"])
    tasks.push_many(db, [{"payload": n} for n in range(2)])
    tasks.configure(db, concurrency=1)
    claim = tasks.claim(db)
    with ThreadPoolExecutor(2) as threads:
        waits = threads.submit(tasks.claim, db, wait=120)
        assert asleep.wait(60)
        tasks.ack(db, claim)
        assert waits.result(60).item.payload == 1


@pytest.mark.parametrize("limit", [0, -1, 10_001, 1.5, True, "3"])
def test_an_invalid_limit_is_rejected(db: Any, space: Subspace, limit: Any) -> None:
    tasks = TaskQueue(space["tasks"])
    with pytest.raises(ValueError, match="concurrency is a number from 1 to 10,000"):
        tasks.configure(db, concurrency=limit)
    assert tasks.options(db).concurrency is None


def test_an_expired_item_makes_room_in_a_full_queue(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space["ttl"], max_size=1)
    queue.push(db, 1, ttl=1000)
    assert unless_full(queue.push, db, 2) is None
    expire(db, queue)
    assert queue.peek(db) is None
    assert queue.push(db, 2).value == 2


# States of items


def test_state_returns_the_state_of_an_item(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space["jobs"], max_attempts=2)
    item = queue.push(db, 1, delay=1000)
    states = [queue.state(db, item)]
    come_due(db, queue)
    claim = queue.claim(db)
    states.append(queue.state(db, item.id))
    queue.nack(db, claim, delay=0)
    queue.claim(db)
    lapse(db, queue)
    assert queue.claim(db) is None
    states.append(queue.state(db, item))
    queue.retry(db, item)
    states.append(queue.state(db, item))
    queue.pop(db)
    states.append(queue.state(db, item))
    assert states == ["delayed", "claimed", "dead", "ready", None]


def test_a_task_is_found_in_every_state(db: Any, space: Subspace) -> None:
    tasks = TaskQueue(space["tasks"], max_attempts=1)
    task = tasks.push(db, payload=1, delay=1000, client_id="7")
    whole = tasks.get_task(db, task)
    assert (whole.payload, tasks.state(db, task)) == (1, "delayed")
    assert tasks.get_stats(db).oldest is None
    come_due(db, tasks)
    claim = tasks.claim(db)
    assert (tasks.get_task(db, task), tasks.state(db, task)) == (whole, "claimed")
    assert not tasks.remove(db, task)
    with pytest.raises(WrongState, match="claimed"):
        tasks.reprioritize(db, task, priority=1)
    tasks.nack(db, claim)
    assert (tasks.get_task(db, task), tasks.state(db, task)) == (whole, "dead")
    (letter,) = tasks.items(db, state="dead")
    assert tasks.remove(db, letter.id)
    assert tasks.get_task(db, task) is tasks.state(db, task) is None
    assert check(db, tasks).ok


def test_remove_deletes_a_delayed_task(db: Any, space: Subspace) -> None:
    tasks = TaskQueue(space["tasks"])
    task = tasks.push(db, delay=1000, agent_name="ada")
    assert tasks.remove(db, task)
    assert not tasks.remove(db, task)
    stats = tasks.get_stats(db)
    assert (stats.total_removed, stats.current_size, stats.total_popped) == (1, 0, 0)
    come_due(db, tasks)
    assert tasks.claim(db) is None
    assert check(db, tasks).ok


def test_a_dead_task_is_retried_or_dropped_by_its_own_id(db: Any, space: Subspace) -> None:
    tasks = TaskQueue(space["tasks"], max_attempts=1)
    ids = [tasks.push(db, payload=n, ttl=1000) for n in range(2)]
    for _ in ids:
        tasks.nack(db, tasks.claim(db, within=1), error="busy")
    stats = tasks.get_stats(db)
    assert (stats.total_died, stats.total_popped, stats.success_rate) == (2, 0, 0.0)
    letters = list(tasks.items(db, state="dead"))
    assert [letter.id for letter in letters] == ids
    assert tasks.retry(db, ids[0])
    assert tasks.remove(db, letters[1].item)
    expire(db, tasks)  # a retried task no longer expires
    assert tasks.claim(db).item.id == ids[0]
    assert (tasks.get_stats(db).total_died, tasks.stats(db).dead) == (2, 0)
    assert check(db, tasks).ok


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        ("cannot read a\udcff", "cannot read a\\udcff"),
        (ValueError("no such address"), "ValueError: no such address"),
        ("x" * 5_000, "x" * 1_000),
        (None, None),
    ],
)
def test_a_dead_letter_keeps_its_error(
    db: Any, space: Subspace, error: Any, kept: str | None
) -> None:
    queue = PriorityQueue(space["jobs"], max_attempts=1)
    queue.push(db, 1)
    queue.nack(db, queue.claim(db), error=error)
    assert [letter.error for letter in queue.items(db, state="dead")] == [kept]


def test_an_invalid_error_is_rejected_and_changes_nothing(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space["jobs"], max_attempts=1)
    item = queue.push(db, 1)
    claim = queue.claim(db)
    bad: Any
    for bad in (b"x", 1, []):
        with pytest.raises(TypeError, match="a text or an exception"):
            queue.nack(db, claim, error=bad)
    assert queue.state(db, item) == "claimed"


def test_a_clock_before_1970_raises_and_changes_nothing(
    db: Any, queue: PriorityQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(clock, "time_ns", lambda: -1)
        for push in (lambda: queue.push(db, "x"), lambda: queue.push(db, "x", delay=5)):
            with pytest.raises(ClockOutOfRange, match="clock is before 1970 or after 2262"):
                push()
    assert queue.size(db) == 0
