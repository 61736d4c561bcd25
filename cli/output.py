"""Printing as text or JSON, safe for the terminal."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, TypeVar

import click

from fdbqueue import Item, Task
from fdbqueue.queue.arguments import json_bytes, text_of_seconds
from fdbqueue.queue.overview import priority_as_json
from fdbqueue.types import ByState, Priority, QueueStats

_MAX_TEXT = 120  # characters of an error in a list
_MAX_NAME = 60  # columns

AS_JSON = "fdbq.json"

_OF_A_TASK = [field.name for field in dataclasses.fields(Task) if field.repr]
_TIMES = ("deadline", "created_at")

_T = TypeVar("_T")


class OutputError(Exception):
    """Standard output cannot be written."""


class PrintError(OutputError):
    """Standard output did not accept these items."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items
        verb = "was" if len(items) == 1 else "were"
        super().__init__(
            f"cannot write to standard output; {count_noun(len(items), 'item')} {verb} not printed"
        )


def escaped(text: str) -> str:
    """Escape unprintable characters, except for tabs and line ends."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text
    )


def escaped_json(text: str) -> str:
    """Escape unprintable characters in a JSON text."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def printable(text: str) -> str:
    """Shorten a text to one line, and escape it."""
    line = " ".join(text.split())
    return escaped(line if len(line) <= _MAX_TEXT else f"{line[:_MAX_TEXT]}...")


def json_line(value: object) -> str:
    """Return a value as JSON on one line, escaped."""
    return escaped_json(json_bytes(value).decode())


def wants_json() -> bool:
    """Return whether `--json` was given."""
    return bool(click.get_current_context().meta.get(AS_JSON))


def say(text: str = "", *, err: bool = False) -> None:
    """Print a line, escaped."""
    click.echo(escaped(text), err=err)


def fail(text: str) -> NoReturn:
    """Print an error, and exit with code 1."""
    say(f"{click.get_current_context().command_path}: {text}", err=True)
    sys.exit(1)


def show(fields: object, text: str, *, err: bool = False) -> None:
    """Print a result as text or JSON."""
    say(json_line(fields) if wants_json() else text, err=err)


def show_fields(fields: Mapping[str, Any], shown: Mapping[str, Any] | None = None) -> None:
    """Print fields, one a line or as JSON; without `--json`, `shown` replaces them."""
    rows = [(name, value_text(value)) for name, value in (shown or fields).items()]
    width = max(len(name) for name, _ in rows)
    show(fields, "\n".join(f"{name:<{width}}  {text}" for name, text in rows))


def value_text(
    value: dict[str, int] | tuple[int, str | float] | list[Any] | str | float | None,
) -> str:
    """Return a value as text that options accept.

    >>> [value_text(each) for each in (None, True, 1000, (10, 60.0), {"0": 2, "5": 1})]
    ['none', 'yes', '1,000', '10/1m', '0: 2  5: 1']
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return "  ".join(f"{name}: {number:,}" for name, number in value.items()) or "none"
    if isinstance(value, tuple):
        number, time = value
        return f"{number}/{time if isinstance(time, str) else text_of_seconds(time)}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json_line(value)


def report(fields: object, text: str) -> None:
    """Print a change as text or JSON; an error of printing says that it was made."""
    line = json_line(fields) if wants_json() else text
    try:
        say(line)
        sys.stdout.flush()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OutputError(
            f"done, but cannot write to standard output: {reason}; the output is {line!a}"
        ) from error


def report_each(results: dict[str, bool], done: str, explain: Callable[[str], str]) -> None:
    """Print the result for each id; exit with code 1 unless all succeeded.

    `done` is the change's past participle; `explain` returns why an id failed.
    """
    for item_id, is_done in results.items():
        if wants_json():
            report({"id": item_id, done: is_done}, "")
        elif not is_done:
            say(f"fdbq: {item_id} was not {done}: {explain(item_id)}", err=True)
    if not wants_json():
        report(None, f"{sum(results.values()):,} {done}")
    if not all(results.values()):
        sys.exit(1)


def show_items(items: Sequence[Item | Task]) -> None:
    """Print each item's value and, with `--json`, its id and priority.

    Flush each line; `PrintError` has the missing items.
    """
    for index, item in enumerate(items):
        try:
            show(item_fields(item), json_line(value_of(item)))
            sys.stdout.flush()
        except BaseException as error:
            raise PrintError([*items[index:]]) from error


def show_table(
    titles: Sequence[str],
    records: Sequence[_T],
    fields: Callable[[_T], object],
    row: Callable[[_T], Sequence[str]],
    empty: str = "",
) -> None:
    """Print records as lines of JSON or as a table; `empty` if there are none."""
    if wants_json():
        lines = [json_line(fields(record)) for record in records]
    elif records:
        lines = table_lines(titles, map(row, records))
    else:
        lines = [empty] if empty else []
    if lines:
        print("\n".join(lines), flush=True)


def table_lines(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return titles, and rows of a name and numbers, as lines of a table.

    A column without a title is aligned left. A long name widens only its own row.
    """
    from rich.cells import cell_len  # a push does not need it

    lines = [[escaped(cell) for cell in row] for row in (titles, *rows)]
    widths = [0] * len(titles)
    for name, *numbers in lines:
        widths = [*map(max, widths, [min(cell_len(name), _MAX_NAME), *map(len, numbers)])]
    padded: list[str] = []
    for name, *numbers in lines:
        cells = [
            f"{number:{'>' if title else '<'}{width}}"
            for number, width, title in zip(numbers, widths[1:], titles[1:])
        ]
        padded.append("  ".join([name + " " * (widths[0] - cell_len(name)), *cells]).rstrip())
    return padded


def confirm(yes: bool, question: str) -> None:
    """Ask a question unless `yes`, and abort unless the answer is yes."""
    if yes:
        return
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort:
        if not sys.stdin.isatty():
            say(err=True)  # ends the line of the question, as the Enter key would
        raise


def item_fields(item: Item | Task, **more: object) -> dict[str, Any]:
    """Return the JSON object of an item or a task, with more fields."""
    if isinstance(item, Item):
        priority = priority_as_json(item.priority)
        return {"id": item.id, "priority": priority, "value": item.value, **more}
    fields = {name: getattr(item, name) for name in _OF_A_TASK}
    times = {name: time and time.isoformat() for name, time in fields.items() if name in _TIMES}
    return {**fields, "priority": item.priority.name, **times}


def value_of(item: Item | Task) -> Any:
    """Return the value that was pushed."""
    return item.payload if isinstance(item, Task) else item.value


def priority_text(priority: Priority | None) -> str:
    """Return a priority as `--priority` accepts it."""
    return "-" if priority is None else json_line(priority_as_json(priority))


def count_noun(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def states_text(numbers: ByState) -> str:
    """Return a text such as `1 ready, 1 delayed`."""
    found = numbers.by_state.items()
    return ", ".join(f"{number:,} {state}" for state, number in found if number) or "no items"


def notes_text(numbers: Mapping[str, Any]) -> str:
    """Return a text such as `paused, 2 unknown jobs`."""
    notes = ["paused"] if numbers["paused"] else []
    if unknown := numbers["unknown_jobs"]:
        notes.append(count_noun(unknown, "unknown job"))
    return ", ".join(notes)


def wait_text(stats: QueueStats) -> str | None:
    """Return for how long the oldest ready item waits."""
    return age_text(stats.waiting_since(datetime.now(UTC)))


def age_text(time: datetime | None) -> str | None:
    """Return the age of a time, such as `0:01:30`."""
    if time is None:
        return None
    age = datetime.now(UTC) - time
    return str(timedelta(seconds=max(0, round(age.total_seconds()))))
