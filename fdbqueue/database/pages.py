"""Read a range page by page, and write in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeAlias, TypeVar

from fdbqueue.database.retrying import read
from fdbqueue.layout.keys import WANT_ALL
from fdbqueue.types import ReadTransaction, ReadTransactor

_T = TypeVar("_T")

PAGE = 500
"""The usual number of rows per transaction."""


class _HasKey(Protocol):
    @property
    def key(self) -> bytes: ...


_Row = TypeVar("_Row", bound=_HasKey)

ReadRows: TypeAlias = Callable[[ReadTransaction, bytes, bytes, int, bool], Iterable[_Row]]
"""Reads up to a number of rows between two keys, perhaps in reverse."""


def stored_rows(
    tr: ReadTransaction, begin: bytes, end: bytes, limit: int, reverse: bool
) -> Iterable[Any]:
    """Read a range's rows as stored."""
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
    rows: ReadRows[_Row] = stored_rows,
) -> Iterator[_T]:
    """Yield what `page(tr, rows)` returns for each page of a range.

    On a database, each page has a transaction, in which `page` is called. `size` is the rows of a
    page, `limit` the rows in all (0: no limit).

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> db[b"a"] = db[b"b"] = db[b"c"] = b""
    >>> list(read_pages(db, b"a", b"z", lambda tr, rows: len(rows), size=2))
    [2, 1]
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
        left -= len(found)
        if len(found) < n or (limit and left == 0):
            return
        if reverse:
            end = found[-1].key
        else:
            begin = found[-1].key + b"\x00"


def in_batches(
    things: Iterable[_T], size: Callable[[_T], int], max_number: int, max_size: int
) -> Iterator[list[_T]]:
    """Yield lists of up to `max_number` things, whose sizes add up to at most `max_size`.

    A larger thing is alone in its list. If the iteration fails, the things before the error come
    first.

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
