"""All views of a queue agree with a scan of its rows at random moments under load."""

from __future__ import annotations

import math
import random
import threading
import time
from typing import Any

from fdbqueue import PriorityQueue
from fdbqueue.errors import LeaseLost, WrongState
from tests.support.leases import come_due, lapse
from tests.support.scan import assert_views_agree


def work(db: Any, queue: PriorityQueue, seed: int, stop: threading.Event) -> None:
    """Do everything that clients do, at random, until `stop` is set."""
    rng = random.Random(seed)
    held: list[Any] = []
    popped: list[Any] = []
    while not stop.is_set():
        act = rng.randrange(12)
        try:
            if act < 4:
                delay = rng.choice([None, None, 0.01, 0.05])
                ttl = rng.choice([None, None, 0.02, 0.1])
                queue.push(db, act, rng.randrange(3), delay=delay, ttl=ttl)
            elif act < 7:
                if claim := queue.claim(db, n=rng.randrange(1, 4), lease=rng.choice([0.03, 30])):
                    held.append(claim)
            elif act < 10 and held:
                claim = held.pop(rng.randrange(len(held)))
                ends: list[Any] = [queue.ack, queue.release, queue.nack]
                end = rng.choice(ends)
                end(db, claim, **({"delay": 0.02} if end == queue.nack else {}))
            elif act == 10:
                popped += queue.pop_many(db, 2)
                if popped and rng.random() < 0.3:
                    queue.put_back(db, [popped.pop()])
            else:
                letters = [letter.id for letter in queue.items(db, state="dead")]
                if letters:
                    change = rng.choice([queue.retry, queue.remove])
                    change(db, rng.choice(letters))
                elif item := queue.peek(db):
                    queue.reprioritize(db, item, rng.randrange(3))
        except (LeaseLost, WrongState):  # another thread was faster
            pass


def test_all_views_agree_with_a_scan_at_random_moments_under_load(
    db: Any, name: str, rng: random.Random
) -> None:
    queue = PriorityQueue.named(db, name, max_attempts=2, keep=rng.choice([None, 5, 1000]))
    queue.push(db, "first")
    stop = threading.Event()
    seeds = [rng.randrange(2**32) for _ in range(4)]
    threads = [threading.Thread(target=work, args=(db, queue, seed, stop)) for seed in seeds]
    for thread in threads:
        thread.start()
    try:
        for _ in range(25):
            time.sleep(rng.random() / 50)
            assert_views_agree(db, PriorityQueue.named(db, name))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    lapse(db, queue, math.inf)
    come_due(db, queue)
    stats = assert_views_agree(db, queue)
    assert stats.total_pushed > 10
    popped = len(queue.pop_many(db, 100_000))
    after = assert_views_agree(db, queue)
    assert (
        popped + after.total_expired - stats.total_expired == stats.ready
    )  # some expire meanwhile
    assert after.unfinished == 0
