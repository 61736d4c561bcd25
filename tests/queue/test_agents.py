"""The agents of a task queue are its groups."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import TaskQueue
from fdbqueue.admin import check
from fdbqueue.errors import InvalidSchedule, InvalidTask, LeaseLost
from tests.support.scan import assert_views_agree

STATES = ("ready", "delayed", "claimed", "dead", "done")


@pytest.fixture
def tasks(db: Any, name: str) -> Any:
    return TaskQueue.named(db, f"{name}tasks", max_attempts=1, keep=100)


def in_each_state(db: Any, tasks: Any, agent: str) -> dict[str, list[str]]:
    """Push two tasks of an agent in each state, of different priorities."""
    found: dict[str, list[str]] = {}
    for state in ("done", "dead", "claimed", "delayed", "ready"):
        delay = 3600 if state == "delayed" else None
        given = [{"priority": n, "group": agent, "delay": delay} for n in (1, 5)]
        found[state] = tasks.push_many(db, given)
        if state in ("ready", "delayed"):
            continue
        claim = tasks.claim(db, n=2, lease=600, agent=agent)
        assert {item.id for item in claim.items} == {*found[state]}
        if state == "dead":
            tasks.nack(db, claim)
        elif state == "done":
            tasks.ack(db, claim)
    return found


@pytest.fixture
def both(db: Any, tasks: Any) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    return in_each_state(db, tasks, "own"), in_each_state(db, tasks, "others")


def states_of(db: Any, tasks: Any, found: dict[str, list[str]]) -> dict[str, list[str | None]]:
    return {state: [tasks.state(db, task) for task in ids] for state, ids in found.items()}


UNCHANGED = {state: [state, state] for state in STATES}


def test_the_group_of_a_task_is_its_agent(db: Any, tasks: Any) -> None:
    named = [
        tasks.push(db, group="ada"),
        tasks.push(db, agent_name="ada"),
        tasks.push(db, group="ada", agent_name="ada"),
        *tasks.push_many(db, [{"group": "ada"}, {"agent_name": "ada"}]),
    ]
    plain = tasks.push(db)
    assert {tasks.get_task(db, each).agent_name for each in named} == {"ada"}
    assert {tasks.get(db, each).group for each in named} == {"ada"}
    assert tasks.get(db, plain).group is None
    assert tasks.get_stats(db).by_agent == {"ada": 5}
    assert tasks.pop(db, agent="ada").id == named[0]


def test_two_names_of_one_task_are_refused(db: Any, tasks: Any) -> None:
    with pytest.raises(InvalidTask, match=r"group 'bob' .* must be its agent, which is 'ada'"):
        tasks.push(db, agent_name="ada", group="bob")
    with pytest.raises(InvalidTask, match="group"):
        tasks.push_many(db, [{"agent_name": "ada", "group": "bob"}])
    with pytest.raises(InvalidTask, match=r"group '' .* must be text of 1 to 255 bytes"):
        tasks.push(db, group="")
    assert tasks.size(db) == 0


def test_a_schedule_names_the_agent_as_a_group(db: Any, tasks: Any) -> None:
    tasks.schedules.add(db, "option", {"payload": 1}, every=60, group="ada")
    tasks.schedules.add(db, "field", {"payload": 1, "group": "ada"}, every=60)
    for schedule in ("option", "field"):
        assert tasks.schedules.get(db, schedule).value == {
            **{"priority": 3, "agent_name": "ada", "payload": 1}
        }
        assert tasks.get(db, tasks.schedules.run_now(db, schedule)).group == "ada"
    with pytest.raises(InvalidSchedule, match="its group is 'ada', and that of its task 'bob'"):
        tasks.schedules.add(db, "both", {"group": "bob"}, every=60, group="ada")


def test_tasks_of_an_agent_are_found_in_each_state(db: Any, tasks: Any, both: Any) -> None:
    own, _ = both
    for state in STATES:
        found = tasks.search(db, state=state, group="own")
        assert {info.id for info in found.items} == {*own[state]}
        assert found.scanned == (2 if state == "ready" else 4)
        backwards = tasks.search(db, state=state, group="own", reverse=True)
        assert backwards.items == found.items[::-1]
        first = tasks.search(db, state=state, group="own", limit=1)
        second = tasks.search(db, state=state, group="own", after=first.next)
        assert [*first.items, *second.items] == found.items
        assert tasks.count(db, state=state, group="own").count == 2
        assert tasks.count(db, state=state, group="nobody").count == 0
        assert tasks.count(db, state=state, group="own", priority=5).count == 1
        assert tasks.count(db, state=state, group="").count == 0


def test_tasks_without_an_agent_are_found_by_an_empty_text(db: Any, tasks: Any) -> None:
    tasks.push_many(db, [{"group": "ada"}, {"payload": 1}, {"payload": 2}])
    found = tasks.search(db, state="ready", group="")
    assert [info.item.payload for info in found.items] == [1, 2]
    assert [*tasks.clear_group(db, "").values()] == [True, True]
    assert tasks.size(db) == 1


def test_a_cleared_agent_has_no_tasks(db: Any, tasks: Any, both: Any) -> None:
    own, others = both
    assert tasks.clear_group(db, "own") == {each: True for ids in own.values() for each in ids}
    assert states_of(db, tasks, own) == {state: [None, None] for state in STATES}
    assert states_of(db, tasks, others) == UNCHANGED
    assert_views_agree(db, tasks)
    assert check(db, tasks).ok


def test_a_late_acknowledgement_of_a_cleared_task_is_refused(db: Any, tasks: Any) -> None:
    tasks.push(db, group="ada")
    claim = tasks.claim(db)
    tasks.clear_group(db, "ada")
    with pytest.raises(LeaseLost):
        tasks.ack(db, claim)


def test_a_cancelled_agent_has_only_ended_tasks(db: Any, tasks: Any, both: Any) -> None:
    own, others = both
    assert len(tasks.cancel_group(db, "own")) == 6
    expected = {"done": ["done"] * 2, "dead": ["dead"] * 2, "claimed": ["claimed"] * 2}
    ended = ["done"] * 2
    assert states_of(db, tasks, own) == {**expected, "ready": ended, "delayed": ended}
    assert all(tasks.get(db, each).cancelling for each in own["claimed"])
    assert states_of(db, tasks, others) == UNCHANGED


def test_the_dead_letters_of_an_agent_are_retried(db: Any, tasks: Any, both: Any) -> None:
    own, others = both
    assert tasks.retry_group(db, "own") == dict.fromkeys(own["dead"], True)
    assert states_of(db, tasks, own) == {**UNCHANGED, "dead": ["ready", "ready"]}
    assert states_of(db, tasks, others) == UNCHANGED
    assert check(db, tasks).ok
