"""The arguments and results of jobs: bound to the signature, and stored as JSON by annotation."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import typing
from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Reversible,
    Sequence,
    Set,
)
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from enum import Enum
from functools import cached_property, partial
from pathlib import PurePath
from types import MappingProxyType, SimpleNamespace, UnionType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from fdbqueue.errors import FdbqueueError
from fdbqueue.jobs.errors import InvalidArguments, UndecodableArguments, UnsupportedAnnotation
from fdbqueue.jobs.handle import Handle, handle_of
from fdbqueue.queue.arguments import validate_json
from fdbqueue.worker.functions.steps import Results
from fdbqueue.worker.invocation import globals_of, signature_of

if TYPE_CHECKING:
    from fdbqueue.jobs.job import Job

_E = TypeVar("_E", bound=FdbqueueError)

Jobs: TypeAlias = "Mapping[str, Job[Any, Any, Any, Any]]"

_RETURN = "return"
_encoder = json.JSONEncoder(allow_nan=False)
_UNIONS = (typing.Union, UnionType)
_ITERABLES = (Iterable, Reversible, Container)
_USE = (
    "use text, numbers, booleans, None, lists and dicts, or annotate a type that has a JSON form, "
    "such as a date, a dataclass, a model of pydantic or a Handle"
)
# Where no annotation says that a value is a handle, the whole value is stored in an object with the
# first key, and each handle in one with the second key.
_HANDLES, _HANDLE = "fdbqueue.handles", "fdbqueue.handle"
_SCALARS: list[type[Any]] = [str, int, bool, type(None)]
_JSON_TYPES = (Any, str, int, float, bool, type(None), list, dict)
_MICROSECOND = timedelta(microseconds=1)
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
_MISSING = object()


class _NoJsonForm(TypeError):
    """JSON cannot hold a value of this type."""


def _to_json(value: Any) -> Any:
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Handle):
        return value.to_json()
    if hasattr(value, "model_dump"):  # a model of pydantic
        return value.model_dump(mode="json", round_trip=True)
    # A subclass may change what `str(value)` returns.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    kind: Any = value.__class__
    if issubclass(kind, Iterator):
        raise TypeError(f"{kind.__name__} can be read only once; make a list of it")
    if issubclass(kind, Sequence):
        return [*value]
    raise _NoJsonForm(f"{kind.__name__} has no JSON form")


def _from_json(jobs: Jobs, kind: Any, stored: Any) -> Any:
    if (known := _known(kind)) is not kind:  # of the field of a class
        return msgspec.convert(stored, known, str_keys=True, dec_hook=partial(_from_json, jobs))
    origin = typing.get_origin(kind) or kind
    if origin is Handle:
        return handle_of(stored, jobs)
    if issubclass(origin, PurePath) and isinstance(stored, str):
        return kind(stored)
    validate = getattr(kind, "model_validate", None)  # of a model of pydantic
    if validate is not None:
        return validate(stored)
    raise ValueError(f"{origin.__name__} cannot be read from JSON")


def _known(kind: Any) -> Any:
    """Replace `Iterable` and `object` in an annotation by types that msgspec knows."""
    if kind is object:
        return Any
    origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    known = inner if origin is Literal else tuple(map(_known, inner))
    if any(origin is each for each in _ITERABLES):
        collection: Any = Collection
        return collection[known] if known else collection
    if known == inner:
        return kind
    return typing.Union[known] if origin in _UNIONS else origin[known]  # noqa: UP007


def _with_tags(value: Any) -> Any:
    if isinstance(value, Handle):
        return {_HANDLE: value.to_json()}
    return _mapped(value, _with_tags)


def _without_tags(jobs: Jobs, stored: Any) -> Any:
    if isinstance(stored, dict) and stored.keys() == {_HANDLE}:
        return handle_of(stored[_HANDLE], jobs)
    return _mapped(stored, partial(_without_tags, jobs))


def _mapped(value: Any, convert: Callable[[Any], Any]) -> Any:
    kind: Any = value.__class__
    if kind is list:
        return [*map(convert, value)]
    return {key: convert(value[key]) for key in value} if kind is dict else value


class Owner(NamedTuple):
    """The job or step whose arguments and results are converted."""

    name: str
    kind: Literal["job", "step"] = "job"
    jobs: Jobs = MappingProxyType({})

    def error(self, of: type[_E], parameter: str | None, reason: str) -> _E:
        """Return an error of a parameter, of the result, or of all arguments."""
        return of(self.name, parameter, reason, self.kind)


class _Converter:
    def __init__(self, owner: Owner, kind: Any) -> None:
        self._owner = owner
        # `aio.run` returns what a function returns, whatever that is.
        self._is_any = kind in (Any, object, typing.NoReturn) or isinstance(kind, TypeVar)
        self._kind = Any if self._is_any else _known(kind)
        msgspec.json.Decoder(self._kind)
        self._is_json = _is_json(self._kind)
        self._unchanged = _SCALARS if self._is_any else [each for each in _SCALARS if each is kind]

    def encode(self, name: str, value: Any) -> Any:
        if type(value) in self._unchanged:
            return value
        try:
            encoded = self._json(value) if self._is_json else self._encoded(value)
            self._compare(value, encoded)
        except RecursionError:  # perhaps it contains itself
            raise self._owner.error(InvalidArguments, name, "it is nested too deeply") from None
        except (TypeError, ValueError) as error:
            what = f"; {_USE}" if isinstance(error, _NoJsonForm) else f": {value!r}"
            raise self._owner.error(InvalidArguments, name, f"{error}{what}") from None
        return encoded

    def _json(self, value: Any) -> Any:
        """Return a copy of a JSON value, which may change before it is stored."""
        try:
            validate_json(value)
        except TypeError as error:
            value = {_HANDLES: _with_tags(value)}
            try:
                validate_json(value)
            except TypeError:
                raise _NoJsonForm(error) from None
        return self._built(value)

    def _encoded(self, value: Any) -> Any:
        built = self._built(value)
        if isinstance(built, str):
            return built
        encoded = json.loads(_encoder.encode(built))  # NaN raises, and tuples become lists
        if isinstance(value, Set):  # its order differs from process to process
            encoded.sort(key=_encoder.encode)
        return encoded

    def _built(self, value: Any) -> Any:
        return msgspec.to_builtins(value, builtin_types=(), str_keys=True, enc_hook=_to_json)

    def _compare(self, value: Any, encoded: Any) -> None:
        """Raise `ValueError` if the function would get another value."""
        if self._is_any and not _has_handles(encoded):
            return
        decoded = self._decoded(encoded)
        if self._is_json and value == decoded:
            return
        if issubclass(type(value), Set) and decoded.__class__ is list:
            decoded = set[Any](decoded)
        if canonical(value) != canonical(decoded):
            after = repr(decoded)
            shown = "another value" if after == repr(value) else after
            raise ValueError(f"it comes back from JSON as {shown}")

    def decode(self, name: str, stored: Any) -> Any:
        if type(stored) in self._unchanged:
            return stored
        try:
            return self._decoded(stored)
        except (TypeError, ValueError) as error:
            reason = f"{error}: {stored!r}"
            raise self._owner.error(UndecodableArguments, name, reason) from None

    def _decoded(self, stored: Any) -> Any:
        jobs = self._owner.jobs
        if self._is_json and _has_handles(stored):
            stored = _without_tags(jobs, stored[_HANDLES])
        if self._is_any:
            return stored
        hook = partial(_from_json, jobs)
        return msgspec.convert(stored, self._kind, str_keys=True, dec_hook=hook)


def _has_handles(stored: Any) -> bool:
    return type(stored) is dict and _HANDLES in stored


def _is_json(kind: Any) -> bool:
    if kind in _JSON_TYPES:
        return True
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is dict:
        return arguments[0] in (str, Any) and _is_json(arguments[1])
    return (origin is list or origin in _UNIONS) and all(map(_is_json, arguments))


class Arguments(Results):
    """The arguments and the result of a function, and their JSON forms.

    See `docs/reference/arguments.md`. Each encoded value is decoded again, and refused if it
    differs from the original. The worker supplies the first `skip` parameters.

    Example:
        >>> from datetime import date
        >>> def remind(on: date) -> str: ...
        >>> Arguments("remind", remind).encode((date(2030, 1, 31),), {})
        (['2030-01-31'], {})
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        skip: int = 0,
        jobs: Jobs = MappingProxyType({}),
        kind: Literal["job", "step"] = "job",
    ) -> None:
        self._owner = Owner(name, kind, jobs)
        self._names = globals_of(function)
        signature = signature_of(function)
        self._signature = signature.replace(parameters=[*signature.parameters.values()][skip:])

    @cached_property
    def _converters(self) -> dict[str, _Converter]:
        given = self._signature.parameters
        converters = {name: self._converter(name, given[name].annotation) for name in given}
        _ = self._result  # an annotation that cannot be used is found at the first push
        return converters

    @cached_property
    def _result(self) -> _Converter:
        return self._converter(_RETURN, self._signature.return_annotation)

    def _converter(self, name: str, annotation: Any) -> _Converter:
        """Return the converter for an annotation, perhaps a text to evaluate."""
        if annotation is inspect.Parameter.empty:
            return _Converter(self._owner, Any)
        # One at a time: the types that the worker supplies may be imported for type checkers only.
        holder = SimpleNamespace(__annotations__={name: annotation})
        try:
            kind = typing.get_type_hints(holder, self._names, include_extras=True)[name]
            return _Converter(self._owner, kind)
        except Exception as error:  # the code of an annotation may raise anything
            reason = str(error)
            if isinstance(error, NameError):
                reason += "; import it at the top of the module, outside of `if TYPE_CHECKING`"
            raise self._owner.error(UnsupportedAnnotation, name, reason) from error

    def encode(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the JSON forms of the arguments of a call, or raise `InvalidArguments`."""
        return self._converted(args, kwargs, _Converter.encode, InvalidArguments)

    def key_of(self, args: list[Any], kwargs: Mapping[str, Any]) -> str:
        """Return a unique key, which is the same for equal arguments, however they are passed."""
        values, named = self.decode(args, kwargs)
        bound = self._signature.bind(*values, **named).arguments
        forms = {name: repr(canonical(value)) for name, value in bound.items()}
        given = {name: form for name, form in forms.items() if form != self._defaults.get(name)}
        text = json.dumps([self._owner.name, given], sort_keys=True)
        # The end of the name is for those who look at the key.
        return f"{self._owner.name[-40:]} {hashlib.sha256(text.encode()).hexdigest()}"

    @cached_property
    def _defaults(self) -> dict[str, str]:
        """The canonical forms of the defaults that a call can pass."""
        forms: dict[str, str] = {}
        for name, parameter in self._signature.parameters.items():
            if parameter.default is not parameter.empty:
                converter = self._converters[name]
                with suppress(InvalidArguments, UndecodableArguments):
                    stored = converter.encode(name, parameter.default)
                    forms[name] = repr(canonical(converter.decode(name, stored)))
        return forms

    def decode(
        self, args: list[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call, or raise `UndecodableArguments`."""
        values, named = self._converted(args, kwargs, _Converter.decode, UndecodableArguments)
        return tuple(values), named

    def by_name(self, args: list[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by parameter, with defaults; see `decode`."""
        given, named = self.decode(args, kwargs)
        bound = self._signature.bind(*given, **named)
        bound.apply_defaults()
        return bound.arguments

    @property
    def names(self) -> list[str]:
        """The names of the parameters."""
        return [*self._signature.parameters]

    def _converted(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        convert: Callable[[_Converter, str, Any], Any],
        invalid: type[InvalidArguments | UndecodableArguments],
    ) -> tuple[list[Any], dict[str, Any]]:
        converters = self._converters
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise self._owner.error(invalid, None, str(error)) from None
        extra: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            one, kind = partial(convert, converters[name]), self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                bound.arguments[name] = [one(name, each) for each in value]
            elif kind is inspect.Parameter.VAR_KEYWORD:
                extra = {key: one(key, each) for key, each in value.items()}
            else:
                bound.arguments[name] = one(name, value)
        named = {**bound.arguments, **extra}
        return [*bound.args[: len(args)]], {name: named[name] for name in kwargs}

    def encode_result(self, value: Any) -> Any:
        """Return the JSON form of a result, or raise `InvalidArguments`."""
        return self._result.encode(_RETURN, value)

    def decode_result(self, stored: Any) -> Any:
        """Return a result, given its JSON form, or raise `UndecodableArguments`."""
        return None if stored is None else self._result.decode(_RETURN, stored)


def _fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of a value by name; `None` if its class has no fields."""
    kind: Any = value.__class__
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


def canonical(value: Any) -> Any:
    """Return a form that is equal for equal values, and has the same text in every process.

    These are equal: 1, 1.0 and `Decimal("1.00")`; the same instant in two zones; lists and tuples;
    dicts and sets in any order. `True` is not equal to 1.

    >>> canonical([1.0, "1", {3, 2}]) == canonical((Decimal("1.0"), "1", frozenset({2, 3})))
    True
    """
    if isinstance(value, Enum):
        return canonical(value.value)
    if value is None or isinstance(value, (str, bool)):
        return json.dumps(value)
    if isinstance(value, (int, float, Decimal)):
        return str(Decimal(value).normalize(_EXACT)) if value else "0"
    if isinstance(value, (date, time)):
        return _canonical_time(value)
    kind: Any = value.__class__
    if issubclass(kind, Mapping):
        parts = [(canonical(key), canonical(value[key])) for key in value]
        return "mapping", *sorted(parts, key=repr)
    if issubclass(kind, Set):
        return "set", *sorted(map(canonical, value), key=repr)
    if issubclass(kind, (bytes, bytearray, memoryview)):
        return "bytes", bytes(value).hex()
    if issubclass(kind, Sequence):
        return "sequence", *map(canonical, value)
    fields = _fields(value)
    return value if fields is None else ("object", canonical(fields))


def _canonical_time(value: date | time) -> str:
    if not isinstance(value, (datetime, time)):
        return value.isoformat()
    offset = value.utcoffset()
    if offset is None:
        return f"{value.isoformat()} {value.tzinfo}"  # a time of day in Paris has no offset
    naive = value.replace(tzinfo=None)
    moment = naive if isinstance(naive, datetime) else datetime.combine(date.min, naive)
    return f"{(moment - datetime.min - offset) // _MICROSECOND} us"
