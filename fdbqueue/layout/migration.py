"""Rows from elsewhere: of layouts 4 and 5, which are migrated, and of a file, which are checked."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from fdb import tuple as fdb_tuple
from fdb.subspace_impl import Subspace

from fdbqueue.errors import LayoutVersionMismatch, UndecodableQueue
from fdbqueue.layout.batches import decode_batch, decode_counts, memberships_of
from fdbqueue.layout.key_table import Space
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.names import decode_subspace, restored_subspace
from fdbqueue.layout.priorities import SMALL_PRIORITIES, Priorities
from fdbqueue.layout.schedules import decode_schedule
from fdbqueue.layout.steps import decode_signal, decode_step
from fdbqueue.layout.values import (
    LAYOUT_VERSION,
    OLDEST_LAYOUT,
    UNDECODABLE,
    decode_attempt,
    decode_claim,
    decode_count,
    decode_expiry,
    decode_holder,
    decode_lease,
    decode_level,
    decode_metadata,
    decode_options,
    encode_count,
    encode_level,
    encode_tallies,
    header_of,
)
from fdbqueue.types import Transaction

_NONE = type(None)
_MAX_KEY = 10_000 - len(restored_subspace(bytes(16)).key())  # bytes, below the longest prefix
_MAX_VALUE = 100_000  # bytes


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
    if not OLDEST_LAYOUT <= version < LAYOUT_VERSION:
        raise LayoutVersionMismatch(version, LAYOUT_VERSION)
    taken = _migrate_levels(tr, layout) if kind == "priority" else 0
    _migrate_totals(tr, layout, taken, is_paused=bool(options[-1]))
    if version == OLDEST_LAYOUT:
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


class RowCheck:
    """The check of the rows of one queue, in order. Keys are without the prefix of the queue.

    It accepts the rows of this layout and of those that can be migrated to it. A row is refused if
    no client of a queue can have written it: clients could not read it.

    >>> check = RowCheck()
    >>> check.problem(b"", b"")
    'its key does not follow the one before'
    >>> check.problem(fdb_tuple.pack((6, "source")), b"") is None
    True
    """

    def __init__(self) -> None:
        self._last = b""
        layout = self._layout = Layout(decode_subspace(b""))
        self._ranges = layout.known_ranges()
        self._begins = [begin for begin, _ in self._ranges]
        self._lasting = layout.lasting_ranges()
        timer, position = layout.unpack_timer_key, layout.unpack_attempt_key
        dated = layout.unpack_dated_key
        self._decoders: list[tuple[bytes, Callable[[bytes, bytes], object]]] = [
            (layout.items, lambda key, value: _check_item(value)),
            (layout.delayed, lambda key, value: _check_parked(value, int)),
            (layout.dead, lambda key, value: _check_parked(value, int, int, (str, _NONE))),
            (layout.done, lambda key, value: _check_done(value)),
            (layout.claims, lambda key, value: _check_item(decode_claim(value).value)),
            (layout.leases, lambda key, value: (timer(layout.leases, key), decode_lease(value))),
            (layout.dues, lambda key, value: (timer(layout.dues, key), decode_expiry(value))),
            (layout.expiries, lambda key, value: timer(layout.expiries, key)),
            (layout.done_times, lambda key, value: timer(layout.done_times, key)),
            (layout.ids, _check_position),
            (layout.ids_parked, _check_position),
            (layout.unique_keys, lambda key, value: decode_holder(value)),
            (
                layout.unique_ends,
                lambda key, value: (dated(layout.unique_ends, key), decode_holder(value)),
            ),
            (layout.moved, _check_position),
            (layout.attempts, lambda key, value: (position(key), decode_attempt(value))),
            (layout.schedules, lambda key, value: decode_schedule(value)),
            (layout.steps, lambda key, value: decode_step(value)),
            (layout.batches, lambda key, value: decode_batch(value)),
            (layout.followers, lambda key, value: memberships_of(value)),
            (layout.batch_counts, lambda key, value: decode_counts(value)),
            (layout.signals, lambda key, value: decode_signal(value)),
            (layout.signal_ends, lambda key, value: decode_signal(value)),
        ]

    def problem(self, key: bytes, value: bytes) -> str | None:
        """Return what is wrong with the next row; `None` if a queue may have it."""
        if not self._last < key:
            return "its key does not follow the one before"
        self._last = key
        if len(key) > _MAX_KEY or len(value) > _MAX_VALUE:
            return f"its key has over {_MAX_KEY:,} bytes, or its value over {_MAX_VALUE:,}"
        if not self._is_known(key):
            return f"no row of a queue has the key {key!r}"
        try:
            fdb_tuple.unpack(key)
            if key == self._layout.options:
                decode_options(value, OLDEST_LAYOUT)
            for prefix, decode in self._decoders:
                if key.startswith(prefix):
                    decode(key, value)
        except (LayoutVersionMismatch, UndecodableQueue) as error:
            return str(error)
        except UNDECODABLE as error:
            return f"the row with the key {key!r} cannot be read: {error}"
        return None

    def _is_known(self, key: bytes) -> bool:
        place = bisect_right(self._begins, key) - 1
        is_known = place >= 0 and key < self._ranges[place][1]
        return is_known and any(begin <= key < end for begin, end in self._lasting)


def _check_item(value: bytes) -> None:
    """Raise one of `UNDECODABLE` for the value of an item whose header cannot be read."""
    optional = [(kind, _NONE) for kind in (int, str, bytes, int, int, str, int, str, int)]
    _check_fields(
        header_of(value)[0], int, *optional, bool, int, bytes, bytes, bool, (int, float), int, int
    )


def _check_done(value: bytes) -> None:
    if len(decode_metadata(value)[0]) == 2:  # those that earlier releases stored
        _check_parked(value, int, int)
    else:
        _check_parked(value, int, int, str, (str, _NONE), int, str)


def _check_parked(value: bytes, *kinds: Any) -> None:
    metadata, item = decode_metadata(value)
    _check_fields(metadata, *kinds)
    _check_item(item)


def _check_position(_: bytes, value: bytes) -> None:
    fdb_tuple.unpack(value)


def _check_fields(fields: Sequence[Any], *kinds: Any) -> None:
    if [*map(isinstance, fields, kinds)] != [True] * len(kinds) or len(fields) != len(kinds):
        raise ValueError(f"{fields!r} are not its fields")
    if any(isinstance(field, int) and field < 0 for field in fields):
        raise ValueError(f"{fields!r} has a negative number")
