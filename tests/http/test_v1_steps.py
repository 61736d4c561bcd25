"""Steps of jobs over HTTP, and signals for those that wait."""

from __future__ import annotations

from typing import Any

from starlette.testclient import TestClient

import fdbqueue
from fdbqueue.jobs import App, Context
from tests.support.api import Api


def test_the_steps_of_a_job_are_shown_and_a_signal_lets_it_go_on(
    client: TestClient, db: Any, name: str
) -> None:
    app = App(db)

    @app.job(queue=name)
    def fulfil(context: Context, order: str) -> str:
        context.step("charge", order.upper)
        return str(context.wait("shipped", key=order).value)

    handle = fulfil.push("order 7")
    app.work(drain=True)
    jobs = Api(client, name)
    charge, shipped = jobs.get(f"/items/{handle.id}/steps")["steps"]
    assert (charge["name"], charge["state"], charge["value"]) == ("charge", "done", "ORDER 7")
    assert (shipped["kind"], shipped["state"], shipped["key"]) == ("wait", "waiting", "order 7")
    refused = client.post(f"/v1/queues/{name}/items/{handle.id}/run-now")
    assert refused.status_code == 409
    assert "waits for a signal" in refused.json()["detail"]
    body = {"name": "shipped", "key": "order 7", "value": "1Z999"}
    for n in (1, 0):
        answer = client.post(f"/v1/queues/{name}/signals", json=body)
        assert (answer.status_code, answer.json()) == (200, {"signalled": n})
    app.work(drain=True)
    assert handle.result() == "1Z999"


def test_mistakes(client: TestClient, db: Any, name: str) -> None:
    fdbqueue.PriorityQueue.named(db, name).push(db, 1)
    for body in ({}, {"name": ""}, {"name": "a", "keep": 0}, {"name": "ü" * 200}):
        assert client.post(f"/v1/queues/{name}/signals", json=body).status_code == 422
    assert client.post("/v1/queues/nope/signals", json={"name": "a"}).status_code == 404
    assert client.get(f"/v1/queues/{name}/items/nope/steps").status_code in (404, 422)
