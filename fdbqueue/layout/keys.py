"""The keys of one queue, and what is in its values."""

from __future__ import annotations

import base64
import functools
import re
import struct
from collections.abc import Callable, Iterable
from datetime import datetime
from itertools import chain
from typing import Any

from fdb import tuple as fdb_tuple
from fdb.subspace_impl import Subspace

from fdbqueue.errors import InvalidItemId
from fdbqueue.layout.ids import time_of
from fdbqueue.layout.spaces import Space
from fdbqueue.layout.values import (
    HEADER_MARK,
    NO_HEADER,
    Header,
    decode_count,
    header_of,
    with_header,
)
from fdbqueue.types import Priority, ReadTransaction, Transaction

__all__ = ["MAX_PAYLOAD", "Layout"]

PIECE_SIZE = 90_000  # bytes; FoundationDB takes values up to 100,000
MAX_PAYLOAD = 8_000_000  # bytes; a transaction of 10,000,000 has room for it

# Begins the value of an item whose payload is in pieces. A payload that begins so itself, or as if
# it had a header, is put in pieces too, so that there is never a doubt.
_PIECES = b"\xffpieces:"
_MARKS = (_PIECES, HEADER_MARK)

# In a result, what stands before each item: the sizes of its key and its value. Zeros stand before
# the items of each pop.
_SIZES = struct.Struct(">HI")
_BEGIN = _SIZES.pack(0, 0)


# (count, random) as the tuple layer packs them: an integer from zero, and bytes.
_ITEM_KEY = re.compile(
    rb"(?:\x14|" + b"|".join(b"%c.{%d}" % (0x14 + size, size) for size in range(1, 9)) + rb")"
    rb"\x01(?:[^\x00]|\x00\xff)*\x00",
    re.DOTALL,
)


@functools.lru_cache(4096)
def _packed_integer(number: int) -> bytes:
    packed: bytes = fdb_tuple.pack((number,))
    return packed


@functools.lru_cache(4096)
def _packed(parts: tuple[Any, ...]) -> bytes:
    packed: bytes = fdb_tuple.pack(parts)
    return packed


@functools.lru_cache(4096)
def _unpacked(packed: bytes) -> Any:
    """The one element of a packed tuple."""
    return fdb_tuple.unpack(packed)[0]


class Layout:
    """The keys of one queue.

    >>> layout = Layout(Subspace(("q",)))
    >>> layout.unpack_key(layout.item_key(layout.level(7), 0, b"r" * 16))
    (7, 0, b'rrrrrrrrrrrrrrrr')
    """

    def __init__(self, subspace: Subspace, name: str | None = None) -> None:
        if not isinstance(subspace, Subspace):
            raise TypeError(
                f"a queue is in a Subspace, not in {subspace!r}; PriorityQueue.named(db, name) "
                "opens one by its name"
            )
        self.subspace = subspace
        self.name = name
        prefix: bytes = subspace.key()

        def key(*parts: Any) -> bytes:
            return prefix + _packed(parts)

        self.items: bytes = key(Space.ITEMS)
        self.counts: bytes = key(Space.COUNTS)
        self.total_in: bytes = key(Space.TOTALS, 0)
        self.total_out: bytes = key(Space.TOTALS, 1)
        self.total_moved: bytes = key(Space.TOTALS, 2)
        self.total_removed: bytes = key(Space.TOTALS, 3)
        self.total_rejected: bytes = key(Space.TOTALS, 4)
        self.totals: bytes = key(Space.TOTALS)
        self.pieces: bytes = key(Space.PIECES)
        self.receipts = subspace[Space.RECEIPTS]
        self.options: bytes = key(Space.QUEUE, "layout")
        self.imports: bytes = key(Space.IMPORTS)
        self.requests: bytes = key(Space.REQUESTS)
        self.results: bytes = key(Space.RESULTS)
        self.total_expired: bytes = key(Space.TOTALS, 5)
        self.total_died: bytes = key(Space.TOTALS, 6)
        self.ids: bytes = key(Space.TASK_IDS, 0)
        self.ids_not_waiting: bytes = key(Space.TASK_IDS, 1)
        self.agents: bytes = key(Space.TASK_OWNERS, 0)
        self.clients: bytes = key(Space.TASK_OWNERS, 1)
        self.agent_counts: bytes = key(Space.AGENT_COUNTS)
        self.counters = (self.counts, self.agent_counts)
        self.claims: bytes = key(Space.CLAIMS)
        self.leases: bytes = key(Space.LEASES)
        self.delayed: bytes = key(Space.DELAYED)
        self.dues: bytes = key(Space.DUE_TIMES)
        self.dead: bytes = key(Space.DEAD)
        self.expiries: bytes = key(Space.EXPIRIES)
        self.unique_keys: bytes = key(Space.UNIQUE_KEYS)
        self.slots: bytes = key(Space.SLOTS)
        self.agent_slots: bytes = key(Space.SLOTS, 1)
        self.not_waiting = (self.delayed, self.claims, self.dead)
        self.indexes = (
            *(self.ids, self.ids_not_waiting, self.agents, self.clients),
            *(self.leases, self.dues, self.expiries, self.unique_keys, self.slots),
        )
        self.of_items = (
            *(self.items, self.pieces, self.results),
            *(*self.indexes, *self.counters, *self.not_waiting),
        )
        self.scheduled: bytes = key(Space.QUEUE, "scheduled")
        self.wake_counter: bytes = key(Space.QUEUE, "freed")
        self.leader: bytes = key(Space.LEADER)
        # Never written: a request that is written while the last leader leaves conflicts on it.
        self.leader_ends: bytes = key(Space.LEADER, "ends")
        self.places: bytes = key(Space.PLACES, 0)
        self.places_below: bytes = key(Space.PLACES, 1)
        self.idempotency_keys: bytes = key(Space.IDEMPOTENCY_KEYS)
        self.idempotency_hours: bytes = key(Space.IDEMPOTENCY_HOURS)

    # Items

    def level(self, priority: Priority) -> bytes:
        """The prefix of all items of one priority."""
        if type(priority) is int:
            return self.items + _packed_integer(priority)
        packed: bytes = fdb_tuple.pack((priority,))
        return self.items + packed

    @staticmethod
    def item_key(level: bytes, count: int, random: bytes) -> bytes:
        """The key of an item in a level (in a FIFO queue, of the one that there is)."""
        # What fdb.tuple.pack((count, random)) makes of counts below 2**63, several times as fast; a
        # test compares them.
        size = (count.bit_length() + 7) // 8
        return b"%b%c%b\x01%b\x00" % (
            level,
            0x14 + size,
            count.to_bytes(size, "big"),
            random.replace(b"\x00", b"\x00\xff"),
        )

    @staticmethod
    def count_in(key: bytes, level: bytes) -> int:
        """The count in the key of an item, given its level."""
        begin = len(level) + 1
        return int.from_bytes(key[begin : begin + key[begin - 1] - 0x14], "big")

    def level_in(self, key: bytes) -> bytes:
        """The level of the item with this key, in a queue whose priorities are integers."""
        begin = len(self.items)
        return key[: begin + 1 + abs(key[begin] - 0x14)]

    def priority_of(self, level: bytes) -> Any:
        """The priority of a level; `None` of the one that a FIFO queue has."""
        return None if level == self.items else _unpacked(level[len(self.items) :])

    def unpack_key(self, key: bytes) -> tuple[Any, ...]:
        """(priority, count, random), or (index, random), of the key of an item."""
        position: tuple[Any, ...] = fdb_tuple.unpack(key[len(self.items) :])
        return position

    @staticmethod
    def is_item_key(key: bytes, level: bytes) -> bool:
        """Return whether the key is that of an item of this level, with which it starts."""
        return _ITEM_KEY.fullmatch(key, len(level)) is not None

    def item_id(self, key: bytes) -> str:
        """The id of the item with this key: its position, as text."""
        return base64.urlsafe_b64encode(key[len(self.items) :]).rstrip(b"=").decode()

    def key_of_id(self, item_id: str, parts: int) -> bytes:
        """The key of the item with this id; raises `InvalidItemId` if it can be none."""
        try:
            packed = base64.urlsafe_b64decode(item_id + "=" * (-len(item_id) % 4))
            position = fdb_tuple.unpack(packed)
        except Exception:
            # Of base64, of the characters, or of the tuple layer, which has no class of its own.
            raise InvalidItemId(item_id) from None
        key = self.items + packed
        if len(position) != parts or not position[-1] or self.item_id(key) != item_id:
            raise InvalidItemId(item_id)
        return key

    def pushed_at(self, key: bytes) -> datetime | None:
        """When the item with this key was pushed, by its client's clock; `None` if it has no time.

        >>> layout = Layout(Subspace(("q",)))
        >>> layout.pushed_at(layout.item_key(layout.level(7), 0, b"any bytes")) is None
        True
        """
        return time_of(self.unpack_key(key)[-1])

    # Tasks

    @staticmethod
    def id_key(ids: bytes, random: bytes) -> bytes:
        """Where the place of the task with this id is noted, in an index of ids."""
        packed: bytes = fdb_tuple.pack((random,))
        return ids + packed

    def time_of_id(self, key: bytes) -> datetime | None:
        """When the task was pushed whose id has this key; `None` for another key."""
        if not key.startswith(self.ids):
            return None
        return time_of(fdb_tuple.unpack(key[len(self.ids) :])[0])

    @staticmethod
    def indexed(index: bytes, name: str | None) -> bytes:
        """The prefix of one agent or client in an index of them, before places; or of a counter."""
        packed: bytes = fdb_tuple.pack((name,))
        return index + packed

    def position(self, key: bytes) -> bytes:
        """The key of an item without what all have in common, as indexes keep it."""
        return key[len(self.items) :]

    def name_in(self, counter: bytes) -> str:
        """The agent whose counter has this key."""
        name: str = fdb_tuple.unpack(counter[len(self.agent_counts) :])[0]
        return name

    # Counters

    def begin_size(self, tr: ReadTransaction) -> Callable[[], int]:
        """Begin to read how many items there are, with those put aside for pops that wait."""
        total_in, total_out = tr[self.total_in], tr[self.total_out]
        return lambda: decode_count(total_in.value) - decode_count(total_out.value)

    def count_key(self, level: bytes) -> bytes:
        """The counter of a level."""
        return self.counts + level[len(self.items) :]

    def counted_priority(self, key: bytes) -> Any:
        """The priority whose counter has this key."""
        return self.priority_of(self.counted_level(key))

    def counted_level(self, key: bytes) -> bytes:
        """The level whose counter has this key."""
        return self.items + key[len(self.counts) :]

    # Payloads

    def value_of(
        self, tr: Transaction, random: bytes, payload: bytes, header: Header = NO_HEADER
    ) -> bytes:
        """The value of an item with this payload; what is too large for it is stored in pieces."""
        value = payload
        if len(payload) > PIECE_SIZE or payload.startswith(_MARKS):
            value = _PIECES + random
            self._write_pieces(tr, self.pieces + fdb_tuple.pack((random,)), payload)
        return with_header(header, value)

    @staticmethod
    def _write_pieces(tr: Transaction, prefix: bytes, whole: bytes) -> None:
        for number, at in enumerate(range(0, len(whole), PIECE_SIZE)):
            tr[prefix + fdb_tuple.pack((number,))] = whole[at : at + PIECE_SIZE]

    def read_payload(self, tr: ReadTransaction, value: bytes) -> bytes:
        """The payload of an item, whole, given its value."""
        value = header_of(value)[1]
        if not value.startswith(_PIECES):
            return value
        begin, end = self._piece_range(value)
        return b"".join(row.value for row in tr.get_range(begin, end))

    @staticmethod
    def largest_payload(value: bytes) -> int:
        """Return the largest possible size of an item's payload, in bytes, given its value."""
        return MAX_PAYLOAD if header_of(value)[1].startswith(_PIECES) else len(value)

    def clear_pieces(self, tr: Transaction, value: bytes) -> None:
        """Take away the pieces of a payload, if it has any."""
        value = header_of(value)[1]
        if value.startswith(_PIECES):
            tr.clear_range(*self._piece_range(value))

    def end(self, tr: Transaction, value: bytes) -> None:
        """Take away what else is kept of an item that has come to its end."""
        if value.startswith(_MARKS):
            self.clear_pieces(tr, value)
            self.free_unique(tr, value)

    def piece_owner(self, value: bytes) -> bytes | None:
        """The prefix of an item's pieces; `None` if its payload is whole."""
        value = header_of(value)[1]
        return self._piece_range(value)[0] if value.startswith(_PIECES) else None

    def piece_prefix(self, key: bytes) -> bytes:
        """The prefix that a piece shares with the others of its payload."""
        random = fdb_tuple.unpack(key[len(self.pieces) :])[0]
        prefix: bytes = self.pieces + fdb_tuple.pack((random,))
        return prefix

    def _piece_range(self, value: bytes) -> tuple[bytes, bytes]:
        prefix = self.pieces + fdb_tuple.pack((value[len(_PIECES) :],))
        return prefix, prefix + b"\xff"

    def unique_key(self, key: str) -> bytes:
        """Where the place of the one unfinished item with this key is noted."""
        packed: bytes = fdb_tuple.pack((key,))
        return self.unique_keys + packed

    def free_unique(self, tr: Transaction, value: bytes) -> None:
        """Let another item have the key under which this one was unique, if it was."""
        unique = header_of(value)[0].unique
        if unique is not None:
            del tr[self.unique_key(unique)]

    # Items that are not at their places, and when something becomes of items

    @staticmethod
    def when_key(prefix: bytes, when: int, place: bytes) -> bytes:
        """The key that notes a time or version at which something becomes of an item."""
        return prefix + _packed_integer(when) + place

    @staticmethod
    def when(prefix: bytes, key: bytes) -> tuple[int, bytes]:
        """The time or version in such a key, and the place of the item.

        >>> Layout.when(b"p", Layout.when_key(b"p", 1000, b"place"))
        (1000, b'place')
        """
        begin = len(prefix) + 1
        end = begin + key[begin - 1] - 0x14
        return int.from_bytes(key[begin:end], "big"), key[end:]

    def slot_prefix(self, agent: str | None) -> bytes:
        """Return the prefix of the slots of an agent, or of the whole queue."""
        packed: bytes = fdb_tuple.pack((0,) if agent is None else (1, agent))
        return self.slots + packed

    @staticmethod
    def slot_key(prefix: bytes, number: int) -> bytes:
        """The key of a slot."""
        packed: bytes = fdb_tuple.pack((number,))
        return prefix + packed

    def agent_of_slot(self, key: bytes) -> str:
        """The agent whose slot has this key."""
        agent: str = fdb_tuple.unpack(key[len(self.agent_slots) :])[0]
        return agent

    @staticmethod
    def slot_in(prefix: bytes, key: bytes) -> int:
        """The number of the slot with this key."""
        number: int = fdb_tuple.unpack(key[len(prefix) :])[0]
        return number

    # Pops that wait

    def request_key(self, version: int, name: bytes) -> bytes:
        """The key of a request that was made at a read version."""
        key: bytes = self.requests + fdb_tuple.pack((version, name))
        return key

    def requests_before(self, version: int) -> tuple[bytes, bytes]:
        """The range of the requests made before a read version."""
        return self.requests + b"\x00", self.requests + fdb_tuple.pack((version,))

    def results_before(self, version: int) -> tuple[bytes, bytes]:
        """The range of the results of requests made before a read version."""
        return self.results + b"\x00", self.results + fdb_tuple.pack((version,))

    def request_of(self, key: bytes) -> tuple[int, bytes]:
        """Version and name of the request with this key, or of the result with this one."""
        version, name = fdb_tuple.unpack(key[len(self.requests) :])[:2]
        return version, name

    def result_range(self, request: bytes) -> tuple[bytes, bytes]:
        """The range of the result of the request with this key."""
        return self.range_of(self.results + request[len(self.requests) :])

    @staticmethod
    def encode_request(pops: Iterable[tuple[int, bool]], is_next: bool) -> bytes:
        """The value of a request: how many each pop wants, and from which end."""
        value: bytes = fdb_tuple.pack((is_next, *chain.from_iterable(pops)))
        return value

    @staticmethod
    def decode_request(value: bytes) -> list[tuple[int, bool]]:
        """The pops of a request, given its value."""
        parts = fdb_tuple.unpack(value)
        return list(zip(parts[1::2], parts[2::2]))

    def write_result(self, tr: Transaction, request: bytes, pops: Iterable[Iterable[Any]]) -> None:
        """Store the rows that each pop of a request gets."""
        parts: list[bytes] = []
        for rows in pops:
            parts.append(_BEGIN)
            for row in rows:
                key = row.key[len(self.items) :]
                parts += (_SIZES.pack(len(key), len(row.value)), key, row.value)
        self._write_pieces(tr, self.results + request[len(self.requests) :], b"".join(parts))

    def read_result(self, pieces: Iterable[bytes]) -> list[list[tuple[bytes, bytes]]]:
        """The (key, value) of the items that each pop of a request gets."""
        pops: list[list[tuple[bytes, bytes]]] = []
        result = b"".join(pieces)
        at = 0
        while at < len(result):
            key_size, value_size = _SIZES.unpack_from(result, at)
            at += _SIZES.size
            if not key_size:
                pops.append([])
                continue
            key, end = result[at : at + key_size], at + key_size + value_size
            pops[-1].append((self.items + key, result[at + key_size : end]))
            at = end
        return pops

    # The queue itself

    def known_ranges(self) -> list[tuple[bytes, bytes]]:
        """The ranges in which the queue has its keys, in order."""
        prefixes = (
            *self.of_items,
            self.totals,
            self.receipts.key(),
            self.imports,
            self.requests,
            self.idempotency_keys,
            self.idempotency_hours,
        )
        keys = (self.options, self.scheduled, self.wake_counter, self.leader)
        return sorted(
            [self.range_of(prefix) for prefix in prefixes] + [(key, key + b"\0") for key in keys]
        )

    def idempotency_key(self, key: str) -> bytes:
        """Where it is noted what a push with this idempotency key stored."""
        packed: bytes = fdb_tuple.pack((key,))
        return self.idempotency_keys + packed

    def idempotency_hour(self, hour: int, key: str) -> bytes:
        """Where it is noted that there is such a key since an hour."""
        packed: bytes = fdb_tuple.pack((hour, key))
        return self.idempotency_hours + packed

    def idempotency_keys_before(self, hour: int) -> tuple[bytes, bytes]:
        """The range of the notes about keys of earlier hours."""
        return self.idempotency_hours + b"\x00", self.idempotency_hours + fdb_tuple.pack((hour,))

    def key_in_hour(self, note: bytes) -> str:
        """The idempotency key in such a note."""
        key: str = fdb_tuple.unpack(note[len(self.idempotency_hours) :])[1]
        return key

    def import_key(self, source: str) -> bytes:
        """Where an import notes how far it is."""
        key: bytes = self.imports + fdb_tuple.pack((source,))
        return key

    def import_week(self, week: int, source: str) -> bytes:
        """Return the key that notes that an import was run in a week since 1970."""
        key: bytes = self.imports + fdb_tuple.pack((week, source))
        return key

    def import_weeks_before(self, week: int) -> tuple[bytes, bytes]:
        """Return the range of the notes of earlier weeks."""
        return self.imports + fdb_tuple.pack((0,)), self.imports + fdb_tuple.pack((week,))

    def source_in(self, note: bytes) -> str:
        """Return the source of the import in such a note."""
        source: str = fdb_tuple.unpack(note[len(self.imports) :])[1]
        return source

    @staticmethod
    def range_of(prefix: bytes) -> tuple[bytes, bytes]:
        """The range of the packed keys with a prefix."""
        return prefix + b"\x00", prefix + b"\xff"

    @staticmethod
    def places_between(prefix: bytes, begin: int, end: int) -> tuple[bytes, bytes]:
        """A range of the numbered places of a bounded queue, to conflict on."""
        return prefix + fdb_tuple.pack((begin,)), prefix + fdb_tuple.pack((end,))
