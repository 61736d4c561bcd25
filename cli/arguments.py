"""Parsing of command-line arguments."""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, BinaryIO

import click
from click.types import FuncParamType

from fdbqueue.errors import FdbqueueError
from fdbqueue.queue.arguments import parse_json, seconds_of_text
from fdbqueue.queue.repeatable import MAX_LINE

from .output import json_line

_MAX_HINT = 40  # characters of a value in a hint


class Duration(click.FloatRange):
    """A length of time, such as 90 (seconds), 5m or 1h30m."""

    name = "duration"

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = seconds_of_text(str(value))
        if math.isnan(seconds):
            self.fail(
                f"{value!r} is not a length of time, such as 90 for seconds, 5m or 1h30m",
                param,
                ctx,
            )
        try:
            number: float = super().convert(seconds, param, ctx)
        except click.BadParameter:
            self.fail(f"the time must be {self._bounds()} seconds, not {value}", param, ctx)
        return number

    def _bounds(self) -> str:
        lowest = f"{'more than' if self.min_open else 'at least'} {self.min:,}"
        return lowest if self.max is None else f"{lowest} and at most {self.max:,}"


# The other types are functions: click adds the name of the option to their errors.


def number_of_bytes(text: str) -> int:
    """Return the bytes of a size such as 500M, with units of 1,024."""
    found = re.fullmatch(r"(\d+)([KMGT]?)", text.upper())
    if found is None or int(found[1]) == 0:
        raise click.BadParameter(f"{text!r} is not a number of bytes, such as 500M or 2G")
    bytes_of_unit: int = 1024 ** " KMGT".index(found[2] or " ")
    return int(found[1]) * bytes_of_unit


def priority(value: object) -> Any:
    """Return the JSON form of a priority."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        text = str(value)[:100]
        raise click.BadParameter(
            f"{text!r} is not an integer or a list such as '[1, 2.5]'"
        ) from None


PRIORITY = FuncParamType(priority)


def aware_time(text: str) -> datetime:
    """Return an ISO 8601 time with a time zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not an ISO 8601 time such as 2030-01-31T08:00+01:00"
        ) from None
    if found.utcoffset() is None:
        raise click.BadParameter(f"{text!r} needs a time zone, such as +01:00")
    return found


NONE = object()
"""The value of the text `none`; `None` stands for an option that was not given."""


def number_or_none(kind: Callable[[str], float]) -> Callable[[str], object]:
    """Return a function that reads a number or `none`."""

    def number(text: str) -> object:
        with suppress(ValueError):
            return NONE if text == "none" else kind(text)
        noun = "an integer" if kind is int else "a number"
        raise click.BadParameter(f"{text[:100]!r} is not {noun} or `none`")

    return number


def rate_or_none(text: str) -> object:
    """Return the number and time of a rate, or `NONE`."""
    number, _, time = text.partition("/")
    if text != "none" and not (number.isdecimal() and time):
        raise click.BadParameter(f"{text!r} is not a number and a time, such as 100/1m")
    return NONE if text == "none" else (int(number), time)


def parse_value(text: str | bytes) -> Any:
    """Parse a JSON text, or raise a usage error."""
    try:
        return parse_json(text)
    except ValueError as error:
        hint = ""
        if isinstance(text, str) and not text.startswith(("{", "[", '"')):
            quoted = shlex.quote(json_line(text[:_MAX_HINT]))
            hint = f" (write a string in quotes, such as {quoted})"
        raise click.UsageError(f"the value is not JSON: {error}{hint}") from error


def read_value(text: str | BinaryIO) -> Any:
    """Parse the JSON of a text or a file; `-` stands for standard input.

    Read no more than the maximum size: input may be endless.
    """
    if text == "-":
        text = sys.stdin.buffer
    if isinstance(text, str):
        return parse_value(text)
    found = text.read(MAX_LINE + 1)
    if len(found) > MAX_LINE:
        raise click.UsageError(f"the value is longer than {MAX_LINE:,} bytes")
    return parse_value(found)


@contextmanager
def usage_errors() -> Generator[None]:
    """Report an argument that the library refuses as a usage error that names its flag."""
    try:
        yield
    except (FdbqueueError, OSError, UnicodeError):
        raise
    except (TypeError, ValueError) as error:
        params = click.get_current_context().command.params
        flags = {each.name: each.opts[-1] for each in params if isinstance(each, click.Option)}
        text = re.sub(r"^\w+", lambda name: flags.get(name[0], name[0]), str(error))
        raise click.UsageError(text) from error
