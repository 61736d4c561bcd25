"""The keys of the names: where each queue is."""

from __future__ import annotations

from fdb.subspace_impl import Subspace

from fdbqueue.errors import InvalidQueueName

__all__ = ["NAMES", "ROOT", "default_subspace", "name_key", "renames_key"]

ROOT = Subspace(("fdbqueue",))
NAMES = ROOT[0]
_MAX_NAME = 255  # bytes of UTF-8


def name_key(name: str) -> bytes:
    """Where the prefix of the queue of this name is kept; raises `InvalidQueueName`.

    >>> name_key("jobs")
    b'\\x02fdbqueue\\x00\\x14\\x02jobs\\x00'
    """
    if not isinstance(name, str):
        raise InvalidQueueName(name, "a name is text")
    if not name or name != name.strip() or not name.isprintable():
        raise InvalidQueueName(name, "a name is printable text without space at its ends")
    if len(name.encode()) > _MAX_NAME:
        raise InvalidQueueName(name, f"a name has at most {_MAX_NAME} bytes in UTF-8")
    key: bytes = NAMES.pack((name,))
    return key


def renames_key(name: str) -> bytes:
    """Where it is counted how many queues of this name were given another one."""
    key: bytes = ROOT[3].pack((name,))
    return key


def default_subspace(name: str, number: int) -> Subspace:
    """Where a queue of this name is made, after so many of them were given another name."""
    return ROOT[1][name][number] if number else ROOT[name]
