"""When a process sweeps the schedule of a queue, and how long it can sleep until the next item."""

from __future__ import annotations

import math
import time

from fdbqueue.coordination.clock import milliseconds
from fdbqueue.database.binding import is_database
from fdbqueue.database.retrying import read, run
from fdbqueue.layout import Layout
from fdbqueue.operations.schedule import MAX_SWEPT, VERSIONS, Schedule, Swept
from fdbqueue.types import Database, ReadTransactor, Transaction, Transactor

__all__ = ["Sweeper"]

_LOOK = 1.0  # seconds from one look at whether anything was ever scheduled to the next
_SWEEP = 0.05  # seconds from one sweep of a database to the next


class Sweeper:
    """The sweeps of one queue by this process, now and then, and what it knows from the last one.

    A queue of which nothing was ever claimed, delayed, to expire or paused pays
    nothing but a look each second.
    """

    def __init__(self, layout: Layout, schedule: Schedule) -> None:
        self._layout = layout
        self._schedule = schedule
        self.is_behind = False  # whether the last sweep left something that is due
        self.is_ready = True  # as far as one knows without a look at the database
        self._is_used = False
        self._next_look = 0.0
        self._next_sweep = 0.0

    def has_timers(self, tr: Transactor) -> bool:
        """Return whether anything was ever scheduled, as of at most a second ago."""
        now = time.monotonic()
        if not self._is_used and now >= self._next_look:
            self._is_used = read(tr, lambda tr: tr.snapshot[self._layout.scheduled].present())
            self._next_look = now + _LOOK
        return self._is_used

    def sweep_is_due(self) -> bool:
        """Return whether it is time to look at the database; known without asking it."""
        now = time.monotonic()
        return now >= (self._next_sweep if self._is_used else self._next_look)

    def invalidate(self) -> None:
        """Let the next call look at the database."""
        self._is_used = True
        self._next_sweep = 0.0

    def may_take(self, tr: Transaction, now: int) -> bool:
        """Let come what is due, in a transaction that takes items; false if it must take none."""
        if not self.has_timers(tr):
            return True
        self._schedule.sweep(tr, now)
        return not self._schedule.is_paused(tr)

    def sweep(self, tr: ReadTransactor, n: int = 1) -> bool:
        """Do the same on a database now and then, in transactions of their own; in one, nothing.

        That is done when nothing more is due; or, if much is, when some items wait, `n` may have
        come, and nothing that waits has expired. The next call goes on, so that no call has to do
        the work for all that others are to take.
        """
        if is_database(tr) and self.sweep_is_due() and self.has_timers(tr):
            self._next_sweep = time.monotonic() + _SWEEP
            now = milliseconds()

            def body(tr: Transaction) -> tuple[Swept, bool, bool]:
                swept = self._schedule.sweep(tr, now)
                return swept, not self._schedule.is_paused(tr), swept.all or self._has_items(tr)

            moved = 0
            while True:
                swept, self.is_ready, has_items = run(tr, body)
                moved += MAX_SWEPT
                if swept.all or (swept.expired and has_items and moved >= n):
                    break
            self.is_behind = not swept.all
            if self.is_behind:
                self._next_sweep = 0.0
        return self.is_ready

    def _has_items(self, tr: Transaction) -> bool:
        items = self._layout.range_of(self._layout.items)
        return bool(list(tr.snapshot.get_range(*items, limit=1)))

    def seconds_left(self, db: Database) -> float:
        """Return the seconds until the next item is due, `math.inf` if none is."""
        if not self.has_timers(db):
            return math.inf
        layout = self._layout

        def body(tr: Transaction) -> float:
            leases = tr.snapshot.get_range(*layout.range_of(layout.leases), limit=1)
            dues = tr.snapshot.get_range(*layout.range_of(layout.dues), limit=1)
            left = math.inf
            for row in leases:
                end = layout.decode_timer(layout.leases, row.key)[0]
                left = (end - tr.get_read_version().wait()) / VERSIONS
            for row in dues:
                left = min(
                    left, (layout.decode_timer(layout.dues, row.key)[0] - milliseconds()) / 1000
                )
            return max(0.0, left)

        return run(db, body)
