"""Codecs of values. Stored bytes are never unpickled or evaluated."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TypeAlias
from uuid import UUID

from fdb import tuple as fdb_tuple

from fdbqueue.errors import InvalidValue, PayloadTooLarge, UnknownCodec
from fdbqueue.types import Codec, Json

MAX_NESTING = 100

MAX_RETURNED = 90_000  # bytes of JSON that a handler may return, to be stored as one value

TOO_DEEP = f"it is nested too deeply: {MAX_NESTING} levels of lists and objects at most"

_WHITESPACE = " \t\n\r"  # of JSON
_decoder = json.JSONDecoder()
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_any_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


_CONTAINERS: tuple[type[Any], ...] = (dict, list)
_SCALARS = frozenset({str, int, float, bool, type(None)})


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text; raise `ValueError`.

    >>> parse_json("[" * 100_000 + "]" * 100_000)
    Traceback (most recent call last):
     ...
    ValueError: it is nested too deeply: 100 levels of lists and objects at most
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error


def json_bytes(value: object) -> bytes:
    r"""Return the JSON text, in UTF-8, of any stored value.

    >>> json_bytes({"half a character": chr(0xD83D)})
    b'{"half a character":"\\ud83d"}'
    """
    # A lone surrogate can only be inside a string, where this is its JSON escape.
    return _any_encoder.encode(value).encode("utf-8", "backslashreplace")


def encode_returned(value: Any, holder: str = "a result") -> bytes:
    """Return a handler's result as JSON; raise `InvalidValue` or `PayloadTooLarge`."""
    try:
        encoded = JsonCodec().encode(value)
    except (TypeError, ValueError) as error:
        reason = f"{holder} is text, a number, a boolean, None, a list or a dict: {error}"
        raise InvalidValue(value, reason) from error
    if len(encoded) > MAX_RETURNED:
        raise PayloadTooLarge(len(encoded), MAX_RETURNED, holder)
    return encoded


def decode_json(stored: bytes | None) -> Any:
    """Parse a JSON text; `None` for `None`."""
    return None if stored is None else JsonCodec().decode(stored)


class JsonCodec:
    """JSON values, stored as text in UTF-8.

    Tuples, keys that are not text, NaN, infinity, and nesting deeper than `MAX_NESTING` are
    rejected.
    """

    def encode(self, value: Json, /) -> bytes:
        """Return the JSON text of a value; raise `TypeError` or `ValueError`."""
        if type(value) not in _SCALARS:
            _check_json(value)
        return _encoder.encode(value).encode()

    def restore(self, value: object, /) -> bytes:
        """Return the payload of a value from `decode`, however deeply nested."""
        return json_bytes(value)

    def decode(self, payload: bytes, /) -> Any:
        """Return the value of a JSON text."""
        text = str(payload, "utf-8").strip(_WHITESPACE)
        value, end = _decoder.raw_decode(text)
        return value if end == len(text) else _decoder.decode(text)  # which raises


def _check_json(value: Json) -> None:
    found: list[tuple[dict[Any, Any] | list[Any], int]] = [([value], 0)]
    while found:
        container, level = found.pop()
        if level > MAX_NESTING:
            raise ValueError(TOO_DEEP)
        parts: Iterable[Any] = container
        if isinstance(container, dict):
            for key in container:
                if not isinstance(key, str):
                    raise TypeError(f"the keys of a JSON object must be text, not {key!r}")
            parts = container.values()
        for part in parts:
            if type(part) in _SCALARS:
                continue
            if isinstance(part, _CONTAINERS):
                found.append((part, level + 1))
            elif not isinstance(part, (str, int, float)):
                raise TypeError(f"a value of type {type(part).__name__} cannot be JSON: {part!r}")


_Element: TypeAlias = "tuple[Any, ...] | list[Any] | UUID | str | bytes | float | None"


def _check_tuple(value: Iterable[_Element], levels: int) -> None:
    if not levels:
        raise ValueError(TOO_DEEP)
    for part in value:
        if isinstance(part, (tuple, list)):
            _check_tuple(part, levels - 1)


class BytesCodec:
    """Bytes, stored unchanged."""

    def encode(self, value: object, /) -> bytes:
        """Return the value itself; raise `TypeError` unless it is bytes."""
        if not isinstance(value, bytes):
            raise TypeError(f"this queue stores bytes, not {type(value).__name__}")
        return value

    def decode(self, payload: bytes, /) -> Any:
        """Return the payload itself."""
        return payload


class TupleCodec:
    """Tuples of the tuple layer's types, nested up to `MAX_NESTING` levels deep."""

    def encode(self, value: tuple[Any, ...], /) -> bytes:
        """Return the packed tuple; raise `TypeError` or `ValueError`."""
        if not isinstance(value, tuple):
            raise TypeError(f"this queue stores tuples, not {type(value).__name__}")
        _check_tuple(value, MAX_NESTING)
        return self.restore(value)

    def restore(self, value: tuple[Any, ...], /) -> bytes:
        """Return the payload of a value from `decode`."""
        return fdb_tuple.pack(value)

    def decode(self, payload: bytes, /) -> Any:
        """Return the unpacked tuple."""
        return fdb_tuple.unpack(payload)


CODECS: dict[str, Codec] = {"json": JsonCodec(), "bytes": BytesCodec(), "tuple": TupleCodec()}


class MissingCodec:
    """A placeholder for a codec that this program lacks."""

    def __init__(self, name: str) -> None:
        self.name = name

    def encode(self, value: object, /) -> Any:
        """Raise `UnknownCodec`."""
        raise UnknownCodec(self.name, CODECS)

    decode = encode


def codec_named(codec: str | Codec) -> Codec:
    """Return the codec with this name; a custom one itself."""
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
    """Return the codec of a stored name, or a placeholder."""
    return name if name in CODECS else MissingCodec(name)


def codec_name(codec: str | Codec) -> str:
    """Return a codec's stored name; for a custom codec, its class name."""
    if isinstance(codec, (str, MissingCodec)):
        return codec if isinstance(codec, str) else codec.name
    return type(codec).__name__
