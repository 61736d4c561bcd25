"""A pipeline with everything that goes wrong at once: each good job takes effect once."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue
from tests.support.fdbq_work import Workers
from tests.support.shell import Shell
from tests.support.waiting import wait_until

GOOD = 200

PROGRAM = """
import logging, os, sys

import opentelemetry.trace
import prometheus_client

import fdbqueue
from fdbqueue.jobs import Retry


def fail(*_, **__):
    raise OSError("by the program")


prometheus_client.Counter = opentelemetry.trace.get_tracer = fail

app = fdbqueue.App()


@app.middleware
def around(context):
    if context.item.value["args"] == ["middleware"]:
        fail()
    yield


@app.job(name="good", queue={queue!r})
def good(tr: fdbqueue.Transaction, number: int) -> None:
    tr.add(fdbqueue.Subspace(("done", {queue!r})).pack((number,)), (1).to_bytes(8, "little"))


@app.job(name="poison", queue={queue!r}, retry=Retry(attempts=3, first=0))
def poison() -> None:
    os._exit(7)


@app.job(name="exit", queue={queue!r}, retry=Retry(attempts=2, first=0))
async def leave(_: str = "") -> None:
    sys.exit(3)


@app.job(name="undecided", queue={queue!r}, retry=fail)
def undecided() -> None:
    raise KeyError("of the job")
"""


@pytest.fixture
def fdbq(shared_url: str, tmp_path: Path, name: str, db: object) -> Shell:
    (tmp_path / "shop.py").write_text(PROGRAM.format(queue=name))
    return Shell(tmp_path, shared_url, name)


def test_each_good_job_takes_effect_once_among_bad_ones(
    db: Any, fdbq: Shell, name: str, rng: random.Random
) -> None:
    good: list[dict[str, Any]] = [{"job": "good", "args": [number]} for number in range(GOOD)]
    bad: list[dict[str, Any]] = [
        {"job": "poison"},
        {"job": "exit"},
        {"job": "exit", "args": ["middleware"]},
        {"job": "undecided"},
        *({"job": f"unknown {number}"} for number in range(5)),
    ]
    values = good + [{"args": [], "kwargs": {}, **value} for value in bad]
    rng.shuffle(values)
    queue = PriorityQueue.named(db, name)
    queue.push_many(db, values)
    space = fdbqueue.Subspace(("done", name))
    workers = Workers(fdbq)
    try:
        options = ["--processes", "1", "--concurrency", "8", "--lease", "2"]
        parent = workers.start("--app", "shop:app", *options)
        dead = {"poison", "exit"}

        def is_over() -> bool:
            done = len(list(db[space.range()]))
            letters = [info.item.value["job"] for info in queue.items(db, state="dead")]
            return done == GOOD and {*letters} == dead and len(letters) == 3

        wait_until(is_over)
        assert parent.poll() is None
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(60) == 0
    finally:
        workers.kill()
    counts = [int.from_bytes(row.value, "little") for row in db[space.range()]]
    assert counts == [1] * GOOD
    waiting = {info.item.value["job"]: info for info in queue.items(db, state="delayed")}
    assert {*waiting} == {"undecided", *(f"unknown {number}" for number in range(5))}
    errors = [each.error for each in waiting["undecided"].failed_attempts]
    assert {*errors} == {"OSError: by the program"}
    assert workers.log.count("prometheus_client is switched off") <= len(workers.pids)
    assert fdbqueue.admin.check(db, queue).ok
    db.clear_range_startswith(space.key())
