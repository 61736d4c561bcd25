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
from typing import TYPE_CHECKING, Any

from fdb import fdboptions
from fdb import tuple as fdb_tuple
from fdb.subspace_impl import Subspace

from fdbqueue.errors import InvalidItemId
from fdbqueue.layout.values import pieces_id, time_of, unpack_staged
from fdbqueue.types import KeyValue, Priority, State

if TYPE_CHECKING:
    from fdbqueue.layout.items import Level

WANT_ALL = fdboptions.StreamingMode["want_all"][0]
"""The streaming mode that returns all rows at once."""

# (count, random) as the tuple layer packs them: an integer from zero, and bytes. And the same after
# a priority that is an integer of either sign.
_SIZES_OF_INTEGERS = range(1, 9)  # bytes
_POSITIVE = b"|".join(b"%c.{%d}" % (0x14 + size, size) for size in _SIZES_OF_INTEGERS)
_NEGATIVE = b"|".join(b"%c.{%d}" % (0x14 - size, size) for size in _SIZES_OF_INTEGERS)
_COUNT_AND_RANDOM = rb"(?:\x14|" + _POSITIVE + rb")\x01[^\x00]*(?:\x00\xff[^\x00]*)*\x00"
_TEXT = rb"\x02[^\x00]*(?:\x00\xff[^\x00]*)*\x00"
_GROUP = b"(" + _TEXT + b")?"
_ITEM_KEY = re.compile(_COUNT_AND_RANDOM, re.DOTALL)
GROUPED_ITEM_KEY = re.compile(_GROUP + _COUNT_AND_RANDOM, re.DOTALL)
"""An item's key behind its priority; match 1 is its packed group."""
INTEGER_ITEM_KEY = re.compile(
    rb"(\x14|" + _POSITIVE + b"|" + _NEGATIVE + b")" + _GROUP + _COUNT_AND_RANDOM, re.DOTALL
)
"""An item's key with an integer priority; matches 1 and 2 are the packed priority and group."""
FIRST_COUNT = b"\x14"
"""The first byte of a packed count, which sorts after all groups."""

MAX_SHARDS = 64
IN_SHARD = b"\x27"
"""The first byte of a packed shard: true. It sorts after all priorities, groups and counts."""
_SHARD_SIZE = 3  # bytes of a packed shard: true, and its number from 1


@functools.lru_cache(MAX_SHARDS)
def shard_prefix(number: int) -> bytes:
    """Return the beginning of all positions in a shard; empty for the first one."""
    return fdb_tuple.pack((True, number)) if number else b""


LATER_SHARDS = tuple(map(shard_prefix, range(1, MAX_SHARDS)))
"""The beginnings of positions in all shards but the first."""


def shard_of(position: bytes) -> bytes:
    """Return the beginning of a position that names its shard; empty for the first one."""
    return position[:_SHARD_SIZE] if position.startswith(IN_SHARD) else b""


MAX_PREFIX = 4_900
"""Maximum size of a queue's prefix, in bytes."""

_URL_SAFE = bytes.maketrans(b"+/", b"-_")


_NULL = b"\x00"  # the priority of a FIFO queue in the keys of groups; begins references of timers
_PACKED_TEXT = re.compile(_TEXT, re.DOTALL)


@functools.lru_cache(4096)
def _packed_group(group: str | None) -> bytes:
    return fdb_tuple.pack((group,))


def unpack_priority(packed: bytes) -> Any:
    """Return the priority of a level; `packed` is its prefix without that of all items."""
    return fdb_tuple.unpack(packed.removeprefix(shard_of(packed)) or _NULL)[0]


def receipt_key(receipts: Subspace, hour: int, client_id: bytes) -> bytes:
    """Return the key of a client's receipt; `hour` is its start since 1970."""
    return bytes(receipts.key()) + _client_key(hour, client_id)


@functools.lru_cache(maxsize=1_000)
def _client_key(hour: int, client_id: bytes) -> bytes:
    return fdb_tuple.pack((hour, client_id))


def receipts_before(receipts: Subspace, hour: int) -> tuple[bytes, bytes]:
    """Return the range of receipts of clients started before an hour."""
    return receipts.range().start, receipts.pack((hour,))


class _Prefix:
    """The first bytes of some keys, on a layout with its queue's prefix."""

    def __init__(self, *parts: Any) -> None:
        self._packed: bytes = fdb_tuple.pack(parts)

    def __set_name__(self, _: type[Layout], name: str) -> None:
        self._name = name

    def __get__(self, layout: Layout | None, _: type[Layout]) -> bytes:
        if layout is None:
            return self._packed
        prefix: bytes = layout.subspace.key() + self._packed
        layout.__dict__[self._name] = prefix  # which Python finds first from now on
        return prefix


class OfItems(_Prefix):
    """A prefix of keys that a queue without items lacks."""


class Index(OfItems):
    """A prefix of keys that lead to an item, a schedule or a signal."""


class Number(OfItems):
    """A prefix of counters that have no key at zero."""


class Layout:
    """The keys of one queue.

    The *position* of an item is its key without the prefix of the key space; indexes store it.

    `x_key` builds a key, and `unpack_x_key` reads its parts. `x_prefix` builds a prefix, `x_range`
    and `x_before` a range.
    """

    items = OfItems(0)
    counts = Number(1)
    totals = _Prefix(2)
    total_in = _Prefix(2, 0)
    total_rejected = _Prefix(2, 1)
    tallies = _Prefix(2, 2)
    pieces = OfItems(3)
    options = _Prefix(5, "layout")
    deployed = _Prefix(5, "deployed")
    scheduled = _Prefix(5, "scheduled")
    linked = _Prefix(5, "linked")
    wake_counter = _Prefix(5, "freed")
    cancel_counter = _Prefix(5, "cancelled")
    arrivals = _Prefix(5, "arrived")
    waiters = _Prefix(5, "idle")
    waiting_claims = _Prefix(5, "idle", 0)
    waiting_pops = _Prefix(5, "idle", 1)
    requests = _Prefix(7)
    results = OfItems(8)
    leader = _Prefix(9)
    places = _Prefix(10)
    idempotency_keys = _Prefix(11)
    idempotency_ends = _Prefix(12)
    claims = OfItems(16)
    leases = Index(17)
    delayed = OfItems(18)
    dues = Index(19)
    dead = OfItems(20)
    expiries = Index(21)
    unique_keys = Index(22)
    unique_ends = Index(30)
    slots = Number(23)
    slot_places = _Prefix(23, 2)
    attempts = OfItems(24)
    done = OfItems(25)
    done_times = Index(26)
    returned = OfItems(27)
    moved = Index(28)
    history = OfItems(29)
    waits = _Prefix(29, 0)
    samples = _Prefix(29, 1)
    runs = _Prefix(29, 2)
    schedules = _Prefix(31)
    steps = OfItems(32)
    signals = OfItems(33)
    signal_ends = Index(34)
    signal_waits = Index(35)
    batches = OfItems(36, 0)
    batch_counts = OfItems(36, 1)
    batch_places = _Prefix(36, 2)
    followers = OfItems(36, 3)
    group_slots = _Prefix(23, 3)
    turns = Index(37, 0)
    group_members = Index(37, 1)
    group_passes = OfItems(37, 2)
    idle_groups = OfItems(37, 3)
    taken_passes = OfItems(37, 4)
    group_settings = _Prefix(37, 5)
    held_groups = _Prefix(37, 6)
    group_counts = Number(37, 7)
    starts = _Prefix(37, 8)
    start_counts = _Prefix(37, 9)
    awaited_retries = OfItems(37, 10)
    group_delays = Number(37, 11)
    group_places = _Prefix(37, 12)
    settling = OfItems(37, 13)
    group_homes = OfItems(37, 14)

    def __init__(self, subspace: Subspace, name: str | None = None) -> None:
        if not isinstance(subspace, Subspace):
            raise TypeError(
                f"a queue is in a Subspace, not in {subspace!r}; PriorityQueue.named(db, name) "
                "opens one by its name"
            )
        if len(subspace.key()) > MAX_PREFIX:
            raise ValueError(
                f"the prefix of a queue may have at most {MAX_PREFIX:,} bytes, and this subspace "
                f"has one of {len(subspace.key()):,}; use a subspace with a shorter prefix"
            )
        self.subspace = subspace
        self.name = name
        self.receipts = subspace[4]
        self.all_items = self.range_of(self.items)
        self.queue_reference = self.group_reference("")
        self.position: Callable[[bytes], bytes] = itemgetter(slice(len(self.items), None))
        """Return the position of the item with this key."""
        # A push reads both at once, backwards: first the options, then the newest waiters.
        self.waiters_and_options = self.waiters, self.options + b"\x00"
        self.prefix_of: dict[State, bytes] = {
            "ready": self.items,
            "delayed": self.delayed,
            "claimed": self.claims,
            "dead": self.dead,
            "done": self.done,
        }
        # The index by time of the items in a state, and the field of `ItemRow` with the time.
        self.timers_of: dict[State, tuple[bytes, str]] = {
            "delayed": (self.dues, "due"),
            "claimed": (self.leases, "lease_end"),
            "done": (self.done_times, "finished_at"),
        }
        self.group_counters: dict[State, bytes] = {
            "ready": self.group_counts,
            "delayed": self.group_delays,
            "claimed": self.group_slots,
        }

    def prefixes(self, kind: type[_Prefix]) -> list[bytes]:
        """Return all prefixes of a kind: `OfItems`, `Index` or `Number`."""
        names = [name for name, each in vars(Layout).items() if isinstance(each, kind)]
        return [getattr(self, name) for name in names]

    # Items

    def level_prefix(self, priority: Priority) -> bytes:
        """Return the prefix of a priority's items."""
        return self.items + fdb_tuple.pack((priority,))

    @staticmethod
    def item_key(prefix: bytes, count: int, random: bytes) -> bytes:
        """Return the key of an item in a level."""
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
        """Return the count in an item's key; `None` for another key."""
        if _ITEM_KEY.fullmatch(key, len(prefix)) is None:
            return None
        begin = len(prefix) + 1
        return int.from_bytes(key[begin : begin + key[begin - 1] - 0x14], "big")

    def unpack_item_key(self, key: bytes) -> tuple[Any, ...]:
        """Return the parts of an item's key: priority, group, count, random."""
        return fdb_tuple.unpack(key[len(self.items) :])

    def item_id(self, key: bytes, origin: bytes | None = None) -> str:
        """Return an item's id: its first position as text."""
        packed = binascii.b2a_base64(origin or key[len(self.items) :], newline=False)
        return packed.translate(_URL_SAFE).rstrip(b"=").decode()

    def unpack_item_id(self, item_id: str, parts: int) -> bytes:
        """Return the key of the item with this id; raise `InvalidItemId`."""
        try:
            packed = base64.urlsafe_b64decode(item_id + "=" * (-len(item_id) % 4))
            position = fdb_tuple.unpack(packed)
        except Exception:
            # Errors of base64, of the character set, or of the tuple layer, which has no class.
            raise InvalidItemId(item_id) from None
        key = self.items + packed
        if packed.startswith(LATER_SHARDS):
            position = position[2:]
        is_grouped = len(position) == parts + 1 and isinstance(position[-3], str)
        has_parts = len(position) == parts or is_grouped
        if not has_parts or not position[-1] or self.item_id(key) != item_id:
            raise InvalidItemId(item_id)
        return key

    def pushed_at(self, key: bytes) -> datetime | None:
        """Return when an item was pushed, if its key has a time."""
        return time_of(self.unpack_item_key(key)[-1])

    @staticmethod
    def range_of_priority(level: Level) -> tuple[bytes, bytes]:
        """Return the range of the items of a level's priority and shard, of all groups."""
        return level.of_priority + b"\x00", level.of_priority + IN_SHARD

    # Entries and counters

    @staticmethod
    def entry_key(index: bytes, *names: bytes | str | int | None) -> bytes:
        """Return the key of an index's entry for some names."""
        return index + fdb_tuple.pack(names)

    @staticmethod
    def unpack_entry(index: bytes, key: bytes) -> tuple[Any, ...]:
        """Return the names from an `entry_key`."""
        return fdb_tuple.unpack(key[len(index) :])

    def counter_key(self, prefix: bytes) -> bytes:
        """Return the key of a level's counter."""
        return self.counts + prefix[len(self.items) :]

    # Failed attempts

    def attempt_key(self, position: bytes, number: int) -> bytes:
        """Return the key of a failed attempt."""
        return self.timer_key(self.attempts + position, number, b"")

    def attempts_range(self, position: bytes) -> tuple[bytes, bytes]:
        """Return the range of an item's failed attempts."""
        return self.range_of(self.attempts + position)

    def unpack_attempt_key(self, key: bytes) -> tuple[bytes, int]:
        """Return the item's position and the attempt's number."""
        *position, number = fdb_tuple.unpack(key[len(self.attempts) :])
        return fdb_tuple.pack(tuple(position)), number

    # Steps of jobs, and signals

    @staticmethod
    def owned_prefix(index: bytes, position: bytes) -> bytes:
        """Return the prefix of an item's steps or followers."""
        return index + fdb_tuple.pack((fdb_tuple.unpack(position)[-1],))

    def step_key(self, position: bytes, name: str) -> bytes:
        """Return the key of a step of an item."""
        return self.entry_key(self.owned_prefix(self.steps, position), name)

    @staticmethod
    def signal_wait(name: str, key: str, step: str, reference: bytes) -> bytes:
        """Return the key of a step's wait, without its space."""
        return fdb_tuple.pack((name, key, step)) + reference

    @staticmethod
    def unpack_signal_wait(wait: bytes) -> tuple[str, str, str, bytes]:
        """Return the signal's name and key, the step's name, and its item's first position."""
        name, key, step, *reference = fdb_tuple.unpack(wait)
        return name, key, step, fdb_tuple.pack(tuple(reference))

    # Pieces of payloads, and unique keys

    def pieces_prefix(self, content: bytes) -> bytes:
        """Return the prefix of the pieces of a content."""
        return self.entry_key(self.pieces, pieces_id(content))

    def unique_key(self, key: str) -> bytes:
        """Return the key of a unique key's holder."""
        return self.entry_key(self.unique_keys, key)

    # Timers: when leases end, delayed items are due, and items expire

    @staticmethod
    def timer_key(index: bytes, when: int, position: bytes) -> bytes:
        """Return the key of a timer at a time, or a lease's version.

        Each shard has its own timers: those of all shards would be one hot range.
        """
        size = (when.bit_length() + 7) // 8
        if position[:1] == IN_SHARD:
            index += position[:_SHARD_SIZE]
        return b"%b%c%b%b" % (index, 0x14 + size, when.to_bytes(size, "big"), position)

    @staticmethod
    def unpack_timer_key(index: bytes, key: bytes) -> tuple[int, bytes]:
        """Return a timer's time or version, and position."""
        begin = len(index) + 1
        if key[begin - 1 : begin] == IN_SHARD:
            begin += _SHARD_SIZE
        end = begin + key[begin - 1] - 0x14
        return int.from_bytes(key[begin:end], "big"), key[end:]

    @staticmethod
    def timers_until(index: bytes, last: int) -> tuple[bytes, bytes]:
        """Return the range of an index's timers, or of a shard of it, up to a time or version."""
        return index + b"\x00", Layout.timer_key(index, last + 1, b"")

    @staticmethod
    def schedule_reference(name: str) -> bytes:
        """Return the reference of a schedule's timer."""
        return fdb_tuple.pack((None, name))

    @staticmethod
    def group_reference(group: str) -> bytes:
        """Return the reference of a held group's timer; the queue's own timer has group `""`."""
        return fdb_tuple.pack((None, None, group))

    @staticmethod
    def unpack_reference(reference: bytes) -> tuple[str | None, str | None]:
        """Return the schedule or the group of a timer's reference; neither for a position."""
        # No position begins with null: neither a priority nor an index can be null.
        if not reference.startswith(_NULL):
            return None, None
        _, schedule, *group = fdb_tuple.unpack(reference)
        return schedule, next(iter(group), None)

    def is_timer_of_queue(self, key: bytes) -> bool:
        """Return whether a key is the queue's own timer."""
        is_timer = key.startswith(self.dues)
        return is_timer and self.unpack_timer_key(self.dues, key)[1] == self.queue_reference

    # Slots of concurrency limits

    slot_of_queue = fdb_tuple.pack((0,))
    """The slot of the whole queue, the only one that a claim may hold."""

    # Groups. The rest of a level is the prefix of its priority without that of all items.

    @staticmethod
    def group_key(index: bytes, group: str | None, rest: bytes = b"") -> bytes:
        """Return a group's key, perhaps in a priority."""
        return index + _packed_group(group) + rest

    def counters_of_group(self, group: str) -> list[bytes]:
        """Return the keys of a group's counters."""
        return [self.group_key(space, group) for space in self.group_counters.values()]

    @staticmethod
    def group_level_prefix(space: bytes, group: str, rest: bytes) -> bytes:
        """Return the prefix of a group's items with a priority."""
        return Layout.group_key(space + (b"" if rest == _NULL else rest), group)

    @staticmethod
    def unpack_group_key(index: bytes, key: bytes) -> tuple[str, bytes]:
        """Return the group and the rest from a `group_key`."""
        packed = _PACKED_TEXT.match(key, len(index))
        assert packed is not None
        return fdb_tuple.unpack(packed[0])[0], key[packed.end() :]

    @staticmethod
    def turn_key(index: bytes, rest: bytes, number: int, group: str) -> bytes:
        """Return the key of a turn at a pass."""
        return Layout.timer_key(index + rest, number, _packed_group(group))

    @staticmethod
    def unpack_turn_key(index: bytes, rest: bytes, key: bytes) -> tuple[int, str]:
        """Return the pass and the group from a `turn_key`."""
        number, group = Layout.unpack_timer_key(index + rest, key)
        return number, fdb_tuple.unpack(group)[0]

    # Pops that wait, and the items staged for them

    def result_prefix(self, request: bytes) -> bytes:
        """Return the prefix of a request's result."""
        return self.results + request[len(self.requests) :]

    def staged_items(self, rows: Iterable[KeyValue]) -> Iterator[tuple[bytes, bytes]]:
        """Yield the key and value of each item in complete results."""
        results = unpack_staged(b"".join(row.value for row in rows))
        for position, value in chain.from_iterable(results):
            yield self.items + position, value

    # The queue itself

    def known_prefixes(self) -> list[bytes]:
        """Return the prefixes of all keys of the queue."""
        return [self.receipts.key(), *self.prefixes(_Prefix)]

    def known_ranges(self) -> list[tuple[bytes, bytes]]:
        """Return the ordered ranges of all keys of the queue."""
        known: list[bytes] = []
        for prefix in sorted(self.known_prefixes()):
            if not (known and prefix.startswith(known[-1])):
                known.append(prefix)
        return [(prefix, prefix + b"\xff") for prefix in known]

    def lasting_ranges(self) -> list[tuple[bytes, bytes]]:
        """Return the ordered ranges of keys that are valid in another database."""
        begin, stop = self.range_of(self.subspace.key())
        ranges: list[tuple[bytes, bytes]] = []
        passing = (self.receipts.key(), self.arrivals, self.waiters, self.requests, self.leader)
        for prefix in passing:
            ranges.append((begin, prefix))
            begin = prefix + b"\xff"
        return [*ranges, (begin, stop)]

    @staticmethod
    def shard_ranges(prefix: bytes, shards: int) -> list[tuple[bytes, bytes]]:
        """Return the range of the keys of each shard below a prefix.

        The range of a single one has all keys: a client may not know yet that there are more.
        """
        if shards == 1:
            return [Layout.range_of(prefix)]
        first = prefix + b"\x00", prefix + IN_SHARD
        return [first, *(Layout.range_of(prefix + shard_prefix(n)) for n in range(1, shards))]

    def later_shards(self, shards: int) -> list[tuple[int, bytes, bytes]]:
        """Return each shard but the first with its range in each key space that has shards."""
        spaces = (
            *(self.items, self.counts, self.total_in, self.tallies, self.claims, self.leases),
            *(self.delayed, self.dues, self.dead, self.expiries, self.attempts),
            *(self.done, self.done_times, self.returned, self.moved),
            *(self.turns, self.idle_groups, self.taken_passes),
        )
        return [
            (number, each + shard_prefix(number), each + shard_prefix(number + 1))
            for each in spaces
            for number in range(1, shards)
        ]

    @staticmethod
    def range_of(prefix: bytes) -> tuple[bytes, bytes]:
        """Return the range of all keys with a prefix."""
        return prefix + b"\x00", prefix + b"\xff"

    @staticmethod
    def places_between(prefix: bytes, kind: int, begin: int, end: int) -> tuple[bytes, bytes]:
        """Return a range of numbered places to conflict on.

        `kind` is 0 for taken places, 1 for places below the number seen taken.
        """
        return Layout.entry_key(prefix, kind, begin), Layout.entry_key(prefix, kind, end)
