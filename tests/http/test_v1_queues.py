"""Items, options, numbers and workers below `/v1`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from starlette.testclient import TestClient

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.types import STATES
from fdbqueue.worker.presence import Presence
from tests.support.api import Api
from tests.support.keys import layout_of, push_undecodable


def test_pages_follow_each_other_without_gaps(client: TestClient, db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name)
    pushed = queue.push_many(db, range(25), priorities=[n % 3 for n in range(25)])
    jobs, found, query = Api(client, name), [], dict[str, Any]()
    while "after" not in query or query["after"] is not None:
        page = jobs.get("/items", limit=10, **query)
        found += [item["id"] for item in page["items"]]
        query["after"] = page["next"]
    assert sorted(found) == sorted(item.id for item in pushed)
    assert len(found) == 25
    backwards = jobs.get("/items", limit=25, reverse=True)["items"]
    assert [item["id"] for item in backwards] == found[::-1]
    assert len(jobs.get("/items", priority=2)["items"]) == 8
    assert jobs.get(f"/items/{found[7]}/position") == {"position": 7}
    assert jobs.get(f"/items/{found[0]}") == jobs.get("/items", limit=1)["items"][0]


def test_a_bulk_change_says_what_it_did_not_change(client: TestClient, db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name, max_attempts=1)
    ids = [item.id for item in queue.push_many(db, range(150))]
    queue.nack(db, queue.claim(db, n=150), error="busy")
    queue.configure(db, max_size=149)
    jobs = Api(client, name)
    done = jobs.post("/change", {"change": "retry", "state": "dead"})
    assert (done["changed"], done["unchanged"]) == (149, ids[-1:])
    gone = jobs.post("/change", {"change": "remove", "state": "ready", "limit": 9})
    assert gone == {"changed": 9, "unchanged": []}
    for wrong in ({"change": "retry", "state": "ready"}, {"change": "explode", "state": "ready"}):
        assert jobs.problem("POST", "/change", wrong)["status"] == 422
    queue.claim(db, lease=600)
    assert jobs.post("/change", {"change": "cancel", "state": "claimed"})["changed"] == 1
    assert jobs.get("/items", state="claimed")["items"][0]["cancelling"] is True


def test_jobs_are_summed_up_by_name_in_a_bounded_sample(
    client: TestClient, db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdbqueue.queue.overview.SAMPLE", 3)
    queue = PriorityQueue.named(db, name, keep=100)
    queue.push_many(db, ["no job", *[{"job": each} for each in ("send", "sweep", "send", "sweep")]])
    for _ in range(4):
        queue.ack(db, queue.claim(db))
    queue.nack(db, queue.claim(db), delay=600)
    queue.push(db, {"job": "sweep"})
    found = Api(client, name).get("/jobs")
    assert (found["more"], found["limit"]) == (["done"], 3)
    sample = [info for info in queue.items(db, state="done") if info.item.value != "no job"]
    since = min(info.finished_at for info in sample if info.finished_at)
    assert datetime.fromisoformat(found["since"]) == since
    send, sweep = found["jobs"]
    counts = ("name", "ready", "delayed", "claimed", "dead", "done", "failed_attempts")
    assert [send[each] for each in counts] == ["send", 0, 0, 0, 0, 2, 0]
    assert [sweep[each] for each in counts] == ["sweep", 1, 1, 0, 0, 1, 1]
    assert send["run_time_p95"] >= send["run_time_median"] >= 0
    assert sweep["run_time_median"] == sweep["run_time_p95"]
    assert send["rate"] == sweep["rate"] > 0  # the first of the sample began the time


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ({"agent": "ada"}, "agent: the items of a"),
        ({"state": "done", "error": "x"}, "error: done items have no error"),
        ({"scan": 10_001}, "scan"),
        ({"after": "nonsense"}, "nonsense"),
        ({"priority": "{"}, "JSON"),
        ({"colour": "red"}, "colour: this route has no such query parameter; it has after, agent"),
    ],
)
def test_a_filter_that_does_not_fit_is_a_problem(
    client: TestClient, db: Any, name: str, query: dict[str, Any], detail: str
) -> None:
    PriorityQueue.named(db, name).push(db, 1)
    jobs = Api(client, name)
    for path in ("/items", "/count"):
        problem = jobs.problem("GET", path, **query)
        assert (problem["status"], detail in problem["detail"]) == (422, True), problem
    if not query.keys() & {"scan", "after", "priority", "state"}:
        body = {"change": "remove", "state": "ready", **query}
        assert jobs.problem("POST", "/change", body)["status"] == 422


@pytest.mark.parametrize("kind", ["priority", "fifo", "task"])
def test_a_queue_is_created_described_and_changed_if_nobody_else_did(
    client: TestClient, db: Any, name: str, kind: str
) -> None:
    jobs = Api(client, name)
    made = jobs.send("PUT", "", {"kind": kind, "max_size": 100, "keep": ["1m", 5]})
    found = jobs.get()
    assert (made.status_code, made.json()) == (201, found)
    assert (found["name"], found["kind"], found["stats"]["ready"]) == (name, kind, 0)
    options = fdbqueue.existing_queue(db, name).options(db)
    assert (options.max_size, options.keep_number, options.keep_seconds) == (100, 5, 60)
    for other in ("priority", "fifo", "task"):
        problem = jobs.problem("PUT", "", {"kind": other})
        assert (problem["status"], problem["type"]) == (409, "urn:fdbqueue:QueueExists")
    jobs.headers["if-match"] = jobs.send("GET").headers["etag"]
    changed = jobs.send("PATCH", "", {"max_size": None, "kept_attempts": 2, "rate": [9, 0.5]})
    shown = changed.json()["options"]
    assert (shown["max_size"], shown["kept_attempts"]) == (None, 2)
    assert shown["rate"] == jobs.get("/stats")["rate"] == [9, 0.5]
    assert (shown["keep_number"], shown["keep_seconds"]) == (5, 60)
    problem = jobs.problem("PATCH", "", {"max_size": 7})
    assert (problem["status"], "have changed" in problem["detail"]) == (412, True)
    jobs.headers["if-match"] = changed.headers["etag"]
    assert jobs.problem("PATCH", "", {"max_size": 2**63})["status"] == 422
    assert jobs.get()["options"] == shown
    jobs.headers.clear()
    assert jobs.send("PATCH", "", shown).json()["options"] == shown
    jobs.push("job")
    jobs.post("/pause")
    assert jobs.claim() == []
    jobs.post("/resume")
    assert jobs.post("/clear") == {**dict.fromkeys(STATES, 0), "ready": 1}
    jobs.push("job")
    assert jobs.send("DELETE").json()["ready"] == 1
    assert jobs.problem("GET", "")["status"] == 404


def test_the_scale_and_the_history_say_what_happened(
    client: TestClient, db: Any, name: str
) -> None:
    queue, jobs = PriorityQueue.named(db, name), Api(client, name)
    queue.push_many(db, range(5))
    queue.push(db, "later", delay=600)
    queue.pop(db)
    queue.claim(db, lease=600)
    scale = jobs.get("/scale")
    assert (scale["ready"], scale["claimed"], scale["delayed"]) == (3, 1, 1)
    assert (scale["backlog"], scale["paused"], scale["oldest_age"] >= 0) == (4, False, True)
    for window in jobs.get("/history")["windows"]:
        assert (window["pushed"], window["taken"], window["failed"]) == (6, 2, 0)
        assert 0 < window["waiting_median"] <= window["waiting_p95"]
        assert sum(bucket["pushed"] for bucket in window["buckets"]) == 6
        assert datetime.fromisoformat(window["since"]).tzinfo is not None
    queue.pop_many(db, 3)
    assert jobs.get("/scale")["oldest_age"] == 0  # of no ready item


def test_workers_are_listed(client: TestClient, db: Any, name: str) -> None:
    presence = Presence("mailer", {name: 4}, 4, 30, print)
    PriorityQueue.named(db, name).push(db, 1)
    presence.write(db, 2)
    (worker,) = Api(client, name).get("/workers")["workers"]
    facts = "name", "queues", "concurrency", "jobs"
    assert [worker[each] for each in facts] == ["mailer", {name: 4}, 4, 2]
    assert Api(client, f"{name}none").problem("GET", "/workers")["status"] == 404
    assert worker in client.get("/v1/workers").json()["workers"]


def test_a_request_id_is_kept_or_made(client: TestClient, name: str) -> None:
    given = client.get("/v1/queues", headers={"x-request-id": "trace-7"})
    assert given.headers["x-request-id"] == "trace-7"
    ids = {
        client.get("/v1/queues", headers={"x-request-id": value}).headers["x-request-id"]
        for value in ("", "two words", "x" * 129)
    }
    assert len(ids) == 3
    assert "x-request-id" not in client.get("/health").headers


@pytest.mark.damaged
def test_a_queue_that_cannot_be_decoded_has_an_error_and_is_dropped(
    client: TestClient, db: Any, name: str
) -> None:
    push_undecodable(db, f"{name}old")
    PriorityQueue.named(db, f"{name}young").push_many(db, [{"job": "shop.send"}] * 2)
    fdbqueue.App(db).work(f"{name}young", drain=True)
    query = {"after": f"{name}!", "limit": "2"}
    old, young = client.get("/v1/queues", params=query).json()["queues"]
    assert (old.keys(), young["unknown_jobs"]) == ({"name", "error"}, 2)
    assert old["error"].endswith("`fdbq drop` removes it")
    lines = client.get("/metrics").text.splitlines()
    shown = [line for line in lines if f'queue="{name}old"' in line]
    assert shown == [f'fdbqueue_queue_unknown{{queue="{name}old"}} 1.0']
    assert f'fdbqueue_unknown_jobs{{queue="{name}young"}} 2.0' in lines
    queue = PriorityQueue.named(db, name)
    queue.push(db, 1, delay=600)
    db[layout_of(queue).options] = b"\xff"
    problem = Api(client, name).problem("GET", "/stats")
    assert (problem["status"], problem["type"]) == (409, "urn:fdbqueue:UndecodableQueue")
    numbers = {**dict.fromkeys(STATES, 0), "delayed": 1}
    assert client.delete(f"/v1/queues/{name}").json() == numbers
    assert name not in fdbqueue.admin.queue_names(db)
    assert client.delete(f"/v1/queues/{name}").status_code == 404
