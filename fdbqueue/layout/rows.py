"""Conversion of rows to the items and tasks that users see."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import datetime
from typing import Any, Generic, TypeVar

from fdbqueue.errors import (
    FdbqueueError,
    ForeignKey,
    InvalidItemId,
    InvalidValue,
    PayloadTooLarge,
    UndecodableItem,
)
from fdbqueue.layout.items import StoredItem
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.priorities import Levels
from fdbqueue.layout.tasks import TaskRecord, deadline_from
from fdbqueue.layout.values import MAX_PAYLOAD, NO_HEADER, Header, utc_time
from fdbqueue.types import Codec, Item, Task, TaskPriority

_T = TypeVar("_T")


class RowCodec(ABC, Generic[_T]):
    """The conversion of one queue's rows."""

    def __init__(self, layout: Layout, levels: Levels, codec: Codec) -> None:
        self._layout = layout
        self._levels = levels
        self._codec = codec

    def encode(self, value: object, *, was_decoded: bool = False) -> bytes:
        """Return the payload of a value; raise `InvalidValue` or `PayloadTooLarge`.

        A value that `was_decoded` may exceed the nesting limit.
        """
        encode: Callable[[Any], bytes] = self._codec.encode
        if was_decoded:
            encode = getattr(self._codec, "restore", encode)
        try:
            payload = encode(value)
        except FdbqueueError:
            raise
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidValue(value, f"the value cannot be stored: {error}") from error
        if not isinstance(payload, bytes):
            raise InvalidValue(value, f"the codec returned {type(payload).__name__}, not bytes")
        if len(payload) > MAX_PAYLOAD:
            raise PayloadTooLarge(len(payload), MAX_PAYLOAD)
        return payload

    def decode(self, item: StoredItem, payload: bytes) -> _T:
        """Return a stored item as users see it; raise `UndecodableItem`."""
        try:
            value = self._codec.decode(payload)
        except (ValueError, TypeError, RecursionError) as error:
            raise UndecodableItem(self.id_of(item), str(error)) from error
        return self.public(item.key, value, item.level.priority, item.header)

    @abstractmethod
    def public(self, key: bytes, value: Any, priority: Any, header: Header = NO_HEADER) -> _T:
        """Return an item as users see it."""

    @abstractmethod
    def pushed(self, key: bytes, value: Any, priority: Any) -> Any:
        """Return what `push` returns for a new item."""

    @abstractmethod
    def value_of(self, item: _T) -> Any:
        """Return the value of an item from `public`."""

    def id_of(self, item: StoredItem) -> str:
        """Return the id of an item."""
        return self._layout.item_id(item.key, item.header.origin)

    def restore(self, item: _T) -> tuple[bytes, bytes, Header]:
        """Return the key, payload and header of a popped item."""
        popped: Any = item
        key, first = self.key_of(item), self.reference(item)
        origin = None if first == self._layout.position(key) else first
        header = Header(*popped.metadata)._replace(origin=origin)
        return key, self.encode(self.value_of(item), was_decoded=True), header

    def reference(self, item: _T | str) -> bytes:
        """Return the first position of an item or id; raise `InvalidItemId`."""
        key = self.key_of(item)
        if isinstance(item, (Item, Task)) and self._layout.item_id(key) != item.id:
            key = self.key_of(item.id)  # it was moved
        return self._layout.position(key)

    def pushed_at(self, item: _T | str) -> datetime | None:
        """Return when an item was pushed; `None` if unknown."""
        return self._layout.pushed_at(self.key_of(item))

    def key_of(self, item: _T | str) -> bytes:
        """Return the key of an item or id of this queue; raise `InvalidItemId`."""
        if not isinstance(item, (Item, Task)):
            text: Any = item
            return self._layout.unpack_item_id(text, self._levels.position_parts)
        if not item.key.startswith(self._layout.items):
            raise InvalidItemId(item.id)
        return item.key


class ItemCodec(RowCodec[Item]):
    """The items of a priority queue or a FIFO queue."""

    def public(self, key: bytes, value: object, priority: Any, header: Header = NO_HEADER) -> Item:
        """Return an item as users see it."""
        tick = None if header.tick is None else utc_time(header.tick)
        id = self._layout.item_id(key, header.origin)
        return Item(value, priority, id, key, tick=tick, metadata=header)

    pushed = public

    def value_of(self, item: Item) -> Any:
        """Return the value of an item from `public`."""
        return item.value


class TaskRowCodec(RowCodec[Task]):
    """The tasks of a task queue."""

    def public(
        self, key: bytes, value: TaskRecord, priority: Any, header: Header = NO_HEADER
    ) -> Task:
        """Return a task as users see it."""
        urgency, deadline, cost = priority
        created = self._layout.pushed_at(key)
        if created is None:
            raise ForeignKey(key)
        return Task(
            self._layout.item_id(key, header.origin),
            TaskPriority(urgency),
            deadline_from(deadline),
            cost,
            *value,
            created,
            key,
            header,
        )

    def pushed(self, key: bytes, value: TaskRecord, priority: Any) -> str:
        """Return the id of a new task."""
        return self._layout.item_id(key)

    def value_of(self, item: Task) -> TaskRecord:
        """Return the record of a task from `public`."""
        return TaskRecord(item.agent_name, item.client_id, item.payload)
