"""The same change of all items in a state, in bounded transactions."""

from __future__ import annotations

from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue, TaskQueue
from fdbqueue.queue import base
from fdbqueue.testing import FaultyDatabase
from tests.support.counting import CountingDatabase
from tests.support.kinds import STATES, bring, in_each_state, push
from tests.support.scan import assert_views_agree


def filled(db: Any, queue: Any, state: str, n: int = 25) -> None:
    """Push items, and bring them into a state."""
    for number in range(n):
        push(db, queue, number)
    bring(db, queue, state, n)


CHANGES: list[tuple[Any, str, str | None]] = [
    *(("remove", state, None) for state in STATES if state != "claimed"),
    *(("retry", state, "ready") for state in ("dead", "delayed")),
    ("release", "claimed", "ready"),
    *(("cancel", state, None) for state in ("ready", "delayed")),
    ("cancel", "claimed", "claimed"),
]


@pytest.mark.parametrize(("change", "state", "after"), CHANGES)
def test_all_items_in_a_state_are_changed(
    db: Any, jobs: Any, monkeypatch: pytest.MonkeyPatch, change: Any, state: Any, after: Any
) -> None:
    monkeypatch.setattr(base, "_CHANGES", 10)
    filled(db, jobs, state)
    counting = CountingDatabase(db)
    assert [*jobs.change_all(counting, change, state=state).values()] == [True] * 25
    assert counting.commits == 3
    stats = assert_views_agree(db, jobs)
    assert after is None or getattr(stats, after) == 25
    if after == state:  # their workers are told
        assert all(info.cancelling for info in jobs.items(db, state=state))
    else:
        assert getattr(stats, state) == 0
        assert jobs.change_all(db, change, state=state) == {}


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (PriorityQueue, "ready"),
        (TaskQueue, "ready"),
        (TaskQueue, "delayed"),
    ],
)
def test_all_items_in_a_state_get_another_priority_and_keep_their_order(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch, kind: Any, state: Any
) -> None:
    monkeypatch.setattr(base, "_CHANGES", 10)
    queue = kind.named(db, name)
    filled(db, queue, state)
    before = [info.id for info in queue.items(db, state=state)]
    first = push(db, queue, "there", priority=2)
    there = [first] if state == "ready" else []
    results = queue.change_all(db, "update", state=state, to={"priority": 2})
    assert results == dict.fromkeys([*there, *before], True)
    after = [info.id for info in queue.items(db, state=state)]
    assert after == [*there, *before]
    assert {info.item.priority for info in queue.items(db, state=state)} == {2}
    assert_views_agree(db, queue)
    queue.change_all(db, "update", state=state, to={"delay": 3600, "group": "late"})
    assert {info.id for info in queue.items(db, state="delayed", group="late")} == {*after}
    assert_views_agree(db, queue)


def test_large_items_are_moved_without_their_payloads(db: Any, name: str) -> None:
    """One transaction could not store them again."""
    queue = PriorityQueue.named(db, name)
    ids = [queue.push(db, f"{number}" * 3_000_000, 5).id for number in range(5)]
    counting = CountingDatabase(db)
    changed = queue.change_all(counting, "update", state="ready", to={"priority": 1})
    assert changed == dict.fromkeys(ids, True)
    assert counting.commits == 1
    assert [queue.pop(db).value[0] for _ in ids] == ["0", "1", "2", "3", "4"]
    assert_views_agree(db, queue)


def test_each_item_is_changed_once_despite_lost_results(db: Any, name: str, rng: Any) -> None:
    faulty = FaultyDatabase(
        db, before=0.3, after=0.3, conflict=0.1, lost_as=(1021, 1039), seed=rng.randrange(99)
    )
    queue = PriorityQueue.named(faulty, name)
    filled(faulty, queue, "dead")
    assert sum(queue.change_all(faulty, "retry", state="dead").values()) == 25
    stats = assert_views_agree(db, queue)
    assert (stats.ready, stats.total_retried) == (25, 25)


def test_a_dead_letter_that_was_retried_meanwhile_is_not_cleared(
    db: Any, queue: PriorityQueue
) -> None:
    class Retrying(FaultyDatabase):
        """A database in which another client retries all dead letters before a commit."""

        def commit(self, transaction: Any) -> None:
            queue.change_all(db, "retry", state="dead")
            super().commit(transaction)

    filled(db, queue, "dead")
    assert sum(queue.change_all(Retrying(db), "clear", state="dead").values()) == 0
    assert queue.size(db) == 25


# One group


UNCHANGED = {state: [state, state] for state in STATES}


@pytest.fixture
def both(db: Any, jobs: Any) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Two items of a group in each state, and as many of another one."""
    others = in_each_state(db, jobs, group="others")
    jobs.set_group(db, "others", paused=True)  # so that a claim takes those of the group
    own = in_each_state(db, jobs, group="own")
    jobs.set_group(db, "others", paused=False)
    return own, others


@pytest.mark.parametrize(
    ("change", "given", "chosen", "changed"),
    [
        ("clear", {}, [*reversed(STATES)], {state: [None] * 2 for state in STATES}),
        (
            "cancel",
            {},
            ["claimed", "delayed", "ready"],
            {"ready": ["done"] * 2, "delayed": ["done"] * 2},
        ),
        ("retry", {"state": "dead"}, ["dead"], {"dead": ["ready"] * 2}),
    ],
)
def test_items_of_one_group_are_changed(
    db: Any, jobs: Any, both: Any, change: Any, given: Any, chosen: Any, changed: Any
) -> None:
    own, others = both
    jobs.set_group(db, "own", weight=3)
    results = jobs.change_all(db, change, group="own", **given)
    assert results == {id: True for state in chosen for id in own[state]}

    def states_of(found: dict[str, list[str]]) -> dict[str, list[Any]]:
        return {state: [jobs.state(db, id) for id in ids] for state, ids in found.items()}

    assert states_of(own) == UNCHANGED | changed
    assert states_of(others) == UNCHANGED
    if change == "cancel":
        told = [jobs.get(db, each["claimed"][0]).cancelling for each in both]
        assert told == [True, False]
    assert jobs.group_settings(db, "own") == {"weight": 3}
    assert fdbqueue.admin.check(db, jobs).problems == ()
