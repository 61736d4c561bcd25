"""What a queue takes as priority: integers, or tuples all of one shape."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable
from typing import Any

from fdbqueue.errors import ForeignKey, InvalidPriority
from fdbqueue.layout import Layout
from fdbqueue.types import Priority, PriorityKind

__all__ = ["Levels", "Priorities", "priority_as_json"]

_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
_LONGEST_LEVEL = 5_000  # bytes; a key has at most 10,000
_ELEMENTS = (int, float, str, bytes)


class Levels:
    """The levels of a queue, in each of which items stand in order of arrival.

    A FIFO queue has one level. `Priorities` has one for each priority.
    """

    position_parts = 2
    """How many elements the position of an item has."""

    level_in: Callable[[bytes], bytes | None]
    """Returns the level with which a key begins; `None` if it begins with none."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.level_in = lambda _: layout.items

    def checked(self, priority: Any) -> Priority:
        """Return the priority itself; raise `InvalidPriority`, for there is none here."""
        raise InvalidPriority(priority, "left out: this queue has none")

    def from_json(self, value: Any) -> Priority:
        """Return the priority of this JSON form; raise `InvalidPriority`."""
        return self.checked(value)

    def level_of(self, key: bytes) -> bytes:
        """Return the level of the item with this key; raise `ForeignKey` if it is no item's."""
        level = self.level_in(key)
        if level is None or not self._layout.is_place(key, level):
            raise ForeignKey(key)
        return level


class Priorities(Levels):
    """The priorities of one kind, each of which is a level of a queue.

    >>> from fdb.subspace_impl import Subspace
    >>> Priorities(Layout(Subspace(("q",))), (int, str)).checked((1, "a"))
    (1, 'a')
    """

    position_parts = 3

    def __init__(self, layout: Layout, kind: PriorityKind) -> None:
        super().__init__(layout)
        if kind is not int and not (
            isinstance(kind, tuple) and kind and all(element in _ELEMENTS for element in kind)
        ):
            raise ValueError(
                "priorities is int or a tuple of types from int, float, str and bytes, "
                f"not {kind!r}"
            )
        self._kind = kind
        self.level_in = layout.level_in if kind is int else self._level_of_tuple

    def checked(self, priority: Any) -> Priority:
        """The priority itself; raises `InvalidPriority` if it is not of this kind."""
        if self._kind is int:
            if isinstance(priority, int) and not isinstance(priority, bool):
                number = int(priority)  # an IntEnum's number, for example
                if _LOWEST <= number <= _HIGHEST:
                    return number
            raise InvalidPriority(priority, "an integer of 64 bits")
        kinds: tuple[type, ...] = self._kind  # type: ignore[assignment]
        if (
            type(priority) is tuple
            and len(priority) == len(kinds)
            and all(type(part) is kind for part, kind in zip(priority, kinds))
            and all(part == part for part in priority)  # NaN has no place in an order
        ):
            # Minus zero equals zero, and must not be another key.
            ranks = tuple(part + 0.0 if type(part) is float else part for part in priority)
            try:
                if len(self._layout.level(ranks)) <= _LONGEST_LEVEL:
                    return ranks
            except (ValueError, struct.error) as error:
                raise InvalidPriority(priority, "one that the tuple layer can pack") from error
            raise InvalidPriority(priority, f"packed in at most {_LONGEST_LEVEL:,} bytes")
        shape = ", ".join(kind.__name__ for kind in kinds)
        raise InvalidPriority(priority, f"a tuple ({shape}{',' if len(kinds) == 1 else ''})")

    def from_json(self, value: Any) -> Priority:
        """The priority that `priority_as_json` gave this form; raises `InvalidPriority`.

        >>> from fdb.subspace_impl import Subspace
        >>> Priorities(Layout(Subspace(("q",))), (int, float)).from_json([1, "Infinity"])
        (1, inf)
        """
        if self._kind is int or not isinstance(value, list):
            return self.checked(value)
        kinds: tuple[type, ...] = self._kind  # type: ignore[assignment]
        return self.checked(tuple(map(_part_from_json, value, kinds)) + tuple(value[len(kinds) :]))

    def _level_of_tuple(self, key: bytes) -> bytes | None:
        try:
            return self._layout.level(self.checked(self._layout.position(key)[0]))
        except Exception:
            return None  # the tuple layer has no one class for bytes that are no tuple


_INFINITIES = {"Infinity": math.inf, "-Infinity": -math.inf}


def priority_as_json(priority: Any) -> Any:
    """A priority as a JSON value: a tuple as a list, bytes in base64, infinity as its name.

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


def _part_from_json(part: Any, kind: type) -> Any:
    """A part of a priority of this kind; what is none is left as it is."""
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
