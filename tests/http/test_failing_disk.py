"""An answer of 2xx is on disk; every other answer of a failing disk says what is known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import fdbqueue
from fdbqueue.embedded import Database
from tests.support.failing_disk import Disk

JOBS = 10
IDS = [f"job-{number}" for number in range(JOBS)]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """Return a database on a disk that may fail, with ten jobs."""
    with fdbqueue.open(tmp_path / "db") as database:
        jobs = fdbqueue.PriorityQueue.named(database, "jobs")
        jobs.push_many(database, IDS)
        yield database


CALLS = {
    "push": lambda client: client.post("/v1/queues/jobs/push", json={"item": "new"}),
    "pop": lambda client: client.post("/v1/queues/jobs/pop", json={}),
    "claim": lambda client: client.post("/v1/queues/jobs/claim", json={"lease": 60}),
}


def states(db: Any) -> tuple[int, int]:
    """Return the numbers of ready and claimed jobs."""
    stats = fdbqueue.PriorityQueue.named(db, "jobs").stats(db)
    return stats.ready, stats.claimed


@pytest.mark.parametrize("call", CALLS)
def test_calls_take_effect_at_most_once_on_a_broken_disk(
    db: Any, client: TestClient, disk: Disk, call: str
) -> None:
    """Only the call that met the failure has an unknown result. The others stored nothing."""
    disk.breaks()
    answers = [CALLS[call](client) for _ in range(JOBS)]
    assert {answer.status_code for answer in answers} == {503}
    unknown = [answer for answer in answers if "unknown" in answer.text]
    assert unknown == answers[:1]
    assert client.get("/ready").status_code == 503
    assert client.get("/health").status_code == 200
    disk.is_repaired()
    assert client.get("/ready").status_code == 503
    db.close()
    expected = {"push": (11, 0), "pop": (9, 0), "claim": (9, 1)}
    with fdbqueue.open(db.path) as again:
        assert states(again) == expected[call]
