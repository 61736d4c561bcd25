"""The states of a queue's items by a full scan of its rows, without the library's views."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from typing import Any

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.layout.values import decode_metadata
from fdbqueue.queue.base import store_of
from fdbqueue.types import QueueStats
from tests.support.keys import layout_of
from tests.support.leases import look_again


@dataclasses.dataclass
class Scan:
    """The ids of the items in each state, and the numbers of ready items by priority."""

    ids: dict[str, set[str]]
    priorities: Counter[Any]


def scan(tr: Any, queue: Any) -> Scan:
    """Read all rows of a queue, and return which state each item is in."""
    layout, store = layout_of(queue), store_of(queue)
    prefixes = {
        **{"ready": layout.items, "delayed": layout.delayed, "claimed": layout.claims},
        **{"dead": layout.dead, "done": layout.done},
    }
    found = Scan({state: set() for state in prefixes}, Counter())
    for state, prefix in prefixes.items():
        for row in tr[slice(*layout.range_of(prefix))]:
            key = layout.items + row.key[len(prefix) :]
            value = row.value if state == "ready" else decode_metadata(row.value)[1]
            found.ids[state].add(store.codec.id_of(store.levels.item(key, value)))
            if state == "ready" and isinstance(queue, PriorityQueue):
                found.priorities[store.levels.level_of(key).priority] += 1
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
            if store_of(queue).options.shards > 1:  # groups of several shards take turns by chance
                assert first is None or first.priority == min(found.priorities)
            else:
                assert first is None or first.id == listed[0]
        assert_adds_up(stats)
        return stats

    found: QueueStats = body(db)
    return found
