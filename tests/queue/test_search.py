"""Search and count the items in a state that match, in calls that look at a limited number."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import PriorityQueue, TaskQueue
from tests.support.kinds import KINDS, STATES, bring, push


def matching(db: Any, queue: Any, state: Any, limit: int = 2, scan: int = 5, **wanted: Any) -> Any:
    """Return the ids of the items that match, from pages; compare these with the count."""
    ids: list[str] = []
    total = counted = 0
    after = None
    while True:
        page = queue.search(db, state=state, limit=limit, scan=scan, after=after, **wanted)
        assert len(page.items) <= limit
        assert page.scanned <= scan
        ids += [info.id for info in page.items]
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
    assert counted == len(ids)
    return ids, total


VALUES: list[Any] = [
    *({"job": "shop.send", "args": [n], "kwargs": {"body": "x" * 100_000}} for n in range(2)),
    *({"job": each} for each in ("shop.resend", "post.send", "send", 7)),
    *("shop.send", {"job": "shop.send", "args": 3}, 8, 9, 10, 11),
]
"""The first two are stored in pieces."""

FOUND: list[tuple[dict[str, Any], set[int]]] = [
    ({}, {*range(12)}),
    ({"job": "shop.send"}, {0, 1}),
    ({"job": "send"}, {0, 1, 3, 4}),
    ({"job": "end"}, set()),
    ({"priority": 1}, {1, 4, 7, 10}),
    ({"priority": 3}, set()),
    ({"group": "ada"}, {2, 3, 8, 9}),
    ({"group": ""}, {0, 1, 6, 7}),
    ({"group": "nobody"}, set()),
    ({"group": "ada", "priority": 2}, {2, 8}),
    ({"error": "TIMEOUT"}, {0, 4, 8}),
    ({"error": "timeout", "priority": 1}, {4}),
    ({"error": "of 7"}, {7}),
    ({"client": "MAIL"}, {*range(12)}),
    ({"client": "other"}, set()),
]


@pytest.mark.parametrize("state", STATES)
def test_items_in_each_state_are_found_by_filters(db: Any, name: str, state: Any) -> None:
    queue: Any = PriorityQueue.named(db, name, keep=100)
    groups = [(None, "ada", "bob")[n // 2 % 3] for n in range(12)]
    items = queue.push_many(db, VALUES, priorities=[n % 3 for n in range(12)], groups=groups)
    ids = [item.id for item in items]
    claims = [queue.claim(db, within=1) for _ in items]
    for claim in claims:
        n = ids.index(claim.item.id)
        error = f"{'Timeout' if n % 4 == 0 else 'no such address'} of {n}"
        ends = {"delay": 600 if state == "delayed" else 0, "dead": state == "dead"}
        queue.nack(db, claim, error=error, **ends)
    if state in ("claimed", "done"):
        claim = queue.claim(db, n=12, client="mail-1")
        if state == "done":
            queue.ack(db, claim)
    in_order = [info.id for info in queue.items(db, state=state)]
    for wanted, numbers in [*FOUND, ({"id": ids[7][-12:]}, {7}), ({"id": ids[7]}, {7})]:
        if ("error" in wanted and state == "done") or ("client" in wanted and state != "claimed"):
            continue
        expected = [id for id in in_order if ids.index(id) in numbers]
        found, scanned = matching(db, queue, state, **wanted)
        assert found == expected, wanted
        assert len(found) <= scanned <= 12
        backwards = queue.search(db, state=state, reverse=True, **wanted)
        assert [info.id for info in backwards.items] == expected[::-1]
    assert matching(db, queue, state, priority=1)[1] == (12 if state == "done" else 4)


@pytest.mark.parametrize("kind", KINDS)
def test_jobs_of_each_kind_of_queue_are_found_by_their_name(db: Any, name: str, kind: Any) -> None:
    queue = kind.named(db, name)
    (first, *_) = [push(db, queue, {"job": job}) for job in ("shop.send", "shop.resend")]
    assert matching(db, queue, "ready", job="send") == ([first], 2)
    (info,) = queue.search(db, state="ready", job="send").items
    assert str(info.job) == "shop.send()"


def test_tasks_are_found_by_agent_and_priority(db: Any, name: str) -> None:
    tasks, agents = TaskQueue.named(db, name), ("Ada", "bob", "adam", None)
    for state in reversed(STATES):
        ids = [tasks.push(db, priority=1 + n % 2, agent_name=agents[n % 4]) for n in range(8)]
        bring(db, tasks, state, 8)
        found, scanned = matching(db, tasks, state, agent="DAM")
        assert ({*found}, scanned) == ({ids[2], ids[6]}, 8)
        assert len(matching(db, tasks, state, priority=2)[0]) == 4
        assert matching(db, tasks, state, agent="ada", priority=2)[0] == []


def test_a_call_looks_at_no_more_items_than_it_may(db: Any, jobs: Any) -> None:
    jobs.push_many(db, range(12))
    page = jobs.search(db, state="ready", job="missing", scan=5)
    assert (page.items, page.scanned, page.next is None) == ([], 5, False)
    assert jobs.count(db, state="ready", scan=5).scanned == 5
    page = jobs.search(db, state="ready", job="missing", scan=12)
    assert (page.scanned, page.next) == (12, None)
    page = jobs.search(db, state="ready", limit=3)
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
