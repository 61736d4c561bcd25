"""Processes that a program, or one of its jobs, forks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RACE = """
import os, sys, threading, time
import fdbqueue

# A module that a thread imports during a fork cannot be imported in the child.
import opentelemetry.trace.propagation.tracecontext

for n in range(20):
    app = fdbqueue.App(f"embedded:{sys.argv[1]}/{n}")

    @app.job(name="add")
    def add(x: int) -> None: ...

    opening = threading.Thread(target=add.push, args=(1,))
    opening.start()
    time.sleep(n * 0.001)
    if os.fork() == 0:
        try:
            add.push(2)
        except fdbqueue.errors.StorageError as error:
            assert "open databases after the fork" in str(error)
        os._exit(0)
    opening.join()
    assert os.wait()[1] == 0
    assert app.work(drain=True).done >= 1
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
def note(text: str) -> None: ...

def child(how: str) -> None:
    if how == "push":
        note.push("from a child")
    say(how)

@app.job(name="forks")
def forks(how: str) -> None:
    if how in ("compute", "push"):
        process = multiprocessing.get_context("fork").Process(target=child, args=(how,))
        process.start()
        process.join()
        say("ended with", process.exitcode)
    elif os.fork() == 0:
        say(how)
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


def test_a_child_forked_while_another_thread_opens_the_database_opens_it_or_is_told_to(
    tmp_path: Path,
) -> None:
    done = run(RACE, str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.parametrize(("how", "code"), [("return", 1), ("raise", 1), ("exit", 3)])
def test_a_forked_process_that_leaves_its_job_is_no_second_worker(
    tmp_path: Path, how: str, code: int
) -> None:
    done = run(JOB, str(tmp_path / "db"), "forks", how)
    lines = {"ended with " + str(code), how, "WorkerReport(done=1, failed=0, lost=0)"}
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
def test_a_fork_does_not_end_the_transaction_of_a_job(tmp_path: Path, job: list[str]) -> None:
    ended = run(JOB, str(tmp_path / "db"), *job)
    report = "WorkerReport(done=1, failed=0, lost=0)"
    assert ended.stdout.splitlines() == ["ended with 1", report], ended.stderr


def test_a_job_may_compute_in_processes_that_are_forked(tmp_path: Path) -> None:
    done = run(JOB, str(tmp_path / "db"), "forks", "compute")
    report = "WorkerReport(done=1, failed=0, lost=0)"
    assert done.stdout.splitlines() == ["compute", "ended with 0", report], done.stderr


def test_a_process_that_a_job_forks_cannot_push(tmp_path: Path) -> None:
    done = run(JOB, str(tmp_path / "db"), "forks", "push")
    report = "WorkerReport(done=1, failed=0, lost=0)"
    assert done.stdout.splitlines() == ["ended with 1", report], done.stderr
    assert "StorageError" in done.stderr
    assert "open databases after the fork" in done.stderr
