"""Stored items, their levels and groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fdbqueue.layout.values import (
    HEADER_MARK,
    NO_HEADER,
    PIECES,
    ROW_METADATA,
    Header,
    encode_metadata,
    header_of,
    milliseconds_of,
    payload_size,
    record_codec,
    with_header,
)
from fdbqueue.types import Outcome, Priority, State

if TYPE_CHECKING:
    from fdbqueue.layout.keys import Layout


class Level(NamedTuple):
    """The items of one priority that have the same group, or none.

    Attributes:
        of_priority: The prefix of the priority's items, of all groups.
        rest: The priority in the keys of groups; null in a FIFO queue.
        packed_group: The group in the keys of groups; empty without one.
        shard: The beginning of its items' positions; empty in the first shard.
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
    shard: bytes = b""


class Filter(NamedTuple):
    """The filters of a search; see `options.Filters`."""

    priority: Any = None
    agent: str | None = None
    id: str | None = None
    error: str | None = None
    client: str | None = None
    job: str | None = None
    group: str | None = None


class Selection(NamedTuple):
    """The matching items in a state, behind `after`; done items newest first."""

    state: State
    wanted: Filter = Filter()
    after: Any = None
    reverse: bool = False


Rate: TypeAlias = tuple[int, int]
"""Maximum number of starts in a period, and the period in milliseconds."""


class GroupSettings(NamedTuple):
    """The settings of a group, or the defaults (`fdbqueue.options.GroupSettings`).

    `None` means the default, or no limit.
    """

    weight: float | None = None
    concurrency: int | None = None
    paused: bool = False
    rate: Rate | None = None
    in_order: bool | None = None
    max_size: int | None = None

    def over(self, default: GroupSettings) -> GroupSettings:
        """Return these settings, completed by the defaults."""
        return GroupSettings._make(
            [other if own is None else own for own, other in zip(self, default)]
        )

    @property
    def is_sequence(self) -> bool:
        """True if a failed item blocks later ones until its retry."""
        return self.concurrency == 1 and self.in_order is not False

    def step(self, cost: float) -> int:
        """Return what an item of this cost adds to its group's pass."""
        return max(1, round(_PASS_OF_ONE * cost / (self.weight or 1)))


_PASS_OF_ONE = 1 << 20  # what an item of cost 1 adds to the pass of a group of weight 1


encode_group_settings, decode_group_settings = record_codec(GroupSettings)


class StoredItem:
    """An item as stored while ready.

    `content` is its payload, or a reference to its pieces; `turn` its group's turn that led to it.
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
        """The size of its value and pieces, in bytes."""
        return len(self.value) + self.is_in_pieces * payload_size(self.content)

    @property
    def is_in_pieces(self) -> bool:
        """True if its payload is stored in pieces."""
        return self.content.startswith(PIECES)


class ItemRow(NamedTuple):
    """An item in a state, with the metadata of its row. Times are in milliseconds since 1970.

    Attributes:
        attempts: The number of claims; for a ready or delayed item, of failed attempts.
        token: The identity of its claim. An item staged for a pop has none, nor a row.
        lease_end: The version at which its lease ends.
        lease: The value of its lease's timer.
        started_at: When its last client claimed it, if known.
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
        """Its key while ready."""
        return self.item.key

    @property
    def is_staged(self) -> bool:
        """True if it is staged for a pop."""
        return self.state == "claimed" and not self.token

    @property
    def claimed_at(self) -> int:
        """When it was claimed."""
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
        metadata = tuple(map(self.__getattribute__, ROW_METADATA[state]))
        return encode_metadata(metadata, value)

    def counters(self, layout: Layout) -> list[bytes]:
        """Return the keys of the group and slot counters that include it."""
        keys = [layout.slots + slot for slot in self.slots]
        level = self.item.level
        # Items that are staged hold no slot of their groups.
        if level.group is not None and self.state in layout.group_counters and not self.is_staged:
            keys.append(layout.group_counters[self.state] + level.packed_group)
        return keys

    def timer(self, layout: Layout) -> tuple[bytes, bytes] | None:
        """Return the key and value of its timer, or `None`."""
        if self.state == "ready":
            index, time = layout.expiries, self.item.header.expires
        elif self.state in layout.timers_of:
            index, field = layout.timers_of[self.state]
            time = getattr(self, field)
        else:
            return None
        if time is None:
            return None
        return layout.timer_key(index, time, layout.position(self.item.key)), self.lease
