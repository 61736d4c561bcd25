"""Push, pop, claim and the end of claims below `/v1`, for queues of every kind."""

from __future__ import annotations

import json
import math
import threading
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from starlette.testclient import TestClient

import fdbqueue
from fdbqueue import PriorityQueue, Queue, TaskQueue
from tests.support.api import Api
from tests.support.leases import come_due, lapse
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
    assert queue.get(db, ids[0]).lease_ends > datetime.now(timezone.utc) + timedelta(minutes=5)
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
    assert jobs.claim() == []
    assert_views_agree(db, queue)


@pytest.mark.parametrize("kind", ["priority", "fifo", "task"])
@pytest.mark.parametrize("route", ["/ack", "/nack", "/extend", "/release"])
def test_a_claim_that_is_over_is_a_conflict_with_the_id_of_its_item(
    client: TestClient, db: Any, name: str, kind: str, route: str
) -> None:
    queue, jobs = make(db, name, kind), Api(client, name)
    id = jobs.push("job")
    (claim,) = jobs.claim()
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
    wrong = [{"queue": name, "item": 1, "agent_name": "ada"}]
    problem = jobs.problem("POST", "/ack", {"token": claim["token"], "then": wrong})
    assert "agent_name: a push to a priority queue has no such field" in problem["detail"]
    jobs.post("/ack", {"token": claim["token"]})
    for each in (queue, tasks):
        assert_views_agree(db, each)


def test_a_push_takes_every_option(client: TestClient, db: Any, name: str, jobs: Api) -> None:
    soon = (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()
    delayed = jobs.push("later", priority=7, delay=60, ttl=3600, unique="key")
    queue = queue_of(db, name)
    info = queue.get(db, delayed)
    assert (info.state, info.item.priority, info.unique) == ("delayed", 7, "key")
    assert info.expires_at is not None
    again = jobs.post("/push", {"item": "other", "unique": "key"})
    assert again == {"id": delayed, "is_new": False}
    jobs.push("hourly", unique="hour", unique_for=3600)
    jobs.post("/pop")
    assert not jobs.post("/push", {"item": 1, "unique": "hour", "unique_for": 60})["is_new"]
    assert queue.get(db, jobs.push(1, at=soon)).due_at is not None
    tasks = make(db, f"{name}t", "task")
    task = Api(client, f"{name}t").push(
        {"x": 1}, priority=2, deadline=soon, cost=2.5, client_id="c"
    )
    found = tasks.get_task(db, task)
    assert (found.priority, found.cost, found.client_id) == (2, 2.5, "c")
    assert found.deadline == datetime.fromisoformat(soon)


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
def test_a_push_says_whether_it_is_new_also_if_it_is_repeated(
    client: TestClient, db: Any, name: str, kind: str
) -> None:
    make(db, name, kind)
    first = Api(client, name).post("/push", {"item": 1, "unique": "first"})
    again = Api(client, name).post("/push", {"item": 2, "unique": "first"})
    assert (first["is_new"], again) == (True, {"id": first["id"], "is_new": False})
    for key, is_new in (("k1", True), ("k2", False)):
        jobs = Api(client, name, **{"idempotency-key": key})
        for _ in range(2):
            pushed = jobs.post("/push", {"item": 1, "unique": "u"})
            assert pushed["is_new"] == is_new


def test_a_refused_acknowledgement_creates_no_queue(db: Any, name: str, jobs: Api) -> None:
    jobs.push("job")
    (claim,) = jobs.claim()
    other = Api(jobs.client, f"{name}2")
    wrong = [{"queue": f"{name}2", "item": 1, "priority": [1]}]
    assert jobs.problem("POST", "/ack", {"token": claim["token"], "then": wrong})["status"] == 422
    jobs.post("/release", {"token": claim["token"]})
    then = [{"queue": f"{name}2", "item": 1}]
    assert jobs.problem("POST", "/ack", {"token": claim["token"], "then": then})["status"] == 409
    assert other.problem("GET", "")["status"] == 404
    assert f"{name}2" not in fdbqueue.admin.queue_names(db)


def test_priorities_of_tuples_are_lists(client: TestClient, db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name, priorities=(int, float))
    queue.push(db, "library", (1, 2.5))
    jobs = Api(client, name)
    jobs.push("http", priority=[1, 0.5])
    assert [item["priority"] for item in jobs.get("/items")["items"]] == [[1, 0.5], [1, 2.5]]
    assert jobs.get("/items", priority="[1, 0.5]")["items"][0]["item"] == "http"
    assert jobs.post("/pop", {"max": True})["items"][0]["item"] == "library"


@pytest.mark.parametrize("kind", ["priority", "fifo", "task"])
def test_a_batch_is_stored_whole_or_as_far_as_it_fits(
    client: TestClient, db: Any, name: str, kind: str
) -> None:
    queue, jobs = make(db, name, kind), Api(client, name)
    queue.configure(db, max_size=4)
    items = [{"item": 0}, {"item": 1, "delay": 600}, {"item": 2, "unique": "key"}]
    ids = jobs.post("/batch", {"items": items})["ids"]
    assert [queue.get(db, id).state for id in ids].count("delayed") == 1
    more = {"items": [{"item": n} for n in range(3, 6)]}
    assert jobs.problem("POST", "/batch", more)["status"] == 429
    assert len(jobs.post("/batch", {**more, "as_many_as_fit": True})["ids"]) == 1
    assert jobs.problem("POST", "/batch", {**more, "as_many_as_fit": True})["status"] == 429
    assert jobs.problem("POST", "/push", {"item": 9})["status"] == 429
    stats = assert_views_agree(db, queue)
    assert stats.ready + stats.delayed == 4


def test_a_batch_of_unique_items_returns_the_ids_of_those_that_fit(
    client: TestClient, name: str
) -> None:
    jobs = Api(client, name)
    jobs.send("PUT", "", {"max_size": 2})
    items = [{"item": key, "unique": key} for key in ("a", "b", "c")]
    answer = jobs.post("/batch", {"items": items, "as_many_as_fit": True})
    stored = jobs.get("/items")["items"]
    assert [each["unique"] for each in stored] == ["a", "b"]
    assert answer["ids"] == [each["id"] for each in stored]


@pytest.mark.parametrize("kind", ["priority", "fifo", "task"])
def test_a_batch_may_have_items_of_every_scope(
    client: TestClient, db: Any, name: str, kind: str
) -> None:
    queue, jobs = make(db, name, kind), Api(client, name)
    items = [
        {"item": 0},
        {"item": 1, "unique": "a", "unique_until": "claimed"},
        {"item": 2, "unique": "a", "unique_until": "claimed"},
        {"item": 3, "unique": "b", "unique_for": 3600},
        {"item": 4, "unique": "b"},
    ]
    ids = jobs.post("/batch", {"items": items})["ids"]
    assert (ids[1], ids[3], len({*ids})) == (ids[2], ids[4], 3)
    jobs.post("/pop", {"n": 9})
    again = jobs.post("/batch", {"items": items[1:]})["ids"]
    assert again[0] not in ids
    assert again[2:] == ids[3:]
    assert_views_agree(db, queue)


@pytest.mark.parametrize(
    "wrong",
    [
        {"unique_for": 60},
        {"unique": "k", "unique_until": "claimed", "unique_for": 60},
        {"unique": "k", "unique_until": "done"},
        {"unique": "k", "unique_for": 0},
    ],
)
def test_a_wrong_scope_of_a_key_is_refused(jobs: Api, wrong: Any) -> None:
    assert jobs.problem("POST", "/push", {"item": 1, **wrong})["status"] == 422
    items = [{"item": 1}, {"item": 2, **wrong}]
    assert jobs.problem("POST", "/batch", {"items": items})["status"] == 422
    assert jobs.problem("GET", "")["status"] == 404


def test_a_repeated_request_with_an_idempotency_key_stores_nothing_more(
    client: TestClient, db: Any, name: str
) -> None:
    jobs = Api(client, name, **{"idempotency-key": "order 7"})
    id = jobs.push("pack")
    assert jobs.push("pack") == id
    assert queue_of(db, name).size(db) == 1
    assert jobs.problem("POST", "/push", {"item": "other"})["status"] == 422
    batch = Api(client, f"{name}b", **{"idempotency-key": "k"})
    ids = batch.post("/batch", {"items": [{"item": 1}, {"item": 2, "priority": 1}]})["ids"]
    again = batch.post("/batch", {"items": [{"item": 1}, {"item": 2, "priority": 1}]})["ids"]
    assert again == ids
    assert queue_of(db, f"{name}b").size(db) == 2


def test_a_hundred_requests_with_one_idempotency_key_store_one_item(
    client: TestClient, db: Any, name: str
) -> None:
    jobs = Api(client, name, **{"idempotency-key": "k"})
    jobs.client.get("/health")  # starts the event loop
    ids: list[str] = []
    in_threads([lambda: ids.append(jobs.push("x"))] * 100)
    assert len(ids) == 100
    assert len({*ids}) == 1
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


def test_tasks_are_found_by_agent_and_group(client: TestClient, db: Any, name: str) -> None:
    make(db, name, "task")
    tasks = Api(client, name)
    first, second, _ = tasks.push(1, agent_name="ada"), tasks.push(2, group="ada"), tasks.push(3)
    assert [each["id"] for each in tasks.get("/items", agent="ada")["items"]] == [first]
    assert [each["id"] for each in tasks.get("/items", group="ada")["items"]] == [second]
    claimed = {each["id"]: each["agent_name"] for each in tasks.claim(n=9)}
    assert (claimed[first], claimed[second]) == ("ada", None)


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
        ("/push", {"item": 1, "priority": "high"}, "must be a 64-bit integer"),
        ("/push", {"item": 1, "priority": 1.5}, "must be a 64-bit integer"),
        ("/push", {"item": 1, "priority": True}, "must be a 64-bit integer"),
        ("/push", {"item": math.nan}, "not JSON compliant"),
        ("/push", {"item": [math.inf]}, "not JSON compliant"),
        ("/push", {"item": 1, "delay": -1}, "delay"),
        ("/push", {"item": 1, "delay": 1, "at": "2030-01-01T00:00:00Z"}, "not both"),
        ("/push", {"item": 1, "at": "2030-01-01T00:00:00"}, "at: "),
        ("/push", {"item": 1, "at": "1900000000"}, "is not a time such as"),
        (
            "/push",
            {"item": 1, "client_id": "c"},
            "client_id: a push to a priority queue has no such field",
        ),
        ("/push", {"item": 1, "cost": 0}, "cost is a number from 0.001 to 1,000"),
        ("/push", [], "the body"),
        ("/batch", {"items": []}, "items"),
        ("/claim", {"n": 0}, "n: "),
        ("/claim", {"n": 1001}, "n: "),
        ("/claim", {"lease": 0}, "lease"),
        ("/claim", {"wait": 301}, "wait"),
        ("/claim", {"agent": "ada"}, "agent: "),
        ("/claim", {"client": "two\nlines"}, "printable"),
        ("/ack", {}, "token"),
        ("/ack", {"token": "nonsense"}, "is not the token of a claim"),
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


def test_a_token_is_good_for_its_own_queue_alone(db: Any, client: TestClient, name: str) -> None:
    one, other = Api(client, name), Api(client, f"{name}2")
    for each in (one, other):
        each.push("job")
    (claim,) = one.claim()
    assert other.problem("POST", "/ack", {"token": claim["token"]})["status"] == 409
    one.post("/ack", {"token": claim["token"]})
    assert_views_agree(db, queue_of(db, name))


def test_query_parameters_that_a_route_does_not_have_are_refused(jobs: Api) -> None:
    jobs.push("job")
    assert "no such query parameter" in jobs.problem("POST", "/claim", {}, n=3)["detail"]
    assert "depth: this route has no such" in jobs.problem("GET", "/items", depth=3)["detail"]


def test_an_unknown_queue_is_named_except_by_a_push(client: TestClient, name: str) -> None:
    jobs = Api(client, name)
    for route in ("/claim", "/pop"):
        problem = jobs.problem("POST", route, {})
        assert (problem["status"], problem["type"]) == (404, "urn:fdbqueue:QueueNotFound")
    jobs.push("first")
    assert jobs.claim()[0]["item"] == "first"


def test_a_queue_whose_items_are_not_json_can_be_looked_at_only(
    client: TestClient, db: Any, name: str
) -> None:
    id = PriorityQueue.named(db, name, codec="bytes").push(db, b"raw").id
    jobs = Api(client, name)
    assert jobs.problem("POST", "/claim", {})["status"] == 409
    assert jobs.get(f"/items/{id}")["item"] == "b'raw'"
    assert jobs.get("/stats")["ready"] == 1


def test_names_with_slashes_and_percent_signs_are_one_segment(
    client: TestClient, db: Any, name: str
) -> None:
    for each in (f"{name}/out", f"{name}%2Fout", f"{name}/push", f"{name} 100%", f"{name}ü"):
        Api(client, each).push({"name": each})
        assert queue_of(db, each).pop(db).value == {"name": each}
    assert client.post(f"/v1/queues/{name}/out/push", json={"item": 1}).status_code == 404


def test_follow_ups_are_pushed_once_despite_lost_results(db: Any, name: str, rng: Any) -> None:
    from fdbqueue.http import create_app
    from fdbqueue.testing import FaultyDatabase

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


def test_delayed_jobs_come_when_they_are_due(db: Any, name: str, jobs: Api) -> None:
    jobs.push("later", delay=600)
    assert jobs.claim() == []
    come_due(db, queue_of(db, name))
    assert jobs.claim()[0]["item"] == "later"


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
