"""Codecs of values: JSON, raw bytes, tuples, or a custom one; and what queues show of a row.

Stored bytes are never unpickled or evaluated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Generic, TypeAlias, TypeVar
from uuid import UUID

from fdb import tuple as fdb_tuple

from fdbqueue.errors import (
    FdbqueueError,
    InvalidItemId,
    InvalidValue,
    PayloadTooLarge,
    UndecodableItem,
    UnknownCodec,
)
from fdbqueue.layout.items import StoredItem
from fdbqueue.layout.json import (
    MAX_NESTING,
    TOO_DEEP,
    JsonCodec,
    with_new_stack,
)
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.priorities import Levels
from fdbqueue.layout.values import MAX_PAYLOAD, NO_HEADER, Header, utc_time
from fdbqueue.types import Codec, Item

_T = TypeVar("_T")
_V = TypeVar("_V")

_Element: TypeAlias = "tuple[Any, ...] | list[Any] | UUID | str | bytes | float | None"
"""An element of a tuple that the tuple layer packs."""


def _check_tuple(value: Iterable[_Element], levels: int) -> None:
    if not levels:
        raise ValueError(TOO_DEEP)
    for part in value:
        if isinstance(part, (tuple, list)):
            _check_tuple(part, levels - 1)


class BytesCodec:
    """Bytes, stored unchanged.

    >>> BytesCodec().encode(b"as is")
    b'as is'
    """

    def encode(self, value: object, /) -> bytes:
        """Return the value itself; raise `TypeError` unless it is bytes."""
        if not isinstance(value, bytes):
            raise TypeError(f"this queue stores bytes, not {type(value).__name__}")
        return value

    def decode(self, payload: bytes, /) -> Any:
        """Return the payload itself."""
        return payload


class TupleCodec:
    """Tuples of the types of FoundationDB's tuple layer: text, bytes, numbers, UUIDs, tuples.

    Tuples may be nested up to `MAX_NESTING` levels deep.

    >>> TupleCodec().decode(TupleCodec().encode((1, "a", None)))
    (1, 'a', None)
    """

    def encode(self, value: tuple[Any, ...], /) -> bytes:
        """Return the packed tuple; raise `TypeError` or `ValueError`."""
        if not isinstance(value, tuple):
            raise TypeError(f"this queue stores tuples, not {type(value).__name__}")
        _check_tuple(value, MAX_NESTING)
        return self.restore(value)

    def restore(self, value: tuple[Any, ...], /) -> bytes:
        """Return the payload of a value that `decode` returned."""
        return fdb_tuple.pack(value)

    def decode(self, payload: bytes, /) -> Any:
        """Return the unpacked tuple."""
        return fdb_tuple.unpack(payload)


CODECS: dict[str, Codec] = {"json": JsonCodec(), "bytes": BytesCodec(), "tuple": TupleCodec()}


class MissingCodec:
    """A placeholder for a codec that this program lacks. Encoding and decoding fail."""

    def __init__(self, name: str) -> None:
        self.name = name

    def encode(self, value: object, /) -> bytes:
        """Raise `UnknownCodec`."""
        raise UnknownCodec(self.name, CODECS)

    def decode(self, payload: bytes, /) -> Any:
        """Raise `UnknownCodec`."""
        raise UnknownCodec(self.name, CODECS)


def codec_named(codec: str | Codec) -> Codec:
    """Return the codec with this name, or a custom codec itself.

    >>> codec_named("bytes").decode(b"x")
    b'x'
    """
    if isinstance(codec, str):
        if codec not in CODECS:
            raise UnknownCodec(codec, CODECS)
        return CODECS[codec]
    if not (callable(getattr(codec, "encode", None)) and callable(getattr(codec, "decode", None))):
        raise TypeError(
            f"a codec must be a name or an object with encode and decode, not {codec!r}"
        )
    return codec


def stored_codec(name: str) -> str | Codec:
    """Return the codec of a stored name, or a placeholder for a custom codec.

    >>> stored_codec("json"), stored_codec("Pictures").name
    ('json', 'Pictures')
    """
    return name if name in CODECS else MissingCodec(name)


def codec_name(codec: str | Codec) -> str:
    """Return the name under which a codec is stored; for a custom codec, its class name."""
    if isinstance(codec, (str, MissingCodec)):
        return codec if isinstance(codec, str) else codec.name
    return type(codec).__name__


class RowCodec(ABC, Generic[_T]):
    """The conversion between the items of one queue and their rows.

    Args:
        layout: The keys of the queue.
        levels: The levels of the queue.
        codec: The conversion between values and payloads.
    """

    def __init__(self, layout: Layout, levels: Levels, codec: Codec) -> None:
        self._layout = layout
        self._levels = levels
        self._codec = codec

    def encode(self, value: object, *, was_decoded: bool = False) -> bytes:
        """Return the payload of a value; raise `InvalidValue` or `PayloadTooLarge`.

        An older release may have nested a value deeper that `was_decoded`.
        """
        encode: Callable[[Any], bytes] = self._codec.encode
        if was_decoded:
            encode = getattr(self._codec, "restore", encode)
        try:
            try:
                payload = encode(value)
            except RecursionError:
                payload = with_new_stack(encode, value)
        except FdbqueueError:
            raise
        except (ValueError, TypeError) as error:
            raise InvalidValue(value, f"the value cannot be stored: {error}") from error
        if not isinstance(payload, bytes):
            raise InvalidValue(value, f"the codec returned {type(payload).__name__}, not bytes")
        if len(payload) > MAX_PAYLOAD:
            raise PayloadTooLarge(len(payload), MAX_PAYLOAD)
        return payload

    def decode(self, item: StoredItem, payload: bytes) -> _T:
        """Return a stored item as its user sees it; raise `UndecodableItem` if that fails."""
        try:
            try:
                value = self._codec.decode(payload)
            except RecursionError:
                value = with_new_stack(self._codec.decode, payload)
        except (ValueError, TypeError) as error:
            raise UndecodableItem(self.id_of(item), str(error)) from error
        return self.public(item.key, value, item.level.priority, item.header)

    @abstractmethod
    def public(self, key: bytes, value: Any, priority: Any, header: Header = NO_HEADER) -> _T:
        """Return the item with this key, value, priority and header as users see it."""

    @abstractmethod
    def pushed(self, key: bytes, value: Any, priority: Any) -> Any:
        """Return what `push` returns for a new item with this key, value and priority."""

    @abstractmethod
    def id_of(self, item: StoredItem) -> str:
        """Return the id of an item."""

    @abstractmethod
    def restore(self, item: _T) -> tuple[bytes, bytes, Header]:
        """Return the key, the payload and the header of an item that was popped."""

    @abstractmethod
    def reference(self, item: _T | str) -> bytes:
        """Return the reference of an item or id; raise `InvalidItemId` for an invalid one."""

    @abstractmethod
    def pushed_at(self, item: _T | str) -> datetime | None:
        """Return when an item was pushed, by its client's clock; `None` if unknown."""


class ItemCodec(RowCodec[Item]):
    """The items of a priority queue or a FIFO queue. Their reference is their first position."""

    def public(self, key: bytes, value: object, priority: Any, header: Header = NO_HEADER) -> Item:
        """Return the item with this key, value, priority and header as users see it."""
        first = key if header.origin is None else self._layout.items + header.origin
        tick = None if header.tick is None else utc_time(header.tick)
        item_id = self._layout.item_id(first)
        return Item(value, priority, item_id, key, tick=tick, metadata=header)

    pushed = public

    def id_of(self, item: StoredItem) -> str:
        """Return the id of an item."""
        origin = item.header.origin
        return self._layout.item_id(item.key if origin is None else self._layout.items + origin)

    def restore(self, item: Item) -> tuple[bytes, bytes, Header]:
        """Return the key, the payload and the header of an item that was popped."""
        key, first = self.key_of(item), self.reference(item)
        origin = None if first == self._layout.position(key) else first
        header = Header(*item.metadata)._replace(origin=origin)
        return key, self.encode(item.value, was_decoded=True), header

    def reference(self, item: Item | str) -> bytes:
        """Return the first position of an item or id; raise `InvalidItemId` for an invalid one."""
        key = self.key_of(item)
        if isinstance(item, Item) and self._layout.item_id(key) != item.id:  # it was moved
            key = self.key_of(item.id)
        return self._layout.position(key)

    def pushed_at(self, item: Item | str) -> datetime | None:
        """Return when an item was pushed, by its client's clock; `None` if unknown."""
        return self._layout.pushed_at(self.key_of(item))

    def key_of(self, item: Item | str) -> bytes:
        """Return the key of an item of this queue, or of an id; raise `InvalidItemId`."""
        if not isinstance(item, Item):
            return self._layout.unpack_item_id(item, self._levels.position_parts)
        if not item.key.startswith(self._layout.items):
            raise InvalidItemId(item.id)
        return item.key
