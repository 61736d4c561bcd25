"""Keys of queue names, which lead to the queues' subspaces."""

from __future__ import annotations

from collections.abc import Sequence

import fdb.tuple as fdb_tuple
from fdb.subspace_impl import Subspace

from fdbqueue.errors import InvalidQueueName

ROOT = Subspace(("fdbqueue",))
NAMES = ROOT[0]
NAME_RECEIPTS = ROOT[2]
RENAMES = ROOT[3]
_MAX_NAME = 255  # bytes of UTF-8


def names_with(prefix: str) -> tuple[bytes, bytes]:
    """Return the range of the names that begin with a text."""
    begin: bytes = NAMES.pack((prefix,))[:-1]
    return begin, begin + b"\xff"  # no name contains this byte


def name_key(name: str) -> bytes:
    """Return the key of a queue name; raise `InvalidQueueName`."""
    if not isinstance(name, str):
        raise InvalidQueueName(name, "a name must be text")
    if not name or name != name.strip() or not name.isprintable():
        raise InvalidQueueName(name, "a name must be printable, without space at its ends")
    if len(name.encode()) > _MAX_NAME:
        raise InvalidQueueName(name, f"a name must have at most {_MAX_NAME} bytes in UTF-8")
    return NAMES.pack((name,))


def renames_key(name: str) -> bytes:
    """Return the key of the number of the name's next queue."""
    return RENAMES.pack((name,))


def default_subspace(name: str, number: int) -> Subspace:
    """Return the subspace of a name's new queue."""
    return ROOT[1][name][number] if number else ROOT[name]


def first_name(prefix: bytes) -> str | None:
    """Return the original name of a queue that was not restored or copied."""
    match ROOT.unpack(prefix) if ROOT.contains(prefix) else ():
        case (str(name),) | (1, str(name), _):
            return name
        case _:
            return None


def restored_subspace(uuid: bytes) -> Subspace:
    """Return the subspace of a restored queue."""
    return ROOT[4][uuid]


def unfinished_key(name: str) -> bytes:
    """Return the key of the UUID of an unfinished restore."""
    name_key(name)  # raises for a text that cannot be a name
    return ROOT[5].pack((name,))


def workers_range() -> tuple[bytes, bytes]:
    """Return the range of the rows of all workers."""
    names = ROOT[6].range()
    return names.start, names.stop


def worker_key(uuid: bytes) -> bytes:
    """Return the key of a worker's row; UUIDs sort by start."""
    return ROOT[6].pack((uuid,))


def outbox_key(outbox: str) -> bytes:
    """Return the key of the rows that an outbox pushed last."""
    return ROOT[7].pack((outbox,))


def encode_rows(rows: Sequence[tuple[int, str]]) -> bytes:
    """Encode the ids and tokens of an outbox's rows."""
    return fdb_tuple.pack(tuple(rows))


def decode_rows(value: bytes | None) -> list[tuple[int, str]]:
    """Return the ids and tokens of an outbox's rows; none without a value."""
    return [*fdb_tuple.unpack(value or b"")]


def decode_name(key: bytes) -> str:
    """Return the name in a `name_key`."""
    name: str = NAMES.unpack(key)[0]
    return name


def is_name_key(key: bytes) -> bool:
    """Return whether a key is a `name_key`."""
    return NAMES.contains(key)


def decode_subspace(value: bytes) -> Subspace:
    """Return the subspace in the value of a `name_key`."""
    return Subspace(rawPrefix=value)
