"""The migration of a queue from layout 4, which wrote more keys for each item."""

from __future__ import annotations

from collections import Counter

from fdb import tuple as fdb_tuple

from fdbqueue.errors import LayoutVersionMismatch
from fdbqueue.layout.keys import Layout, unpack_priority
from fdbqueue.layout.priorities import Priorities
from fdbqueue.layout.values import LAYOUT_VERSION, decode_count, encode_count, encode_level
from fdbqueue.types import Transaction

__all__ = ["migrate"]


def migrate(tr: Transaction, layout: Layout) -> bool:
    """Convert a queue of layout 4 to this layout; return false if there is nothing to do.

    - Layout 4 counted the waiting items of every priority alike, and all items taken together. Now
      the counters of small integers count both, and have other keys.
    - It stored a key for each slot that a claimed item held. Now a counter has their number. The
      claims keep the names of their slots.

    Raises:
        LayoutVersionMismatch: The queue has an older layout, or a newer one.
    """
    stored = tr[layout.options].value
    if stored is None:
        return False
    version, kind, *options = fdb_tuple.unpack(stored)
    if version == LAYOUT_VERSION:
        return False
    if version != LAYOUT_VERSION - 1:
        raise LayoutVersionMismatch(version, LAYOUT_VERSION)
    if kind == "priority":
        _migrate_counters(tr, layout)
    _migrate_slots(tr, layout)
    tr[layout.options] = fdb_tuple.pack((LAYOUT_VERSION, kind, *options))
    return True


def _migrate_counters(tr: Transaction, layout: Layout) -> None:
    priorities = Priorities(layout, int)
    for row in list(tr.get_range(*layout.range_of(layout.counts))):
        priority = unpack_priority(row.key[len(layout.counts) :])
        level = priorities.level_of_valid(priority) if isinstance(priority, int) else None
        if level is not None and level.counter is not None and level.counts_taken:
            tr.add(level.counter, encode_level(decode_count(row.value), 0))
            tr.clear(row.key)


def _migrate_slots(tr: Transaction, layout: Layout) -> None:
    slots = layout.range_of(layout.slots)
    held = Counter(
        layout.slot_counter(row.key[len(layout.slots) :]) for row in tr.get_range(*slots)
    )
    tr.clear_range(*slots)
    for counter, n in held.items():
        tr[counter] = encode_count(n)
