"""Over HTTP, a value is refused with a reason, or each view answers with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import fdb.tuple
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.http import create_app
from fdbqueue.layout.names import worker_key
from fdbqueue.worker.presence import Presence
from tests.support.keys import layout_of

LAST = "9999-12-31T23:59:59.999Z"

times = st.sampled_from(
    [
        *(LAST, "9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-14:00", "9999-12-31 00:00Z"),
        *("0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "1969-12-31T23:59:59Z"),
        *("2030-01-31T12:00:00Z", "2030-01-31T12:00:00", "253402300800", "", 253402300800, 0, True),
    ]
)
numbers = st.integers() | st.floats() | st.sampled_from([10**4000, 2**63, 2**53, 1e308, 0, 1, 60])
texts = st.text(max_size=9) | st.sampled_from(["", "\ud800", "\0", "é" * 200, "x" * 255])
anything = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=4,
)
priorities = numbers | st.tuples(
    st.integers(), st.floats() | st.sampled_from(["Infinity", "NaN"]), texts
)
PUSH = {
    **{"item": anything, "priority": priorities, "delay": numbers, "at": times, "ttl": numbers},
    **{
        "unique": texts,
        "unique_until": texts,
        "unique_for": numbers,
        "deadline": times,
        "cost": numbers,
        "agent_name": texts,
        "client_id": texts,
    },
}
CLAIM = {"lease": numbers, "client": texts, "within": numbers, "n": numbers}
NACK = {"delay": numbers, "error": texts}
OPTIONS = {
    name: numbers | st.none() | st.booleans()
    for name in (
        *("max_size", "max_attempts", "concurrency", "keep_seconds"),
        *("keep_number", "kept_attempts", "traceback_bytes", "paused", "rate"),
    )
}
KINDS: dict[str, dict[str, Any]] = {
    "priority": {"kind": "priority"},
    "fifo": {"kind": "fifo"},
    "task": {"kind": "task"},
}


def some(fields: dict[str, Any]) -> Any:
    """Return a strategy for few of some fields, because one bad value refuses them all."""
    chosen = st.lists(st.sampled_from([*fields]), max_size=2, unique=True)
    return chosen.flatmap(lambda few: st.fixed_dictionaries({name: fields[name] for name in few}))


class Server:
    """A server of a database in memory, with one queue."""

    def __init__(self) -> None:
        self.db: Any = fdbqueue.open("memory:")
        app = create_app(self.db)
        self.client = TestClient(app, "http://127.0.0.1", raise_server_exceptions=False)

    def send(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request; return its answer, which is a success or says what is wrong."""
        headers = {"content-type": "application/json"}
        answer = self.client.request(method, path, content=json.dumps(body), headers=headers)
        assert answer.status_code < 500, (answer.text, body)
        if answer.status_code >= 400:
            assert answer.json()["detail"]
        return answer

    def see(self, path: str) -> Any:
        """Return the answer of a view."""
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer

    def see_all(self) -> None:
        self.see("/metrics?queues=all")
        (row,) = self.see("/v1/queues").json()["queues"]
        assert row["name"] == "q"
        for end in ("", "/stats", "/history", "/scale", "/workers"):
            self.see(f"/v1/queues/q{end}")
        for state in ("ready", "delayed", "claimed", "dead", "done"):
            for item in self.see(f"/v1/queues/q/items?state={state}").json()["items"]:
                self.client.get(f"/v1/queues/q/items/{item['id']}")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    with server.client, server.db:
        yield server


def drop_all(db: Any) -> None:
    for name in fdbqueue.admin.queue_names(db):
        fdbqueue.admin.drop(db, name)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_each_view_answers_after_each_request_that_is_accepted(
    server: Server, kind: str, data: st.DataObject
) -> None:
    drop_all(server.db)
    queue = "/v1/queues/q"
    assert server.send("PUT", queue, KINDS[kind]).status_code == 201
    server.send("PATCH", queue, data.draw(some(OPTIONS)))
    server.send("POST", f"{queue}/push", {"item": 1, **data.draw(some(PUSH))})
    server.send("POST", "/queue/q/push", {"item": {}, **data.draw(some(PUSH))})
    server.see_all()
    claimed = server.send("POST", f"{queue}/claim", data.draw(some(CLAIM))).json()
    server.see_all()
    for each in claimed.get("claims", ()):
        token = {"token": each["token"]}
        server.send("POST", f"{queue}/extend", {**token, "lease": data.draw(numbers)})
        if data.draw(st.booleans()):
            server.send("POST", f"{queue}/nack", {**token, **data.draw(some(NACK))})
        else:
            server.send("POST", f"{queue}/ack", {**token, "result": data.draw(anything)})
        server.see_all()


def test_a_time_that_cannot_be_shown_is_refused_with_the_last_one(server: Server) -> None:
    drop_all(server.db)
    for at in ("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-00:01"):
        answer = server.send("POST", "/v1/queues/q/push", {"item": 1, "at": at})
        assert answer.status_code == 422
        assert "up to 9999-12-31T23:59:59.999+00:00, not 9999-12-31T23:59:59" in answer.text
    assert fdbqueue.admin.queue_names(server.db) == []
    answer = server.send("POST", "/v1/queues/q/push", {"item": 1, "at": LAST})
    server.see_all()
    shown = server.see(f"/v1/queues/q/items/{answer.json()['id']}").json()
    assert shown["due_at"] == LAST.replace("Z", "+00:00")


def test_a_queue_that_cannot_be_read_is_listed_with_the_reason(
    client: TestClient, db: Any, name: str
) -> None:
    broken = PriorityQueue.named(db, f"{name}broken")
    broken.push(db, 1)
    PriorityQueue.named(db, f"{name}sound").push(db, 1)
    db[layout_of(broken).counts + b"\xff"] = b"\x01"
    answer = client.get("/v1/queues", params={"after": f"{name}!", "limit": 2})
    rows = answer.json()["queues"]
    assert "bytes that cannot be read" in rows[0]["error"]
    assert rows[1]["ready"] == 1
    lines = client.get("/metrics").text.splitlines()
    assert f'fdbqueue_queue_unknown{{queue="{name}broken"}} 1.0' in lines
    assert f'fdbqueue_items{{queue="{name}sound",state="ready"}} 1.0' in lines


def test_rows_that_no_worker_has_written_do_not_hide_the_workers(
    client: TestClient, db: Any, name: str
) -> None:
    junk = [b"", b"\xff", fdb.tuple.pack(("a", "b", 1, "c", 2, 3, "x", 5, 2**63, 2))]
    keys = [worker_key(bytes([number])) for number in range(len(junk))]
    for key, value in zip(keys, junk):
        db[key] = value
    presence = Presence("ada", {name: 1}, 1, 60.0)
    try:
        assert client.get("/v1/workers").status_code == 200
        presence.write(db, 0)
        assert [db[key] for key in keys] == [None] * len(keys)
        assert "ada" in [each["name"] for each in client.get("/v1/workers").json()["workers"]]
    finally:
        presence.end(db)
