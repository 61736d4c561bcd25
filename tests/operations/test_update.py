"""An item that waits can be changed, and keeps its id; one that is cancelled ends."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue, TaskQueue
from fdbqueue.admin import check
from fdbqueue.errors import LeaseLost, QueueFull, WrongState
from tests.support.keys import number_in, rows_in
from tests.support.kinds import KINDS, push
from tests.support.leases import come_due, lapse
from tests.support.scan import assert_views_agree


@pytest.fixture
def moved(db: Any, name: str) -> tuple[PriorityQueue, str]:
    """Return a queue, and the id of an item that was moved twice."""
    queue = PriorityQueue.named(db, name, max_attempts=2, keep=10)
    item = queue.push(db, "job", 5, unique="key")
    queue.push(db, "other", 3)
    first = queue.update(db, item, priority=4)
    second = queue.update(db, first, priority=1)
    assert item.id == first.id == second.id
    assert len({item.key, first.key, second.key}) == 3
    assert (second.value, second.priority, number_in(db, queue, "moved")) == ("job", 1, 1)
    return queue, item.id


def test_a_moved_item_is_found_by_its_id_in_every_state(
    db: Any, moved: tuple[PriorityQueue, str]
) -> None:
    queue, item_id = moved

    def is_in(state: str | None) -> None:
        assert_views_agree(db, queue)
        info = queue.get(db, item_id)
        assert queue.state(db, item_id) == state == (info and info.state)
        assert info is None or (info.id, info.item.id, info.item.value) == (item_id, item_id, "job")

    is_in("ready")
    assert queue.position(db, item_id) == 0
    assert queue.peek(db).id == item_id
    claim = queue.claim(db)
    assert claim.item.id == item_id
    is_in("claimed")
    queue.release(db, claim)
    is_in("ready")
    with pytest.raises(LeaseLost, match=item_id):
        queue.ack(db, claim)
    queue.nack(db, queue.claim(db), delay=600, error="busy")
    is_in("delayed")
    come_due(db, queue)
    is_in("ready")
    queue.claim(db)
    lapse(db, queue)
    is_in("dead")
    assert [letter.id for letter in queue.items(db, state="dead")] == [item_id]
    assert queue.retry(db, item_id)
    is_in("ready")
    assert queue.push(db, "again", unique="key").id == item_id
    queue.ack(db, queue.claim(db), result=7)
    is_in("done")
    assert queue.result(db, item_id) == 7
    assert queue.remove(db, item_id)
    is_in(None)
    assert number_in(db, queue, "moved") == 0


@pytest.mark.parametrize("kind", [PriorityQueue, TaskQueue])
def test_a_failed_item_that_is_moved_keeps_its_delay_and_attempts(
    db: Any, name: str, kind: Any
) -> None:
    queue = kind.named(db, name)
    value = "x" * 200_000
    item = push(db, queue, value)
    queue.nack(db, queue.claim(db), delay=600, error="busy")
    assert queue.update(db, item, priority=1)
    stats = assert_views_agree(db, queue)
    assert (stats.delayed, stats.total_pushed, stats.ready) == (1, 1, 0)
    (info,) = queue.items(db, state="delayed")
    assert (info.id, info.item.priority, info.error) == (item, 1, "busy")
    assert [attempt.error for attempt in info.failed_attempts] == ["busy"]
    come_due(db, queue)
    found = queue.pop(db)
    assert (found.id, found.priority) == (item, 1)
    assert (found.payload if kind is TaskQueue else found.value) == value
    assert number_in(db, queue, "moved") == 0
    assert_views_agree(db, queue)


NEW: dict[str, Any] = {
    "a value": {"value": "new"},
    "a large value": {"value": "y" * 150_000},
    "a delay": {"delay": 600},
    "no delay": {"delay": 0},
    "a group": {"group": "b"},
    "no group": {"group": None},
    "a priority": {"priority": 9},
    "all": {"value": "y" * 99_999, "delay": 60, "group": "c", "priority": 1},
}


@pytest.mark.parametrize("options", NEW.values(), ids=NEW)
@pytest.mark.parametrize("delay", [0, 300])
@pytest.mark.parametrize("value", ["small", "x" * 200_000], ids=len)
def test_what_an_update_leaves_out_stays(
    db: Any, queue: PriorityQueue, options: dict[str, Any], delay: int, value: str
) -> None:
    given = {"unique": "k", "group": "a", "ttl": 9_000, "delay": delay}
    first = queue.push(db, "before", 5, group="a")
    item = queue.push(db, value, 5, **given)
    queue.push(db, "behind", 5, group="a")
    before = queue.get(db, item)
    changed = queue.update(db, item, **options)
    info = queue.get(db, item)
    assert (changed.id, changed.value) == (item.id, options.get("value", value))
    assert changed == info.item
    assert info.item.priority == options.get("priority", 5)
    assert info.group == options.get("group", "a")
    assert info.state == ("delayed" if options.get("delay", delay) else "ready")
    assert (info.unique, info.expires_at) == ("k", before.expires_at)
    keeps_time = "delay" not in options or (options["delay"], delay) == (0, 0)
    assert (info.due_at == before.due_at) == keeps_time
    moves = not options.keys().isdisjoint({"group", "priority"})
    assert (changed.key == item.key) != moves
    assert check(db, queue).ok
    assert not queue.push(db, "again", unique="k").is_new
    come_due(db, queue)
    assert {each.value for each in queue.pop_many(db, 9)} == {"before", changed.value, "behind"}
    assert first.priority == 5
    assert rows_in(db, queue, "pieces", "moved", "unique_keys", "dues", "expiries") == []


@pytest.mark.parametrize("state", ["claimed", "done", "dead", "gone"])
def test_an_item_in_another_state_is_not_changed_and_the_error_says_why(
    db: Any, name: str, state: str
) -> None:
    queue = PriorityQueue.named(db, name, max_attempts=1, keep=10)
    item = queue.push(db, "job", 5)
    claim = queue.claim(db)
    assert claim is not None
    if state == "done":
        queue.ack(db, claim)
    elif state != "claimed":
        queue.nack(db, claim)
    if state == "gone":
        queue.remove(db, item)
    for new in ({"priority": 1}, {"value": 1}, {"delay": 60}, {"group": "a"}):
        words = "is not in the queue" if state == "gone" else f"is {state}; "
        with pytest.raises(WrongState, match=words) as caught:
            queue.update(db, item.id, **new)
        assert (caught.value.id, caught.value.state) == (item.id, state)
    assert queue.state(db, item) == (None if state == "gone" else state)
    assert_views_agree(db, queue)


def test_an_update_into_a_full_group_is_refused(db: Any, queue: PriorityQueue) -> None:
    queue.set_group(db, "small", max_size=2)
    first, second, third = queue.push_many(db, [1, 2, 3])
    queue.update(db, first, group="small")
    queue.update(db, second, group="small", delay=60)
    with pytest.raises(QueueFull, match="small"):
        queue.update(db, third, group="small", value=9)
    assert queue.update(db, first, group="small", value=7).value == 7  # it has its place
    queue.update(db, second, group=None)
    assert queue.update(db, third, group="small").value == 3
    assert [group.ready for group in queue.groups(db)] == [2]
    assert_views_agree(db, queue)


def test_a_failed_item_of_a_sequence_that_is_postponed_still_holds_the_others(
    db: Any, queue: PriorityQueue
) -> None:
    queue.set_group(db, "a", concurrency=1)
    first, _ = queue.push_many(db, [1, 2], group="a")
    queue.nack(db, queue.claim(db), delay=60)
    queue.update(db, first, value="1 again", delay=600)
    assert queue.claim(db) is None
    queue.update(db, first, delay=0)
    assert queue.claim(db).item.value == "1 again"


@pytest.mark.parametrize("new", [{"delay": 0.01}, {"delay": 0}, {"group": None}], ids=str)
def test_an_update_wakes_a_client_that_waits(
    db: Any, queue: PriorityQueue, asleep: threading.Event, new: dict[str, Any]
) -> None:
    """It would sleep for ten minutes."""
    queue.set_group(db, "held", paused=True)
    delay = {} if "group" in new else {"delay": 900}
    item = queue.push(db, 1, group="held" if "group" in new else None, **delay)
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(queue.claim, db, wait=600)
        assert asleep.wait(60)
        queue.update(db, item, **new)
        assert waits.result(60).item.id == item.id


def test_items_behind_a_moved_one_are_listed(db: Any, jobs: Any) -> None:
    items = jobs.push_many(db, range(6), priorities=range(6))
    jobs.update(db, items[5], priority=2)
    assert [item.value for item in jobs.items(db, after=items[5].id)] == [3, 4]
    assert [item.value for item in jobs.items(db, after=items[5], reverse=True)] == [2, 1, 0]
    page = [*jobs.items(db, limit=4)]
    assert [item.value for item in page] == [0, 1, 2, 5]
    jobs.remove(db, page[-1])  # a page may begin behind an item that is gone
    assert [item.value for item in jobs.items(db, after=page[-1])] == [3, 4]


def test_an_item_that_comes_back_to_its_first_position_is_found(db: Any, jobs: Any) -> None:

    @fdbqueue.transactional
    def body(tr: Any) -> Any:
        item = jobs.push(tr, "job", 1)
        jobs.update(tr, item, priority=5)
        back = jobs.update(tr, item, priority=1)
        assert (back.id, back.key) == (item.id, item.key)
        return item

    item = body(db)
    assert jobs.state(db, item) == "ready"
    assert_views_agree(db, jobs)
    assert jobs.pop(db).id == item.id
    assert jobs.state(db, item) is None
    assert number_in(db, jobs, "moved") == 0


def test_a_check_repairs_the_way_to_a_moved_item(db: Any, moved: tuple[PriorityQueue, str]) -> None:
    queue, item_id = moved
    for row in rows_in(db, queue, "moved"):
        del db[row.key]
    assert queue.state(db, item_id) is None
    assert not check(db, queue, repair=True).ok
    assert queue.state(db, item_id) == "ready"
    assert check(db, queue).ok


# Cancelled items


@pytest.mark.parametrize(
    ("kind", "end", "keep"),
    [
        *((kind, end, 100) for kind in KINDS for end in ("ack", "lease")),
        *((PriorityQueue, end, None) for end in ("nack", "release", "dead", "last lease")),
    ],
)
def test_a_claimed_item_ends_with_its_claim(
    db: Any, name: str, kind: Any, end: str, keep: int | None
) -> None:
    queue = kind.named(db, name, keep=keep, max_attempts=1 if end == "last lease" else None)
    item = push(db, queue, "job")
    claim = queue.claim(db, client="a worker")
    before = queue.get(db, item)
    assert queue.cancel(db, item)
    assert queue.get(db, item).cancelling
    assert queue.state(db, item) == "claimed"
    assert_views_agree(db, queue)
    if end == "dead":
        queue.nack(db, claim, dead=True)
    elif "lease" in end:
        queue.extend(db, claim)
        lapse(db, queue)
        assert queue.get(db.create_transaction(), item).cancelling  # until a client sweeps
    else:
        getattr(queue, end)(db, claim)
    stats = assert_views_agree(db, queue)
    assert (stats.total_completed, stats.total_failed) == (1, 0)
    assert (stats.is_empty, stats.dead) == (True, 0)
    with pytest.raises(LeaseLost):
        queue.ack(db, claim)
    info = queue.get(db, item)
    if keep is None:
        assert info is None
        return
    assert (info.state, info.outcome, info.attempts) == ("done", "cancelled", 1)
    assert (info.claimed_by, info.claimed_at) == ("a worker", before.claimed_at)
    assert not queue.cancel(db, item)


def test_a_discarded_item_says_why(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name, keep=100)
    item = queue.push(db, "job")
    queue.ack(db, queue.claim(db), discarded="the customer has left")
    info = queue.get(db, item)
    assert (info.state, info.outcome, info.error) == ("done", "discarded", "the customer has left")
    assert info.finished_at is not None


def test_only_the_cancelled_items_of_a_claim_end(db: Any, queue: Any) -> None:
    first, second = queue.push(db, "a"), queue.push(db, "b")
    claim = queue.claim(db, n=2)
    queue.cancel(db, first)
    queue.nack(db, claim, delay=0)
    assert queue.state(db, first) is None
    assert queue.state(db, second) == "ready"
    assert_views_agree(db, queue)
