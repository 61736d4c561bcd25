"""Groups over HTTP: pushed to, listed, limited and paused."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from starlette.testclient import TestClient

import fdbqueue
from tests.support.api import Api


def test_groups_are_listed_limited_and_paused(client: TestClient, db: Any, name: str) -> None:
    jobs = Api(client, name)
    path = f"/v1/queues/{name}"
    for group in ("ada/1", "bob"):
        assert client.post(f"{path}/push", json={"item": 1, "group": group}).status_code == 201
    batch = {"items": [{"item": 2, "group": "ada/1", "cost": 2}, {"item": 3}]}
    assert client.post(f"{path}/batch", json=batch).status_code == 201
    change = {"weight": 2, "concurrency": 1, "paused": True, "rate": [3, 60], "max_size": 9}
    assert client.patch(f"{path}/groups/ada%2F1", json=change).status_code == 204
    assert client.patch(f"{path}/groups", json={"concurrency": 7}).status_code == 204
    shown = jobs.get("/groups")
    assert shown == {
        "groups": [
            {
                "name": "ada/1",
                "ready": 2,
                "claimed": 0,
                "weight": 2,
                "concurrency": 1,
                "paused": True,
                "rate": [3, 60],
                "in_order": True,
                "held_by": "paused",
                "held_until": None,
                "delayed": 0,
                "max_size": 9,
            },
            {
                "name": "bob",
                "ready": 1,
                "claimed": 0,
                "weight": 1,
                "concurrency": 7,
                "paused": False,
                "rate": None,
                "in_order": False,
                "held_by": None,
                "held_until": None,
                "delayed": 0,
                "max_size": None,
            },
        ],
        "for_all": {
            "weight": None,
            "concurrency": 7,
            "rate": None,
            "in_order": None,
            "max_size": None,
        },
        "next": None,
    }
    assert jobs.get("/groups", after="", limit=1)["next"] == "ada/1"
    assert jobs.get("/groups", after="ada/1")["groups"] == shown["groups"][1:]
    assert client.patch(f"{path}/groups/ada%2F1", json={"paused": False}).status_code == 204
    problem = client.get(f"{path}/groups", params={"after": "ä" * 128})
    assert (problem.status_code, "255 bytes" in problem.json()["detail"]) == (422, True)
    (first,) = fdbqueue.PriorityQueue.named(db, name).groups(db, after="", limit=1)
    assert (first.weight, first.held_by) == (2, None)
    items = jobs.get("/items")["items"]
    assert sorted(item["group"] or "" for item in items) == ["", "ada/1", "ada/1", "bob"]


def test_a_mistake_changes_nothing(client: TestClient, db: Any, name: str) -> None:
    fdbqueue.PriorityQueue.named(db, name).push(db, 1, group="ada")
    path = f"/v1/queues/{name}/groups"
    for answer in (
        client.patch(f"{path}/ada", json={"weight": 0}),
        client.patch(f"{path}/ada", json={"concurrency": 0}),
        client.patch(f"{path}/ada", json={"rate": [0, 1]}),
        client.post(f"/v1/queues/{name}/push", json={"item": 1, "cost": 0}),
        client.patch(f"{path}/{'x' * 256}", json={"weight": 2}),
        client.patch(path, json={"paused": True}),
        client.post(f"/v1/queues/{name}/push", json={"item": 1, "group": ""}),
    ):
        assert answer.status_code == 422, answer.text
    assert client.get(f"/v1/queues/{name}nope/groups").status_code == 404
    (group,) = client.get(path).json()["groups"]
    assert (group["ready"], group["weight"]) == (1, 1)


def test_an_item_says_why_it_is_not_running(client: TestClient, db: Any, name: str) -> None:
    jobs = fdbqueue.PriorityQueue.named(db, name)
    jobs.set_group(db, "ada", concurrency=1)
    _, second = jobs.push_many(db, [1, 2], group="ada")
    info = Api(client, name).get(f"/items/{second.id}")
    assert (info["held_by"], info["ahead_in_group"]) == (None, 1)
    jobs.claim(db)
    info = Api(client, name).get(f"/items/{second.id}")
    assert (info["held_by"], info["ahead_in_group"]) == ("group_concurrency", 0)
    (listed,) = Api(client, name).get("/items")["items"]
    assert (listed["held_by"], listed["ahead_in_group"]) == ("group_concurrency", None)


def test_a_group_at_its_rate_is_listed_with_the_time_when_it_goes_on(
    client: TestClient, db: Any, name: str
) -> None:
    jobs = fdbqueue.PriorityQueue.named(db, name)
    jobs.set_group(db, "ada", rate=(1, "1h"))
    jobs.push_many(db, [1, 2], group="ada")
    jobs.pop(db)
    (info,) = jobs.groups(db)
    (shown,) = Api(client, name).get("/groups")["groups"]
    assert (shown["held_by"], shown["rate"]) == ("rate", [1, 3600])
    assert datetime.fromisoformat(shown["held_until"]) == info.held_until


def test_one_group_is_retried_cancelled_and_cleared(client: TestClient, db: Any, name: str) -> None:
    jobs = fdbqueue.PriorityQueue.named(db, name, max_attempts=1)
    path = f"/v1/queues/{name}"
    dead = jobs.push(db, 1, group="a/b")
    jobs.nack(db, jobs.claim(db))
    jobs.push(db, 2, group="bob")
    assert [
        each["id"] for each in Api(client, name).get("/items", state="dead", group="a/b")["items"]
    ] == [dead.id]
    assert client.get(f"{path}/items?group=").json()["items"] == []
    for call, answer in (
        ("retry", {"changed": 1, "unchanged": []}),
        ("cancel", {"changed": 1, "unchanged": []}),
        ("clear", {"changed": 0, "unchanged": []}),
    ):
        assert client.post(f"{path}/groups/a%2Fb/{call}").json() == answer
    jobs.push(db, 3, group="a/b")
    change = {"change": "remove", "state": "ready", "group": "a/b"}
    assert client.post(f"{path}/change", json=change).json()["changed"] == 1
    assert [item.value for item in jobs.items(db)] == [2]
    assert client.post(f"{path}/groups/{'x' * 256}/clear").status_code == 422
    fdbqueue.TaskQueue.named(db, f"{name}tasks").push(db)
    assert client.post(f"{path}tasks/groups/a/clear").json()["changed"] == 0
    assert client.get(f"{path}tasks/items?group=a").json()["items"] == []


def test_items_without_a_group_are_listed_and_have_a_weight(
    client: TestClient, db: Any, name: str
) -> None:
    jobs = fdbqueue.PriorityQueue.named(db, name)
    jobs.push_many(db, [1, 2, 3], groups=[None, "ada", None])
    assert client.patch(f"/v1/queues/{name}/ungrouped", json={"weight": 4}).status_code == 204
    assert jobs.group_settings(db, "") == {"weight": 4}
    (ada,) = Api(client, name).get("/groups")["groups"]
    assert ada["name"] == "ada"
    for body in ({"concurrency": 1}, {"weight": 0}):
        assert client.patch(f"/v1/queues/{name}/ungrouped", json=body).status_code == 422


def test_a_push_to_a_full_group_is_refused(client: TestClient, db: Any, name: str) -> None:
    path = f"/v1/queues/{name}"
    assert client.post(f"{path}/push", json={"item": 1, "group": "ada"}).status_code == 201
    assert client.patch(f"{path}/groups/ada", json={"max_size": 1}).status_code == 204
    item = {"item": 2, "group": "ada"}
    for fits in (False, True):
        batch = {"items": [item, {"item": 3}], "as_many_as_fit": fits}
        for answer in (
            client.post(f"{path}/push", json=item),
            client.post(f"{path}/batch", json=batch),
        ):
            assert answer.status_code == 429
            assert "the group 'ada' holds at most 1 item" in answer.text


def test_a_task_queue_has_groups(client: TestClient, db: Any, name: str) -> None:
    tasks = fdbqueue.TaskQueue.named(db, name)
    ids = tasks.push_many(db, [{"group": "ada"}, {"group": "ada"}, {"group": "bob"}])
    path, api = f"/v1/queues/{name}/groups", Api(client, name)
    limits = {"concurrency": 1, "rate": [9, 60]}
    assert client.patch(f"{path}/ada", json=limits).status_code == 204
    assert client.patch(path, json={"concurrency": 7}).status_code == 204
    tasks.claim(db, n=9)
    ada, bob = api.get("/groups")["groups"]
    assert (ada["ready"], ada["claimed"], ada["held_by"]) == (1, 1, "concurrency")
    assert (ada["rate"], ada["concurrency"], bob["concurrency"]) == ([9, 60], 1, 7)
    info = api.get(f"/items/{ids[1]}")
    assert (info["group"], info["held_by"]) == ("ada", "group_concurrency")
    assert client.patch(f"{path}/ada", json={"paused": True}).status_code == 204
    assert api.get(f"/items/{ids[1]}")["held_by"] == "group_paused"
    assert client.post(f"{path}/ada/clear").json() == {"changed": 2, "unchanged": []}
