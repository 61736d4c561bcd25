"""The levels of a queue, and its priorities."""

from __future__ import annotations

import base64
import math
import struct
from contextlib import suppress
from functools import lru_cache
from typing import Any, cast

from fdbqueue.errors import ForeignKey, InvalidPriority
from fdbqueue.layout.items import ItemRow, Level, StoredItem
from fdbqueue.layout.keys import (
    FIRST_COUNT,
    GROUPED_ITEM_KEY,
    IN_SHARD,
    INTEGER_ITEM_KEY,
    Layout,
    shard_of,
    unpack_priority,
)
from fdbqueue.layout.tasks import RANK
from fdbqueue.layout.values import ROW_METADATA, decode_metadata
from fdbqueue.types import Json, Priority, PriorityJson, PriorityKind, State

_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
MAX_LEVEL = 5_000
_INTEGER = "a 64-bit integer"
_OMITTED = "omitted: this queue has no priorities"
_CACHED = 1024  # levels
_NULL = b"\x00"  # as the tuple layer packs it
_ELEMENTS = (int, float, str, bytes)


class Levels:
    """The levels of a FIFO queue, one per group."""

    position_parts = 2
    """The number of elements of an ungrouped item's position."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._in_group = lru_cache(_CACHED)(self._new_level_in)
        self._in_shard = lru_cache(_CACHED)(self._new_level_in_shard)
        self._only = _level(layout.items, None, None, _NULL)

    def level(self, priority: Priority | None) -> Level:
        """Return the level of a priority; raise `InvalidPriority`."""
        if priority is not None:
            raise InvalidPriority(priority, _OMITTED)
        return self._only

    def from_json(self, value: PriorityJson) -> Priority:
        """Raise `InvalidPriority`."""
        raise InvalidPriority(value, _OMITTED)

    def level_of(self, key: bytes) -> Level:
        """Return the level of an item's key; raise `ForeignKey`."""
        return self._level_in(self._only, key)

    def in_group(self, level: Level, group: str | None) -> Level:
        """Return a level's counterpart for another group."""
        return level if group == level.group else self._in_group(level, group)

    def _new_level_in(self, level: Level, group: str | None) -> Level:
        packed = Layout.group_key(b"", group) if group else b""
        of_priority = level.of_priority, level.counter, level.priority, level.rest
        return _level(*of_priority, group, packed, level.shard)

    def _level_in(self, level: Level, key: bytes) -> Level:
        match = GROUPED_ITEM_KEY.fullmatch(key, len(level.of_priority))
        if match is None:
            return self._level_in_shard(key)
        return level if match[1] is None else self._in_group(level, unpack_priority(match[1]))

    # Shards

    def in_shard(self, level: Level, shard: bytes) -> Level:
        """Return a level's counterpart in another shard."""
        return level if shard == level.shard else self._in_shard(level, shard)

    def _new_level_in_shard(self, level: Level, shard: bytes) -> Level:
        layout, begin = self._layout, len(level.shard)
        packed = layout.position(level.of_priority)[begin:]
        counter = level.counter
        if counter is not None:
            counter = layout.counts + shard + counter[len(layout.counts) + begin :]
        of_priority = layout.items + shard + packed
        rest = shard + packed or _NULL
        return _level(
            *(of_priority, counter, level.priority, rest),
            *(level.group, level.packed_group, shard),
        )

    def _level_in_shard(self, key: bytes) -> Level:
        items = self._layout.items
        shard = shard_of(key[len(items) :])
        if not shard:
            raise ForeignKey(key)
        return self.in_shard(self.level_of(items + key[len(items) + len(shard) :]), shard)

    def item(self, key: bytes, value: bytes) -> StoredItem:
        """Return the item with this key and value; raise `ForeignKey`."""
        return StoredItem(key, value, self.level_of(key))

    def row(self, state: State, key: bytes, stored: bytes) -> ItemRow:
        """Return an item's row in a state; `key` is its key while ready."""
        if state == "ready":
            item = self.item(key, stored)
            return ItemRow(state, item, item.header.attempts)
        metadata, value = decode_metadata(stored)
        item = StoredItem(key, value, self.level_of(key))
        fields: dict[str, Any] = dict(zip(ROW_METADATA[state], metadata))
        return ItemRow(state, item, fields.pop("attempts", item.header.attempts), **fields)


def _level(
    of_priority: bytes,
    counter: bytes | None,
    priority: Priority | None,
    rest: bytes,
    group: str | None = None,
    packed: bytes = b"",
    shard: bytes = b"",
) -> Level:
    prefix = of_priority + packed
    begin, end = prefix + FIRST_COUNT, prefix + IN_SHARD
    return Level(prefix, begin, end, counter, priority, of_priority, rest, group, packed, shard)


class Priorities(Levels):
    """The priorities of one type, each with a level for each group."""

    position_parts = 3

    def __init__(self, layout: Layout, kind: PriorityKind) -> None:
        super().__init__(layout)
        if kind is not int and not (
            isinstance(kind, tuple) and kind and all(element in _ELEMENTS for element in kind)
        ):
            raise ValueError(
                "priorities must be int or a tuple of int, float, str and bytes types, "
                f"not {kind!r}"
            )
        self._kinds = kind if isinstance(kind, tuple) else None
        # Most queues have few priorities, and a process uses them again and again.
        self._level_of_valid = lru_cache(_CACHED)(self._new_level)
        self._level_of_packed = lru_cache(_CACHED)(self._unpack_level)

    def _unpack_level(self, packed: bytes, group: bytes | None) -> Level:
        level = self._level_of_valid(unpack_priority(packed))
        return level if group is None else self._in_group(level, unpack_priority(group))

    def _new_level(self, priority: Priority) -> Level:
        layout = self._layout
        prefix = layout.level_prefix(priority)
        counter = self._counter_of(priority, prefix)
        return _level(prefix, counter, priority, prefix[len(layout.items) :])

    def _counter_of(self, priority: Priority, prefix: bytes) -> bytes:
        return self._layout.counter_key(prefix)

    def level(self, priority: Priority | None) -> Level:
        """Return the level of a priority; raise `InvalidPriority`."""
        kinds = self._kinds
        if kinds is None:
            if isinstance(priority, int) and not isinstance(priority, bool):
                number = int(priority)  # an IntEnum becomes a plain integer
                if _LOWEST <= number <= _HIGHEST:
                    return self._level_of_valid(number)
            raise InvalidPriority(priority, _INTEGER)
        if (
            type(priority) is tuple
            and len(priority) == len(kinds)
            and all(type(part) is kind for part, kind in zip(priority, kinds))
            and all(part == part for part in priority)  # NaN has no order
        ):
            # Minus zero equals zero, so both must have the same key.
            ranks = tuple(part + 0.0 if type(part) is float else part for part in priority)
            try:
                if len(self._layout.level_prefix(ranks)) <= MAX_LEVEL:
                    return self._level_of_valid(ranks)
            except (ValueError, struct.error) as error:
                raise InvalidPriority(priority, "a value that the tuple layer can pack") from error
            raise InvalidPriority(priority, f"at most {MAX_LEVEL:,} bytes when packed")
        shape = ", ".join(kind.__name__ for kind in kinds)
        raise InvalidPriority(priority, f"a tuple ({shape}{',' if len(kinds) == 1 else ''})")

    def level_of(self, key: bytes) -> Level:
        """Return the level of an item's key; raise `ForeignKey`."""
        if self._kinds is None:
            match = INTEGER_ITEM_KEY.fullmatch(key, len(self._layout.items))
            if match is not None:
                return self._level_of_packed(match[1], match[2])
        else:
            with suppress(Exception):  # the tuple layer raises various classes
                return self._level_in(self.level(self._layout.unpack_item_key(key)[0]), key)
        return self._level_in_shard(key)

    def from_json(self, value: PriorityJson) -> Priority:
        """Return the priority of `priority_as_json`; raise `InvalidPriority`."""
        given: Any = value
        if isinstance(value, list):
            kinds = self._kinds
            if kinds is None:
                raise InvalidPriority(value, _INTEGER)
            given = (*map(_part_from_json, value, kinds), *value[len(kinds) :])
        return cast("Priority", self.level(given).priority)


class TaskLevels(Priorities):
    """The levels of a task queue, with a counter for each urgency."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, RANK)

    def _counter_of(self, priority: Any, prefix: bytes) -> bytes:
        return self._layout.counter_key(self._layout.level_prefix(priority[0]))


_INFINITIES = {"Infinity": math.inf, "-Infinity": -math.inf}


def priority_as_json(priority: tuple[Any, ...] | bytes | str | float | None) -> Json:
    """Return a priority as JSON: tuples as lists, bytes in base64, infinities by name.

    >>> priority_as_json((1, float("inf"), b"x"))
    [1, 'Infinity', 'eA==']
    """
    if isinstance(priority, tuple):
        return [priority_as_json(part) for part in priority]
    if isinstance(priority, bytes):
        return base64.b64encode(priority).decode()
    if isinstance(priority, float) and math.isinf(priority):
        return "Infinity" if priority > 0 else "-Infinity"
    return priority


def _part_from_json(part: object, kind: type) -> Any:
    if kind is float and type(part) is int and abs(part) < 2**1023:
        return float(part)
    if kind is float and isinstance(part, str):
        return _INFINITIES.get(part, part)
    if kind is bytes and isinstance(part, str):
        try:
            return base64.b64decode(part, validate=True)
        except ValueError:
            return part
    return part
