"""The keys of one queue, and the values that refer to keys."""

from __future__ import annotations

import base64
import binascii
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import chain
from operator import itemgetter
from typing import Any

from fdb import tuple as fdb_tuple
from fdb.subspace_impl import Subspace

from fdbqueue.errors import InvalidItemId
from fdbqueue.layout.items import StoredItem, time_of, unpack_staged
from fdbqueue.layout.spaces import Space
from fdbqueue.layout.values import (
    HEADER_MARK,
    NO_HEADER,
    Header,
    header_of,
    with_header,
)
from fdbqueue.types import KeyValue, Priority, ReadTransaction, State, Transaction

PIECE_SIZE = 90_000  # bytes; FoundationDB takes values up to 100,000
MAX_PAYLOAD = 8_000_000  # bytes; a transaction of 10,000,000 has room for it

# The first bytes of an item's value if its payload is in pieces. A payload that itself begins with
# these bytes, or with those of a header, is split into pieces too. So no value is ambiguous.
_PIECES = b"\xffpieces:"
_MARKS = (_PIECES, HEADER_MARK)

# (count, random) as the tuple layer packs them: an integer from zero, and bytes. And the same after
# a priority that is an integer of either sign.
_SIZES_OF_INTEGERS = range(1, 9)  # bytes
_POSITIVE = b"|".join(b"%c.{%d}" % (0x14 + size, size) for size in _SIZES_OF_INTEGERS)
_NEGATIVE = b"|".join(b"%c.{%d}" % (0x14 - size, size) for size in _SIZES_OF_INTEGERS)
_COUNT_AND_RANDOM = rb"(?:\x14|" + _POSITIVE + rb")\x01[^\x00]*(?:\x00\xff[^\x00]*)*\x00"
_ITEM_KEY = re.compile(_COUNT_AND_RANDOM, re.DOTALL)
INTEGER_ITEM_KEY = re.compile(
    rb"(\x14|" + _POSITIVE + b"|" + _NEGATIVE + b")" + _COUNT_AND_RANDOM, re.DOTALL
)
"""The key of an item without the prefix of all items, if its priority is an integer: group 1."""


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


@functools.lru_cache(4096)
def _packed_integer(number: int) -> bytes:
    packed: bytes = fdb_tuple.pack((number,))
    return packed


@functools.lru_cache(4096)
def _packed(parts: tuple[Any, ...]) -> bytes:
    packed: bytes = fdb_tuple.pack(parts)
    return packed


@functools.lru_cache(1024)
def _unpacked_slot(slot: bytes) -> tuple[Any, ...]:
    parts: tuple[Any, ...] = fdb_tuple.unpack(slot)
    return parts


def unpack_priority(packed: bytes) -> Any:
    """Return a priority as packed in the prefix of its level."""
    return fdb_tuple.unpack(packed)[0]


def receipt_key(receipts: Subspace, hour: int, client_id: bytes) -> bytes:
    """Return the key of a client's receipt; `hour` since 1970 is when the client started.

    Receipts have a separate subspace: that of a queue, that of the names, or one of the caller's.
    """
    return bytes(receipts.key()) + _client_key(hour, client_id)


@functools.lru_cache(maxsize=1_000)
def _client_key(hour: int, client_id: bytes) -> bytes:
    """Return the key of a client's receipt without its prefix: the same for all its operations."""
    key: bytes = fdb_tuple.pack((hour, client_id))
    return key


def receipts_before(receipts: Subspace, hour: int) -> tuple[bytes, bytes]:
    """Return the range of the receipts of clients that started before an hour."""
    return receipts.range().start, receipts.pack((hour,))


class Layout:
    """The keys of one queue.

    A *level* is the prefix of all items of one priority. A FIFO queue has one level. The *position*
    of an item is its key without the prefix of the key space; indexes store it.

    The names of the methods follow one scheme. `x_key` builds a key, and `unpack_x_key` reads its
    parts. `x_prefix` builds the prefix of several keys, `x_range` and `x_before` build a range.
    `encode_x` and `decode_x` convert values. What takes a transaction reads or writes rows.

    >>> layout = Layout(Subspace(("q",)))
    >>> layout.unpack_item_key(layout.item_key(layout.level_prefix(7), 0, b"r" * 16))
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
        self.all_items = self.range_of(self.items)
        self.position: Callable[[bytes], bytes] = itemgetter(slice(len(self.items), None))
        """Return the position of the item with this key."""
        self.counts: bytes = key(Space.COUNTS)
        self.total_in: bytes = key(Space.TOTALS, 0)
        self.level_counts: bytes = key(Space.TOTALS, 1)
        self.total_rejected: bytes = key(Space.TOTALS, 4)
        self.tallies: bytes = key(Space.TOTALS, 7)
        self.totals: bytes = key(Space.TOTALS)
        self.pieces: bytes = key(Space.PIECES)
        self.receipts = subspace[Space.RECEIPTS]
        self.options: bytes = key(Space.QUEUE, "layout")
        self.arrivals: bytes = key(Space.QUEUE, "arrived")
        self.waiters: bytes = key(Space.QUEUE, "idle")
        self.waiting_claims: bytes = key(Space.QUEUE, "idle", 0)
        self.waiting_pops: bytes = key(Space.QUEUE, "idle", 1)
        # A push reads both at once, backwards: first the options, then the newest waiters.
        self.waiters_and_options = self.waiters, self.options + b"\x00"
        self.imports: bytes = key(Space.IMPORTS)
        self.requests: bytes = key(Space.REQUESTS)
        self.results: bytes = key(Space.RESULTS)
        self.ids: bytes = key(Space.TASK_IDS, 0)
        self.ids_parked: bytes = key(Space.TASK_IDS, 1)
        self.agents: bytes = key(Space.TASK_OWNERS, 0)
        self.clients: bytes = key(Space.TASK_OWNERS, 1)
        self.agent_counts: bytes = key(Space.AGENT_COUNTS)
        self.claims: bytes = key(Space.CLAIMS)
        self.leases: bytes = key(Space.LEASES)
        self.delayed: bytes = key(Space.DELAYED)
        self.dues: bytes = key(Space.DUE_TIMES)
        self.dead: bytes = key(Space.DEAD)
        self.expiries: bytes = key(Space.EXPIRIES)
        self.unique_keys: bytes = key(Space.UNIQUE_KEYS)
        self.attempts: bytes = key(Space.ATTEMPTS)
        self.done: bytes = key(Space.DONE)
        self.done_times: bytes = key(Space.DONE_TIMES)
        self.returned: bytes = key(Space.RETURNED)
        self.moved: bytes = key(Space.MOVED)
        self.history: bytes = key(Space.HISTORY)
        self.waits: bytes = key(Space.HISTORY, 0)
        self.samples: bytes = key(Space.HISTORY, 1)
        self.slots: bytes = key(Space.SLOTS)
        self.agent_slots: bytes = key(Space.SLOTS, 1)
        self.counters = (self.counts, self.level_counts, self.agent_counts, self.slots)
        self.prefix_of: dict[State, bytes] = {
            "ready": self.items,
            "delayed": self.delayed,
            "claimed": self.claims,
            "dead": self.dead,
            "done": self.done,
        }
        self.indexes = (
            *(self.ids, self.ids_parked, self.agents, self.clients),
            *(self.leases, self.dues, self.expiries, self.unique_keys, self.done_times),
            self.moved,
        )
        self.of_items = (
            *(self.items, self.pieces, self.results),
            *(self.counts, self.agent_counts, self.slots),
            *(*self.indexes, self.delayed, self.claims, self.dead, self.attempts),
            *(self.done, self.returned, self.history),
        )
        self.scheduled: bytes = key(Space.QUEUE, "scheduled")
        # A view reads both at once: first the mark that the queue has timers, then the results.
        self.timers_and_results = self.scheduled, self.range_of(self.results)[1]
        self.wake_counter: bytes = key(Space.QUEUE, "freed")
        self.leader: bytes = key(Space.LEADER)
        self.places: bytes = key(Space.PLACES)
        self.slot_places: bytes = key(Space.SLOTS, 2)
        self.idempotency_keys: bytes = key(Space.IDEMPOTENCY_KEYS)
        self.idempotency_hours: bytes = key(Space.IDEMPOTENCY_HOURS)

    # Items

    def level_prefix(self, priority: Priority) -> bytes:
        """Return the prefix of the keys of a priority's items."""
        if type(priority) is int:
            return self.items + _packed_integer(priority)
        packed: bytes = fdb_tuple.pack((priority,))
        return self.items + packed

    @staticmethod
    def item_key(prefix: bytes, count: int, random: bytes) -> bytes:
        """Return the key of an item in the level with this prefix."""
        # Equal to fdb.tuple.pack((count, random)) for counts below 2**63, and several times faster.
        # A test compares both.
        size = (count.bit_length() + 7) // 8
        return b"%b%c%b\x01%b\x00" % (
            prefix,
            0x14 + size,
            count.to_bytes(size, "big"),
            random.replace(b"\x00", b"\x00\xff"),
        )

    @staticmethod
    def unpack_count(key: bytes, prefix: bytes) -> int | None:
        """Return the count in the key of an item of a level; `None` for another key."""
        if _ITEM_KEY.fullmatch(key, len(prefix)) is None:
            return None
        begin = len(prefix) + 1
        return int.from_bytes(key[begin : begin + key[begin - 1] - 0x14], "big")

    def unpack_level_prefix(self, prefix: bytes) -> Any:
        """Return the priority of the level with this prefix; `None` for that of a FIFO queue."""
        return None if prefix == self.items else unpack_priority(prefix[len(self.items) :])

    def unpack_item_key(self, key: bytes) -> tuple[Any, ...]:
        """Return (priority, count, random), or (index, random), from the key of an item."""
        position: tuple[Any, ...] = fdb_tuple.unpack(key[len(self.items) :])
        return position

    @staticmethod
    def is_item_key(key: bytes, prefix: bytes) -> bool:
        """Return whether a key that starts with the prefix of a level is the key of an item."""
        return _ITEM_KEY.fullmatch(key, len(prefix)) is not None

    def item_id(self, key: bytes) -> str:
        """Return the id of the item with this key: its position as text."""
        packed = binascii.b2a_base64(key[len(self.items) :], newline=False)
        return packed.translate(_URL_SAFE).rstrip(b"=").decode()

    def unpack_item_id(self, item_id: str, parts: int) -> bytes:
        """Return the key of the item with this id; raise `InvalidItemId` for an invalid id."""
        try:
            packed = base64.urlsafe_b64decode(item_id + "=" * (-len(item_id) % 4))
            position = fdb_tuple.unpack(packed)
        except Exception:
            # Errors of base64, of the character set, or of the tuple layer, which has no class.
            raise InvalidItemId(item_id) from None
        key = self.items + packed
        if len(position) != parts or not position[-1] or self.item_id(key) != item_id:
            raise InvalidItemId(item_id)
        return key

    def pushed_at(self, key: bytes) -> datetime | None:
        """Return when the item with this key was pushed, by its client's clock.

        Return `None` for an item whose key contains no time.

        >>> layout = Layout(Subspace(("q",)))
        >>> layout.pushed_at(layout.item_key(layout.level_prefix(7), 0, b"any bytes")) is None
        True
        """
        return time_of(self.unpack_item_key(key)[-1])

    # Tasks

    @staticmethod
    def task_id_key(ids: bytes, random: bytes) -> bytes:
        """Return the key that holds the position of the task with this id, in an index of ids."""
        packed: bytes = fdb_tuple.pack((random,))
        return ids + packed

    def task_pushed_at(self, key: bytes) -> datetime | None:
        """Return when a task was pushed, from its key in the index; `None` for another key."""
        if not key.startswith(self.ids):
            return None
        return time_of(fdb_tuple.unpack(key[len(self.ids) :])[0])

    @staticmethod
    def owner_key(index: bytes, name: str | None) -> bytes:
        """Return the prefix of the tasks of an agent or client, or an agent's counter."""
        packed: bytes = fdb_tuple.pack((name,))
        return index + packed

    def unpack_agent_counter_key(self, counter: bytes) -> str:
        """Return the agent whose counter has this key."""
        name: str = fdb_tuple.unpack(counter[len(self.agent_counts) :])[0]
        return name

    # Counters

    def has_items(self, tr: Transaction) -> bool:
        """Return whether an item is ready, by a snapshot read."""
        return bool([*tr.snapshot.get_range(*self.all_items, limit=1)])

    def counter_key(self, prefix: bytes, counts_taken: bool = False) -> bytes:
        """Return the key of the counter of the level with this prefix."""
        return (self.level_counts if counts_taken else self.counts) + prefix[len(self.items) :]

    def unpack_counter_key(self, key: bytes) -> Any:
        """Return the priority whose counter has this key."""
        counts = self.counts if key.startswith(self.counts) else self.level_counts
        return self.unpack_level_prefix(self.items + key[len(counts) :])

    # Payloads

    def write_payload(
        self, tr: Transaction, random: bytes, payload: bytes, header: Header = NO_HEADER
    ) -> bytes:
        """Return the value of an item with this payload; write the pieces of a large payload."""
        value = payload
        if len(payload) > PIECE_SIZE or payload.startswith(_MARKS):
            value = _PIECES + random
            self.write_pieces(tr, self.pieces + fdb_tuple.pack((random,)), payload)
        return value if header is NO_HEADER else with_header(header, value)

    @staticmethod
    def write_pieces(tr: Transaction, prefix: bytes, payload: bytes) -> None:
        """Store bytes of any size in several values behind a prefix."""
        for number, offset in enumerate(range(0, len(payload), PIECE_SIZE)):
            tr[prefix + fdb_tuple.pack((number,))] = payload[offset : offset + PIECE_SIZE]

    def read_payload(self, tr: ReadTransaction, item: StoredItem) -> bytes:
        """Return the payload of an item; read the pieces of a large payload."""
        if not item.content.startswith(_PIECES):
            return item.content
        begin, end = self._piece_range(item.content)
        return b"".join(row.value for row in tr.get_range(begin, end))

    @staticmethod
    def largest_payload(item: StoredItem) -> int:
        """Return the largest possible size of an item's payload, in bytes."""
        return MAX_PAYLOAD if item.content.startswith(_PIECES) else len(item.value)

    def clear_pieces(self, tr: Transaction, value: bytes) -> None:
        """Delete the pieces of a payload, if it has any."""
        content = header_of(value)[1]
        if content.startswith(_PIECES):
            tr.clear_range(*self._piece_range(content))

    def clear_owned(self, tr: Transaction, position: bytes, value: bytes) -> None:
        """Delete what an item that ended owns besides its row.

        That is its pieces, its unique key, its failed attempts, and the way to it by its id.
        """
        if value.startswith(_MARKS):
            self.free_unique(tr, value)
            self.clear_kept(tr, position, value)

    def clear_kept(self, tr: Transaction, position: bytes, value: bytes) -> None:
        """Delete what a done or dead item still owns: all but its unique key."""
        if value.startswith(_MARKS):
            self.clear_pieces(tr, value)
            header, _ = header_of(value)
            if header.attempts:
                self.clear_attempts(tr, position)
            if header.origin is not None:
                tr.clear(self.moved + header.origin)

    # Failed attempts

    def attempt_key(self, position: bytes, number: int) -> bytes:
        """Return the key of a failed attempt of the item at a position."""
        return self.timer_key(self.attempts + position, number, b"")

    def attempts_range(self, position: bytes) -> tuple[bytes, bytes]:
        """Return the range of the failed attempts of the item at a position."""
        return self.range_of(self.attempts + position)

    def clear_attempts(self, tr: Transaction, position: bytes) -> None:
        """Delete the failed attempts of the item at a position."""
        tr.clear_range(*self.attempts_range(position))

    def unpack_attempt_key(self, key: bytes) -> tuple[bytes, int]:
        """Return the position of the item, and the number of the attempt, of a key."""
        *position, number = fdb_tuple.unpack(key[len(self.attempts) :])
        packed: bytes = fdb_tuple.pack(tuple(position))
        return packed, number

    def piece_owner(self, value: bytes) -> bytes | None:
        """Return the prefix of an item's pieces; `None` if its value contains the payload."""
        content = header_of(value)[1]
        return self._piece_range(content)[0] if content.startswith(_PIECES) else None

    def piece_prefix(self, key: bytes) -> bytes:
        """Return the prefix that all pieces of a payload share, given the key of one."""
        random = fdb_tuple.unpack(key[len(self.pieces) :])[0]
        prefix: bytes = self.pieces + fdb_tuple.pack((random,))
        return prefix

    def _piece_range(self, content: bytes) -> tuple[bytes, bytes]:
        prefix = self.pieces + fdb_tuple.pack((content[len(_PIECES) :],))
        return prefix, prefix + b"\xff"

    def unique_key(self, key: str) -> bytes:
        """Return the key that holds the position of the unfinished item with this unique key."""
        packed: bytes = fdb_tuple.pack((key,))
        return self.unique_keys + packed

    def free_unique(self, tr: Transaction, value: bytes) -> None:
        """Release the unique key of an item, if it has one, for another item."""
        unique = header_of(value)[0].unique
        if unique is not None:
            tr.clear(self.unique_key(unique))

    # Timers: when leases end, delayed items are due, and items expire

    @staticmethod
    def timer_key(index: bytes, when: int, position: bytes) -> bytes:
        """Return the key of an item's timer; `when` is a time, or the version of a lease's end."""
        size = (when.bit_length() + 7) // 8
        return b"%b%c%b%b" % (index, 0x14 + size, when.to_bytes(size, "big"), position)

    @staticmethod
    def unpack_timer_key(index: bytes, key: bytes) -> tuple[int, bytes]:
        """Return the time or version of a timer, and the position of its item.

        >>> Layout.unpack_timer_key(b"p", Layout.timer_key(b"p", 1000, b"position"))
        (1000, b'position')
        """
        begin = len(index) + 1
        end = begin + key[begin - 1] - 0x14
        return int.from_bytes(key[begin:end], "big"), key[end:]

    def due_timers(self, version: int, now: int) -> list[tuple[bytes, bytes]]:
        """Return the ranges of the timers that are over: of leases, of delays, and of expiries.

        Leases end by a version, the others at a time in milliseconds since 1970.
        """
        after_version = self.timer_key(b"", version + 1, b"")
        after_now = self.timer_key(b"", now + 1, b"")
        return [
            (self.leases + b"\x00", self.leases + after_version),
            (self.dues + b"\x00", self.dues + after_now),
            (self.expiries + b"\x00", self.expiries + after_now),
        ]

    # Slots of concurrency limits

    @staticmethod
    def slot_of(agent: str | None) -> bytes:
        """Return the slot of an agent, or of the whole queue, as a claim stores it.

        After the prefix of all slots it is the key of the counter.
        """
        packed: bytes = fdb_tuple.pack((0,) if agent is None else (1, agent))
        return packed

    def slot_counter(self, slot: bytes) -> bytes:
        """Return the key of the counter of a slot that a claim holds.

        Claims of layout 4 have stored the number of the slot behind its name.
        """
        kind, *agent = _unpacked_slot(slot)
        return self.slots + self.slot_of(agent[0] if kind else None)

    def unpack_agent_slot_key(self, key: bytes) -> str:
        """Return the agent whose counter of claimed tasks has this key."""
        agent: str = fdb_tuple.unpack(key[len(self.agent_slots) :])[0]
        return agent

    # Items staged for the pops of other processes

    def staged_items(self, rows: Iterable[KeyValue]) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) of each item in the rows of some results, which are complete."""
        results = unpack_staged(b"".join(row.value for row in rows))
        for position, value in chain.from_iterable(results):
            yield self.items + position, value

    # History

    def sample_key(self, seconds: int, number: int) -> bytes:
        """Return the key of the totals at the beginning of a period of this many seconds."""
        packed: bytes = fdb_tuple.pack((seconds, number))
        return self.samples + packed

    def unpack_sample_key(self, key: bytes) -> tuple[int, int]:
        """Return the length in seconds and the number of a period."""
        seconds, number = fdb_tuple.unpack(key[len(self.samples) :])
        return seconds, number

    # The queue itself

    def known_ranges(self) -> list[tuple[bytes, bytes]]:
        """Return the ranges of all keys that the queue may have, in order."""
        prefixes = (
            *self.of_items,
            self.totals,
            self.receipts.key(),
            self.imports,
            self.arrivals,
            self.waiters,
            self.requests,
            self.idempotency_keys,
            self.idempotency_hours,
        )
        keys = (self.options, self.scheduled, self.wake_counter, self.leader)
        return sorted(
            [self.range_of(prefix) for prefix in prefixes] + [(key, key + b"\0") for key in keys]
        )

    def lasting_ranges(self) -> list[tuple[bytes, bytes]]:
        """Return the ranges of the keys that mean the same in another database, in order.

        All keys but receipts, waiting clients, the requests of waiting pops and their leader.
        """
        begin, stop = self.range_of(self.subspace.key())
        ranges: list[tuple[bytes, bytes]] = []
        passing = (self.receipts.key(), self.arrivals, self.waiters, self.requests, self.leader)
        for prefix in passing:
            ranges.append((begin, prefix))
            begin = prefix + b"\xff"
        return [*ranges, (begin, stop)]

    def watched_ranges(self) -> list[tuple[tuple[bytes, bytes], int]]:
        """Return ranges that show whether the queue has changed, and how many rows of each do.

        Every change of the queue changes the options, the counters or the leases. If it was emptied
        and filled again, the first items are others.
        """
        whole = [self.counts, self.totals, self.leases]
        return [
            ((self.options, self.options + b"\x00"), 1),
            *((self.range_of(prefix), 0) for prefix in whole),
            *((self.range_of(prefix), 1) for prefix in self.prefix_of.values()),
        ]

    @staticmethod
    def waiter_key(waiters: bytes, name: bytes) -> bytes:
        """Return the key of a client that waits; `waiters` is the prefix of those of its kind."""
        packed: bytes = fdb_tuple.pack((name,))
        return waiters + packed

    @staticmethod
    def unpack_waiter_key(waiters: bytes, key: bytes) -> bytes:
        """Return the name of the client that waits under a key."""
        name: bytes = fdb_tuple.unpack(key[len(waiters) :])[0]
        return name

    def newest_waiter(self, waiters: bytes) -> bytes:
        """Return the key that holds the name of the client of this kind that came last."""
        return self.arrivals + waiters[len(self.waiters) :]

    def idempotency_key(self, key: str) -> bytes:
        """Return the key that holds the record of the push with this idempotency key."""
        packed: bytes = fdb_tuple.pack((key,))
        return self.idempotency_keys + packed

    def idempotency_hour_key(self, hour: int, key: str) -> bytes:
        """Return the key of an idempotency key in the index of hours since 1970."""
        packed: bytes = fdb_tuple.pack((hour, key))
        return self.idempotency_hours + packed

    def idempotency_keys_before(self, hour: int) -> tuple[bytes, bytes]:
        """Return the range of the idempotency keys of earlier hours, in the index of hours."""
        return self.idempotency_hours + b"\x00", self.idempotency_hours + fdb_tuple.pack((hour,))

    def unpack_idempotency_hour_key(self, entry: bytes) -> str:
        """Return the idempotency key from a key of the index of hours."""
        key: str = fdb_tuple.unpack(entry[len(self.idempotency_hours) :])[1]
        return key

    def import_key(self, source: str) -> bytes:
        """Return the key that holds the progress of an import."""
        key: bytes = self.imports + fdb_tuple.pack((source,))
        return key

    def import_week_key(self, week: int, source: str) -> bytes:
        """Return the key of an import in the index of weeks since 1970 in which imports ran."""
        key: bytes = self.imports + fdb_tuple.pack((week, source))
        return key

    def import_weeks_before(self, week: int) -> tuple[bytes, bytes]:
        """Return the range of the imports of earlier weeks, in the index of weeks."""
        return self.imports + fdb_tuple.pack((0,)), self.imports + fdb_tuple.pack((week,))

    def unpack_import_week_key(self, entry: bytes) -> str:
        """Return the source of an import from a key of the index of weeks."""
        source: str = fdb_tuple.unpack(entry[len(self.imports) :])[1]
        return source

    @staticmethod
    def range_of(prefix: bytes) -> tuple[bytes, bytes]:
        """Return the range of all packed keys with a prefix."""
        return prefix + b"\x00", prefix + b"\xff"

    @staticmethod
    def places_between(prefix: bytes, kind: int, begin: int, end: int) -> tuple[bytes, bytes]:
        """Return a range of the numbered places with a prefix, to conflict on.

        Args:
            prefix: The prefix of the places of a bound or a limit.
            kind: 0 for the places that transactions take, 1 for those below what they saw taken.
            begin: The first number.
            end: The number behind the last one.
        """
        return prefix + fdb_tuple.pack((kind, begin)), prefix + fdb_tuple.pack((kind, end))
