"""Limits: a full queue or group refuses pushes, and a paused queue returns no items."""

from __future__ import annotations

from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue, Queue, TaskQueue
from fdbqueue.database import clock
from fdbqueue.errors import ClockOutOfRange, QueueFull
from fdbqueue.options import QueueOptions
from fdbqueue.testing import Clock
from tests.support.full import unless_full
from tests.support.leases import values


def test_ready_delayed_and_claimed_items_count_whatever_brings_another_one(
    db: Any, jobs: Any, limit: Any
) -> None:
    """A push, a retry of a dead letter, a tick of a schedule."""
    jobs.schedules.add(db, "tick", "tick", every="1h", group="ada")
    limit(max_size=3)
    dead = jobs.push(db, "dead", group="ada")
    jobs.nack(db, jobs.claim(db), dead=True)
    jobs.push_many(db, ["first", "second"], group="ada")
    delayed = jobs.push(db, "third", group="ada", delay=3600)
    claim = jobs.claim(db)
    with pytest.raises(QueueFull, match=r"at most 3 items .*no room for 1 more") as caught:
        jobs.push(db, "fourth", group="ada")
    assert (caught.value.max_size, caught.value.wanted) == (3, 1)
    before = jobs.get(db, dead)
    for refused in (
        lambda: jobs.retry(db, dead),
        lambda: jobs.schedules.run_now(db, "tick"),
        lambda: jobs.extend(db, claim) or jobs.push(db, "fourth", group="ada"),
        lambda: jobs.nack(db, claim, delay=60) or jobs.push(db, "fourth", group="ada"),
    ):
        with pytest.raises(QueueFull):
            refused()
    assert jobs.get(db, dead) == before
    assert jobs.remove(db, delayed)
    assert jobs.retry(db, dead)
    assert jobs.pop(db).value == "dead"
    assert jobs.schedules.run_now(db, "tick")
    jobs.ack(db, jobs.claim(db))
    jobs.nack(db, jobs.claim(db), dead=True)
    assert len(jobs.push_many(db, range(4), group="ada", as_many_as_fit=True)) == 2
    assert jobs.stats(db).total_rejected == 5


def test_several_items_are_refused_as_a_whole_or_the_first_are_stored(
    db: Any, jobs: Any, limit: Any
) -> None:
    limit(max_size=3)
    with pytest.raises(QueueFull, match="no room for 4 more"):
        jobs.push_many(db, [1, 2, 3, 4], group="ada")
    assert (jobs.size(db), jobs.push_many(db, [])) == (0, [])
    assert values(jobs.push_many(db, range(5), group="ada", as_many_as_fit=True)) == [0, 1, 2]
    assert jobs.push_many(db, [1], group="ada", as_many_as_fit=True) == []


def test_a_bound_holds_within_one_transaction(db: Any, jobs: Any, limit: Any) -> None:
    limit(max_size=2)

    @fdbqueue.transactional
    def body(tr: Any) -> list[Any]:
        jobs.push(tr, 9, group="ada")
        jobs.pop(tr)
        return [unless_full(jobs.push, tr, n, group="ada") for n in range(4)]

    assert [item and item.value for item in body(db)] == [0, 1, None, None]


def test_a_group_has_the_bound_of_all_groups_unless_it_has_its_own(db: Any, jobs: Any) -> None:
    jobs.set_group(db, None, max_size=1)
    jobs.set_group(db, "big", max_size=2)
    for group, n in (("ada", 1), ("big", 2)):
        jobs.push_many(db, [0] * n, group=group)
        with pytest.raises(QueueFull, match=f"the group '{group}' holds at most {n}") as caught:
            jobs.push(db, 0, group=group)
        assert caught.value.group == group
    jobs.push_many(db, [0] * 5)  # the items without a group have no bound
    jobs.set_group(db, "big", max_size=None)
    with pytest.raises(QueueFull, match="at most 1 item "):
        jobs.push(db, 0, group="big")
    jobs.set_group(db, None, max_size=None)
    jobs.push(db, 0, group="ada")


def test_a_changed_bound_holds_at_once(db: Any, jobs: Any, limit: Any) -> None:
    jobs.push_many(db, range(3), group="ada")
    limit(max_size=2)
    claim = jobs.claim(db, n=3)
    for _ in range(2):
        first, *claim = claim
        assert unless_full(jobs.push, db, "x", group="ada") is None
        jobs.ack(db, first)
    assert jobs.push(db, "x", group="ada").value == "x"
    limit(max_size=None)
    assert len(jobs.push_many(db, range(9), group="ada")) == 9


@pytest.mark.parametrize("option", [*QueueOptions.__annotations__, "keep for a time"])
def test_the_stored_option_holds_and_a_client_with_another_one_is_warned(
    db: Any, space: Subspace, name: str, option: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A deployment that changes an option in its code must not stop."""
    stored: dict[str, Any] = {option: 2}
    given: dict[str, Any] = {option: 3}
    field = "keep_number" if option == "keep" else option
    if option == "keep for a time":
        stored, given, field = {"keep": "2s"}, {"keep": "3s"}, "keep_seconds"
    PriorityQueue.named(db, name, **stored).push(db, "a")
    early = Queue(space)
    Queue(space, **stored).push(db, "a")
    assert caplog.text == ""
    said = (
        f"has {field} 2 and was opened with 3; omit the option, or change it with "
        f"`configure(db, {field}=...)`"
    )
    reopened = PriorityQueue.named(db, name, **given)
    assert said in caplog.text
    caplog.clear()
    other = Queue(space, **given)
    for _ in range(2):
        unless_full(other.push, db, "b")
    assert caplog.text.count(said) == 1
    for each in (reopened, other, early):  # this one was opened before the option was stored
        assert getattr(each.options(db), field) == 2
    assert option != "max_size" or unless_full(early.push, db, "b") is None


def test_a_bound_given_to_a_new_queue_survives_an_aborted_change(
    db: Any, queue: PriorityQueue
) -> None:
    bounded = PriorityQueue(queue.subspace, max_size=5)

    @fdbqueue.transactional
    def change_and_fail(tr: Any) -> None:
        bounded.configure(tr, max_size=10)
        raise LookupError

    with pytest.raises(LookupError):
        change_and_fail(db)
    bounded.push(db, 1)
    assert bounded.options(db).max_size == 5


def in_transaction(method: Any) -> Any:
    """Return a method as a transactional function."""
    return fdbqueue.transactional(lambda tr: method(tr))


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
    queue.clear(db)
    queue.push_many(db, [1, 2])
    assert (queue.options(db).paused, queue.pop(db)) == (True, None)
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


# Errors


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        ("cannot read a\udcff", "cannot read a\\udcff"),
        (ValueError("no such address"), "ValueError: no such address"),
        ("x" * 5_000, "x" * 1_000),
        (None, None),
    ],
)
def test_a_dead_letter_keeps_its_error(db: Any, space: Subspace, error: Any, kept: Any) -> None:
    queue = PriorityQueue(space["jobs"], max_attempts=1)
    queue.push(db, 1)
    queue.nack(db, queue.claim(db), error=error)
    assert [letter.error for letter in queue.items(db, state="dead")] == [kept]


def test_a_clock_before_1970_raises_and_changes_nothing(
    db: Any, queue: PriorityQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(clock, "time_ns", lambda: -1)
        for push in (lambda: queue.push(db, "x"), lambda: queue.push(db, "x", delay=5)):
            with pytest.raises(ClockOutOfRange, match="clock is before 1970 or after 2262"):
                push()
    assert queue.size(db) == 0
