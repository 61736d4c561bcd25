"""Helpers that end leases and delays at a moment the test chooses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fdbqueue
from fdbqueue.database.retrying import run
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import (
    Lease,
    decode_lease,
    decode_metadata,
    encode_lease,
    encode_metadata,
    header_of,
    with_header,
)
from fdbqueue.operations.timers import VERSIONS
from fdbqueue.queue.base import store_of
from tests.support.keys import layout_of
from tests.support.waiting import MAX_WAIT, wait_until


def values(items: Any) -> list[Any]:
    return [item.value for item in items]


def lapse(db: Any, queue: Any, seconds: float = 10**9) -> None:
    """Expire now all leases that end within this number of seconds."""
    layout = layout_of(queue)

    @fdbqueue.transactional
    def body(tr: Any) -> None:
        now = tr.get_read_version().wait()
        for end, place, value in _taken_timers(tr, layout, layout.leases):
            if end <= now + seconds * 1_000_000:
                end, lease = 1, decode_lease(value) or Lease(0, 0)
                value = encode_lease(0, 0, lease.client, lease.report)
            _set_lease_end(tr, layout.claims + place, end)
            tr[layout.timer_key(layout.leases, end, place)] = value

    body(db)
    look_again(queue)


def _taken_timers(tr: Any, layout: Layout, space: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Take the timers of a key space away; yield the time, the place and the value of each."""
    for row in list(tr[slice(*layout.range_of(space))]):
        del tr[row.key]
        yield *layout.unpack_timer_key(space, row.key), row.value


def _set_lease_end(tr: Any, claim: bytes, end: int) -> None:
    (token, _, *others), value = decode_metadata(tr[claim].value)
    tr[claim] = encode_metadata((token, end, *others), value)


def come_due(db: Any, queue: Any) -> None:
    """Make all delayed items due now."""
    layout = layout_of(queue)

    @fdbqueue.transactional
    def body(tr: Any) -> None:
        for _, place, timer in _taken_timers(tr, layout, layout.dues):
            tr[layout.timer_key(layout.dues, 1, place)] = timer
            value = decode_metadata(tr[layout.delayed + place].value)[1]
            tr[layout.delayed + place] = encode_metadata((1,), value)

    body(db)
    look_again(queue)


def expire(db: Any, queue: Any) -> None:
    """Make all items with a time to live expire now."""
    layout = layout_of(queue)

    @fdbqueue.transactional
    def body(tr: Any) -> None:
        for _, place, _ in _taken_timers(tr, layout, layout.expiries):
            tr[layout.timer_key(layout.expiries, 1, place)] = b""
            header, content = header_of(tr[layout.items + place].value)
            tr[layout.items + place] = with_header(header._replace(expires=1), content)

    body(db)
    look_again(queue)


def look_again(queue: Any) -> None:
    """Let the next call on this handle sweep, as it does when a second has passed.

    A test that can use a new handle or the `clock` needs no such call.
    """
    store_of(queue).sweeper.invalidate()


def shift_leases(db: Any, queue: Any, versions: int) -> None:
    """Move the ends of all leases by a number of versions; their ends by the clock stay.

    A negative number does what a recovery does, which advances the versions of the database. A
    positive number does what a restore into a cluster with lower versions does.
    """
    layout = layout_of(queue)

    @fdbqueue.transactional
    def body(tr: Any) -> None:
        for before, place, value in _taken_timers(tr, layout, layout.leases):
            end = max(1, before + versions)
            _set_lease_end(tr, layout.claims + place, end)
            tr[layout.timer_key(layout.leases, end, place)] = value

    body(db)


def read_version(db: Any) -> int:
    return run(db, lambda tr: int(tr.get_read_version().wait()))


def let_versions_pass(db: Any, seconds: float) -> None:
    """Wait until the versions of the database, by which leases end, have advanced so far."""
    end = read_version(db) + seconds * VERSIONS

    def have_passed() -> bool:
        # The versions of a cluster advance with its commits. This one stores nothing.
        run(db, lambda tr: tr.add_write_conflict_key(b"versions"))
        return read_version(db) > end

    wait_until(have_passed, MAX_WAIT + seconds)


def lease_ends(db: Any, queue: Any) -> list[int]:
    """Return the versions at which the leases end."""
    layout = layout_of(queue)
    rows = db[slice(*layout.range_of(layout.leases))]
    return [layout.unpack_timer_key(layout.leases, row.key)[0] for row in rows]
