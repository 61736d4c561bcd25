"""Items, options, numbers and workers below `/v1`."""

from __future__ import annotations

from datetime import datetime
from time import sleep, time
from typing import Any

import pytest
from starlette.testclient import TestClient

import fdbqueue
from fdbqueue import PriorityQueue, Queue, TaskQueue
from fdbqueue.queue.overview import by_job
from fdbqueue.worker.presence import Presence
from tests.support.api import Api
from tests.support.keys import layout_of, push_undecodable
from tests.support.scan import assert_views_agree

STATES = ("ready", "delayed", "claimed", "dead", "done")


def in_all_states(db: Any, name: str, kind: str = "priority") -> tuple[Any, dict[str, str]]:
    """Return a queue with an item in each state, and the ids of the items."""
    kinds: dict[str, Any] = {"priority": PriorityQueue, "fifo": Queue, "task": TaskQueue}
    queue = kinds[kind].named(db, name, keep=10)

    def push(value: str) -> str:
        if kind == "task":
            id: str = queue.push(db, payload=value)
            return id
        pushed = queue.push(db, value) if kind == "priority" else queue.enqueue(db, value)
        return str(pushed.id)

    ids = {"done": push("done")}
    queue.ack(db, queue.claim(db), result={"sent": 3})
    ids["dead"] = push("dead")
    queue.configure(db, max_attempts=1)
    queue.nack(db, queue.claim(db), error=ValueError("no such address"))
    queue.configure(db, max_attempts=5)
    ids["delayed"] = push("delayed")
    queue.nack(db, queue.claim(db), delay=600, error="busy")
    ids["claimed"] = push("claimed")
    queue.claim(db, lease=600, client="shelf 7")
    ids["ready"] = push("ready")
    return queue, ids


@pytest.mark.parametrize("kind", ["priority", "fifo", "task"])
def test_items_are_listed_and_found_in_every_state(
    client: TestClient, db: Any, name: str, kind: str
) -> None:
    _, ids = in_all_states(db, name, kind)
    jobs = Api(client, name)
    for state in STATES:
        page = jobs.get("/items", state=state)
        assert [(item["id"], item["state"]) for item in page["items"]] == [(ids[state], state)]
        assert page["next"] is None
        info = jobs.get(f"/items/{ids[state]}")
        assert info == page["items"][0]
        assert info["item"] == state
    assert jobs.get("/items")["items"][0]["id"] == ids["ready"]
    claimed = jobs.get(f"/items/{ids['claimed']}")
    assert (claimed["claimed_by"], claimed["lease_ends"] is None) == ("shelf 7", False)
    (attempt,) = jobs.get(f"/items/{ids['dead']}")["failed_attempts"]
    assert attempt["error"] == "ValueError: no such address"
    assert "no such address" in attempt["traceback"]
    assert jobs.get(f"/items/{ids['done']}/result") == {"result": {"sent": 3}}
    assert jobs.get(f"/items/{ids['ready']}/position") == {"position": 0}
    assert jobs.get(f"/items/{ids['dead']}/position") == {"position": None}
    stats = jobs.get("/stats")
    assert [stats[state] for state in STATES] == [1] * 5


def test_pages_follow_each_other_without_gaps(client: TestClient, db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name)
    ids = [
        item.id for item in queue.push_many(db, range(25), priorities=[n % 3 for n in range(25)])
    ]
    jobs, found, after = Api(client, name), [], None
    while True:
        query: dict[str, Any] = {} if after is None else {"after": after}
        page = jobs.get("/items", limit=10, **query)
        found += [item["id"] for item in page["items"]]
        after = page["next"]
        if after is None:
            break
    assert sorted(found) == sorted(ids)
    assert len(found) == 25
    backwards = jobs.get("/items", limit=25, reverse=True)["items"]
    assert [item["id"] for item in backwards] == found[::-1]
    assert len(jobs.get("/items", priority=2)["items"]) == 8
    assert "JSON" in jobs.problem("GET", "/items", priority="{")["detail"]
    assert jobs.problem("GET", "/items", after="nonsense")["status"] == 422
    assert jobs.problem("GET", "/items", state="gone")["status"] == 422


@pytest.mark.parametrize("kind", ["priority", "fifo", "task"])
def test_each_change_needs_its_state(client: TestClient, db: Any, name: str, kind: str) -> None:
    queue, ids = in_all_states(db, name, kind)
    jobs = Api(client, name)
    changes = {"retry": "dead", "run-now": "delayed", "release": "claimed"}
    for change, state in changes.items():
        for other in STATES:
            if other != state:
                problem = jobs.problem("POST", f"/items/{ids[other]}/{change}")
                assert problem["status"] == 409
    assert jobs.problem("DELETE", f"/items/{ids['claimed']}")["status"] == 409
    assert queue.stats(db).claimed == 1
    for change, state in changes.items():
        jobs.post(f"/items/{ids[state]}/{change}")
        assert queue.state(db, ids[state]) == "ready"
    for state in STATES:
        assert jobs.send("DELETE", f"/items/{ids[state]}").status_code == 204
        assert jobs.problem("DELETE", f"/items/{ids[state]}")["status"] == 404
        assert jobs.problem("POST", f"/items/{ids[state]}/retry")["status"] == 404
    assert jobs.problem("GET", "/items/nonsense")["status"] == 422
    assert_views_agree(db, queue)


def test_an_item_is_moved_and_keeps_its_id(client: TestClient, db: Any, name: str) -> None:
    queue, ids = in_all_states(db, name)
    jobs = Api(client, name)
    for state in ("ready", "delayed", "dead"):
        assert jobs.send("PATCH", f"/items/{ids[state]}", {"priority": 7}).status_code == 204
        assert jobs.get(f"/items/{ids[state]}")["priority"] == 7
    problem = jobs.problem("PATCH", f"/items/{ids['claimed']}", {"priority": 7})
    assert (problem["status"], problem["type"]) == (409, "urn:fdbqueue:WrongState")
    assert jobs.problem("PATCH", f"/items/{ids['ready']}", {})["status"] == 422
    assert jobs.problem("PATCH", f"/items/{ids['ready']}", {"cost": 1})["status"] == 422
    assert_views_agree(db, queue)
    tasks, ids = in_all_states(db, f"{name}t", "task")
    api, path = Api(client, f"{name}t"), f"/items/{ids['ready']}"
    assert api.send("PATCH", path, {"priority": 1}).is_success
    assert tasks.get_task(db, ids["ready"]).priority == 1
    assert api.problem("PATCH", path, {"priority": 9})["status"] == 422
    for invalid in ("2030-01-31T12:00:00", "1900000000", 1_900_000_000, "soon"):
        problem = api.problem("POST", "/push", {"item": 1, "deadline": invalid})
        assert (problem["status"], "deadline: " in problem["detail"]) == (422, True)
    assert_views_agree(db, tasks)


def test_all_items_in_a_state_are_changed(client: TestClient, db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name, max_attempts=1)
    ids = [item.id for item in queue.push_many(db, range(250))]
    queue.nack(db, queue.claim(db, n=250), error="busy")
    jobs = Api(client, name)
    queue.configure(db, max_size=249)
    done = jobs.post("/change", {"change": "retry", "state": "dead"})
    assert (done["changed"], done["unchanged"]) == (249, ids[-1:])
    moved = jobs.post("/change", {"change": "reprioritize", "state": "ready", "to": 3})
    assert moved["changed"] == 249
    assert queue.counts(db) == {3: 249}
    gone = jobs.post("/change", {"change": "remove", "state": "ready", "priority": 3, "limit": 9})
    assert gone["changed"] == 9
    problem = jobs.problem("POST", "/change", {"change": "retry", "state": "ready"})
    assert "not a change of ready items" in problem["detail"]
    assert jobs.problem("POST", "/change", {"change": "explode", "state": "ready"})["status"] == 422
    assert_views_agree(db, queue)


def test_items_are_found_counted_and_changed_by_filters(
    client: TestClient, db: Any, name: str
) -> None:
    queue = PriorityQueue.named(db, name, max_attempts=1)
    queue.push_many(db, range(40), priorities=[n % 2 for n in range(40)])
    while claim := queue.claim(db, lease=600):
        error = "timeout" if claim.item.value >= 36 else "no such address"
        queue.nack(db, claim, error=error)
    jobs = Api(client, name)
    query: dict[str, Any] = {"state": "dead", "error": "TIMEOUT"}
    page = jobs.get("/items", **query, scan=25)
    assert [item["item"] for item in page["items"]] == [36, 38]
    assert page["scanned"] == 25
    rest = jobs.get("/items", **query, after=page["next"])
    assert ([item["item"] for item in rest["items"]], rest["next"]) == ([37, 39], None)
    assert rest["scanned"] == 15
    none = jobs.get("/items", **query, scan=5)
    assert (none["items"], none["scanned"]) == ([], 5)
    assert jobs.get("/items", **query, after=none["next"])["items"][0]["item"] == 36
    assert jobs.get("/count", **query) == {"count": 4, "next": None, "scanned": 40}
    part = jobs.get("/count", **query, scan=25)
    assert (part["count"], part["scanned"]) == (2, 25)
    assert jobs.get("/count", **query, after=part["next"])["count"] == 2
    assert jobs.get("/count", **query, priority=1)["count"] == 2
    (item,) = jobs.get("/items", state="dead", id=page["items"][0]["id"][-16:])["items"]
    assert item == page["items"][0]
    changed = jobs.post("/change", {"change": "retry", "state": "dead", "error": "timeout"})
    assert changed == {"changed": 4, "unchanged": []}
    claim = queue.claim(db, lease=600, client="mail-1")
    assert jobs.get("/count", state="claimed", client="mail")["count"] == 1
    assert jobs.get("/count", state="claimed", client="other")["count"] == 0
    assert queue.stats(db).dead == 36


def test_jobs_are_found_and_changed_by_their_name(client: TestClient, db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name)
    values = [{"job": each} for each in ("shop.send", "shop.resend", "post.send")]
    queue.push_many(db, values)
    jobs = Api(client, name)
    (found,) = jobs.get("/items", job="shop.send")["items"]
    assert (found["item"], found["run_time"]) == ({"job": "shop.send"}, None)
    assert jobs.get("/count", job="send")["count"] == 2
    assert jobs.get("/items", job="send", scan=1)["scanned"] == 1
    queue.claim(db, lease=600)
    cancelled = jobs.post("/change", {"change": "cancel", "state": "claimed", "job": "send"})
    assert cancelled == {"changed": 1, "unchanged": []}
    assert jobs.get("/items", state="claimed")["items"][0]["cancelling"] is True
    removed = jobs.post("/change", {"change": "cancel", "state": "ready", "job": "resend"})
    assert removed == {"changed": 1, "unchanged": []}
    assert queue.stats(db).ready == 1


def test_jobs_are_summed_up_by_name(client: TestClient, db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name, keep=100)
    jobs = Api(client, name)
    queue.push(db, "no job")
    queue.ack(db, queue.claim(db))
    for each in ("send", "send", "sweep"):
        queue.push(db, {"job": each})
        claim = queue.claim(db)
        queue.nack(db, claim, delay=0)
        queue.ack(db, queue.claim(db))
    queue.push(db, {"job": "sweep"})
    queue.nack(db, queue.claim(db), delay=600)
    queue.push(db, {"job": "sweep"})
    found = jobs.get("/jobs")
    since = min(info.finished_at for info in queue.items(db, state="done") if info.finished_at)
    assert datetime.fromisoformat(found["since"]) == since
    send, sweep = found["jobs"]
    counts = ("name", "ready", "delayed", "claimed", "dead", "done", "failed_attempts")
    assert [send[each] for each in counts] == ["send", 0, 0, 0, 0, 2, 2]
    assert [sweep[each] for each in counts] == ["sweep", 1, 1, 0, 0, 1, 2]
    times = [
        info.run_time.total_seconds()
        for info in queue.search(db, state="done", job="send").items
        if info.run_time is not None
    ]
    assert send["run_time_median"] == pytest.approx(sum(times) / 2)
    assert max(times) >= send["run_time_p95"] >= send["run_time_median"]
    assert sweep["run_time_median"] == sweep["run_time_p95"]


def test_a_sample_of_jobs_is_bounded(db: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fdbqueue.queue.overview.SAMPLE", 3)
    queue = PriorityQueue.named(db, name, keep=100)
    queue.push_many(db, [{"job": "old"}, *[{"job": "new"}] * 3])
    begin = time()
    for _ in range(4):
        queue.ack(db, queue.claim(db))
        sleep(0.01)  # so that each ends at a time of its own
    queue.push_many(db, [{"job": "new"}] * 5)
    found = by_job(db, queue)
    assert (found["more"], found["limit"]) == (["ready", "done"], 3)
    (new,) = found["jobs"]
    assert (new["ready"], new["done"]) == (3, 3)
    # The first of the three is that which began the time.
    first = datetime.fromisoformat(found["since"]).timestamp()
    assert begin <= first
    assert new["rate"] * (time() - first) >= 2
    assert 2 / new["rate"] >= 0.02


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ({"agent": "ada"}, "agent: only the items of a task queue"),
        ({"state": "done", "error": "x"}, "error: done items have no error"),
        ({"client": "mail-1"}, "client: only claimed items"),
        ({"error": ""}, "error"),
        ({"scan": 10_001}, "scan"),
        ({"after": "nonsense"}, "nonsense"),
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
    if not query.keys() & {"scan", "after"}:
        body = {"change": "remove", "state": "ready", **query}
        assert jobs.problem("POST", "/change", body)["status"] == 422


def test_a_result_is_waited_for(client: TestClient, db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name, keep=10)
    item = queue.push(db, 20)
    jobs = Api(client, name)
    problem = jobs.problem("GET", f"/items/{item.id}/result")
    assert (problem["status"], problem["state"]) == (409, "ready")
    (claim,) = jobs.claim()
    jobs.post("/ack", {"token": claim["token"], "result": 40})
    assert jobs.get(f"/items/{item.id}/result", wait=60) == {"result": 40}
    queue.remove(db, item)
    assert jobs.problem("GET", f"/items/{item.id}/result")["status"] == 404


@pytest.mark.parametrize("kind", ["priority", "fifo", "task"])
def test_a_queue_is_created_described_changed_and_dropped(
    client: TestClient, db: Any, name: str, kind: str
) -> None:
    jobs = Api(client, name)
    made = jobs.send(
        "PUT", "", {"kind": kind, "max_size": 100, "keep_number": 5, "keep_seconds": 60}
    )
    assert made.status_code == 201
    found = jobs.get()
    assert (found["name"], found["kind"], found["stats"]["ready"]) == (name, kind, 0)
    assert made.json() == found
    options = fdbqueue.existing_queue(db, name).options(db)
    assert (options.max_size, options.keep_number, options.keep_seconds) == (100, 5, 60)
    for other in ("priority", "fifo", "task"):
        problem = jobs.problem("PUT", "", {"kind": other})
        assert (problem["status"], problem["type"]) == (409, "urn:fdbqueue:QueueExists")
    etag = jobs.send("GET").headers["etag"]
    jobs.headers["if-match"] = etag
    changed = jobs.send(
        "PATCH", "", {"max_size": None, "concurrency": 3, "kept_attempts": 2, "rate": [9, 0.5]}
    )
    assert changed.status_code == 200
    shown = changed.json()["options"]
    assert (shown["max_size"], shown["concurrency"], shown["kept_attempts"]) == (None, 3, 2)
    assert shown["rate"] == jobs.get("/stats")["rate"] == [9, 0.5]
    assert (shown["keep_number"], shown["keep_seconds"]) == (5, 60)
    problem = jobs.problem("PATCH", "", {"max_size": 7})
    assert (problem["status"], "have changed" in problem["detail"]) == (412, True)
    assert jobs.get()["options"] == shown
    jobs.headers["if-match"] = changed.headers["etag"]
    assert jobs.problem("PATCH", "", {"rate": [0, 60]})["status"] == 422
    assert jobs.problem("PATCH", "", {"max_size": 2**63})["status"] == 422
    jobs.send("PATCH", "", {"keep_number": None, "keep_seconds": None, "paused": True})
    shown = jobs.get()["options"]
    assert (shown["keep_seconds"], shown["keep_number"], shown["paused"]) == (None, None, True)
    jobs.headers.clear()
    assert jobs.send("PATCH", "", shown).is_success
    assert jobs.claim() == []
    jobs.headers.clear()
    jobs.post("/resume")
    jobs.push("job")
    jobs.post("/pause")
    assert jobs.claim() == []
    assert jobs.post("/clear") == {"ready": 1, **dict.fromkeys(STATES[1:], 0)}
    assert jobs.get("/stats")["ready"] == 0
    jobs.push("job")
    dropped = jobs.send("DELETE")
    assert dropped.json()["ready"] == 1
    assert jobs.problem("GET", "")["status"] == 404
    assert name not in fdbqueue.admin.queue_names(db)


def test_a_queue_without_limits_pays_for_none(client: TestClient, db: Any, name: str) -> None:
    """Claims and pops look for leases and limits once a queue has the mark that it may have any."""
    assert Api(client, name).send("PUT", "", {"kind": "fifo", "max_attempts": 3}).is_success
    queue = Queue.existing(db, name)
    assert db[layout_of(queue).scheduled] is None
    assert queue.options(db).max_attempts == 3


def test_a_queue_is_renamed_and_checked(client: TestClient, db: Any, name: str) -> None:
    in_all_states(db, name)
    jobs, renamed = Api(client, name), Api(client, f"{name}2")
    jobs.post("/rename", {"name": f"{name}2"})
    assert jobs.problem("GET", "")["status"] == 404
    report = renamed.post("/check")
    assert (report["problems"], [report[state] for state in STATES]) == ([], [1] * 5)
    in_all_states(db, name)
    assert jobs.problem("POST", "/rename", {"name": f"{name}2"})["status"] == 409


def test_queues_are_listed_by_page_and_prefix(client: TestClient, db: Any, name: str) -> None:
    names = [f"{name}/{n}" for n in range(7)]
    for each in names:
        PriorityQueue.named(db, each).push(db, 1)
    PriorityQueue.named(db, f"{name}0").push(db, 1)
    found: list[str] = []
    query = {"prefix": f"{name}/", "limit": "3"}
    while True:
        page = client.get("/v1/queues", params=query).json()
        found += [each["name"] for each in page["queues"]]
        assert len(page["queues"]) <= 3
        if page["next"] is None:
            break
        query["after"] = page["next"]
    assert found == names
    assert client.get("/v1/queues", params={"prefx": "x"}).status_code == 422


def test_the_scale_counts_jobs_that_need_a_worker(client: TestClient, db: Any, name: str) -> None:
    in_all_states(db, name)
    scale = Api(client, name).get("/scale")
    assert (scale["ready"], scale["claimed"], scale["delayed"]) == (1, 1, 1)
    assert (scale["backlog"], scale["paused"], scale["oldest_age"] >= 0) == (2, False, True)


def test_the_history_says_what_happened(client: TestClient, db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name)
    queue.push_many(db, range(5))
    queue.pop(db)
    windows = Api(client, name).get("/history")["windows"]
    assert [window["seconds"] for window in windows] == [300, 3600, 86400]
    for window in windows:
        assert (window["pushed"], window["taken"], window["failed"]) == (5, 1, 0)
        assert 0 < window["waiting_median"] <= window["waiting_p95"]
        assert sum(bucket["pushed"] for bucket in window["buckets"]) == 5
        assert datetime.fromisoformat(window["since"]).tzinfo is not None


def test_workers_are_listed(client: TestClient, db: Any, name: str) -> None:
    presence = Presence("mailer", {name: 4}, 4, 30)
    PriorityQueue.named(db, name).push(db, 1)
    presence.write(db, 2)
    (worker,) = Api(client, name).get("/workers")["workers"]
    facts = "name", "queues", "concurrency", "jobs"
    assert [worker[each] for each in facts] == ["mailer", {name: 4}, 4, 2]
    assert Api(client, f"{name}none").problem("GET", "/workers")["status"] == 404
    assert worker in client.get("/v1/workers").json()["workers"]


def test_an_unknown_route_and_a_wrong_method_are_problems(client: TestClient, name: str) -> None:
    jobs = Api(client, name)
    assert jobs.problem("GET", "/nothing")["status"] == 404
    assert jobs.problem("PUT", "/push", {})["status"] == 405
    answer = client.post("/v1/queues/x/push", content=b"{", headers={"content-type": "text/plain"})
    assert answer.status_code == 415
    answer = client.post("/v1/queues/x/push", content=b'{"item": \xff}')
    assert answer.status_code in (400, 415)


def test_a_request_id_is_kept_or_made(client: TestClient, name: str) -> None:
    given = client.get("/v1/queues", headers={"x-request-id": "trace-7"})
    assert given.headers["x-request-id"] == "trace-7"
    ids = {
        client.get("/v1/queues", headers={"x-request-id": value}).headers["x-request-id"]
        for value in ("", "two words", "x" * 129)
    }
    assert len(ids) == 3
    assert "x-request-id" not in client.get("/health").headers


def test_a_queue_that_cannot_be_decoded_has_an_error_instead_of_numbers(
    client: TestClient, db: Any, name: str
) -> None:
    push_undecodable(db, f"{name}old")
    PriorityQueue.named(db, f"{name}young").push(db, 1)
    answer = client.get("/v1/queues", params={"after": f"{name}!", "limit": 2}).json()
    old, young = answer["queues"]
    assert (old.keys(), young["ready"]) == ({"name", "error"}, 1)
    assert old["error"].endswith("`fdbq drop` removes it")


def test_jobs_that_no_worker_knows_are_counted(client: TestClient, db: Any, name: str) -> None:
    PriorityQueue.named(db, name).push_many(db, [{"job": "shop.send"}] * 2)
    fdbqueue.App(db).work(name, drain=True)
    shown = client.get(f"/v1/queues/{name}").json()["stats"]
    (listed,) = client.get("/v1/queues").json()["queues"]
    assert [each["unknown_jobs"] for each in (shown, listed)] == [2, 2]
    assert f'fdbqueue_unknown_jobs{{queue="{name}"}} 2.0' in client.get("/metrics").text


def test_metrics_have_no_numbers_of_a_queue_that_cannot_be_decoded(
    client: TestClient, db: Any, name: str
) -> None:
    push_undecodable(db, f"{name}old")
    PriorityQueue.named(db, f"{name}young").push(db, 1)
    lines = client.get("/metrics").text.splitlines()
    old = [line for line in lines if f'queue="{name}old"' in line]
    assert old == [f'fdbqueue_queue_unknown{{queue="{name}old"}} 1.0']
    assert f'fdbqueue_items{{queue="{name}young",state="ready"}} 1.0' in lines


def test_a_queue_whose_options_cannot_be_read_is_dropped(
    client: TestClient, db: Any, name: str
) -> None:
    queue = PriorityQueue.named(db, name)
    queue.push(db, 1, delay=600)
    db[layout_of(queue).options] = b"\xff"
    problem = Api(client, name).problem("GET", "/stats")
    assert (problem["status"], problem["type"]) == (409, "urn:fdbqueue:UndecodableQueue")
    numbers = {**dict.fromkeys(STATES, 0), "delayed": 1}
    assert client.delete(f"/v1/queues/{name}").json() == numbers
    assert name not in fdbqueue.admin.queue_names(db)
    assert client.delete(f"/v1/queues/{name}").status_code == 404


def test_a_drop_says_how_many_items_there_were(client: TestClient, db: Any, name: str) -> None:
    PriorityQueue.named(db, name).push_many(db, [1, 2])
    answer = client.delete(f"/v1/queues/{name}").json()
    assert answer == {**dict.fromkeys(STATES, 0), "ready": 2}
