"""Arguments of callers, and FoundationDB's limits for them.

Source: its documentation, "Known limitations"; backoff: `fdbclient/ClientKnobs.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fdbqueue.types import KeyLike, KeyOrSelector, KeySelector, ValueLike

if TYPE_CHECKING:
    from typing_extensions import TypeIs

END_OF_KEYS = b"\xff"  # FoundationDB has its system keys after it. There are none here.
KEY_SIZE_LIMIT = 10_000  # bytes
VALUE_SIZE_LIMIT = 100_000  # bytes
TRANSACTION_SIZE_LIMIT = 10_000_000  # bytes: keys, values and conflict ranges
TRANSACTION_LIFETIME = 5.0  # seconds from the first read to the commit
VERSIONS_PER_SECOND = 1_000_000
MAX_WATCHES = 10_000  # outstanding, per database object
MAX_WATCHES_LIMIT = 1_000_000  # of the option that sets another limit

INITIAL_BACKOFF = 0.01  # seconds
BACKOFF_GROWTH = 2.0
MAX_BACKOFF = 1.0  # seconds


def is_selector(key: KeyOrSelector) -> TypeIs[KeySelector]:
    """Return whether this is a key selector, also the binding's."""
    return hasattr(key, "or_equal")


def as_key(key: KeyLike) -> bytes:
    """Return a key as bytes."""
    return key if type(key) is bytes else _converted(key, "as_foundationdb_key", "Key")


def as_value(value: ValueLike) -> bytes:
    """Return a value as bytes."""
    return value if type(value) is bytes else _converted(value, "as_foundationdb_value", "Value")


def _converted(given: KeyLike | ValueLike, method: str, kind: str) -> bytes:
    convert: Callable[[], object] | None = getattr(given, method, None)
    converted = given if convert is None else convert()
    if not isinstance(converted, bytes):
        raise TypeError(f"{kind} must be of type bytes, not {type(converted).__name__}")
    return converted


def strinc(prefix: KeyLike) -> bytes:
    r"""Return the first key after all keys that start with `prefix`.

    >>> strinc(b"ab\xff")
    b'ac'
    """
    stripped = as_key(prefix).rstrip(b"\xff")
    if not stripped:
        raise ValueError("Key must contain at least one byte not equal to 0xFF.")
    return stripped[:-1] + bytes([stripped[-1] + 1])
