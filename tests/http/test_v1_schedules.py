"""Schedules over HTTP: added, listed, changed, paused, run and removed."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

import fdbqueue
from tests.support.api import Api


def test_a_schedule_is_added_changed_run_and_removed(
    client: TestClient, db: Any, name: str
) -> None:
    jobs = Api(client, name)
    body = {"item": {"of": "sales"}, "cron": "0 3 * * *", "tz": "Europe/Lisbon", "overlap": "skip"}
    added = client.put(f"/v1/queues/{name}/schedules/every%2Fnight", json=body)
    assert added.status_code == 200
    shown = added.json()
    assert (shown["name"], shown["value"], shown["priority"]) == ("every/night", body["item"], 0)
    assert (shown["cron"], shown["tz"], shown["every"]) == ("0 3 * * *", "Europe/Lisbon", None)
    assert shown["next_tick"].startswith("20")
    assert len(shown["next_ticks"]) == 5
    assert sorted(shown["next_ticks"])[0] == shown["next_tick"]
    assert jobs.get("/schedules") == {"schedules": [shown]}

    ran = client.post(f"/v1/queues/{name}/schedules/every%2Fnight/run")
    assert ran.status_code == 201
    assert jobs.get("/items")["items"][0]["id"] == ran.json()["id"]
    again = client.post(f"/v1/queues/{name}/schedules/every%2Fnight/run")
    assert again.status_code == 409
    assert "has not ended" in again.json()["detail"]

    changed = client.put(
        f"/v1/queues/{name}/schedules/every%2Fnight",
        json={"item": 1, "priority": 5, "every": 90, "group": "a"},
    )
    assert (changed.json()["every"], changed.json()["priority"]) == (90, 5)
    assert (shown["group"], changed.json()["group"]) == (None, "a")
    assert changed.json()["pushed"] == 1
    for action, paused in (("pause", True), ("resume", False)):
        done = client.post(f"/v1/queues/{name}/schedules/every%2Fnight/{action}")
        assert done.status_code == 204
        (stored,) = jobs.get("/schedules")["schedules"]
        assert stored["paused"] is paused
        assert len(stored["next_ticks"]) == (0 if paused else 5)
    assert client.delete(f"/v1/queues/{name}/schedules/every%2Fnight").status_code == 204
    assert jobs.get("/schedules") == {"schedules": []}


def test_an_unknown_schedule_is_not_found(client: TestClient, db: Any, name: str) -> None:
    fdbqueue.PriorityQueue.named(db, name).push(db, 1)
    path = f"/v1/queues/{name}/schedules/nope"
    for answer in (
        client.delete(path),
        client.post(f"{path}/pause"),
        client.post(f"{path}/resume"),
        client.post(f"{path}/run"),
    ):
        assert answer.status_code == 404
        assert "there is no schedule 'nope'" in answer.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [
        {"item": 1},
        {"item": 1, "cron": "61 * * * *"},
        {"item": 1, "every": 0.5},
        {"item": 1, "every": 60, "cron": "* * * * *"},
        {"item": 1, "every": 60, "missed": "some"},
        {"item": 1, "cron": "* * * * *", "tz": "Mars"},
        {"item": 1, "every": 60, "priority": [1]},
        {"every": 60},
    ],
)
def test_an_invalid_schedule_stores_nothing(
    client: TestClient, db: Any, name: str, body: dict[str, Any]
) -> None:
    fdbqueue.PriorityQueue.named(db, name).push(db, 1)
    answer = client.put(f"/v1/queues/{name}/schedules/bad", json=body)
    assert answer.status_code == 422
    assert Api(client, name).get("/schedules") == {"schedules": []}


def test_a_task_queue_has_no_schedules(client: TestClient, db: Any, name: str) -> None:
    fdbqueue.TaskQueue.named(db, name).push(db)
    path = f"/v1/queues/{name}/schedules"
    put = client.put(f"{path}/s", json={"item": 1, "every": 60})
    for answer in (client.get(path), put, client.post(f"{path}/s/pause")):
        assert (answer.status_code, answer.json()["detail"]) == (
            422,
            "a task queue has no schedules",
        )
