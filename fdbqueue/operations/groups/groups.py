"""Groups within a transaction: whose turn it is, who is held back, and when that ends.

Source: Goyal, Vin and Cheng, "Start-time Fair Queueing", SIGCOMM 1996.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heapreplace
from operator import attrgetter
from typing import Any, cast

from fdbqueue.layout.items import (
    GroupSettings,
    ItemRow,
    Level,
    StoredItem,
    decode_group_settings,
    encode_group_settings,
)
from fdbqueue.layout.keys import WANT_ALL, Layout
from fdbqueue.layout.priorities import Levels
from fdbqueue.layout.values import (
    MINUS_ONE,
    ONE,
    ZERO,
    decode_count,
    decode_metadata,
    encode_count,
    encode_pass,
)
from fdbqueue.operations.groups.settling import Settling
from fdbqueue.operations.groups.starts import Starts
from fdbqueue.operations.groups.turns import NO_SETTINGS, Taking, Turn, read_rooms
from fdbqueue.operations.options import StoredOptions
from fdbqueue.operations.parallel import read_all
from fdbqueue.operations.timers import set_timer
from fdbqueue.operations.transitions import Change, Why
from fdbqueue.operations.waking import Waiters
from fdbqueue.types import KeyValue, RangeResult, ReadTransaction, Transaction, Value

_FORGOTTEN = 2  # idle groups that are forgotten when another one becomes idle
_RATE = b"rate"  # tells that a group without ready items had a rate
_IDLE = b"idle"  # follows the pass of the items without a group while there are none


_turn_of = attrgetter("turn")


class Groups:
    """The groups of one queue, which share what is taken. Each method is part of a transaction.

    Within a priority, the items of a group are in the order of their arrival, and groups take
    turns: a group with ready items has one turn, and the turns are in the order of their passes.
    An item that is taken moves the turn of its group behind by the inverse of the weight of the
    group. A group that had no items starts at the highest pass that was taken, or at its own if
    that is higher, so it neither catches up nor gains by being away. The items without a group are
    one more group. It has no turn of its own, so that queues without groups pay nothing: its pass
    is compared with the turns once an item of a group is ready. The next item that is taken of a
    group finds that they are gone.

    A group that may have no more items claimed or started, or that is paused, is *held*: it has no
    turns, so that nobody meets it. The transaction that frees one of its slots gives them back, and
    so does a sweep once its rate allows more. A group of which one item may be claimed at a time is
    a sequence: after a failure, it is held until the failed item is available again.

    A push to a group that has ready items reads one key, which only the first and the last of them
    change. So it conflicts with a push of the first one and with a pop or claim of the last one.

    The class maintains all of this (`transitions.Maintainer`).
    """

    def __init__(self, layout: Layout, levels: Levels, options: StoredOptions) -> None:
        self._layout = layout
        self._levels = levels
        self._starts = Starts(layout)
        self.settling = Settling(layout, self)
        self._options = options

    # Finding

    def in_turns(
        self,
        tr: ReadTransaction,
        found: list[StoredItem],
        begin: bytes,
        end: bytes,
        n: int,
        skipped: int,
        before: Sequence[StoredItem] = (),
    ) -> list[StoredItem]:
        """Return up to `n` items of a range of priorities, in the order of their turns.

        Args:
            tr: A transaction, or its snapshot.
            found: The first items of the range in the order of their keys, or none.
            begin: The first key that a priority may have.
            end: The key behind the last priority.
            n: The most items.
            skipped: How many groups to skip in the first priority that has any.
            before: The items that the transaction will take before these.
        """
        level_of = self._levels.level_of
        items: list[StoredItem] = []
        while len(items) < n and begin < end:
            if not found:
                rows = tr.get_range(begin, end, limit=n - len(items), streaming_mode=WANT_ALL)
                found = [StoredItem(row.key, row.value, level_of(row.key)) for row in rows]
            level: Level | None = None
            for item in found:
                if item.level.group is not None:
                    level = item.level
                    break
                items.append(item)
            if level is None:
                break
            # The items of groups come before the others of their priority.
            items += self.first(tr, level, n - len(items), [*before, *items], skipped)
            found, begin, skipped = [], self._layout.range_of(level.of_priority)[1], 0
        return items

    def first(
        self,
        tr: ReadTransaction,
        level: Level,
        n: int,
        before: list[StoredItem],
        skipped: int = 0,
    ) -> list[StoredItem]:
        """Return up to `n` next items of a priority, in the order of the turns.

        The transaction conflicts with every change of the turns up to theirs; with a snapshot, with
        none.

        Args:
            tr: A transaction, or its snapshot.
            level: A level of the priority.
            n: The most items, from 1.
            before: The items that the transaction will take before these.
            skipped: How many turns to pass over, unless there are not more.
        """
        layout, rest = self._layout, level.rest
        begin, end = layout.range_of(layout.turns + rest)
        taken = Counter(item.level.group for item in before)
        stale: list[Turn] = []
        limit, reads = n + skipped, _snapshot(tr)
        read = tr.get_range(begin, end, limit=limit, streaming_mode=WANT_ALL)
        defaults = self._begin_defaults(reads)
        turns = self._turn_of_others(tr, level, rest)
        while True:
            rows = [*read]
            # Of a group, its share of the items and the one behind them.
            n_rows = 2 + (n - 1) // (len(rows) or 1)
            for row in rows[skipped:] or rows:
                pass_, group = layout.unpack_turn_key(layout.turns, rest, row.key)
                of_group = self._levels.in_group(level, group)
                turns.append(Turn(of_group, row.key, pass_, row.value, reads, n_rows))
            found = self._merged(tr, turns, defaults, n, taken, stale)
            # Beside the turn of the items without a group, and those met in vain.
            if len(rows) < limit or len(turns) - len({turns[0], *stale}) >= n:
                return found
            read = tr.get_range(rows[-1].key + b"\x00", end, limit=limit, streaming_mode=WANT_ALL)

    def _turn_of_others(self, tr: ReadTransaction, level: Level, rest: bytes) -> list[Turn]:
        """Return the turn of the items without a group."""
        layout, reads = self._layout, _snapshot(tr)
        key = self._pass_key(None, rest)
        stored, taken = reads[key], reads[layout.taken_passes + rest]
        turn = Turn(self._levels.in_group(level, None), key, 0, b"", reads)
        value = stored.value or _IDLE
        pass_ = decode_count(value.removesuffix(_IDLE) or None)
        turn.is_idle = value.endswith(_IDLE)
        if turn.is_idle:
            pass_ = max(pass_, decode_count(taken.value))
        turn.passes = [pass_]
        return [turn]

    def _merged(
        self,
        tr: ReadTransaction,
        turns: list[Turn],
        defaults: RangeResult,
        n: int,
        taken: Counter[str | None],
        stale: list[Turn],
    ) -> list[StoredItem]:
        """Return the first items of some turns, and set `stale` to the turns that had none."""
        room = read_rooms(self._layout, _snapshot(tr), turns, defaults)
        heap: list[tuple[int, str, Turn]] = []
        stale.clear()
        for turn in turns:
            group = turn.level.group
            turn.passes, turn.stale = turn.passes[:1], stale
            if room.get(turn, math.inf) > taken.get(group, 0) and turn.row(0) is not None:
                heap.append((turn.passes[0], group or "", turn))
                continue
            if not turn.is_idle:
                stale.append(turn)
            if group is None and _snapshot(tr) is not tr:  # a push of one conflicts
                cast("Transaction", tr).add_read_conflict_range(turn.level.begin, turn.level.end)
        heapify(heap)
        found: list[StoredItem] = []
        while heap and len(found) < n:
            _, name, turn = heap[0]
            found.append(turn.find())
            number = len(turn.passes) - 1
            may_go_on = room.get(turn, math.inf) > taken.get(turn.level.group, 0) + number
            turn.is_limited = not may_go_on
            if may_go_on and turn.row(number) is not None:
                heapreplace(heap, (turn.passes[-1], name, turn))
            else:
                heappop(heap)
        return found

    # Transitions

    def begin(
        self, tr: Transaction, now: int, changes: Sequence[Change]
    ) -> Callable[[], None] | None:
        """Start the reads for transitions of items of groups; see `transitions.Maintainer`.

        An item that becomes ready conflicts with whatever changes that its group has ready items.
        """
        taken = [
            change.before.item
            for change in changes
            if change.before is not None and change.before.state == "ready"
        ]
        stored = Counter(
            change.after.item.level
            for change in changes
            if change.after is not None
            and change.after.state == "ready"
            and change.after.item.level.group is not None
        )
        are_claimed = changes[0].why == "claimed"
        taking = self.begin_taking(tr, taken, are_claimed)
        members = {level: self.prefetch(tr, level) for level in stored}

        def finish() -> None:
            if taking is not None:
                self.note_gone(tr, now, taken, taking, are_claimed)
            for level, n in stored.items():
                self._note_stored(tr, level, n, not members[level].present())
            for why, before, after, _ in changes:
                self._note_delay(tr, now, why, before, after)

        return finish

    def prefetch(self, tr: Transaction, level: Level) -> Value:
        """Start to read whether a group has ready items; the client caches what was read."""
        return tr[self._layout.group_members + level.packed_group + level.rest]

    def _note_delay(
        self, tr: Transaction, now: int, why: Why, before: ItemRow | None, after: ItemRow | None
    ) -> None:
        """Count a delayed item of a group; hold a sequence until its failed item is available."""
        if after is not None and after.state == "delayed" and after.item.level.group is not None:
            tr.add(self.delays(after.item.level), ONE)
        if before is not None and before.state == "delayed" and before.item.level.group is not None:
            self._note_available(tr, now, before.item)
        if why == "failed" and after is not None and after.state == "delayed":
            self._note_failed(tr, now, after)

    # Taking

    def begin_taking(
        self, tr: Transaction, items: list[StoredItem], are_claimed: bool
    ) -> Taking | None:
        """Add read conflicts for items that were found in turns, and for what made them the next.

        Call it before any write: the engine compares a read conflict with the writes before it.

        Returns:
            How many items are taken in each turn, for `note_gone`; `None` if no item has a group or
            was found in a turn.
        """
        for item in items:
            if item.turn is not None or item.level.group is not None:
                break
        else:
            return None
        turns: Taking = Counter(filter(None, map(_turn_of, items)))
        if not turns:
            return turns
        for stale in {stale for turn in turns for stale in turn.stale if not stale.level.group}:
            tr.add_read_conflict_key(stale.key)
        tr.add_read_conflict_key(self._settings_key(None))
        for turn, n in turns.items():
            turn.following, group = turn.row(n), turn.level.group
            end = turn.level.end if turn.following is None else turn.following.key + b"\x00"
            tr.add_read_conflict_range(turn.level.begin, end)
            tr.add_read_conflict_key(turn.key)
            depends = turn.is_limited or (are_claimed and turn.settings.concurrency is not None)
            if group and depends:
                tr.add_read_conflict_key(self._slot(group))
            if group and turn.settings.rate is not None:
                self._options.note_rate_of_group()
                tr.add_read_conflict_key(self._starts.counter(group))
        return turns

    def note_gone(
        self,
        tr: Transaction,
        now: int,
        items: list[StoredItem],
        taking: Taking,
        are_claimed: bool,
    ) -> None:
        """Note that ready items were deleted: those found in turns were taken, others removed."""
        stale = dict.fromkeys(each for turn in taking for each in turn.stale)
        for others in [each for each in stale if each.level.group is None]:
            tr[others.key] = encode_pass(others.passes[0]) + _IDLE
        taken: dict[bytes, int] = {}
        for turn, n in taking.items():
            rest = turn.level.rest
            taken[rest] = max(turn.passes[n - 1], taken.get(rest, 0))
        for rest, pass_ in taken.items():
            tr.max(self._layout.taken_passes + rest, encode_pass(pass_))
        of_group, started = dict[str | None, int](), dict[str | None, int]()
        # The last group without items says where shares begin again: the one that has most.
        for turn, n in sorted(taking.items(), key=lambda each: each[0].passes[each[1]]):
            group = turn.level.group
            n_so_far = of_group[group] = of_group.get(group, 0) + n  # in several priorities
            self._take(tr, now, turn, n, n_so_far, are_claimed)
            if group is not None and turn.settings.rate is not None:
                started[group] = n_so_far
        self._starts.add(tr, now, started)
        for level in (each.level for each in taking if each.following is None):
            if level.group is not None:
                self._forget_idle(tr, now, level.rest)
        for group in (each.level.group for each in stale):
            if group is not None:
                self.settle(tr, now, group)
        removed = Counter(item.level for item in items if item.turn is None and item.level.group)
        for level in sorted(removed):
            self._note_removed(tr, now, level, removed[level])

    def _take(
        self, tr: Transaction, now: int, turn: Turn, n: int, n_so_far: int, are_claimed: bool
    ) -> None:
        """Move the turn of a group from which `n` items were taken, after others in other turns."""
        layout, level, group = self._layout, turn.level, turn.level.group
        rest, settings = level.rest, turn.settings
        following, pass_ = turn.following, turn.passes[n]
        if group is None:
            tr[turn.key] = encode_pass(pass_) + (_IDLE if following is None else b"")
            if following is None:
                self._begin_shares_again(tr, rest, pass_)
            return
        packed = level.packed_group
        tr.clear(turn.key)
        tr[layout.group_passes + packed + rest] = encode_pass(pass_)
        tr.add(layout.group_counts + packed, encode_count(-n))
        if following is None:
            self._become_idle(tr, level, pass_, settings)
        is_full, due = False, None
        if are_claimed:
            tr.add(layout.group_slots + packed, encode_count(n))
            limit = settings.concurrency
            is_full = limit is not None and turn.claimed + n_so_far >= limit
        rate = settings.rate
        if not is_full and rate is not None and rate[0] - turn.started <= n_so_far:
            room, due = self._starts.room(tr, now, group, rate, n_so_far)
            due = None if room > n_so_far else due
        if is_full or due is not None:
            self._hold(tr, group, due)
        elif following is not None:
            tr[layout.timer_key(layout.turns + rest, pass_, packed)] = turn.own

    def _note_removed(self, tr: Transaction, now: int, level: Level, n: int) -> None:
        """End the turn of a group without ready items, after `n` of them were removed."""
        layout, group, rest = self._layout, level.group or "", level.rest
        tr.add(layout.group_key(layout.group_counts, group), encode_count(-n))
        if [*tr.get_range(level.begin, level.end, limit=1)]:
            return
        pass_ = decode_count(tr[self._pass_key(group, rest)].value)
        tr.clear(layout.turn_key(layout.turns, rest, pass_, group))
        (settings,) = self.settings(tr.snapshot, [group])
        self._become_idle(tr, level, pass_, settings)
        self._forget_idle(tr, now, rest)

    def _become_idle(
        self, tr: Transaction, level: Level, pass_: int, settings: GroupSettings
    ) -> None:
        """Note that a group has no ready items of a priority."""
        layout, group, rest = self._layout, level.group or "", level.rest
        tr.clear(layout.group_key(layout.group_members, group, rest))
        tr.compare_and_clear(layout.group_key(layout.group_counts, group), ZERO)
        idle_key = layout.turn_key(layout.idle_groups, rest, pass_, group)
        tr[idle_key] = b"" if settings.rate is None else _RATE
        self._begin_shares_again(tr, rest, pass_)

    def _forget_idle(self, tr: Transaction, now: int, rest: bytes) -> None:
        """Forget some groups without ready items of a priority that gain nothing by being known.

        Call it once the starts of the transaction are noted, so that they are not forgotten.
        """
        layout = self._layout
        # A lower pass than the highest one that was taken is no disadvantage any more.
        taken = decode_count(tr.snapshot[layout.taken_passes + rest].value)
        begin, end = layout.turns_before(layout.idle_groups, rest, taken)
        for row in tr.snapshot.get_range(begin, end, limit=_FORGOTTEN):
            _, idle = layout.unpack_turn_key(layout.idle_groups, rest, row.key)
            if row.value:  # it had a rate, and may have starts
                (settings,) = self.settings(tr, [idle])  # which may have changed since
                period = 0 if settings.rate is None else settings.rate[1]
                if not self._starts.forget(tr, now, idle, period):
                    continue
            key = self._pass_key(idle, rest)
            tr.add_read_conflict_key(key)  # it may just have items again
            tr.clear(key)
            tr.clear(row.key)

    def _begin_shares_again(self, tr: Transaction, rest: bytes, pass_: int) -> None:
        """Begin shares behind a group without items, if nobody has a turn in the priority.

        So they begin again for those that have taken most as well.
        """
        turns = self._layout.range_of(self._layout.turns + rest)
        rows, others = (
            tr.snapshot.get_range(*turns, limit=1),
            tr.snapshot[self._pass_key(None, rest)],
        )
        if not [*rows] and (others.value or _IDLE).endswith(_IDLE):
            tr.max(self._layout.taken_passes + rest, encode_pass(pass_))

    # Returning

    def _note_stored(self, tr: Transaction, level: Level, n: int, needs_turn: bool) -> None:
        """Count items that were stored in a level; give its group a turn if it has none."""
        layout, group, rest = self._layout, level.group or "", level.rest
        tr.add(layout.group_counts + level.packed_group, encode_count(n))
        if not needs_turn:
            return
        tr[layout.group_members + level.packed_group + rest] = b""
        key = self._pass_key(group, rest)
        stored, taken = tr[key], tr.snapshot[layout.taken_passes + rest]
        held, own = tr[self._held(group)], tr[self._settings_key(group)]
        before = decode_count(stored.value)
        pass_ = max(before, decode_count(taken.value))
        if stored.present():
            tr.clear(layout.turn_key(layout.idle_groups, rest, before, group))
        tr[key] = encode_pass(pass_)
        if not held.present():
            tr[layout.turn_key(layout.turns, rest, pass_, group)] = own.value or NO_SETTINGS

    # Holding back

    def begin_free(self, tr: Transaction, group: str) -> Value:
        """Start to read whether a group is held."""
        return tr[self._held(group)]

    def note_freed(self, tr: Transaction, now: int, group: str, held: Value) -> bool:
        """Give a group that was held its turns again if it may go on; return whether it was."""
        was_held = held.present()
        if was_held:
            self.settle(tr, now, group)
        return was_held and not tr[self._held(group)].present()

    def _note_failed(self, tr: Transaction, now: int, failed: ItemRow) -> None:
        """Hold a sequence until its failed item, which was just delayed, is available again.

        If it waits for another one already, it waits for the one that is due last.
        """
        group = failed.item.level.group
        if group is not None and next(iter(self.settings(tr.snapshot, [group]))).is_sequence:
            awaited = tr[self._awaited(group)].value
            if awaited is None or self._due(tr, awaited) <= failed.due:
                tr[self._awaited(group)] = self._layout.position(failed.key)
            self.settle(tr, now, group)

    def _due(self, tr: Transaction, position: bytes) -> int:
        """Return when the delayed item at a position is due; 0 if there is none."""
        stored = tr[self._layout.delayed + position].value
        return 0 if stored is None else int(decode_metadata(stored)[0][0])

    def _note_available(self, tr: Transaction, now: int, item: StoredItem) -> None:
        """Count a delayed item of a group no more; a sequence that was held until then goes on.

        The item may have been removed, so this wakes a client that waits.
        """
        layout, level, group = self._layout, item.level, item.level.group or ""
        tr.add(self.delays(level), MINUS_ONE)
        tr.compare_and_clear(self.delays(level), ZERO)
        if tr[self._awaited(group)].value == layout.position(item.key):
            tr.clear(self._awaited(group))
            self.settle(tr, now, group)
            tr.add(layout.wake_counter, ONE)
            Waiters(layout, layout.waiters).wake(tr, 1)

    def end_holds(self, tr: Transaction, now: int, timers: Iterable[KeyValue]) -> int:
        """Let the groups among these timers go on if their rates allow it; return how many do.

        The timers are deleted. Groups that have to wait for longer get new ones.
        """
        layout = self._layout
        references = (layout.unpack_timer_key(layout.dues, timer.key)[1] for timer in timers)
        groups = dict.fromkeys(filter(None, map(layout.unpack_group_reference, references)))
        held = {group: self.begin_free(tr, group) for group in groups}
        return [self.note_freed(tr, now, *each) for each in held.items()].count(True)

    def take_back(self, tr: Transaction, position: bytes, time: int) -> None:
        """Forget the start of an item at a time in milliseconds since 1970.

        Call it before its slot is freed: then its group goes on.
        """
        group = self._group_at(position)
        if group is not None:
            self._starts.take_back(tr, group, time)

    def settle(self, tr: Transaction, now: int, group: str, is_new_rate: bool = False) -> None:
        """Hold a group that may have no more items claimed or started; release any other one.

        With `is_new_rate`, a group may go on earlier than its timer says.
        """
        held = tr[self._held(group)].value
        (settings,) = self.settings(tr, [group])
        is_full, due = self._is_full(tr, group, settings), None
        if not is_full and settings.rate is not None:
            room, due = self._starts.room(tr, now, group, settings.rate)
            is_full = room == 0
        before = decode_count(held) if held else None
        is_known = before is not None and before > now and not is_new_rate
        if is_known and is_full and due is not None:
            return  # it is looked at again in any case
        if before is not None:
            tr.clear(self._timer(group, before))
        if is_full and held is None:
            self._hold(tr, group, due)
        elif is_full:
            self.set_held(tr, group, due)
        elif held is not None:
            self._release(tr, group)

    def _is_full(self, reads: ReadTransaction, group: str, settings: GroupSettings) -> bool:
        """Return whether a group may have no more items claimed, whatever its rate allows."""
        if settings.paused or (settings.is_sequence and reads[self._awaited(group)].present()):
            return True
        limit = settings.concurrency
        return limit is not None and decode_count(reads[self._slot(group)].value) >= limit

    def is_held_wrongly(self, reads: ReadTransaction, group: str) -> bool:
        """Return whether a group is held although it may go on, or has turns although it may not.

        A group that has a timer is held rightly: a sweep looks at it.
        """
        (settings,) = self.settings(reads, [group])
        held, is_full = reads[self._held(group)].value, self._is_full(reads, group, settings)
        if held:
            return False
        if held is None and settings.rate is not None:
            is_full = is_full or self._starts.number(reads, group) >= settings.rate[0]
        return is_full != (held is not None)

    def _hold(self, tr: Transaction, group: str, due: int | None) -> None:
        """Take its turns from a group, until it is due or something is freed."""
        layout = self._layout
        for rest, pass_ in self._passes(tr, group):
            tr.clear(layout.turn_key(layout.turns, rest, pass_, group))
        self.set_held(tr, group, due)

    def set_held(self, tr: Transaction, group: str, due: int | None) -> None:
        """Note that a group has no turns, until it is due or something is freed."""
        layout = self._layout
        tr[self._held(group)] = b"" if due is None else encode_count(due)
        if due is not None:
            set_timer(tr, layout, due, layout.group_reference(group))
            Waiters(layout, layout.waiters).wake(tr, 1)  # a client may sleep until a later time

    def _release(self, tr: Transaction, group: str) -> None:
        layout, own = self._layout, tr[self._settings_key(group)].value or NO_SETTINGS
        for rest, before in self._passes(tr, group):
            if self._is_member(tr, group, rest):
                taken = decode_count(tr.snapshot[layout.taken_passes + rest].value)
                pass_ = max(before, taken)
                tr[self._pass_key(group, rest)] = encode_pass(pass_)
                tr[layout.turn_key(layout.turns, rest, pass_, group)] = own
        tr.clear(self._held(group))

    def _passes(self, tr: Transaction, group: str) -> list[tuple[bytes, int]]:
        """Return the priorities in which a group has, or had, items, and its passes."""
        prefix = self._pass_key(group)
        rows = tr.get_range(prefix, prefix + b"\xff")
        return [(row.key[len(prefix) :], decode_count(row.value)) for row in rows]

    def _is_member(self, reads: ReadTransaction, group: str, rest: bytes) -> bool:
        """Return whether a group has ready items of a priority."""
        return reads[self._layout.group_key(self._layout.group_members, group, rest)].present()

    def _pass_key(self, group: str | None, rest: bytes = b"") -> bytes:
        return self._layout.group_key(self._layout.group_passes, group, rest)

    def _group_at(self, position: bytes) -> str | None:
        return self._levels.level_of(self._layout.items + position).group

    def delays(self, level: Level) -> bytes:
        """Return the key of the number of the delayed items of a level."""
        layout = self._layout
        return layout.group_key(layout.group_delays, level.group, level.rest)

    def _awaited(self, group: str) -> bytes:
        return self._layout.group_key(self._layout.awaited_retries, group)

    def _timer(self, group: str, due: int) -> bytes:
        layout = self._layout
        return layout.timer_key(layout.dues, due, layout.group_reference(group))

    def _held(self, group: str) -> bytes:
        return self._layout.group_key(self._layout.held_groups, group)

    def _slot(self, group: str) -> bytes:
        return self._layout.group_key(self._layout.group_slots, group)

    def index_entries(self, reads: ReadTransaction, level: Level) -> dict[bytes, bytes]:
        """Return the rows that a group with ready items in a level has."""
        layout, group, rest = self._layout, level.group or "", level.rest
        rows = {layout.group_key(layout.group_members, group, rest): b""}
        if not reads[self._held(group)].present():
            pass_ = decode_count(reads[self._pass_key(group, rest)].value)
            own = reads[self._settings_key(group)].value or NO_SETTINGS
            turn = layout.turn_key(layout.turns, rest, pass_, group)
            rows[turn] = own if reads[turn].value else b""  # by an earlier build
        return rows

    # Settings

    def _settings_key(self, group: str | None) -> bytes:
        return self._layout.group_key(self._layout.group_settings, group)

    def _begin_defaults(self, reads: ReadTransaction) -> RangeResult:
        """Start to read the settings of all groups, and those of the items without a group."""
        of_all, of_others = self._settings_key(None), self._settings_key("")  # side by side
        return reads.get_range(of_all, of_others + b"\x00", limit=2, streaming_mode=WANT_ALL)

    def settings(self, reads: ReadTransaction, groups: list[str]) -> Iterable[GroupSettings]:
        """Return the settings that hold for some groups."""
        of_all, *own = read_all(reads, map(self._settings_key, [None, *groups]))
        default = decode_group_settings(of_all)
        return (decode_group_settings(value).over(default) for value in own)

    def set(self, tr: Transaction, now: int, group: str | None, changes: dict[str, Any]) -> None:
        """Change the settings of a group, or with `None` those of all that have no own ones."""
        key, of_all = self._settings_key(group), self._settings_key(None)
        settings = decode_group_settings(tr[key].value)._replace(**changes)
        own = encode_group_settings(settings)
        # With the settings of all groups conflicts whatever takes items of any.
        tr.add_write_conflict_key(of_all)
        if own == NO_SETTINGS:
            tr.clear(key)
        else:
            tr[key] = own
        if group:
            self.settle(tr, now, group, "rate" in changes)
            if not tr[self._held(group)].present():
                self._set_turns(tr, group, own)

    def _set_turns(self, tr: Transaction, group: str, own: bytes) -> None:
        """Store its settings in the turns of a group, so that clients find both at once."""
        layout = self._layout
        for rest, pass_ in self._passes(tr, group):
            if self._is_member(tr, group, rest):
                tr[layout.turn_key(layout.turns, rest, pass_, group)] = own


def _snapshot(tr: ReadTransaction) -> ReadTransaction:
    snapshot: ReadTransaction = getattr(tr, "snapshot", tr)
    return snapshot
