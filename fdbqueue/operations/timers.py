"""Timers, and the transitions of items whose timers are over (`sweep.py` finds them)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from fdbqueue.layout.values import Lease, decode_lease
from fdbqueue.operations.waking import wake
from fdbqueue.types import KeyValue, ReadTransaction, Transaction

if TYPE_CHECKING:
    from fdbqueue.layout.items import ItemRow
    from fdbqueue.layout.keys import Layout

VERSIONS = 1_000_000
"""Approximate read versions per second."""

LEASE_OVER = "its lease ran out"

DIED_ALONE = "its worker died, or was stopped, while it ran alone in its worker"


NO_LEASE = Lease(0, 0)
"""The lease of a timer without a value."""


def due_after(now: int, delay: float | None) -> int | None:
    """Return the time after a delay in seconds; `None` for at once."""
    return now + math.ceil(delay * 1000) if delay else None


def has_expired(expires: int | None, now: int) -> bool:
    """Return whether an item has expired; `None` or 0 means never."""
    return 0 < (expires or 0) <= now


def begin_lease(tr: ReadTransaction, layout: Layout, found: ItemRow) -> Callable[[], Lease | None]:
    """Start to read the lease of an item, or `None`."""
    if not found.token:
        return lambda: None
    timer = tr[layout.timer_key(layout.leases, found.lease_end, layout.position(found.key))]
    return lambda: decode_lease(timer.value)


def clear_timers(tr: Transaction, timers: list[KeyValue]) -> None:
    """Clear adjacent timers in one range, which leaves fewer tombstones.

    A timer that another client adds between them conflicts.
    """
    if len(timers) == 1:
        tr.clear(timers[0].key)
    elif timers:
        begin, end = timers[0].key, timers[-1].key + b"\x00"
        tr.add_read_conflict_range(begin, end)
        tr.clear_range(begin, end)


def timer_over(tr: ReadTransaction, layout: Layout, row: ItemRow, now: int) -> bytes | None:
    """Return the key of an item's timer if it is over."""
    timer, expires = row.timer(layout), row.item.header.expires
    if row.state == "claimed":
        is_over = not row.is_staged and row.lease_end <= tr.get_read_version().wait()
    elif row.state == "delayed":
        is_over = row.due <= now
    else:
        is_over = row.state == "ready" and has_expired(expires, now)
    return timer[0] if timer is not None and is_over else None


def set_timer(tr: Transaction, layout: Layout, due: int, reference: bytes) -> None:
    """Let the first sweep at or after `due` find a schedule, a group or the queue.

    This wakes a client, in case all sleep until later.
    """
    tr[layout.timer_key(layout.dues, due, reference)] = b""
    tr[layout.scheduled] = b""
    wake(tr, layout.waiters, 1)


def drop_ended(
    tr: Transaction, layout: Layout, now: int, ends: bytes, entries: bytes, limit: int
) -> int:
    """Delete up to `limit` ended rows, without conflicts; return their number.

    `entries` is their prefix, `ends` that of their index by end.
    """
    rows = [*tr.snapshot.get_range(*layout.timers_until(ends, now), limit=limit)]
    for each in rows:
        _, *names = layout.unpack_entry(ends, each.key)
        # Unless another transaction stores the row again meanwhile.
        tr.compare_and_clear(layout.entry_key(entries, *names), each.value)
        tr.clear(each.key)
    return len(rows)
