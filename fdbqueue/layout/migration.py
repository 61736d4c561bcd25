"""The migration of a queue from layouts 4 and 5, which counted fewer things."""

from __future__ import annotations

from collections import Counter

from fdb import tuple as fdb_tuple
from fdb.subspace_impl import Subspace

from fdbqueue.errors import LayoutVersionMismatch
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.priorities import SMALL_PRIORITIES, Priorities
from fdbqueue.layout.spaces import Space
from fdbqueue.layout.values import (
    LAYOUT_VERSION,
    decode_count,
    decode_level,
    encode_count,
    encode_level,
    encode_tallies,
)
from fdbqueue.types import Transaction

__all__ = ["migrate"]

_OLDEST = 4


def migrate(tr: Transaction, layout: Layout) -> bool:
    """Convert a queue of layout 4 or 5 to this layout; return false if there is nothing to do.

    - Layout 4 counted the ready items of every priority alike. Now the counters of small integers
      also count the items popped and claimed, and have other keys. Layout 5 counted these two
      together.
    - Layout 4 stored a key for each slot that a claimed item held. Now a counter has their number.
      The claims keep the names of their slots.
    - Both had no numbers of delayed, claimed and dead items, which are counted now, and no tallies.
      What they did not count begins at zero. Claims acknowledged and items popped were one number.

    Raises:
        LayoutVersionMismatch: The queue has an older layout, or a newer one.
    """
    stored = tr[layout.options].value
    if stored is None:
        return False
    version, kind, *options = fdb_tuple.unpack(stored)
    if version == LAYOUT_VERSION:
        return False
    if not _OLDEST <= version < LAYOUT_VERSION:
        raise LayoutVersionMismatch(version, LAYOUT_VERSION)
    taken = _migrate_levels(tr, layout) if kind == "priority" else 0
    _migrate_totals(tr, layout, taken, is_paused=bool(options[-1]))
    if version == _OLDEST:
        _migrate_slots(tr, layout)
    tr[layout.options] = fdb_tuple.pack((LAYOUT_VERSION, kind, *options))
    return True


def _migrate_levels(tr: Transaction, layout: Layout) -> int:
    """Convert the counters of small priorities; return how many items were taken out of them."""
    taken = 0
    for row in list(tr.get_range(*layout.range_of(layout.level_counts))):
        ready, taken_from_level, _ = decode_level(row.value)
        taken += taken_from_level
        tr[row.key] = encode_level(ready)
    levels = [*map(Priorities(layout, int).level, SMALL_PRIORITIES)]
    counters = [layout.counter_key(level.prefix) for level in levels]
    stored = {row.key: row.value for row in tr.get_range(counters[0], counters[-1] + b"\x00")}
    for level, counter in zip(levels, counters):
        if level.counter is not None and counter in stored:
            tr[level.counter] = encode_level(decode_count(stored[counter]))
            tr.clear(counter)
    return taken


def _migrate_totals(tr: Transaction, layout: Layout, taken: int, is_paused: bool) -> None:
    """Count the delayed, claimed and dead items, and convert the totals to tallies."""
    totals: Subspace = layout.subspace[Space.TOTALS]
    # Items added; taken out; in both, but neither new nor gone; removed; expired; dead.
    keys = [totals.pack((number,)) for number in (0, 1, 2, 3, 5, 6)]
    added, removed_all, moved, removed, expired, died = (
        decode_count(tr[key].value) for key in keys
    )
    results = tr.get_range(*layout.range_of(layout.results))
    staged = sum(1 for _ in layout.staged_items(results))
    claimed = _number(tr, layout.leases) + staged
    delayed, dead = _number(tr, layout.dues), _number(tr, layout.dead)
    ready = added - taken - removed_all - delayed - staged
    completed = added - moved - ready - delayed - claimed - dead - expired - removed
    for key in keys[1:]:
        tr.clear(key)
    tr[layout.tallies] = encode_tallies(
        popped=completed,
        claimed=claimed,
        delayed=delayed,
        dead=dead,
        died=max(died, dead),
        expired=expired,
        removed=removed,
        moved=moved,
        expiring=_number(tr, layout.expiries),
        paused=int(is_paused),
    )


def _number(tr: Transaction, prefix: bytes) -> int:
    return sum(1 for _ in tr.get_range(*Layout.range_of(prefix)))


def _migrate_slots(tr: Transaction, layout: Layout) -> None:
    slots = layout.range_of(layout.slots)
    held = Counter(
        layout.slot_counter(row.key[len(layout.slots) :]) for row in tr.get_range(*slots)
    )
    tr.clear_range(*slots)
    for counter, n in held.items():
        tr[counter] = encode_count(n)
