"""The starts of a group or a queue within a transaction: how many in a time, and when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from fdbqueue.layout.items import Rate, decode_start, encode_start
from fdbqueue.layout.keys import WANT_ALL, Layout
from fdbqueue.layout.values import decode_count, encode_count
from fdbqueue.operations.timers import VERSIONS
from fdbqueue.types import KeyValue, ReadTransaction, Transaction

_MAX_FORGOTTEN = 100  # rows that one transaction forgets
_FOREIGN = 1 << 62  # milliseconds


_started: WeakKeyDictionary[Any, tuple[int, list[bytes]]] = WeakKeyDictionary()


def forget_earlier_tries(tr: Transaction) -> None:
    """Forget what earlier tries of a transaction have noted: they may have had the same version."""
    _started.pop(tr, None)


def started_in(tr: ReadTransaction) -> list[bytes]:
    """Return the counters of the starts that a transaction in progress has noted.

    Nothing can read the rows of these starts before the commit, not even on the way to another key.
    """
    version, counters = _started.get(tr, (0, list[bytes]()))
    # With another read version it is another try of the transaction.
    return counters if counters and version == tr.get_read_version().wait() else []


class Starts:
    """When items of one queue were started. Each method is part of a transaction.

    A group is a name, or `None` for the whole queue, which may have a rate of its own. A group with
    a rate has one row for each transaction that has started some of its items, and the number of
    all of these starts. A start is forgotten once it is older than the time of the rate.

    A start has the version at which its transaction was committed, and the time of the client. It
    is older than some seconds if it is so by the versions of the database and by the clock of the
    client that looks: a recovery advances the versions by a hundred seconds' worth, and clocks
    differ. As the commit of a start is before the read version of a later one, no window of this
    length has more starts than the rate allows, by the versions. If a recovery falls into the
    window, the clocks decide.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def counter(self, group: str | None) -> bytes:
        """Return the key of the number of the starts of a group that are not forgotten."""
        return self._layout.group_key(self._layout.start_counts, group)

    def number(self, reads: ReadTransaction, group: str | None) -> int:
        """Return the number of the starts of a group that are not forgotten."""
        return decode_count(reads[self.counter(group)].value)

    def add(self, tr: Transaction, now: int, numbers: Mapping[str | None, int]) -> None:
        """Note how many items of each of some groups the transaction starts."""
        if not numbers:
            return
        begun = [*started_in(tr)]
        for group, n in numbers.items():
            counter, key = self.counter(group), self._layout.start_key(group, len(begun))
            tr.set_versionstamped_key(key, encode_start(now, n))
            tr.add(counter, encode_count(n))
            begun.append(counter)
        _started[tr] = tr.get_read_version().wait(), begun

    def room(
        self, tr: Transaction, now: int, group: str | None, rate: Rate, n: int = 0
    ) -> tuple[int, int]:
        """Return how many items of a group may be started now, and the time when more may be.

        Starts that are too old to count are forgotten, unless more than `n` may be started anyway.
        The transaction conflicts with all others that start items of the group.
        """
        most, period = rate
        count = self.number(tr, group)
        if most - count > n:
            return most - count, now
        if self.counter(group) in started_in(tr):
            return max(0, most - count), now
        begin, rows = self._first_rows(tr.snapshot, group)
        last, forgotten, due = self._over(rows, now, period, tr.get_read_version().wait())
        if forgotten:
            tr.clear_range(begin, last + b"\x00")
            tr.add(self.counter(group), encode_count(-forgotten))
        return max(0, most - (count - forgotten)), due

    def is_full(
        self, tr: ReadTransaction, now: int, group: str | None, rate: Rate, version: int
    ) -> bool:
        """Return whether no item of a group may be started now; this changes nothing."""
        most, period = rate
        reads: ReadTransaction = getattr(tr, "snapshot", tr)
        count = self.number(reads, group)
        if count < most or self.counter(group) in started_in(tr):
            return count >= most
        _, forgotten, _ = self._over(self._first_rows(reads, group)[1], now, period, version)
        return count - forgotten >= most

    def _first_rows(
        self, reads: ReadTransaction, group: str | None
    ) -> tuple[bytes, Iterable[KeyValue]]:
        """Begin to read the oldest starts of a group; return where they begin as well."""
        layout = self._layout
        begin, end = layout.range_of(layout.group_key(layout.starts, group))
        rows = reads.get_range(begin, end, limit=_MAX_FORGOTTEN, streaming_mode=WANT_ALL)
        return begin, rows

    def _over(
        self, rows: Iterable[KeyValue], now: int, period: int, version: int
    ) -> tuple[bytes, int, int]:
        """Look which starts are too old to count.

        Returns:
            The key of the last one, the number of their items, and when the next one will be.
        """
        due, last, forgotten = now + period, b"", 0
        for number_of_row, row in enumerate(rows, 1):
            started, number = decode_start(row.value)
            left = period - min(self._age(row.key, version), now - started)
            if left > 0:
                return last, forgotten, now + min(left, period)
            last, forgotten = row.key, forgotten + number
            if number_of_row == _MAX_FORGOTTEN:
                due = now  # there may be more
        return last, forgotten, due

    def clear(self, tr: Transaction, group: str | None) -> None:
        """Forget all starts of a group, of whatever age."""
        layout = self._layout
        tr.clear_range(*layout.range_of(layout.group_key(layout.starts, group)))
        tr.clear(self.counter(group))

    def forget(self, tr: Transaction, now: int, group: str, period: int) -> bool:
        """Forget all starts of a group if none is younger than `period`; return whether it did."""
        if self.counter(group) in started_in(tr):
            return False
        layout = self._layout
        begin, end = layout.range_of(layout.group_key(layout.starts, group))
        version = tr.get_read_version().wait()
        for row in tr.snapshot.get_range(begin, end, limit=1, reverse=True):
            if min(self._age(row.key, version), now - decode_start(row.value)[0]) < period:
                return False
        tr.add_read_conflict_key(self.counter(group))
        tr.clear_range(begin, end)
        tr.clear(self.counter(group))
        return True

    def _age(self, key: bytes, version: int) -> int:
        """Return the milliseconds since a start by the versions of the database."""
        since = version - self._layout.unpack_start_version(key)
        # A higher version is that of another cluster, from whose backup the queue was restored.
        return _FOREIGN if since < 0 else since * 1000 // VERSIONS
