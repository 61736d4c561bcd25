"""Schedules: a sweep that finds a tick due pushes its item and sets the next.

Two sweeps that find the same tick conflict.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from fdbqueue.errors import QueueFull
from fdbqueue.layout.jobs import (
    Definition,
    StoredSchedule,
    decode_schedule,
    encode_schedule,
    renamed_call,
)
from fdbqueue.layout.keys import unpack_priority
from fdbqueue.layout.values import Header, as_uuid, at_time
from fdbqueue.operations.items import ITEM_BYTES, Items, NewItem
from fdbqueue.operations.jobs.ticks import due_ticks, next_tick
from fdbqueue.operations.limits.bounds import Bounds
from fdbqueue.operations.timers import set_timer
from fdbqueue.types import ReadTransaction, Transaction

PUNCTUAL = 60_000
"""Milliseconds after which a tick counts as missed."""

MAX_MISSED = 1_000
"""Maximum number of missed ticks to push."""

FAST = 3 * 3_600_000
"""Milliseconds by which a clock may be fast, as in Debian's cron."""

DECLARED = 86_400_000
"""Milliseconds for which a declaration is valid."""

_MAX_BYTES = 3_000_000  # of schedules and their items that one transaction stores
_PUSHED = 100  # ticks of a schedule that one transaction pushes


def has_stopped(schedule: StoredSchedule, now: int) -> bool:
    """Return whether a schedule's last declaration is too old."""
    return schedule.declared_at is not None and schedule.declared_at + DECLARED <= now


def _first_tick(schedule: StoredSchedule, now: int) -> int | None:
    """Return a schedule's next tick, even if this client's clock is behind."""
    last = schedule.last or now
    return next_tick(schedule.definition.timing, last if now < last <= now + FAST else now)


def _is_wrong(schedule: StoredSchedule, now: int) -> bool:
    """Return whether the next tick is too late, after a clock was set back."""
    soon = next_tick(schedule.definition.timing, now + FAST)
    return soon is not None and schedule.next is not None and schedule.next > soon


class Schedules:
    """The schedules of one queue."""

    def __init__(self, items: Items, bounds: Bounds) -> None:
        self._layout = items.layout
        self._items = items
        self._bounds = bounds

    # Read

    def get(self, tr: ReadTransaction, name: str) -> StoredSchedule | None:
        """Return a schedule, or `None`."""
        value = tr[self._layout.entry_key(self._layout.schedules, name)].value
        return None if value is None else decode_schedule(value)

    def all(self, tr: ReadTransaction) -> dict[str, StoredSchedule]:
        """Return all schedules, in order of their names."""
        layout = self._layout
        return {
            layout.unpack_entry(layout.schedules, row.key)[0]: decode_schedule(row.value)
            for row in tr.get_range(*layout.range_of(layout.schedules))
        }

    # Change

    def put(
        self,
        tr: Transaction,
        now: int,
        name: str,
        definition: Definition,
        declared_at: int | None = None,
    ) -> None:
        """Add or change a schedule.

        A changed one keeps its state, and its next tick unless its timing changed or a clock was
        set back.
        """
        before = self.get(tr, name)
        after = (before or StoredSchedule(definition))._replace(
            definition=definition, declared_at=declared_at
        )
        is_new = before is None or before.definition.timing != definition.timing
        if not after.paused and (is_new or after.next is None or _is_wrong(after, now)):
            after = after._replace(next=_first_tick(after, now))
        self._store(tr, name, before, after)

    def remove(self, tr: Transaction, name: str) -> bool:
        """Remove a schedule; return whether there was one."""
        before = self.get(tr, name)
        if before is not None:
            self._store(tr, name, before, None)
        return before is not None

    def take_over(self, tr: Transaction, old: str, new: str) -> None:
        """Give a declared schedule another name; delete it if there is one of that name."""
        before = self.get(tr, old)
        if before is not None and before.declared_at is not None:
            self._store(tr, old, before, None)
            if self.get(tr, new) is None:
                self._store(tr, new, None, before)

    def rename_job(self, tr: Transaction, now: int, name: str, old: str, new: str) -> bool:
        """Rename the job of a schedule, and a declared schedule that has its name."""
        before = self.get(tr, name)
        payload = before and renamed_call(before.definition.payload, old, new)
        if before is None or payload is None:
            return False
        definition = before.definition._replace(payload=payload)
        self._store(tr, name, before, before._replace(definition=definition))
        if name == old:
            self.take_over(tr, old, new)
        return True

    def pause(self, tr: Transaction, now: int, name: str, paused: bool) -> bool:
        """Pause or resume a schedule; return whether there is one.

        Ticks in between do not count as missed.
        """
        before = self.get(tr, name)
        if before is None:
            return False
        if before.paused != paused:
            next = None if paused else _first_tick(before, now)
            self._store(tr, name, before, before._replace(paused=paused, next=next))
        return True

    def run_now(self, tr: Transaction, now: int, name: str) -> bytes | None:
        """Push an item as for a tick now; return its key. Raise `QueueFull`.

        Return `None` without a schedule, or while an item blocks its ticks.
        """
        before = self.get(tr, name)
        if before is None or self._is_held(tr, name, before):
            return None
        key, after = self._push(tr, now, name, before, now)
        self._store(tr, name, before, after)
        return key

    def begin_again(self, tr: Transaction) -> None:
        """Set the timers of all schedules anew."""
        for name, stored in self.all(tr).items():
            self._set_timer(tr, name, stored.next)

    def tick_all(self, tr: Transaction, now: int, references: Iterable[bytes]) -> bool:
        """Push due items of the schedules with deleted timers; return whether more is due."""
        names = filter(None, [self._layout.unpack_reference(each)[0] for each in references])
        left, is_behind = _MAX_BYTES, False
        for name in dict.fromkeys(names):
            before = self.get(tr, name)
            if before is None or before.next is None:
                continue
            size = len(before.definition.payload) + ITEM_BYTES
            left -= 2 * size  # the schedule, which is stored again, and an item
            is_over = left < 0
            if is_over or before.next > now:
                self._set_timer(tr, name, before.next)
                is_behind |= is_over
                continue
            room = 1 + min(_PUSHED - 1, left // size)
            left -= (room - 1) * size
            is_behind |= self._tick(tr, now, name, before, room)
        return is_behind

    def _tick(
        self, tr: Transaction, now: int, name: str, before: StoredSchedule, room: int
    ) -> bool:
        """Push up to `room` due items of a schedule; return whether more is due."""
        if has_stopped(before, now):
            return False  # the next declaration sets the timer
        timing, _, _, missed, overlap, *_ = before.definition
        is_held = self._is_held(tr, name, before)
        if is_held and overlap == "queue":
            return False  # the end of the item sets the timer
        ticks = due_ticks(timing, before.next or now, now, MAX_MISSED if missed == "all" else 1)
        if missed == "skip":
            ticks = [tick for tick in ticks if now - tick <= PUNCTUAL]
        after = before
        if is_held:
            after = after._replace(skipped=after.skipped + len(ticks))
            ticks = []
        n = room if overlap == "allow" else 1
        for tick in ticks[:n]:
            try:
                _, after = self._push(tr, now, name, after, tick)
            except QueueFull:
                after = after._replace(skipped=after.skipped + 1)
        left = ticks[n:]
        next = left[0] if left else next_tick(timing, now)
        self._store(tr, name, before, after._replace(next=next))
        return bool(left) and overlap == "allow"

    def _is_held(self, tr: Transaction, name: str, schedule: StoredSchedule) -> bool:
        unique = schedule.unique_key(name)
        return unique is not None and tr[self._layout.unique_key(unique)].present()

    def _push(
        self, tr: Transaction, now: int, name: str, schedule: StoredSchedule, tick: int
    ) -> tuple[bytes, StoredSchedule]:
        layout, group = self._layout, schedule.definition.group
        self._bounds.reserve(tr, group)
        levels, priority = self._items.levels, unpack_priority(schedule.definition.level)
        level = levels.in_group(levels.level(priority), group)
        header = Header(
            unique=schedule.unique_key(name),
            schedule=name,
            tick=tick,
            # Also if ticks are skipped now: they may be queued before the item ends.
            blocks=schedule.definition.overlap != "allow",
            alert=schedule.definition.alert,
        )
        # No identity is invented here: the item follows from the schedule and what it has pushed.
        seed = layout.entry_key(layout.schedules, name) + b"%d %d" % (tick, schedule.pushed)
        random = at_time(as_uuid(hashlib.sha256(seed).digest()), now)
        item = NewItem(level, schedule.definition.payload, random, header=header)
        key = self._items.append_one(tr, now, item)
        after = schedule._replace(
            last=max(tick, schedule.last or tick),
            position=layout.position(key),
            pushed=schedule.pushed + 1,
        )
        return key, after

    def _store(
        self,
        tr: Transaction,
        name: str,
        before: StoredSchedule | None,
        after: StoredSchedule | None,
    ) -> None:
        layout = self._layout
        row = layout.entry_key(layout.schedules, name)
        next_before = before and before.next
        next_after = after and after.next
        if next_before != next_after and next_before is not None:
            reference = layout.schedule_reference(name)
            tr.clear(layout.timer_key(layout.dues, next_before, reference))
        if after is None:
            tr.clear(row)
            return
        tr[row] = encode_schedule(after)
        self._set_timer(tr, name, next_after)

    def _set_timer(self, tr: Transaction, name: str, next: int | None) -> None:
        if next is not None:
            set_timer(tr, self._layout, next, self._layout.schedule_reference(name))
