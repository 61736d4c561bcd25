"""The page of the groups of a queue, and what the page of an item says of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue
from tests.support.dom import in_node, visit

pytestmark = in_node

PAUSE, RESUME = (f"{first} Limits Retry Cancel Clear" for first in ("Pause", "Resume"))
"""The buttons of a group."""

SHOW = ("show",)
Look = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def look(serve: Any, tmp_path: Path) -> Look:
    """Return a function that opens a page of a queue and takes steps."""

    def look(page: str, *steps: tuple[str, ...]) -> list[dict[str, Any]]:
        with serve() as (_, client):
            return visit(tmp_path, str(client.base_url), f"#/queues/{page}", *(steps or (SHOW,)))

    return look


def test_groups_are_shown_with_what_holds_them_back(look: Look, db: Any, name: str) -> None:
    jobs = PriorityQueue.named(db, name)
    jobs.set_group(db, "ada", concurrency=1, weight=2.5)
    jobs.set_group(db, "fast", rate=(1, 3600))
    jobs.set_group(db, "sequence", concurrency=1)
    for group in ("ada", "fast", "sequence"):
        jobs.push_many(db, [1, 2], group=group)
    claims = {jobs.get(db, claim.item).group: claim for claim in (jobs.claim(db) for _ in range(3))}
    jobs.ack(db, claims["fast"])
    jobs.nack(db, claims["sequence"], delay=600)
    jobs.push_many(db, [3, 4], group="bob")
    jobs.set_group(db, "bob", paused=True)
    _, second = jobs.push_many(db, [5, 6], group="eve")
    (page,) = look(f"{name}/groups")
    titles, ada, bob, eve, fast, sequence = page["lines"][-6:]
    assert titles == "Group | Ready | Claimed | Concurrency | Rate | Size | Weight | State | "
    no = "no limit"
    assert ada == f"ada | 1 | 1 | 1 | {no} | {no} | 2.5 | at its concurrency | {PAUSE}"
    assert bob == f"bob | 2 | 0 | {no} | {no} | {no} | 1 | paused | {RESUME}"
    assert eve == f"eve | 2 | 0 | {no} | {no} | {no} | 1 | waits for its turn | {PAUSE}"
    assert fast.startswith(f"fast | 1 | 0 | {no} | 1 in 1h | {no} | 1 | at its rate  until 2")
    assert "| tries a failed item first |" in sequence
    assert "5 groups on this page, 1 paused, 3 held back by limits." in page["lines"]
    (free,) = look(f"{name}/items/{second.id}")
    assert not any("does not run now" in line for line in free["lines"])
    assert "Group\neve\nAhead of it in its group\n1 item" in "\n".join(free["lines"])
    jobs.set_group(db, "eve", paused=True)
    (held,) = look(f"{name}/items/{second.id}")
    assert "It does not run now. Its group is paused." in held["lines"]
    jobs.configure(db, paused=True)
    (page,) = look(f"{name}/groups")
    assert any(line.endswith("The queue is paused.") for line in page["lines"])
    assert any("| queue paused |" in line for line in page["lines"])


def test_groups_are_paused_resumed_limited_and_cleared(look: Look, db: Any, name: str) -> None:
    jobs = PriorityQueue.named(db, name)
    jobs.set_group(db, None, rate=(5, "1m30s"), max_size=9)
    jobs.set_group(db, "a/b", concurrency=3)
    jobs.push_many(db, [1, 2], group="a/b")
    jobs.push(db, 3)
    paused, asked, refused, saved, resumed, all_asked, all_saved, clear, cleared = look(
        f"{name}/groups",
        *(("press", "Pause a/b"), SHOW, ("press", "Limits a/b"), SHOW),
        *(("fill", "weight", "0"), ("press", "Save"), SHOW),
        *(("fill", "weight", "4"), ("fill", "concurrency", ""), ("fill", "rate", "7/1m30s")),
        *(("fill", "size", "7"), ("press", "Save"), SHOW),
        *(("press", "Resume a/b"), SHOW),
        *(("press", "Limits of all groups"), SHOW),
        *(("fill", "weight", "3"), ("fill", "rate", ""), ("press", "Save"), SHOW),
        *(("press", "Clear a/b"), SHOW, ("press", "Clear"), SHOW),
    )
    assert paused["lines"][-1] == f"a/b | 2 | 0 | 3 | 5 in 1m30s | 9 | 1 | paused | {RESUME}"
    assert paused["toasts"] == ["a/b was paused."]
    assert paused["links"]["2"] == f"#/queues/{name}?state=ready&group=a%2Fb"
    assert "All groups: 5 in 1m30s, size 9" in " ".join(paused["lines"])
    assert asked["lines"][0] == "Limits of a/b"
    assert any("weight is a number from 0.001 to 1,000" in line for line in refused["lines"])
    assert saved["lines"][-1] == f"a/b | 2 | 0 | no limit | 7 in 1m30s | 7 | 4 | paused | {RESUME}"
    assert resumed["lines"][-1].endswith(f"waits for its turn | {PAUSE}")
    assert all_asked["lines"][0] == "Limits of all groups"
    assert "All groups: weight 3, size 9" in " ".join(all_saved["lines"])
    assert clear["lines"][0] == "Clear the items of a/b?"
    assert "The settings of the group stay." in clear["lines"][1]
    assert cleared["toasts"][-1] == "2 items were removed."
    assert jobs.group_settings(db) == {"weight": 3, "max_size": 9}
    settings = {"weight": 4, "rate": (7, 90), "max_size": 7}
    assert {k: v for k, v in jobs.group_settings(db, "a/b").items() if v} == settings
    assert [item.value for item in jobs.items(db)] == [3]


def test_groups_are_paged_by_name(look: Look, db: Any, name: str) -> None:
    names = [f"group {number:03}" for number in range(60)]
    PriorityQueue.named(db, name).push_many(db, names, groups=names)
    here = f"#/queues/{name}/groups"
    first, second = look(f"{name}/groups", SHOW, ("turn", "after=group 049"), SHOW)
    assert first["links"]["Next page"] == f"{here}?after=group+049"
    assert "First page" not in first["links"]
    assert any(line.startswith("group 049 |") for line in first["lines"])
    rows = [line for line in second["lines"] if line.startswith("group ")]
    assert [row.split(" | ")[0] for row in rows] == names[50:]
    assert second["links"]["First page"] == here
    assert "Next page" not in second["links"]


def test_a_queue_without_groups_and_one_of_tasks(look: Look, db: Any, name: str) -> None:
    PriorityQueue.named(db, name).configure(db, max_size=7)
    tasks = fdbqueue.TaskQueue.named(db, f"{name}tasks")
    tasks.push_many(db, [{"group": "ada"}, {}])
    for queue, text in (
        (name, f"{name} has no groups."),
        (f"{name}tasks", "ada | 1 | 0 | no limit | no limit | no limit | 1 | waits for its turn |"),
        (f"{name}gone", "There is no such queue."),
    ):
        (page,) = look(f"{queue}/groups")
        assert any(text in line for line in page["lines"]), page["lines"]
        assert not any("(none)" in line for line in page["lines"])
