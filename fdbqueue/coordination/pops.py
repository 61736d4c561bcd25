"""Pops within a transaction: some in the order of their calls, or staged for waiting processes.

A waiting process has rows: its request, the items staged for it, and the name of the leader.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain, groupby, starmap
from operator import attrgetter, itemgetter
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from fdbqueue.coordination.combiner import MAX_ITEMS
from fdbqueue.layout.items import ItemRow, StoredItem
from fdbqueue.layout.keys import WANT_ALL, Layout
from fdbqueue.layout.rows import RowCodec
from fdbqueue.layout.values import decode_request, encode_request, pack_staged, unpack_staged
from fdbqueue.operations.items import BATCH_BYTES, POPPED, Items
from fdbqueue.operations.payloads import read_payloads, write_pieces
from fdbqueue.operations.timers import VERSIONS
from fdbqueue.operations.transitions import Change
from fdbqueue.types import KeyValue, ReadTransaction, Transaction

_T = TypeVar("_T")

Pop: TypeAlias = tuple[int, bool]
"""The number of items, and whether to take them from the end of the highest priority."""

number_of, _end_of = itemgetter(0), itemgetter(1)
_content_of = attrgetter("content")

REQUEST_TIMEOUT = 5.0
"""Seconds after which a process that waits for items is considered dead."""

_MAX_REQUESTS = 64  # that one transaction serves

_KeyRange: TypeAlias = tuple[bytes, bytes]

Staged: TypeAlias = list[list[tuple[bytes, bytes]]]
"""For each pop of a request, the key and the value of each item that is staged for it."""


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


class PopRequest(NamedTuple):
    """The request of a process that waits for items.

    Attributes:
        key: Its key.
        pops: The pops of the process.
    """

    key: bytes
    pops: list[Pop]


class PopRequests:
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

    def live(self, tr: Transaction, rows: Iterable[KeyValue]) -> list[PopRequest]:
        """Return the requests of processes that are not considered dead."""
        requests = [PopRequest(row.key, decode_request(row.value)) for row in rows]
        if not requests:
            return []
        version = tr.get_read_version().wait()
        (begin, end), _ = _ranges_by_life(self._layout, self._layout.requests, version)
        return [request for request in requests if begin <= request.key < end]

    def write(self, tr: Transaction, name: bytes, pops: list[Pop]) -> bytes:
        """Write the request of a process; return its key. It conflicts with a leader's end."""
        key = self._layout.request_key(tr.get_read_version().wait(), name)
        tr[key] = encode_request(pops, is_next=False)
        tr.add_read_conflict_key(self._layout.leader_ends)
        return key

    def pass_leadership(self, tr: Transaction, following: PopRequest | None) -> None:
        """Make the process of a request the leader; without one, leave the queue without it."""
        layout = self._layout
        if following is None:
            # A request written at the same time would have no leader: conflict with it.
            tr.add_read_conflict_range(*layout.range_of(layout.requests))
            tr.add_write_conflict_key(layout.leader_ends)
            tr.clear(layout.leader)
            return
        tr.add_read_conflict_key(following.key)
        tr[following.key] = encode_request(following.pops, is_next=True)
        _, tr[layout.leader] = layout.unpack_request_key(following.key)

    def stage(self, tr: Transaction, request: bytes, pops: list[list[StoredItem]]) -> None:
        """Replace a request by the popped items; they count as claimed until the process comes."""
        tr.add_read_conflict_key(request)
        tr.clear(request)
        position = self._layout.position
        packed = pack_staged([[(position(item.key), item.value) for item in pop] for pop in pops])
        write_pieces(tr, self._layout.result_prefix(request), packed)

    def take(self, tr: Transaction, request: bytes) -> Staged | None:
        """Delete and return the items staged for a request; `None` if nothing is."""
        result = self._layout.range_of(self._layout.result_prefix(request))
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
        changes = [Change("collected", row, None, POPPED) for row in self._rows(staged)]
        self._items.transitions.perform(tr, now, changes)

    def unstage(self, tr: Transaction, now: int, staged: Staged) -> int:
        """Return items that `take` has deleted to their positions; return their size."""
        rows = self._rows(staged)
        changes = [Change("unstaged", row, row._replace(state="ready")) for row in rows]
        self._items.transitions.perform(tr, now, changes)
        return sum(len(row.key) + len(row.item.value) for row in rows)

    def _rows(self, staged: Staged) -> list[ItemRow]:
        """Return the rows of staged items: they count as claimed."""
        items = starmap(self._items.levels.item, chain.from_iterable(staged))
        return [ItemRow("claimed", item, item.header.attempts) for item in items]

    def delete(self, tr: Transaction, now: int, request: bytes) -> int:
        """Delete a request, and return the items staged for it; return their size."""
        size = self.unstage(tr, now, self.take(tr, request) or [])
        tr.clear(request)
        return size

    def sweep(self, tr: Transaction, now: int) -> bool:
        """Delete requests of dead processes; return false if too many items are left for this."""
        layout, left = self._layout, BATCH_BYTES
        version = tr.get_read_version().wait()
        for prefix in (layout.requests, layout.results):
            _, dead = _ranges_by_life(layout, prefix, version)
            for begin, end in dead:
                for row in tr.snapshot.get_range(begin, end, limit=MAX_ITEMS):
                    made_by = layout.unpack_request_key(row.key)
                    left -= self.delete(tr, now, layout.request_key(*made_by))
                    if left < 0:
                        return False
        return True


def _ranges_by_life(
    layout: Layout, prefix: bytes, version: int
) -> tuple[_KeyRange, list[_KeyRange]]:
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
