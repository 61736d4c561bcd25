"""The types that callers meet: an item, a priority, a codec."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeAlias

__all__ = ["Claim", "Codec", "DeadLetter", "Item", "Options", "Priority", "PriorityKind"]

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
    queue; `max_size` how many items it has at most, with delayed and claimed ones, `None` if there
    is no such bound; `ageing` after how many seconds a task that waits is as urgent as a new one of
    the next higher priority, `None` for never; `max_attempts` how often an item is claimed before
    it is a dead letter, `None` for any number of times; `concurrency` how many items are claimed at
    a time at most, in all, and `agent_concurrency`, of a task queue, of each agent; `paused`
    whether nothing is handed out.
    """

    kind: str
    codec: str
    priorities: PriorityKind | None
    max_size: int | None
    ageing: int | None = None
    max_attempts: int | None = None
    concurrency: int | None = None
    agent_concurrency: int | None = None
    paused: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """Items that a client has claimed: nobody else gets them while its lease lasts.

    `items` are what was claimed (tasks, of a task queue), in order; `attempts` how often each was
    claimed so far, from 1; `keys` where they stood; `token` shows whose claim it is. Iterated, it
    is a claim of each item.
    """

    items: tuple[Any, ...]
    attempts: tuple[int, ...]
    keys: tuple[bytes, ...]
    token: bytes

    @property
    def item(self) -> Any:
        """The first item, of a claim of one."""
        return self.items[0]

    @property
    def attempt(self) -> int:
        """How often the first item was claimed so far."""
        return self.attempts[0]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Claim]:
        for parts in zip(self.items, self.attempts, self.keys):
            item, attempt, key = parts
            yield Claim((item,), (attempt,), (key,), self.token)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An item that failed too often: `error` is what was said at last, `died_at` when.

    `item` is the item (of a task queue, the task), `None` if its payload cannot be read.
    """

    item: Any
    id: str
    attempts: int
    died_at: datetime
    error: str | None


class Codec(Protocol):
    """How values become bytes: `decode(encode(value)) == value`.

    `encode` raises `ValueError` or `TypeError` for what it cannot store, `decode` for bytes that
    it did not write.
    """

    def encode(self, value: Any, /) -> bytes: ...

    def decode(self, payload: bytes, /) -> Any: ...
