"""Reading a range page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from fdb import fdboptions

from fdbqueue.database.retrying import read
from fdbqueue.types import KeyValue, ReadTransaction, ReadTransactor

__all__ = ["PAGE", "read_pages"]

_T = TypeVar("_T")

PAGE = 500
"""How many rows one transaction reads, as a rule."""

_WHOLE = fdboptions.StreamingMode["want_all"][0]


def read_pages(
    tr: ReadTransactor,
    begin: bytes,
    end: bytes,
    page: Callable[[ReadTransaction, list[KeyValue]], _T],
    *,
    size: int = PAGE,
    limit: int = 0,
    reverse: bool = False,
    is_snapshot: bool = False,
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
        ) -> tuple[list[KeyValue], _T]:
            reads: ReadTransaction = getattr(tr, "snapshot", tr) if is_snapshot else tr
            found = reads.get_range(begin, end, limit=n, reverse=reverse, streaming_mode=_WHOLE)
            rows = list(found)
            return rows, page(reads, rows)

        rows, made = read(tr, body)
        yield made
        left -= len(rows)
        if len(rows) < n or (limit and left == 0):
            return
        if reverse:
            end = rows[-1].key
        else:
            begin = rows[-1].key + b"\x00"
