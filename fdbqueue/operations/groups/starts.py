"""The starts of a group or a queue within a transaction: how many in a time, and when."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from fdbqueue.layout.items import Rate, decode_start, encode_start
from fdbqueue.layout.keys import WANT_ALL, Layout
from fdbqueue.layout.values import MINUS_ONE, decode_count, encode_count
from fdbqueue.operations.timers import VERSIONS
from fdbqueue.types import ReadTransaction, Transaction

_MAX_FORGOTTEN = 100  # rows that one transaction forgets
_MAX_LATER = 100  # rows in which to look for a start that is taken back
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


class _Old(NamedTuple):
    """Starts that are too old to count.

    Attributes:
        ranges: Their keys.
        number: The number of their items.
        due: The time in milliseconds when more of them may be too old.
    """

    ranges: list[tuple[bytes, bytes]]
    number: int
    due: int


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

    def take_back(self, tr: Transaction, group: str | None, time: int) -> None:
        """Forget the start of an item of a group, unless many others were started since.

        Args:
            tr: A transaction.
            group: The group.
            time: The time of the transaction that started it, in milliseconds since 1970.
        """
        counter = self.counter(group)
        if counter in started_in(tr):
            return
        starts = self._layout.range_of(self._layout.group_key(self._layout.starts, group))
        for row in tr.snapshot.get_range(*starts, limit=_MAX_LATER, reverse=True):
            started, n = decode_start(row.value)
            if started == time and n > 0:
                tr.add_read_conflict_key(row.key)
                tr[row.key] = encode_start(time, n - 1)
                tr.add(counter, MINUS_ONE)
                return

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
        old = self._old(tr.snapshot, now, group, period, tr.get_read_version().wait())
        for begin, end in old.ranges:
            tr.clear_range(begin, end)
        if old.number:
            tr.add(self.counter(group), encode_count(-old.number))
        return max(0, most - (count - old.number)), old.due

    def is_full(
        self, tr: ReadTransaction, now: int, group: str | None, rate: Rate, version: int
    ) -> bool:
        """Return whether no item of a group may be started now; this changes nothing."""
        most, period = rate
        reads: ReadTransaction = getattr(tr, "snapshot", tr)
        count = self.number(reads, group)
        if count < most or self.counter(group) in started_in(tr):
            return count >= most
        return count - self._old(reads, now, group, period, version).number >= most

    def _old(
        self, reads: ReadTransaction, now: int, group: str | None, period: int, version: int
    ) -> _Old:
        """Find the starts of a group that are too old to count, some at a time."""
        read = partial(reads.get_range, limit=_MAX_FORGOTTEN, streaming_mode=WANT_ALL)
        parts = [(begin, read(begin, end)) for begin, end in self._parts(group, version)]
        old = _Old([], 0, now + period)
        for begin, rows in parts:
            last = None
            for n, row in enumerate(rows, 1):
                started, number = decode_start(row.value)
                left = period - min(self._age(row.key, version), now - started)
                if left > 0:
                    old = old._replace(due=min(old.due, now + left))
                    break
                last, old = row.key, old._replace(number=old.number + number)
                if n == _MAX_FORGOTTEN:
                    old = old._replace(due=now)  # there may be more
            if last is not None:
                old.ranges.append((begin, last + b"\x00"))
        return old

    def _parts(self, group: str | None, version: int) -> tuple[tuple[bytes, bytes], ...]:
        """Return the range of the starts of a group, and that of those from another cluster.

        The latter came with a backup, and have higher versions than the transaction.
        """
        layout = self._layout
        begin, end = layout.range_of(layout.group_key(layout.starts, group))
        middle = layout.starts_after(group, version)
        return (begin, middle), (middle, end)

    def clear(self, tr: Transaction, group: str | None) -> None:
        """Forget all starts of a group, of whatever age."""
        layout = self._layout
        tr.clear_range(*layout.range_of(layout.group_key(layout.starts, group)))
        tr.clear(self.counter(group))

    def forget(self, tr: Transaction, now: int, group: str, period: int) -> bool:
        """Forget all starts of a group if none is younger than `period`; return whether it did."""
        if self.counter(group) in started_in(tr):
            return False
        version = tr.get_read_version().wait()
        (begin, middle), (_, end) = self._parts(group, version)
        # The last one is the youngest, but those of another cluster follow in any order.
        newest = tr.snapshot.get_range(begin, middle, limit=1, reverse=True)
        foreign = tr.snapshot.get_range(middle, end, limit=_MAX_FORGOTTEN)
        rows = [*newest, *foreign]
        if len(rows) > _MAX_FORGOTTEN:
            return False
        for row in rows:
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
