"""The same change of all items in a state, in bounded transactions."""

from __future__ import annotations

from typing import Any

import pytest

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
    ("kind", "state"), [(PriorityQueue, "ready"), (TaskQueue, "ready"), (TaskQueue, "delayed")]
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


def test_large_items_are_moved_without_their_payloads(db: Any, jobs: Any) -> None:
    """One transaction could not store them again."""
    ids = [jobs.push(db, f"{number}" * 3_000_000, 5).id for number in range(5)]
    counting = CountingDatabase(db)
    changed = jobs.change_all(counting, "update", state="ready", to={"priority": 1})
    assert changed == dict.fromkeys(ids, True)
    assert counting.commits == 1
    assert [jobs.pop(db).value[0] for _ in ids] == ["0", "1", "2", "3", "4"]
    assert_views_agree(db, jobs)


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


def test_a_group_is_cleared_in_each_state(db: Any, jobs: Any) -> None:
    own = in_each_state(db, jobs, group="own")
    other = jobs.push(db, 1, group="other")
    results = jobs.change_all(db, "clear", group="own")
    assert results == {id: True for state in reversed(STATES) for id in own[state]}
    assert (jobs.size(db), jobs.state(db, other)) == (1, "ready")
