"""A full group refuses pushes."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

import fdbqueue
from fdbqueue import admin
from fdbqueue.errors import QueueFull
from fdbqueue.operations.items import NewItem
from fdbqueue.queue.base import store_of
from tests.support.counting import CountingDatabase
from tests.support.full import unless_full


@pytest.fixture(params=["priority", "fifo"])
def jobs(db: Any, name: str, request: pytest.FixtureRequest) -> Any:
    kind = fdbqueue.PriorityQueue if request.param == "priority" else fdbqueue.Queue
    return kind.named(db, f"{name}jobs")


@pytest.fixture
def prioritized(db: Any, name: str) -> Any:
    return fdbqueue.PriorityQueue.named(db, f"{name}jobs")


def values(db: Any, queue: Any, state: Any) -> list[Any]:
    return sorted(info.item.value for info in queue.items(db, state=state))


def group_of(db: Any, queue: Any, name: str = "ada") -> Any:
    return next(group for group in queue.groups(db) if group.name == name)


# Refused


def test_ready_delayed_and_claimed_items_fill_a_group(db: Any, jobs: Any) -> None:
    jobs.set_group(db, "ada", max_size=3)
    jobs.push_many(db, ["first", "second"], group="ada")
    delayed = jobs.push(db, "third", group="ada", delay=3600)
    claim = jobs.claim(db)
    with pytest.raises(QueueFull, match="the group 'ada' holds at most 3 items") as caught:
        jobs.push(db, "fourth", group="ada")
    assert (caught.value.max_size, caught.value.wanted, caught.value.group) == (3, 1, "ada")
    assert unless_full(jobs.push, db, "fourth", group="ada") is None
    assert jobs.push(db, "other", group="bob").value == jobs.push(db, "other").value == "other"
    jobs.nack(db, claim, delay=60)
    with pytest.raises(QueueFull):
        jobs.push(db, "fourth", group="ada")
    assert jobs.remove(db, delayed)
    assert jobs.push(db, "fourth", group="ada").value == "fourth"
    group = group_of(db, jobs)
    assert (group.ready, group.delayed, group.claimed, group.max_size) == (2, 1, 0, 3)
    assert jobs.stats(db).total_rejected == 3
    assert admin.check(db, jobs).problems == ()


@pytest.mark.parametrize("end", ["pop", "ack", "dead", "expire", "clear"])
def test_the_end_of_an_item_makes_room(db: Any, jobs: Any, end: str) -> None:
    jobs.set_group(db, "ada", max_size=1)
    jobs.push(db, 1, group="ada", ttl=0.01 if end == "expire" else None)
    if end == "pop":
        jobs.pop(db)
    elif end == "clear":
        jobs.clear(db)
    elif end != "expire":
        claim = jobs.claim(db)
        with pytest.raises(QueueFull):
            jobs.push(db, 2, group="ada")
        if end == "ack":
            jobs.ack(db, claim)
        else:
            jobs.nack(db, claim, dead=True)
    else:
        threading.Event().wait(0.02)
        assert jobs.pop(db) is None
    assert jobs.push(db, 2, group="ada").value == 2


def test_a_push_of_several_items_is_refused_as_a_whole_or_stores_the_first(
    db: Any, jobs: Any
) -> None:
    jobs.set_group(db, "ada", max_size=3)
    with pytest.raises(QueueFull, match="no room for 4 more"):
        jobs.push_many(db, [1, 2, 3, 4], group="ada")
    assert jobs.size(db) == 0
    groups = ["ada", "bob", "ada", "ada", "ada", "bob"]
    pushed = jobs.push_many(db, [*range(6)], groups=groups, as_many_as_fit=True)
    assert [item.value for item in pushed] == [0, 1, 2, 3]
    assert jobs.push_many(db, [1], group="ada", as_many_as_fit=True) == []
    assert unless_full(jobs.push_many, db, [1], group="ada") is None


def test_a_group_has_the_bound_of_all_groups_unless_it_has_its_own(db: Any, jobs: Any) -> None:
    jobs.set_group(db, None, max_size=1)
    jobs.set_group(db, "big", max_size=2)
    for group, n in (("ada", 1), ("big", 2)):
        jobs.push_many(db, [0] * n, group=group)
        with pytest.raises(QueueFull):
            jobs.push(db, 0, group=group)
    jobs.push_many(db, [0] * 5)  # the items without a group have no bound
    jobs.set_group(db, "big", max_size=None)
    with pytest.raises(QueueFull, match="at most 1 item "):
        jobs.push(db, 0, group="big")
    jobs.set_group(db, None, max_size=None)
    jobs.push(db, 0, group="ada")
    assert admin.check(db, jobs).problems == ()


def test_the_error_names_the_bound_that_was_met(db: Any, name: str) -> None:
    jobs = fdbqueue.PriorityQueue.named(db, f"{name}jobs", max_size=3)
    jobs.set_group(db, "ada", max_size=1)
    jobs.push(db, 1, group="ada")
    with pytest.raises(QueueFull, match="the group 'ada'"):
        jobs.push(db, 2, group="ada")
    jobs.push_many(db, [1, 2])
    with pytest.raises(QueueFull, match="the queue holds at most 3 items"):
        jobs.push(db, 2, group="bob")


def test_a_refusal_names_the_queue_once_there_is_room(db: Any, name: str) -> None:
    jobs = fdbqueue.PriorityQueue.named(db, f"{name}jobs", max_size=3)
    jobs.set_group(db, None, max_size=1)
    item = jobs.push(db, 1, group="ada")
    store = store_of(jobs)
    new = [NewItem(store.items.levels.level_of(item.key), b"", b"")]
    jobs.pop(db)
    refused = fdbqueue.transactional(lambda tr: store._bounds.refusal(tr, new))(db)
    assert (refused.group, refused.max_size) == (None, 3)


def test_a_dead_letter_comes_back_only_if_its_group_has_room(db: Any, jobs: Any) -> None:
    jobs.set_group(db, "ada", max_size=1)
    item = jobs.push(db, 1, group="ada")
    jobs.nack(db, jobs.claim(db), dead=True)
    jobs.push(db, 2, group="ada")
    with pytest.raises(QueueFull, match="'ada'"):
        jobs.retry(db, item)
    assert jobs.pop(db).value == 2
    assert jobs.retry(db, item)
    with pytest.raises(QueueFull):
        jobs.push(db, 2, group="ada")


def test_a_bound_holds_for_the_pushes_of_one_transaction(db: Any, jobs: Any) -> None:
    jobs.set_group(db, "ada", max_size=2)

    def body(tr: Any) -> list[Any]:
        jobs.push(tr, 1, group="ada")
        jobs.pop(tr)
        pushed = [unless_full(jobs.push, tr, n, group="ada") for n in range(3)]
        with pytest.raises(QueueFull):
            jobs.push(tr, 9, group="ada")
        return pushed

    pushed = fdbqueue.transactional(body)(db)
    assert [item and item.value for item in pushed] == [0, 1, None]
    assert admin.check(db, jobs).problems == ()


@pytest.mark.parametrize("freed", ["ada", "bob"])
def test_a_refusal_conflicts_with_what_makes_room(db: Any, jobs: Any, freed: str) -> None:
    jobs.set_group(db, "ada", max_size=1)
    items = {group: jobs.push(db, 1, group=group) for group in ("ada", "bob")}
    tr = db.create_transaction()
    assert unless_full(jobs.push, tr, 2, group="ada") is None
    jobs.remove(db, items[freed])
    if freed == "bob":
        tr.commit().wait()
        return
    with pytest.raises(fdbqueue.error_classes()) as caught:
        tr.commit().wait()
    assert caught.value.code == 1020


def test_concurrent_pushes_never_exceed_the_bound(db: Any, name: str) -> None:
    bound, n = 7, 8
    handles = [fdbqueue.PriorityQueue.named(db, f"{name}jobs") for _ in range(n)]
    handles[0].set_group(db, "ada", max_size=bound)
    too_many: list[int] = []

    def work(number: int) -> int:
        jobs, choice, pushed = handles[number], random.Random(number), 0
        for _ in range(25):
            options: dict[str, Any] = {"delay": 3600} if choice.random() < 0.2 else {}
            item = unless_full(jobs.push, db, number, group="ada", **options)
            pushed += item is not None
            group = group_of(db, jobs)
            if group.ready + group.delayed + group.claimed > bound:
                too_many.append(number)
            if choice.random() < 0.6 and (claim := jobs.claim(db)):
                with suppress(fdbqueue.errors.LeaseLost):
                    jobs.ack(db, claim) if choice.random() < 0.6 else jobs.nack(db, claim, delay=0)
        return pushed

    with ThreadPoolExecutor(n) as threads:
        pushed = sum(threads.map(work, range(n)))
    assert not too_many
    assert pushed >= bound
    assert admin.check(db, handles[0]).problems == ()


def test_a_bound_that_is_set_meanwhile_is_not_exceeded(db: Any, jobs: Any) -> None:
    """Also if it is the first of the queue: then a push has not looked at the settings."""
    for bound in (1, 2):
        pushing = db.create_transaction()
        assert jobs.push(pushing, 1, group="ada")
        jobs.set_group(db, "ada", max_size=bound)
        with pytest.raises(fdbqueue.error_classes()) as caught:
            pushing.commit().wait()
        assert caught.value.code == 1020


def test_the_item_of_a_tick_meets_the_bound_of_its_group(db: Any, jobs: Any) -> None:
    jobs.schedules.add(db, "tick", "tick", every="1h", group="ada")
    jobs.set_group(db, "ada", max_size=1)
    jobs.push(db, "first", group="ada")
    with pytest.raises(QueueFull, match="'ada'"):
        jobs.schedules.run_now(db, "tick")
    assert jobs.pop(db)
    assert jobs.schedules.run_now(db, "tick")
    assert values(db, jobs, "ready") == ["tick"]
    assert admin.check(db, jobs).problems == ()


@pytest.mark.parametrize("seed", range(4))
def test_groups_are_as_full_as_a_model_says(db: Any, jobs: Any, seed: int) -> None:
    choice = random.Random(seed)
    has_priorities = isinstance(jobs, fdbqueue.PriorityQueue)
    bounds: dict[str | None, Any] = {"free": None, "small": 2, None: None}
    jobs.set_group(db, "small", max_size=2)
    waiting: dict[Any, set[str]] = defaultdict(set)
    claims: list[tuple[Any, Any]] = []  # the claim, and its group
    group_by_id: dict[str, Any] = {}
    for _ in range(120):
        act = choice.choice(["push", "push", "push", "claim", "ack", "nack", "pop", "run"])
        group = choice.choice([*bounds])
        if act == "push":
            options: dict[str, Any] = {"group": group, "delay": choice.choice([None, 3600])}
            if has_priorities:
                options["priority"] = choice.choice([0, 1])
            item = unless_full(jobs.push, db, 0, **options)
            own = len(waiting[group]) + sum(each == group for _, each in claims)
            assert (item is None) == (bounds[group] == own)
            if item is None:
                continue
            waiting[group].add(item.id)
            group_by_id[item.id] = group
        elif act == "claim" and (claim := jobs.claim(db)):
            claims.append((claim, group_by_id[claim.item.id]))
            waiting[claims[-1][1]].remove(claim.item.id)
        elif act == "pop" and (item := jobs.pop(db)):
            waiting[group_by_id[item.id]].remove(item.id)
        elif act in ("ack", "nack") and claims:
            claim, group = claims.pop(choice.randrange(len(claims)))
            if act == "ack":
                jobs.ack(db, claim)
            else:
                jobs.nack(db, claim, delay=choice.choice([0, 3600]))
                waiting[group].add(claim.item.id)
        elif act == "run" and (delayed := [*jobs.items(db, state="delayed")]):
            assert jobs.retry(db, choice.choice(delayed).item)
        found: dict[Any, set[str]] = defaultdict(set)
        for state in ("ready", "delayed"):
            for info in jobs.items(db, state=state):
                found[group_by_id[info.item.id]].add(info.item.id)
        assert {**found} == {group: ids for group, ids in waiting.items() if ids}
    assert admin.check(db, jobs).problems == ()


# What it costs


def cost(counted: CountingDatabase, jobs: Any, group: str | None) -> tuple[int, int]:
    jobs.push(counted, 0, group=group)
    counted.clear()
    # In a transaction, a push does not sweep.
    fdbqueue.transactional(lambda tr: jobs.push(tr, 0, group=group))(counted)
    return counted.reads, len(counted.mutations)


def test_a_queue_whose_groups_have_no_bound_pays_nothing(db: Any, name: str) -> None:
    counted = CountingDatabase(db)
    jobs = fdbqueue.PriorityQueue.named(counted, f"{name}jobs")
    cost(counted, jobs, "ada")  # the first push stores options, and a process learns them
    before, without = cost(counted, jobs, "ada"), cost(counted, jobs, None)
    jobs.set_group(db, "bob", concurrency=3)
    assert cost(counted, jobs, "ada") == before
    jobs.set_group(db, "bob", max_size=10)
    reads, mutations = cost(counted, jobs, "ada")
    assert (reads - before[0], mutations) == (2, before[1])  # its settings, and those of all
    assert cost(counted, jobs, "bob") == (reads + 3, mutations)  # three numbers
    assert cost(counted, jobs, None) == without


def test_pushes_of_a_group_without_a_bound_conflict_with_nothing(db: Any, jobs: Any) -> None:
    jobs.set_group(db, "bob", max_size=1)
    jobs.push(db, 0, group="ada")
    pushing = [db.create_transaction() for _ in range(2)]
    for tr in pushing:
        jobs.push(tr, 1, group="ada")
    for tr in pushing:
        tr.commit().wait()


@pytest.mark.parametrize(
    ("setting", "message"),
    [({"max_size": 0}, "max_size"), ({"max_size": "2"}, "max_size")],
)
def test_a_mistake_changes_nothing(db: Any, jobs: Any, setting: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        jobs.set_group(db, "ada", **setting)
    assert jobs.groups(db) == []
