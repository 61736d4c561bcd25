"""The groups of a queue, as views show them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Literal

from fdbqueue.layout.items import decode_group_settings
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import decode_count
from fdbqueue.types import ReadTransaction


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group of a queue at one moment.

    Attributes:
        name: Its name.
        ready: The number of its ready items.
        claimed: The number of its claimed items.
        weight: Its share of what is taken from a priority, in proportion to those of other groups.
        concurrency: The most of its items that may be claimed at a time; `None` for no limit.
        paused: Whether it is paused.
        held_by: What keeps its ready items from being handed out: `"paused"`, or `"concurrency"`
            if it has as many items claimed as it may; `None` for nothing.
    """

    name: str
    ready: int
    claimed: int
    weight: float
    concurrency: int | None
    paused: bool
    held_by: Literal["paused", "concurrency"] | None


def list_groups(
    tr: ReadTransaction, layout: Layout, after: str | None, limit: int
) -> list[GroupInfo]:
    """Return up to `limit` groups that have ready or claimed items or settings, by their names.

    Args:
        tr: A transaction, or its snapshot.
        layout: The layout of the queue.
        after: The name behind which to begin, or `None`.
        limit: The most groups, from 1.
    """
    spaces = layout.group_counts, layout.group_slots, layout.group_settings
    # Start all reads before waiting for the first.
    begun = [
        tr.get_range(
            space + b"\x02" if after is None else layout.group_key(space, after) + b"\x00",
            space + b"\x03",
            limit=limit,
        )
        for space in spaces
    ]
    for_all = tr[layout.group_key(layout.group_settings, None)]
    ready, claimed, own = (
        {layout.unpack_entry_key(space, row.key): row.value for row in rows}
        for space, rows in zip(spaces, begun)
    )
    names = list(islice(sorted({*ready, *claimed, *own}), limit))
    default = decode_group_settings(for_all.value)
    held = {name: tr[layout.group_key(layout.held_groups, name)] for name in names}
    found: list[GroupInfo] = []
    for name in names:
        settings = decode_group_settings(own.get(name)).over(default)
        held_by: Literal["paused", "concurrency"] | None = None
        if held[name].present():
            held_by = "paused" if settings.paused else "concurrency"
        found.append(
            GroupInfo(
                name,
                decode_count(ready.get(name)),
                decode_count(claimed.get(name)),
                settings.weight or 1.0,
                settings.concurrency,
                settings.paused,
                held_by,
            )
        )
    return found
