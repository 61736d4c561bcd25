"""The fields of requests: their types, with the ranges that OpenAPI describes."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, TypeAlias

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BeforeValidator,
    Field,
    TypeAdapter,
    WithJsonSchema,
)

from fdbqueue.queue.arguments import validate_time
from fdbqueue.queue.settings import LIMITS

MAX_ITEMS = 1000
"""How many items one request pushes, pops, claims or lists at most."""

MAX_WAIT = 300.0
"""Seconds for which a request waits at most."""

_MAX_LIMIT = 2**53 - 1  # the largest integer that every JSON reader represents exactly
_MAX_TEXT = 255  # characters of a name; fdbqueue counts bytes
MAX_SECONDS = 10**10
"""All lengths of time are shorter."""

NAME_SCHEMA: dict[str, Any] = {"minLength": 1, "maxLength": 255, "format": "queue-name"}
"""The schema of a queue's name in OpenAPI. It counts characters; the limit is in bytes."""


def exact_integer(value: Any) -> Any:
    """Return a number without a fraction as an integer, and anything else as it is.

    JSON has one kind of number: for JSON Schema, and so for OpenAPI, 1.0 is an integer.

    >>> exact_integer(1.0), exact_integer(1.5), exact_integer("1")
    (1, 1.5, '1')
    """
    return int(value) if isinstance(value, float) and value.is_integer() else value


Integer: TypeAlias = Annotated[int, BeforeValidator(exact_integer)]
"""An integer of a body."""

Seconds = Annotated[float, Field(ge=0, lt=MAX_SECONDS)]
Share = Annotated[float, Field(ge=0.001, le=1000)]
PositiveSeconds = Annotated[float, Field(gt=0, lt=10**9)]
Log = Annotated[
    str, Field(max_length=100_000, description="Lines of the log; the last 8,000 bytes are kept.")
]


def _time_from_text(value: Any) -> Any:
    """Return the time of an ISO 8601 text.

    A strict model reads one from JSON, but not from what FastAPI has parsed. A lenient one reads
    a text of digits as seconds.
    """
    if isinstance(value, str):
        if not _DATE_AND_TIME.match(value):
            raise ValueError(f"{value!r} is not a time such as 2030-01-31T12:00:00Z")
        return _TIME.validate_python(value)
    return value


_DATE_AND_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]", re.ASCII)
_TIME: TypeAdapter[datetime] = TypeAdapter(AwareDatetime)
Time = Annotated[AwareDatetime, BeforeValidator(_time_from_text)]
DueTime = Annotated[Time, AfterValidator(validate_time)]


def _validate_priority(value: Any) -> Any:
    value = exact_integer(value)
    if type(value) not in (int, list):  # a bool is an int
        raise ValueError("a priority is an integer, or a list for a tuple")
    return value


Priority = Annotated[
    Any,
    BeforeValidator(_validate_priority),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "array"}]}),
    Field(description="The lowest is taken first."),
]
Wait = Annotated[float, Field(ge=0, le=MAX_WAIT)]
# After the limits of a number: pydantic does not describe those of a validator.
_EXACT = BeforeValidator(exact_integer)
Limit = Annotated[int, Field(ge=1, le=_MAX_LIMIT), _EXACT]
Slots = Annotated[int, Field(ge=1, le=LIMITS["concurrency"].highest), _EXACT]
WholeSeconds = Annotated[int, Field(ge=1, lt=MAX_SECONDS), _EXACT]
Text = Annotated[str, Field(min_length=1, max_length=_MAX_TEXT)]
QueueName = Annotated[str, WithJsonSchema({"type": "string", **NAME_SCHEMA})]
Token = Annotated[str, Field(min_length=1, max_length=2000)]
Part = Annotated[str, Field(min_length=1, max_length=1000, description="As for the list of items.")]
