"""Groups, schedules, batches and steps below `/v1`: status codes, pages, and queues of tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import fdbqueue
from fdbqueue import PriorityQueue, TaskQueue
from fdbqueue.http import Tokens, create_app
from fdbqueue.jobs import App, Context
from tests.support.api import Api


def batch_with_alert(**fields: Any) -> tuple[str, str, Any]:
    on_dead = {"job": "alert", **fields}
    return "POST", "/batch", {"items": [{"item": 1}], "on_dead": on_dead}


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (("PATCH", f"/groups/{'x' * 256}", {"weight": 2}), (422, "")),
        (("PATCH", "/groups", {"paused": True}), (422, "paused")),
        (("PUT", "/schedules/s", {"every": 60}), (422, "item: Field required")),
        (("POST", "/schedules/nope/run", None), (404, "there is no schedule 'nope'")),
        (("POST", "/schedules/skip/run", None), (409, "has not ended")),
        (("POST", "/items/ITEM/close-batch", None), (404, "there is no batch")),
        (("GET", "/items/nope/steps", None), (422, "is not the id")),
        (("POST", "/items/ITEM/retry", {"step": 7}), (422, "step")),
        (("POST", "/items/ITEM/run-now", None), (409, "waits for a signal")),
        (("POST", "/signals", {}), (422, "name: Field required")),
        (("POST", "/signals", {"name": "ü" * 200}), (422, "255 bytes")),
        (batch_with_alert(job=""), (422, "on_dead")),
        (batch_with_alert(queue=" "), (422, "a name must be printable")),
        (batch_with_alert(priority=2**63), (422, "priority")),
        (batch_with_alert(version=0), (422, "version")),
        (batch_with_alert(version=10**700), (422, "version")),
        (batch_with_alert(group=""), (422, "a group")),
    ],
)
def test_a_mistake_is_a_problem_and_changes_nothing(
    client: TestClient, db: Any, name: str, request_: tuple[str, str, Any], answer: tuple[int, str]
) -> None:
    app = App(db)

    @app.job(queue=name)
    def wait(context: Context) -> None:
        context.wait("shipped")

    id = wait.push().id
    app.work(drain=True)
    queue = PriorityQueue.named(db, name)
    queue.schedules.add(db, "skip", 1, every="1h", overlap="skip")
    queue.schedules.run_now(db, "skip")
    before = queue.stats(db), queue.schedules.all(db), queue.groups(db)
    method, path, body = request_
    problem = Api(client, name).problem(method, path.replace("ITEM", id), body)
    assert (problem["status"], answer[1] in problem["detail"]) == (answer[0], True), problem
    assert (queue.stats(db), queue.schedules.all(db), queue.groups(db)) == before


@pytest.mark.parametrize("path", ["/groups", "/schedules", "/items/x/steps", "/items/x/batches"])
def test_a_queue_that_does_not_exist_is_not_found(client: TestClient, name: str, path: str) -> None:
    assert Api(client, name).problem("GET", path)["type"] == "urn:fdbqueue:QueueNotFound"


def test_groups_are_listed_page_by_page(client: TestClient, db: Any, name: str) -> None:
    jobs = Api(client, name)
    queue = PriorityQueue.named(db, name)
    queue.push_many(db, range(3), groups=["a", "a/b", "c"])
    jobs.send("PATCH", "/groups", {"concurrency": 7, "rate": [1, 60]})
    jobs.send("PATCH", "/ungrouped", {"weight": 3})
    page = jobs.get("/groups", limit=2)
    assert ([each["name"] for each in page["groups"]], page["next"]) == (["a", "a/b"], "a/b")
    (last,) = jobs.get("/groups", after="a/b")["groups"]
    assert last["name"] == "c"
    set_for_all = {"concurrency": 7, "rate": [1, 60]}
    unset = dict.fromkeys(("weight", "in_order", "max_size"))
    assert page["for_all"] == {**unset, **set_for_all}
    assert page["ungrouped"] == {"weight": 3}
    assert jobs.get("/items", group="")["items"] == []
    assert "255 bytes" in jobs.problem("GET", "/groups", after="ä" * 128)["detail"]


def test_a_task_queue_has_groups_and_neither_schedules_nor_steps(
    client: TestClient, db: Any, name: str
) -> None:
    tasks, api = TaskQueue.named(db, name), Api(client, name)
    ids = tasks.push_many(db, [{"group": "ada"}, {"group": "ada"}, {"group": "bob"}])
    assert api.send("PATCH", "/groups/ada", {"concurrency": 1}).status_code == 204
    tasks.claim(db, n=9)
    ada, _ = api.get("/groups")["groups"]
    assert (ada["ready"], ada["claimed"], ada["held_by"]) == (1, 1, "concurrency")
    assert api.get(f"/items/{ids[1]}")["held_by"] == "group_concurrency"
    assert api.post("/groups/ada/clear") == {"changed": 2, "unchanged": []}
    for method, path, body in (
        ("GET", "/schedules", None),
        ("PUT", "/schedules/s", {"item": 1, "every": 60}),
        ("POST", "/schedules/s/pause", None),
    ):
        assert "a task queue has no schedules" in api.problem(method, path, body)["detail"]
    problem = api.problem("POST", f"/items/{ids[2]}/retry", {"step": "a"})
    assert "no steps" in problem["detail"]


def test_a_retry_needs_no_body(client: TestClient, db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name)
    item = queue.push(db, 1)
    for body in (None, {}, {"step": None}):
        queue.nack(db, queue.claim(db), dead=True)
        assert Api(client, name).send("POST", f"/items/{item.id}/retry", body).status_code == 204


def test_a_token_shows_no_batch_of_a_queue_that_it_may_not_read(
    db: Any, name: str, tmp_path: Path
) -> None:
    app = App(db)

    @app.job(queue=name)
    def send() -> None: ...

    @app.job(queue=f"{name}-reports")
    def report(*, done: int, dead: int, cancelled: int) -> None: ...

    with app.batch(then=report) as batch:
        batch.push(send)
    (job,) = app.queue(name).items(db)
    tokens = tmp_path / "tokens"
    tokens.write_text(f"one read {name}\nboth read {name}*\n")
    with TestClient(create_app(db, tokens=Tokens(file=tokens)), "http://127.0.0.1") as client:
        for token, n in (("one", 0), ("both", 1)):
            allowed = Api(client, name, authorization=f"Bearer {token}")
            assert len(allowed.get(f"/items/{job.id}/batches")["batches"]) == n
    assert fdbqueue.existing_queue(db, f"{name}-reports").stats(db).delayed == 1
