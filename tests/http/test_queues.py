"""JSON objects with priorities over HTTP, by the examples of the N-queue; metrics and health."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from fdb.subspace_impl import Subspace
from starlette.testclient import TestClient

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.http import served


class Remote:
    """A queue behind a client."""

    def __init__(self, client: TestClient, name: str) -> None:
        self.client = client
        self.path = f"/queue/{name}"

    def push(self, item: Any, **fields: Any) -> Any:
        return self.client.post(f"{self.path}/push", json={"item": item, **fields})

    def pushed(self, *priorities: int) -> list[str]:
        """Push numbered items and return their ids."""
        answers = [
            self.push({"n": number}, priority=priority)
            for number, priority in enumerate(priorities)
        ]
        assert [answer.status_code for answer in answers] == [201] * len(priorities)
        return [answer.json()["id"] for answer in answers]

    def pop(self, **query: Any) -> list[Any]:
        answer = self.client.post(f"{self.path}/pop", params=query)
        assert answer.status_code == 200, answer.text
        return [(item["priority"], item["item"]["n"]) for item in answer.json()["items"]]


@pytest.fixture
def remote(client: TestClient, name: str) -> Remote:
    return Remote(client, f"{name}jobs")


@pytest.mark.parametrize(
    ("priorities", "pops"),
    [
        ((0, 5, 2), {1: [(0, 0)], 9: [(2, 2), (5, 1)]}),
        ((1, 0, 0, 0), {3: [(0, 1), (0, 2), (0, 3)], 1: [(1, 0)]}),
        ((1000, 0, 5), {2: [(0, 1), (5, 2)], 1: [(1000, 0)]}),
        ((0, 0), {2: [(0, 0), (0, 1)], 1: []}),
    ],
    ids=["an item at a time", "a level before the next", "sparse levels", "drained"],
)
def test_the_examples_of_the_n_queue(remote: Remote, priorities: Any, pops: Any) -> None:
    remote.pushed(*priorities)
    assert {depth: remote.pop(depth=depth) for depth in pops} == pops
    assert remote.push({"n": 7}).status_code == 201  # to priority 0
    assert remote.pop() == [(0, 7)]
    assert remote.pop() == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"item": [1]}', "item"),
        (b"{}", "item: Field required"),
        (b'{"item": {}, "priority": -1}', "priority: "),
        (b'{"item": {}, "priority": 9007199254740992}', "priority: "),
        (b'{"item": {}, "extra": 1}', "extra: "),
        (b'{"item": {"x": NaN}}', "cannot be stored"),
        (b'{"item": {"x": "\\ud800"}}', "cannot be stored"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "body"),
    ],
)
def test_an_invalid_push_is_rejected_and_stores_nothing(
    remote: Remote, name: str, db: Any, body: bytes, words: str
) -> None:
    headers = {"content-type": "application/json"}
    answer = remote.client.post(f"{remote.path}/push", content=body, headers=headers)
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["detail"]
    assert f"{name}jobs" not in fdbqueue.admin.queue_names(db)


def test_other_requests_are_rejected_and_change_nothing(remote: Remote, name: str, db: Any) -> None:
    """Without its content type, a page of any site could make a browser push."""
    client, push = remote.client, f"{remote.path}/push"
    item: Any = {"item": {}}
    long = {"Idempotency-Key": b"\xe9" * 128}  # two bytes each in UTF-8
    for answer, status, words in (
        (client.post(push, content=b'{"item": {}}'), 415, "Content-Type: application/json"),
        (client.post(push, json=item, headers=long), 400, "255"),
        (client.post("/queue/%ff/push", json=item), 400, "UTF-8"),
        (client.post(f"/queue/{name}%07/push", json=item), 400, "cannot be the name of a queue"),
        (client.post(f"{remote.path}/pop"), 404, "there is no queue named"),
    ):
        assert (answer.status_code, words in answer.json()["detail"]) == (status, True)
    assert f"{name}jobs" not in fdbqueue.admin.queue_names(db)
    key = {"Idempotency-Key": "a"}
    first, again = (client.post(push, json=item, headers=key) for _ in range(2))
    assert (first.status_code, again.json()) == (201, first.json())
    assert client.post(push, json={"item": {"n": 2}}, headers=key).status_code == 400
    for depth in ("٣", "1.5", "0x1", "", "inf", "-1", "0", "1001"):
        assert client.post(f"{remote.path}/pop?depth={depth}").status_code == 400
    PriorityQueue.named(db, f"{name}jobs").configure(db, max_size=1)
    full = remote.push({})
    assert (full.status_code, "at most 1" in full.json()["detail"]) == (429, True)
    assert len(client.post(f"{remote.path}/pop?depth=9").json()["items"]) == 1


def test_metrics_are_exposed_for_prometheus(remote: Remote, name: str) -> None:
    remote.pushed(0, 1, 1)
    remote.pop()
    lines = remote.client.get("/metrics").text.splitlines()
    label = f'{{queue="{name}jobs"}}'
    for state, number in {"ready": 2, "delayed": 0, "claimed": 0, "dead": 0}.items():
        assert f'fdbqueue_items{{queue="{name}jobs",state="{state}"}} {number}.0' in lines
    assert f"fdbqueue_items_pushed_total{label} 3.0" in lines
    assert f"fdbqueue_items_completed_total{label} 1.0" in lines
    assert f"fdbqueue_queue_paused{label} 0.0" in lines
    assert f"fdbqueue_backlog{label} 2.0" in lines
    ages = [line for line in lines if line.startswith(f"fdbqueue_oldest_item_age_seconds{label}")]
    assert 0 <= float(ages[0].split()[-1]) < 60
    pushes = 'method="POST",route="/queue/{name:path}/push",status="201"'
    assert f"fdbqueue_http_requests_total{{{pushes}}} 3.0" in lines


def test_metrics_show_the_age_of_a_due_item_without_a_client(
    remote: Remote, name: str, db: Any
) -> None:
    for queue, delay in {"jobs": 0.05, "later": 60}.items():
        PriorityQueue.named(db, f"{name}{queue}").push(db, {}, delay=delay)
    time.sleep(0.1)
    text = remote.client.get("/metrics?queues=all").text
    ages = re.findall(rf'^fdbqueue_oldest_item_age_seconds{{queue="{name}(.+)"}} (.+)$', text, re.M)
    ((queue, age),) = ages
    assert queue == "jobs"
    assert 0 < float(age) < 60
    assert f'fdbqueue_items{{queue="{name}jobs",state="delayed"}} 1.0' in text
    assert remote.client.get(f"/v1/queues/{name}jobs/scale").json()["oldest_age"] > 0
    assert remote.client.get(f"/v1/queues/{name}later/scale").json()["oldest_age"] == 0


def test_metrics_count_conflicts(remote: Remote, db: Any, space: Subspace) -> None:
    def conflicts() -> float:
        text = remote.client.get("/metrics").text
        found = re.search(r'^fdbqueue_transaction_retries_total\{code="1020"\} (.+)$', text, re.M)
        return float(found[1]) if found else 0

    key, other = space.pack(("key",)), space.pack(("other",))
    pending = [b"a", b"b"]

    @fdbqueue.transactional
    def interrupted(tr: Any) -> None:
        tr[other] = tr[key].value or b""
        if pending:
            db[key] = pending.pop()

    before = conflicts()
    interrupted(db)
    assert conflicts() == before + 2


def test_health_and_readiness_report_a_stopping_server(client: TestClient) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ready").json() == {"status": "ok"}
    client.app.state.stop()
    assert client.get("/health").status_code == 200
    assert client.get("/ready").status_code == 503


def test_a_name_that_means_another_queue_is_looked_up_again(
    remote: Remote, db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "_KNOWN_FOR", 0.0)
    remote.pushed(5)
    fdbqueue.admin.rename(db, f"{name}jobs", f"{name}old")
    remote.pushed(7)
    assert remote.pop(depth=9) == [(7, 0)]
    assert PriorityQueue.existing(db, f"{name}old").size(db) == 1


def test_a_queue_with_another_codec_is_only_available_in_python(
    client: TestClient, db: Any, name: str
) -> None:
    PriorityQueue.named(db, f"{name}b", codec="bytes").push(db, b"x")
    PriorityQueue.named(db, f"{name}t", priorities=(int, int)).push(db, {}, (1, 2))
    for queue in ("b", "t"):
        push = client.post(f"/queue/{name}{queue}/push", json={"item": {}})
        assert (push.status_code, client.post(f"/queue/{name}{queue}/pop").status_code) == (
            409,
        ) * 2
    assert client.get("/metrics").status_code == 200
