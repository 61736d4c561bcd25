"""A worker in a thread of its own goes on after the main thread has ended."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from fdbqueue import PriorityQueue

PROGRAM = """
import asyncio, sys, threading, time, fdbqueue
url, handler, *names = sys.argv[1:]
db = fdbqueue.open(url)

async def coroutine(item):
    await asyncio.sleep(0)

handlers = {
    "plain": lambda item: None,
    "transaction": lambda tr, item: None,
    "coroutine": coroutine,
}

def run(name):
    while threading.main_thread().is_alive():
        time.sleep(0.001)
    queue = fdbqueue.existing_queue(db, name)
    fdbqueue.Worker(db, queue, handlers[handler], concurrency=2).run(drain=True)

for name in names:
    threading.Thread(target=run, args=(name,)).start()
"""


@pytest.mark.parametrize("handler", ["plain", "transaction", "coroutine"])
def test_workers_in_threads_run_after_the_main_thread_has_ended(
    db: Any, shared_url: str, name: str, handler: str
) -> None:
    queues = [PriorityQueue.named(db, f"{name}{n}") for n in range(2)]
    for queue in queues:
        queue.push_many(db, range(4))
    arguments = [shared_url, handler, *(f"{name}{n}" for n in range(2))]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert [queue.stats(db).total_completed for queue in queues] == [4, 4]
