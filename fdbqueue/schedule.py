"""What comes to its place later: items whose lease ran out, and delayed ones."""

from __future__ import annotations

import math
import time
from datetime import datetime
from typing import Any

from fdbqueue.database import is_database, read, run
from fdbqueue.layout import ONE, Layout
from fdbqueue.rows import Rows

__all__ = ["VERSIONS", "Schedule", "due_time", "milliseconds"]

VERSIONS = 1_000_000
"""How many read versions there are in a second, nearly."""

_MOST = 32  # items that one transaction lets come
_LOOK = 1.0  # seconds from one look at whether anything was ever scheduled to the next
_SWEEP = 0.05  # seconds from one sweep of a database to the next


def milliseconds() -> int:
    """Now, as delayed items are due; to be read outside of any retry loop.

    >>> milliseconds() > 1_700_000_000_000
    True
    """
    return time.time_ns() // 1_000_000


def due_time(delay: float | None, at: datetime | None) -> int | None:
    """When an item is due, in milliseconds since 1970; `None` for at once.

    >>> due_time(None, datetime.fromisoformat("1970-01-01T00:00:01+00:00"))
    1000
    """
    if delay is not None and at is not None:
        raise ValueError("give a delay or a time, not both")
    if at is not None:
        if not isinstance(at, datetime) or at.utcoffset() is None:
            raise TypeError(f"at is a datetime that has a time zone, not {at!r}")
        return max(0, math.ceil(at.timestamp() * 1000))
    if delay is None:
        return None
    if isinstance(delay, bool) or not isinstance(delay, (int, float)):
        raise TypeError(f"delay is a number of seconds, not {delay!r}")
    if not 0 <= delay < 10**10:  # NaN neither
        raise ValueError(f"delay is a number of seconds from 0, not {delay!r}")
    return milliseconds() + math.ceil(delay * 1000) if delay else None


class Schedule:
    """The schedule of one queue.

    Whoever looks for items lets those come that are due: there is no process that has to run for
    it. A queue of which nothing was ever claimed or delayed pays nothing but a look each second.
    """

    def __init__(self, layout: Layout, rows: Rows) -> None:
        self._layout = layout
        self._rows = rows
        self._is_used = False
        self._next_look = 0.0
        self._next_sweep = 0.0

    def is_used(self, tr: Any) -> bool:
        """Whether anything was ever claimed or delayed, as of a second ago at most."""
        now = time.monotonic()
        if not self._is_used and now >= self._next_look:
            self._is_used = read(tr, lambda tr: tr.snapshot[self._layout.scheduled].present())
            self._next_look = now + _LOOK
        return self._is_used

    def is_time(self) -> bool:
        """Whether to look at the database at all, as far as one knows without it."""
        now = time.monotonic()
        return now >= (self._next_sweep if self._is_used else self._next_look)

    def come_due(self, tr: Any) -> None:
        """Let come what is due: on a database in a transaction of its own, now and then."""
        if not is_database(tr):
            if self.is_used(tr):
                self.sweep(tr, milliseconds())
            return
        if self.is_time() and self.is_used(tr):
            self._next_sweep = time.monotonic() + _SWEEP
            due = milliseconds()
            while run(tr, lambda tr: self.sweep(tr, due)) == _MOST:
                pass

    def sweep(self, tr: Any, now: int) -> int:
        """Let come what is due; how many items that were, of each kind at most.

        Conflicts with who claims, acknowledges or lets come the same items.
        """
        layout = self._layout
        leases = tr.snapshot.get_range(*layout.range_of(layout.leases), limit=_MOST)
        delayed = tr.snapshot.get_range(*layout.range_of(layout.delayed), limit=_MOST)
        version = tr.get_read_version().wait()
        ended = late = 0
        for row in leases:
            end, place = layout.when(layout.leases, row.key)
            if end > version:
                break
            del tr[row.key]
            self._end_lease(tr, end, place, now)
            ended += 1
        for row in delayed:
            due, place = layout.when(layout.delayed, row.key)
            if due > now:
                break
            tr.add_read_conflict_key(row.key)
            del tr[row.key]
            self._rows.place(tr, layout.items + place, row.value)
            late += 1
        return max(ended, late)

    def _end_lease(self, tr: Any, end: int, place: bytes, now: int) -> None:
        stored = tr[self._layout.claims + place].value
        if stored is None:
            return
        (_, ends, attempt), value = self._layout.decode_facts(stored)
        if ends == end:
            del tr[self._layout.claims + place]
            self.give_back(tr, place, attempt, value, now, "its lease ran out")

    def give_back(
        self,
        tr: Any,
        place: bytes,
        attempts: int,
        value: bytes,
        now: int,
        error: str | None,
        due: int | None = None,
    ) -> None:
        """Put an item that was claimed so often back to its place, or to the dead letters."""
        layout = self._layout
        options = tr.snapshot[layout.options].value
        most = None if options is None else layout.decode_options(options).max_attempts
        if most is not None and attempts >= most:
            tr[layout.dead + place] = layout.encode_facts((attempts, now, error), value)
            return
        self.put(tr, place, layout.with_attempts(attempts, value), due)

    def put(self, tr: Any, place: bytes, value: bytes, due: int | None = None) -> None:
        """Put an item that was counted out back to its place, now or later."""
        layout = self._layout
        tr.add(layout.came, ONE)
        self._rows.count_moved(tr)
        if due is None:
            self._rows.place(tr, layout.items + place, value)
        else:
            tr[layout.when_key(layout.delayed, due, place)] = value

    def seconds_left(self, db: Any) -> float:
        """How long it is until the next item is due; `math.inf` if none is."""
        if not self.is_used(db):
            return math.inf
        layout = self._layout

        def body(tr: Any) -> float:
            leases = tr.snapshot.get_range(*layout.range_of(layout.leases), limit=1)
            delayed = tr.snapshot.get_range(*layout.range_of(layout.delayed), limit=1)
            left = math.inf
            for row in leases:
                end = layout.when(layout.leases, row.key)[0]
                left = (end - tr.get_read_version().wait()) / VERSIONS
            for row in delayed:
                left = min(left, (layout.when(layout.delayed, row.key)[0] - milliseconds()) / 1000)
            return max(0.0, left)

        return run(db, body)
