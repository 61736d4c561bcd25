"""Claims: one of the first items, whichever nobody else is taking."""

from __future__ import annotations

import random
from typing import Any

from fdbqueue.combining import Batch
from fdbqueue.database import first_greater_or_equal, run_once
from fdbqueue.layout import Layout
from fdbqueue.rows import WANT_ALL, Decode, Rows
from fdbqueue.types import Item

__all__ = ["Claims", "claimed"]

_LONGEST_BACKOFF = 2  # milliseconds, after a conflict
_NARROWER = 0.95  # what a claim without a conflict leaves of the distance at which to look


def claimed(tr: Any, layout: Layout, rows: Rows, item: Decode, n: int, skipped: int) -> list[Item]:
    """Take `n` items after the first `skipped` ones, or the first ones if there are not so many."""
    begin, end = layout.range_of(layout.items)

    def rows_after(skipped: int) -> list[Any]:
        first = first_greater_or_equal(begin, skipped)
        # The server counts keys, not the queue's: behind the last item stand other ones.
        found = tr.snapshot.get_range(first, end, limit=n, streaming_mode=WANT_ALL)
        return [row for row in found if row.key < end]

    found = rows_after(skipped)
    if len(found) < n and skipped:
        found = rows_after(0)
    if not found:
        tr.add_read_conflict_range(begin, end)  # it was empty, and must be still
    items = [item(tr, row.key, row.value) for row in found]
    rows.drop(tr, [(row.key, row.value) for row in found])
    for row in found:
        layout.clear_payload(tr, row.value)
    return items


class Claims:
    """The claims of one process on one queue and database.

    Threads that claim at the same time share a transaction, which takes as many items that stand
    together. Without conflicts it takes the first ones. After a conflict it looks at a random place
    in twice the distance, up to that which the claims allow; after a success, in a little less.
    """

    def __init__(self, layout: Layout, rows: Rows, item: Decode) -> None:
        self._layout = layout
        self._rows = rows
        self._item = item
        self._distance = 1.0
        self._expected = 1

    def perform(self, db: Any, batch: Batch[int]) -> list[list[Item]]:
        """Do claims, each of which says among how many of the first items."""
        tries = 0

        def body(tr: Any) -> list[list[Item]]:
            nonlocal tries
            tries += 1
            if tries == 2:
                tr.options.set_max_retry_delay(_LONGEST_BACKOFF)
            if self._expected > 1:
                tr.get_read_version().wait()  # others can join meanwhile
            claims = batch.join()
            n = len(claims)
            if tries > 1:
                self._distance = 2 * max(self._distance, n)
            self._distance = min(self._distance, max(n, min(claims)))
            slots = max(1, int(self._distance) // n)
            skipped = n * random.randrange(slots)
            items = claimed(tr, self._layout, self._rows, self._item, n, skipped)
            return [items[at : at + 1] for at in range(n)]

        taken = run_once(db, body, self._layout.receipts, any)
        if tries == 1:
            self._distance *= _NARROWER
        self._expected = len(taken)
        return taken
