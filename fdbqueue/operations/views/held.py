"""Why a ready item is not handed out, whatever is ahead of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from fdbqueue.layout.items import StoredItem
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import decode_count
from fdbqueue.operations.limits.group_settings import read_settings
from fdbqueue.operations.limits.rates import QueueRate
from fdbqueue.operations.views.groups import held_by
from fdbqueue.types import ItemHeldBy, Options, ReadTransaction

MAX_AHEAD = 100
"""How many items of its group that are ahead of an item are counted."""


def begin_held(
    tr: ReadTransaction, layout: Layout, rate: QueueRate, item: StoredItem
) -> Callable[[Options | None], ItemHeldBy | None]:
    """Start to read what holds the group of a ready item back.

    The reads are snapshot reads: claims of other items change the counters all the time.

    Returns:
        A function that waits for it and returns what holds the item back, given the options of the
        queue. Cost: one read for the item of a group, one for the concurrency of the queue, and one
        for its rate.
    """
    reads: ReadTransaction = getattr(tr, "snapshot", tr)
    group = item.level.group
    held = None if group is None else reads[layout.group_key(layout.held_groups, group)]

    def finish(options: Options | None) -> ItemHeldBy | None:
        if options is not None and options.paused:
            return "queue_paused"
        limit = None if options is None else options.concurrency
        taken = layout.slots + layout.slot_of_queue
        if limit is not None and decode_count(reads[taken].value) >= limit:
            return "queue_concurrency"
        if rate.is_used_up(reads, options):
            return "queue_rate"
        if group is None or held is None or held.value is None:
            return None
        running = decode_count(reads[layout.group_key(layout.group_slots, group)].value)
        why = held_by(read_settings(reads, layout, group), running, held.value)
        return cast(ItemHeldBy, f"group_{why}")

    return finish


def begin_ahead(tr: ReadTransaction, item: StoredItem) -> Callable[[], int | None]:
    """Start to count the items of its group that are ahead of a ready item in its priority."""
    if item.level.group is None:
        return lambda: None
    reads: ReadTransaction = getattr(tr, "snapshot", tr)
    rows = reads.get_range(item.level.begin, item.key, limit=MAX_AHEAD)
    return lambda: len([*rows])
