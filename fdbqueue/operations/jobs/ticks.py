"""The ticks of a schedule: the times on the grid of its interval or cron expression."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import count, islice, takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim

from fdbqueue.layout.jobs import Timing
from fdbqueue.layout.values import utc_time

_WINDOW = 60_000  # milliseconds before now in which to look for ticks first
_WIDER = 8  # how much longer each next window is


def ticks_after(timing: Timing, after: int) -> Iterator[int]:
    """Yield the ticks after a time, in order.

    An interval ticks at its multiples since 1970. A five-field expression follows its time zone as
    Debian's cron does: with fixed minutes and hours, a tick at a skipped hour comes right after it,
    and a tick at a repeated hour comes once. If the minutes or hours begin with `*`, or with six
    fields, it ticks whenever it matches. Some ticks around a change of less than an hour, or at a
    broken hour, are omitted.

    >>> from itertools import islice
    >>> night = Timing("30 2 * * *", tz="Europe/Lisbon")
    >>> [utc_time(tick).hour for tick in islice(ticks_after(night, 1_774_573_200_000), 3)]
    [2, 2, 1]
    """
    if timing.every:
        yield from count((after // timing.every + 1) * timing.every, timing.every)
        return
    zone, last = ZoneInfo(timing.tz), after
    for local in CronSim(timing.cron, utc_time(after).astimezone(zone)):
        tick = int(local.timestamp()) * 1000
        if tick > last:  # else it is one of the first of two equal hours, or of a skipped one
            last = tick
            yield tick


def next_tick(timing: Timing, after: int) -> int | None:
    """Return the first tick after a time, or `None` within fifty years."""
    return next(ticks_after(timing, after), None)


@lru_cache(4096)  # pages that show schedules ask again every few seconds
def ticks_from(timing: Timing, first: int, n: int) -> tuple[int, ...]:
    """Return the first `n` ticks from a time on, or fewer within fifty years."""
    return tuple(islice(ticks_after(timing, first - 1), n))


def due_ticks(timing: Timing, first: int, now: int, limit: int) -> list[int]:
    """Return the last `limit` ticks from the first due one until now.

    >>> due_ticks(Timing(every=1000), 1000, 10**9, limit=2)
    [999999000, 1000000000]
    """
    window = _WINDOW
    while True:
        after = max(first - 1, now - window)
        ticks = [*takewhile(now.__ge__, ticks_after(timing, after))]
        if len(ticks) >= limit or after < first:
            return ticks[-limit:]
        window *= _WIDER
