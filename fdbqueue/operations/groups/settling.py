"""Sweeps hold groups, or let them go on, as new default settings say, some at a time."""

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


class Settling:
    """The groups that new default settings concern. Each method is part of a transaction.

    A group without starts left that is not held would not be met again once they are over. So the
    next sweeps look at all groups that are held, have claimed items, have started some or wait for
    a failed item. The queue stores how far they have got.
    """

    def __init__(self, layout: Layout, groups: Groups) -> None:
        self._layout = layout
        self._groups = groups
        self._progress = layout.group_key(layout.settling, None)
        spaces = (layout.held_groups, layout.group_slots, layout.start_counts)
        self._spaces = (*spaces, layout.awaited_retries)

    def begin(self, tr: Transaction, now: int) -> None:
        """Let the next sweeps look at all groups again."""
        self._note(tr, now, self._spaces[0])

    def _note(self, tr: Transaction, due: int, after: bytes) -> None:
        tr[self._progress] = after.removeprefix(self._layout.subspace.key())
        set_timer(tr, self._layout, due, self._layout.queue_reference())

    def is_under_way(self, reads: ReadTransaction) -> bool:
        """Return whether groups are left to look at."""
        return reads[self._progress].present()

    def end_hold(self, tr: Transaction, now: int, timers: Iterable[KeyValue]) -> None:
        """Look at some more groups if the timer of the queue is among these timers.

        The timers are deleted. The settings are committed: a transaction that has not seen them has
        committed before them, or never does.
        """
        layout = self._layout
        if not any(layout.is_timer_of_queue(row.key) for row in timers):
            return
        progress = tr[self._progress].value
        if progress is None:
            return
        after, left = layout.subspace.key() + progress, _AT_A_TIME
        first = next(n for n, space in enumerate(self._spaces) if after.startswith(space))
        for space in self._spaces[first:]:
            begin = after + b"\x00" if after.startswith(space) else space
            rows = [*tr.snapshot.get_range(begin, layout.range_of(space)[1], limit=left)]
            self._settle(tr, now, space, rows)
            left -= len(rows)
            if left == 0:
                self._note(tr, now + 1, rows[-1].key)
                return
        tr.clear(self._progress)

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
            self._note(tr, now, started[-1].key)

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
