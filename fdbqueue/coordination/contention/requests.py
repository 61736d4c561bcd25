"""The rows of waiting pops: their requests, the items staged for them, the name of the leader.

No other module writes these rows, or packs their keys and values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple, TypeAlias

from fdb import tuple as fdb_tuple

from fdbqueue.coordination.batches import MAX_ITEMS
from fdbqueue.layout.items import StoredItem
from fdbqueue.layout.keys import WANT_ALL, Layout
from fdbqueue.layout.values import pack_staged, unpack_staged
from fdbqueue.operations.items import BATCH_BYTES, Items
from fdbqueue.operations.payloads import write_pieces
from fdbqueue.operations.views.staged import REQUEST_TIMEOUT, ranges_by_life
from fdbqueue.types import KeyValue, Transaction

_MAX_REQUESTS = 64  # that one transaction serves

Pop: TypeAlias = tuple[int, bool]
"""The number of items, and whether to take them from the end of the highest priority."""

Staged: TypeAlias = list[list[tuple[bytes, bytes]]]
"""For each pop of a request, the key and the value of each item that is staged for it."""


class Request(NamedTuple):
    """The request of a process that waits for items.

    Attributes:
        key: Its key.
        pops: The pops of the process.
    """

    key: bytes
    pops: list[Pop]


class Requests:
    """The requests of a queue, the items staged for them, and the name of the leader.

    A request has the read version of the transaction that wrote it, so requests are approximately
    in order of arrival. The name of its process makes the key unique. The items staged for it have
    the same version and name. Too many for one value are stored in several.

    Args:
        layout: The keys of the queue.
        items: The items of the queue within a transaction.
    """

    def __init__(self, layout: Layout, items: Items) -> None:
        self._layout = layout
        self._items = items
        self.leader: bytes = layout.leader
        """The key of the name of the leader."""
        # Never written: a request written while the last leader resigns conflicts on this key.
        self.leader_ends: bytes = layout.leader + fdb_tuple.pack(("ends",))

    def seconds_to_sweep(self, tr: Transaction) -> float:
        """Return the seconds until a request may be that of a dead process; `math.inf` if none."""
        prefixes = self._layout.requests, self._layout.results
        ranges = map(self._layout.range_of, prefixes)
        both = [tr.snapshot.get_range(begin, end, limit=1) for begin, end in ranges]
        return REQUEST_TIMEOUT if any(map(list, both)) else math.inf

    def begin_read(self, tr: Transaction) -> Iterable[KeyValue]:
        """Start to read the first requests."""
        begin, end = self._layout.range_of(self._layout.requests)
        return tr.snapshot.get_range(begin, end, limit=_MAX_REQUESTS, streaming_mode=WANT_ALL)

    def live(self, tr: Transaction, rows: Iterable[KeyValue]) -> list[Request]:
        """Return the requests of processes that are not considered dead."""
        requests = [Request(row.key, _decode(row.value)) for row in rows]
        if not requests:
            return []
        version = tr.get_read_version().wait()
        (begin, end), _ = ranges_by_life(self._layout, self._layout.requests, version)
        return [request for request in requests if begin <= request.key < end]

    def key(self, version: int, name: bytes) -> bytes:
        """Return the key of the request that a process of this name makes at a read version."""
        return self._layout.requests + _packed(version, name)

    def write(self, tr: Transaction, name: bytes, pops: list[Pop]) -> bytes:
        """Write the request of a process; return its key. It conflicts with a leader's end."""
        key = self.key(tr.get_read_version().wait(), name)
        tr[key] = _encode(pops, is_next=False)
        tr.add_read_conflict_key(self.leader_ends)
        return key

    def pass_leadership(self, tr: Transaction, following: Request | None) -> None:
        """Make the process of a request the leader; without one, leave the queue without it."""
        if following is None:
            # A request written at the same time would have no leader: conflict with it.
            tr.add_read_conflict_range(*self._layout.range_of(self._layout.requests))
            tr.add_write_conflict_key(self.leader_ends)
            tr.clear(self.leader)
            return
        tr.add_read_conflict_key(following.key)
        tr[following.key] = _encode(following.pops, is_next=True)
        _, tr[self.leader] = fdb_tuple.unpack(following.key[len(self._layout.requests) :])

    # The items staged for a request

    def _result(self, request: bytes) -> bytes:
        return self._layout.results + request[len(self._layout.requests) :]

    def stage(
        self, tr: Transaction, now: int, request: bytes, pops: list[list[StoredItem]]
    ) -> None:
        """Replace a request by the popped items; they count as claimed until the process comes."""
        tr.add_read_conflict_key(request)
        tr.clear(request)
        position = self._layout.position
        packed = pack_staged([[(position(item.key), item.value) for item in pop] for pop in pops])
        write_pieces(tr, self._result(request), packed)
        n = sum(map(len, pops))
        self._items.tally(tr, now, popped=-n, claimed=n)

    def take(self, tr: Transaction, request: bytes) -> Staged | None:
        """Delete and return the items staged for a request; `None` if nothing is."""
        result = self._layout.range_of(self._result(request))
        pieces = [row.value for row in tr.get_range(*result, streaming_mode=WANT_ALL)]
        if not pieces:
            return None
        tr.clear_range(*result)
        items = self._layout.items
        return [
            [(items + position, value) for position, value in pop]
            for pop in unpack_staged(b"".join(pieces))
        ]

    def note_taken(self, tr: Transaction, now: int, staged: Staged) -> None:
        """Count items that `take` has deleted as popped."""
        self._items.tally(tr, now, acked=sum(map(len, staged)))

    def unstage(self, tr: Transaction, now: int, staged: Staged) -> int:
        """Return items that `take` has deleted to their positions; return their size."""
        items = [*chain.from_iterable(staged)]
        for key, value in items:
            self._items.insert(tr, now, key, value)
        if items:
            self._items.count_returned(tr, now, len(items), returned=len(items))
        return sum(len(key) + len(value) for key, value in items)

    def delete(self, tr: Transaction, now: int, request: bytes) -> int:
        """Delete a request, and return the items staged for it; return their size."""
        size = self.unstage(tr, now, self.take(tr, request) or [])
        tr.clear(request)
        return size

    def sweep(self, tr: Transaction, now: int) -> bool:
        """Delete requests of dead processes; return false if too many items are left for this."""
        left = BATCH_BYTES
        version = tr.get_read_version().wait()
        for prefix in (self._layout.requests, self._layout.results):
            _, dead = ranges_by_life(self._layout, prefix, version)
            for begin, end in dead:
                for row in tr.snapshot.get_range(begin, end, limit=MAX_ITEMS):
                    made_by = fdb_tuple.unpack(row.key[len(prefix) :])[:2]
                    left -= self.delete(tr, now, self.key(*made_by))
                    if left < 0:
                        return False
        return True


def _packed(version: int, name: bytes) -> bytes:
    return fdb_tuple.pack((version, name))


def _encode(pops: list[Pop], is_next: bool) -> bytes:
    """Return the value of a request: for each pop, the number of items and which end.

    >>> _decode(_encode([(1, False), (20, True)], is_next=False))
    [(1, False), (20, True)]
    """
    return fdb_tuple.pack((is_next, *chain.from_iterable(pops)))


def _decode(value: bytes) -> list[Pop]:
    parts = fdb_tuple.unpack(value)
    return [*zip(parts[1::2], parts[2::2])]
