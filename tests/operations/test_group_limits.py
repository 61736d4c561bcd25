"""Many clients keep to the limits of groups, whatever becomes of their claims."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import fdbqueue
from fdbqueue import admin
from fdbqueue.errors import LeaseLost
from tests.support.waiting import MAX_WAIT

LIMITS = {"a": 1, "b": 2, "c": 3}


def work(db: Any, name: str, seed: int, done: list[int], left: threading.Event) -> None:
    """Claim items until all are done; acknowledge, return or forget each of them."""
    rng = random.Random(seed)
    jobs = fdbqueue.PriorityQueue.named(db, name)
    while not left.is_set():
        claim = jobs.claim(db, n=rng.choice([1, 1, 3]), lease=rng.choice([0.05, 30]), wait=0.1)
        for each in claim or ():
            fate = rng.random()
            if fate < 0.1:
                time.sleep(0.06)  # past a short lease
            with suppress(LeaseLost):
                if fate < 0.7:
                    jobs.ack(db, each)
                    done.append(each.item.value)
                elif fate < 0.85:
                    jobs.nack(db, each, delay=0)
                elif each.attempt < 5:
                    jobs.release(db, each)
                else:
                    jobs.ack(db, each)
                    done.append(each.item.value)


def test_no_group_exceeds_its_limit_and_none_is_stuck(db: Any, name: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    jobs = fdbqueue.PriorityQueue.named(db, f"{name}jobs")
    for group, limit in LIMITS.items():
        jobs.set_group(db, group, concurrency=limit)
    groups = random.Random(seed).choices(["a", "b", "c", "d", None], k=60)
    jobs.push_many(db, range(60), groups=groups)
    done: list[int] = []
    is_over = threading.Event()
    threads = [
        threading.Thread(target=work, args=(db, f"{name}jobs", seed + n, done, is_over))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + MAX_WAIT
    while jobs.stats(db).unfinished and time.monotonic() < deadline:
        claimed = Counter(info.group for info in jobs.items(db, state="claimed"))
        for group, limit in LIMITS.items():
            assert claimed[group] <= limit
    is_over.set()
    for thread in threads:
        thread.join(60)
    assert sorted(done) == list(range(60))
    assert admin.check(db, jobs).problems == ()
    assert all(group.claimed == 0 and group.held_by is None for group in jobs.groups(db))
