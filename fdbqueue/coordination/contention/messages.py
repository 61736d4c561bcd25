"""The messages between the leader and the other processes of a host.

Both sides use the same format, because its version is part of what the name of the leader's socket
is derived from.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import NamedTuple

FORMAT = 2

MAX_CONTENT = 60_000
"""The largest size of requests or results, in bytes, so that they fit a message."""

MAX_RECEIPT = 65_000
"""The largest size of a receipt with results, in bytes: these fit a message, too."""

# The signal, the number, the deadline, the last time as the leader, the kind, the receipt's length.
_HEAD = struct.Struct(">cQQQcH")


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

    def about(self, number: int, content: bytes = b"") -> bytes:
        """Return an answer to the requests with this number."""
        return b"%b%b%b" % (self.value, number.to_bytes(8, "big"), content)

    @staticmethod
    def number_of(message: bytes) -> int:
        """Return the number of the requests that a message is about."""
        return int.from_bytes(message[1:9], "big")

    @staticmethod
    def content_of(answer: bytes) -> bytes:
        """Return the results in an answer."""
        return answer[9:]


class Message(NamedTuple):
    """Requests that a process asks the leader to perform.

    Attributes:
        number: Their number, as the receipt will have it.
        deadline: When the process may perform them itself, in nanoseconds of the monotonic clock.
        last_led: When the process last began to lead, likewise.
        kind: The name of their kind.
        receipt: The key of the receipt.
        content: The requests, as `Kind.encode` returns them.
    """

    number: int
    deadline: int
    last_led: int
    kind: bytes
    receipt: bytes
    content: bytes

    def encode(self) -> bytes:
        """Return the message as bytes.

        >>> message = Message(7, 15, 0, b"+", b"key", b"content")
        >>> Message.decode(message.encode()) == message
        True
        """
        number, deadline, last_led, kind, receipt, content = self
        size = len(receipt)
        head = _HEAD.pack(Signal.REQUEST.value, number, deadline, last_led, kind, size)
        return head + receipt + content

    @classmethod
    def decode(cls, message: bytes) -> Message:
        """Return the message from its bytes; raise `struct.error` if they are too few."""
        _, number, deadline, last_led, kind, size = _HEAD.unpack_from(message)
        begin = _HEAD.size + size
        receipt, content = message[_HEAD.size : begin], message[begin:]
        return cls(number, deadline, last_led, kind, receipt, content)
