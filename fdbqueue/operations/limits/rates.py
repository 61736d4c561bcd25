"""The rates of groups and queues: how many items may start now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fdbqueue.layout.items import Rate
from fdbqueue.layout.keys import WANT_ALL, Layout
from fdbqueue.layout.values import ONE, ZERO, decode_count, encode_count
from fdbqueue.operations.timers import VERSIONS, set_timer
from fdbqueue.operations.waking import wake
from fdbqueue.types import KeyValue, Options, ReadTransaction, Transaction

if TYPE_CHECKING:
    from fdbqueue.operations.options import StoredOptions

_MAX_FORGOTTEN = 100  # rows that one transaction forgets
_FOREIGN = 1 << 62  # milliseconds


class Starts:
    """When items of one queue, or of its groups, were started.

    A group is a name, or `None` for the queue. Each transaction that starts items of a group with a
    rate leaves a row; a counter has their sum. A start is forgotten after the rate's period, by
    both the versions of the database and the client's clock.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def counter(self, group: str | None) -> bytes:
        """Return the key of a group's number of starts."""
        return self._layout.group_key(self._layout.start_counts, group)

    def number(self, reads: ReadTransaction, group: str | None) -> int:
        """Return a group's number of starts."""
        return decode_count(reads[self.counter(group)].value)

    def add(self, tr: Transaction, now: int, group: str | None, n: int) -> None:
        """Record `n` starts of a group's items."""
        layout, version = self._layout, tr.get_read_version().wait()
        key = layout.entry_key(layout.starts, group, now, version)
        tr.add(key, encode_count(n))
        tr.add(self.counter(group), encode_count(n))

    def take_back(self, tr: Transaction, group: str | None, time: int) -> None:
        """Forget the start of an item at a time."""
        starts = self._layout.entry_key(self._layout.starts, group, time)
        for row in tr.snapshot.get_range(*self._layout.range_of(starts)):
            if decode_count(row.value) > 0:
                tr.add_read_conflict_key(row.key)
                tr.add(row.key, encode_count(-1))
                tr.add(self.counter(group), encode_count(-1))
                return

    def room(
        self, tr: Transaction, now: int, group: str | None, rate: Rate, n: int = 0
    ) -> tuple[int, int]:
        """Return how many items of a group may start now, and when more may.

        Forgets old starts unless more than `n` may start anyway. Conflicts with all starts of the
        group.
        """
        most, period = rate
        left = most - self.number(tr, group)
        if left > n:
            return left, now
        forgotten, due = self._forget_old(tr, now, group, period)
        return max(0, left + forgotten), due

    def _forget_old(
        self, tr: Transaction, now: int, group: str | None, period: int
    ) -> tuple[int, int]:
        """Forget some old starts; return their number, and when more may be old."""
        version = tr.get_read_version().wait()
        layout = self._layout
        begin, end = layout.range_of(layout.group_key(layout.starts, group))
        rows = tr.snapshot.get_range(begin, end, limit=_MAX_FORGOTTEN, streaming_mode=WANT_ALL)
        old: list[KeyValue] = []
        due = now + period
        for row in rows:
            _, started, began_at = layout.unpack_entry(layout.starts, row.key)
            left = period - min(_age(began_at, version), now - started)
            if left > 0:  # of a client whose clock is behind: later rows may be older
                due = min(due, now + left)
            else:
                old.append(row)
                tr.clear(row.key)
        if len(old) == _MAX_FORGOTTEN:
            due = now  # there may be more
        number = sum(decode_count(row.value) for row in old)
        if old:
            tr.add(self.counter(group), encode_count(-number))
            tr.compare_and_clear(self.counter(group), ZERO)
        return number, due

    def clear(self, tr: Transaction, group: str | None) -> None:
        """Forget all starts of a group."""
        layout = self._layout
        tr.clear_range(*layout.range_of(layout.group_key(layout.starts, group)))
        tr.clear(self.counter(group))


class QueueRate:
    """The rate of one queue.

    A queue over its rate has a timer, at which a sweep wakes clients. Pops look for a rate once the
    last sweep of their process has found one.
    """

    def __init__(self, layout: Layout, options: StoredOptions) -> None:
        self._layout = layout
        self._options = options
        self._starts = Starts(layout)

    def room(self, tr: Transaction, now: int, options: Options, n: int) -> int:
        """Return how many of `n` items may start."""
        rate = _rate_of(options)
        if rate is None or n == 0:
            return n
        return min(n, self._starts.room(tr, now, None, rate, n - 1)[0])

    def note(self, tr: Transaction, now: int, options: Options, n: int) -> None:
        """Record `n` starts."""
        rate = _rate_of(options)
        if rate is None or n == 0:
            return
        room, due = self._starts.room(tr, now, None, rate, n)
        self._starts.add(tr, now, None, n)
        if room <= n:
            self._set_timer(tr, due)

    def take_back(self, tr: Transaction, now: int, time: int) -> None:
        """Forget the start of an item at a time; wake clients."""
        self._starts.take_back(tr, None, time)
        self.look_again(tr, now)

    def may_pop(self, tr: Transaction, now: int) -> bool:
        """Return whether the queue is neither paused nor over its rate."""
        options = self._options.read(tr)
        return not options.paused and self.room(tr, now, options, 1) > 0

    def is_used_up(self, reads: ReadTransaction, options: Options) -> bool:
        """Return whether no item may start before old starts are forgotten."""
        rate = _rate_of(options)
        return rate is not None and self._starts.number(reads, None) >= rate[0]

    def change(self, tr: Transaction, now: int, rate: object) -> None:
        """Follow a new rate; without one, forget the starts."""
        if rate is None:
            self._starts.clear(tr, None)
        else:
            self._set_timer(tr, now)  # clients may wait, and the old rate may have had no timer

    def look_again(self, tr: Transaction, now: int) -> None:
        """Wake clients if items may start, or set a timer."""
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
            wake(tr, waiting, room)

    def _set_timer(self, tr: Transaction, due: int) -> None:
        set_timer(tr, self._layout, due, self._layout.queue_reference)


def _rate_of(options: Options) -> Rate | None:
    return options.rate and (options.rate[0], round(1000 * options.rate[1]))


def _age(began_at: int, version: int) -> int:
    since = version - began_at
    # A higher version is that of another cluster, from whose backup the queue was restored.
    return _FOREIGN if since < 0 else since * 1000 // VERSIONS
