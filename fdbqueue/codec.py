"""How values become bytes and back: JSON, bytes as they are, tuples, or a codec of the caller's.

Nothing is ever unpickled or evaluated.
"""

from __future__ import annotations

import json
from typing import Any

from fdb import tuple as fdb_tuple

from fdbqueue.errors import UnknownCodec
from fdbqueue.types import Codec

__all__ = [
    "CODECS",
    "BytesCodec",
    "JsonCodec",
    "MissingCodec",
    "TupleCodec",
    "codec_name",
    "codec_named",
    "stored_codec",
]

_decoder = json.JSONDecoder()
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class JsonCodec:
    """Any JSON value, stored as its text in UTF-8; `None` is JSON's `null`, a value.

    What would come back as something else is refused: a tuple (as a list), a key that is no text,
    NaN and infinity (which JSON does not have).

    >>> JsonCodec().encode({"to": "ada@example.com"})
    b'{"to":"ada@example.com"}'
    """

    def encode(self, value: Any, /) -> bytes:
        _check_json(value)
        return _encoder.encode(value).encode()

    def decode(self, payload: bytes, /) -> Any:
        return _decoder.decode(str(payload, "utf-8"))


_SCALARS = frozenset({str, int, float, bool, type(None)})


def _check_json(value: Any) -> None:
    """Raise for what `json` would turn into something else."""
    if isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str):
                raise TypeError(f"a JSON object's keys are text, not {key!r}")
            if type(part) not in _SCALARS:
                _check_json(part)
    elif isinstance(value, list):
        for part in value:
            if type(part) not in _SCALARS:
                _check_json(part)
    elif not (value is None or isinstance(value, (str, int, float))):
        raise TypeError(f"a value of type {type(value).__name__} is not JSON: {value!r}")


class BytesCodec:
    """Bytes, stored as they are.

    >>> BytesCodec().encode(b"as is")
    b'as is'
    """

    def encode(self, value: Any, /) -> bytes:
        if not isinstance(value, bytes):
            raise TypeError(f"this queue stores bytes, not {type(value).__name__}")
        return value

    def decode(self, payload: bytes, /) -> Any:
        return payload


class TupleCodec:
    """Tuples of what FoundationDB's tuple layer stores: text, bytes, numbers, UUIDs, tuples.

    >>> TupleCodec().decode(TupleCodec().encode((1, "a", None)))
    (1, 'a', None)
    """

    def encode(self, value: Any, /) -> bytes:
        if not isinstance(value, tuple):
            raise TypeError(f"this queue stores tuples, not {type(value).__name__}")
        packed: bytes = fdb_tuple.pack(value)
        return packed

    def decode(self, payload: bytes, /) -> Any:
        return fdb_tuple.unpack(payload)


CODECS: dict[str, Codec] = {"json": JsonCodec(), "bytes": BytesCodec(), "tuple": TupleCodec()}


class MissingCodec:
    """Stands for a codec that this program does not have: whatever needs it fails."""

    def __init__(self, name: str) -> None:
        self.name = name

    def encode(self, value: Any, /) -> bytes:
        raise UnknownCodec(self.name, CODECS)

    def decode(self, payload: bytes, /) -> Any:
        raise UnknownCodec(self.name, CODECS)


def codec_named(codec: str | Codec) -> Codec:
    """The codec of this name, or the caller's own.

    >>> codec_named("bytes").decode(b"x")
    b'x'
    """
    if isinstance(codec, str):
        if codec not in CODECS:
            raise UnknownCodec(codec, CODECS)
        return CODECS[codec]
    if not (callable(getattr(codec, "encode", None)) and callable(getattr(codec, "decode", None))):
        raise TypeError(f"a codec is a name or an object with encode and decode, not {codec!r}")
    return codec


def stored_codec(name: str) -> str | Codec:
    """The codec of a queue that has this one, or what stands for it.

    >>> stored_codec("json"), stored_codec("Pictures").name
    ('json', 'Pictures')
    """
    return name if name in CODECS else MissingCodec(name)


def codec_name(codec: str | Codec) -> str:
    """By what name a queue's codec is stored: for one of the caller's own, that of its class."""
    if isinstance(codec, (str, MissingCodec)):
        return codec if isinstance(codec, str) else codec.name
    return type(codec).__name__
