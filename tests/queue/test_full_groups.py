"""A full group refuses pushes."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

import fdbqueue
from fdbqueue import admin
from fdbqueue.errors import QueueFull
from tests.support.counting import CountingDatabase
from tests.support.full import unless_full

# Refused


@pytest.mark.parametrize("kind", [fdbqueue.PriorityQueue, fdbqueue.Queue])
def test_ready_delayed_and_claimed_items_fill_a_group(db: Any, name: str, kind: Any) -> None:
    """Whatever brings an item: a push, a retry of a dead letter, a tick of a schedule."""
    jobs = kind.named(db, name, max_size=9)
    jobs.set_group(db, "ada", max_size=3)
    jobs.schedules.add(db, "tick", "tick", every="1h", group="ada")
    dead = jobs.push(db, "dead", group="ada")
    jobs.nack(db, jobs.claim(db), dead=True)
    jobs.push_many(db, ["first", "second"], group="ada")
    delayed = jobs.push(db, "third", group="ada", delay=3600)
    claim = jobs.claim(db)
    with pytest.raises(QueueFull, match="the group 'ada' holds at most 3 items") as caught:
        jobs.push(db, "fourth", group="ada")
    assert (caught.value.max_size, caught.value.wanted, caught.value.group) == (3, 1, "ada")
    for refused in (
        lambda: jobs.retry(db, dead),
        lambda: jobs.schedules.run_now(db, "tick"),
        lambda: jobs.nack(db, claim, delay=60) or jobs.push(db, "fourth", group="ada"),
    ):
        with pytest.raises(QueueFull, match="'ada'"):
            refused()
    assert jobs.push(db, "other", group="bob").value == jobs.push(db, "other").value == "other"
    assert jobs.remove(db, delayed)
    assert jobs.retry(db, dead)
    jobs.push_many(db, [1, 2, 3, 4])
    with pytest.raises(QueueFull, match="the queue holds at most 9 items"):
        jobs.push(db, "other", group="bob")
    jobs.pop_many(db, 9)
    assert jobs.schedules.run_now(db, "tick")
    group = next(group for group in jobs.groups(db) if group.name == "ada")
    assert (group.ready, group.delayed, group.claimed, group.max_size) == (1, 1, 0, 3)
    assert jobs.stats(db).total_rejected == 3  # pushes
    assert admin.check(db, jobs).problems == ()


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
def test_a_refusal_conflicts_with_what_makes_room(
    db: Any, jobs: Any, freed: str, fdb_error: Any
) -> None:
    jobs.set_group(db, "ada", max_size=1)
    items = {group: jobs.push(db, 1, group=group) for group in ("ada", "bob")}
    tr = db.create_transaction()
    assert unless_full(jobs.push, tr, 2, group="ada") is None
    assert jobs.push(tr, 2, group="bob")  # which has no bound, and conflicts with nothing
    jobs.push(db, 2, group="bob")
    jobs.remove(db, items[freed])
    with fdb_error(1020) if freed == "ada" else nullcontext():
        tr.commit().wait()


def test_a_bound_that_is_set_meanwhile_is_not_exceeded(db: Any, jobs: Any, fdb_error: Any) -> None:
    """Also if it is the first of the queue: then a push has not looked at the settings."""
    for bound in (1, 2):
        pushing = db.create_transaction()
        assert jobs.push(pushing, 1, group="ada")
        jobs.set_group(db, "ada", max_size=bound)
        with fdb_error(1020):
            pushing.commit().wait()


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
