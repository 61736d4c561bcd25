"""The statistics and the size of a queue, from its counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from typing import Any, TypeAlias

from fdb.subspace_impl import Subspace

from fdbqueue.layout.counters import Counters, counters_range
from fdbqueue.layout.keys import FIRST_COUNT, Layout, shard_prefix, unpack_priority
from fdbqueue.layout.values import PARKED, Moment, utc_time
from fdbqueue.operations.items import Items
from fdbqueue.operations.options import NO_OPTIONS
from fdbqueue.types import Key, KeyValue, Options, QueueStats, ReadTransaction

_TOTALS = ("failed", "retried", "expired", "removed", "died", "put_back")
"""The tallies that statistics show as they are."""

_MAX_LEVELS = 100  # of which the oldest item is looked for

FirstKey: TypeAlias = Callable[[ReadTransaction, bytes], Key]
"""Starts to read the first key from a key on, without its value."""


def read_stats(
    tr: ReadTransaction, items: Items, given: Options, first_key: FirstKey
) -> QueueStats:
    """Return a queue's statistics; `given` are its options before the first push."""
    begun = items.begin_counters(tr, counters_range)
    options = items.options.begin_read(tr)
    finish = begin_stats(tr, items.layout.subspace, begun(), first_key)
    stored = options()
    return replace(finish(), options=given if stored is NO_OPTIONS else stored)


def read_size(tr: ReadTransaction, items: Items) -> int:
    """Return the number of ready items."""
    return max(0, items.begin_counters(tr)().ready)


def read_counts(tr: ReadTransaction, items: Items) -> dict[Any, int]:
    """Return the number of ready items by priority."""
    return _counts_by_priority(items.layout, items.begin_counters(tr, counters_range)())


def begin_stats(
    tr: ReadTransaction, subspace: Subspace, counters: Counters, first_key: FirstKey
) -> Callable[[], QueueStats]:
    """Start to read the statistics that a queue's counters leave open, except the options."""
    delayed = counters.tallies["delayed"]
    if not (delayed or counters.levels or counters.ready):
        return lambda: _stats(counters, {}, None, None)  # there may be very many
    layout = Layout(subspace)
    oldest = _begin_oldest(tr, layout, counters, first_key)
    ranges = layout.shard_ranges(layout.dues, counters.shards)
    begun: list[Iterable[KeyValue]] = [tr.get_range(*each) for each in ranges if delayed]

    def first_due(dues: Iterable[KeyValue]) -> int | None:
        timers = (layout.unpack_timer_key(layout.dues, row.key) for row in dues)
        times = (due for due, of in timers if layout.unpack_reference(of) == (None, None))
        return next(times, None)

    def finish() -> QueueStats:
        times = [due for due in map(first_due, begun) if due is not None]
        next_due = utc_time(min(times)) if times else None
        return _stats(counters, _counts_by_priority(layout, counters), oldest(), next_due)

    return finish


def unknown_stats(subspace: Subspace, error: Exception) -> QueueStats:
    """Return the statistics of a queue that cannot be read."""
    nothing = _stats(Counters(subspace, ()), {}, None, None)
    return replace(nothing, error=str(error))


def _stats(
    counters: Counters,
    by_priority: dict[Any, int],
    oldest: Moment | None,
    next_due: Moment | None,
) -> QueueStats:
    tallies = counters.tallies
    numbers: dict[str, Any] = {state: max(0, tallies[state]) for state in PARKED}
    numbers |= {f"total_{name}": tallies[name] for name in _TOTALS}
    return QueueStats(
        **numbers,
        ready=max(0, counters.ready),
        claimed=max(0, counters.claimed),
        unknown_jobs=max(0, tallies["unknown"]),
        by_priority=by_priority,
        oldest=oldest,
        next_due=next_due,
        paused=tallies["paused"] > 0,
        options=None,
        total_pushed=counters.pushed,
        total_completed=counters.completed,
        total_rejected=counters.rejected,
    )


def _counts_by_priority(layout: Layout, counters: Counters) -> dict[Any, int]:
    found = Counter[Any]()
    for prefix, n in counters.levels.items():
        if n > 0:
            found[unpack_priority(layout.position(prefix))] += n
    return {priority: found[priority] for priority in sorted(found)}


def _begin_oldest(
    tr: ReadTransaction, layout: Layout, counters: Counters, first_key: FirstKey
) -> Callable[[], Moment | None]:
    # All items of a FIFO queue are in one level, which has no counter.
    shards = [layout.items + shard_prefix(number) for number in range(counters.shards)]
    prefixes = [*islice(counters.levels, _MAX_LEVELS)] or shards
    firsts = [(prefix, first_key(tr, prefix + b"\x00")) for prefix in prefixes]

    def oldest() -> Moment | None:
        levels = [*firsts]
        grouped = [prefix for prefix, first in firsts if _is_of_group(layout, first.value, prefix)]
        if grouped:
            rows = tr.get_range(*layout.range_of(layout.group_members), limit=_MAX_LEVELS)
            levels += [(prefix, first_key(tr, prefix + FIRST_COUNT)) for prefix in grouped]
            for row in rows:
                member = layout.unpack_group_key(layout.group_members, row.key)
                prefix = layout.group_level_prefix(layout.items, *member)
                levels.append((prefix, first_key(tr, prefix + FIRST_COUNT)))
        times: list[Moment | None] = []
        for prefix, first in levels:
            key = first.value
            if key.startswith(prefix) and layout.unpack_count(key, prefix) is not None:
                times.append(layout.pushed_at(key))
        if not times:  # in a task queue, several levels share a counter
            rows = tr.get_range(*layout.all_items, limit=_MAX_LEVELS)
            times += [layout.pushed_at(row.key) for row in rows]
        return min((time for time in times if time is not None), default=None)

    return oldest


def _is_of_group(layout: Layout, key: bytes, prefix: bytes) -> bool:
    return key.startswith(prefix) and layout.unpack_count(key, prefix) is None
