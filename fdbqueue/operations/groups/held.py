"""Why a ready item is not handed out, whatever is ahead of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, cast

from fdbqueue.layout.items import StoredItem
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import decode_claim, decode_count
from fdbqueue.operations.groups.listing import HeldBy, held_by, read_settings
from fdbqueue.operations.groups.queue_rate import QueueRate
from fdbqueue.types import ItemHeldBy, Options, ReadTransaction, State, Task

Leaving: TypeAlias = Callable[[ReadTransaction, int], Callable[[State], set[bytes]]]

MAX_AHEAD = 100
"""How many items of its group that are ahead of an item are counted."""


class Holds:
    """The limits of a queue, as one item meets them. Each method is part of a transaction.

    The reads are snapshot reads: claims of other items change the counters all the time.

    Args:
        layout: The layout of the queue.
        rate: The rate of the queue.
        leaving: Returns, for a transaction and a time, a function that returns the positions of the
            items that the next sweep takes out of a state.
    """

    def __init__(self, layout: Layout, rate: QueueRate, leaving: Leaving) -> None:
        self._layout = layout
        self._rate = rate
        self._leaving = leaving

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
            if limit is not None and self._is_full(reads, layout.slot_of(None), limit, now):
                return "queue_concurrency"
            if options is not None and options.rate is not None:
                version = reads.get_read_version().wait()
                if self._rate.is_over(tr, now, options, version):
                    return "queue_rate"
            if agent is not None and options is not None:
                reason = self._agent_held_by(reads, agent, options, now)
            elif group is not None and held is not None and held.value is not None:
                reason = self._group_held_by(reads, group, held.value, now)
            else:
                return None
            return None if reason is None else cast(ItemHeldBy, f"group_{reason}")

        return finish

    def _agent_held_by(
        self, reads: ReadTransaction, agent: str, options: Options, now: int
    ) -> HeldBy | None:
        """Return what holds the tasks of an agent back."""
        layout, limit = self._layout, options.agent_concurrency
        if options.limited_groups:
            due = reads[layout.group_key(layout.held_groups, agent)].value
            if due is not None and (reason := self._group_held_by(reads, agent, due, now)):
                return reason
            own = read_settings(reads, layout, agent).concurrency
            limit = limit if own is None else own
        if limit is not None and self._is_full(reads, layout.slot_of(agent), limit, now):
            return "concurrency"
        return None

    def _group_held_by(
        self, reads: ReadTransaction, group: str, due: bytes, now: int
    ) -> HeldBy | None:
        """Return what holds a held group back; `None` if the next sweep lets it go on."""
        layout, slot = self._layout, self._layout.slot_of_group(group)
        settings, running = read_settings(reads, layout, group), reads[layout.slots + slot]
        reason, is_over = held_by(settings, decode_count(running.value), due), False
        if reason == "concurrency":
            freed = self._freed(reads, slot, now)
            left = decode_count(running.value) - freed
            is_over = freed > 0 and (settings.concurrency is None or left < settings.concurrency)
        elif reason == "rate":
            is_over = decode_count(due) <= now
        elif reason == "retry":
            awaited = reads[layout.group_key(layout.awaited_retries, group)].value
            is_over = awaited in self._leaving(reads, now)("delayed")
        return None if is_over else reason

    def _is_full(self, reads: ReadTransaction, slot: bytes, limit: int, now: int) -> bool:
        """Return whether no slot is free, nor one that the next sweep frees."""
        taken = decode_count(reads[self._layout.slots + slot].value)
        return taken >= limit and taken - self._freed(reads, slot, now) >= limit

    def _freed(self, reads: ReadTransaction, slot: bytes, now: int) -> int:
        """Return how many claims that hold a slot are over, as the next sweep finds."""
        layout = self._layout
        counter = layout.slot_counter(slot)
        # Start all reads before waiting for the first.
        claims = [reads[layout.claims + place] for place in self._leaving(reads, now)("claimed")]
        return sum(
            counter in map(layout.slot_counter, decode_claim(claim.value).slots)
            for claim in claims
            if claim.value is not None
        )


def begin_ahead(tr: ReadTransaction, item: StoredItem) -> Callable[[], int | None]:
    """Start to count the items of its group that are ahead of a ready item in its priority."""
    if item.level.group is None:
        return lambda: None
    reads: ReadTransaction = getattr(tr, "snapshot", tr)
    rows = reads.get_range(item.level.begin, item.key, limit=MAX_AHEAD)
    return lambda: len([*rows])
