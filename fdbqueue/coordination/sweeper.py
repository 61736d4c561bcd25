"""When a process sweeps a queue."""

from __future__ import annotations

import math
from contextvars import ContextVar
from typing import TypeGuard

from fdbqueue.coordination.pops import REQUEST_TIMEOUT, PopRequests
from fdbqueue.database import clock
from fdbqueue.database.binding import is_database
from fdbqueue.database.clock import milliseconds
from fdbqueue.database.retrying import MAX_RETRY_DELAY, read, run
from fdbqueue.operations.changes import Changes
from fdbqueue.operations.items import Items
from fdbqueue.operations.sweep import MAX_SWEPT, Sweep, Swept
from fdbqueue.operations.waking import has_items
from fdbqueue.types import Database, ReadTransactor, Transaction, Transactor

_LOOK = 1.0  # seconds between checks whether the queue ever had timers
_SWEEP = 0.05  # seconds between sweeps
_SWEEP_IN_CLAIM = 0.25  # seconds between sweeps in claims that find enough items
_TRIM = 1.0  # seconds between trims
_MAX_TRIMMED = 500  # done items, and unique keys, that a transaction deletes
_MAX_TRIMS = 20  # transactions of a trim

looks_write: ContextVar[bool] = ContextVar("looks_write", default=True)
"""If false, reads of a database do not sweep first."""


def may_sweep(tr: ReadTransactor) -> TypeGuard[Database]:
    """Return whether a read sweeps first."""
    return is_database(tr) and looks_write.get()


class Sweeper:
    """The sweeps of one queue by this process, and the state that the last sweep saw.

    A queue that never had timers or limits costs one read per second.
    """

    def __init__(self, items: Items, sweep: Sweep, changes: Changes, requests: PopRequests) -> None:
        self._items = items
        self._options = items.options
        self._sweep_in = sweep
        self._changes = changes
        self._requests = requests
        self.is_behind = False  # whether items are due that the last sweep did not reach
        self.is_ready = True  # whether the queue was not paused at the last sweep
        self._has_timers = False
        self._next_look = self._next_sweep = self._next_in_claim = self._next_catch_up = 0.0
        self._last_trim = clock.monotonic()
        self._has_trimmed = False

    def has_timers(self, tr: Transactor) -> bool:
        """Return whether the queue ever had timers or limits, as of a second ago."""
        now = clock.monotonic()
        if not self._has_timers and now >= self._next_look:
            self._has_timers = read(
                tr, lambda tr: tr.snapshot[self._items.layout.scheduled].present()
            )
            self._next_look = now + _LOOK
        return self._has_timers

    def sweep_is_due(self) -> bool:
        """Return whether `sweep` would read the database now."""
        now = clock.monotonic()
        return now >= (self._next_sweep if self._has_timers else self._next_look)

    def claim_must_sweep(self) -> bool:
        """Return whether a claim sweeps even if it finds enough items."""
        return clock.monotonic() >= self._next_in_claim

    def note_claim(self, is_behind: bool, is_marked: bool) -> None:
        """Record whether a claim's sweep left items and saw the mark of timers."""
        self.is_behind = is_behind
        if is_marked and not is_behind:
            self._next_in_claim = clock.monotonic() + _SWEEP_IN_CLAIM

    def invalidate(self) -> None:
        """Make the next `sweep` read the database."""
        self._has_timers = True
        self._next_sweep = 0.0

    def may_take(self, tr: Transaction, now: int) -> bool:
        """Sweep in a transaction that takes items; return false for a paused queue."""
        if not self.has_timers(tr):
            return True
        options = self._options.read(tr)
        self._sweep_in.sweep(tr, now)
        return not options.paused

    def sweep(self, tr: ReadTransactor, n: int = 1) -> bool:
        """Sweep a database until nothing is due; return whether the queue was not paused.

        If much is due, end once `n` items have moved, an item is ready and all expired items are
        deleted; with `n=0`, after one transaction. Do nothing just after a sweep, or in a
        transaction.
        """
        if is_database(tr) and self.sweep_is_due() and self.has_timers(tr):
            self._next_sweep = clock.monotonic() + _SWEEP
            moved, is_enough = 0, False
            while not is_enough:
                may_end = self._sweep(tr)
                moved += MAX_SWEPT
                is_enough = not (self.is_behind and n) or (may_end and moved >= n)
            if self.is_behind:
                self._next_sweep = 0.0
        return self.is_ready

    def catch_up(self, db: Database, at_once: bool = True) -> None:
        """Sweep in a transaction; unless `at_once`, at most half of the time."""
        began = clock.monotonic()
        if at_once or began >= self._next_catch_up:
            self._sweep(db)
            ended = clock.monotonic()
            self._next_catch_up = ended + (ended - began)

    def trim_is_due(self, is_pop: bool = False) -> bool:
        """Return whether to `trim`: always before a process's first pop, or if it keeps done items.

        Else a process that ends within a second, such as one that `cron` starts, would never trim.
        """
        may_have_done = self._options.may_have_done
        if not self._has_trimmed and (is_pop or may_have_done):
            return True
        pause = _TRIM if may_have_done else REQUEST_TIMEOUT
        return clock.monotonic() >= self._last_trim + pause

    def trim(self, db: Database) -> None:
        """Delete what the queue no longer keeps, and put back items staged for dead processes.

        If another process trims at the same time, it does the work.
        """
        self._last_trim, self._has_trimmed = clock.monotonic(), True
        now = milliseconds()
        tries = 0

        def body(tr: Transaction) -> bool:
            nonlocal tries
            tries += 1
            if tries > 1:
                return True
            options = self._options.read(tr.snapshot)
            dropped = self._items.unique_keys.drop_ended_periods(tr, now, _MAX_TRIMMED)
            trimmed = self._changes.trim(tr, now, options, _MAX_TRIMMED)
            return self._requests.sweep(tr, now) and max(dropped, trimmed) < _MAX_TRIMMED

        for _ in range(_MAX_TRIMS):
            tries = 0
            if run(db, body):
                break

    def _sweep(self, db: Database) -> bool:
        """Sweep in one transaction; return whether `sweep` may end with more due."""
        now = milliseconds()

        def body(tr: Transaction) -> tuple[Swept, bool, bool]:
            tr.options.set_max_retry_delay(MAX_RETRY_DELAY)
            options = self._options.read(tr)
            swept = self._sweep_in.sweep(tr, now)
            may_end = not swept.all and swept.expired and has_items(tr, self._items.layout)
            return swept, not options.paused, may_end

        swept, self.is_ready, may_end = run(db, body)
        self.is_behind = not swept.all
        return may_end

    def seconds_left(self, tr: Transaction) -> float:
        """Return the seconds until a timer ends, or `math.inf`."""
        left = self._sweep_in.seconds_left(tr, milliseconds())
        if left < math.inf:
            self.invalidate()
        return left
