"""Processes that a program, or one of its jobs, forks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RACE = """
import os, sys, threading, time
import fdbqueue

for n in range(20):
    app = fdbqueue.App(f"embedded:{sys.argv[1]}/{n}")

    @app.job(name="add")
    def add(x: int) -> None: ...

    opening = threading.Thread(target=add.push, args=(1,))
    opening.start()
    time.sleep(n * 0.001)
    if os.fork() == 0:
        add.push(2)
        os._exit(0)
    opening.join()
    assert os.wait()[1] == 0
    assert app.work(drain=True).done == 2
print("done")
"""

JOB = """
import asyncio, multiprocessing, os, sys
import fdbqueue
from fdbqueue.jobs import Context, Retry

app = fdbqueue.App(f"embedded:{sys.argv[1]}")

def say(*words: object) -> None:  # at once, as processes write at the same time
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

@app.job(name="note")
def note(text: str) -> None:
    say(text)

def child() -> None:
    note.push("pool")

@app.job(name="forks")
def forks(how: str) -> None:
    if how == "pool":
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join()
    elif os.fork() == 0:
        note.push(how)
        if how == "return":
            return
        if how == "raise":
            raise OSError("in the child")
        sys.exit(3)
    else:
        code = os.waitstatus_to_exitcode(os.wait()[1])
        say("ended with", code)

@app.job(name="coroutine")
async def coroutine() -> None:
    await asyncio.sleep(0)
    if os.fork():
        say("ended with", os.waitstatus_to_exitcode(os.wait()[1]))

def fork(*_: object) -> None:
    if os.fork():
        say("ended with", os.waitstatus_to_exitcode(os.wait()[1]))

def decide(error: Exception, context: Context) -> int:
    fork()
    return 3600

@app.job(name="part", retry=Retry(attempts=1) if sys.argv[-1] == "at_end" else decide)
def part(context: Context, name: str) -> None:
    if name == "middleware":
        say("runs")
    if name == "at_end":
        context.at_end(fork)
    if name == "decision":
        raise ValueError

@app.job(name="body", retry=Retry(attempts=1))
def body(tr: fdbqueue.Transaction) -> None:
    fork()

@app.middleware
def around(context: Context):
    if sys.argv[2:] == ["part", "middleware"]:
        fork()
    yield

if sys.argv[2] in ("part", "body"):
    forks = {"part": part, "body": body}[sys.argv[2]]

(coroutine if sys.argv[2] == "coroutine" else forks).push(*sys.argv[3:])
print(app.work(drain=True), flush=True)
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-u", "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_child_forked_while_another_thread_opens_the_database_works(tmp_path: Path) -> None:
    done = run(RACE, str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.parametrize(("how", "code"), [("return", 1), ("raise", 1), ("exit", 3)])
def test_a_forked_process_that_leaves_its_job_is_no_second_worker(
    tmp_path: Path, how: str, code: int
) -> None:
    done = run(JOB, str(tmp_path / "db"), "forks", how)
    lines = {"ended with " + str(code), how, "WorkerReport(done=2, failed=0, lost=0)"}
    assert {*done.stdout.splitlines()} == lines, done.stderr
    assert ("forks: a process that the job forked" in done.stderr) == (how != "exit")
    assert ("OSError: in the child" in done.stderr) == (how == "raise")


def test_neither_is_one_that_leaves_a_coroutine(tmp_path: Path) -> None:
    done = run(JOB, str(tmp_path / "db"), "coroutine")
    lines = ["ended with 1", "WorkerReport(done=1, failed=0, lost=0)"]
    assert done.stdout.splitlines() == lines, done.stderr
    assert "coroutine: a process that the job forked" in done.stderr


@pytest.mark.parametrize(("name", "done"), [("middleware", 1), ("decision", 0)])
def test_neither_is_one_that_leaves_another_part_of_a_job(
    tmp_path: Path, name: str, done: int
) -> None:
    ended = run(JOB, str(tmp_path / "db"), "part", name)
    report = f"WorkerReport(done={done}, failed={1 - done}, lost=0)"
    runs = ["runs"] if name == "middleware" else []
    assert ended.stdout.splitlines() == ["ended with 1", *runs, report], ended.stderr
    assert "part: a process that the job forked" in ended.stderr


@pytest.mark.parametrize("job", [["body"], ["part", "at_end"]])
def test_a_function_that_forks_in_each_try_of_its_transaction_fails(
    tmp_path: Path, job: list[str]
) -> None:
    ended = run(JOB, str(tmp_path / "db"), *job)
    *forks, report = ended.stdout.splitlines()
    assert report == "WorkerReport(done=0, failed=1, lost=0)", ended.stderr
    assert {*forks} == {"ended with 1"}
    assert "each try of a transaction has forked this process" in ended.stderr


def test_a_job_may_use_processes_that_are_forked(tmp_path: Path) -> None:
    done = run(JOB, str(tmp_path / "db"), "forks", "pool")
    assert done.stdout.splitlines() == ["pool", "WorkerReport(done=2, failed=0, lost=0)"]


AIO = """
import asyncio, os, sys
import fdbqueue
from fdbqueue import aio

db = fdbqueue.open(f"embedded:{sys.argv[1]}")
queue = aio.PriorityQueue.named(db, "jobs")

async def push(n: int) -> None:
    queue = await aio.PriorityQueue.named(db, "jobs")
    await asyncio.gather(*(queue.push(db, n) for _ in range(3)))

asyncio.run(push(1))
if os.fork() == 0:
    asyncio.run(push(2))
    os._exit(0)
assert os.wait()[1] == 0
print(fdbqueue.PriorityQueue.named(db, "jobs").size(db))
"""


def test_the_threads_of_asyncio_begin_anew_in_a_child(tmp_path: Path) -> None:
    done = run(AIO, str(tmp_path / "db"))
    assert done.stdout == "6\n", done.stderr
