"""The arguments and results of jobs: bound to the signature, and stored as JSON by annotation."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec

from fdbqueue.jobs.errors import InvalidArguments, UndecodableArguments, UnresolvedAnnotation

_RETURN = "return"


def _to_json(value: Any) -> Any:
    """Return the JSON form of a value of a type that msgspec does not know."""
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "model_dump"):  # a model of pydantic
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _from_json(kind: type[Any], stored: Any) -> Any:
    """Return the value of a type that msgspec does not know."""
    if issubclass(kind, PurePath) and isinstance(stored, str):
        return kind(stored)
    validate = getattr(kind, "model_validate", None)  # of a model of pydantic
    if validate is not None:
        return validate(stored)
    raise ValueError(f"{kind.__name__} cannot be read from JSON")


class _Converter:
    """Converts the values of one parameter, or the results, to JSON and back.

    Args:
        kind: The annotation.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self.is_any = kind is Any or kind is inspect.Parameter.empty

    def encode(self, value: Any) -> Any:
        """Return the JSON form of a value; raise `ValueError` or `TypeError` if it does not fit."""
        if self.is_any:
            return value
        encoded = msgspec.to_builtins(value, builtin_types=(), str_keys=True, enc_hook=_to_json)
        self.decode(encoded)
        return encoded

    def decode(self, stored: Any) -> Any:
        """Return the value of a JSON form; raise `ValueError` or `TypeError` if it does not fit."""
        if self.is_any:
            return stored
        return msgspec.convert(stored, self._kind, str_keys=True, dec_hook=_from_json)


class _Converters(NamedTuple):
    """The converters of a function.

    Attributes:
        positional: Those of the parameters that take positional arguments, with their names.
        named: Those of the parameters that take keyword arguments.
        rest: That of `*args`, if there is one.
        extra: That of `**kwargs`, if there is one.
        result: That of the result.
    """

    positional: list[tuple[str, _Converter]]
    named: dict[str, _Converter]
    rest: tuple[str, _Converter] | None
    extra: _Converter | None
    result: _Converter


class Arguments:
    """The arguments and the result of a function, and their JSON forms.

    Values are converted by the annotations of their parameters: dates and times to ISO 8601,
    `timedelta` to its durations, `UUID`, `Decimal` and `Path` to text, `bytes` to base64, an `Enum`
    to its value (all of them texts, or all integers), dataclasses, `TypedDict` and models of
    pydantic to objects. Without an annotation, or with `Any`, a value is JSON already. Defaults are
    not stored: those of the function that runs hold.

    Args:
        name: The name of the job.
        function: The function. Its annotations are resolved at the first use.
        skip: The number of first parameters that the worker supplies.

    Example:
        >>> from datetime import date
        >>> def remind(user: int, *, on: date) -> str: ...
        >>> arguments = Arguments("remind", remind)
        >>> arguments.encode((3,), {"on": date(2030, 1, 31)})
        ([3], {'on': '2030-01-31'})
        >>> arguments.decode([3], {"on": "2030-01-31"})
        ((3,), {'on': datetime.date(2030, 1, 31)})
    """

    def __init__(self, name: str, function: Callable[..., Any], skip: int = 0) -> None:
        self._name = name
        self._function = inspect.unwrap(function)
        signature = inspect.signature(function)
        self._signature = signature.replace(parameters=[*signature.parameters.values()][skip:])

    @cached_property
    def _converters(self) -> _Converters:
        positional: list[tuple[str, _Converter]] = []
        named: dict[str, _Converter] = {}
        rest: tuple[str, _Converter] | None = None
        extra: _Converter | None = None
        for name, parameter in self._signature.parameters.items():
            converter = _Converter(self._resolved(name, parameter.annotation))
            if parameter.kind is parameter.VAR_POSITIONAL:
                rest = name, converter
            elif parameter.kind is parameter.VAR_KEYWORD:
                extra = converter
            else:
                if parameter.kind is not parameter.KEYWORD_ONLY:
                    positional.append((name, converter))
                if parameter.kind is not parameter.POSITIONAL_ONLY:
                    named[name] = converter
        result = _Converter(self._resolved(_RETURN, self._signature.return_annotation))
        return _Converters(positional, named, rest, extra, result)

    def _resolved(self, name: str, annotation: Any) -> Any:
        """Return the type of an annotation, which may be text that Python has to resolve."""
        if annotation is inspect.Parameter.empty:
            return Any
        # One at a time: the types that the worker supplies may be imported for type checkers only.
        holder = SimpleNamespace(__annotations__={name: annotation})
        names = getattr(self._function, "__globals__", {})
        try:
            return typing.get_type_hints(holder, names, include_extras=True)[name]
        except NameError as error:
            raise UnresolvedAnnotation(self._name, name, str(error)) from error

    def encode(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the JSON forms of the arguments of a call.

        Raises:
            InvalidArguments: The function does not take them, or one does not fit its annotation.
            UnresolvedAnnotation: An annotation names a type that is not known.
        """
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidArguments(self._name, None, str(error)) from None

        def encode(name: str, converter: _Converter, value: Any) -> Any:
            try:
                return converter.encode(value)
            except (TypeError, ValueError) as error:
                raise InvalidArguments(self._name, name, f"{error}, not {value!r}") from None

        return self._converted(args, kwargs, encode)

    def decode(
        self, args: list[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call, given their JSON forms.

        Raises:
            UndecodableArguments: The function does not take them, or one does not fit its
                annotation: another version of the function stored them, or another client did.
            UnresolvedAnnotation: An annotation names a type that is not known.
        """
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise UndecodableArguments(self._name, None, str(error)) from None

        def decode(name: str, converter: _Converter, stored: Any) -> Any:
            try:
                return converter.decode(stored)
            except (TypeError, ValueError) as error:
                raise UndecodableArguments(self._name, name, f"{error}, not {stored!r}") from None

        values, named = self._converted(args, kwargs, decode)
        return tuple(values), named

    def _converted(
        self,
        args: typing.Sequence[Any],
        kwargs: Mapping[str, Any],
        convert: Callable[[str, _Converter, Any], Any],
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return what a conversion returns for each of some arguments that the function takes."""
        positional, named, rest, extra, _ = self._converters
        values = [convert(*each, value) for each, value in zip(positional, args)]
        if rest is not None:
            values += [convert(*rest, value) for value in args[len(positional) :]]
        by_name = {
            name: convert(name, named.get(name) or extra or _Converter(Any), value)
            for name, value in kwargs.items()
        }
        return values, by_name

    def encode_result(self, value: Any) -> Any:
        """Return the JSON form of a result.

        Raises:
            InvalidArguments: It does not fit the return annotation.
        """
        try:
            return self._converters.result.encode(value)
        except (TypeError, ValueError) as error:
            raise InvalidArguments(self._name, _RETURN, f"{error}, not {value!r}") from None

    def decode_result(self, stored: Any) -> Any:
        """Return a result, given its JSON form; `None` if none was stored.

        Raises:
            UndecodableArguments: It does not fit the return annotation.
        """
        if stored is None:
            return None
        try:
            return self._converters.result.decode(stored)
        except (TypeError, ValueError) as error:
            raise UndecodableArguments(self._name, _RETURN, f"{error}, not {stored!r}") from None
