"""Over HTTP, a time is refused if it cannot be shown, and rows of others hide nothing."""

from __future__ import annotations

from typing import Any

import fdb.tuple
from starlette.testclient import TestClient

import fdbqueue
from fdbqueue.layout.names import worker_key
from fdbqueue.worker.presence import Presence

LAST = "9999-12-31T23:59:59.999Z"


def test_a_time_that_cannot_be_shown_is_refused_with_the_last_one(
    client: TestClient, db: Any, name: str
) -> None:
    queue = f"/v1/queues/{name}"
    for at in ("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-00:01"):
        answer = client.post(f"{queue}/push", json={"item": 1, "at": at})
        assert answer.status_code == 422
        assert "up to 9999-12-31T23:59:59.999+00:00, not 9999-12-31T23:59:59" in answer.text
    assert name not in fdbqueue.admin.queue_names(db)
    answer = client.post(f"{queue}/push", json={"item": 1, "at": LAST})
    shown = client.get(f"{queue}/items/{answer.json()['id']}").json()
    assert shown["due_at"] == LAST.replace("Z", "+00:00")


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
