"""The priorities that a queue accepts: integers, or tuples of one shape."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable
from typing import Any

from fdbqueue.errors import ForeignKey, InvalidPriority
from fdbqueue.layout import Layout
from fdbqueue.types import Json, Priority, PriorityJson, PriorityKind

__all__ = ["Levels", "Priorities", "priority_as_json"]

_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
_MAX_LEVEL = 5_000  # bytes; a key has at most 10,000
_INTEGER = "a 64-bit integer"
_ELEMENTS = (int, float, str, bytes)


class Levels:
    """The levels of a FIFO queue, which has one. Within a level, items are in order of arrival.

    The subclass `Priorities` has one level per priority.
    """

    position_parts = 2
    """The number of elements in the position of an item."""

    level_in: Callable[[bytes], bytes | None]
    """Returns the level that a key begins with; `None` if it begins with none."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.level_in = lambda _: layout.items

    def validate(self, priority: Priority) -> Priority:
        """Raise `InvalidPriority`: a FIFO queue has no priorities."""
        raise InvalidPriority(priority, "omitted: this queue has no priorities")

    def from_json(self, value: PriorityJson) -> Priority:
        """Raise `InvalidPriority`, as `validate` does."""
        raise InvalidPriority(value, "omitted: this queue has no priorities")

    def level_of(self, key: bytes) -> bytes:
        """Return the level of an item's key; raise `ForeignKey` for another key."""
        level = self.level_in(key)
        if level is None or not self._layout.is_item_key(key, level):
            raise ForeignKey(key)
        return level


class Priorities(Levels):
    """The priorities of one type. Each priority is a level of the queue.

    >>> from fdb.subspace_impl import Subspace
    >>> Priorities(Layout(Subspace(("q",))), (int, str)).validate((1, "a"))
    (1, 'a')
    """

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
        self.level_in = layout.level_in if kind is int else self._level_of_tuple

    def validate(self, priority: Priority) -> Priority:
        """Return the priority; raise `InvalidPriority` if it has another type."""
        kinds = self._kinds
        if kinds is None:
            if isinstance(priority, int) and not isinstance(priority, bool):
                number = int(priority)  # an IntEnum becomes a plain integer
                if _LOWEST <= number <= _HIGHEST:
                    return number
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
                if len(self._layout.level(ranks)) <= _MAX_LEVEL:
                    return ranks
            except (ValueError, struct.error) as error:
                raise InvalidPriority(priority, "a value that the tuple layer can pack") from error
            raise InvalidPriority(priority, f"at most {_MAX_LEVEL:,} bytes when packed")
        shape = ", ".join(kind.__name__ for kind in kinds)
        raise InvalidPriority(priority, f"a tuple ({shape}{',' if len(kinds) == 1 else ''})")

    def from_json(self, value: PriorityJson) -> Priority:
        """Return the priority for a JSON value of `priority_as_json`; raise `InvalidPriority`.

        >>> from fdb.subspace_impl import Subspace
        >>> Priorities(Layout(Subspace(("q",))), (int, float)).from_json([1, "Infinity"])
        (1, inf)
        """
        if not isinstance(value, list):
            return self.validate(value)
        kinds = self._kinds
        if kinds is None:
            raise InvalidPriority(value, _INTEGER)
        return self.validate((*map(_part_from_json, value, kinds), *value[len(kinds) :]))

    def _level_of_tuple(self, key: bytes) -> bytes | None:
        try:
            return self._layout.level(self.validate(self._layout.unpack_key(key)[0]))
        except Exception:
            return None  # the tuple layer raises various classes for bytes that are not a tuple


_INFINITIES = {"Infinity": math.inf, "-Infinity": -math.inf}


def priority_as_json(priority: tuple[Any, ...] | bytes | str | float | None) -> Json:
    """Return a priority as a JSON value: tuples as lists, bytes in base64, infinities by name.

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
    """Convert a part of a JSON priority to this type; return it unchanged if that fails."""
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
