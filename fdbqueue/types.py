"""The types that callers meet: an item, a priority, a codec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

__all__ = ["Codec", "Item", "Options", "Priority", "PriorityKind"]

Priority: TypeAlias = "int | tuple[Any, ...]"
"""What orders the items: an integer of 64 bits, or a tuple; the lowest comes first."""

PriorityKind: TypeAlias = "type[int] | tuple[type, ...]"
"""What a queue takes as priority: `int`, or the types of a tuple's elements, `(int, float)`."""


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a queue, as it was pushed.

    `value` is what was pushed; `priority` where it stands, `None` in a FIFO queue; `id` a text
    that finds it again in its queue; `key` its key in the database.
    """

    value: Any
    priority: Any
    id: str
    key: bytes


@dataclass(frozen=True, slots=True)
class Options:
    """What a queue is: stored with it by its first push, so that all clients agree.

    `kind` is `"priority"`, `"fifo"` or `"task"`; `codec` the name of its codec, of one of the
    caller's own the name of its class; `priorities` what it takes as priority, `None` in a FIFO
    queue; `max_size` how many items it has at most, `None` if there is no such bound; `ageing`
    after how many seconds a task that waits is as urgent as a new one of the next higher priority,
    `None` for never.
    """

    kind: str
    codec: str
    priorities: PriorityKind | None
    max_size: int | None
    ageing: int | None = None


class Codec(Protocol):
    """How values become bytes: `decode(encode(value)) == value`.

    `encode` raises `ValueError` or `TypeError` for what it cannot store, `decode` for bytes that
    it did not write.
    """

    def encode(self, value: Any, /) -> bytes: ...

    def decode(self, payload: bytes, /) -> Any: ...
