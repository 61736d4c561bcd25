"""Kill workers at random while they do jobs, and compare all views with a scan all the time.

    python -m tests.long.hostile.killed_workers DATABASE [--jobs 20000] [--checks 200] [--seed N]

Jobs fail, are delayed and expire. Each job that is done adds one to a counter in the transaction
that acknowledges it. In the end every job is accounted for.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import time
from typing import Any

import fdbqueue
from fdbqueue import PriorityQueue
from tests.support.scan import assert_adds_up, assert_views_agree

WORKERS = 8
_PUSH = 25  # jobs of one transaction
BACKLOG = 1_500
"""How many unfinished jobs there are at most, so that a scan fits into one transaction."""

WORKER = """
import random, sys, time, fdbqueue
url, name, counter = sys.argv[1:]
db = fdbqueue.open(url)
def handle(tr, item):
    time.sleep(random.random() / 20)
    if random.random() < 0.1:
        raise ValueError("a job that fails")
    tr.add(counter.encode(), (1).to_bytes(8, "little"))
jobs = fdbqueue.PriorityQueue.existing(db, name)
fdbqueue.Worker(db, jobs, handle, concurrency=4, lease=2).run()
"""


def push(db: Any, queue: PriorityQueue, n: int, rng: random.Random) -> int:
    """Push about `n` jobs: most at once, some with a delay, some that expire; return the number."""
    delay = rng.choice([None, None, None, 0.2, 1.5])
    ttl = rng.choice([None, None, None, 0.05, 1.0])
    priorities = [rng.randrange(4) for _ in range(n)]
    return len(queue.push_many(db, range(n), priorities=priorities, delay=delay, ttl=ttl))


def run(url: str, jobs: int, checks: int, seed: int) -> None:
    rng = random.Random(seed)
    db = fdbqueue.open(url)
    name = f"killed-workers-{seed}"
    counter = f"{name}-done"
    queue = PriorityQueue.named(db, name, max_attempts=6, keep=5_000)
    pushed = push(db, queue, 100, rng)
    done = kills = 0
    each = jobs // checks

    def start() -> subprocess.Popen[bytes]:
        program = [sys.executable, "-c", WORKER, url, name, counter]
        return subprocess.Popen(program, stderr=subprocess.DEVNULL)

    workers = [start() for _ in range(WORKERS)]
    try:
        while pushed < jobs or queue.stats(db).unfinished:
            for _ in range(0, min(each, jobs - pushed), _PUSH):
                pushed += push(db, queue, min(_PUSH, jobs - pushed), rng)
            if rng.random() < 0.5:
                victim = rng.randrange(WORKERS)
                workers[victim].send_signal(signal.SIGKILL)
                workers[victim].wait()
                workers[victim] = start()
                kills += 1
            time.sleep(rng.random() / 2)
            stats = assert_views_agree(db, queue, rng)
            done += 1
            print(f"check {done}: {pushed:,} pushed, {kills} kills, {stats.unfinished} unfinished")
            while queue.stats(db).unfinished > BACKLOG:
                time.sleep(0.1)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    stats = assert_views_agree(db, queue)
    assert_adds_up(stats)
    counted = int.from_bytes(bytes(db[counter.encode()]), "little")
    assert stats.total_completed == counted, (stats, counted)
    assert stats.total_pushed == jobs == counted + stats.total_expired + stats.dead
    assert stats.total_failed == stats.total_retried + stats.total_died
    print(f"{done} checks, {kills} kills, {stats}")
    fdbqueue.admin.drop(db, name)
    del db[counter.encode()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--checks", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    given = parser.parse_args()
    print(f"--seed {given.seed}")
    run(given.database, given.jobs, given.checks, given.seed)


if __name__ == "__main__":
    main()
