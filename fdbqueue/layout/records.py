"""The records of a queue, each declared once as a `NamedTuple`, and the check of rows of a file.

The annotations of a record say what its fields hold. Its codec stores the fields in their order.
`check_record` compares fields that were read with the annotations.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fdb import tuple as fdb_tuple

from fdbqueue.errors import LayoutVersionMismatch, UndecodableQueue
from fdbqueue.layout.batches import (
    BatchCounts,
    Membership,
    StoredBatch,
    decode_counts,
    memberships_of,
    with_queues,
)
from fdbqueue.layout.items import GroupSettings
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.names import (
    decode_name,
    decode_subspace,
    is_name_key,
    name_key,
    restored_subspace,
)
from fdbqueue.layout.schedules import StoredSchedule
from fdbqueue.layout.steps import StoredSignal, StoredStep
from fdbqueue.layout.values import (
    PARKED,
    UNDECODABLE,
    ClaimedItem,
    Header,
    Lease,
    StoredAttempt,
    StoredWorker,
    decode_claim,
    decode_holder,
    decode_lease,
    decode_metadata,
    decode_options,
    header_of,
)

_MAX_KEY = 10_000 - len(restored_subspace(bytes(16)).key())  # bytes, below the longest prefix
_MAX_VALUE = 100_000  # bytes


def check_record(record: type[tuple[Any, ...]], fields: Sequence[Any]) -> None:
    """Raise `ValueError` for fields that a record of this type cannot have.

    Fields that have defaults may be missing at the end. Numbers are not negative.

    >>> check_record(Lease, Lease(1000, 5000))
    >>> check_record(Lease, ("soon", 5000))
    Traceback (most recent call last):
    ValueError: the field length of Lease is 'soon'
    """
    kinds, n_required = _fields_of(record)
    if not n_required <= len(fields) <= len(kinds):
        raise ValueError(f"{record.__name__} has {len(fields)} fields")
    for (name, kind), field in zip(kinds, fields):
        if not _is_of(kind, field):
            raise ValueError(f"the field {name} of {record.__name__} is {field!r}")


@functools.cache
def _fields_of(record: Any) -> tuple[tuple[tuple[str, Any], ...], int]:
    """Return the names and types of the fields of a record, and how many have no default."""
    return (*get_type_hints(record).items(),), len(record._fields) - len(record._field_defaults)


def _is_of(kind: Any, value: Any) -> bool:
    """Return whether a field that was read from a row has the type of its annotation."""
    if kind in (int, float):
        types = int if kind is int else (int, float)
        is_number = isinstance(value, types) and not isinstance(value, bool)
        return is_number and math.isfinite(value) and value >= 0
    arguments = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return any(_is_of(each, value) for each in arguments)
    if get_origin(kind) is Literal:
        return value in arguments
    is_record = hasattr(kind, "_fields")
    if not is_record and get_origin(kind) is not tuple:
        return isinstance(value, NoneType if kind is None else kind)
    fields = value
    if not isinstance(value, tuple):
        return False
    if is_record:
        check_record(kind, fields)
        return True
    kinds = [arguments[0]] * len(fields) if arguments[-1] is ... else arguments
    return len(fields) == len(kinds) and all(map(_is_of, kinds, fields))


_Decoder = tuple[bytes, Callable[[bytes, bytes], object]]


class RowCheck:
    """The check of the rows of one queue, in order. Keys are without the prefix of the queue.

    A row is refused if no client of a queue can have written it: clients could not read it.

    >>> check = RowCheck()
    >>> check.problem(b"", b"")
    'its key does not follow the one before'
    >>> check.problem(fdb_tuple.pack((6, "source")), b"") is None
    True
    """

    def __init__(self) -> None:
        self._last = b""
        layout = self._layout = Layout(decode_subspace(b""))
        self._ranges = layout.known_ranges()
        self._begins = [begin for begin, _ in self._ranges]
        self._lasting = layout.lasting_ranges()
        timer = layout.unpack_timer_key

        def timed(prefix: bytes, decode: Callable[[bytes], object]) -> _Decoder:
            return prefix, lambda key, value: (timer(prefix, key), decode(value))

        def packed(prefix: bytes, record: type[tuple[Any, ...]]) -> _Decoder:
            return prefix, lambda _, value: check_record(record, fdb_tuple.unpack(value))

        self._decoders: list[_Decoder] = [
            (layout.items, lambda _, value: _check_item(value)),
            *(
                (layout.prefix_of[state], functools.partial(_check_parked, record))
                for state, record in PARKED.items()
            ),
            (layout.claims, lambda _, value: _check_claim(value)),
            timed(layout.leases, _check_lease),
            timed(layout.dues, bytes),
            timed(layout.expiries, bytes),
            timed(layout.done_times, bytes),
            (layout.ids, _check_position),
            (layout.ids_parked, _check_position),
            (layout.unique_keys, lambda _, value: decode_holder(value)),
            (
                layout.unique_ends,
                lambda key, value: (
                    layout.unpack_dated_key(layout.unique_ends, key),
                    decode_holder(value),
                ),
            ),
            (layout.moved, _check_position),
            (layout.attempts, lambda key, _: layout.unpack_attempt_key(key)),
            (
                layout.batch_counts,
                lambda _, value: check_record(BatchCounts, decode_counts(value)),
            ),
            packed(layout.attempts, StoredAttempt),
            packed(layout.schedules, StoredSchedule),
            packed(layout.steps, StoredStep),
            packed(layout.batches, StoredBatch),
            (layout.followers, _check_membership),
            packed(layout.signals, StoredSignal),
            packed(layout.signal_ends, StoredSignal),
            packed(layout.group_settings, GroupSettings),
            (b"", lambda key, value: with_queues(key, value, _check_reference)),
        ]

    def problem(self, key: bytes, value: bytes) -> str | None:
        """Return what is wrong with the next row; `None` if a queue may have it."""
        if not self._last < key:
            return "its key does not follow the one before"
        self._last = key
        if len(key) > _MAX_KEY or len(value) > _MAX_VALUE:
            return f"its key has over {_MAX_KEY:,} bytes, or its value over {_MAX_VALUE:,}"
        if not self._is_known(key):
            return f"no row of a queue has the key {key!r}"
        try:
            if not key.startswith((self._layout.batches, self._layout.batch_counts)):
                fdb_tuple.unpack(key)  # the id of a batch may be any bytes
            if key == self._layout.options:
                decode_options(value)
            for prefix, decode in self._decoders:
                if key.startswith(prefix):
                    decode(key, value)
        except (LayoutVersionMismatch, UndecodableQueue) as error:
            return str(error)
        except UNDECODABLE as error:
            return f"the row with the key {key!r} cannot be read: {error}"
        return None

    def _is_known(self, key: bytes) -> bool:
        place = bisect_right(self._begins, key) - 1
        is_known = place >= 0 and key < self._ranges[place][1]
        return is_known and any(begin <= key < end for begin, end in self._lasting)


def _check_item(value: bytes) -> None:
    """Raise one of `UNDECODABLE` for the value of an item whose header cannot be read."""
    header = header_of(value)[0]
    check_record(Header, header)
    _check_membership(b"", header.batch)


def _check_membership(_: bytes, value: bytes) -> None:
    for membership in memberships_of(value):
        check_record(Membership, membership)


def _check_reference(queue: bytes) -> bytes:
    return name_key(decode_name(queue)) if is_name_key(queue) else queue


def _check_parked(record: type[tuple[Any, ...]], _: bytes, value: bytes) -> None:
    metadata, item = decode_metadata(value)
    check_record(record, metadata)
    _check_item(item)


def _check_claim(value: bytes) -> None:
    claimed = decode_claim(value)
    check_record(ClaimedItem, claimed)
    _check_item(claimed.value)


def _check_lease(value: bytes) -> None:
    lease = decode_lease(value)
    if lease is not None:
        check_record(Lease, lease)


def _check_position(_: bytes, value: bytes) -> None:
    fdb_tuple.unpack(value)


def decode_worker(value: bytes) -> StoredWorker | None:
    """Return the row of a worker; `None` for bytes that no worker has written.

    >>> decode_worker(b"anything") is None
    True
    """
    try:
        fields = fdb_tuple.unpack(value)
        check_record(StoredWorker, fields)
    except UNDECODABLE:
        return None
    return StoredWorker(*fields)
