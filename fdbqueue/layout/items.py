"""Items as they are stored, their levels and counters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fdb import tuple as fdb_tuple
from fdb.subspace_impl import Subspace

from fdbqueue.layout.key_table import TALLIES, Space
from fdbqueue.layout.values import (
    HEADER_MARK,
    NO_HEADER,
    PIECES,
    ClaimedItem,
    Dead,
    Delayed,
    Done,
    Header,
    decode_count,
    decode_tallies,
    encode_claim,
    encode_metadata,
    header_of,
    milliseconds_of,
    payload_size,
    with_header,
)
from fdbqueue.types import KeyValue, Outcome, Priority, State

if TYPE_CHECKING:
    from fdbqueue.layout.keys import Layout


class Level(NamedTuple):
    """The items of one priority that have the same group, or none.

    A FIFO queue has one level for each group, and one for the items without a group.

    Attributes:
        prefix: The prefix of the keys of its items.
        begin: The first key that an item of the level may have.
        end: The key behind the last one.
        counter: The key of its counter, or `None`.
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

    def with_header(self, header: Header) -> StoredItem:
        """Return the item with another header."""
        return StoredItem(self.key, with_header(header, self.content), self.level, self.turn)

    @property
    def size(self) -> int:
        """The size of its value and its pieces, in bytes."""
        return len(self.value) + self.is_in_pieces * payload_size(self.content)

    @property
    def is_in_pieces(self) -> bool:
        """True if its payload is stored in pieces."""
        return self.content.startswith(PIECES)


class ItemRow(NamedTuple):
    """An item in a state, with the metadata that its row has in that state.

    Attributes:
        state: The state.
        item: The item, with the key that it has while it is ready.
        attempts: How often it was claimed; how often that failed, if it is ready or delayed.
        due: When it becomes available, if it is delayed.
        token: The identity of its claim; empty for an item that is staged for a pop: it counts as
            claimed, and has no row of its own.
        lease_end: The version at which the lease of its claim ends.
        slots: The slots that it holds while it is claimed.
        lease: The value of the timer of its lease, to store it; it is not read with the row.
        died_at: When it became a dead letter.
        error: Why it did, or why it was discarded or cancelled, if that is known.
        finished_at: When it was done.
        outcome: How it ended, if it is done.
        started_at: When the client that ended it had claimed it, if that is known.
        client: The name of that client.
        log: The lines that it has logged.
    """

    state: State
    item: StoredItem
    attempts: int
    due: int = 0
    token: bytes = b""
    lease_end: int = 0
    slots: tuple[bytes, ...] = ()
    lease: bytes = b""
    died_at: int = 0
    error: str | None = None
    finished_at: int = 0
    outcome: Outcome = "done"
    started_at: int | None = None
    client: str = ""
    log: str = ""

    @property
    def key(self) -> bytes:
        """The key that it has while it is ready."""
        return self.item.key

    @property
    def is_staged(self) -> bool:
        """True if it is staged for a pop, so that it has no row of its own."""
        return self.state == "claimed" and not self.token

    @property
    def claimed_at(self) -> int:
        """When it was claimed, in milliseconds since 1970."""
        return milliseconds_of(self.token)

    def with_header(self, header: Header) -> ItemRow:
        """Return the row with another header."""
        if header is self.item.header:
            return self
        return self._replace(item=self.item.with_header(header))

    def encode(self) -> bytes:
        """Return the value of the row."""
        state, value = self.state, self.item.value
        if state == "ready":
            return value
        if state == "claimed":
            claimed = (self.token, self.lease_end, self.attempts, self.slots, value)
            return encode_claim(ClaimedItem(*claimed))
        if state == "delayed":
            return encode_metadata(Delayed(self.due), value)
        if state == "dead":
            return encode_metadata(Dead(self.attempts, self.died_at, self.error), value)
        done = (self.finished_at, self.attempts, self.outcome, self.error)
        return encode_metadata(Done(*done, self.started_at, self.client, self.log), value)

    def timer(self, layout: Layout) -> tuple[bytes, bytes] | None:
        """Return the key and the value of its timer; `None` if it has none in its state."""
        state, position = self.state, layout.position(self.item.key)
        expires = self.item.header.expires
        if state == "claimed":
            return layout.timer_key(layout.leases, self.lease_end, position), self.lease
        if state == "delayed":
            return layout.timer_key(layout.dues, self.due, position), b""
        if state == "done":
            return layout.timer_key(layout.done_times, self.finished_at, position), b""
        if state == "ready" and expires is not None:
            return layout.timer_key(layout.expiries, expires, position), b""
        return None


_COUNTS, _ITEMS = fdb_tuple.pack((Space.COUNTS,)), fdb_tuple.pack((Space.ITEMS,))
_TOTALS = fdb_tuple.pack((Space.TOTALS,))
_TOTAL_IN = fdb_tuple.pack((Space.TOTALS, 11))
_REJECTED, _TALLIES = fdb_tuple.pack((Space.TOTALS, 4)), fdb_tuple.pack((Space.TOTALS, 10))


def counters_range(subspace: Subspace) -> tuple[bytes, bytes]:
    """Return the range of a queue's counters: those of its levels, and its totals.

    Of many queues this is much faster than to make a `Layout` of each.
    """
    prefix: bytes = subspace.key()
    return prefix + _COUNTS, prefix + _TOTALS + b"\xff"


def totals_range(subspace: Subspace) -> tuple[bytes, bytes]:
    """Return the range of the counters that suffice for all numbers but `Counters.levels`."""
    prefix: bytes = subspace.key()
    return prefix + _TOTALS, prefix + _TOTALS + b"\xff"


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
        total_in = self.rejected = 0
        tallies = _NO_TALLIES
        self.show_layout = True
        for row in rows:
            key = row.key[len(prefix) :]
            if key == _TOTAL_IN:
                total_in = decode_count(row.value)
            elif key == _TALLIES:
                tallies = decode_tallies(row.value)
            elif key == _REJECTED:
                self.rejected = decode_count(row.value)
            elif key.startswith(_COUNTS):
                levels[items + key[len(_COUNTS) :]] = decode_count(row.value)
            else:
                self.show_layout = False
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
