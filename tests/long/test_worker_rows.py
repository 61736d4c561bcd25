"""Rows that no worker has written do not hide the workers."""

from __future__ import annotations

from typing import Any

import fdb.tuple
from starlette.testclient import TestClient

from fdbqueue.http import create_app
from fdbqueue.layout.names import worker_key
from fdbqueue.worker.presence import Presence


def test_rows_that_no_worker_has_written_do_not_hide_the_workers(db: Any, name: str) -> None:
    client = TestClient(create_app(db), "http://127.0.0.1")
    junk = [b"", b"\xff", fdb.tuple.pack(("a", "b", 1, "c", 2, 3, "x", 5, 2**63, 2))]
    keys = [worker_key(bytes([number])) for number in range(len(junk))]
    for key, value in zip(keys, junk):
        db[key] = value
    presence = Presence("ada", {name: 1}, 1, 60.0, print)
    try:
        assert client.get("/v1/workers").status_code == 200
        presence.write(db, 0)
        assert [db[key] for key in keys] == [None] * len(keys)
        assert "ada" in [each["name"] for each in client.get("/v1/workers").json()["workers"]]
    finally:
        presence.end(db)
