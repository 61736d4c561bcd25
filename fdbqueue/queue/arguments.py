"""Validation of the arguments of queues and workers, and their stored form.

A `validate_` function returns a valid argument. For another it raises `TypeError`, `ValueError`, or
`InvalidTask` if it is a field of a task.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from math import isfinite
from numbers import Real
from typing import Any, TypeGuard, TypeVar, get_args

from fdbqueue.database.binding import is_database
from fdbqueue.database.clock import client_name, milliseconds
from fdbqueue.errors import InvalidTask, error_text
from fdbqueue.layout.codecs import JsonCodec, encode_returned
from fdbqueue.layout.codecs import decode_json as decode_json
from fdbqueue.layout.codecs import json_bytes as json_bytes
from fdbqueue.layout.codecs import parse_json as parse_json
from fdbqueue.layout.items import Filter
from fdbqueue.layout.keys import MAX_SHARDS
from fdbqueue.layout.tasks import TaskRecord, deadline_number
from fdbqueue.layout.values import (
    LAST_MILLISECOND,
    MAX_LOG,
    MAX_TRACEBACK,
    NO_HEADER,
    Header,
    Report,
    text_end,
    utc_time,
)
from fdbqueue.operations.shards import check_shards
from fdbqueue.options import (
    Filters,
    GroupOptions,
    GroupSettings,
    PushManyOptions,
    QueueLimits,
    QueueOptions,
    QueueSettings,
)
from fdbqueue.types import (
    Claim,
    Duration,
    Keep,
    Options,
    PriorityKind,
    Progress,
    State,
    TaskPriority,
    Transactor,
    UniqueUntil,
)

_T = TypeVar("_T")

MAX_SECONDS = 10**10  # 317 years
_MAX_LEASE = 10**9  # seconds
_MAX_CONCURRENCY = 10_000
_MAX_KEPT_ATTEMPTS = 1_000  # of an item
MAX_INTEGER = 2**63 - 1
_MOST_ROWS = 10**7  # more than a transaction reads; FoundationDB takes limits below 2**31
MAX_TEXT = 255
"""Bytes of UTF-8 in names and keys; a header has as many characters."""

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PARTS = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")


def seconds_of_text(text: str) -> float:
    """Return the seconds of a length of time such as "5m" or "1h30m"; NaN for another text.

    >>> seconds_of_text("1h30m"), seconds_of_text("90")
    (5400.0, nan)
    """
    parts = _PARTS.findall(text)
    is_valid = bool(parts) and "".join(map("".join, parts)) == text
    return sum(float(n) * _UNITS[unit] for n, unit in parts) if is_valid else math.nan


def text_of_seconds(seconds: float) -> str:
    """Return a length of time as text, to its two largest units.

    >>> [text_of_seconds(seconds) for seconds in (0, 0.25, 90, 3661.5, 604_800)]
    ['0s', '250ms', '1m30s', '1h1m', '7d']
    """
    left, parts = round(1000 * seconds), list[str]()
    for unit in ("d", "h", "m", "s", "ms"):
        n, left = divmod(left, round(1000 * _UNITS[unit]))
        if n:
            parts.append(f"{n}{unit}")
    return "".join(parts[:2]) or "0s"


def validate_seconds(
    name: str, seconds: object, *, is_over: bool = False, below: int | None = None
) -> float:
    """Return seconds from 0, or with `is_over` over 0."""
    given = seconds
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    elif isinstance(seconds, str):
        seconds = seconds_of_text(seconds)
        if math.isnan(seconds):
            raise ValueError(
                f"{name} is a number of seconds, or a text such as '90s' or '1h30m', not {given!r}"
            )
    if not _is_real(seconds):
        raise TypeError(
            f"{name} is a number of seconds, a timedelta, or a text such as '5m', not {given!r}"
        )
    is_low = not seconds >= 0 or (is_over and seconds == 0)  # NaN is neither high nor low
    if is_low or (below is not None and seconds >= below):
        lowest = "over 0" if is_over else "from 0"
        highest = "" if below is None else f", below {below:,}"
        raise ValueError(f"{name} is a number of seconds {lowest}{highest}, not {given!r}")
    return seconds


def _is_integer(number: object, lowest: int, highest: int) -> TypeGuard[int]:
    return isinstance(number, int) and not isinstance(number, bool) and lowest <= number <= highest


def _is_real(number: object) -> TypeGuard[float]:
    return isinstance(number, (int, float)) and not isinstance(number, bool)


def _is_text(text: object) -> TypeGuard[str]:
    if isinstance(text, str) and text:
        try:
            return len(text.encode()) <= MAX_TEXT
        except UnicodeEncodeError:
            return False
    return False


def due_time(delay: Duration | None, at: datetime | None) -> int | None:
    """Return when an item is due, in milliseconds since 1970; `None` for at once."""
    if delay is not None and at is not None:
        raise ValueError("give a delay or a time, not both")
    if at is not None:
        return max(0, _milliseconds_of(validate_time(at)))
    seconds = validate_delay(delay)
    return _from_now(seconds) if seconds else None


def _from_now(seconds: float) -> int:
    return milliseconds() + math.ceil(seconds * 1000)


def new_time(options: Mapping[str, Any]) -> int | None:
    """Return when a changed item is due, in milliseconds; 0 for at once, `None` for no change."""
    delay, at = options.get("delay"), options.get("at")
    due = due_time(delay, at)
    return 0 if due is None and delay is not None else due


def postponed_for(options: PushManyOptions) -> float | None:
    """Return for how many milliseconds pushes may replace an item; `None` for never."""
    at_most = options.get("at_most")
    if not validate_flag("replace", options.get("replace", False)):
        if at_most is not None:
            raise ValueError("at_most needs replace=True, too")
        return None
    return math.inf if at_most is None else 1000 * validate_seconds("at_most", at_most)


def validate_time(at: object) -> datetime:
    """Return the time at which an item is due.

    >>> validate_time(datetime.fromisoformat("9999-12-31T23:59:59.999999+00:00"))
    Traceback (most recent call last):
    ValueError: at is a time up to 9999-12-31T23:59:59.999+00:00, not ...
    """
    if not isinstance(at, datetime) or at.utcoffset() is None:
        raise TypeError(f"at is a datetime that has a time zone, not {at!r}")
    if _milliseconds_of(at) > LAST_MILLISECOND:
        last = utc_time(LAST_MILLISECOND).isoformat(timespec="milliseconds")
        raise ValueError(f"at is a time up to {last}, not {at.isoformat()}")
    return at


def _milliseconds_of(time: datetime) -> int:
    return math.ceil(time.timestamp() * 1000)


def validate_delay(delay: Duration | None) -> float | None:
    """Return a delay in seconds."""
    return None if delay is None else validate_seconds("delay", delay, below=MAX_SECONDS)


def validate_wait(tr: Transactor, seconds: Duration) -> float:
    """Return the seconds to wait; raise an error inside a transaction."""
    number = validate_seconds("wait", seconds)
    if number and not is_database(tr):
        raise ValueError(
            "only a call that is given a database can wait: nothing sleeps inside a transaction"
        )
    return min(number, threading.TIMEOUT_MAX)


def validate_number(
    number: object,
    name: str = "n",
    lowest: int = 0,
    noun: str = "items",
    highest: int = MAX_INTEGER,
    instead: str = "",
) -> int:
    """Return a number of items, or of other things."""
    if _is_integer(number, lowest, highest):
        return number
    upto = "" if highest == MAX_INTEGER else f" to {highest:,}"
    what = f"{name} is a number of {noun}" if noun else f"{name} is a number"
    raise ValueError(f"{what} from {lowest:,}{upto}{instead}, not {number!r}")


def validate_most(number: object, name: str = "n", lowest: int = 0) -> int:
    """Return the maximum number of items, or of other rows, to read in one transaction."""
    return min(validate_number(number, name, lowest), _MOST_ROWS)


def validate_bound(name: str, bound: object, highest: int = MAX_INTEGER) -> int | None:
    """Return a limit from 1, or `None`."""
    return None if bound is None else validate_number(bound, name, 1, "", highest, ", or None")


def validate_range(name: str, number: object, lowest: int, highest: int) -> int:
    """Return a number from the lowest to the highest."""
    return validate_number(number, name, lowest, "", highest)


def validate_shards(name: str, number: object) -> int | None:
    """Return a number of shards; `None` for one."""
    if number is None:
        return None
    shards = validate_range(name, number, lowest=1, highest=MAX_SHARDS)
    return None if shards == 1 else shards


def validate_share(name: str, number: object) -> float:
    """Return a weight or a cost, from 0.001 to 1,000."""
    if _is_real(number) and 0.001 <= number <= 1000:
        return float(number)
    raise ValueError(f"{name} is a number from 0.001 to 1,000, not {number!r}")


def validate_rate(name: str, rate: Any) -> tuple[int, float] | None:
    """Return a rate as a number and seconds, to the millisecond."""
    if rate is None:
        return None
    try:
        number, time = rate
    except (TypeError, ValueError):
        text = f"{name} is a number and a time, such as (10, '1m'), not {rate!r}"
        raise ValueError(text) from None
    number = validate_range("the number of a rate", number, 1, 10_000)
    seconds = validate_seconds("the time of a rate", time, is_over=True, below=_MAX_LEASE)
    return number, max(1, round(1000 * seconds)) / 1000


def validate_flag(name: str, flag: object) -> bool:
    """Return true or false."""
    if isinstance(flag, bool):
        return flag
    raise ValueError(f"{name} is True or False, not {flag!r}")


def validate_choice(name: str, value: object, choices: Any) -> Any:
    """Return a value that is one of a `Literal`."""
    if value in get_args(choices):
        return value
    raise ValueError(f"{name} is one of {', '.join(map(repr, get_args(choices)))}, not {value!r}")


def validate_client_name(name: object) -> str:
    """Return the name of a client, which is printable text."""
    if _is_text(name) and name.isprintable():
        return name
    raise ValueError(f"a name is printable text of 1 to {MAX_TEXT} bytes, not {name!r}")


def validate_by(by: object) -> str:
    """Return the name of a client that retries items; `None` stands for this process."""
    return client_name() if by is None else validate_client_name(by)


def validate_json(value: Any) -> None:
    """Raise `TypeError` or `ValueError` unless JSON represents a value as it is."""
    JsonCodec().encode(value)


def validate_result(result: Any, holder: str = "a result") -> bytes | None:
    """Return a result as JSON; raise `InvalidValue` or `PayloadTooLarge`."""
    return None if result is None else encode_returned(result, holder)


def validate_log(log: object) -> str:
    """Return the last lines of a log, which are kept."""
    if not isinstance(log, str):
        raise TypeError(f"a log is text, not {log!r}")
    if not log:
        return ""
    end = text_end(log, MAX_LOG)
    return end if end == log else end.partition("\n")[2] or end


def validate_report(progress: object, log: object, now: int) -> Report | None:
    """Return a report on the work on a claim; `None` without progress and log."""
    text = validate_log(log)
    if progress is None:
        return Report(log=text) if text else None
    if not isinstance(progress, Progress):
        raise TypeError(f"progress is a Progress, not {progress!r}")
    fraction: object = progress.fraction
    if not _is_real(fraction):
        raise TypeError(f"progress is a number from 0 to 1, not {fraction!r}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"progress is a number from 0 to 1, not {fraction!r}")
    if not isinstance(progress.message, str):
        raise TypeError(f"the message of a progress is text, not {progress.message!r}")
    return Report(float(fraction), error_text(progress.message) or "", now, text)


def validate_address(text: int | str) -> tuple[str, int]:
    """Return the host and the port of `"HOST:PORT"`, or of a port of this host.

    >>> validate_address(9200), validate_address("[::]:9200")
    (('127.0.0.1', 9200), ('::', 9200))
    """
    host, _, port = str(text).rpartition(":")
    is_port = port.isascii() and port.isdigit() and int(port) < 65536
    if isinstance(text, bool) or not is_port or (":" in host and not host.startswith("[")):
        raise ValueError(f"an address is PORT or HOST:PORT, such as 9200 or [::]:9200, not {text}")
    return host.strip("[]") or "127.0.0.1", int(port)


def validate_options(kind: type, options: Mapping[str, Any]) -> None:
    """Raise `TypeError` for an unknown option."""
    known = kind.__annotations__
    for name in options:
        if name not in known:
            raise TypeError(f"there is no option {name!r}: {', '.join(sorted(known))}")


def validate_state(state: object) -> State:
    """Return a state of items."""
    known: State = validate_choice("a state", state, State)
    return known


def validate_filter(kind: str, state: State, filters: Filters) -> Filter:
    """Return what to look for; raise for a filter that items in this state cannot pass."""
    validate_options(Filters, filters)
    wanted = Filter(**filters)
    for name in ("agent", "id", "error", "client", "job"):
        text = getattr(wanted, name)
        if text is not None and not (isinstance(text, str) and text):
            raise ValueError(f"{name} is text of at least one character, not {text!r}")
    validate_group(wanted.group, may_be_empty=True)
    if wanted.priority is not None:
        if kind == "fifo":
            raise ValueError("priority: the items of a fifo queue have no priorities")
        if kind == "task":
            validate_priority(wanted.priority)
    if wanted.agent is not None and kind != "task":
        raise ValueError(f"agent: the items of a {kind} queue have no agent")
    if wanted.error is not None and state == "done":
        raise ValueError("error: done items have no error")
    if wanted.client is not None and state != "claimed":
        raise ValueError(f"client: only claimed items have a client, not {state} ones")
    return wanted


def validate_key(what: str, text: object, may_be_empty: bool = False) -> str:
    """Return text of up to 255 bytes."""
    if _is_text(text) or (may_be_empty and text == ""):
        return str(text)
    least = 0 if may_be_empty else 1
    raise ValueError(f"{what} is text of {least} to {MAX_TEXT} bytes, not {text!r}")


def validate_group(name: object, may_be_empty: bool = False) -> str | None:
    """Return the name of a group, or `None` for none."""
    return None if name is None else validate_key("a group", name, may_be_empty)


def of_each(n: int, name: str, given: Iterable[_T]) -> list[_T]:
    """Return the arguments for each of `n` values."""
    if isinstance(given, str):
        raise TypeError(f"give {name} as a list, a key for each value, not {given!r}")
    listed = list(given)
    if len(listed) != n:
        raise ValueError(f"there are {n} values and {len(listed)} {name}")
    return listed


def new_headers(n: int, options: PushManyOptions) -> list[Header]:
    """Return the header of each of `n` new items."""
    ttl, cost, keys = options.get("ttl"), options.get("cost", 1), options.get("unique")
    replaces = options.get("replace", False)
    until, period = options.get("unique_until"), options.get("unique_for")
    plain = NO_HEADER
    if ttl is not None:
        lifetime = validate_seconds("ttl", ttl, is_over=True, below=MAX_SECONDS)
        plain = Header(expires=_from_now(lifetime))
    if cost != 1:
        plain = plain._replace(cost=validate_share("cost", cost))
    seconds = validate_scope(keys, until, period, replaces)
    if keys is None:
        return [plain] * n
    ends = None if seconds is None else _from_now(seconds)
    is_held, is_ended = ends is None, ends is None and until != "claimed" and not replaces

    def header(key: str | None) -> Header:
        if key is None:
            return plain
        validate_key("unique", key)
        unique, freed = key if is_held else None, None if is_ended else key
        return plain._replace(unique=unique, key=freed, key_ends=ends)

    return [*map(header, of_each(n, "unique keys", keys))]


def validate_scope(
    unique: object, until: object, period: Duration | None, replace: object = False
) -> float | None:
    """Return for how many seconds a unique key is not free, or `None`."""
    if replace and (until == "ended" or period is not None):
        raise ValueError("replace frees the key with a claim: leave out unique_until, unique_for")
    if until is not None:
        validate_choice("unique_until", until, UniqueUntil)
    if until is not None and period is not None:
        raise ValueError("give unique_until or unique_for, not both")
    if unique is None and (until is not None or period is not None or replace):
        name = "replace" if replace else "unique_for" if until is None else "unique_until"
        raise ValueError(f"{name} needs a key: give unique, too")
    if period is None:
        return None
    return validate_seconds("unique_for", period, is_over=True, below=MAX_SECONDS)


def validate_claim(claim: Claim) -> Claim:
    """Return a claim, not the `None` of an empty queue."""
    if isinstance(claim, Claim):
        return claim
    raise TypeError(f"a claim is needed, not {claim!r}; `claim` returns None for no item")


def validate_lease(lease: object, name: str = "a lease") -> float:
    """Return the seconds of a lease or of a run."""
    return float(validate_seconds(name, lease, is_over=True, below=_MAX_LEASE))


# What a task may be


def validate_priority(priority: object) -> TaskPriority:
    """Return the priority of a task, from 1 to 5."""
    if _is_integer(priority, 1, 5):
        return TaskPriority(priority)
    raise InvalidTask("priority", priority, "an integer from 1 (CRITICAL) to 5 (DEFERRED)")


def validate_cost(cost: object) -> float:
    """Return the cost of a task, which is finite and not negative."""
    if isinstance(cost, (Real, Decimal)) and not isinstance(cost, bool):
        try:
            number = float(cost)
        except (OverflowError, ValueError):
            number = -1.0
        if isfinite(number) and number >= 0:
            return number
    raise InvalidTask("cost", cost, "a finite number from 0")


def validate_name(field: str, name: object) -> str:
    """Return the name of an agent or client."""
    if _is_text(name):
        return name
    raise InvalidTask(field, name, f"text of 1 to {MAX_TEXT} bytes in UTF-8")


def kept_options(keep: Keep | None) -> dict[str, Any]:
    """Return the options that `keep` stands for.

    >>> kept_options(("1d", 100))
    {'keep_seconds': 86400, 'keep_number': 100}
    """
    parts = keep if isinstance(keep, tuple) and keep else (keep,)
    seconds = number = None
    for part in parts:
        if 1 <= (age := _age(part)) <= MAX_INTEGER and seconds is None:
            seconds = math.ceil(age)
        elif _is_integer(part, 1, MAX_INTEGER) and number is None:
            number = part
        elif keep is not None:
            raise ValueError(
                "keep is a timedelta or a text such as '7d', from one second, a number of items "
                f"from 1, a tuple of both, or None, not {keep!r}"
            )
    return {"keep_seconds": seconds, "keep_number": number}


def _age(part: object) -> float:
    if isinstance(part, timedelta):
        return part.total_seconds()
    return seconds_of_text(part) if isinstance(part, str) else math.nan


def validate_task(
    *,
    priority: object = TaskPriority.MEDIUM,
    deadline: object = None,
    cost: object = 0,
    agent_name: object = None,
    client_id: object = None,
    payload: object = None,
) -> tuple[TaskRecord, tuple[int, int, float]]:
    """Return the stored record of a task and its priority in the queue."""
    agent = None if agent_name is None else validate_name("agent_name", agent_name)
    client = None if client_id is None else validate_name("client_id", client_id)
    order = int(validate_priority(priority)), deadline_number(deadline), validate_cost(cost)
    return TaskRecord(agent, client, payload), order


# The options of a queue, and the settings of a group


LIMITS = (
    *("max_size", "max_attempts", "concurrency", "keep_number", "keep_seconds"),
    *("kept_attempts", "traceback_bytes", "shards"),
)
"""The options that are numbers, by their names in Python, HTTP and JSON."""


_VALIDATORS: dict[str, Callable[[str, Any], object]] = {
    **dict.fromkeys(LIMITS, validate_bound),
    "concurrency": partial(validate_bound, highest=_MAX_CONCURRENCY),
    "kept_attempts": partial(validate_range, lowest=1, highest=_MAX_KEPT_ATTEMPTS),
    "traceback_bytes": partial(validate_range, lowest=0, highest=MAX_TRACEBACK),
    "shards": validate_shards,
    "paused": validate_flag,
    "rate": validate_rate,
    "weight": validate_share,
    "in_order": validate_flag,
}
"""The functions that check the options of a queue, and the settings of a group."""


def settings_to_store(settings: Mapping[str, object]) -> dict[str, Any]:
    """Return the stored options that the arguments of `configure` change."""
    validate_options(QueueSettings, settings)
    changes: dict[str, Any] = {**settings}
    stored: dict[str, Any] = {}
    if "keep" in changes:
        stored = kept_options(changes.pop("keep"))
        if not stored.keys().isdisjoint(changes):
            raise ValueError("keep stands for keep_seconds and keep_number: give it without them")
    return stored | {name: _VALIDATORS[name](name, value) for name, value in changes.items()}


def given_options(
    kind: str, codec: str, priorities: PriorityKind | None, options: QueueOptions
) -> Options:
    """Return the options of an opened queue, as its first push stores them."""
    validate_options(QueueOptions, options)
    given = Options(kind, codec, priorities, **settings_to_store(options))
    check_shards(given)
    return given


def group_settings(settings: GroupOptions, group: str | None) -> dict[str, Any]:
    """Return the settings that the arguments of `set_group` change.

    The items without a group (`""`) have only a weight. All groups (`None`) cannot be paused.
    """
    validate_options(GroupSettings, settings)
    stored: dict[str, Any] = {}
    for name, value in settings.items():
        if name == "paused" and group is None and value:
            raise ValueError("paused: give the name of a group; configure pauses the queue")
        is_unset = value is None and name != "paused"
        stored[name] = None if is_unset else _VALIDATORS[name](name, value)
        if group == "" and name != "weight" and value not in (None, False):
            raise ValueError(f"{name}: the items without a group have only a weight")
    return stored


OF_GROUPS = "groups."
"""Begins the name of a declared setting of all groups."""


def declared_settings(options: QueueLimits, groups: GroupOptions) -> dict[str, Any]:
    """Return the stored form of what an app declares for a queue and all its groups."""
    validate_options(QueueLimits, options)
    validate_options(GroupOptions, groups)
    named = {OF_GROUPS + name: value for name, value in group_settings(groups, None).items()}
    stored = settings_to_store(options)
    check_shards(Options("", "", None, **stored))
    return {**stored, **named}
