"""Pops within a transaction: one, or several in the order of their calls."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Generic, TypeAlias, TypeVar

from fdbqueue.layout.items import StoredItem
from fdbqueue.layout.rows import RowCodec
from fdbqueue.operations.items import BATCH_BYTES, Items
from fdbqueue.operations.payloads import read_payloads
from fdbqueue.types import ReadTransaction, Transaction

_T = TypeVar("_T")

Pop: TypeAlias = tuple[int, bool]
"""The number of items, and whether to take them from the end of the highest priority."""

number_of, _end_of = itemgetter(0), itemgetter(1)
_content_of = attrgetter("content")


class Pops(Generic[_T]):
    """The pops of one queue.

    Args:
        items: The items of the queue within a transaction.
        codec: The conversion between items and rows.
    """

    def __init__(self, items: Items, codec: RowCodec[_T]) -> None:
        self.items = items
        self._codec = codec

    def pop_each(self, tr: Transaction, now: int, requests: Sequence[Pop]) -> list[list[_T]]:
        """Pop for the first requests, as far as one transaction has room; at least for one."""
        return self.pop(tr, now, requests, len(requests))[0]

    def pop(
        self, tr: Transaction, now: int, pops: Sequence[Pop], n_own: int
    ) -> tuple[list[list[_T]], list[list[StoredItem]]]:
        """Delete the items of the first pops, as far as one transaction has room.

        The first pop gets all its items, regardless of their size.

        Args:
            tr: A transaction.
            now: The time in milliseconds since 1970.
            pops: The pops.
            n_own: The number of the first pops that are of this process. The items of the others
                keep what they own.

        Returns:
            For each pop of this process, its items; and for each other one, the stored items.

        Raises:
            UndecodableItem: An item of this process cannot be decoded. The first pop has written
                nothing then.
        """
        left = sum(map(number_of, pops))
        if self.items.options.has_any_rate:
            left = self.items.rate.room_to_pop(tr, now, left)
        own: list[list[_T]] = []
        others: list[list[StoredItem]] = []
        size = 0
        for at_max, group in groupby(pops, _end_of):
            counts = [*map(number_of, group)]
            first = self.items.first(tr, min(sum(counts), left), at_max)
            taken = ours = 0
            for n in counts:
                found = first[taken : taken + n]
                if len(pops) > 1:
                    size += sum(item.size for item in found)
                if size > BATCH_BYTES and (own or others):
                    break
                taken += len(found)
                if len(own) < n_own:
                    own.append(self.decoded(tr, found))
                    ours = taken
                else:
                    others.append(found)
            self.items.pop(tr, now, first[:ours], first[ours:taken])
            left -= taken
            if size > BATCH_BYTES:
                break
        return own, others

    def decoded(self, tr: ReadTransaction, items: list[StoredItem]) -> list[_T]:
        """Return stored items as their user sees them; raise `UndecodableItem` if that fails."""
        payloads = read_payloads(tr, self.items.layout, [*map(_content_of, items)])
        return [*map(self._codec.decode, items, payloads)]
