"""The numbers of a queue: its statistics and its size."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any, TypeAlias

from fdb.subspace_impl import Subspace

from fdbqueue.layout.items import Counters, StoredItem, counters_range
from fdbqueue.layout.keys import FIRST_COUNT, Layout
from fdbqueue.layout.priorities import Priorities
from fdbqueue.layout.tasks import RANK, decode_header
from fdbqueue.layout.values import Moment, decode_metadata, header_of, time_of, utc_time
from fdbqueue.operations.items import Items
from fdbqueue.operations.options import begin_options
from fdbqueue.operations.payloads import read_payload
from fdbqueue.operations.views.overdue import (
    NOTHING_OVERDUE,
    Overdue,
    begin_overdue,
    corrections,
    with_timers,
)
from fdbqueue.types import Key, KeyValue, Options, QueueStats, ReadTransaction

_MAX_LEVELS = 100  # of which the oldest item is looked for

FirstKey: TypeAlias = Callable[[ReadTransaction, bytes], Key]
"""A function that starts to read the first key from a key on, without its value."""


class Numbers:
    """The numbers of one queue. Each method is part of a transaction that only reads."""

    def __init__(self, items: Items, first_key: FirstKey) -> None:
        self._layout = items.layout
        self._items = items
        self._first_key = first_key

    def stats(self, tr: ReadTransaction, now: int, given: Options) -> QueueStats:
        """Return the statistics of the queue; `given` are its options before its first push."""
        begun = self._items.begin_counters(tr, counters_range)
        options = self._items.options.begin_read(tr)
        finish = begin_stats(tr, self._layout.subspace, begun(), now, self._first_key)
        stored = options() or given
        return replace(finish(), options=stored)

    def size(self, tr: ReadTransaction, now: int) -> int:
        """Return the number of ready items."""
        return begin_size(tr, self._layout.subspace, self._items.begin_counters(tr)(), now)()

    def counts(self, tr: ReadTransaction, now: int) -> dict[Any, int]:
        """Return the number of ready items of each priority that has any."""
        counters = self._items.begin_counters(tr, counters_range)()
        options, overdue = _begin_timers(tr, self._layout, now, counters)
        return _counts_by_priority(tr, self._layout, options, counters, overdue())


def begin_layout_check(
    tr: ReadTransaction, subspace: Subspace, counters: Counters
) -> Callable[[], object]:
    """Start to read the layout version of a queue, if its counters do not show it.

    Returns:
        A function that waits for the read, and raises `LayoutVersionMismatch` if another release
        stored the queue. The counters of such a queue differ from those of this release.
    """
    if counters.show_layout:
        return lambda: None
    return begin_options(getattr(tr, "snapshot", tr), Layout(subspace))


def begin_stats(
    tr: ReadTransaction, subspace: Subspace, counters: Counters, now: int, first_key: FirstKey
) -> Callable[[], QueueStats]:
    """Start to read what the counters of a queue leave open about its statistics.

    Args:
        tr: A transaction.
        subspace: The subspace of the queue.
        counters: Its counters, from `counters_range`.
        now: The time in milliseconds since 1970.
        first_key: Reads the first key from a key on.

    Returns:
        A function that waits for the reads and returns the statistics, without the options.
    """
    has_timers = any(with_timers(counters))
    if not has_timers and not counters.levels and not counters.ready:
        return lambda: _stats(counters, NOTHING_OVERDUE, {}, None, None)  # there may be very many
    layout = Layout(subspace)
    options, overdue = _begin_timers(tr, layout, now, counters)
    oldest = _begin_oldest(tr, layout, counters, first_key)
    after_now = layout.timer_key(layout.dues, now + 1, b"")
    dues: Iterable[KeyValue] = ()
    if counters.tallies["delayed"]:
        dues = tr.get_range(after_now, layout.range_of(layout.dues)[1])

    def finish() -> QueueStats:
        found = overdue()
        timers = (layout.unpack_timer_key(layout.dues, row.key) for row in dues)
        times = (due for due, of in timers if layout.is_position(of))
        by_priority = _counts_by_priority(tr, layout, options, counters, found)
        next_due = next(map(utc_time, times), None)
        stats = _stats(counters, found, by_priority, oldest(found), next_due)
        if stats.unknown_jobs:
            lapsed = _lapsed_unknown(tr, layout, found)
            stats = replace(stats, unknown_jobs=stats.unknown_jobs - lapsed)
        return stats

    return finish


def _lapsed_unknown(tr: ReadTransaction, layout: Layout, overdue: Overdue) -> int:
    """Return how many of the items that no worker knew have expired, and are still stored."""
    gone = [
        (fate.before, tr[layout.prefix_of[fate.before] + position])
        for position, fate in overdue.fates.items()
        if fate.after is None and fate.before != "claimed"
    ]
    stored = [(state, read.value) for state, read in gone if read.value is not None]
    values = [value if state == "ready" else decode_metadata(value)[1] for state, value in stored]
    return sum(header_of(value)[0].unknown is not None for value in values)


def begin_size(
    tr: ReadTransaction, subspace: Subspace, counters: Counters, now: int
) -> Callable[[], int]:
    """Start to read what the counters of a queue leave open about the number of ready items."""
    if not any(with_timers(counters)):
        return lambda: max(0, counters.ready)
    _, overdue = _begin_timers(tr, Layout(subspace), now, counters)
    return lambda: max(0, counters.ready + overdue().change("ready"))


def _begin_timers(
    tr: ReadTransaction, layout: Layout, now: int, counters: Counters
) -> tuple[Options | None, Callable[[], Overdue]]:
    """Start to read what is overdue, if the counters show that anything may be.

    Returns:
        The options of the queue, if they are needed, and a function that waits for the reads.
    """
    options = None
    if any(with_timers(counters)):
        options = begin_options(getattr(tr, "snapshot", tr), layout)()
    if options is None:
        return None, lambda: NOTHING_OVERDUE
    return options, begin_overdue(tr, layout, options, now, counters)


def unknown_stats(subspace: Subspace, error: Exception) -> QueueStats:
    """Return the statistics of a queue that cannot be read: zeros and the error."""
    nothing = _stats(Counters(subspace, ()), NOTHING_OVERDUE, {}, None, None)
    return replace(nothing, error=str(error))


def _stats(
    counters: Counters,
    overdue: Overdue,
    by_priority: dict[Any, int],
    oldest: Moment | None,
    next_due: Moment | None,
) -> QueueStats:
    tallies = counters.tallies
    return QueueStats(
        ready=max(0, counters.ready + overdue.change("ready")),
        delayed=max(0, tallies["delayed"] + overdue.change("delayed")),
        claimed=max(0, counters.claimed + overdue.change("claimed")),
        dead=max(0, tallies["dead"] + overdue.change("dead")),
        done=max(0, tallies["done"]),
        unknown_jobs=max(0, tallies["unknown"]),
        by_priority=by_priority,
        oldest=oldest,
        next_due=next_due,
        paused=tallies["paused"] > 0,
        options=None,
        total_pushed=counters.pushed,
        total_completed=counters.completed,
        # Attempts whose leases are over have not failed yet: they may still be acknowledged.
        total_failed=tallies["failed"],
        total_retried=tallies["retried"],
        total_expired=tallies["expired"] + len(overdue.entering(None)),
        total_removed=tallies["removed"],
        total_died=tallies["died"],
        total_put_back=tallies["put_back"],
        total_rejected=counters.rejected,
    )


def _counts_by_priority(
    tr: ReadTransaction,
    layout: Layout,
    options: Options | None,
    counters: Counters,
    overdue: Overdue,
) -> dict[Any, int]:
    """Return the number of ready items of each priority that has any.

    The options are needed only if something is overdue.
    """
    unpack = layout.unpack_level_prefix
    levels = counters.levels
    counts = Counter({unpack(prefix): levels[prefix] for prefix in sorted(levels)})
    if options is not None and options.kind == "task":

        def urgency(tr: ReadTransaction, item: StoredItem) -> int | None:
            with suppress(ValueError, struct.error):  # a damaged task must not hide the others
                return decode_header(read_payload(tr, layout, item.content))[0]
            return None

        tasks = Items(layout, Priorities(layout, RANK, are_counted=False), options)
        counts.update(corrections(tr, tasks, overdue, urgency))
        del counts[None]
    elif options is not None and options.kind == "priority":

        def priority(position: bytes) -> Any:
            return layout.unpack_item_key(layout.items + position)[0]

        counts.update(map(priority, overdue.entering("ready")))
        counts.subtract(map(priority, overdue.leaving("ready")))
    found = {priority: n for priority, n in counts.items() if n > 0}
    return {priority: found[priority] for priority in sorted(found)}


def _begin_oldest(
    tr: ReadTransaction, layout: Layout, counters: Counters, first_key: FirstKey
) -> Callable[[Overdue], Moment | None]:
    """Start to read the first key of some levels, and of the ids of tasks.

    Returns:
        A function that waits for the reads and returns when the oldest ready item was pushed.
    """
    # All items of a FIFO queue are in one level, which has no counter.
    prefixes = [*islice(counters.levels, _MAX_LEVELS)] or [layout.items]
    firsts = [(prefix, first_key(tr, prefix + b"\x00")) for prefix in prefixes]
    first_id = first_key(tr, layout.ids + b"\x00")

    def oldest(overdue: Overdue) -> Moment | None:
        expired, returning = overdue.leaving("ready"), overdue.entering("ready")
        levels = [*firsts]
        grouped = [prefix for prefix, first in firsts if _is_of_group(layout, first.value, prefix)]
        if grouped:
            rows = tr.get_range(*layout.range_of(layout.group_members), limit=_MAX_LEVELS)
            # Start all reads before waiting for the first.
            levels += [(prefix, first_key(tr, prefix + FIRST_COUNT)) for prefix in grouped]
            for row in rows:
                member = layout.unpack_group_key(layout.group_members, row.key)
                prefix = layout.group_level_prefix(layout.items, *member)
                levels.append((prefix, first_key(tr, prefix + FIRST_COUNT)))
        times = [layout.pushed_at(layout.items + position) for position in returning]
        for prefix, first in levels:
            key = first.value
            if layout.position(key) in expired:  # look behind all that have expired
                begin, end = prefix + FIRST_COUNT, layout.range_of(prefix)[1]
                live = (
                    row.key
                    for row in tr.get_range(begin, end, limit=len(expired) + 1)
                    if layout.position(row.key) not in expired
                )
                key = next(live, b"")
            if key.startswith(prefix) and layout.is_item_key(key, prefix):
                times.append(layout.pushed_at(key))
        key = first_id.value
        if expired:
            rows = tr.get_range(*layout.range_of(layout.ids), limit=len(expired) + 1)
            key = next((row.key for row in rows if row.value not in expired), b"")
        if key.startswith(layout.ids):
            times.append(time_of(layout.unpack_entry_key(layout.ids, key)))
        return min((time for time in times if time is not None), default=None)

    return oldest


def _is_of_group(layout: Layout, key: bytes, prefix: bytes) -> bool:
    """Return whether a key is that of an item of a group in the priority with this prefix."""
    return key.startswith(prefix) and not layout.is_item_key(key, prefix)
