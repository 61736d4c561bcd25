"""The states of a queue's items by a full scan of its rows, without the library's views."""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter
from typing import Any

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.layout.values import (
    decode_lease,
    decode_metadata,
    decode_options,
    header_of,
)
from fdbqueue.queue.base import store_of
from fdbqueue.types import QueueStats
from tests.support.keys import layout_of
from tests.support.leases import look_again

STATES = ("ready", "delayed", "claimed", "dead", "done")


@dataclasses.dataclass
class Scan:
    """The ids of the items in each state, and the number of expired items that are left out."""

    ids: dict[str, set[str]]
    priorities: Counter[Any]
    expired: int


def scan(tr: Any, queue: Any, swept_at: int | None = None) -> Scan:
    """Read all rows of a queue, and return which state each item is in.

    With `swept_at`, it is the state in which a sweep at this time leaves it.
    """
    layout, codec = layout_of(queue), store_of(queue).codec
    version, now = tr.get_read_version().wait(), swept_at or -math.inf
    options = decode_options(tr[layout.options].value)
    found = Scan({state: set() for state in STATES}, Counter(), 0)

    def add(state: str, position: bytes, value: bytes) -> None:
        key = layout.items + position
        expires = header_of(value)[0].expires
        if state == "ready" and expires is not None and expires <= now:
            found.expired += 1
            return
        found.ids[state].add(codec.id_of(store_of(queue).levels.item(key, value)))
        if state == "ready" and options.kind == "priority":
            found.priorities[layout.unpack_item_key(key)[0]] += 1

    def rows(prefix: bytes) -> list[tuple[bytes, bytes]]:
        return [(row.key[len(prefix) :], row.value) for row in tr[slice(*layout.range_of(prefix))]]

    for position, value in rows(layout.items):
        add("ready", position, value)
    for position, stored in rows(layout.delayed):
        (due, *_), value = decode_metadata(stored)
        add("delayed" if due > now else "ready", position, value)
    for position, stored in rows(layout.claims):
        (_, lease_end, attempts, _), value = decode_metadata(stored)
        timer = tr[layout.timer_key(layout.leases, lease_end, position)].value
        lease = decode_lease(timer or b"")
        is_over = lease_end <= version and (lease is None or lease.clock_end <= now)
        is_over &= header_of(value)[0].cancelled is None and swept_at is not None
        is_last = options.max_attempts is not None and attempts >= options.max_attempts
        add(("dead" if is_last else "ready") if is_over else "claimed", position, value)
    for position, stored in rows(layout.dead):
        add("dead", position, decode_metadata(stored)[1])
    for position, stored in rows(layout.done):
        add("done", position, decode_metadata(stored)[1])
    return found


def sample(rng: random.Random, ids: set[str]) -> list[str]:
    return rng.sample(sorted(ids), min(20, len(ids)))


def assert_adds_up(stats: QueueStats) -> None:
    there = stats.unfinished + stats.dead
    ended = stats.total_completed + stats.total_expired + stats.total_removed
    assert stats.total_pushed + stats.total_put_back == there + ended, stats


def assert_views_agree(db: Any, queue: Any, rng: random.Random | None = None) -> QueueStats:
    """Sweep, and compare all views of a queue with a scan; return its statistics.

    Single items are looked up, too: all of them, or 20 of each state that `rng` chooses.
    """
    look_again(queue)
    queue.is_empty(db)  # which sweeps

    @fdbqueue.transactional
    def body(tr: Any) -> QueueStats:
        reads = tr.snapshot
        found = scan(reads, queue)
        stats: QueueStats = queue.stats(reads)
        report = fdbqueue.admin.check(tr, queue)
        assert report.ok, report.problems
        for state, ids in found.ids.items():
            assert {info.id for info in queue.items(reads, state=state)} == ids, state
            assert getattr(stats, state) == len(ids) == getattr(report, state), (state, stats)
            some = sorted(ids) if rng is None else sample(rng, ids)
            assert {queue.state(reads, each) for each in some} <= {state}
        ready = found.ids["ready"]
        assert (queue.size(reads), queue.is_empty(reads)) == (len(ready), not ready)
        first = queue.peek(reads)
        assert (first is None) == (not ready)
        if isinstance(queue, PriorityQueue):
            listed = [item.id for item in queue.items(reads)]
            assert set(listed) == ready
            counts = queue.counts(reads)
            assert counts == stats.by_priority == dict(sorted(found.priorities.items()))
            assert first is None or first.id == listed[0]
        assert_adds_up(stats)
        return stats

    found: QueueStats = body(db)
    return found
