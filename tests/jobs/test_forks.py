"""Processes that a program, or one of its jobs, forks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
