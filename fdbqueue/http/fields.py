"""Fields of bodies and answers, from the library's declarations."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Annotated, Any, TypeAlias, TypeVar, cast, get_type_hints, is_typeddict

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    Field,
    Strict,
    TypeAdapter,
    WithJsonSchema,
    create_model,
)

from fdbqueue import types

_M = TypeVar("_M", bound=BaseModel)

MAX_ITEMS = 1000
"""Maximum number of items per request."""

MAX_WAIT = 300.0
"""Maximum wait of a request, in seconds."""

NAME_SCHEMA: dict[str, Any] = {"minLength": 1, "maxLength": 255, "format": "queue-name"}
"""The limit counts bytes, not characters."""


def exact_integer(value: Any) -> Any:
    """Return a number without a fraction as an integer, as in JSON Schema.

    >>> exact_integer(1.0), exact_integer(1.5), exact_integer("1")
    (1, 1.5, '1')
    """
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _time_from_text(value: Any) -> Any:
    """Return the time of an ISO 8601 text; a lenient model would also read digits, as seconds."""
    if isinstance(value, str):
        if not _DATE_AND_TIME.match(value):
            raise ValueError(f"{value!r} is not a time such as 2030-01-31T12:00:00Z")
        return _TIME.validate_python(value)
    return value


_DATE_AND_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]", re.ASCII)
_TIME: TypeAdapter[datetime] = TypeAdapter(AwareDatetime)

Integer: TypeAlias = Annotated[int, BeforeValidator(exact_integer)]

Number: TypeAlias = Annotated[int, Field(ge=1, le=MAX_ITEMS), BeforeValidator(exact_integer)]

Wait: TypeAlias = Annotated[float, Field(ge=0, le=MAX_WAIT)]
Time: TypeAlias = Annotated[AwareDatetime, BeforeValidator(_time_from_text)]

Keep: TypeAlias = str | Integer | Annotated[tuple[str, Integer], Strict(False)]

Duration: TypeAlias = float | str
"""Seconds, or a text such as `"90s"`."""

Priority: TypeAlias = Annotated[
    Any,
    BeforeValidator(exact_integer),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "array"}]}),
]
QueueName: TypeAlias = Annotated[str, WithJsonSchema({"type": "string", **NAME_SCHEMA})]

_FORMS: dict[Any, Any] = {
    int: Integer,
    datetime: Time,
    types.Duration: Duration,
    types.Priority: Priority,
    types.Keep: Keep,
    tuple[int, types.Duration]: Annotated[
        tuple[Integer, Duration], Strict(False), Field(examples=[[100, 60]])
    ],
}


def with_fields(
    *declarations: type, without: Collection[str] = ()
) -> Callable[[type[_M]], type[_M]]:
    """Return a decorator that adds fields to a model; those of typed dictionaries are optional."""

    def complete(model: type[_M]) -> type[_M]:
        fields: dict[str, Any] = {}
        texts: dict[str, str] = {}
        for declaration in declarations:
            texts = {**_documentation(declaration), **texts}
            for name, hint in get_type_hints(declaration).items():
                if name not in {*without, *model.model_fields, *fields}:
                    fields[name] = _field(declaration, hint)
        options: Any = {"__base__": model, "__module__": model.__module__, "__doc__": model.__doc__}
        described: Any = create_model(model.__name__, **options, **fields)
        for name, field in described.model_fields.items():
            field.description = field.description or texts.get(name)
        described.model_rebuild(force=True)
        return cast("type[_M]", described)

    return complete


def _field(declaration: type, hint: Any) -> tuple[Any, Any]:
    if not is_typeddict(declaration):
        return hint, ...
    for known, form in _FORMS.items():
        if hint == known:
            hint = form
        elif hint == known | None:
            hint = form | None
    return hint, Field(default_factory=lambda: None)


def _documentation(declaration: type) -> dict[str, str]:
    """Return a docstring's "Attributes" by field."""
    parts: list[tuple[str, str]] = []
    for kind in reversed(declaration.__mro__):
        section = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2]
        parts += re.findall(r"^    (\w+): (.*(?:\n     +.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in parts}
