"""A signal ends an idle worker of the main thread, whatever that does at the moment."""

from __future__ import annotations

import random

import pytest

from tests.support.programs import python

INTERRUPTED = """
import os, random, signal, sys
import fdbqueue
from fdbqueue.coordination import sans_io, waiting

url, seed, by, rounds = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
rng = random.Random(seed)
waiting.MAX_SLEEP = 10_000  # only the signal ends the sleep
sans_io._SIGNALS = 0.02  # a signal that meets the thread as it falls asleep is handled after this
sleep_on = sans_io.sleep_on

def interrupt_soon(seconds):
    signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.00001, seconds))

def sleep(*arguments):
    interrupt_soon(0.001)  # from now on the worker has handlers
    return sleep_on(*arguments)

def interrupt(*_):
    if by == "stop":
        worker.stop()
    else:
        os.kill(os.getpid(), getattr(signal, by))

db = fdbqueue.open(url)
queue = fdbqueue.PriorityQueue(fdbqueue.Subspace(("interrupted", os.getpid())))
signal.signal(signal.SIGALRM, interrupt)
if by != "stop":
    sans_io.sleep_on = sleep
for _ in range(rounds):
    worker = fdbqueue.Worker(db, queue, print)
    if by == "stop":
        interrupt_soon(0.005)
    worker.run()
db.clear_range_startswith(queue.subspace.key())
print("ended")
"""


@pytest.mark.parametrize("by", ["stop", "SIGTERM", "SIGINT"])
def test_a_signal_at_any_moment_ends_an_idle_worker(url: str, by: str, rng: random.Random) -> None:
    """The handler interrupts the main thread while it runs the worker, asleep or about to be."""
    done = python(INTERRUPTED, url, rng.randrange(2**32), by, 100)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
