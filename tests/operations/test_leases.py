"""Claims under a lease: ownership, expiry, retries and dead letters."""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue, TaskQueue
from fdbqueue.admin import check
from fdbqueue.database import clock as clock_of_machine
from fdbqueue.database.clock import milliseconds
from fdbqueue.errors import ForeignClaim, InvalidItemId, LeaseLost
from fdbqueue.operations.claims import ClaimedItems
from fdbqueue.testing import Clock, FaultyDatabase
from tests.support.counting import CountingDatabase
from tests.support.full import unless_full
from tests.support.keys import layout_of
from tests.support.leases import come_due, lapse, values

# Claim and acknowledge


def test_a_claimed_item_is_hidden_from_other_clients(db: Any, queue: PriorityQueue) -> None:
    queue.push_many(db, ["a", "b"])
    claim = queue.claim(db, lease=60)
    assert (claim.item.value, claim.attempt, len(claim)) == ("a", 1, 1)
    assert (queue.size(db), queue.peek(db).value) == (1, "b")
    assert queue.pop(db).value == "b"
    assert queue.claim(db) is None
    assert check(db, queue).ok
    queue.ack(db, claim)
    assert check(db, queue) == fdbqueue.admin.CheckReport(0, 0, 0, 0, 0, (), False)
    for method in (queue.ack, queue.nack, queue.extend, queue.release):
        with pytest.raises(LeaseLost) as error:
            method(db, claim)
        assert error.value.item_id == claim.item.id


def test_an_item_is_claimed_after_it_was_pushed_however_long_the_claim_has_waited(
    db: Any, name: str, asleep: threading.Event, clock: Clock
) -> None:
    queue = PriorityQueue.named(db, name)
    with ThreadPoolExecutor(1) as executor:
        claiming = executor.submit(queue.claim, db, wait=60)
        assert asleep.wait(60)
        clock.advance(10)
        item = queue.push(db, "job")
        assert claiming.result() is not None
    info = queue.get(db, item)
    assert info.claimed_at is not None
    assert info.pushed_at is not None
    assert info.claimed_at >= info.pushed_at


def test_an_item_is_claimed_at_the_time_of_the_try_that_succeeded(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = TaskQueue.named(db, name)
    task = tasks.push(db)
    take, ahead = ClaimedItems.take, [0]

    def take_after_an_hour(*arguments: Any) -> Any:
        if ahead[0]:
            return take(*arguments)
        ahead[0] = 3600 * 10**9
        raise fdbqueue.FDBError(1020)

    monkeypatch.setattr(ClaimedItems, "take", take_after_an_hour)
    monkeypatch.setattr(clock_of_machine, "nanoseconds", lambda: time.time_ns() + ahead[0])
    before = datetime.now(timezone.utc)
    claim = tasks.claim(db)
    info = tasks.get(db, task)
    assert info.claimed_at is not None
    assert info.claimed_at > before + timedelta(minutes=59)
    tasks.ack(db, claim)
    assert tasks.state(db, task) is None


def test_only_a_claim_of_the_queue_can_be_ended(
    db: Any, queue: PriorityQueue, space: Subspace
) -> None:
    other = PriorityQueue(space["other"])
    queue.push(db, "a")
    claim = queue.claim(db)
    for method in (other.ack, other.nack, other.extend, other.release):
        with pytest.raises(ForeignClaim, match="pass a claim to the queue that returned it"):
            method(db, claim)
    methods: tuple[Any, ...] = (queue.ack, queue.nack, queue.extend, queue.release)
    for method in methods:
        with pytest.raises(TypeError, match="`claim` returns None for no item"):
            method(db, queue.claim(db))
    queue.ack(db, claim)


def test_a_length_of_time_may_be_a_timedelta(db: Any, queue: PriorityQueue, clock: Clock) -> None:
    hour = timedelta(hours=1)
    queue.push(db, "delayed", delay=hour)
    queue.push(db, "expires", ttl=timedelta(milliseconds=1))
    clock.advance(1)
    assert queue.pop(db, wait=timedelta()) is None
    queue.push(db, "a")
    claim = queue.claim(db, lease=hour, wait=timedelta(seconds=1))
    queue.extend(db, claim, lease=2 * hour)
    queue.nack(db, claim, delay=hour)
    assert queue.claim(db) is None
    assert not queue.wait(db, timedelta(milliseconds=1))
    with pytest.raises(ValueError, match="delay is a number of seconds from 0"):
        queue.push(db, "b", delay=-hour)
    minutes: Any = b"5m"
    with pytest.raises(TypeError, match="or a text such as '5m', not b'5m'"):
        queue.push(db, "b", delay=minutes)


def test_a_length_of_time_may_be_a_text(db: Any, queue: PriorityQueue) -> None:
    before = datetime.now(timezone.utc)
    info = queue.get(db, queue.push(db, "delayed", delay="1h30m"))
    assert info.due_at is not None
    assert timedelta(minutes=89) < info.due_at - before < timedelta(minutes=91)
    for text in ("90", "soon", "5 m", "-5m", "1m later"):
        with pytest.raises(ValueError, match=f"delay is a number of seconds.*, not '{text}'"):
            queue.push(db, "b", delay=text)


def test_a_claim_marks_the_queue_unless_it_is_marked(
    db: Any, queue: PriorityQueue, space: Subspace
) -> None:
    """The mark is a key that all clients share; each write of it would be one for its server."""
    queue.push_many(db, "abc")
    mark = layout_of(queue).scheduled
    queue.claim(db)
    assert db[mark] is not None
    reader = db.create_transaction()
    assert reader[mark].present()
    reader[space.pack(("read",))] = b""
    queue.claim(db)
    fdbqueue.transactional(lambda tr: queue.claim(tr))(db)
    reader.commit().wait()  # would conflict with a write of the mark


def test_an_ack_commits_together_with_the_writes_of_the_job(
    db: Any, queue: PriorityQueue, space: Subspace
) -> None:
    queue.push(db, "a")
    claim = queue.claim(db)
    done = space.pack(("done",))

    @fdbqueue.transactional
    def finish(tr: Any) -> None:
        tr[done] = b"yes"
        queue.ack(tr, claim)

    lapse(db, queue)
    other = queue.claim(db)  # replaces the expired claim
    with pytest.raises(LeaseLost):
        finish(db)
    assert db[done] is None
    assert other.attempt == 2
    claim = other
    finish(db)
    assert db[done] == b"yes"


def test_a_late_worker_conflicts_with_the_claim_that_replaced_its_own(
    db: Any, queue: PriorityQueue, space: Subspace
) -> None:
    """Both read before either commits, so the later commit conflicts."""
    queue.push(db, "a")
    claim = queue.claim(db)
    late = db.create_transaction()
    late[space.pack(("done",))] = b"late"
    queue.ack(late, claim)
    lapse(db, queue)
    assert queue.claim(db).item == claim.item
    with pytest.raises(fdbqueue.error_classes()) as error:
        late.commit().wait()
    assert error.value.code == 1020


def test_a_claim_of_several_items_ends_as_a_whole_or_item_by_item(
    db: Any, queue: PriorityQueue
) -> None:
    queue.push_many(db, "abcde", priorities=[5, 4, 3, 2, 1])
    claim = queue.claim(db, n=4)
    assert values(claim.items) == ["e", "d", "c", "b"]
    first, second, *others = list(claim)
    queue.ack(db, first)
    queue.nack(db, second, delay=0)
    for each in others:
        queue.release(db, each)
    assert values(queue.items(db)) == ["d", "c", "b", "a"]
    with pytest.raises(LeaseLost):
        queue.ack(db, claim)
    assert queue.claim(db, n=10).attempts == (2, 1, 1, 1)


def test_a_claim_of_several_items_is_acknowledged_completely_or_not_at_all(
    db: Any, queue: PriorityQueue
) -> None:
    queue.push_many(db, "ab")
    claim = queue.claim(db, n=2)
    queue.ack(db, list(claim)[1])
    with pytest.raises(LeaseLost):
        queue.ack(db, claim)
    queue.release(db, next(iter(claim)))
    assert values(queue.items(db)) == ["a"]


# Expiry of leases


def test_an_item_with_an_expired_lease_returns_to_its_position(
    db: Any, queue: PriorityQueue, clock: Clock
) -> None:
    queue.push_many(db, "abcd", priorities=[1, 1, 2, 2])
    claims = [queue.claim(db, lease=60) for _ in range(3)]
    queue.push(db, "e", 1)
    lapse(db, queue)
    clock.advance(1)
    assert values(queue.pop_many(db, 9)) == ["a", "b", "e", "c", "d"]
    assert check(db, queue).ok
    for claim in claims:
        with pytest.raises(LeaseLost):
            queue.ack(db, claim)


def test_a_lease_expires_by_the_clock_of_the_database(db: Any, queue: PriorityQueue) -> None:
    queue.push(db, "a")
    claim = queue.claim(db, lease=1000)
    assert queue.claim(db) is None
    began = time.monotonic()
    queue.extend(db, claim, lease=0.3)
    again = queue.claim(db, wait=60)
    assert 0.25 < time.monotonic() - began < 60
    assert (again.item, again.attempt) == (claim.item, 2)


def test_an_extended_lease_does_not_expire_early(db: Any, queue: PriorityQueue) -> None:
    queue.push_many(db, "ab")
    kept, lost = queue.claim(db, lease=400), queue.claim(db, lease=400)
    queue.extend(db, kept, lease=1000)
    lapse(db, queue, seconds=500)
    assert queue.claim(db).item == lost.item
    assert queue.claim(db) is None
    assert check(db, queue).ok
    queue.ack(db, kept)


def test_a_pop_in_a_transaction_finds_an_item_with_an_expired_lease(
    db: Any, queue: PriorityQueue
) -> None:
    queue.push(db, "a")
    queue.claim(db)
    lapse(db, queue)
    pop = fdbqueue.transactional(lambda tr: PriorityQueue(queue.subspace).pop(tr))
    assert pop(db).value == "a"
    assert check(db, queue).ok


def test_a_new_item_stands_behind_claimed_and_delayed_items(db: Any, queue: PriorityQueue) -> None:
    queue.push_many(db, "abc")
    first, *others = list(queue.claim(db, n=3))
    queue.release(db, first)
    queue.push(db, "d")
    for each in others:
        queue.release(db, each)
    queue.push_many(db, "ef", delay=60)
    queue.push(db, "g")
    come_due(db, queue)
    assert values(queue.pop_many(db, 9)) == list("abcdefg")


# Failures


def test_the_retry_delay_of_an_item_grows_with_each_failure(db: Any, queue: PriorityQueue) -> None:
    queue.push(db, "a")
    layout = layout_of(queue)
    for attempt in range(1, 16):
        claim = queue.claim(db)
        assert claim.attempt == attempt
        before = milliseconds()
        queue.nack(db, claim, error="busy")
        assert queue.claim(db) is None
        assert queue.stats(db).delayed == 1
        assert check(db, queue).ok
        (row,) = db[slice(*layout.range_of(layout.dues))]
        waits = layout.unpack_timer_key(layout.dues, row.key)[0] - before
        longest = min(3_600_000, 1000 * 2 ** (attempt - 1))
        assert longest / 2 <= waits <= longest + 5_000
        come_due(db, queue)


def test_an_item_that_fails_too_often_becomes_a_dead_letter(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space["dead"], max_attempts=3)
    item = queue.push(db, "a", 7)
    for attempt in range(1, 4):
        claim = queue.claim(db)
        assert claim.attempt == attempt
        queue.nack(db, claim, delay=0, error="x" * 2000)
    assert queue.claim(db) is None
    (letter,) = queue.items(db, state="dead")
    assert (letter.item, letter.id, letter.attempts) == (item, item.id, 3)
    assert letter.error == "x" * 1000
    assert letter.died_at is not None
    assert abs(datetime.now(timezone.utc) - letter.died_at) < timedelta(minutes=1)
    assert check(db, queue) == fdbqueue.admin.CheckReport(0, 0, 0, 1, 0, (), False)
    assert queue.retry(db, item)
    assert not queue.retry(db, item)
    assert queue.claim(db).attempt == 1
    lapse(db, queue)
    for _ in range(2):
        queue.claim(db)
        lapse(db, queue)
    assert queue.claim(db) is None
    (letter,) = queue.items(db, state="dead")
    assert letter.error == "its lease ran out"
    assert queue.remove(db, letter.id)
    assert not queue.remove(db, letter.id)
    assert list(queue.items(db, state="dead")) == []


def test_large_payloads_are_deleted_with_their_items(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space["large"], codec="bytes", max_attempts=2)
    large = b"\xffattempts:" + b"x" * 300_000
    ids = [queue.push(db, large).id for _ in range(3)]
    first, second, third = list(queue.claim(db, n=3))
    assert check(db, queue).ok
    queue.nack(db, first, delay=60)
    queue.release(db, third)
    assert check(db, queue).ok
    come_due(db, queue)
    assert queue.pop(db).value == large
    claim = queue.claim(db)
    assert claim.item.value == large
    queue.release(db, claim)
    queue.ack(db, second)
    for _ in range(2):
        queue.nack(db, queue.claim(db), delay=0)
    assert queue.is_empty(db)
    assert check(db, queue).ok
    (letter,) = queue.items(db, state="dead")
    assert (letter.item.value, letter.id) == (large, ids[2])
    queue.remove(db, letter.id)
    begin, end = layout_of(queue).range_of(layout_of(queue).pieces)
    assert list(db[begin:end]) == []


def test_clear_removes_claimed_delayed_and_dead_items(db: Any, queue: PriorityQueue) -> None:
    queue.configure(db, max_attempts=1)
    queue.push_many(db, range(3))
    queue.push(db, "later", delay=60)
    queue.nack(db, queue.claim(db))
    claim = queue.claim(db)
    queue.clear(db)
    assert check(db, queue) == fdbqueue.admin.CheckReport(0, 0, 0, 0, 0, (), False)
    assert list(queue.items(db, state="dead")) == []
    with pytest.raises(LeaseLost):
        queue.ack(db, claim)


# Delays


def test_a_delayed_item_becomes_available_when_it_is_due(db: Any, queue: PriorityQueue) -> None:
    queue.push(db, "last", 5)
    queue.push(db, "later", 1, delay=1000)
    assert (queue.size(db), queue.counts(db), queue.stats(db).delayed) == (1, {5: 1}, 1)
    assert queue.pop(db).value == "last"
    assert queue.pop(db) is None
    began = time.monotonic()
    queue.push(db, "soon", 1, delay=0.4)
    assert queue.pop(db, wait=60).value == "soon"
    assert 0.35 < time.monotonic() - began < 60
    come_due(db, queue)
    assert queue.pop(db).value == "later"
    assert check(db, queue) == fdbqueue.admin.CheckReport(0, 0, 0, 0, 0, (), False)


def test_a_delayed_item_keeps_the_position_of_its_push(
    db: Any, queue: PriorityQueue, clock: Clock
) -> None:
    at = datetime.now(timezone.utc) + timedelta(hours=1)
    for value, time_or_none in [("a", None), ("b", at), ("c", at), ("d", None)]:
        queue.push(db, value, 1, at=time_or_none)
    come_due(db, queue)
    assert values(queue.pop_many(db, 9)) == ["a", "b", "c", "d"]
    queue.push(db, "old", at=datetime(1970, 1, 1, tzinfo=timezone.utc) - timedelta(days=1))
    queue.push(db, "now", delay=0)
    clock.advance(1)
    assert set(values(queue.pop_many(db, 2))) == {"old", "now"}


def test_a_waiting_pop_wakes_when_the_next_item_is_due(
    db: Any, queue: PriorityQueue, asleep: threading.Event
) -> None:
    queue.push(db, "far", delay=1000)
    popped: list[Any] = []
    thread = threading.Thread(target=lambda: popped.append(queue.pop(db, wait=60)))
    thread.start()
    assert asleep.wait(60)
    queue.push(db, "near", delay=0.2)
    thread.join(60)
    assert popped[0].value == "near"


def test_delayed_items_count_towards_the_bound(db: Any, queue: PriorityQueue) -> None:
    queue.configure(db, max_size=2)
    assert queue.push(db, "a", delay=60) is not None
    assert queue.push(db, "b") is not None
    assert unless_full(queue.push, db, "c", delay=60) is None
    assert check(db, queue).ok


@pytest.mark.parametrize(
    "options",
    [
        {"delay": -1},
        {"delay": math.nan},
        {"delay": math.inf},
        {"delay": "1"},
        {"delay": True},
        {"at": 5},
        {"at": datetime(2030, 1, 1)},
        {"at": datetime.now(timezone.utc), "delay": 1},
    ],
)
def test_an_invalid_delay_is_rejected(db: Any, queue: PriorityQueue, options: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"delay|at is"):
        queue.push(db, 1, **options)
    assert list(db.get_range_startswith(queue.subspace.key())) == []


@pytest.mark.parametrize("lease", [0, -1, math.nan, math.inf, "1", True, None])
def test_an_invalid_lease_is_rejected(db: Any, queue: PriorityQueue, lease: Any) -> None:
    queue.push(db, 1)
    with pytest.raises((ValueError, TypeError), match="a lease is"):
        queue.claim(db, lease=lease)
    claim = queue.claim(db)
    with pytest.raises((ValueError, TypeError), match="a lease is"):
        queue.extend(db, claim, lease)
    for n in (0, -1, True, 1.5):
        with pytest.raises(ValueError, match="from 1"):
            queue.claim(db, n=n)
    with pytest.raises(InvalidItemId):
        queue.retry(db, "nonsense")
    queue.ack(db, claim)


# Tasks


def test_tasks_are_claimed_in_order_and_found_again_after_release(db: Any, space: Subspace) -> None:
    tasks = TaskQueue(space["tasks"])
    ids = [tasks.push(db, priority=p, agent_name="ada", payload=p) for p in (3, 1, 2)]
    claim = tasks.claim(db)
    assert (claim.item.id, claim.item.payload) == (ids[1], 1)
    assert tasks.get_task(db, ids[1]) == claim.item
    assert [task.payload for task in tasks.get_tasks_for_agent(db, "ada")] == [2, 3]
    assert check(db, tasks).ok
    tasks.release(db, claim)
    assert [task.payload for task in tasks.get_tasks_for_agent(db, "ada")] == [1, 2, 3]
    assert tasks.get_stats(db).by_agent == {"ada": 3}
    assert check(db, tasks).ok


def test_a_task_that_fails_too_often_becomes_a_dead_letter(db: Any, name: str) -> None:
    tasks = TaskQueue.named(db, name, max_attempts=1)
    task_id = tasks.push(db, agent_name="ada", payload={"n": 1})
    tasks.nack(db, tasks.claim(db), error="no paper")
    (letter,) = tasks.items(db, state="dead")
    assert (letter.item.id, letter.item.payload, letter.error) == (task_id, {"n": 1}, "no paper")
    assert tasks.retry(db, letter.id)
    assert tasks.get_task(db, task_id) == letter.item
    assert TaskQueue.named(db, name).options(db).max_attempts == 1
    tasks.configure(db, max_attempts=None)
    tasks.nack(db, tasks.claim(db), delay=0)
    assert tasks.claim(db).attempt == 2
    assert check(db, tasks).ok


# Concurrency


def test_each_job_takes_effect_once_despite_expired_leases_and_lost_replies(
    db: Any, queue: PriorityQueue, space: Subspace, rng: random.Random
) -> None:
    """Workers stall, fail and release; each job increments its counter as it ends."""
    db.options.set_transaction_max_retry_delay(1)
    queue.push_many(db, range(60))
    effects = space["effects"]
    finished = threading.Event()

    def work(seed: int) -> None:
        draw = random.Random(seed)
        faulty = FaultyDatabase(db, before=0.1, after=0.1, conflict=0.1, seed=seed)

        @fdbqueue.transactional(receipts=space["receipts"])
        def finish(tr: Any, claim: Any) -> None:
            tr.add(effects.pack((claim.item.value,)), (1).to_bytes(8, "little"))
            queue.ack(tr, claim)

        while not finished.is_set():
            claim = queue.claim(faulty, lease=60, within=8)
            if claim is None:
                finished.wait(0.01)
                continue
            try:
                what = draw.random()
                if what < 0.15:
                    queue.nack(faulty, claim, delay=0)
                elif what < 0.3:
                    queue.release(faulty, claim)
                elif what < 0.4:
                    queue.extend(faulty, claim, 60)
                    finish(faulty, claim)
                else:
                    finish(faulty, claim)
            except LeaseLost:
                pass

    def lapses() -> None:
        while not finished.wait(0.02):
            lapse(db, queue)
            begin, end = effects.range().start, effects.range().stop
            if len(list(db[begin:end])) == 60 and check(db, queue).ready == 0:
                finished.set()

    with ThreadPoolExecutor(7) as pool:
        futures = [pool.submit(work, rng.randrange(2**32)) for _ in range(6)]
        futures.append(pool.submit(lapses))
        for future in futures:
            future.result()
    begin, end = effects.range().start, effects.range().stop
    counted = Counter({effects.unpack(row.key)[0]: row.value[0] for row in db[begin:end]})
    assert counted == Counter(range(60))
    lapse(db, queue)
    assert queue.claim(db) is None
    assert check(db, queue).ok


def test_a_job_takes_few_mutations_and_fewer_of_keys_that_all_clients_write(
    db: Any, queue: PriorityQueue
) -> None:
    counting = CountingDatabase(db)
    layout = layout_of(queue)
    mutations: list[list[bytes]] = []
    for _ in range(3):
        counting.clear()
        queue.push(counting, "job", 7)
        queue.ack(counting, queue.claim(counting))
        # History notes a waiting time and a run time once a second.
        noted = layout.history
        mutations.append([key for key in counting.mutations if not key.startswith(noted)])
    _, second, third = mutations  # the first one also marks the queue as one with timers
    assert len(second) == len(third) == 14
    receipts = layout.receipts
    both = {key for key in second if key in third and not receipts.contains(key)}
    assert len([key for key in second if key in both]) == 6


def test_a_claim_of_an_empty_queue_writes_nothing(db: Any, queue: PriorityQueue) -> None:
    assert queue.claim(db) is None
    stored = db.get_range_startswith(queue.subspace.key())
    receipts = layout_of(queue).receipts
    assert [row.key for row in stored if not receipts.contains(row.key)] == []
