"""Items as they are stored, their levels and counters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

from fdb import tuple as fdb_tuple
from fdb.subspace_impl import Subspace

from fdbqueue.layout.key_table import TALLIES, Space
from fdbqueue.layout.values import (
    HEADER_MARK,
    NO_HEADER,
    PIECES,
    Header,
    decode_count,
    decode_level,
    decode_tallies,
    header_of,
    payload_size,
)
from fdbqueue.types import KeyValue, Priority


class Level(NamedTuple):
    """The items of one priority that have the same group, or none.

    A FIFO queue has one level for each group, and one for the items without a group.

    Attributes:
        prefix: The prefix of the keys of its items.
        begin: The first key that an item of the level may have.
        end: The key behind the last one.
        counter: The key of its counter, or `None`.
        counts_taken: Whether its counter also counts the items popped and claimed.
        priority: The priority; `None` in a FIFO queue.
        of_priority: The prefix of the keys of all items of the priority.
        rest: The priority in the keys of groups; null in a FIFO queue.
        group: The group; `None` for the items without one.
        packed_group: The group in the keys of groups; empty for the items without one.
    """

    prefix: bytes
    begin: bytes
    end: bytes
    counter: bytes | None
    counts_taken: bool
    priority: Priority | None
    of_priority: bytes
    rest: bytes
    group: str | None = None
    packed_group: bytes = b""


class Filter(NamedTuple):
    """The filters of a search: it finds the items that match all of them. `None` matches any item.

    Attributes:
        priority: Their priority.
        agent: Text within the name of the agent of a task, ignoring case.
        id: Text within the id.
        error: Text within the error of the last failed attempt, ignoring case.
        client: Text within the name of the client that has claimed the item, ignoring case.
        job: The name of the job that is its value, or the end of the name behind a dot.
        group: Their group; an empty string for the items without one. The group of a task is its
            agent.
    """

    priority: Any = None
    agent: str | None = None
    id: str | None = None
    error: str | None = None
    client: str | None = None
    job: str | None = None
    group: str | None = None


Rate: TypeAlias = tuple[int, int]
"""The most items that may be started in a time, and that time in milliseconds."""


class GroupSettings(NamedTuple):
    """The settings of a group, or of all groups. `None` stands for that of all, or for none.

    Attributes:
        weight: Its share of what is taken, in proportion to those of other groups.
        concurrency: The most of its items that may be claimed at a time.
        paused: Whether none of its items are handed out.
        rate: The most of its items that may be started in a time, and that time.
        in_order: Whether a failed item is tried again before those behind it, if one may be
            claimed at a time.
        max_size: The most items it may have, including delayed and claimed ones.
        latest: Whether a push cancels the waiting items.
    """

    weight: float | None = None
    concurrency: int | None = None
    paused: bool = False
    rate: Rate | None = None
    in_order: bool | None = None
    max_size: int | None = None
    latest: bool | None = None

    def over(self, default: GroupSettings) -> GroupSettings:
        """Return these settings of a group, given those for all groups."""
        return GroupSettings(
            default.weight if self.weight is None else self.weight,
            default.concurrency if self.concurrency is None else self.concurrency,
            self.paused,
            default.rate if self.rate is None else self.rate,
            default.in_order if self.in_order is None else self.in_order,
            default.max_size if self.max_size is None else self.max_size,
            default.latest if self.latest is None else self.latest,
        )

    @property
    def may_be_full(self) -> bool:
        """True if a push may be refused, or may replace other items."""
        return self.max_size is not None or self.latest is True

    @property
    def is_sequence(self) -> bool:
        """True if a failed item is tried again before those behind it."""
        return self.concurrency == 1 and self.in_order is not False

    def step(self, cost: float) -> int:
        """Return what an item of this cost adds to the pass of its group."""
        return max(1, round(_PASS_OF_ONE * cost / (self.weight or 1)))


_PASS_OF_ONE = 1 << 20  # what an item of cost 1 adds to the pass of a group of weight 1


def encode_group_settings(settings: GroupSettings) -> bytes:
    """Return the stored form of the settings of a group.

    >>> decode_group_settings(encode_group_settings(GroupSettings(2.5, 3))).concurrency
    3
    """
    # Those behind the last one that is set are left out. `paused` is always set.
    given = [number for number, value in enumerate(settings, 1) if value is not None]
    return fdb_tuple.pack(settings[: given[-1]])


def decode_group_settings(value: bytes | None) -> GroupSettings:
    """Return stored settings of a group; the defaults for `None`."""
    return GroupSettings() if value is None else GroupSettings(*fdb_tuple.unpack(value))


def encode_start(time: int, n: int) -> bytes:
    """Return the stored form of the start of `n` items at a time in milliseconds since 1970.

    >>> decode_start(encode_start(1000, 3))
    (1000, 3)
    """
    return fdb_tuple.pack((time, n))


def decode_start(value: bytes) -> tuple[int, int]:
    """Return the time and the number of started items."""
    time, n = fdb_tuple.unpack(value)
    return time, n


class StoredItem:
    """An item as it is stored while it is ready.

    Attributes:
        key: Its key. The other states keep only the position in it.
        value: Its value.
        level: Its level.
        header: The header of its value.
        content: The rest of its value: the payload, or a reference to the payload's pieces.
        turn: The turn of its group in which it was found; `None` for any other item.
    """

    __slots__ = ("content", "header", "key", "level", "turn", "value")

    header: Header

    def __init__(self, key: bytes, value: bytes, level: Level, turn: Any = None) -> None:
        self.key = key
        self.value = value
        self.level = level
        self.turn = turn
        if value.startswith(HEADER_MARK):
            self.header, self.content = header_of(value)
        else:
            self.header, self.content = NO_HEADER, value

    @property
    def size(self) -> int:
        """The size of its value and its pieces, in bytes."""
        return len(self.value) + self.is_in_pieces * payload_size(self.content)

    @property
    def is_in_pieces(self) -> bool:
        """True if its payload is stored in pieces."""
        return self.content.startswith(PIECES)


_COUNTS, _ITEMS = fdb_tuple.pack((Space.COUNTS,)), fdb_tuple.pack((Space.ITEMS,))
_TOTALS = fdb_tuple.pack((Space.TOTALS,))
_TOTAL_IN, _OF_LEVELS = fdb_tuple.pack((Space.TOTALS, 0)), fdb_tuple.pack((Space.TOTALS, 9))
_REJECTED, _TALLIES = fdb_tuple.pack((Space.TOTALS, 4)), fdb_tuple.pack((Space.TOTALS, 8))


def counters_range(subspace: Subspace) -> tuple[bytes, bytes]:
    """Return the range of a queue's counters: those of its levels, and its totals.

    Of many queues this is much faster than to make a `Layout` of each.
    """
    prefix: bytes = subspace.key()
    return prefix + _COUNTS, prefix + _TOTALS + b"\xff"


def totals_range(subspace: Subspace) -> tuple[bytes, bytes]:
    """Return the range of the counters that suffice for all numbers but `Counters.levels`."""
    prefix: bytes = subspace.key()
    return prefix + _TOTAL_IN, prefix + _TOTALS + b"\xff"


class Counters:
    """The counters of one queue.

    Attributes:
        show_layout: Whether they show that the queue has this layout: another one has other keys.
        levels: The number of ready items, by the prefix of the level, if it is not zero.
        pushed: The number of items pushed.
        taken: The number of items popped or claimed.
        completed: The number of items popped or acknowledged.
        claimed: The number of claimed items, including those staged for waiting pops.
        rejected: The number of items for which the queue had no room.
        tallies: The tallies of the queue, by their names.
    """

    __slots__ = (
        *("claimed", "completed", "levels", "pushed", "rejected", "show_layout"),
        *("taken", "tallies"),
    )

    def __init__(self, subspace: Subspace, rows: Iterable[KeyValue]) -> None:
        """Decode the rows of `counters_range` or `totals_range`."""
        prefix: bytes = subspace.key()
        items = prefix + _ITEMS
        levels: dict[bytes, int] = {}
        popped = claimed = total_in = self.rejected = 0
        tallies = _NO_TALLIES
        self.show_layout = False
        for row in rows:
            key = row.key[len(prefix) :]
            if key == _TOTAL_IN:
                total_in = decode_count(row.value)
            elif key == _TALLIES:
                tallies = decode_tallies(row.value)
                self.show_layout = True
            elif key == _REJECTED:
                self.rejected = decode_count(row.value)
            elif key.startswith(_OF_LEVELS):
                ready, from_level, claimed_of_level = decode_level(row.value)
                self.show_layout = True
                popped += from_level
                claimed += claimed_of_level
                if ready:
                    levels[items + key[len(_OF_LEVELS) :]] = ready
            elif key.startswith(_COUNTS):
                levels[items + key[len(_COUNTS) :]] = decode_count(row.value)
        self.show_layout |= not (total_in or levels)
        self.levels = levels
        self.tallies = tallies
        self.pushed = total_in - tallies["moved"]
        popped += tallies["popped"]
        claimed += tallies["claimed"]
        self.taken = popped + claimed
        self.completed = popped + tallies["acked"]
        self.claimed = claimed - tallies["acked"] - tallies["returned"]

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
