"""`fdbq work` in several processes, within limits, and with changes of its program."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fdbqueue import PriorityQueue
from tests.support.cluster import free_port
from tests.support.fdbq_work import Workers, is_alive
from tests.support.shell import Shell
from tests.support.waiting import MAX_WAIT, wait_until

PROGRAM = """
import asyncio, os, time
import fdbqueue
from fdbqueue.jobs import Retry

app = fdbqueue.App()

@app.job(name="note", queue={queue!r})
def note(what: str) -> None:
    with open("notes", "a") as notes:
        notes.write(f"{{what}} {{os.getpid()}}\\n")

@app.job(name="hang", queue={queue!r}, timeout="100ms", retry=Retry(attempts=1))
def hang() -> None:
    note("hang")
    time.sleep(3600)

@app.job(name="hang in a thread", queue={queue!r}, timeout="100ms", retry=Retry(attempts=1))
async def hang_in_a_thread() -> None:
    await asyncio.to_thread(time.sleep, 3600)

@app.job(name="die", queue={queue!r})
def die() -> None:
    os._exit(7)

@app.job(name="meet", queue={queue!r})
def meet(me: str, other: str) -> None:
    open(me, "w").close()
    while not os.path.exists(other):
        time.sleep(0.01)

@app.job(name="fail", queue={queue!r}, retry=Retry(attempts=1))
def fail() -> None:
    raise ValueError

def handler(item):
    note(str(item.value))
    if item.value == "hang":
        time.sleep(3600)
"""


@pytest.fixture
def fdbq(shared_url: str, tmp_path: Path, name: str, db: object) -> Shell:
    shell = Shell(tmp_path, shared_url, name)
    (tmp_path / "shop.py").write_text(PROGRAM.format(queue=name))
    return shell


@pytest.fixture
def workers(fdbq: Shell) -> Iterator[Workers]:
    workers = Workers(fdbq)
    yield workers
    workers.kill()


def job(name: str, *args: str) -> dict[str, Any]:
    return {"job": name, "args": [*args]}


def push(db: Any, name: str, *values: Any) -> PriorityQueue:
    queue = PriorityQueue.named(db, name)
    queue.push_many(db, values)
    return queue


@pytest.mark.parametrize("kind", ["app", "exec"])
def test_processes_work_and_one_signal_stops_all(
    db: Any, name: str, workers: Workers, kind: str
) -> None:
    queue = push(db, name, *[job("note", "x")] * 8)
    given = {"app": ["--app", "shop:app"], "exec": [name, "--exec", 'echo "x $PPID" >> notes']}
    parent = workers.start(*given[kind], "--processes", "2")
    wait_until(lambda: queue.stats(db).total_completed == 8 and len(workers.pids) == 2)
    assert f"queues {name}; jobs " in workers.log
    assert "; processes 2\n" in workers.log
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(MAX_WAIT) == 0
    assert not [pid for pid in workers.pids if is_alive(pid)]
    assert "\n8 done, 0 failed\n" in workers.log
    assert workers.log.count("done, attempt 1") == 8


def test_a_process_that_dies_is_replaced_and_the_log_says_why(
    db: Any, name: str, workers: Workers
) -> None:
    queue = push(db, name, job("die"))
    parent = workers.start("--app", "shop:app", "--processes", "1", "--lease", "100ms")
    queue.configure(db, max_attempts=1)
    wait_until(lambda: "died: exit code 7; another one starts in 1 s" in workers.log)
    wait_until(lambda: len(workers.pids) == 2)
    os.kill(workers.pids[-1], signal.SIGKILL)
    wait_until(lambda: "died: SIGKILL; another one starts in 2 s" in workers.log)
    wait_until(lambda: len(workers.pids) == 3)
    push(db, name, job("note", "alive"))
    wait_until(lambda: workers.notes == [["alive", str(workers.pids[-1])]])
    parent.send_signal(signal.SIGINT)
    assert parent.wait(MAX_WAIT) == 0


def test_a_function_that_hangs_in_a_thread_of_a_coroutine_does_not_hold_up_the_end(
    db: Any, name: str, workers: Workers
) -> None:
    push(db, name, job("hang in a thread"))
    parent = workers.start("--app", "shop:app", "--drain", "--processes", "1")
    assert parent.wait(MAX_WAIT) == 1
    assert "0 done, 1 failed" in workers.log


@pytest.mark.parametrize(
    ("number", "processes"), [(signal.SIGINT, ()), (signal.SIGTERM, ("--processes", "2"))]
)
def test_a_second_signal_kills_commands(
    db: Any, name: str, workers: Workers, fdbq: Shell, number: int, processes: tuple[str, ...]
) -> None:
    push(db, name, 1)
    script = "echo $$ > pid; mv pid command; sleep 3600; true"
    parent = workers.start(name, "--exec", script, "--grace", "1h", *processes)
    command = fdbq.path / "command"
    wait_until(command.exists)
    parent.send_signal(number)
    wait_until(lambda: "stopping; waiting for" in workers.log)
    assert is_alive(int(command.read_text()))
    parent.send_signal(number)
    assert parent.wait(MAX_WAIT) in (-number, 128 + number)
    wait_until(lambda: not is_alive(int(command.read_text())))


def test_processes_end_when_their_parent_was_killed(db: Any, name: str, workers: Workers) -> None:
    queue = push(db, name, "hang")
    parent = workers.start(name, "shop:handler", "--processes", "2", "--grace", "100ms")
    wait_until(lambda: len(workers.notes) == 1)
    parent.kill()
    wait_until(lambda: not any(map(is_alive, workers.pids)))
    assert [info.attempts for info in queue.items(db, state="ready")] == [0]


def test_a_process_with_a_job_that_hangs_is_replaced(db: Any, name: str, workers: Workers) -> None:
    queue = push(db, name, job("hang"))
    workers.start("--app", "shop:app", "--processes", "1", "--grace", "100ms")
    wait_until(lambda: len(workers.pids) == 2)
    push(db, name, job("note", "next"))
    wait_until(lambda: ["next", str(workers.pids[1])] in workers.notes)
    assert "a job hangs" in workers.log
    assert not is_alive(workers.pids[0])
    assert queue.stats(db).dead == 1


def test_a_process_ends_after_a_number_of_jobs_or_with_too_much_memory(
    db: Any, name: str, workers: Workers
) -> None:
    queue = push(db, name, *"abcdefghij")
    for limit, words in (
        (("--max-jobs", "2"), "jobs have ended, of at most 2"),
        (("--max-memory", "1M"), r"its memory has grown to [\d,]+ bytes, of at most 1,048,576"),
    ):
        assert workers.start(name, "shop:handler", *limit, "--quiet").wait(MAX_WAIT) == 0
        assert re.search(words, workers.log)
    done = len(workers.notes)
    assert [info.attempts for info in queue.items(db, state="ready")] == [0] * (10 - done)
    limit = ("--processes", "1", "--max-jobs", "3", "--drain", "--quiet")
    assert workers.start(name, "shop:handler", *limit).wait(MAX_WAIT) == 0
    assert f"\n{10 - done} done, 0 failed\n" in workers.log
    assert [value for value, _ in workers.notes] == [*"abcdefghij"]


def test_a_command_that_outlasts_the_grace_period_is_killed_and_its_job_goes_back(
    db: Any, name: str, workers: Workers, fdbq: Shell
) -> None:
    queue = push(db, name, "deaf", "quick")
    script = 'read v; echo $$ >> pids; if [ "$v" = \'"deaf"\' ]; then trap "" TERM; fi; '
    script += "while true; do sleep 1; done"
    parent = workers.start(name, "--exec", script, "--concurrency", "2", "--grace", "200ms")
    pids = fdbq.path / "pids"
    wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(MAX_WAIT) == 0
    assert [info.attempts for info in queue.items(db, state="ready")] == [0, 0]
    assert queue.stats(db).total_failed == 0
    assert not [pid for pid in pids.read_text().split() if is_alive(int(pid))]


def counts(port: int) -> dict[tuple[str, str], float]:
    """Return how many jobs the metrics count, by the name of the job and the outcome."""
    try:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60).text
    except httpx.TransportError:  # it does not listen yet
        return {}
    lines = re.findall(r'fdbqueue_jobs_total{job="(.+?)",outcome="(.+?)",queue=".+?"} (.+)', text)
    return {(job, outcome): float(number) for job, outcome, number in lines}


def test_one_port_serves_the_metrics_of_all_processes(
    fdbq: Shell, workers: Workers, db: Any, name: str
) -> None:
    port = free_port()
    arguments = ("--app", "shop:app", "--processes", "2", "--metrics-port", f"0.0.0.0:{port}")
    push(db, name, job("meet", "a", "b"), job("meet", "b", "a"), job("fail"))
    process = workers.start(*arguments, "--concurrency", "1")
    counted = {("meet", "done"): 2, ("fail", "dead"): 1}
    wait_until(lambda: counts(port) == counted)  # a meeting needs both processes
    taken = fdbq("work", *arguments)
    assert (taken.returncode, taken.stdout) == (2, "")
    assert f"cannot listen on 0.0.0.0, port {port}: Address already in use" in taken.stderr

    # The process that replaces another one continues its numbers.
    os.kill(workers.pids[0], signal.SIGKILL)
    wait_until(lambda: len(workers.pids) == 3)
    push(db, name, job("meet", "c", "d"), job("meet", "d", "c"))
    wait_until(lambda: counts(port) == {**counted, ("meet", "done"): 4})
    process.send_signal(signal.SIGTERM)
    assert process.wait(MAX_WAIT) == 0
