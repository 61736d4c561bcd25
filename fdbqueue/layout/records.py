"""How a record is stored: its fields, each behind its number. One declaration gives the codec.

A record is a `NamedTuple`. The number of a field is its place in the declaration. Fields that have
their defaults are not stored, so a record may get another field at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fdb import tuple as fdb_tuple

_R = TypeVar("_R", bound=tuple[Any, ...])


def record_codec(record: type[_R]) -> tuple[Callable[[_R], bytes], Callable[[bytes], _R]]:
    """Return the functions that encode and decode a record of this type.

    The second one raises one of `UNDECODABLE` for other bytes.

    >>> from fdbqueue.layout.steps import StoredSignal
    >>> encode, decode = record_codec(StoredSignal)
    >>> signal = StoredSignal(1000, 5000, b"{}")
    >>> decode(encode(signal)) == signal
    True
    """
    kind: Any = record
    # `...` stands for no default; no field has this value.
    defaults = [kind._field_defaults.get(name, ...) for name in kind._fields]

    def encode(fields: _R) -> bytes:
        stored: list[Any] = []
        for number, value in enumerate(fields):
            if value != defaults[number]:
                stored += (number, value)
        packed: bytes = fdb_tuple.pack(tuple(stored))
        return packed

    def decode(value: bytes) -> _R:
        stored = fdb_tuple.unpack(value)
        fields = [*defaults]
        for number, field in zip(stored[::2], stored[1::2]):
            fields[number] = field
        if ... in fields:
            raise ValueError(f"{kind.__name__} has no {kind._fields[fields.index(...)]}")
        found: _R = kind(*fields)
        return found

    return encode, decode
