"""The page of the groups of a queue, and what the page of an item says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fdbqueue
from tests.support.dom import in_node, visit

pytestmark = in_node

PAUSE, RESUME = (f"{first} Limits Retry Cancel Clear" for first in ("Pause", "Resume"))
"""The buttons of a group."""


def test_groups_are_shown_with_what_holds_them_back(
    serve: Any, db: Any, name: str, tmp_path: Path
) -> None:
    jobs = fdbqueue.PriorityQueue.named(db, name)
    jobs.set_group(db, "ada", concurrency=1, weight=2.5)
    jobs.push_many(db, [1, 2], group="ada")
    jobs.claim(db)
    jobs.push_many(db, [3, 4], group="bob")
    jobs.set_group(db, "bob", paused=True)
    jobs.push(db, 5, group="eve")
    with serve() as (_, client):
        (page,) = visit(tmp_path, str(client.base_url), f"#/queues/{name}/groups", ("show",))
    assert page["lines"][-4:] == [
        "Group | Ready | Claimed | Concurrency | Rate | Size | Weight | State | ",
        f"ada | 1 | 1 | 1 | no limit | no limit | 2.5 | at its concurrency | {PAUSE}",
        f"bob | 2 | 0 | no limit | no limit | no limit | 1 | paused | {RESUME}",
        f"eve | 1 | 0 | no limit | no limit | no limit | 1 | waits for its turn | {PAUSE}",
    ]
    assert "3 groups on this page, 1 paused, 1 held back by limits." in page["lines"]


def test_groups_are_paused_resumed_and_limited(
    serve: Any, db: Any, name: str, tmp_path: Path
) -> None:
    jobs = fdbqueue.PriorityQueue.named(db, name)
    jobs.set_group(db, "a/b", concurrency=3)
    jobs.push(db, 1, group="a/b")
    with serve() as (_, client):
        shown = visit(
            *(tmp_path, str(client.base_url), f"#/queues/{name}/groups"),
            *(("press", "Pause a/b"), ("show",), ("press", "Limits a/b"), ("show",)),
            *(("fill", "weight", "0"), ("press", "Save"), ("show",)),
            *(("fill", "weight", "4"), ("fill", "concurrency", ""), ("fill", "rate", "5/1m30s")),
            ("fill", "size", "7"),
            *(("press", "Save"), ("show",)),
            *(("press", "Resume a/b"), ("show",)),
        )
    paused, asked, refused, saved, resumed = shown
    assert paused["lines"][-1] == f"a/b | 1 | 0 | 3 | no limit | no limit | 1 | paused | {RESUME}"
    assert paused["toasts"] == ["a/b was paused."]
    assert asked["lines"][0] == "Limits of a/b"
    assert any("weight is a number from 0.001 to 1,000" in line for line in refused["lines"])
    assert saved["lines"][-1] == f"a/b | 1 | 0 | no limit | 5 in 1m30s | 7 | 4 | paused | {RESUME}"
    assert resumed["lines"][-1].endswith(f"waits for its turn | {PAUSE}")
    (group,) = jobs.groups(db)
    assert (group.weight, group.concurrency, group.paused) == (4, None, False)
    assert group.rate == (5, 90)


def test_the_limits_of_all_groups_are_shown_and_changed(
    serve: Any, db: Any, name: str, tmp_path: Path
) -> None:
    jobs = fdbqueue.PriorityQueue.named(db, name)
    jobs.set_group(db, None, rate=(5, "1m30s"), max_size=9)
    jobs.push(db, 1, group="ada")
    with serve() as (_, client):
        before, asked, after = visit(
            *(tmp_path, str(client.base_url), f"#/queues/{name}/groups", ("show",)),
            *(("press", "Limits of all groups"), ("show",)),
            *(("fill", "weight", "3"), ("fill", "rate", ""), ("press", "Save"), ("show",)),
        )
    assert "All groups: 5 in 1m30s, size 9" in " ".join(before["lines"])
    assert asked["lines"][0] == "Limits of all groups"
    assert "All groups: weight 3, size 9" in " ".join(after["lines"])
    assert jobs.group_settings(db) == {"weight": 3, "max_size": 9}


def test_groups_of_a_paused_queue_do_not_wait_for_their_turn(
    serve: Any, db: Any, name: str, tmp_path: Path
) -> None:
    jobs = fdbqueue.PriorityQueue.named(db, name)
    jobs.push(db, 1, group="ada")
    jobs.configure(db, paused=True)
    with serve() as (_, client):
        (page,) = visit(tmp_path, str(client.base_url), f"#/queues/{name}/groups", ("show",))
    assert "1 group on this page. The queue is paused." in page["lines"]
    assert "| queue paused |" in page["lines"][-1]


def test_a_group_at_its_rate_says_until_when(
    serve: Any, db: Any, name: str, tmp_path: Path
) -> None:
    jobs = fdbqueue.PriorityQueue.named(db, name)
    jobs.set_group(db, "fast", rate=(1, 3600))
    jobs.set_group(db, "sequence", concurrency=1)
    jobs.push_many(db, [1, 2], group="fast")
    jobs.pop(db)
    jobs.push_many(db, [1, 2], group="sequence")
    jobs.nack(db, jobs.claim(db), delay=600)
    with serve() as (_, client):
        (page,) = visit(tmp_path, str(client.base_url), f"#/queues/{name}/groups", ("show",))
    fast, sequence = page["lines"][-2:]
    assert fast.startswith(
        "fast | 1 | 0 | no limit | 1 in 1h | no limit | 1 | at its rate  until 2"
    )
    assert "| tries a failed item first |" in sequence


def test_the_items_of_a_group_are_listed_and_changed(
    serve: Any, db: Any, name: str, tmp_path: Path
) -> None:
    jobs = fdbqueue.PriorityQueue.named(db, name)
    jobs.push_many(db, [1, 2], group="a b")
    jobs.push(db, 3, group="bob")
    with serve() as (_, client):
        before, asked, after = visit(
            *(tmp_path, str(client.base_url), f"#/queues/{name}/groups", ("show",)),
            *(("press", "Clear a b"), ("show",), ("press", "Clear"), ("show",)),
        )
    assert before["links"]["2"] == f"#/queues/{name}?state=ready&group=a+b"
    assert asked["lines"][0] == "Clear the items of a b?"
    assert "The settings of the group stay." in asked["lines"][1]
    assert after["toasts"] == ["2 items were removed."]
    assert [item.value for item in jobs.items(db)] == [3]
    assert not any(line.startswith("a b |") for line in after["lines"])


def test_groups_are_paged_by_name(serve: Any, db: Any, name: str, tmp_path: Path) -> None:
    jobs = fdbqueue.PriorityQueue.named(db, name)
    names = [f"group {number:03}" for number in range(60)]
    jobs.push_many(db, names, groups=names)
    with serve() as (_, client):
        here = f"#/queues/{name}/groups"
        first, second = visit(
            *(tmp_path, str(client.base_url), here),
            *(("show",), ("turn", "after=group 049"), ("show",)),
        )
    assert first["links"]["Next page"] == f"{here}?after=group+049"
    assert "First page" not in first["links"]
    assert any(line.startswith("group 049 |") for line in first["lines"])
    rows = [line for line in second["lines"] if line.startswith("group ")]
    assert [row.split(" | ")[0] for row in rows] == names[50:]
    assert second["links"]["First page"] == here
    assert "Next page" not in second["links"]


def test_a_queue_without_groups_says_how_to_get_them(
    serve: Any, db: Any, name: str, tmp_path: Path
) -> None:
    tasks = fdbqueue.TaskQueue.named(db, f"{name}tasks")
    tasks.push_many(db, [{"group": "ada"}, {"group": "ada"}])
    tasks.set_group(db, "ada", concurrency=1)
    tasks.claim(db)
    tasks.push(db)
    fdbqueue.PriorityQueue.named(db, name).configure(db, max_size=7)
    with serve() as (_, client):
        texts: list[str] = []
        for queue in (name, f"{name}tasks", f"{name}gone"):
            address = f"#/queues/{queue}/groups"
            (page,) = visit(tmp_path, str(client.base_url), address, ("show",))
            texts.append("\n".join(page["lines"]))
    assert f"{name} has no groups." in texts[0]
    assert "(none)" not in texts[1]
    assert "ada | 1 | 1 | 1 | no limit | no limit | 1 | at its concurrency | Pause" in texts[1]
    assert "There is no such queue." in texts[2]


def test_an_item_says_why_it_does_not_run(serve: Any, db: Any, name: str, tmp_path: Path) -> None:
    jobs = fdbqueue.PriorityQueue.named(db, name)
    _, second = jobs.push_many(db, [1, 2], group="ada")
    address = f"#/queues/{name}/items/{second.id}"
    with serve() as (_, client):
        (free,) = visit(tmp_path, str(client.base_url), address, ("show",))
        jobs.set_group(db, "ada", paused=True)
        (held,) = visit(tmp_path, str(client.base_url), address, ("show",))
    assert "It does not run now. Its group is paused." in held["lines"]
    assert not any("does not run now" in line for line in free["lines"])
    facts = "\n".join(free["lines"])
    assert "Group\nada\nAhead of it in its group\n1 item" in facts
