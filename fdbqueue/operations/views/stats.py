"""The numbers of a queue: its statistics and its size."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any, TypeAlias

from fdb.subspace_impl import Subspace

from fdbqueue.layout.items import Counters
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.priorities import Priorities
from fdbqueue.layout.tasks import RANK, decode_header
from fdbqueue.layout.values import Moment, decode_options, utc_time
from fdbqueue.operations.views.overdue import (
    Overdue,
    begin_overdue,
    overdue_items,
    stored_options,
    with_timers,
)
from fdbqueue.types import Key, KeyValue, Options, QueueStats, ReadTransaction

_MAX_LEVELS = 100  # of which the oldest item is looked for

FirstKey: TypeAlias = Callable[[ReadTransaction, bytes], Key]
"""A function that starts to read the first key from a key on, without its value."""


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
    stored = getattr(tr, "snapshot", tr).get(Layout(subspace).options)
    return lambda: stored.value is None or decode_options(stored.value)


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
        return lambda: _stats(counters, Overdue(), {}, None, None)  # there may be very many
    layout = Layout(subspace)
    options = stored_options(tr, layout) if has_timers else None
    overdue = Overdue if options is None else begin_overdue(tr, layout, options, now, counters)
    oldest = _begin_oldest(tr, layout, counters, first_key)
    after_now = layout.timer_key(layout.dues, now + 1, b"")
    dues: Iterable[KeyValue] = ()
    if counters.tallies["delayed"]:
        dues = tr.get_range(after_now, layout.range_of(layout.dues)[1], limit=1)

    def finish() -> QueueStats:
        found = overdue()
        times = [layout.unpack_timer_key(layout.dues, row.key)[0] for row in dues]
        by_priority = counts_by_priority(tr, layout, options, counters, found)
        next_due = utc_time(times[0]) if times else None
        return _stats(counters, found, by_priority, oldest(found), next_due)

    return finish


def begin_size(
    tr: ReadTransaction, subspace: Subspace, counters: Counters, now: int
) -> Callable[[], int]:
    """Start to read what the counters of a queue leave open about the number of ready items."""
    if not any(with_timers(counters)):
        return lambda: max(0, counters.ready)
    layout = Layout(subspace)
    overdue = begin_overdue(tr, layout, stored_options(tr, layout), now, counters)
    return lambda: max(0, counters.ready + overdue().ready)


def unknown_stats(subspace: Subspace, error: Exception) -> QueueStats:
    """Return the statistics of a queue that cannot be read: zeros and the error."""
    return replace(_stats(Counters(subspace, ()), Overdue(), {}, None, None), error=str(error))


def _stats(
    counters: Counters,
    overdue: Overdue,
    by_priority: dict[Any, int],
    oldest: Moment | None,
    next_due: Moment | None,
) -> QueueStats:
    tallies = counters.tallies
    returned, died, ended = map(len, (overdue.returned, overdue.died, overdue.ended))
    over = returned + died + ended + len(overdue.staged)
    return QueueStats(
        ready=max(0, counters.ready + overdue.ready),
        delayed=max(0, tallies["delayed"] - len(overdue.due) - len(overdue.lapsed)),
        claimed=max(0, counters.claimed - over),
        dead=max(0, tallies["dead"] + died),
        done=max(0, tallies["done"]),
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
        total_expired=tallies["expired"] + len(overdue.expired) + ended + len(overdue.lapsed),
        total_removed=tallies["removed"],
        total_died=tallies["died"],
        total_put_back=tallies["put_back"],
        total_rejected=counters.rejected,
    )


def counts_by_priority(
    tr: ReadTransaction,
    layout: Layout,
    options: Options | None,
    counters: Counters,
    overdue: Overdue,
) -> dict[Any, int]:
    """Return the number of ready items of each priority that has any.

    The options are needed only if something is overdue.
    """
    kind = "" if options is None else options.kind
    unpack = layout.unpack_level_prefix
    levels = counters.levels
    counts = Counter({unpack(prefix): levels[prefix] for prefix in sorted(levels)})
    if kind == "task":
        ranks = Priorities(layout, RANK, are_counted=False)
        stored = overdue_items(tr, layout, overdue, {*overdue.positions})
        expired = [(layout.items + place, tr[layout.items + place]) for place in overdue.expired]

        def urgencies(rows: Iterable[tuple[bytes, bytes | None]]) -> Iterator[int]:
            for key, value in rows:
                with suppress(ValueError, struct.error):  # a damaged task must not hide the others
                    if value is not None:
                        yield decode_header(layout.read_payload(tr, ranks.item(key, value)))[0]

        counts.update(urgencies(stored))
        counts.subtract(urgencies((key, read.value) for key, read in expired))
    elif kind == "priority":

        def priority(position: bytes) -> Any:
            return layout.unpack_item_key(layout.items + position)[0]

        counts.update(map(priority, overdue.positions))
        counts.subtract(map(priority, overdue.expired))
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
        expired = overdue.expired
        times = [layout.pushed_at(layout.items + position) for position in overdue.positions]
        for prefix, first in firsts:
            key = first.value
            if layout.position(key) in expired:  # look behind all that have expired
                rows = tr.get_range(*layout.range_of(prefix), limit=len(expired) + 1)
                live = (row.key for row in rows if layout.position(row.key) not in expired)
                key = next(live, b"")
            if key.startswith(prefix) and layout.is_item_key(key, prefix):
                times.append(layout.pushed_at(key))
        key = first_id.value
        if expired:
            rows = tr.get_range(*layout.range_of(layout.ids), limit=len(expired) + 1)
            key = next((row.key for row in rows if row.value not in expired), b"")
        times.append(layout.task_pushed_at(key))
        return min((time for time in times if time is not None), default=None)

    return oldest
