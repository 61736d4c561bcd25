"""Search and count the items in a state that match, in calls that look at a limited number."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import PriorityQueue, TaskQueue
from tests.support.counting import CountingDatabase
from tests.support.kinds import KINDS, STATES, bring, in_each_state, push


def failed(db: Any, name: str, *errors: str, state: Any = "dead") -> PriorityQueue:
    """Return a queue with one item for each error, with which it failed."""
    queue = PriorityQueue.named(db, name)
    queue.configure(db, max_attempts=1 if state == "dead" else None)
    for number, error in enumerate(errors):
        queue.push(db, error, number % 3)
    # The claim of all items is in their order, as are the values that it fails with.
    for claim in [queue.claim(db, lease=600) for _ in errors]:
        queue.nack(db, claim, delay=600 if state == "delayed" else 0, error=claim.item.value)
    if state == "claimed":
        queue.claim(db, lease=600, n=len(errors), client="again")
    assert getattr(queue.stats(db), state) == len(errors)
    return queue


def matching(db: Any, queue: Any, state: Any, limit: int = 2, scan: int = 5, **wanted: Any) -> Any:
    """Return the values of the items that match, from pages; compare these with the count."""
    values: list[Any] = []
    total = counted = 0
    after = None
    while True:
        page = queue.search(db, state=state, limit=limit, scan=scan, after=after, **wanted)
        assert len(page.items) <= limit
        assert page.scanned <= scan
        values += [info.item and getattr(info.item, "value", info.id) for info in page.items]
        total += page.scanned
        after = page.next
        if after is None:
            break
    while True:
        found = queue.count(db, state=state, scan=scan, after=after, **wanted)
        counted += found.count
        after = found.next
        if after is None:
            break
    assert counted == len(values)
    return values, total


def test_items_are_found_by_their_last_error(db: Any, name: str) -> None:
    errors = [f"{'Timeout' if n % 4 == 0 else 'no such address'} of {n}" for n in range(20)]
    for state in ("ready", "delayed", "claimed", "dead"):
        queue = failed(db, f"{name}{state}", *errors, state=state)
        values, scanned = matching(db, queue, state, error="TIMEOUT")
        all_in_order = [info.item.value for info in queue.items(db, state=state)]
        assert values == [value for value in all_in_order if "T" in value]
        assert (len(values), scanned) == (5, 20)
        assert matching(db, queue, state, error="of 7") == (["no such address of 7"], 20)
        both = queue.search(db, state=state, error="TIMEOUT", priority=1)
        assert {info.item.priority for info in both.items} == {1}
        assert both.scanned == 7  # items of the priority
    queue.change_all(db, "retry", state="dead", limit=1)
    queue.nack(db, queue.claim(db), delay=0, dead=True, error="another")
    assert matching(db, queue, "dead", error="another")[0] == [errors[0]]
    assert len(matching(db, queue, "dead", error="timeout")[0]) == 4


def test_items_are_found_by_priority_and_part_of_the_id(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name, keep=100)
    items = queue.push_many(db, range(12), priorities=[n % 3 for n in range(12)])
    assert matching(db, queue, "ready", priority=2) == ([2, 5, 8, 11], 4)
    assert matching(db, queue, "ready", id=items[7].id) == ([7], 12)
    assert matching(db, queue, "ready", id=items[7].id[-12:]) == ([7], 12)
    assert matching(db, queue, "ready", id=items[7].id, priority=2) == ([], 4)
    queue.ack(db, queue.claim(db, n=12))
    assert sorted(matching(db, queue, "done", priority=2)[0]) == [2, 5, 8, 11]
    assert matching(db, queue, "done", id=items[7].id)[0] == [7]
    newest = queue.search(db, state="done", limit=12).items
    oldest = queue.search(db, state="done", limit=12, reverse=True).items
    assert [info.id for info in newest] == [info.id for info in oldest][::-1]


def test_tasks_are_found_by_agent_and_priority(db: Any, name: str) -> None:
    tasks, agents = TaskQueue.named(db, name), ("Ada", "bob", "adam", None)
    for state in reversed(STATES):
        ids = [tasks.push(db, priority=1 + n % 2, agent_name=agents[n % 4]) for n in range(8)]
        bring(db, tasks, state, 8)
        values, scanned = matching(db, tasks, state, agent="DAM")
        assert ({*values}, scanned) == ({ids[2], ids[6]}, 8)
        assert len(matching(db, tasks, state, agent="ada")[0]) == 4
        assert len(matching(db, tasks, state, priority=2)[0]) == 4
        assert matching(db, tasks, state, agent="ada", priority=2)[0] == []


@pytest.mark.parametrize("kind", KINDS)
def test_jobs_are_found_by_their_name(db: Any, name: str, kind: Any) -> None:
    queue = kind.named(db, name)
    long = "x" * 100_000  # is stored in pieces
    values: list[Any] = [
        *({"job": "shop.send", "args": [n], "kwargs": {"body": long}} for n in range(2)),
        *({"job": each} for each in ("shop.resend", "post.send", "send", 7)),
        *("shop.send", {"job": "shop.send", "args": 3}),
    ]
    for state in STATES[1:] if kind is PriorityQueue else ("ready",):
        for value in values:
            push(db, queue, value)
        bring(db, queue, state, len(values))
        for wanted, count in (("shop.send", 2), ("send", 4), ("end", 0), ("shop", 0)):
            found, scanned = matching(db, queue, state, job=wanted)
            assert (len(found), scanned) == (count, len(values)), wanted
        calls = [str(info.job) for info in queue.search(db, state=state, job="post.send").items]
        assert calls == ["post.send()"]
        page = queue.search(db, state=state, job="missing", scan=3)
        assert (page.items, page.scanned, page.next is None) == ([], 3, False)


def test_a_call_reads_no_more_items_than_it_may_look_at(db: Any, name: str) -> None:
    queue = failed(db, name, *["refused"] * 12)
    counting = CountingDatabase(db)
    page = queue.search(counting, state="dead", error="missing", scan=5)
    assert (page.items, page.scanned, page.next is None) == ([], 5, False)
    assert queue.count(counting, state="dead", scan=5).scanned == 5
    page = queue.search(db, state="dead", error="missing", scan=12)
    assert (page.scanned, page.next) == (12, None)
    page = queue.search(db, state="dead", error="refused", limit=3)
    assert (len(page.items), page.scanned) == (3, 3)


def test_items_that_cannot_be_decoded_do_not_end_a_search(db: Any, name: str) -> None:
    tasks = TaskQueue.named(db, name, max_attempts=1)
    tasks.push(db, agent_name="ada")
    item = next(iter(tasks.items(db, state="ready"))).item
    db[item.key] = b"not a task"
    tasks.push(db, agent_name="ada")
    found = tasks.count(db, state="ready", agent="ada")
    assert (found.count, found.scanned) == (1, 2)
    assert tasks.count(db, state="ready").count == 2


def test_items_of_a_group_are_found_in_each_state(db: Any, jobs: Any) -> None:
    own = in_each_state(db, jobs, group="own")
    jobs.set_group(db, "own", paused=True)
    in_each_state(db, jobs, group="others")
    for state in STATES:
        found = jobs.search(db, state=state, group="own")
        assert {info.id for info in found.items} == {*own[state]}
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
