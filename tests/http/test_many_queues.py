"""A server answers about thousands of queues by pages, with few reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.http import create_app
from tests.support.counting import CountingDatabase
from tests.support.many_queues import make_queues

NUMBER = 2_500


@pytest.fixture
def counting(db: Any) -> CountingDatabase:
    return CountingDatabase(db)


@pytest.fixture
def client(counting: CountingDatabase) -> Iterator[TestClient]:
    with TestClient(create_app(counting), "http://127.0.0.1") as client:
        yield client


def reported(client: TestClient, name: str, **query: str) -> dict[str, list[float]]:
    """Return pushed, completed and ready items of each queue of a test that `/metrics` reports."""
    answer = client.get("/metrics", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, list[float]] = {}
    for line in answer.text.splitlines():
        for metric, end in (
            ("items_pushed_total", '"} '),
            ("items_completed_total", '"} '),
            ("items", '",state="ready"} '),
        ):
            begin = f'fdbqueue_{metric}{{queue="{name}'
            if line.startswith(begin) and end in line:
                queue, value = line.removeprefix(begin).split(end)
                found.setdefault(queue, []).append(float(value))
    return found


def test_metrics_leave_out_idle_queues(
    client: TestClient, counting: CountingDatabase, db: Any, name: str
) -> None:
    make_queues(db, name, NUMBER, busy={3, 1_500})
    number = len(fdbqueue.admin.queue_names(db))
    counting.clear()
    assert reported(client, name) == {"000003": [2, 3, 1], "001500": [2, 3, 1]}
    assert counting.transactions <= 2 + number // 500
    # A read of the names for each page, one of the counters of each queue, three for a full one.
    assert counting.reads <= 2 + number // 500 + NUMBER + 3 * 2 + 4 * (number - NUMBER)
    every = reported(client, name, queues="all")
    assert len(every) == NUMBER
    assert every["000000"] == [0, 1, 1]
    assert f"fdbqueue_queues {number:.1f}" in client.get("/metrics").text
    assert client.get("/metrics", params={"queues": "some"}).status_code == 400


def test_metrics_keep_queues_that_were_used_since_the_first_request(
    client: TestClient, db: Any, name: str
) -> None:
    for each in ("idle", "busy", "full", "dropped"):
        PriorityQueue.named(db, name + each).push(db, each)
    for each in ("idle", "busy"):
        PriorityQueue.existing(db, name + each).pop(db)
    assert reported(client, name) == {"full": [1, 1, 0], "dropped": [1, 1, 0]}
    PriorityQueue.named(db, f"{name}busy").push(db, "popped at once")
    for each in ("busy", "full"):
        PriorityQueue.existing(db, name + each).pop(db)
    PriorityQueue.named(db, f"{name}new").push(db, "popped at once")
    PriorityQueue.named(db, f"{name}new").pop(db)
    PriorityQueue.named(db, f"{name}unused").configure(db, max_size=9)
    fdbqueue.admin.drop(db, f"{name}dropped")
    for _ in range(2):
        assert reported(client, name) == {"busy": [0, 2, 2], "full": [0, 1, 1], "new": [0, 1, 1]}
