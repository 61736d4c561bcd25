"""Ctrl-C at any moment is raised, leaves no lock or file open, and affects nobody else.

Set FDBQ_INTERRUPTS=10000 to run that many by hand.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fdbqueue.embedded import Database
from fdbqueue.embedded.storage.storage import Storage
from fdbqueue.errors import StorageError
from tests.support.programs import python

INTERRUPTED = """
import gc, json, logging, os, random, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import fdbqueue

def descriptors():
    return len(os.listdir("/dev/fd"))

logging.disable()
before = descriptors()
path, seed, wanted = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
db, other = (fdbqueue.open(path, durability="os") for _ in range(2))
other.options.set_transaction_timeout(20_000)
jobs, others = (fdbqueue.PriorityQueue.named(db, name) for name in ("jobs", "others"))
elsewhere = fdbqueue.PriorityQueue.named(other, "jobs")
pool = ThreadPoolExecutor()
pushed = 0
is_over = False

def bystand():
    # Another queue object would be another line; this one is shared with the main thread.
    global pushed
    while not is_over:
        others.push(db, pushed)
        pushed += 1

def interrupt(*_):
    global left
    if left:
        left -= 1
        raise KeyboardInterrupt

kinds = [
    lambda: jobs.push(db, "value"),
    lambda: jobs.pop(db, wait=rng.choice([0, 0.001])),
    lambda: others.push(db, 0, 9),
    lambda: db.set(b"key", b"value"),
    lambda: (claim := jobs.claim(db)) and jobs.ack(db, claim),
    lambda: list(jobs.items(db, limit=200)),
    lambda: fdbqueue.open(path, durability="os").close(),
]
def work():
    while left:
        rng.choice(kinds)()

# In a function: Python 3.13 loses an interrupt that comes in a loop in an `except` clause.
def wait():
    while left:
        pass

bystander = pool.submit(bystand)
signal.signal(signal.SIGALRM, interrupt)
for _ in range(wanted):
    left = rng.choice([1, 2])
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0001, 0.01), rng.uniform(1e-5, 1e-3))
            work()
        except KeyboardInterrupt:
            wait()  # the second one comes here, or before, on the way out of the first
    except KeyboardInterrupt:
        pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    # The main thread is idle, outside of any call: whatever it left behind would stay.
    pool.submit(elsewhere.push, other, "from elsewhere").result(60)
    pool.submit(others.push, db, 0, 8).result(60)
is_over = True
bystander.result(60)
stored = others.counts(db).get(0, 0)
ok = fdbqueue.admin.check(db, others).ok and fdbqueue.admin.check(db, jobs).ok
db.close()
other.close()
for _ in range(1000):  # a client that leaves its line does so in a thread, which may be slow
    gc.collect()
    if descriptors() == before:
        break
    time.sleep(0.05)
print(json.dumps([ok, stored == pushed, descriptors() - before]))
"""


def test_an_interrupted_main_thread_leaves_no_locks_or_transactions(
    tmp_path: Path, rng: random.Random
) -> None:
    interrupts = int(os.environ.get("FDBQ_INTERRUPTS", "150"))
    done = python(INTERRUPTED, tmp_path / "db", rng.randrange(2**32), interrupts)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # Python prints an interrupt in a finalizer, and forgets it
    assert json.loads(done.stdout) == [True, True, 0]


def test_a_signal_handler_that_interrupts_a_commit_cannot_commit_and_undoes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Storage._write
    handlers: list[Callable[[], object]] = []

    def interrupted_write(*arguments: Any) -> int:
        version = write(*arguments)
        if handlers:
            handlers.pop()()
        return version

    monkeypatch.setattr(Storage, "_write", interrupted_write)
    with Database(tmp_path / "db", "os") as db, Database(tmp_path / "other", "os") as other:

        def commit() -> None:
            for each in (db, other):
                with pytest.raises(StorageError, match="a signal handler cannot commit"):
                    each[b"k"] = b"handler"

        handlers.append(commit)
        db[b"k"] = b"v"
        handlers.append(Database(tmp_path / "third", "os").close)  # as a finalizer does
        db[b"l"] = b"v"
        assert (db[b"k"], db[b"l"]) == (b"v", b"v")
        other[b"k"] = b"later"
        assert other[b"k"] == b"later"


def test_an_interrupt_right_after_a_commit_does_not_end_the_snapshot_of_another_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections are used again, by another thread perhaps before the interrupt is handled."""
    with Database(tmp_path / "db", "os") as db:
        others = []

        def interrupt() -> None:
            monkeypatch.undo()
            others.append(db.create_transaction())
            others[0][b"k"].wait()
            raise KeyboardInterrupt

        monkeypatch.setattr(db.storage.lock, "tell_of_commit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            db[b"k"] = b"v"
        db[b"k"] = b"later"
        assert others[0][b"l"].value is None
        assert others[0][b"k"] == b"v"
