"""The ticks of a schedule: the times on its grid."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from itertools import count, islice, takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim

from fdbqueue.layout.schedules import Timing
from fdbqueue.layout.values import Moment, utc_time

_WINDOW = 60_000  # milliseconds before now in which to look for ticks first
_WIDER = 8  # how much longer each next window is


@lru_cache(256)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def ticks_after(timing: Timing, after: int) -> Iterator[int]:
    """Yield the ticks after a time, in order. Times are in milliseconds since 1970.

    The ticks of an interval are its multiples since 1970. An expression of five fields follows the
    clocks of its time zone as Debian's cron does. If its minutes and hours are fixed, a tick at an
    hour that the clocks skip comes right after it, and one at an hour that they repeat comes once.
    If its minutes or hours begin with `*`, or if it has six fields, it ticks whenever it matches.

    >>> from itertools import islice
    >>> list(islice(ticks_after(Timing(every=90_000), 100_000), 2))
    [180000, 270000]
    >>> night = Timing("30 2 * * *", tz="Europe/Lisbon")
    >>> [utc_time(tick).hour for tick in islice(ticks_after(night, 1_774_573_200_000), 3)]
    [2, 2, 1]
    """
    if timing.every:
        yield from count((after // timing.every + 1) * timing.every, timing.every)
        return
    zone, last = _zone(timing.tz), after
    first, again = _passes(utc_time(after).astimezone(zone))
    # In the second of two equal hours, begin in the first.
    begin = utc_time(after - max(0, again - first)).astimezone(zone)
    for tick in _ticks_from(timing.cron, begin):
        if tick > last:  # else it is before, or one of several at the end of skipped hours
            last = tick
            yield tick


def _ticks_from(cron: str, begin: Moment) -> Iterator[int]:
    """Yield the ticks after a local time, and perhaps some that are equal.

    The library walks over local times without a zone: given a zone, it expects that clocks move by
    full hours, at a full hour.
    """
    fields = cron.split()
    is_fixed = len(fields) == 5 and not any(field.startswith("*") for field in fields[:2])
    repeated: deque[int] = deque()
    for local in CronSim(cron, begin.replace(tzinfo=None)):
        time = local.replace(tzinfo=begin.tzinfo)
        tick, again = _passes(time)
        if again < tick:  # the clocks skip this time
            if not is_fixed:
                continue
            tick = again
            while utc_time(tick).astimezone(begin.tzinfo) < time:
                tick += 60_000
        while repeated and repeated[0] < tick:
            yield repeated.popleft()
        yield tick
        if again > tick and not is_fixed:
            repeated.append(again)
    yield from repeated


def _passes(time: Moment) -> tuple[int, int]:
    """Return when the clocks show a local time first and last.

    If they skip it, these are the times by the offset before the gap and by the offset after it, so
    the last is before the first.
    """
    first, last = (int(time.replace(fold=fold).timestamp()) * 1000 for fold in (0, 1))
    return first, last


def next_tick(timing: Timing, after: int) -> int | None:
    """Return the first tick after a time; `None` if there is none within fifty years."""
    return next(ticks_after(timing, after), None)


@lru_cache(4096)  # pages that show schedules ask again every few seconds
def ticks_from(timing: Timing, first: int, n: int) -> tuple[int, ...]:
    """Return the first `n` ticks from a time on; fewer if no more come within fifty years.

    >>> ticks_from(Timing(every=1000), 3000, n=3)
    (3000, 4000, 5000)
    """
    return tuple(islice(ticks_after(timing, first - 1), n))


def due_ticks(timing: Timing, first: int, now: int, limit: int) -> list[int]:
    """Return the ticks from the first one that is due until now, but only the last `limit`.

    >>> due_ticks(Timing(every=1000), 1000, 10**9, limit=2)
    [999999000, 1000000000]
    >>> due_ticks(Timing(every=1000), 1000, 1999, limit=2)
    [1000]
    """
    window = _WINDOW
    while True:
        after = max(first - 1, now - window)
        ticks = [*takewhile(now.__ge__, ticks_after(timing, after))]
        if len(ticks) >= limit or after < first:
            return ticks[-limit:]
        window *= _WIDER
