"""Equality: of a value and its copy from JSON, and of values that have the same unique key."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from datetime import date, datetime, time, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from enum import Enum
from itertools import count, zip_longest
from typing import Any, NamedTuple
from uuid import UUID

_SIMPLE = frozenset((str, int, float, bool, bytes, type(None), date, timedelta, UUID))
_WITHOUT_PARTS = _SIMPLE | {datetime, time, Decimal}
_MICROSECOND = timedelta(microseconds=1)
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
_MISSING = object()


class Change(NamedTuple):
    """A part of a value that JSON changes.

    Attributes:
        path: Where it is, such as `.items[2].token`; an empty text for the whole value.
        reason: What is wrong with it.
    """

    path: str
    reason: str


def find_change(given: Any, got: Any, abstract: tuple[type, ...] = ()) -> Change | None:
    """Return the first part of a value that JSON changes, or `None`.

    Classes with fields are compared field by field, whatever they say about equality: `__eq__` may
    leave out a field, raise an error, or compare identities. A value of a subclass is equal to one
    of its base if nothing but the type differs.

    Args:
        given: The value before.
        got: The value after.
        abstract: Types such as `Sequence`, whose values arrive as lists, sets and dicts.

    >>> find_change([{"a": (1, 2)}], [{"a": [1, 2]}])
    Change(path="[0]['a']", reason='Expected `list`, got `tuple`: (1, 2)')
    >>> find_change(Decimal("NaN"), Decimal("NaN"))
    """
    kind = _type_of(got)
    if given is got or (type(given) is kind and kind in _SIMPLE and given == got):
        return None
    if got is _MISSING or given is _MISSING:
        return Change("", "JSON does not keep it" if got is _MISSING else "JSON adds it")
    is_number = kind is float and isinstance(given, int)
    fits = isinstance(given, kind) or is_number or isinstance(given, abstract)
    if not fits or type(given) is bool:
        name = type(given).__name__
        return Change("", f"Expected `{kind.__name__}`, got `{name}`: {given!r}")
    if is_number or kind in _WITHOUT_PARTS:
        return _compared(given, got)
    form, pairs = _pairs(given, got)
    if pairs is None:
        return _compared(given, got)
    for place, part, other in pairs:
        if change := find_change(part, other, abstract):
            return change._replace(path=form.format(place) + change.path)
    return None


def _compared(given: Any, got: Any) -> Change | None:
    """Return the change of a value without parts. A subclass may deny that values are equal."""
    kind, own = _type_of(got), _type_of(given)
    try:
        if isinstance(got, (datetime, time)):
            is_equal = _place_in_time(given) == _place_in_time(got)
        elif isinstance(got, Decimal):  # NaN differs from itself
            is_equal = given.as_tuple() == got.as_tuple()
        elif isinstance(given, (int, float)):
            is_equal = given == got
        else:
            is_equal = kind.__eq__(got, given)
        is_equal = is_equal is not NotImplemented and bool(is_equal)
        if is_equal and (own.__eq__ is kind.__eq__ or bool(given == got)):
            return None
    except Exception as error:
        return Change("", f"it cannot be compared with what comes back from JSON: {error}")
    before, after = repr(given), repr(got)
    return Change("", f"{before} comes back as {'another value' if before == after else after}")


def _place_in_time(value: datetime | time) -> tuple[object, ...]:
    """Return what has to stay equal.

    Python's `==` is false for a time that a zone has twice, compared with any other zone.
    """
    return value.replace(tzinfo=None), value.utcoffset(), value.tzinfo is None


def _pairs(given: Any, got: Any) -> tuple[str, Iterable[tuple[Any, Any, Any]] | None]:
    """Return the format of the path to a part, and each part before and after JSON."""
    kind, own = _type_of(got), _type_of(given)
    if issubclass(own, (list, tuple)) and len(given) == len(got):
        return "[{}]", zip(count(), given, got)
    if issubclass(kind, Mapping):
        return "[{!r}]", _by_key(given, got, given.__getitem__, got.__getitem__)
    if issubclass(kind, Set) or issubclass(own, Set):
        return "[{!r}]", _by_key(given, got, _itself, _itself)
    if issubclass(kind, Sequence) and not issubclass(kind, (bytearray, memoryview)):
        pairs = zip_longest(given, got, fillvalue=_MISSING)
        return "[{}]", ((number, *pair) for number, pair in enumerate(pairs))
    before, after = _fields(given), _fields(got)
    if before is None or after is None:
        return "", None
    names = dict.fromkeys([*before, *after])
    return ".{}", ((name, before.get(name, _MISSING), after.get(name, _MISSING)) for name in names)


def _type_of(value: object) -> Any:
    return type(value)


def _itself(value: Any) -> Any:
    return value


def _by_key(
    given: Iterable[Any],
    got: Iterable[Any],
    before: Callable[[Any], Any],
    after: Callable[[Any], Any],
) -> Iterator[tuple[Any, Any, Any]]:
    keys = {key: key for key in got}
    for key in given:
        other = keys.pop(key, _MISSING)
        # The type of a key may change as well: 1 is equal to 1.0.
        yield key, key, other
        yield key, before(key), after(other)
    for key in keys:
        yield key, _MISSING, after(key)


def _fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of a value by name; `None` if its class has no fields."""
    kind = _type_of(value)
    if dataclasses.is_dataclass(kind):
        fields = dataclasses.fields(kind)
        # An item has fields for the process that popped it, which its JSON form leaves out.
        names: Iterable[str] = [each.name for each in fields if each.metadata.get("in_json", True)]
    elif hasattr(kind, "__struct_fields__"):  # of msgspec
        names = kind.__struct_fields__
    elif hasattr(kind, "__attrs_attrs__"):
        names = [field.name for field in kind.__attrs_attrs__]
    elif hasattr(kind, "model_fields"):  # of pydantic
        own = {name: value.__dict__.get(name, _MISSING) for name in kind.model_fields}
        extra, private = value.__pydantic_extra__, value.__pydantic_private__
        return {**own, **(extra or {}), **(private or {})}
    elif kind.__eq__ is object.__eq__:  # it compares identities
        return getattr(value, "__dict__", None)
    else:
        return None
    return {name: getattr(value, name, _MISSING) for name in names}


def canonical(value: Any) -> str:
    """Return a text that is the same for equal values, in every process.

    These are equal: 1, 1.0 and `Decimal("1.00")`; the same instant in two zones; dicts and sets
    that differ in their order. `True` is not equal to 1, nor is a time without a zone to one with
    a zone.

    >>> canonical([1.0, "1", {3, 2}]), canonical((Decimal("1.0"), "1", frozenset({2, 3})))
    ('[1,"1",(2,3)]', '[1,"1",(2,3)]')
    """
    if isinstance(value, Enum):
        return canonical(value.value)
    if value is None or isinstance(value, (str, bool)):
        return json.dumps(value)
    if isinstance(value, (int, float, Decimal)):
        return str(Decimal(value).normalize(_EXACT)) if value else "0"
    if isinstance(value, (datetime, time)):
        return _canonical_time(value)
    kind = _type_of(value)
    if issubclass(kind, Mapping):
        parts = [f"{canonical(key)}:{canonical(value[key])}" for key in value]
        return f"{{{','.join(sorted(parts))}}}"
    if issubclass(kind, Set):
        return f"({','.join(sorted(map(canonical, value)))})"
    if issubclass(kind, (bytes, bytearray, memoryview)):
        return f"bytes {bytes(value).hex()}"
    if issubclass(kind, Sequence):
        return f"[{','.join(map(canonical, value))}]"
    fields = _fields(value)
    return f"{kind.__name__}{repr(value) if fields is None else canonical(fields)}"


def _canonical_time(value: datetime | time) -> str:
    offset = value.utcoffset()
    if offset is None:
        return value.isoformat()
    naive = value.replace(tzinfo=None)
    moment = naive if isinstance(naive, datetime) else datetime.combine(date.min, naive)
    return f"{(moment - datetime.min - offset) // _MICROSECOND} us"
