"""A queue's counters: levels, totals and tallies."""

from __future__ import annotations

from collections.abc import Iterable

from fdb.subspace_impl import Subspace

from fdbqueue.layout.keys import LATER_SHARDS, MAX_SHARDS, Layout
from fdbqueue.layout.values import TALLIES, decode_count, decode_tallies
from fdbqueue.types import KeyValue


def counters_range(subspace: Subspace) -> tuple[bytes, bytes]:
    """Return the range of all counters, without a slow `Layout`."""
    prefix: bytes = subspace.key()
    return prefix + Layout.counts, prefix + Layout.totals + b"\xff"


def totals_range(subspace: Subspace) -> tuple[bytes, bytes]:
    """Return the range of all counters but `Counters.levels`."""
    prefix: bytes = subspace.key()
    return prefix + Layout.totals, prefix + Layout.totals + b"\xff"


class Counters:
    """The counters of one queue.

    Attributes:
        levels: The nonzero numbers of ready items, by level prefix.
        taken: The number of items popped or claimed.
        completed: The number popped or acknowledged.
        claimed: The number claimed or staged now.
        shards: A number of shards that includes all with items.
    """

    __slots__ = (
        "claimed",
        "completed",
        "levels",
        "pushed",
        "rejected",
        "shards",
        "taken",
        "tallies",
    )

    def __init__(self, subspace: Subspace, rows: Iterable[KeyValue]) -> None:
        """Decode the rows of `counters_range` or `totals_range`."""
        prefix: bytes = subspace.key()
        items = prefix + Layout.items
        levels: dict[bytes, int] = {}
        total_in = self.rejected = 0
        tallies = {**_NO_TALLIES}
        self.shards = 1
        for row in rows:
            key = row.key[len(prefix) :]
            if key.startswith(Layout.totals) and key.endswith(LATER_SHARDS):
                self.shards = MAX_SHARDS  # a transaction may count for several shards in one
            if key.startswith(Layout.total_in):  # of each shard
                total_in += decode_count(row.value)
            elif key.startswith(Layout.tallies):
                for tally, number in decode_tallies(row.value).items():
                    tallies[tally] += number
            elif key == Layout.total_rejected:
                self.rejected = decode_count(row.value)
            elif key.startswith(Layout.counts):
                levels[items + key[len(Layout.counts) :]] = decode_count(row.value)
        self.levels = levels
        self.tallies = tallies
        self.pushed = total_in - tallies["moved"]
        self.taken = tallies["popped"] + tallies["claimed"]
        self.completed = tallies["popped"] + tallies["acked"]
        self.claimed = tallies["claimed"] - tallies["acked"] - tallies["returned"]

    @property
    def unfinished(self) -> int:
        """The number of ready, delayed and claimed items."""
        tallies = self.tallies
        ended = self.completed + tallies["expired"] + tallies["removed"]
        return self.pushed + tallies["put_back"] - ended - tallies["dead"]

    @property
    def ready(self) -> int:
        """The number of ready items."""
        return self.unfinished - self.tallies["delayed"] - self.claimed


_NO_TALLIES = dict.fromkeys(TALLIES, 0)
