"""Push, pop, claim and the end of claims below `/v1`, for queues of every kind."""

from __future__ import annotations

import json
import math
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from starlette.testclient import TestClient

import fdbqueue
from fdbqueue import PriorityQueue, Queue, TaskQueue
from fdbqueue.http import create_app
from fdbqueue.testing import FaultyDatabase
from tests.support.api import Api
from tests.support.leases import lapse
from tests.support.scan import assert_views_agree
from tests.support.threads import in_threads


@pytest.fixture
def jobs(client: TestClient, name: str) -> Api:
    return Api(client, name)


def queue_of(db: Any, name: str) -> Any:
    return fdbqueue.existing_queue(db, name)


def make(db: Any, name: str, kind: str) -> Any:
    kinds: dict[str, Any] = {"priority": PriorityQueue, "fifo": Queue, "task": TaskQueue}
    queue = kinds[kind].named(db, name)
    queue.configure(db, max_attempts=2)
    return queue


@pytest.mark.parametrize("kind", ["priority", "fifo", "task"])
def test_a_job_is_pushed_claimed_and_acknowledged(
    client: TestClient, db: Any, name: str, kind: str
) -> None:
    queue, jobs = make(db, name, kind), Api(client, name)
    ids = [jobs.push({"n": n}) for n in range(3)]
    claims = jobs.claim(n=2, lease=60, client="shelf 7")
    assert [(claim["id"], claim["item"]["n"], claim["attempt"]) for claim in claims] == [
        (ids[0], 0, 1),
        (ids[1], 1, 1),
    ]
    assert queue.get(db, ids[0]).claimed_by == "shelf 7"
    jobs.post("/extend", {"token": claims[0]["token"], "lease": 600})
    assert queue.get(db, ids[0]).lease_ends > datetime.now(UTC) + timedelta(minutes=5)
    assert queue.get(db, ids[0]).claimed_by == "shelf 7"
    assert jobs.post("/ack", {"token": claims[0]["token"]}) == {"ids": []}
    jobs.post("/release", {"token": claims[1]["token"]})
    (again,) = jobs.claim()
    assert (again["id"], again["attempt"]) == (ids[1], 1)
    jobs.post("/nack", {"token": again["token"], "delay": 600, "error": "no such address"})
    info = queue.get(db, ids[1])
    assert (info.state, info.error, info.failed_attempts[0].number) == (
        "delayed",
        "no such address",
        1,
    )
    popped = jobs.post("/pop", {"n": 5})["items"]
    assert [item["id"] for item in popped] == [ids[2]]
    assert jobs.problem("GET", f"/items/{ids[2]}/result")["status"] == 404
    assert jobs.claim() == []
    assert_views_agree(db, queue)


@pytest.mark.parametrize("route", ["/ack", "/nack", "/extend", "/release"])
def test_a_claim_that_is_over_is_a_conflict_with_the_id_of_its_item(
    client: TestClient, db: Any, name: str, route: str
) -> None:
    queue, jobs, other = make(db, name, "priority"), Api(client, name), Api(client, f"{name}2")
    id = jobs.push("job")
    (claim,) = jobs.claim()
    other.push("job")
    other.claim()
    assert other.problem("POST", route, {"token": claim["token"]})["status"] == 409
    lapse(db, queue)
    assert queue.claim(db) is not None
    problem = jobs.problem("POST", route, {"token": claim["token"]})
    assert (problem["status"], problem["type"]) == (409, "urn:fdbqueue:LeaseLost")
    assert problem["item_id"] == id
    assert_views_agree(db, queue)


def test_an_acknowledgement_pushes_its_follow_ups_or_does_nothing(
    client: TestClient, db: Any, name: str
) -> None:
    queue, jobs = make(db, name, "priority"), Api(client, name)
    tasks = make(db, f"{name}/tasks", "task")
    queue.configure(db, keep=10)
    id = jobs.push("job")
    (claim,) = jobs.claim()
    then = [
        {"queue": f"{name}/tasks", "item": {"of": 1}, "priority": 1, "agent_name": "ada"},
        {"queue": f"{name}/new", "item": "first", "delay": 600},
    ]
    ids = jobs.post("/ack", {"token": claim["token"], "result": [1], "then": then})["ids"]
    assert queue.result(db, id) == [1]
    task = tasks.get_task(db, ids[0])
    assert (task.payload, task.priority, task.agent_name) == ({"of": 1}, 1, "ada")
    assert queue_of(db, f"{name}/new").state(db, ids[1]) == "delayed"
    body = {"token": claim["token"], "then": then}
    assert jobs.problem("POST", "/ack", body)["type"] == "urn:fdbqueue:LeaseLost"
    assert tasks.size(db) == 1
    tasks.configure(db, max_size=1)
    jobs.push("next")
    (claim,) = jobs.claim()
    problem = jobs.problem("POST", "/ack", {"token": claim["token"], "then": then})
    assert (problem["status"], problem["type"]) == (429, "urn:fdbqueue:QueueFull")
    assert queue.stats(db).claimed == 1
    for wrong, why in (
        ({"queue": name, "item": 1, "agent_name": "ada"}, "agent_name: a push to a priority queue"),
        ({"queue": f"{name}/none", "item": 1, "priority": [1]}, "must be a 64-bit integer"),
    ):
        problem = jobs.problem("POST", "/ack", {"token": claim["token"], "then": [wrong]})
        assert (problem["status"], why in problem["detail"]) == (422, True)
    jobs.post("/ack", {"token": claim["token"]})
    late = {"token": claim["token"], "then": [{"queue": f"{name}/none", "item": 1}]}
    assert jobs.problem("POST", "/ack", late)["status"] == 409
    assert f"{name}/none" not in fdbqueue.admin.queue_names(db)
    for each in (queue, tasks):
        assert_views_agree(db, each)


def test_a_task_has_the_fields_of_tasks(client: TestClient, db: Any, name: str) -> None:
    tasks, api = make(db, name, "task"), Api(client, name)
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    fields = {"priority": 2, "cost": 2.5, "client_id": "c", "agent_name": "ada"}
    first, second = api.push({"x": 1}, deadline=soon, **fields), api.push(2, group="ada")
    found = tasks.get_task(db, first)
    assert {each: getattr(found, each) for each in fields} == fields
    assert found.deadline == datetime.fromisoformat(soon)
    assert [each["id"] for each in api.get("/items", agent="ada")["items"]] == [first]
    claimed = {each["id"]: each["agent_name"] for each in api.claim(n=9)}
    assert claimed == {first: "ada", second: None}
    third = f"/items/{api.push(3)}"
    assert api.send("PATCH", third, {"priority": 1}).is_success
    assert api.get(third)["priority"] == 1
    assert api.problem("PATCH", third, {"priority": 9})["status"] == 422
    for invalid in ("2030-01-31T12:00:00", 1_900_000_000, "soon"):
        problem = api.problem("POST", "/push", {"item": 1, "deadline": invalid})
        assert (problem["status"], "deadline: " in problem["detail"]) == (422, True)


def test_priorities_of_tuples_are_lists(client: TestClient, db: Any, name: str) -> None:
    queue, jobs = PriorityQueue.named(db, name, priorities=(int, float)), Api(client, name)
    queue.push(db, "library", (1, 2.5))
    jobs.push("http", priority=[1, 0.5])
    assert [item["priority"] for item in jobs.get("/items")["items"]] == [[1, 0.5], [1, 2.5]]
    assert jobs.get("/items", priority="[1, 0.5]")["items"][0]["item"] == "http"
    assert jobs.post("/pop", {"max": True})["items"][0]["item"] == "library"


def test_lengths_of_time_may_be_text(db: Any, name: str, jobs: Api) -> None:
    assert jobs.send("PUT", "", {"rate": [9, "1m"], "keep": ["7d", 10]}).status_code == 201
    options = queue_of(db, name).options(db)
    assert (options.rate, options.keep_seconds, options.keep_number) == ((9, 60), 604_800, 10)
    info = queue_of(db, name).get(db, jobs.push("later", delay="1h30m"))
    assert abs(info.due_at - info.pushed_at - timedelta(minutes=90)) < timedelta(seconds=5)
    jobs.push("now")
    (claim,) = jobs.claim(lease="2m")
    jobs.post("/nack", {"token": claim["token"], "delay": "1h"})
    assert "90s" in jobs.problem("POST", "/push", {"item": 1, "ttl": "soon"})["detail"]


@pytest.mark.parametrize("kind", ["priority", "fifo", "task"])
def test_a_batch_is_stored_whole_or_as_far_as_it_fits(
    client: TestClient, db: Any, name: str, kind: str
) -> None:
    queue, jobs = make(db, name, kind), Api(client, name)
    queue.configure(db, max_size=3)
    items = [{"item": 0, "delay": 600}, {"item": 1, "unique": "a"}, {"item": 2, "unique": "a"}]
    ids = jobs.post("/batch", {"items": items})["ids"]
    assert (ids[1], queue.get(db, ids[0]).state) == (ids[2], "delayed")
    more = {"items": [{"item": key, "unique": key} for key in ("a", "b", "c")]}
    assert jobs.problem("POST", "/batch", more)["status"] == 429
    stored = jobs.post("/batch", {**more, "as_many_as_fit": True})["ids"]
    assert (stored[0], len(stored)) == (ids[1], 2)
    unfit = {"items": [{"item": 9}], "as_many_as_fit": True}
    assert jobs.problem("POST", "/batch", unfit)["status"] == 429
    wrong = {"items": [{"item": 1}, {"item": 1, "unique_for": 60}]}
    assert jobs.problem("POST", "/batch", wrong)["status"] == 422
    stats = assert_views_agree(db, queue)
    assert (stats.ready, stats.delayed) == (2, 1)


def test_a_repeated_request_with_an_idempotency_key_stores_nothing_more(
    client: TestClient, db: Any, name: str
) -> None:
    """Also of a hundred requests at once, and of a push of a unique item."""
    jobs = Api(client, name, **{"idempotency-key": "order 7"})
    jobs.client.get("/health")  # starts the event loop
    answers: list[Any] = []
    body = {"item": "pack", "unique": "k"}
    in_threads([lambda: answers.append(jobs.post("/push", body))] * 30)
    assert answers == [{"id": answers[0]["id"], "is_new": True}] * 30
    assert jobs.problem("POST", "/push", {"item": "other"})["status"] == 422
    other = Api(client, name, **{"idempotency-key": "order 8"})
    for _ in range(2):
        assert other.post("/push", body) == {**answers[0], "is_new": False}
    assert queue_of(db, name).size(db) == 1


def test_a_claim_waits_for_a_job(db: Any, name: str, jobs: Api) -> None:
    jobs.push("first")
    jobs.post("/pop")
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.extend(jobs.claim(wait=60)))
    waiting.start()
    while not fdbqueue.existing_queue(db, name).size(db) and waiting.is_alive():
        jobs.push("second")
        waiting.join(1)
    waiting.join()
    assert found[0]["item"] == "second"
    assert jobs.claim(wait=0.01, n=9) is not None


def test_a_number_without_a_fraction_is_an_integer(jobs: Api) -> None:
    id = jobs.push("job", priority=2.0)
    assert jobs.get(f"/items/{id}")["priority"] == 2
    (claim,) = jobs.claim(n=1.0, within=256.0)
    assert claim["priority"] == 2
    assert jobs.problem("POST", "/claim", {"n": 1.5})["status"] == 422


@pytest.mark.parametrize(
    ("route", "body", "why"),
    [
        ("/push", {}, "item: Field required"),
        ("/push", {"item": 1, "prioriy": 1}, "prioriy: Extra inputs"),
        ("/push", {"item": [math.inf]}, "not JSON compliant"),
        ("/push", {"item": 1, "at": "1900000000"}, "is not a time such as"),
        ("/push", [], "the body"),
        ("/claim", {"n": 0}, "n: "),
        ("/claim", {"lease": 0}, "lease"),
        ("/claim", {"agent": "ada"}, "agent: "),
        ("/claim", {"client": "two\nlines"}, "printable"),
        ("/ack", {"token": "AAAA"}, "is not the token of a claim"),
        ("/nack", {"token": "x" * 2001}, "is not the token of a claim"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(
    db: Any, name: str, jobs: Api, route: str, body: Any, why: str
) -> None:
    jobs.push("job")
    jobs.headers["content-type"] = "application/json"
    answer = jobs.client.post(jobs.path + route, content=json.dumps(body), headers=jobs.headers)
    problem = answer.json()
    assert (problem["status"], why in problem["detail"]) == (422, True), problem
    stats = assert_views_agree(db, queue_of(db, name))
    assert (stats.ready, stats.total_pushed) == (1, 1)


def test_query_parameters_that_a_route_does_not_have_are_refused(jobs: Api) -> None:
    jobs.push("job")
    assert "no such query parameter" in jobs.problem("POST", "/claim", {}, n=3)["detail"]
    assert "depth: this route has no such" in jobs.problem("GET", "/items", depth=3)["detail"]


def test_a_queue_whose_items_are_not_json_can_be_looked_at_only(
    client: TestClient, db: Any, name: str
) -> None:
    id = PriorityQueue.named(db, name, codec="bytes").push(db, b"raw").id
    jobs = Api(client, name)
    assert jobs.problem("POST", "/claim", {})["status"] == 409
    assert jobs.get(f"/items/{id}")["item"] == "b'raw'"
    assert jobs.get("/stats")["ready"] == 1


def test_follow_ups_are_pushed_once_despite_lost_results(db: Any, name: str, rng: Any) -> None:
    faulty = FaultyDatabase(
        db, before=0.2, after=0.2, conflict=0.1, lost_as=(1021, 1039), seed=rng.randrange(99)
    )
    with TestClient(create_app(faulty), "http://127.0.0.1") as client:
        jobs, n = Api(client, name), 20
        for number in range(n):
            jobs.push(number)
        done = 0
        while claims := jobs.claim():
            then = [{"queue": f"{name}2", "item": claims[0]["item"]}]
            jobs.post("/ack", {"token": claims[0]["token"], "then": then})
            done += 1
    follow_ups = [item.value for item in queue_of(db, f"{name}2").items(db)]
    assert (done, sorted(follow_ups)) == (n, [*range(n)])


def test_a_client_reports_on_its_work(db: Any, jobs: Api, name: str) -> None:
    queue = make(db, name, "priority")
    queue.configure(db, keep=10)
    id = jobs.push("job")
    (claim,) = jobs.claim()
    report = {"progress": 0.4, "message": "page 4", "log": "began\n"}
    jobs.post("/extend", {"token": claim["token"], **report})
    info = jobs.get(f"/items/{id}")
    reported = info["progress"]
    assert (reported["fraction"], reported["message"], info["log"]) == (0.4, "page 4", "began\n")
    assert datetime.fromisoformat(reported["reported_at"]).tzinfo
    jobs.post("/nack", {"token": claim["token"], "delay": 0, "log": "failed\n"})
    (claim,) = jobs.claim()
    jobs.post("/ack", {"token": claim["token"], "log": "sent\n"})
    info = jobs.get(f"/items/{id}")
    assert (info["progress"], info["log"]) == (None, "sent\n")
    assert [attempt["log"] for attempt in info["failed_attempts"]] == ["failed\n"]
    problem = jobs.problem("POST", "/extend", {"token": claim["token"], "progress": 1.5})
    assert problem["status"] == 422


@pytest.mark.parametrize("kind", ["priority", "fifo", "task"])
def test_a_request_repeated_with_its_key_gets_the_first_answer(
    client: TestClient, db: Any, name: str, kind: str
) -> None:
    """Also if the item has ended meanwhile."""
    queue = make(db, name, kind)

    def twice(route: str, body: Any = None) -> Any:
        api = Api(client, name, **{"Idempotency-Key": route[:200]})
        first, again = (api.send("POST", route, body) for _ in range(2))
        assert (first.status_code, first.content) == (again.status_code, again.content)
        return first.json() if first.content else first.status_code

    items = [{"item": n, "unique": "key", "delay": 60} for n in range(2)]
    pushed = twice("/batch", {"items": [*items, {"item": 2}]})
    assert pushed["is_new"] == [True, False, True]
    assert pushed["ids"][0] == pushed["ids"][1]
    assert queue.stats(db).total_pushed == 2
    assert twice(f"/items/{pushed['ids'][0]}/cancel") == 204
    if kind != "task":
        assert twice("/signals", {"name": "paid"}) == {"signalled": 0}
    reused = Api(client, name, **{"Idempotency-Key": f"/items/{pushed['ids'][0]}/cancel"})
    problem = reused.problem("POST", f"/items/{pushed['ids'][2]}/cancel")
    assert problem["type"] == "urn:fdbqueue:IdempotencyKeyReused"
    assert queue.state(db, pushed["ids"][2]) == "ready"
