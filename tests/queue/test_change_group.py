"""One group is searched, cleared, cancelled and retried, in bounded transactions."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import PriorityQueue, Queue, TaskQueue
from fdbqueue.admin import check
from fdbqueue.coordination import sweeper
from fdbqueue.errors import LeaseLost
from fdbqueue.queue import base
from tests.support.counting import CountingDatabase
from tests.support.leases import lapse
from tests.support.scan import assert_views_agree


@pytest.fixture(params=["priority", "fifo"])
def jobs(db: Any, name: str, request: pytest.FixtureRequest) -> Any:
    kind = PriorityQueue if request.param == "priority" else Queue
    return kind.named(db, f"{name}jobs", max_attempts=1, keep=100)


STATES = ("ready", "delayed", "claimed", "dead", "done")


def in_each_state(db: Any, queue: Any, group: str | None) -> dict[str, list[Any]]:
    """Push two items of a group in each state, of different priorities where there are any."""
    found: dict[str, list[Any]] = {}
    for state in ("done", "dead", "claimed", "delayed", "ready"):
        given: Any = {"delay": 3600} if state == "delayed" else {}
        if isinstance(queue, PriorityQueue):
            given["priorities"] = [1, 7]
        pushed = found[state] = queue.push_many(db, [state, state], group=group, **given)
        if state in ("ready", "delayed"):
            continue
        claim = queue.claim(db, n=2, lease=600)
        assert {*claim.items} == {*pushed}
        if state == "dead":
            queue.nack(db, claim)
        elif state == "done":
            queue.ack(db, claim)
    return found


def states_of(db: Any, queue: Any, found: dict[str, list[Any]]) -> dict[str, list[str | None]]:
    return {state: [queue.state(db, item) for item in items] for state, items in found.items()}


UNCHANGED = {state: [state, state] for state in STATES}


@pytest.fixture
def both(db: Any, jobs: Any) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    others = in_each_state(db, jobs, "others")
    jobs.set_group(db, "others", paused=True)  # so that a claim takes those of the group
    own = in_each_state(db, jobs, "own")
    jobs.set_group(db, "others", paused=False)
    return own, others


def test_items_of_a_group_are_found_in_each_state(db: Any, jobs: Any, both: Any) -> None:
    own, _ = both
    for state in STATES:
        found = jobs.search(db, state=state, group="own")
        assert {info.id for info in found.items} == {item.id for item in own[state]}
        assert found.scanned == (4 if state == "done" else 2)
        backwards = jobs.search(db, state=state, group="own", reverse=True)
        assert backwards.items == found.items[::-1]
        first = jobs.search(db, state=state, group="own", limit=1)
        second = jobs.search(db, state=state, group="own", after=first.next)
        assert [*first.items, *second.items] == found.items
        assert jobs.count(db, state=state, group="own").count == 2
        assert jobs.count(db, state=state, group="nobody").count == 0


def test_a_group_is_found_with_other_filters_and_within_a_priority(db: Any, name: str) -> None:
    jobs = PriorityQueue.named(db, f"{name}jobs")
    for group in ("ada", "bob", None):
        jobs.push_many(db, [1, 2, 3], priorities=[1, 2, 2], group=group)
    for group, text in (("ada", "ada"), (None, "")):
        found = jobs.search(db, state="ready", group=text, priority=2)
        assert [(info.item.value, info.group) for info in found.items] == [(2, group), (3, group)]
        (info,) = jobs.search(db, state="ready", group=text, id=found.items[0].id).items
        assert info.item.value == 2
    assert jobs.count(db, state="ready", group="ada", priority=3).count == 0


def test_a_search_for_a_group_reads_no_items_of_others(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "_LOOK", 600.0)
    counted = CountingDatabase(db)
    jobs = PriorityQueue.named(counted, f"{name}jobs")
    jobs.push(db, "own", 2, group="own")
    jobs.size(db)  # and finds that the queue has no timers
    reads: list[int] = []
    for _ in range(2):
        jobs.push_many(db, [0] * 1000, priorities=[1, 2] * 500, group="flood")
        counted.clear()
        assert jobs.search(counted, state="ready", group="own", limit=1).scanned == 1
        reads.append(counted.reads)
    assert reads[0] == reads[1]


def test_items_whose_leases_are_over_are_found_where_they_return(db: Any, jobs: Any) -> None:
    jobs.configure(db, max_attempts=5)
    given = {"priorities": [3]} if isinstance(jobs, PriorityQueue) else {}
    (item,) = jobs.push_many(db, ["late"], group="ada", **given)
    jobs.claim(db)
    lapse(db, jobs)
    assert [info.id for info in jobs.search(db, state="ready", group="ada").items] == [item.id]
    assert jobs.change_all(db, "clear", group="ada") == {item.id: True}
    assert jobs.state(db, item) is None


def test_clear_removes_items_in_all_states_and_ends_claims(db: Any, jobs: Any, both: Any) -> None:
    own, others = both
    jobs.set_group(db, "own", weight=3, concurrency=2)
    cleared = jobs.change_all(db, "clear", group="own")
    assert cleared == {item.id: True for items in own.values() for item in items}
    assert states_of(db, jobs, own) == {state: [None, None] for state in STATES}
    assert states_of(db, jobs, others) == UNCHANGED
    first, second = jobs.groups(db)
    assert (first.name, first.ready, first.claimed) == ("others", 2, 2)
    assert (second.ready, second.claimed, second.weight, second.concurrency) == (0, 0, 3, 2)
    assert second.held_by is None
    assert check(db, jobs).problems == ()
    assert jobs.stats(db).claimed == 2


def test_a_worker_whose_job_was_cleared_cannot_acknowledge_it(db: Any, jobs: Any) -> None:
    jobs.set_group(db, "ada", concurrency=1)
    jobs.push_many(db, [1, 2], group="ada")
    claim = jobs.claim(db)
    assert len(jobs.change_all(db, "clear", group="ada")) == 2
    with pytest.raises(LeaseLost):
        jobs.ack(db, claim)
    jobs.push(db, 3, group="ada")
    assert jobs.claim(db).item.value == 3  # the slot is free


def test_cancel_ends_what_waits_and_tells_what_runs(db: Any, jobs: Any, both: Any) -> None:
    own, others = both
    cancelled = jobs.change_all(db, "cancel", group="own")
    waiting = [item.id for state in ("ready", "delayed", "claimed") for item in own[state]]
    assert cancelled == dict.fromkeys(waiting, True)
    ended = {"ready": ["done"] * 2, "delayed": ["done"] * 2}
    assert states_of(db, jobs, own) == UNCHANGED | ended
    assert all(jobs.get(db, item).cancelling for item in own["claimed"])
    assert states_of(db, jobs, others) == UNCHANGED
    assert not any(jobs.get(db, item).cancelling for item in others["claimed"])
    assert check(db, jobs).problems == ()


def test_retry_makes_dead_letters_ready(db: Any, jobs: Any, both: Any) -> None:
    own, others = both
    assert jobs.change_all(db, "retry", state="dead", group="own") == {
        item.id: True for item in own["dead"]
    }
    assert states_of(db, jobs, own) == UNCHANGED | {"dead": ["ready", "ready"]}
    assert states_of(db, jobs, others) == UNCHANGED
    assert jobs.change_all(db, "retry", state="dead", group="own") == {}
    jobs.nack(db, jobs.claim(db, n=9))
    jobs.configure(db, max_size=1)
    assert {*jobs.change_all(db, "retry", state="dead", group="own").values()} == {
        False
    }  # the claimed ones fill the queue
    assert check(db, jobs).problems == ()


def test_the_items_without_a_group_are_changed_by_an_empty_name(db: Any, jobs: Any) -> None:
    plain, grouped = jobs.push(db, 1), jobs.push(db, 2, group="ada")
    assert jobs.change_all(db, "clear", group="") == {plain.id: True}
    assert jobs.state(db, grouped) == "ready"


@pytest.mark.parametrize("change", ["clear", "cancel"])
def test_a_sequence_waits_for_no_item_that_was_removed(db: Any, jobs: Any, change: Any) -> None:
    jobs.configure(db, max_attempts=5)
    jobs.set_group(db, "ada", concurrency=1)
    jobs.push_many(db, [1, 2], group="ada")
    jobs.nack(db, jobs.claim(db), delay=600)
    assert jobs.groups(db)[0].held_by == "retry"
    jobs.change_all(db, change, group="ada")
    assert jobs.groups(db)[0].held_by is None
    jobs.push(db, 3, group="ada")
    assert jobs.claim(db).item.value == 3
    assert check(db, jobs).problems == ()


def test_a_large_group_is_changed_in_bounded_transactions(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_CHANGES", 10)
    counted = CountingDatabase(db)
    jobs = PriorityQueue.named(counted, f"{name}jobs")
    jobs.push_many(db, [0] * 35, group="ada")
    jobs.push(db, 1, group="bob")
    counted.clear()
    assert len(jobs.change_all(counted, "cancel", group="ada")) == 35
    assert counted.commits == 4
    assert [item.value for item in jobs.items(db)] == [1]
    assert_views_agree(db, jobs)


def test_all_items_of_a_group_get_another_priority(db: Any, name: str) -> None:
    jobs = PriorityQueue.named(db, f"{name}jobs")
    jobs.push_many(db, [1, 2], 5, group="ada")
    jobs.push(db, 3, 5, group="bob")
    moved = jobs.change_all(db, "reprioritize", state="ready", group="ada", to=9)
    assert [*moved.values()] == [True, True]
    assert [item.value for item in jobs.items(db)] == [3, 1, 2]


@pytest.mark.parametrize("change", ["clear", "cancel", "retry"])
@pytest.mark.parametrize("group", ["x" * 256, 7])
def test_a_group_is_text(db: Any, jobs: Any, change: Any, group: Any) -> None:
    with pytest.raises(ValueError, match="a group is text of 0 to 255 bytes"):
        jobs.change_all(db, change, group=group)


@pytest.mark.parametrize("change", ["clear", "cancel", "retry"])
@pytest.mark.parametrize("kind", [PriorityQueue, Queue, TaskQueue])
def test_no_group_is_not_all_groups(db: Any, name: str, kind: Any, change: Any) -> None:
    jobs = kind.named(db, f"{name}jobs")
    given = {"payload" if kind is TaskQueue else "value": 1}
    jobs.push(db, **given, group="ada")
    jobs.push(db, **given)
    with pytest.raises(ValueError, match="None matches every item"):
        jobs.change_all(db, change, group=None)
    assert jobs.size(db) == 2
