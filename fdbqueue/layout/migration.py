"""The migration of a queue from layout 4, which wrote more keys for each item."""

from __future__ import annotations

from collections import Counter

from fdb import tuple as fdb_tuple

from fdbqueue.errors import LayoutVersionMismatch
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.priorities import SMALL_PRIORITIES, Priorities
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
    levels = [*map(Priorities(layout, int).level, SMALL_PRIORITIES)]
    counters = [layout.counter_key(level.prefix) for level in levels]
    stored = {row.key: row.value for row in tr.get_range(counters[0], counters[-1] + b"\x00")}
    for level, counter in zip(levels, counters):
        if level.counter is not None and counter in stored:
            tr.add(level.counter, encode_level(decode_count(stored[counter]), 0))
            tr.clear(counter)


def _migrate_slots(tr: Transaction, layout: Layout) -> None:
    slots = layout.range_of(layout.slots)
    held = Counter(
        layout.slot_counter(row.key[len(layout.slots) :]) for row in tr.get_range(*slots)
    )
    tr.clear_range(*slots)
    for counter, n in held.items():
        tr[counter] = encode_count(n)
