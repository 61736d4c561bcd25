"""Declarations of arguments and options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Container, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType, NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import click

from .arguments import NONE, PRIORITY, Duration, aware_time, number_or_none, rate_or_none


def argument(name: str, **attributes: Any) -> click.Argument:
    """Return an argument."""
    return click.Argument([name], **attributes)


def option(*names: str, help: str, **attributes: Any) -> click.Option:
    """Return an option whose help shows its default."""
    attributes.setdefault("show_default", attributes.get("default") not in (None, ""))
    return click.Option(names, help=help, **attributes)


def flag(*names: str, help: str, **attributes: Any) -> click.Option:
    """Return an option without a value."""
    return click.Option(names, help=help, is_flag=True, **attributes)


def integer(
    *names: str, help: str, lowest: int = 1, highest: int | None = None, **attributes: Any
) -> click.Option:
    """Return an option for an integer in a range."""
    attributes.setdefault("metavar", "N")
    return option(*names, help=help, type=click.IntRange(lowest, highest), **attributes)


_WORDS = {
    "at": "Time from which the item is available, such as 2030-01-31T08:00+01:00.",
    "deadline": "Time at which the task is due, such as 2030-01-31T08:00+01:00.",
    "delay": "Time until the item is available, such as 90 for seconds, 5m or 1h30m.",
    "drain": "Exit when no item can be claimed, without waiting for delayed items and retries.",
    "grace": "Time after which a job that was told to stop is given up; a command gets SIGKILL.",
    "keep_number": "Number of the newest done items to keep.",
    "kept_attempts": "Number of the last failed attempts to keep of an item.",
    "rate": "Maximum number of items started in any window of this time, such as 100/1m.",
    "traceback_bytes": "Number of bytes to keep from the end of a traceback.",
    "ttl": "Time after which the item expires unless it was popped or claimed.",
    "unique": "Push only if no unfinished item has this key.",
    "unique_until": "When the key is free again: once the item is claimed, or has ended.",
    "unique_for": "Time for which the key is not free, instead of --unique-until.",
}
"""Help where the shell needs other words than Python."""

_SHORT = {"priority": ("-p",)}


def options_of(
    *declared: Callable[..., object],
    flags: Mapping[str, str] = MappingProxyType({}),
    omit: Container[str] = (),
    **own: click.Option,
) -> list[click.Parameter]:
    """Return an option for each field of typed dictionaries, or each keyword of functions.

    The help is the first sentence about a field in their docstrings. In `declared`, a subclass
    follows its base. `flags` has other flags than the names of fields, `omit` the fields without an
    option, and `own` other options.
    """
    words: dict[str, str] = {}
    found: dict[str, click.Parameter] = {}
    for each in declared:
        words |= _documented(each)
        for name, (hint, default) in _fields(each).items():
            if name not in omit:
                written = flags.get(name) or "--" + name.replace("_", "-")
                help = _WORDS.get(name) or words.get(name, "")  # -OO removes docstrings
                found[name] = own.get(name) or _option(written, name, hint, default, help)
    return [*found.values()]


def chosen(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options given on the command line."""
    given = {name: value for name, value in options.items() if value is not None}
    return {name: None if value is NONE else value for name, value in given.items()}


def _documented(declared: object) -> dict[str, str]:
    text = re.sub(r'[`"]', "", inspect.getdoc(declared) or "")
    found = re.findall(r"^    (\w+): (.+\n?(?:^        .+\n?)*)", text, re.M)
    sentences = {name: " ".join(words.split()).partition(". ")[0] for name, words in found}
    return {
        name: re.sub(r"(; None .*|(, or None)?\.?)$", "", words).replace("None", "none") + "."
        for name, words in sentences.items()
    }


def _fields(declared: Callable[..., object]) -> dict[str, tuple[Any, Any]]:
    hints = get_type_hints(declared, include_extras=True)
    if isinstance(declared, type):
        return {name: (hint, None) for name, hint in hints.items()}
    parameters = inspect.signature(declared).parameters.values()
    keywords = [each for each in parameters if each.kind is each.KEYWORD_ONLY]
    return {
        each.name: (hints[each.name], None if each.default is each.empty else each.default)
        for each in keywords
    }


def _option(written: str, name: str, hint: Any, default: Any, help: str) -> click.Option:
    kinds = {get_origin(kind) or kind: kind for kind in (hint, *get_args(hint))}
    if bool in kinds:
        both = f"{written}/--not-{written[2:]}"
        return flag(written if hint is bool else both, name, default=default, help=help)
    metavar: str | None = None
    kind: Any = str
    if list in kinds or {int, tuple} <= kinds.keys():
        kind = PRIORITY
    elif datetime in kinds:
        metavar, kind = "TIME", aware_time
    elif timedelta in kinds:
        kind = Duration(0)
    elif Annotated in kinds:
        kind = click.Choice(kinds[Annotated].__metadata__[0])
    elif Literal in kinds:
        kind = click.Choice(get_args(kinds[Literal]))
    elif tuple in kinds:
        metavar, kind = "N/DURATION|none", rate_or_none
    elif int in kinds or float in kinds:
        metavar, kind = "N", int if int in kinds else float
        if NoneType in kinds:
            metavar, kind = "N|none", number_or_none(int if int in kinds else float)
    names = (*_SHORT.get(name, ()), written, name)
    return option(*names, metavar=metavar, type=kind, default=default, help=help)
