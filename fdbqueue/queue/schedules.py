"""The schedules of a queue, which push an item at each tick."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSimError

from fdbqueue.database.clock import milliseconds
from fdbqueue.database.retrying import read
from fdbqueue.errors import InvalidSchedule, PayloadTooLarge
from fdbqueue.layout.items import StoredItem
from fdbqueue.layout.jobs import MAX_ROW, Definition, StoredSchedule, Timing, schedule_size
from fdbqueue.layout.keys import unpack_priority
from fdbqueue.layout.priorities import priority_as_json
from fdbqueue.layout.values import as_json, utc_time
from fdbqueue.operations.jobs.schedules import has_stopped
from fdbqueue.operations.jobs.ticks import next_tick, ticks_from
from fdbqueue.options import ScheduleOptions
from fdbqueue.queue.arguments import (
    MAX_SECONDS,
    validate_choice,
    validate_client_name,
    validate_group,
    validate_options,
    validate_seconds,
)
from fdbqueue.types import (
    Missed,
    Overlap,
    Priority,
    ReadTransaction,
    ReadTransactor,
    Transaction,
    Transactor,
    V,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from fdbqueue.coordination.store import Store

_SHORTEST = 1.0  # seconds between ticks
_MAX_VALUE = 90_000  # bytes of a value, which the row of its schedule holds
_DEFINED = ("value", "priority", "cron", "every", "tz", "missed", "overlap", "group")
_SHOWN_TICKS = 5  # next ticks in the JSON of a schedule


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule of a queue, which pushes an item at each of its ticks.

    Attributes:
        priority: The priority of its items; `None` in a FIFO queue.
        cron: The expression whose times are its ticks, or `None`.
        every: The interval between its ticks, or `None`.
        tz: The time zone of the expression.
        missed: The policy for late ticks.
        overlap: The policy for a tick while the last item has not ended.
        group: The group of its items, or `None`.
        next_tick: `None` while it is paused, or if no worker has declared it for a day.
        last_tick: The last tick with an item, or `None`.
        last_item: The id of that item, or `None`.
        declared_at: When a worker last declared it; `None` if a call added it.
        pushed: Items pushed.
        skipped: Ticks without an item: the last one had not ended, or the queue was full.
    """

    name: str
    value: Any
    priority: Any
    cron: str | None
    every: timedelta | None
    tz: str
    missed: Missed
    overlap: Overlap
    group: str | None
    paused: bool
    next_tick: datetime | None
    last_tick: datetime | None
    last_item: str | None
    declared_at: datetime | None
    pushed: int
    skipped: int

    def next_ticks(self, n: int) -> list[datetime]:
        """Return up to `n` next ticks within 50 years, from `next_tick` on.

        Example:
            >>> jobs.schedules.add(db, "shifts", "count", cron="0 6,14,22 * * *")
            >>> ticks = jobs.schedules.get(db, "shifts").next_ticks(3)
            >>> sorted(tick.hour for tick in ticks)
            [6, 14, 22]
        """
        if self.next_tick is None:
            return []
        first = round(self.next_tick.timestamp() * 1000)
        return [*map(utc_time, ticks_from(self._timing, first, n))]

    @property
    def _timing(self) -> Timing:
        every = 0 if self.every is None else self.every // timedelta(milliseconds=1)
        return Timing(self.cron or "", every, self.tz)


class Schedules(Generic[V]):
    """The schedules of one queue.

    The transaction of a client that finds a tick due pushes the item and sets the next tick. So
    each tick is pushed exactly once, but only while clients take items of the queue. Ticks are the
    times of a cron expression, or the multiples of an interval since 1970.

    Methods return false or `None` if there is no schedule of the name. A tick costs one read and
    three writes more than a push.
    """

    def __init__(self, store: Store[Any]) -> None:
        self._store = store
        self._in = store.schedules

    def add(
        self,
        tr: Transactor,
        name: str,
        value: V,
        priority: Priority | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> None:
        """Add a schedule, or give the one of this name another definition.

        It keeps its state, and its next tick unless its timing changes. Conflicts with its ticks.

        The name is printable text of 1 to 255 bytes, the value has up to 90,000 bytes when encoded,
        and the priority is by default 0 in a priority queue. Options are
        `fdbqueue.options.ScheduleOptions`.

        Raises:
            InvalidSchedule: The timing or an option is not valid.
            InvalidValue: As for `push`, also `PayloadTooLarge` and `InvalidPriority`.

        Example:
            >>> jobs.schedules.add(db, "nightly", {"of": "sales"}, cron="0 3 * * *")
            >>> jobs.schedules.get(db, "nightly").next_tick.hour
            3
        """
        declare(self, tr, [Declared(name, value, priority, options)], is_declared=False)

    def _defined(self, definition: Definition) -> dict[str, Any]:
        shown = as_json(self._public(0, "", StoredSchedule(definition)))
        return {each: shown[each] for each in _DEFINED}

    def _define(self, declared: Declared) -> Definition:
        store = self._store
        name, value, priority, options, alert, _ = declared
        group = options.get("group")
        payload = store.codec.encode(value)
        if len(payload) > _MAX_VALUE:
            raise PayloadTooLarge(len(payload), _MAX_VALUE, "a schedule")
        if priority is None and store.given_options.kind == "priority":
            priority = 0
        level = store.levels.level(priority).prefix[len(store.layout.items) :]
        timing, missed, overlap = validate_schedule(name, options)
        definition = Definition(timing, payload, level, missed, overlap, group, alert)
        too_much = schedule_size(definition) - MAX_ROW
        if too_much > 0:  # such as a value with many zeros, each of which takes two bytes
            raise PayloadTooLarge(len(payload), len(payload) - too_much, "a schedule")
        return definition

    def remove(self, tr: Transactor, name: str) -> bool:
        """Remove a schedule; its items stay."""

        def body(tr: Transaction, now: int) -> bool:
            return self._in.remove(tr, name)

        return self._store.change(tr, body)

    def pause(self, tr: Transactor, name: str) -> bool:
        """Let a schedule push nothing until `resume`."""
        return self._store.change(tr, partial(self._in.pause, name=name, paused=True))

    def resume(self, tr: Transactor, name: str) -> bool:
        """Let a paused schedule go on with its next tick; earlier ones do not count as missed."""
        return self._store.change(tr, partial(self._in.pause, name=name, paused=False))

    def run_now(self, tr: Transactor, name: str) -> str | None:
        """Push an item as for a tick at this time, also if the schedule is paused; return its id.

        Returns `None` if its ticks do not overlap and the last item has not ended.

        Raises:
            QueueFull: The queue is full.
        """
        key = self._store.change(tr, partial(self._in.run_now, name=name), wrote=bool)
        return None if key is None else self._id(key)

    def _id(self, key: bytes) -> str:
        return self._store.codec.id_of(self._store.levels.item(key, b""))

    def get(self, tr: ReadTransactor, name: str) -> Schedule | None:
        """Return a schedule. Cost: one read."""
        now = milliseconds()

        def body(tr: ReadTransaction) -> Schedule | None:
            stored = self._in.get(tr, name)
            return None if stored is None else self._public(now, name, stored)

        return read(tr, body)

    def all(self, tr: ReadTransactor) -> list[Schedule]:
        """Return all schedules of the queue, by name. Cost: one range read."""
        now = milliseconds()
        return [self._public(now, *found) for found in read(tr, self._in.all).items()]

    def _public(self, now: int, name: str, stored: StoredSchedule) -> Schedule:
        """Return a schedule; one that has stopped has no next tick, found by a client or not."""
        layout, definition = self._store.layout, stored.definition
        timing = definition.timing
        priority = unpack_priority(definition.level)
        level = self._store.levels.level(priority)
        stored_item = StoredItem(level.prefix, definition.payload, level)
        value = self._store.codec.decode(stored_item, definition.payload).value
        return Schedule(
            name,
            value,
            priority,
            timing.cron or None,
            timedelta(milliseconds=timing.every) if timing.every else None,
            timing.tz,
            definition.missed,
            definition.overlap,
            definition.group,
            stored.paused,
            None if has_stopped(stored, now) else _time(stored.next),
            _time(stored.last),
            self._id(layout.items + stored.position) if stored.position else None,
            _time(stored.declared_at),
            stored.pushed,
            stored.skipped,
        )


def schedule_as_json(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as a JSON object, with up to five of its next ticks."""
    return {
        **as_json(schedule),
        "next_ticks": [*map(as_json, schedule.next_ticks(_SHOWN_TICKS))],
        "priority": priority_as_json(schedule.priority),
    }


def _time(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else utc_time(milliseconds)


def validate_schedule(name: str, options: ScheduleOptions) -> tuple[Timing, Missed, Overlap]:
    """Return the options of a schedule; raise `InvalidSchedule` or `TypeError`."""
    validate_options(ScheduleOptions, options)
    try:
        validate_client_name(name)
        validate_group(options.get("group"))
        missed = validate_choice("missed", options.get("missed", "latest"), Missed)
        overlap = validate_choice("overlap", options.get("overlap", "allow"), Overlap)
    except ValueError as error:
        raise InvalidSchedule(name, str(error)) from None
    return _timing(name, options), missed, overlap


def _timing(name: str, options: ScheduleOptions) -> Timing:
    cron, every, tz = options.get("cron"), options.get("every"), options.get("tz", "UTC")
    if (cron is None) == (every is None):
        raise InvalidSchedule(name, "give one of cron and every")
    if cron is None:
        seconds = validate_seconds("every", every, is_over=True, below=MAX_SECONDS)
        if seconds < _SHORTEST:
            raise InvalidSchedule(name, f"every is at least {_SHORTEST:g} second, not {every!r}")
        return Timing(every=round(seconds * 1000))
    try:
        timing = Timing(cron, tz=ZoneInfo(tz).key)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        raise InvalidSchedule(name, f"there is no time zone {tz!r}") from None
    try:
        tick = next_tick(timing, milliseconds())
    except (CronSimError, AttributeError) as error:
        raise InvalidSchedule(name, f"{cron!r} is no expression of cron: {error}") from None
    if tick is None:
        raise InvalidSchedule(name, f"{cron!r} has no tick within the next 50 years")
    return timing


class Declared(NamedTuple):
    """A schedule of a program, with the arguments of `Schedules.add`.

    `alert` is the header field of its items. It takes over the state of a declared schedule that
    has one of its `aliases` as name.
    """

    name: str
    value: Any
    priority: Priority | None
    options: ScheduleOptions
    alert: bytes = b""
    aliases: Sequence[str] = ()


def declare(
    schedules: Schedules[Any],
    tr: Transactor,
    declared: Iterable[Declared],
    *,
    replaces: bool = True,
    is_declared: bool = True,
) -> list[tuple[str, Any, Any]]:
    """Store the schedules that a worker declares, each of which goes on for a day.

    Without `replaces`, different or missing ones stay so: newer workers may have changed or renamed
    them. Without `is_declared`, they go on for ever. Return the differences: names, stored and
    declared fields.
    """
    store, stored = schedules._store, schedules._in
    definitions = {each.name: (schedules._define(each), each.aliases) for each in declared}

    def body(tr: Transaction, now: int) -> list[tuple[str, Any, Any]]:
        found: list[tuple[str, Any, Any]] = []
        store.options.agree(tr)
        for name, (definition, aliases) in definitions.items():
            for alias in aliases:
                stored.take_over(tr, alias, name)
            known = stored.get(tr, name)
            before = {} if known is None else schedules._defined(known.definition)
            defined = schedules._defined(definition).items()
            after = {each: value for each, value in defined if value != before.get(each)}
            if after:
                found.append((name, before and {each: before[each] for each in after}, after))
            if replaces or not after:
                stored.put(tr, now, name, definition, now if is_declared else None)
        return found

    return store.change(tr, body)
