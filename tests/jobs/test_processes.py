"""Processes of an app: those of `work(processes=...)`, and those that a job forks."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fdbqueue import PriorityQueue
from fdbqueue.jobs import App
from fdbqueue.jobs.errors import AppNotFound
from fdbqueue.worker.processes import Supervisor
from tests.support.waiting import MAX_WAIT, wait_until

PROGRAM = """
import os, sys, fdbqueue
from fdbqueue.jobs import Context

app = fdbqueue.App()

@app.lifespan
def process():
    yield os.getpid()

@app.job(queue={queue!r})
def add(context: Context, x: int) -> list[int]:
    return [context.state, os.getpid()]

if __name__ == "__main__":
    app.bind({url!r})
    add.push_many([add.bind(n) for n in range(20)])
    print(app.work(processes=2, drain=True, max_jobs=3, concurrency=1, grace="5s"))
"""


def test_the_processes_of_an_app_find_it(
    db: Any, shared_url: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "shop.py"
    path.write_text(PROGRAM.format(url=shared_url, queue=name))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, cwd="/")
    assert done.stdout == "WorkerReport(done=20, failed=0, lost=0)\n", done.stderr
    infos = list(PriorityQueue.existing(db, name).items(db, state="done"))
    assert {info.item.value["job"] for info in infos} == {"shop.add"}
    assert all(info.result[0] == info.result[1] for info in infos)
    assert len({info.result[0] for info in infos}) >= 2


def test_an_app_that_other_processes_cannot_use_is_refused(shared_url: str) -> None:
    app = App("memory:")
    app.job()(print_nothing)
    with pytest.raises(AppNotFound, match="a database in memory belongs to one process"):
        app.work(processes=2)
    app.bind(shared_url)
    with pytest.raises(AppNotFound, match="not a variable of a module"):
        app.work(processes=2)


def print_nothing() -> None:
    pass


@pytest.mark.parametrize("option", ["processes", "max_jobs", "max_memory"])
@pytest.mark.parametrize("number", [0, 1.5, "2"])
def test_a_wrong_number_is_refused(option: str, number: Any) -> None:
    app = App("memory:")
    with pytest.raises(ValueError, match=f"{option} is a number of"):
        app.work("jobs", drain=True, **{option: number})


def test_a_program_that_keeps_dying_is_started_again_however_often_it_has_died(
    caplog: pytest.LogCaptureFixture,
) -> None:
    supervisor = Supervisor([sys.executable, "-c", "raise SystemExit(3)"], 1, grace=1)
    supervisor._slots[0].deaths = 5_000
    thread = threading.Thread(target=supervisor.run, daemon=True)
    thread.start()
    wait_until(lambda: "exit code 3; another one starts in 60 s" in caplog.text)
    supervisor.stop()
    thread.join(MAX_WAIT)
    assert not thread.is_alive()


JOBS = """
import asyncio, os, sys
import fdbqueue
from fdbqueue.jobs import Context, Retry

app = fdbqueue.App(f"embedded:{sys.argv[1]}")

def say(*words: object) -> None:  # at once, as processes write at the same time
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def fork(*_: object) -> bool:
    if os.fork() == 0:
        return True
    say("ended with", os.waitstatus_to_exitcode(os.wait()[1]))
    return False

@app.job(name="function")
def function(how: str) -> None:
    if fork():
        say(how)
        if how == "raise":
            raise OSError("in the child")
        if how == "exit":
            sys.exit(3)

@app.job(name="coroutine")
async def coroutine() -> None:
    await asyncio.sleep(0)
    fork()

def decide(error: Exception, context: Context) -> int:
    fork()
    return 3600

@app.job(name="decision", retry=decide)
def decision() -> None:
    raise ValueError

@app.job(name="end", retry=Retry(attempts=1))
def end(context: Context) -> None:
    context.at_end(fork)

@app.job(name="body", retry=Retry(attempts=1))
def body(tr: fdbqueue.Transaction) -> None:
    fork()

@app.job(name="middleware")
def middleware() -> None: ...

@app.middleware
def around(context: Context):
    if context.job == "middleware":
        fork()
    yield

for line in sys.argv[2:]:
    job, *arguments = line.split()
    print(line, flush=True)
    globals()[job].push(*arguments)
    print(app.work(drain=True, concurrency=1), flush=True)
"""

DONE = "WorkerReport(done=1, failed=0, lost=0)"
LINES: dict[str, set[str]] = {
    "function return": {"return", "ended with 1", DONE},
    "function raise": {"raise", "ended with 1", DONE},
    "function exit": {"exit", "ended with 3", DONE},
    "coroutine": {"ended with 1", DONE},
    "middleware": {"ended with 1", DONE},
    "decision": {"ended with 1", "WorkerReport(done=0, failed=1, lost=0)"},
    # A fork does not end the transaction of a job.
    "body": {"ended with 1", DONE},
    "end": {"ended with 1", DONE},
}
"""What is printed for each job, by name and arguments: the worker goes on in the parent only."""


def test_a_forked_process_that_leaves_a_part_of_a_job_is_no_second_worker(tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-c", JOBS, str(tmp_path / "db"), *LINES]
    done = subprocess.run(command, capture_output=True, text=True)
    said: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        if line in LINES:
            said[line] = []
        else:
            said[[*said][-1]].append(line)
    assert {line: set(each) for line, each in said.items()} == LINES, done.stderr
    assert done.stderr.count("function: a process that the job forked") == 2
    for job in ("coroutine", "middleware", "decision"):
        assert f"{job}: a process that the job forked" in done.stderr
    assert "OSError: in the child" in done.stderr
