"""Why a ready item is not handed out, whatever is ahead of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from fdbqueue.layout.items import StoredItem
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import decode_count
from fdbqueue.operations.groups.listing import HeldBy, held_by, read_settings
from fdbqueue.operations.groups.queue_rate import QueueRate
from fdbqueue.types import ItemHeldBy, Options, ReadTransaction, Task

MAX_AHEAD = 100
"""How many items of its group that are ahead of an item are counted."""


class Holds:
    """The limits of a queue, as one item meets them. Each method is part of a transaction.

    The reads are snapshot reads: claims of other items change the counters all the time.
    """

    def __init__(self, layout: Layout, rate: QueueRate) -> None:
        self._layout = layout
        self._rate = rate

    def begin(self, tr: ReadTransaction, item: StoredItem) -> Callable[..., ItemHeldBy | None]:
        """Start to read what holds the group of a ready item back.

        Returns:
            A function that waits for it and returns what holds the item back, given the options of
            the queue, the item as its user sees it, and the time in milliseconds since 1970. Cost:
            one read for the item of a group, one for each concurrency of the queue, and two for its
            rate; for a task of an agent with a limit up to four.
        """
        reads: ReadTransaction = getattr(tr, "snapshot", tr)
        layout, group = self._layout, item.level.group
        held = None if group is None else reads[layout.group_key(layout.held_groups, group)]

        def finish(options: Options | None, shown: object, now: int) -> ItemHeldBy | None:
            if options is not None and options.paused:
                return "queue_paused"
            agent = shown.agent_name if isinstance(shown, Task) else None
            limit = None if options is None else options.concurrency
            if limit is not None and self._is_full(reads, layout.slot_of(None), limit):
                return "queue_concurrency"
            if options is not None and options.rate is not None:
                version = reads.get_read_version().wait()
                if self._rate.is_over(tr, now, options, version):
                    return "queue_rate"
            if agent is not None and options is not None:
                reason = self._agent_held_by(reads, agent, options)
            elif group is not None and held is not None and held.value is not None:
                reason = self._group_held_by(reads, group, held.value)
            else:
                return None
            return None if reason is None else cast(ItemHeldBy, f"group_{reason}")

        return finish

    def _agent_held_by(self, reads: ReadTransaction, agent: str, options: Options) -> HeldBy | None:
        """Return what holds the tasks of an agent back."""
        layout, limit = self._layout, options.agent_concurrency
        if options.limited_groups:
            due = reads[layout.group_key(layout.held_groups, agent)].value
            if due is not None:
                return self._group_held_by(reads, agent, due)
            own = read_settings(reads, layout, agent).concurrency
            limit = limit if own is None else own
        if limit is not None and self._is_full(reads, layout.slot_of(agent), limit):
            return "concurrency"
        return None

    def _group_held_by(self, reads: ReadTransaction, group: str, due: bytes) -> HeldBy:
        """Return what holds a held group back."""
        layout = self._layout
        settings = read_settings(reads, layout, group)
        return held_by(settings, self._running(reads, layout.slot_of_group(group)), due)

    def _is_full(self, reads: ReadTransaction, slot: bytes, limit: int) -> bool:
        """Return whether no slot is free."""
        return self._running(reads, slot) >= limit

    def _running(self, reads: ReadTransaction, slot: bytes) -> int:
        return decode_count(reads[self._layout.slots + slot].value)


def begin_ahead(tr: ReadTransaction, item: StoredItem) -> Callable[[], int | None]:
    """Start to count the items of its group that are ahead of a ready item in its priority."""
    if item.level.group is None:
        return lambda: None
    reads: ReadTransaction = getattr(tr, "snapshot", tr)
    rows = reads.get_range(item.level.begin, item.key, limit=MAX_AHEAD)
    return lambda: len([*rows])
