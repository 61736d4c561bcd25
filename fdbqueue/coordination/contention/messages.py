"""The messages between the leader and the other processes of a host.

They are never stored. Both sides use the same format, because its version is part of what the name
of the leader's socket is derived from.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum
from functools import partial
from itertools import chain, islice
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from fdbqueue.database.clock import milliseconds
from fdbqueue.database.exactly_once import run_once
from fdbqueue.layout.codecs import RowCodec
from fdbqueue.layout.items import StoredItem
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import NO_HEADER
from fdbqueue.operations.items import Items, NewItem
from fdbqueue.operations.push import Pusher, PushRequest
from fdbqueue.types import Database

FORMAT = 1

MAX_CONTENT = 60_000
"""The largest size of requests or results, in bytes, so that they fit a message."""

_MAX_POPS = 64  # the most items that a process asks the leader for

_T = TypeVar("_T")
_Request = TypeVar("_Request")
_Result = TypeVar("_Result", covariant=True)

_NOT_DUE = b""

_GROUPS_AND_FIELDS = struct.Struct(">II")


def pack_groups(groups: Sequence[Sequence[bytes]]) -> bytes:
    """Return groups of byte strings as one byte string.

    >>> unpack_groups(pack_groups([[b"a", b""], [], [b"bc"]]))
    [[b'a', b''], [], [b'bc']]
    """
    fields = [*chain.from_iterable(groups)]
    n = 2 + len(groups) + len(fields)
    counts, sizes = map(len, groups), map(len, fields)
    return struct.pack(f">{n}I", len(groups), len(fields), *counts, *sizes) + b"".join(fields)


def unpack_groups(packed: bytes, offset: int = 0) -> list[list[bytes]]:
    """Return the groups that `pack_groups` packed; raise `struct.error` for other bytes."""
    n_groups, n_fields = _GROUPS_AND_FIELDS.unpack_from(packed, offset)
    offset += _GROUPS_AND_FIELDS.size
    sizes = struct.unpack_from(f">{n_groups + n_fields}I", packed, offset)
    begin = offset + 4 * len(sizes)
    fields: list[bytes] = []
    for size in sizes[n_groups:]:
        fields.append(packed[begin : begin + size])
        begin += size
    remaining = iter(fields)
    return [[*islice(remaining, count)] for count in sizes[:n_groups]]


def encode_outcome(number: int, results: Sequence[Sequence[bytes]]) -> bytes:
    """Return the receipt of requests that another process of the host performed.

    >>> decode_outcome(encode_outcome(7, [[b"key", b"value"], []]))
    (7, [[b'key', b'value'], []])
    """
    return number.to_bytes(8, "big") + pack_groups(results)


def decode_outcome(value: bytes) -> tuple[int, list[list[bytes]]]:
    """Return the number of the requests, and the fields of each result."""
    return int.from_bytes(value[:8], "big"), unpack_groups(value, 8)


class NotShareable(Exception):
    """The leader must not perform requests of other processes, or cannot answer them."""


class Signal(bytes, Enum):
    """The first byte of a message. All but `POKE` also have the number of the requests."""

    POKE = b"p"
    """To the leader: a process wants to know whether it is alive. There is no answer."""
    REQUEST = b"r"
    OUTCOME = b"o"
    """The requests were performed; their results follow."""
    AGAIN = b"a"
    """The requests were not performed: send them to the next leader."""
    REFUSED = b"n"
    """The requests were not performed, and will not be."""
    UNKNOWN = b"u"
    """The requests may have been performed."""
    LEAD = b"l"
    """The requests were not performed: the process is the next leader."""

    def about(self, number: int) -> bytes:
        """Return an answer without results to the requests with this number."""
        return b"%b%b" % (self.value, number.to_bytes(8, "big"))

    @staticmethod
    def number_of(message: bytes) -> int:
        """Return the number of the requests that a message is about."""
        return int.from_bytes(message[1:9], "big")


_REQUEST = Signal.REQUEST.value


class Request(NamedTuple):
    """Requests that a process asks the leader to perform.

    Attributes:
        number: Their number among those of the process.
        deadline: When the process may perform them itself, in nanoseconds of the monotonic clock.
        last_led: When the process last began to lead, likewise.
        kind: What kind of requests they are.
        receipt: The key of the process's receipt.
        content: The requests, as `Messages.encode` returns them.
    """

    number: int
    deadline: int
    last_led: int
    kind: bytes
    receipt: bytes
    content: bytes

    def encode(self) -> bytes:
        """Return the message.

        >>> request = Request(7, 15, 0, b"+", b"key", b"content")
        >>> Request.decode(request.encode()) == request
        True
        """
        number, deadline, last_led, kind, receipt, content = self
        times = deadline.to_bytes(8, "big"), last_led.to_bytes(8, "big")
        fields = pack_groups([[*times, kind, receipt, content]])
        return b"%b%b%b" % (_REQUEST, number.to_bytes(8, "big"), fields)

    @classmethod
    def decode(cls, message: bytes) -> Request:
        """Return the requests of a message; raise `struct.error` or `ValueError` for another."""
        ((deadline, led, kind, receipt, content),) = unpack_groups(message, 9)
        times = int.from_bytes(deadline, "big"), int.from_bytes(led, "big")
        return cls(Signal.number_of(message), *times, kind, receipt, content)


class Messages(Protocol[_Request, _Result]):
    """How the requests of one kind, and their results, travel between processes."""

    kind: bytes
    """One byte."""

    def encode(self, requests: Sequence[_Request]) -> bytes | None:
        """Return the content of a message; `None` if the process has to perform them itself."""
        ...

    def decode(self, content: bytes) -> list[_Request]:
        """Return the requests of a message; raise an error if it is not one."""
        ...

    def fields(self, result: Any) -> list[bytes]:
        """Return a result, as the leader's transaction found it, as fields.

        Raises:
            NotShareable: It does not fit a message.
        """
        ...

    def result(self, request: _Request, fields: list[bytes]) -> _Result | None:
        """Return the result of a request; `None` if the process has to perform it again."""
        ...

    def undo(self, db: Database, results: list[list[bytes]]) -> None:
        """Undo requests that took effect, for a call that failed afterwards."""
        ...


class PushMessages:
    """The messages of pushes. The result of a push is the keys of its items."""

    kind = b"+"

    def __init__(self, layout: Layout, items: Items, pusher: Pusher) -> None:
        self._layout = layout
        self._levels = items.levels
        self._pusher = pusher

    def encode(self, requests: Sequence[PushRequest]) -> bytes | None:
        """Return the content; `None` if a push may store a part, has a header or meets a bound."""
        if self._pusher.options.max_size is not None:
            return None
        pushes: list[list[bytes]] = []
        for items, as_many_as_fit in requests:
            fields: list[bytes] = []
            for level, payload, random, due, header, _ in items:
                if as_many_as_fit or header is not NO_HEADER:
                    return None
                time = _NOT_DUE if due is None else due.to_bytes(8, "big")
                fields += (level.prefix, payload, random, time)
            pushes.append(fields)
        return pack_groups(pushes)

    def decode(self, content: bytes) -> list[PushRequest]:
        """Return the pushes of a message."""
        return [PushRequest(self._items_of(fields)) for fields in unpack_groups(content)]

    def _items_of(self, fields: list[bytes]) -> list[NewItem]:
        items: list[NewItem] = []
        parts = iter(fields)
        for prefix, payload, random, due in zip(parts, parts, parts, parts):
            level = self._levels.level_of(self._layout.item_key(prefix, 0, random))
            time = None if due == _NOT_DUE else int.from_bytes(due, "big")
            items.append(NewItem(level, payload, random, time))
        return items

    def fields(self, result: list[bytes]) -> list[bytes]:
        """Return the keys."""
        return result

    def result(self, request: PushRequest, fields: list[bytes]) -> list[bytes] | None:
        """Return the keys; `None` if the queue was full, which the process has to see itself."""
        return fields or None

    def undo(self, db: Database, results: list[list[bytes]]) -> None:
        """Leave the items where they are, as after an interrupted commit."""


class PopMessages(Generic[_T]):
    """The messages of pops. The result of a pop is the keys and values of its items."""

    kind = b"-"

    def __init__(self, layout: Layout, items: Items, codec: RowCodec[_T]) -> None:
        self._receipts = layout.receipts
        self._items = items
        self._codec = codec

    def encode(self, requests: Sequence[tuple[int, bool]]) -> bytes | None:
        """Return the content; `None` if it asks for many items."""
        if sum(n for n, _ in requests) > _MAX_POPS:
            return None
        return bytes(chain.from_iterable(requests))

    def decode(self, content: bytes) -> list[tuple[int, bool]]:
        """Return the pops of a message."""
        return [(n, bool(at_max)) for n, at_max in zip(content[::2], content[1::2])]

    def fields(self, result: list[StoredItem]) -> list[bytes]:
        """Return the key and value of each item; raise `NotShareable` if that is too much."""
        if sum(item.largest_payload for item in result) > MAX_CONTENT:
            raise NotShareable
        return [part for item in result for part in (item.key, item.value)]

    def result(self, request: tuple[int, bool], fields: list[bytes]) -> list[_T]:
        """Return the items; raise `UndecodableItem` if decoding fails."""
        return [self._codec.decode(item, item.content) for item in self._stored(fields)]

    def undo(self, db: Database, results: list[list[bytes]]) -> None:
        """Put the items back."""
        if not any(results):
            return
        items = chain.from_iterable(map(self._stored, results))
        popped = [(item.key, item.content, item.header) for item in items]
        put_back = partial(self._items.put_back, now=milliseconds(), popped=popped)
        run_once(db, put_back, self._receipts)

    def _stored(self, fields: list[bytes]) -> list[StoredItem]:
        return [*map(self._items.levels.item, fields[::2], fields[1::2])]
