"""The ticks of cron in the zones of tzdata, against a walk over every minute around their changes.

`FDBQ_ZONES=all` tries every zone and each of its changes from 2026 to 2037 by an hour at an hour.
"""

from __future__ import annotations

import os
import random
from bisect import bisect
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import takewhile
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from fdbqueue.layout.jobs import Timing
from fdbqueue.operations.jobs.schedules import ticks_after

MINUTE, DAY = 60, 86_400
FROM, UNTIL = (int(datetime(year, 1, 1, tzinfo=timezone.utc).timestamp()) for year in (2026, 2038))
SAMPLE = os.environ.get("FDBQ_ZONES", "20")

SECONDS = [None, None, "0"]
MINUTES = ["0", "30", "45", "59", "0,30", "10-50/10", "7/20", "*", "*/7", "*/15", "*/45"]
HOURS = ["0", "1", "2", "3", "23", "1,2", "0-4", "1-23/2", "*", "*/2", "*/3", "*/5"]
DAYS = ["*", "*", "*", "1-7", "*/2"]
WEEKDAYS = ["*", "*", "*", "0", "1-6", "6"]


class Change(NamedTuple):
    """The first second of other clocks in a zone."""

    zone: str
    at: int


def offset(zone: ZoneInfo, time: int) -> int:
    shift = datetime.fromtimestamp(time, zone).utcoffset()
    assert shift is not None
    return round(shift.total_seconds())


def changes(name: str) -> Iterator[Change]:
    """Yield the changes of the clocks of a zone by an hour at an hour, of which no two are near."""
    zone, step = ZoneInfo(name), DAY // 2
    for time in range(FROM, UNTIL, step):
        before = offset(zone, time)
        if abs(offset(zone, time + step) - before) == 60 * MINUTE:
            is_after = range(time, time + step)
            at = time + bisect(is_after, 0, key=lambda t: offset(zone, t) != before)
            if (at + before) % (60 * MINUTE) == 0:
                yield Change(name, at)


def values(field: str, least: int, most: int) -> set[int]:
    """Return the values of a field."""
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = (f"{least}-{most}" if span == "*" else span).partition("-")
        end = int(last or (most if step else first))
        found |= {*range(int(first), end + 1, int(step or 1))}
    return found


class Expression:
    """An expression of cron, which says of a local minute whether it matches."""

    def __init__(self, seconds: str | None, fields: list[str]) -> None:
        self.text = " ".join(filter(None, [seconds, *fields]))
        minutes, hours, days, _, weekdays = fields
        self.is_fixed = seconds is None and not (minutes + " " + hours).startswith("*")
        self.is_fixed &= not hours.startswith("*")
        self.minutes, self.hours = values(minutes, 0, 59), values(hours, 0, 23)
        self.days, self.weekdays = values(days, 1, 31), values(weekdays, 0, 6)
        self.both = days.startswith("*") or weekdays.startswith("*")

    def __contains__(self, minute: int) -> bool:
        """Return whether it matches a local minute since 1970."""
        if minute % 60 not in self.minutes or minute // 60 % 24 not in self.hours:
            return False
        date = datetime(1970, 1, 1) + timedelta(minutes=minute)
        day, weekday = date.day in self.days, date.isoweekday() % 7 in self.weekdays
        return (day and weekday) if self.both else (day or weekday)

    def ticks(self, zone: ZoneInfo, begin: int, end: int) -> list[int]:
        """Return its ticks after a time and until another one, by a look at each minute.

        A fixed one ticks at the first minute at which the clocks show a time that matches, or have
        skipped it. Any other ticks at each minute at which they show one.
        """
        found: list[int] = []
        reached = (begin + offset(zone, begin)) // MINUTE
        for time in range(begin + MINUTE, end + 1, MINUTE):
            local = (time + offset(zone, time)) // MINUTE
            is_reached = range(reached + 1, local + 1) if self.is_fixed else [local]
            if any(minute in self for minute in is_reached):
                found.append(time)
            reached = max(reached, local)
        return found


def expression(rng: random.Random) -> Expression:
    fields = [rng.choice(MINUTES), rng.choice(HOURS), rng.choice(DAYS), "*", rng.choice(WEEKDAYS)]
    return Expression(rng.choice(SECONDS), fields)


def compare(change: Change, tried: Expression) -> None:
    """Compare the ticks around a change of the clocks, searched from several times before."""
    zone = ZoneInfo(change.zone)
    begin, end = (change.at + days * DAY for days in (-1.5, 1.5))
    begin, end = int(begin) // MINUTE * MINUTE, int(end)
    expected = tried.ticks(zone, begin, end)
    timing = Timing(tried.text, tz=change.zone)
    for after in (begin, change.at - 1, change.at, change.at + 900, change.at + 5400):
        found = takewhile(lambda tick: tick <= 1000 * end, ticks_after(timing, 1000 * after))
        ticks = [tick // 1000 for tick in found]
        assert ticks == [tick for tick in expected if tick > after], (change, tried.text, after)


def test_ticks_where_the_clocks_of_a_zone_change(rng: random.Random) -> None:
    names = sorted(available_timezones() - {"localtime", "posixrules"})
    chosen = names if SAMPLE == "all" else rng.sample(names, int(SAMPLE))
    compared = 0
    for name in chosen:
        found = [*changes(name)]
        for change in found if SAMPLE == "all" else rng.sample(found, min(2, len(found))):
            compare(change, expression(rng))
            compared += 1
    print(len(chosen), "zones", compared, "changes")
    assert compared
