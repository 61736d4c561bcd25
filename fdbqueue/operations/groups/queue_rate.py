"""The rate of a whole queue within a transaction: how many of its items may be started now."""

from __future__ import annotations

from collections.abc import Iterable

from fdbqueue.layout.items import Rate
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import ONE
from fdbqueue.operations.groups.starts import Starts, forget_earlier_tries
from fdbqueue.operations.options import StoredOptions
from fdbqueue.operations.timers import set_timer
from fdbqueue.operations.waking import Waiters
from fdbqueue.types import KeyValue, Options, ReadTransaction, Transaction


class QueueRate:
    """The rate of one queue. Each method is part of a transaction.

    The starts of a queue with a rate are stored as those of a group with a rate, so that no window
    has more. Each transaction that starts items conflicts with all others that do so. A queue over
    its rate has a timer: the sweep that finds it wakes clients that wait. A queue without a rate
    reads and writes nothing for it.

    Claims read the rate with the other options. Pops look for it once the last sweep of their
    process has found one.
    """

    def __init__(self, layout: Layout, options: StoredOptions) -> None:
        self._layout = layout
        self._options = options
        self._starts = Starts(layout)

    begin_try = staticmethod(forget_earlier_tries)
    """Begin a try of a transaction that has started nothing so far."""

    def room(self, tr: Transaction, now: int, options: Options | None, n: int) -> int:
        """Return how many of `n` items may be started, given the options of the queue."""
        rate = _rate_of(options)
        if rate is None or n == 0:
            return n
        return min(n, self._starts.room(tr, now, None, rate, n - 1)[0])

    def note(self, tr: Transaction, now: int, options: Options | None, n: int) -> None:
        """Note that the transaction starts `n` items, for which there must be room."""
        rate = _rate_of(options)
        if rate is None or n == 0:
            return
        room, due = self._starts.room(tr, now, None, rate, n)
        self._starts.add(tr, now, {None: n})
        if room <= n:
            self._set_timer(tr, due)

    def take_back(self, tr: Transaction, now: int, time: int) -> None:
        """Forget the start of an item at a time in milliseconds since 1970; wake clients."""
        self._starts.take_back(tr, None, time)
        self._look_again(tr, now)

    def room_to_pop(self, tr: Transaction, now: int, n: int) -> int:
        """Return how many of `n` items may be popped."""
        return self.room(tr, now, self._options.read(tr), n) if self._options.may_have_rate else n

    def note_popped(self, tr: Transaction, now: int, n: int) -> None:
        """Note that the transaction pops `n` items, for which there must be room."""
        if self._options.may_have_rate:
            self.note(tr, now, self._options.read(tr), n)

    def may_pop(self, tr: Transaction, now: int) -> bool:
        """Return whether an item may be popped: the queue is not paused, nor over its rate."""
        return not self._options.is_paused(tr) and self.room_to_pop(tr, now, 1) > 0

    def is_over(self, tr: ReadTransaction, now: int, options: Options, version: int) -> bool:
        """Return whether no item may be started now; this changes nothing."""
        rate = _rate_of(options)
        return rate is not None and self._starts.is_full(tr, now, None, rate, version)

    def is_used_up(self, reads: ReadTransaction, options: Options | None) -> bool:
        """Return whether no item may be started before old starts are forgotten."""
        rate = _rate_of(options)
        return rate is not None and self._starts.number(reads, None) >= rate[0]

    def change(self, tr: Transaction, now: int, rate: object) -> None:
        """Follow a new rate; without one, forget the starts."""
        if rate is None:
            self._starts.clear(tr, None)
        else:
            self._set_timer(tr, now)  # clients may wait, and the old rate may have had no timer

    def end_hold(self, tr: Transaction, now: int, timers: Iterable[KeyValue]) -> None:
        """Wake clients if the timer of the queue is among these timers, and its rate allows more.

        Otherwise a later sweep does so. The timers are deleted.
        """
        if any(self._layout.is_timer_of_queue(row.key) for row in timers):
            self._look_again(tr, now)

    def begin_again(self, tr: Transaction, now: int) -> None:
        """Let a sweep look again after the timers of the queue were cleared."""
        if _rate_of(self._options.read(tr)) is not None:
            self._set_timer(tr, now)

    def _look_again(self, tr: Transaction, now: int) -> None:
        rate = _rate_of(self._options.read(tr))
        if rate is None:
            return
        room, due = self._starts.room(tr, now, None, rate)
        if room == 0:
            self._set_timer(tr, max(due, now + 1))
            return
        layout = self._layout
        tr.add(layout.wake_counter, ONE)
        for waiting in (layout.waiters, layout.waiting_claims):
            Waiters(layout, waiting).wake(tr, room)

    def _set_timer(self, tr: Transaction, due: int) -> None:
        layout = self._layout
        set_timer(tr, layout, due, layout.queue_reference())
        Waiters(layout, layout.waiters).wake(tr, 1)  # a client may sleep until a later time


def _rate_of(options: Options | None) -> Rate | None:
    """Return the rate of a queue as a number and milliseconds."""
    if options is None or options.rate is None:
        return None
    return options.rate[0], round(1000 * options.rate[1])
