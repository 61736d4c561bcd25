"""A job that kills its process costs the jobs beside it little."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from fdbqueue import PriorityQueue
from fdbqueue.admin import check
from tests.support.shell import Shell
from tests.support.waiting import MAX_WAIT, wait_until

POISON = """
import os, time
from fdbqueue.jobs import App, Retry

app = App()

def note(name):
    with open("began", "a") as file:
        file.write(name + "\\n")

@app.job(name="exit", queue={queue!r}, retry=Retry(attempts=3))
def leave():
    note("exit")
    time.sleep(0.1)  # so that the others begin
    os._exit(9)

@app.job(name="sleep", queue={queue!r}, retry=Retry(attempts=3))
def sleep(number):
    note(f"sleep {{number}}")
    time.sleep(0.5)
"""


def test_a_job_that_kills_its_process_costs_others_one_attempt(
    db: Any, shared_url: str, name: str, tmp_path: Path
) -> None:
    fdbq = Shell(tmp_path, shared_url, name)
    (tmp_path / "jobs.py").write_text(POISON.format(queue=name))
    queue = PriorityQueue.named(db, name, keep=100)
    jobs = [{"job": "sleep", "args": [number]} for number in range(7)]
    poison, *others = queue.push_many(db, [{"job": "exit", "args": []}, *jobs])
    options = ["--processes", "1", "--concurrency", "8", "--lease", "1"]
    program = fdbq.start("work", "--app", "jobs:app", *options)
    try:
        states = lambda: [queue.state(db, item) for item in (poison, *others)]  # noqa: E731
        wait_until(lambda: states() == ["dead", *["done"] * 7], 3 * MAX_WAIT)
    finally:
        program.send_signal(signal.SIGTERM)
        program.communicate(timeout=MAX_WAIT)
    began = (tmp_path / "began").read_text().splitlines()
    assert began.count("exit") == 3
    assert {began.count(f"sleep {number}") for number in range(7)} <= {1, 2}
    info = queue.get(db, poison)
    errors = [str(attempt.error) for attempt in info.failed_attempts]
    assert ["alone" in error for error in errors] == [False, True, True]
    assert all(queue.get(db, item).attempts <= 2 for item in others)
    assert check(db, queue).ok
