"""A pipeline with everything that goes wrong at once: each good job takes effect once."""

from __future__ import annotations

import random
import signal
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.types import ItemInfo
from tests.support.fdbq_work import Workers
from tests.support.shell import Shell
from tests.support.waiting import wait_until

GOOD = 200

PROGRAM = """
import os, sys, time

import opentelemetry.trace
import prometheus_client

import fdbqueue
from fdbqueue.jobs import Retry


def fail(*_, **__):
    raise OSError("by the program")


prometheus_client.Counter = opentelemetry.trace.get_tracer = fail

app = fdbqueue.App()
running = set()


@app.middleware
def around(context):
    if context.item.value["args"] == ["middleware"]:
        fail()
    running.add(context.item.id)
    try:
        yield
    finally:
        running.discard(context.item.id)


@app.job(name="good", queue={queue!r})
def good(tr: fdbqueue.Transaction, number: int) -> None:
    time.sleep(0.01)
    tr.add(fdbqueue.Subspace(("done", {queue!r})).pack((number,)), (1).to_bytes(8, "little"))


@app.job(name="poison", queue={queue!r}, retry=Retry(attempts=3, first=0))
def poison() -> None:
    beside = 0
    for _ in range(10):
        time.sleep(0.01)
        beside = max(beside, len(running) - 1)
    with open("notes", "a") as notes:
        print(beside, file=notes)
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


def is_due_after(info: ItemInfo, time: datetime) -> bool:
    return info.due_at is not None and info.due_at > time


def test_each_good_job_takes_effect_once_among_bad_ones(
    db: Any, fdbq: Shell, name: str, rng: random.Random
) -> None:
    good: list[dict[str, Any]] = [{"job": "good", "args": [number]} for number in range(GOOD)]
    unknown = [f"unknown {number}" for number in range(5)]
    bad: list[dict[str, Any]] = [
        {"job": "exit"},
        {"job": "exit", "args": ["middleware"]},
        {"job": "undecided"},
        *({"job": name} for name in unknown),
    ]
    rng.shuffle(shuffled := good + bad)
    shuffled.insert(rng.randrange(GOOD // 2), {"job": "poison"})  # before enough others
    values = [{"args": [], "kwargs": {}, **value} for value in shuffled]
    queue = PriorityQueue.named(db, name, keep=1_000)
    ids = [item.id for item in queue.push_many(db, values)]
    space = fdbqueue.Subspace(("done", name))
    workers = Workers(fdbq)
    delayed: set[str] = set()

    def found(*jobs: str) -> dict[str, list[ItemInfo]]:
        infos: dict[str, list[ItemInfo]] = {job: [] for job in jobs}
        for id, value in zip(ids, values):
            if value["job"] in jobs:
                info = queue.get(db, id)
                assert info is not None
                infos[value["job"]].append(info)
        return infos

    def is_over() -> bool:
        assert parent.poll() is None, workers.log
        infos = found("poison", "exit", "undecided", *unknown)
        in_a_second = datetime.now(timezone.utc) + timedelta(seconds=1)
        delayed.update(job for job, (info, *_) in infos.items() if is_due_after(info, in_a_second))
        dead = {info.state for info in [*infos["poison"], *infos["exit"]]} == {"dead"}
        done = len(list(db[space.range()])) == GOOD
        return dead and done and {*unknown, "undecided"} <= delayed

    try:
        options = ["--processes", "1", "--concurrency", "8", "--lease", "2"]
        parent = workers.start("--app", "shop:app", *options)
        wait_until(is_over)
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(60) == 0
    finally:
        workers.kill()
    counts = [int.from_bytes(row.value, "little") for row in db[space.range()]]
    assert counts == [1] * GOOD
    infos = found(*{value["job"] for value in values})
    # Jobs that were held when the worker died have lost one attempt, and others none.
    log = workers.log
    lost = {info.id: log.count(f"{info.id} good lost") for info in infos["good"]}
    assert {info.attempts - lost[info.id] for info in infos["good"]} <= {1, 2}
    assert [info.attempts for info in infos["poison"]] == [3]
    first, *alone = workers.notes
    assert alone == [["0"], ["0"]], first
    assert len(workers.pids) == 1 + 3  # nothing else has ended the process
    assert [info.attempts for info in infos["exit"]] == [2, 2]
    for job in unknown:
        (info,) = infos[job]
        assert info.waits_for is not None
        assert info.waits_for.kind == "worker"
    errors = [each.error for each in infos["undecided"][0].failed_attempts]
    assert "OSError: by the program" in errors
    assert 0 < log.count("prometheus_client raised an error") <= len(workers.pids)
    assert fdbqueue.admin.check(db, queue).ok
    db.clear_range_startswith(space.key())
