"""A worker in a thread of its own goes on after the main thread has ended."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from fdbqueue import PriorityQueue

PROGRAM = """
import asyncio, sys, threading, fdbqueue
db = fdbqueue.open(sys.argv[1])

async def coroutine(item):
    await asyncio.sleep(0)

handlers = [lambda item: None, lambda tr, item: None, coroutine]

def run(name, handler):
    threading.main_thread().join()
    queue = fdbqueue.existing_queue(db, name)
    fdbqueue.Worker(db, queue, handler, concurrency=2).run(drain=True)

for each in zip(sys.argv[2:], handlers):
    threading.Thread(target=run, args=each).start()
"""


def test_workers_in_threads_run_after_the_main_thread_has_ended(
    db: Any, shared_url: str, name: str
) -> None:
    queues = [PriorityQueue.named(db, f"{name}{n}") for n in range(3)]
    for queue in queues:
        queue.push_many(db, range(4))
    names = [f"{name}{n}" for n in range(3)]
    command = [sys.executable, "-c", PROGRAM, shared_url, *names]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stderr, done.returncode) == ("", 0)
    assert [queue.stats(db).total_completed for queue in queues] == [4, 4, 4]
