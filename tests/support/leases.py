"""Helpers that end leases and delays at a moment the test chooses."""

from __future__ import annotations

from typing import Any

import fdbqueue
from fdbqueue.layout import decode_metadata, encode_metadata
from fdbqueue.queue.base import store_of

__all__ = ["come_due", "lapse", "values"]


def values(items: Any) -> list[Any]:
    return [item.value for item in items]


def lapse(db: Any, queue: Any, seconds: float = 10**9) -> None:
    """Expire now all leases that end within this number of seconds."""
    layout = store_of(queue).layout

    @fdbqueue.transactional
    def body(tr: Any) -> None:
        now = tr.get_read_version().wait()
        for row in list(tr[slice(*layout.range_of(layout.leases))]):
            end, place = layout.unpack_timer_key(layout.leases, row.key)
            if end <= now + seconds * 1_000_000:
                (token, _, *others), value = decode_metadata(tr[layout.claims + place].value)
                facts = token, 1, *others
                del tr[row.key]
                tr[layout.claims + place] = encode_metadata(facts, value)
                tr[layout.timer_key(layout.leases, 1, place)] = b""

    body(db)


def come_due(db: Any, queue: Any) -> None:
    """Make all delayed items due now."""
    layout = store_of(queue).layout

    @fdbqueue.transactional
    def body(tr: Any) -> None:
        for row in list(tr[slice(*layout.range_of(layout.dues))]):
            del tr[row.key]
            place = layout.unpack_timer_key(layout.dues, row.key)[1]
            tr[layout.timer_key(layout.dues, 1, place)] = b""
            value = decode_metadata(tr[layout.delayed + place].value)[1]
            tr[layout.delayed + place] = encode_metadata((1,), value)

    body(db)
    store_of(queue).sweeper._next_sweep = store_of(queue).sweeper._next_look = 0.0
