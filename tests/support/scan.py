"""The states of a queue's items by a full scan of its rows, without the library's views."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from itertools import chain
from typing import Any

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.database.clock import milliseconds
from fdbqueue.layout.values import (
    decode_claim,
    decode_lease,
    decode_metadata,
    decode_options,
    header_of,
)
from fdbqueue.queue.base import store_of
from fdbqueue.types import QueueStats
from tests.support.keys import layout_of

STATES = ("ready", "delayed", "claimed", "dead", "done")


@dataclasses.dataclass
class Scan:
    """The ids of the items in each state, and the number of expired items that no sweep deleted."""

    ids: dict[str, set[str]]
    priorities: Counter[Any]
    expired: int


def scan(tr: Any, queue: Any, now: int) -> Scan:
    """Read all rows of a queue, and decide for each item which state it is in at a time."""
    layout, codec = layout_of(queue), store_of(queue).codec
    version = tr.get_read_version().wait()
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
        item = decode_claim(stored)
        timer = tr[layout.timer_key(layout.leases, item.lease_end, position)].value
        lease = decode_lease(timer or b"")
        is_over = item.lease_end <= version and (lease is None or lease.clock_end <= now)
        is_over &= header_of(item.value)[0].cancelled is None
        is_last = options.max_attempts is not None and item.delivery_count >= options.max_attempts
        add(("dead" if is_last else "ready") if is_over else "claimed", position, item.value)
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
    """Compare all views of a queue with a scan, at one read version; return its statistics.

    Single items are looked up, too: all of them, or 20 of each state that `rng` chooses.
    """

    @fdbqueue.transactional
    def body(tr: Any) -> QueueStats:
        reads = tr.snapshot
        # A timer may be over between two looks at the clock: look again if one was.
        while True:
            before = scan(reads, queue, milliseconds())
            stats: QueueStats = queue.stats(reads)
            items = {state: [*queue.items(reads, state=state)] for state in STATES}
            numbers = queue.size(reads), queue.is_empty(reads)
            report = fdbqueue.admin.check(tr, queue)
            shown = None
            if isinstance(queue, PriorityQueue):
                shown = [item.id for item in queue.items(reads)], queue.counts(reads)
            first = queue.peek(reads)
            single = [*chain.from_iterable(before.ids.values())]
            if rng is not None:
                single = [*chain.from_iterable(sample(rng, ids) for ids in before.ids.values())]
            states = {each: queue.state(reads, each) for each in single}
            after = scan(reads, queue, milliseconds())
            if before == after:
                break
        assert report.ok, report.problems
        for state, ids in before.ids.items():
            assert {info.id for info in items[state]} == ids, state
            assert getattr(stats, state) == len(ids) == getattr(report, state), (state, stats)
            assert {states[each] for each in ids & states.keys()} <= {state}
        assert numbers == (len(before.ids["ready"]), not before.ids["ready"])
        assert (first is None) == (not before.ids["ready"])
        if shown is not None:
            listed, counts = shown
            assert set(listed) == before.ids["ready"]
            assert counts == stats.by_priority == dict(sorted(before.priorities.items()))
            assert first is None or first.id == listed[0]
        assert_adds_up(stats)
        return stats

    found: QueueStats = body(db)
    return found
