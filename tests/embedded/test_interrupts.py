"""Ctrl-C at any moment leaves no lock behind and affects no other thread or process.

Set FDBQ_INTERRUPTS=10000 to run that many by hand.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

INTERRUPTED = """
import itertools, json, random, signal, sys, threading
from concurrent.futures import ThreadPoolExecutor
import fdbqueue

path, seed, wanted = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
db, other = (fdbqueue.open(path, durability="os") for _ in range(2))
other.options.set_transaction_timeout(20_000)
jobs, others = (fdbqueue.PriorityQueue.named(db, name) for name in ("jobs", "others"))
elsewhere = fdbqueue.PriorityQueue.named(other, "jobs")
pool = ThreadPoolExecutor()
is_over = False
pushed = [0] * 2

def bystander(number):
    # Another queue object would be another line; these share one with the main thread.
    while not is_over:
        others.push(db, [number, pushed[number]], number)
        pushed[number] += 1

def interrupt(*_):
    global left
    if left:
        left -= 1
        raise KeyboardInterrupt

def work():
    kinds = [
        lambda: jobs.push(db, "value"),
        lambda: jobs.pop(db),
        lambda: others.push(db, [9, 0], 9),
        lambda: db.set(b"key", b"value"),
        lambda: db.add(b"key", b"value"),
        lambda: jobs.pop(db, wait=0.001),
        lambda: (claim := jobs.claim(db)) and jobs.ack(db, claim),
        lambda: list(jobs.items(db, limit=200)),
        lambda: fdbqueue.open(path, durability="os").close(),
    ]
    while left:  # one within a finalizer is counted, but does not come out of it
        rng.choice(kinds)()

threads = [threading.Thread(target=bystander, args=[number]) for number in range(2)]
for thread in threads:
    thread.start()
signal.signal(signal.SIGALRM, interrupt)
for _ in range(wanted):
    left = rng.choice([1, 2])
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0001, 0.01), rng.uniform(1e-5, 1e-3))
            work()
        except KeyboardInterrupt:
            while left:  # the second one comes here, or before, on the way out of the first
                pass
    except KeyboardInterrupt:
        pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    # The main thread is idle, outside of any call: whatever it left behind would stay.
    pool.submit(elsewhere.push, other, "from elsewhere").result(60)
    pool.submit(others.push, db, [8, 0], 8).result(60)
is_over = True
for thread in threads:
    thread.join(60)
stuck = sum(thread.is_alive() for thread in threads)
stored = [others.counts(db).get(number, 0) for number in range(2)]
ok = fdbqueue.check(db, others).ok and fdbqueue.check(db, jobs).ok
db.close()
print(json.dumps({"stuck": stuck, "stored": stored, "pushed": pushed, "ok": ok}))
"""


def test_an_interrupted_main_thread_leaves_no_locks_or_transactions(
    tmp_path: Path, rng: random.Random
) -> None:
    interrupts = int(os.environ.get("FDBQ_INTERRUPTS", "150"))
    arguments = [str(tmp_path / "db"), str(rng.randrange(2**32)), str(interrupts)]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *arguments],
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr
    # Python prints an interrupt within a finalizer, because it cannot raise it.
    if any(line.startswith("FDBError") for line in done.stderr.splitlines()):
        pytest.fail(done.stderr)
    report = json.loads(done.stdout)
    assert (report["stuck"], report["ok"]) == (0, True)
    assert report["stored"] == report["pushed"]
