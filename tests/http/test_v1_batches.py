"""The batches of an item over HTTP, and retries from a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.http import Tokens, create_app
from fdbqueue.jobs import App, Context, Dead
from fdbqueue.queue.batches import Batches, Members
from tests.support.api import Api


def begin(db: Any, name: str, n: int) -> tuple[str, list[str]]:
    """Begin a batch of `n` jobs; return the id of the job at its end, and those of the jobs."""
    reports, queue = (PriorityQueue.named(db, each) for each in (f"{name}-reports", name))
    batches = Batches(reports)
    id = batches.open(db, {"job": "report"}, 0, "cancel").id
    batches.add(db, id, "cancel", [Members(queue, {"values": range(n), "priority": 0})])
    return id, [item.id for item in queue.items(db)]


def test_the_batches_of_an_item_are_shown(client: TestClient, db: Any, name: str) -> None:
    id, (first, second) = begin(db, name, 2)
    jobs, reports = Api(client, name), Api(client, f"{name}-reports")
    (claim,) = jobs.claim()
    jobs.post("/ack", {"token": claim["token"]})
    expected = {
        **{"kind": "then", "queue": f"{name}-reports", "id": id, "step": None},
        **{"on_dead": "cancel", "is_open": True, "is_cancelled": False, "has_ended": False},
        **{"pushed": 2, "done": 1, "dead": 0, "cancelled": 0, "left": 1},
    }
    assert jobs.get(f"/items/{second}/batches")["batches"] == [{**expected, "is_member": True}]
    assert reports.get(f"/items/{id}/batches")["batches"] == [{**expected, "is_member": False}]
    assert jobs.get(f"/items/{first}/batches") == {"batches": []}
    (info,) = jobs.get("/items")["items"]
    assert (info["in_batch"], info["stored_steps"]) == (True, 0)
    assert jobs.problem("GET", "/items/nothing/batches")["status"] == 422


def test_a_batch_that_was_left_open_is_closed(client: TestClient, db: Any, name: str) -> None:
    id, _ = begin(db, name, 1)
    jobs, reports = Api(client, name), Api(client, f"{name}-reports")
    jobs.post("/pop", {})
    assert reports.get(f"/items/{id}")["state"] == "delayed"
    for _ in range(2):
        assert reports.send("POST", f"/items/{id}/close-batch").status_code == 204
    assert reports.get(f"/items/{id}")["state"] == "ready"
    assert jobs.problem("POST", f"/items/{jobs.push(1)}/close-batch")["status"] == 404


def test_a_token_shows_no_batch_of_a_queue_that_it_may_not_read(
    db: Any, name: str, tmp_path: Path
) -> None:
    _, (job,) = begin(db, name, 1)
    tokens = tmp_path / "tokens"
    tokens.write_text(f"one read {name}\nboth read {name}*\n")
    app = create_app(db, tokens=Tokens(file=tokens))
    with TestClient(app, "http://127.0.0.1") as client:
        for token, n in (("one", 0), ("both", 1)):
            allowed = Api(client, name, authorization=f"Bearer {token}")
            assert len(allowed.get(f"/items/{job}/batches")["batches"]) == n


def test_a_dead_letter_goes_on_from_a_step(client: TestClient, db: Any, name: str) -> None:
    app = App(db)
    ran: list[str] = []

    @app.job(queue=name)
    def build(context: Context) -> None:
        for step in ("fetch", "compile", "link"):
            context.step(step, ran.append, step)
        if len(ran) < 5:
            raise Dead("no disk")

    handle = build.push()
    app.work(drain=True)
    retry, jobs = f"/items/{handle.id}/retry", Api(client, name)
    assert "has no such step" in jobs.problem("POST", retry, {"step": "pack"})["detail"]
    assert jobs.problem("POST", retry, {"step": 7})["status"] == 422
    assert jobs.problem("POST", retry, {"stage": "link"})["status"] == 422
    assert handle.state() == "dead"
    jobs.post(retry, {"step": "compile"})
    assert [step["name"] for step in jobs.get(f"/items/{handle.id}/steps")["steps"]] == ["fetch"]
    app.work(drain=True)
    assert ran == ["fetch", "compile", "link", "compile", "link"]


def test_a_retry_needs_no_body(client: TestClient, db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name)
    item = queue.push(db, 1)
    for body in (None, {}, {"step": None}):
        queue.nack(db, queue.claim(db), dead=True)
        assert Api(client, name).send("POST", f"/items/{item.id}/retry", body).status_code == 204
    tasks = fdbqueue.TaskQueue.named(db, f"{name}-tasks")
    task = tasks.push(db)
    problem = Api(client, f"{name}-tasks").problem("POST", f"/items/{task}/retry", {"step": "a"})
    assert "no steps" in problem["detail"]
