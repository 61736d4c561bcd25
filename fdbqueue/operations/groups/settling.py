"""Groups are held, or go on, as new settings of all groups say, in bounded transactions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fdbqueue.layout.items import decode_group_settings
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import decode_count
from fdbqueue.operations.timers import set_timer
from fdbqueue.types import KeyValue, ReadTransaction, Transaction

if TYPE_CHECKING:
    from fdbqueue.operations.groups.groups import Groups

_AT_A_TIME = 200  # groups that one transaction looks at
_WATCHED = 10_000  # milliseconds after which others go on, in case the client has ended


class Settling:
    """The groups that new settings of all groups concern. Each method is part of a transaction.

    A group without starts left that is not held would not be met again once they are over. So
    transactions look at all groups that are held, have claimed items, have started some or wait
    for a failed item. The queue stores where they have got to: if the client that changed the
    settings ends meanwhile, sweeps go on.
    """

    def __init__(self, layout: Layout, groups: Groups) -> None:
        self._layout = layout
        self._groups = groups
        self._progress = layout.group_key(layout.settling, None)

    def begin(self, tr: Transaction, now: int) -> None:
        """Look at all groups again, from the next transaction on."""
        layout = self._layout
        self._note(tr, layout.held_groups)
        set_timer(tr, layout, now + _WATCHED, layout.queue_reference())

    def _note(self, tr: Transaction, after: bytes) -> None:
        tr[self._progress] = after.removeprefix(self._layout.subspace.key())

    def is_under_way(self, reads: ReadTransaction) -> bool:
        """Return whether groups are left to look at."""
        return reads[self._progress].present()

    def go_on(self, tr: Transaction, now: int, are_committed: bool) -> bool:
        """Hold some more groups, or let some that are held go on; return whether others are left.

        Args:
            tr: A transaction.
            now: The time in milliseconds since 1970.
            are_committed: Whether the settings are. Then a transaction that has not seen them has
                committed before them, or never does. Otherwise this one conflicts with any that
                starts or ends an item of a group: nothing else may look at that group again.
        """
        layout, progress = self._layout, tr[self._progress].value
        if progress is None:
            return False
        after = layout.subspace.key() + progress
        spaces = [layout.held_groups, layout.group_slots, layout.start_counts]
        spaces.append(layout.awaited_retries)
        while not after.startswith(spaces[0]):
            del spaces[0]
        space, *others = spaces
        end = layout.range_of(space)[1]
        reads = tr.snapshot if are_committed else tr
        rows = [*reads.get_range(after + b"\x00", end, limit=_AT_A_TIME)]
        self._settle(tr, now, space, rows)
        if len(rows) == _AT_A_TIME:
            self._note(tr, rows[-1].key)
        elif others:
            self._note(tr, others[0])
        else:
            tr.clear(self._progress)
            return False
        return True

    def end_hold(self, tr: Transaction, now: int, timers: Iterable[KeyValue]) -> None:
        """Go on if the timer of the queue is among these timers, which are deleted."""
        layout = self._layout
        if any(layout.is_timer_of_queue(row.key) for row in timers) and self.go_on(tr, now, True):
            set_timer(tr, layout, now + 1, layout.queue_reference())

    def begin_again(self, tr: Transaction, now: int) -> None:
        """Hold the groups that are paused or have no starts left, in a queue that was cleared.

        Of very many groups without starts left, this holds the first ones. Sweeps go on with the
        others; a claim until then finds by itself that they have none.
        """
        layout = self._layout
        for row in tr.get_range(*layout.range_of(layout.group_settings)):
            group = layout.unpack_entry_key(layout.group_settings, row.key)
            if group and decode_group_settings(row.value).paused:
                self._groups.set_held(tr, group, None)
        # With a read conflict: a claim meanwhile may hold its group, which is forgotten here.
        begin, end = layout.range_of(layout.start_counts)
        started = [*tr.get_range(begin, end, limit=_AT_A_TIME)]
        self._settle(tr, now, layout.start_counts, started)
        if len(started) == _AT_A_TIME:
            self._note(tr, started[-1].key)
            set_timer(tr, layout, now, layout.queue_reference())

    def _settle(self, tr: Transaction, now: int, space: bytes, rows: list[KeyValue]) -> None:
        """Settle the groups in rows of a space whose limits may hold them, or not any longer."""
        layout, all_groups = self._layout, self._groups
        groups = [layout.unpack_entry_key(space, row.key) for row in rows]
        for group, row, settings in zip(groups, rows, all_groups.settings(tr.snapshot, groups)):
            if group is None:
                continue  # the starts of the whole queue
            most = settings.concurrency
            if space == layout.start_counts:
                most = None if settings.rate is None else settings.rate[0]
            may_change = space in (layout.held_groups, layout.awaited_retries)
            if may_change or (most is not None and decode_count(row.value) >= most):
                all_groups.settle(tr, now, group, True)
