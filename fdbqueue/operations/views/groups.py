"""The groups of a queue, as views show them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal, TypeAlias

from fdbqueue.layout.counters import Counters
from fdbqueue.layout.items import GroupSettings, decode_group_settings
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import Moment, decode_count, utc_time
from fdbqueue.types import RangeResult, ReadTransaction

BeginCounters: TypeAlias = Callable[[ReadTransaction], Callable[[], Counters]]
"""Starts to read the counters of a queue; the result waits for them."""

_MAX_COUNTED = 10_000  # groups whose items are counted to know how many have none

HeldBy: TypeAlias = Literal["paused", "concurrency", "rate", "retry"]
"""The reason why the ready items of a group are not handed out."""


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group of a queue at one moment.

    Attributes:
        name: Its name; an empty text for the items without a group, which are one group.
        ready: The number of its ready items. Of the items without a group, `None` if the queue has
            more than 10,000 groups with ready or claimed items.
        claimed: The number of its claimed items, likewise.
        weight: Its share of what is taken from a priority, in proportion to those of other groups.
        concurrency: The most of its items that may be claimed at a time; `None` for no limit.
        paused: Whether it is paused.
        rate: The most of its items that may be started in a time, and that time in seconds; `None`
            for no limit.
        in_order: Whether a failed item is tried again before those behind it, because one of its
            items may be claimed at a time.
        held_by: What keeps its ready items from being handed out: `"paused"`; `"concurrency"` if it
            has as many items claimed as it may; `"retry"` if a failed item waits for its next
            attempt; `"rate"` if as many were started as may be; `None` for nothing.
        held_until: When its rate allows more to be started, if that holds it.
        delayed: The number of its delayed items; `None` for the items without a group.
        max_size: The most ready, delayed and claimed items it may have; `None` for no bound.
        latest: Whether a push removes the items that wait, so that `max_size` does not apply.
    """

    name: str
    ready: int | None
    claimed: int | None
    weight: float
    concurrency: int | None
    paused: bool
    rate: tuple[int, float] | None
    in_order: bool
    held_by: HeldBy | None
    held_until: Moment | None
    delayed: int | None = None
    max_size: int | None = None
    latest: bool = False


def held_by(settings: GroupSettings, claimed: int, due: bytes) -> HeldBy:
    """Return what holds a group back that is held; `due` is when its rate allows more, or empty."""
    if settings.paused:
        return "paused"
    if due:
        return "rate"
    return "retry" if claimed < (settings.concurrency or 0) else "concurrency"


def list_groups(
    tr: ReadTransaction,
    layout: Layout,
    begin_counters: BeginCounters,
    after: str | None,
    limit: int,
) -> list[GroupInfo]:
    """Return up to `limit` groups that have ready, delayed or claimed items or settings, by name.

    In a queue that has any, the items without a group are the first of them.

    Args:
        tr: A transaction, or its snapshot.
        layout: The layout of the queue.
        begin_counters: Starts to read the counters of the queue.
        after: The name behind which to begin, or `None`.
        limit: The most groups, from 1.
    """
    counters = layout.group_counts, layout.group_slots
    spaces = *counters, layout.group_settings
    begun = [
        tr.get_range(
            space + b"\x02" if after is None else layout.group_key(space, after) + b"\x00",
            space + b"\x03",
            limit=limit,
        )
        for space in spaces
    ]
    delaying = _begin_delays(tr, layout, after, limit)
    for_all = tr[layout.group_key(layout.group_settings, None)]
    ready, claimed, own = (
        {layout.unpack_entry_key(space, row.key): row.value for row in rows}
        for space, rows in zip(spaces, begun)
    )
    names = list(islice(sorted({*ready, *claimed, *own, *delaying()}), limit))
    default = decode_group_settings(for_all.value)
    found: list[GroupInfo] = []
    if names and after is None:
        found = _others(tr, counters, begin_counters, own.get(""), default)
        names = [name for name in names if name][: limit - len(found)]
    held = {name: tr[layout.group_key(layout.held_groups, name)] for name in names}
    delayed = {name: tr.get_range(*layout.group_delays_range(name)) for name in names}
    for name in names:
        settings = decode_group_settings(own.get(name)).over(default)
        running, due = decode_count(claimed.get(name)), held[name].value
        reason = None if due is None else held_by(settings, running, due)
        found.append(
            GroupInfo(
                name,
                decode_count(ready.get(name)),
                running,
                settings.weight or 1.0,
                settings.concurrency,
                settings.paused,
                settings.rate and (settings.rate[0], settings.rate[1] / 1000),
                settings.is_sequence,
                reason,
                utc_time(decode_count(due)) if due else None,
                sum(decode_count(row.value) for row in delayed[name]),
                settings.max_size,
                settings.latest is True,
            )
        )
    return found


def _begin_delays(
    tr: ReadTransaction, layout: Layout, after: str | None, limit: int
) -> Callable[[], Iterator[str]]:
    """Start to read the names of the groups that have delayed items; return a function that waits.

    It yields the first `limit` names, or more.
    """
    space = layout.group_delays

    def read(begin: bytes) -> RangeResult:
        return tr.get_range(begin, space + b"\x03", limit=limit)

    begun = read(space + b"\x02" if after is None else layout.group_delays_range(after)[1])

    def names() -> Iterator[str]:
        rows, name, n = [*begun], None, 0
        while True:
            for row in rows:
                before, name = name, layout.unpack_group_key(space, row.key)[0]
                if name != before:
                    n += 1
                    yield name
            if name is None or n >= limit or len(rows) < limit:
                return
            # A group has a row for each priority: pass over those of the last one.
            rows = [*read(layout.group_delays_range(name)[1])]

    return names


def _others(
    tr: ReadTransaction,
    spaces: tuple[bytes, bytes],
    begin_counters: BeginCounters,
    own: bytes | None,
    default: GroupSettings,
) -> list[GroupInfo]:
    """Return the items without a group as a group, if there are any or they have a weight."""
    reads: ReadTransaction = getattr(tr, "snapshot", tr)  # of counters that all items change
    counters = begin_counters(reads)
    begun = [
        reads.get_range(space + b"\x02", space + b"\x03", limit=_MAX_COUNTED + 1)
        for space in spaces
    ]
    in_groups = [[decode_count(row.value) for row in rows] for rows in begun]
    of_queue = counters()
    numbers: tuple[int | None, int | None] = (None, None)
    if all(len(counts) <= _MAX_COUNTED for counts in in_groups):
        ready, claimed = map(sum, in_groups)
        numbers = max(0, of_queue.ready - ready), max(0, of_queue.claimed - claimed)
    if own is None and numbers == (0, 0):
        return []
    weight = decode_group_settings(own).over(default).weight or 1.0
    return [GroupInfo("", *numbers, weight, None, False, None, False, None, None)]
