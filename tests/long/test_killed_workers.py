"""Workers are killed and stopped: each job takes effect once, and costs others little."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue, Worker
from fdbqueue.admin import check
from tests.support.keys import rows_in
from tests.support.separate import separate_processes
from tests.support.shell import Shell, has_handlers
from tests.support.waiting import MAX_WAIT, wait_until

JOBS = int(os.environ.get("FDBQ_WORKER_JOBS", "1000"))
"""The number of jobs; run 20,000 by hand."""


def work_until_stopped(url: str, space: bytes) -> None:
    """Run a worker whose jobs add their amount to the balance as they end."""
    db = fdbqueue.open(url)
    own = Subspace(rawPrefix=space)
    queue = PriorityQueue(own["queue"])

    def add(tr: Any, item: Any) -> None:
        time.sleep(random.random() * 0.15)  # so that kills interrupt many jobs
        tr.add(own.pack(("balance",)), item.value["amount"].to_bytes(8, "little"))
        tr.add(own.pack(("effects", item.value["n"])), (1).to_bytes(8, "little"))

    Worker(db, queue, add, concurrency=2, lease=1).run()


def test_the_balance_is_exact_although_workers_are_killed_and_stopped(
    db: Any, shared_url: str, space: Subspace, rng: random.Random
) -> None:
    queue = PriorityQueue(space["queue"])
    amounts = [rng.randrange(1, 1000) for _ in range(JOBS)]
    jobs = [{"n": n, "amount": amount} for n, amount in enumerate(amounts)]
    for begin in range(0, JOBS, 1000):
        queue.push_many(db, jobs[begin : begin + 1000])
    context = separate_processes()

    def start() -> Any:
        arguments = (shared_url, space.key())
        process = context.Process(target=work_until_stopped, args=arguments, daemon=True)
        process.start()
        return process

    workers = [start() for _ in range(8)]
    effects = space["effects"].range()

    def finished() -> int:
        return len(list(db[effects.start : effects.stop]))

    try:
        killed = paused = 0
        for round_ in range(max(8, JOBS // 500)):
            time.sleep(0.2 + rng.random())
            victim = workers[rng.randrange(len(workers))]
            if round_ % 2:
                victim.kill()
                workers[workers.index(victim)] = start()
                killed += 1
            else:
                # Past its lease, with all jobs it holds. It may also hold the lock of the writers
                # of an embedded database: a commit here would wait for it for ever.
                os.kill(victim.pid, signal.SIGSTOP)
                time.sleep(1.5)
                os.kill(victim.pid, signal.SIGCONT)
                paused += 1
        wait_until(lambda: finished() == JOBS, MAX_WAIT + JOBS / 20)
        wait_until(lambda: all(map(has_handlers, workers)))  # the last one may just have started
        for process in workers:
            process.terminate()
        for process in workers:
            process.join(60)
            assert process.exitcode == 0
    finally:
        for process in workers:
            process.kill()
    print(f"{killed} killed, {paused} stopped")
    assert queue.claim(db) is None
    assert check(db, queue).ok
    assert rows_in(db, queue, "claims") == []
    assert int.from_bytes(db[space.pack(("balance",))], "little") == sum(amounts)
    counted = {row.value for row in db[effects.start : effects.stop]}
    assert counted == {(1).to_bytes(8, "little")}


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
