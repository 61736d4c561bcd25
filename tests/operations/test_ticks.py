"""The grid of a schedule, in particular where clocks change."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest

from fdbqueue.layout.jobs import Timing
from fdbqueue.operations.jobs.ticks import due_ticks, next_tick, ticks_after

LISBON = ZoneInfo("Europe/Lisbon")  # in 2026 its clocks skip 01:00 on 29 March, and repeat it on
# 25 October


def ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def shown(timing: Timing, after: datetime, n: int) -> list[str]:
    ticks = islice(ticks_after(timing, ms(after)), n)
    times = (datetime.fromtimestamp(tick / 1000, UTC) for tick in ticks)
    return [time.astimezone(LISBON).strftime("%d %H:%M %z") for time in times]


NIGHT, EACH_HALF_HOUR = "30 1 * * *", "*/30 * * * *"


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        # A fixed time that the clocks skip comes right after; one that they repeat comes once.
        (NIGHT, "2026-03-28T00:00+00:00", ["28 01:30 +0000", "29 02:00 +0100", "30 01:30 +0100"]),
        (
            "0 2 * * *",
            "2026-03-28T00:00+00:00",
            ["28 02:00 +0000", "29 02:00 +0100", "30 02:00 +0100"],
        ),
        (NIGHT, "2026-10-24T12:00+01:00", ["25 01:30 +0100", "26 01:30 +0000"]),
        (NIGHT, "2026-10-25T01:10+00:00", ["26 01:30 +0000"]),  # in the second of the two hours
        # An expression with a star ticks at each time that matches.
        (EACH_HALF_HOUR, "2026-03-29T00:15+00:00", ["29 00:30 +0000", "29 02:00 +0100"]),
        (
            EACH_HALF_HOUR,
            "2026-10-25T00:45+01:00",
            [f"25 01:{minute} +{hour}00" for hour in ("01", "00") for minute in ("00", "30")],
        ),
    ],
)
def test_ticks_where_the_clocks_change(cron: str, after: str, expected: list[str]) -> None:
    assert (
        shown(Timing(cron, tz="Europe/Lisbon"), datetime.fromisoformat(after), len(expected))
        == expected
    )


@pytest.mark.parametrize(
    "timing",
    [
        Timing(every=20_000),
        Timing(every=90_000),
        Timing("*/20 * * * * *"),
        Timing("*/5 * * * *", tz="Europe/Lisbon"),
        Timing("30 1 * * *", tz="Europe/Lisbon"),
        Timing("0 9-17 * * MON-FRI", tz="Asia/Kathmandu"),
        Timing("15 0 1 1 *", tz="Pacific/Apia"),
    ],
    ids=str,
)
def test_the_last_due_ticks_are_those_of_the_whole_grid(timing: Timing) -> None:
    seed = random.getrandbits(32)
    print("seed", seed)
    chosen = random.Random(seed)
    lengths = [timedelta(seconds=30), timedelta(hours=3), timedelta(days=1)]
    for _ in range(8):
        start = ms(datetime(2026, chosen.choice([3, 10]), chosen.randrange(20, 29), tzinfo=LISBON))
        first = next_tick(timing, start + chosen.randrange(10**7))
        assert first is not None
        now = first + chosen.randrange(ms_of(chosen.choice(lengths)))
        grid = [*takewhile(lambda tick: tick <= now, ticks_after(timing, first - 1))]  # noqa: B023
        assert grid[0] == first
        assert grid == sorted(set(grid))
        for limit in (1, 10, 1000):
            assert due_ticks(timing, first, now, limit) == grid[-limit:]


def ms_of(length: timedelta) -> int:
    return length // timedelta(milliseconds=1)
