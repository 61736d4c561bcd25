"""Reading a range page by page, and many small ranges at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from fdbqueue.database.retrying import read
from fdbqueue.layout.keys import WANT_ALL
from fdbqueue.types import KeyValue, ReadTransaction, ReadTransactor

_T = TypeVar("_T")

PAGE = 500
"""How many rows one transaction reads, as a rule."""


class _HasKey(Protocol):
    @property
    def key(self) -> bytes:
        """The key of a row."""
        ...


_Row = TypeVar("_Row", bound=_HasKey)

ReadRows: TypeAlias = Callable[[ReadTransaction, bytes, bytes, int, bool], Iterable[_Row]]
"""A function of a transaction, the begin and end of a range, a limit, and whether to reverse."""


def stored_rows(
    tr: ReadTransaction, begin: bytes, end: bytes, limit: int, reverse: bool
) -> Iterable[Any]:
    """Read the rows of a range as they are stored."""
    return tr.get_range(begin, end, limit=limit, reverse=reverse, streaming_mode=WANT_ALL)


def read_pages(
    tr: ReadTransactor,
    begin: bytes,
    end: bytes,
    page: Callable[[ReadTransaction, list[_Row]], _T],
    *,
    size: int = PAGE,
    limit: int = 0,
    reverse: bool = False,
    is_snapshot: bool = False,
    taken: Callable[[_T], int] | None = None,
    rows: ReadRows[_Row] = stored_rows,
) -> Iterator[_T]:
    """Yield what `page(tr, rows)` makes of each page of a range.

    Given a database, each page is read in a transaction of its own.

    Args:
        tr: A transaction or a database.
        begin: The first key.
        end: The key behind the last one.
        page: Makes something of the rows of a page, in the transaction that reads them.
        size: How many rows a page has.
        limit: How many rows to read in all; 0 for all of them.
        reverse: Whether to read from the end.
        is_snapshot: Whether to read, and to call `page`, by snapshot reads.
        taken: Returns how many of its rows `page` used, at least one; the next page begins with the
            others. By default it used all.
        rows: Reads the rows of a range, in order.

    Example:
        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> db[b"a"] = db[b"b"] = db[b"c"] = b""
        >>> list(read_pages(db, b"a", b"z", lambda tr, rows: [row.key for row in rows], size=2))
        [[b'a', b'b'], [b'c']]
    """
    left = limit
    while begin < end:
        n = min(left, size) if limit else size

        def body(
            tr: ReadTransaction, begin: bytes = begin, end: bytes = end, n: int = n
        ) -> tuple[list[_Row], _T]:
            reads: ReadTransaction = getattr(tr, "snapshot", tr) if is_snapshot else tr
            found = list(rows(reads, begin, end, n, reverse))
            return found, page(reads, found)

        found, made = read(tr, body)
        yield made
        used = len(found) if taken is None else taken(made)
        left -= used
        if used == len(found) < n or (limit and left == 0):
            return
        if reverse:
            end = found[used - 1].key
        else:
            begin = found[used - 1].key + b"\x00"


_NEIGHBOURS = 50
"""How many ranges share a read."""

_MAX_BETWEEN = 2000
"""The most bytes between two of them. A separate read costs less than to read more than these."""


def read_ranges(
    tr: ReadTransaction, ranges: Sequence[tuple[bytes, bytes]]
) -> Iterator[list[KeyValue]]:
    """Yield the rows of each of many small ranges, which do not overlap.

    Up to 50 neighbours share a read. It ends where more than 2,000 bytes are between two of them;
    the others of its ranges then have a read each. Reads are under way at the same time: first all
    shared ones, then the separate ones of 50 ranges. So 50 ranges cost one read at best, and 51
    reads at worst.

    Args:
        tr: A transaction.
        ranges: The first key of each range, and the key behind its last one. Ranges that are not in
            the order of their keys do not share a read.

    Example:
        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> db[b"a"] = db[b"b"] = db[b"c"] = b""
        >>> rows = read_ranges(db.create_transaction(), [(b"a", b"b"), (b"c", b"d")])
        >>> [[row.key for row in found] for found in rows]
        [[b'a'], [b'c']]
    """
    begun = [(group, _begin(tr, group[0][0], group[-1][1])) for group in _groups(ranges)]
    for group, rows in begun:
        left = deque(group)
        for found in _divide(rows, group):
            left.popleft()
            yield found
        for separate in [_begin(tr, *each) for each in left]:
            yield list(separate)


def _begin(tr: ReadTransaction, begin: bytes, end: bytes) -> Iterable[KeyValue]:
    return tr.get_range(begin, end, streaming_mode=WANT_ALL)


def _groups(ranges: Sequence[tuple[bytes, bytes]]) -> list[list[tuple[bytes, bytes]]]:
    """Divide ranges into groups of neighbours, each in the order of the keys."""
    groups: list[list[tuple[bytes, bytes]]] = []
    for each in ranges:
        if groups and len(groups[-1]) < _NEIGHBOURS and groups[-1][-1][1] <= each[0]:
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups


def _divide(rows: Iterable[KeyValue], group: list[tuple[bytes, bytes]]) -> Iterator[list[KeyValue]]:
    """Yield the rows of each range of a group, up to the first that lies far behind another."""
    ranges = iter(group)
    begin, end = next(ranges)
    found: list[KeyValue] = []
    between = 0
    for row in rows:
        while row.key >= end:
            yield found
            found, (begin, end) = [], next(ranges)
        if row.key >= begin:
            found.append(row)
            between = 0
            continue
        between += len(row.key) + len(row.value)
        if between > _MAX_BETWEEN:
            return
    yield found
    yield from ([] for _ in ranges)


def in_batches(
    things: Iterable[_T], size: Callable[[_T], int], max_number: int, max_size: int
) -> Iterator[list[_T]]:
    """Yield things in lists that one transaction has room for.

    If the iteration raises an error, the things before it are a list of their own.

    Args:
        things: The things.
        size: Returns the size of a thing.
        max_number: How many things a list has at most.
        max_size: The most that the sizes of a list add up to, unless it has only one thing.

    Example:
        >>> list(in_batches(["a", "bb", "ccc", "dddd"], len, 9, 5))
        [['a', 'bb'], ['ccc'], ['dddd']]
    """
    batch: list[_T] = []
    left = max_size
    try:
        for thing in things:
            added = size(thing)
            if batch and (added > left or len(batch) == max_number):
                yield batch
                batch, left = [], max_size
            batch.append(thing)
            left -= added
    except Exception:
        if batch:
            yield batch
        raise
    if batch:
        yield batch
