"""The items staged for the pops of other processes.

Under contention, a process stages items for others. They count as claimed until these processes
take them, or are considered dead: then the items become ready again.
"""

from __future__ import annotations

from collections.abc import Iterator

from fdbqueue.layout.keys import WANT_ALL, Layout
from fdbqueue.operations.timers import VERSIONS
from fdbqueue.types import ReadTransaction

REQUEST_TIMEOUT = 5.0
"""Seconds after which a process that waits for items is considered dead."""

_Range = tuple[bytes, bytes]


def ranges_by_life(layout: Layout, prefix: bytes, version: int) -> tuple[_Range, list[_Range]]:
    """Return the range of the rows of processes that may be alive, and the ranges of the others.

    The rows begin with the version of a request. A later version than that of this transaction is
    one of another cluster, from whose backup the queue was restored. A recovery advances the
    version, so after one all processes that wait start again.
    """
    oldest = version - int(REQUEST_TIMEOUT * VERSIONS)
    first_alive = layout.timer_key(prefix, max(0, oldest), b"")
    after_alive = layout.timer_key(prefix, version + 1, b"")
    begin, end = layout.range_of(prefix)
    return (first_alive, after_alive), [(begin, first_alive), (after_alive, end)]


def begin_staged(
    tr: ReadTransaction, layout: Layout, ranges: list[_Range]
) -> Iterator[tuple[bytes, bytes]]:
    """Start to read the key and the value of each item staged in ranges of results."""
    reads = [tr.get_range(begin, end, streaming_mode=WANT_ALL) for begin, end in ranges]
    return (item for rows in reads for item in layout.staged_items(rows))
