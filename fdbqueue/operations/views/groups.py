"""The groups of a queue, as views show them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Literal, TypeAlias

from fdbqueue.layout.items import GroupSettings, decode_group_settings
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import Moment, decode_count, utc_time
from fdbqueue.types import ReadTransaction

HeldBy: TypeAlias = Literal["paused", "concurrency", "rate", "retry"]


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group of a queue at one moment; `None` stands for no limit.

    Attributes:
        ready: The number of its ready items.
        claimed: The number of its claimed items.
        weight: Its share of a priority, in proportion to other groups' weights.
        concurrency: Maximum number of claimed items.
        rate: Maximum number of starts in a period, and the period in seconds.
        in_order: Whether a failed item is retried before later ones, at a concurrency of 1.
        held_by: What holds its ready items back: `"paused"`, `"concurrency"`, `"rate"`, or
            `"retry"` while a failed item waits for its next attempt.
        held_until: When its rate allows more items to start, if that holds it.
        delayed: The number of its delayed items.
        max_size: Maximum number of ready, delayed and claimed items.
    """

    name: str
    ready: int
    claimed: int
    weight: float
    concurrency: int | None
    paused: bool
    rate: tuple[int, float] | None
    in_order: bool
    held_by: HeldBy | None
    held_until: Moment | None
    delayed: int
    max_size: int | None


def held_by(settings: GroupSettings, claimed: int, due: bytes) -> HeldBy:
    """Return what holds a group back; `due` is when its rate allows more, or empty."""
    if settings.paused:
        return "paused"
    if due:
        return "rate"
    return "retry" if claimed < (settings.concurrency or 0) else "concurrency"


def list_groups(
    tr: ReadTransaction, layout: Layout, after: str | None, limit: int
) -> list[GroupInfo]:
    """Return up to `limit` (at least 1) groups with unfinished items or settings, by name."""
    spaces = layout.group_counts, layout.group_slots, layout.group_settings, layout.group_delays
    begun = [
        tr.get_range(
            layout.range_of(layout.group_key(space, after or ""))[1], space + b"\x03", limit=limit
        )
        for space in spaces
    ]
    for_all = tr[layout.group_key(layout.group_settings, None)]
    stored: list[dict[str, bytes]] = []
    ends: list[str] = []
    for space, rows in zip(spaces, begun):
        page = [(layout.unpack_group_key(space, row.key)[0], row.value) for row in rows]
        stored.append(dict(page))
        if len(page) == limit:
            ends.append(page[-1][0])  # what follows it is not known
    ready, claimed, own, delayed = stored
    names = [name for name in sorted({*chain(*stored)}) if not ends or name <= min(ends)][:limit]
    default = decode_group_settings(for_all.value)
    held = {name: tr[layout.group_key(layout.held_groups, name)] for name in names}
    found: list[GroupInfo] = []
    for name in names:
        settings = decode_group_settings(own.get(name)).over(default)
        running, due = decode_count(claimed.get(name)), held[name].value
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
                None if due is None else held_by(settings, running, due),
                utc_time(decode_count(due)) if due else None,
                decode_count(delayed.get(name)),
                settings.max_size,
            )
        )
    return found
