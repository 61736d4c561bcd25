"""The history of a queue: samples of its totals, waiting times and run times, within a day.

The first transaction of a period that changes the totals stores their old values as a sample. See
`docs/design/history.md`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from fdbqueue.layout.counters import Counters, totals_range
from fdbqueue.layout.items import ItemRow
from fdbqueue.layout.keys import WANT_ALL, Layout
from fdbqueue.layout.values import (
    SAMPLED,
    TIME_BOUNDS,
    TIMES,
    decode_sample,
    decode_times,
    encode_sample,
    encode_times,
    utc_time,
)
from fdbqueue.operations.transitions import TAKEN, Change
from fdbqueue.types import HistoryBucket, HistoryWindow, ReadTransaction, Transaction

_BETWEEN_NOTES = 1_000  # milliseconds
_ENDED = ("acked", "failed", "lease over")


_SHORT, _LONG = 30, 900
_KEPT = {_SHORT: 120, _LONG: 96}
"""The number of samples kept, by period in seconds."""

_WINDOWS = ((300, _SHORT), (3_600, _SHORT), (86_400, _LONG))


def _number(seconds: int, now: int) -> int:
    return now // (1000 * seconds)


class History:
    """The samples (one look in 30 seconds) and times (once a second) that one client records."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._known_until = 0  # the end of the last period that is known to have a sample
        self._sampled_by: Callable[[], object] = lambda: None
        self._timed = (layout.waits, TAKEN, self._wait_of), (layout.runs, _ENDED, _run_of)
        self._noted = {layout.waits: 0, layout.runs: 0}

    def _sample_keys(self, now: int) -> dict[int, bytes]:
        layout = self._layout
        return {
            seconds: layout.entry_key(layout.samples, seconds, _number(seconds, now))
            for seconds in _KEPT
        }

    def begin_again(self, tr: Transaction, now: int) -> None:
        """Store empty samples after a clear."""
        for key in self._sample_keys(now).values():
            tr[key] = encode_sample(())

    def note_change(self, tr: Transaction, now: int) -> None:
        """Store missing samples of the present periods, before the totals change."""
        if now < self._known_until:
            return
        layout, snapshot = self._layout, tr.snapshot
        keys = self._sample_keys(now)
        reads = {seconds: snapshot.get(key) for seconds, key in keys.items()}
        missing = [seconds for seconds, read in reads.items() if read.value is None]
        if not missing:
            # A sample that this transaction itself has stored may never be committed.
            if self._sampled_by() is not tr:
                self._known_until = 1000 * _SHORT * (_number(_SHORT, now) + 1)
            return
        sample = encode_sample(_begin_sample(snapshot, layout)())
        for seconds in missing:
            tr[keys[seconds]] = sample
            first_kept = max(0, _number(seconds, now) - _KEPT[seconds])
            of_length = layout.entry_key(layout.samples, seconds)
            tr.clear_range(of_length, layout.entry_key(of_length, first_kept))
        self._sampled_by = weakref.ref(tr)

    def begin(self, tr: Transaction, now: int, changes: Sequence[Change]) -> None:
        """Store a sample before transitions; count how long items were ready, or ran."""
        if now >= self._known_until:
            self.note_change(tr, now)
        for counter, whys, time_of in self._timed:
            if 0 < abs(now - self._noted[counter]) < _BETWEEN_NOTES:
                continue
            times: list[int] = []
            for why, before, _, _ in changes:
                if before is not None and why in whys:
                    self._noted[counter] = now
                    time = time_of(before, now)
                    if time is not None:
                        times.append(time)
            if times:
                tr.add(counter, encode_times(times))

    def _wait_of(self, row: ItemRow, now: int) -> int | None:
        since = row.item.header.since
        if since is None and not row.item.header.attempts:
            pushed = self._layout.pushed_at(row.key)
            since = None if pushed is None else int(1000 * pushed.timestamp())
        return None if since is None else max(1, now - since)


def _run_of(row: ItemRow, now: int) -> int:
    return max(1, now - row.claimed_at)


def _begin_sample(tr: ReadTransaction, layout: Layout) -> Callable[[], tuple[int, ...]]:
    rows = tr.get_range(*totals_range(layout.subspace), streaming_mode=WANT_ALL)
    waits, runs = tr.get(layout.waits), tr.get(layout.runs)

    def finish() -> tuple[int, ...]:
        counters = Counters(layout.subspace, rows)
        totals = (counters.pushed, counters.taken, counters.completed)
        failures = (counters.tallies["failed"], counters.tallies["died"])
        return (*totals, *failures, *decode_times(waits.value), *decode_times(runs.value))

    return finish


def read_history(tr: ReadTransaction, layout: Layout, now: int) -> list[HistoryWindow]:
    """Return the last 5 minutes, hour and day of a queue."""
    rows = tr.get_range(*layout.range_of(layout.samples), streaming_mode=WANT_ALL)
    begun = _begin_sample(tr, layout)
    samples: dict[int, dict[int, tuple[int, ...]]] = {seconds: {} for seconds in _KEPT}
    for row in rows:
        seconds, number = layout.unpack_entry(layout.samples, row.key)
        if 1000 * seconds * number <= now:  # otherwise by a clock that is ahead
            samples[seconds][number] = decode_sample(row.value)
    present = begun()
    return [_window(seconds, period, samples[period], present, now) for seconds, period in _WINDOWS]


def _window(
    seconds: int,
    period: int,
    samples: dict[int, tuple[int, ...]],
    present: tuple[int, ...],
    now: int,
) -> HistoryWindow:
    first = _number(period, now) + 1 - seconds // period
    # A client whose clock is ahead stores a sample too early: later ones may have smaller totals.
    ends = pairwise(accumulate([*samples.values(), present], _larger))
    changes = {
        number: [after - before for before, after in zip(*both)]
        for number, both in zip(samples, ends)
        if number >= first
    }
    totals = [*map(sum, zip(*changes.values()))] or [0] * len(present)
    waits, runs = totals[len(SAMPLED) : -TIMES], totals[-TIMES:]
    buckets = [
        HistoryBucket(utc_time(1000 * period * number), **dict(zip(SAMPLED, change)))
        for number, change in changes.items()
        if any(change)
    ]
    return HistoryWindow(
        seconds,
        utc_time(1000 * period * first),
        waiting_median=_quantile(waits, 0.5),
        waiting_p95=_quantile(waits, 0.95),
        running_median=_quantile(runs, 0.5),
        running_p95=_quantile(runs, 0.95),
        buckets=tuple(buckets),
        **dict(zip(SAMPLED, totals)),
    )


def _larger(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(max, one, other))


def _quantile(times: Sequence[int], part: float) -> float | None:
    """Return the seconds that this part of the items did not exceed, or `None`."""
    rank = part * sum(times)
    if not rank:
        return None
    counted = 0.0
    begin = 0
    for end, number in zip(TIME_BOUNDS, times):
        if counted + number >= rank:
            # As if the items were spread evenly between the bounds.
            return round((begin + (end - begin) * (rank - counted) / number) / 1000, 3)
        counted += number
        begin = end
    return begin / 1000
