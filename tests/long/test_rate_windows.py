"""No window of time has more starts than a rate allows, however many clients claim and pop."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from functools import partial
from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue, admin
from tests.support.threads import in_threads
from tests.support.waiting import MAX_WAIT


@pytest.mark.parametrize("of", ["queue", "groups"])
def test_no_window_has_more_starts_than_the_rate(db: Any, name: str, of: str) -> None:
    """Eight threads claim and pop, and store their read versions."""
    jobs = PriorityQueue.named(db, f"{name}jobs")
    log = fdbqueue.Subspace((f"{name}log",))
    rates = {"a": (1, 0.05), "b": (5, 0.1)} if of == "groups" else {"a": (10, 0.2)}
    for group, rate in rates.items():
        jobs.set_group(db, group, rate=rate) if of == "groups" else jobs.configure(db, rate=rate)
    groups = random.choices([*rates], k=120)
    jobs.push_many(db, range(120), groups=groups)

    @fdbqueue.transactional
    def take(tr: Any, n: int, is_claim: bool) -> None:
        taken = jobs.claim(tr, n=n, lease=600) if is_claim else jobs.pop_many(tr, n)
        for item in getattr(taken, "items", taken) or ():
            key = log.pack((groups[item.value], item.value))
            tr[key] = tr.get_read_version().wait().to_bytes(8, "big")

    def work(seed: int) -> None:
        rng = random.Random(seed)
        deadline = time.monotonic() + MAX_WAIT
        while jobs.stats(db).ready and time.monotonic() < deadline:
            take(db, rng.choice([1, 1, 3]), rng.random() < 0.5)

    in_threads(partial(work, seed) for seed in range(8))
    starts: dict[str, list[int]] = defaultdict(list)
    for row in db[log.range()]:
        starts[log.unpack(row.key)[0]].append(int.from_bytes(row.value, "big"))
    del db[log.range()]
    assert sum(map(len, starts.values())) == 120
    for group, (n, period) in rates.items():
        versions = sorted(starts[group])
        for first, last in zip(versions, versions[n:]):
            assert last - first >= period * 1_000_000
    assert admin.check(db, jobs).problems == ()
