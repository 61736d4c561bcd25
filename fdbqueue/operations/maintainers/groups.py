"""Groups: stored turns and holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

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
    ONE,
    ZERO,
    decode_count,
    decode_metadata,
    encode_count,
    encode_pass,
)
from fdbqueue.operations.limits.rates import Starts
from fdbqueue.operations.limits.turns import (
    IDLE,
    NO_SETTINGS,
    Taking,
    Turn,
    of_each_shard,
    read_settings,
)
from fdbqueue.operations.options import StoredOptions
from fdbqueue.operations.parallel import read_all
from fdbqueue.operations.timers import set_timer
from fdbqueue.operations.transitions import Change
from fdbqueue.operations.waking import wake, wake_claims
from fdbqueue.types import ReadTransaction, Transaction, Value

_FORGOTTEN = 2  # idle groups that are forgotten when another one becomes idle
_FIRST_GROUP = b"\x02"  # behind the null that stands for all groups
_SETTLED = 200  # groups that one transaction settles after a change of all groups


_turn_of = attrgetter("turn")


class Groups:
    """The groups of one queue, which take turns within a priority (`docs/design/groups.md`).

    A group with ready items of a priority has one turn there, at its pass, unless it is *held*:
    paused, or allowed no more claimed or started items. A group with a concurrency of one is a
    sequence: after a failure, it is held until the failed item is available again.

    The items without a group are one more group, without a stored turn.
    """

    def __init__(self, layout: Layout, levels: Levels, options: StoredOptions) -> None:
        self._layout = layout
        self._levels = levels
        self._starts = Starts(layout)
        self._options = options
        self._progress = layout.group_key(layout.settling, None)
        self._pass_key = partial(layout.group_key, layout.group_passes)
        self._settings_key = partial(layout.group_key, layout.group_settings)
        self._held = partial(layout.group_key, layout.held_groups)
        self._slot = partial(layout.group_key, layout.group_slots)
        self._awaited = partial(layout.group_key, layout.awaited_retries)

    # Transitions

    def begin(self, tr: Transaction, now: int, changes: Sequence[Change]) -> Callable[[], None]:
        """Start the reads for transitions of grouped items.

        An item that becomes ready conflicts with changes to whether its group has ready items.
        """
        taken: list[StoredItem] = []
        members: dict[Level, Value] = {}
        freed = Counter[str]()
        for _, before, after, _ in changes:
            level = after.item.level if after is not None and after.state == "ready" else None
            if before is not None:
                group = before.item.level.group
                if before.state == "ready":
                    taken.append(before.item)
                    level = None if before.item.level == level else level
                elif group and before.token and not (after and after.token):
                    freed[group] += 1  # staged items, which have no token, hold no slot
            if level is not None and level.group and level not in members:
                members[level] = self.prefetch(tr, level)
        are_claimed = changes[0].why == "claimed"
        taking = self.begin_taking(tr, taken, are_claimed)
        for group in freed:
            tr[self._held(group)]  # the client caches what it reads

        def finish() -> None:
            self.note_gone(tr, now, taken, taking, are_claimed)
            for level, member in members.items():
                if not member.present():
                    self._begin_turn(tr, level)
            for why, before, after, _ in changes:
                if before is not None and before.state == "delayed":
                    where = None if after is None else (after.state, after.key)
                    if where != ("delayed", before.key):
                        self._note_available(tr, now, before.item)
                if why == "failed" and after is not None and after.state == "delayed":
                    self._note_failed(tr, now, after)
            for group, n in freed.items():
                if self._goes_on(tr, now, group):
                    wake_claims(tr, self._layout, n)

        return finish

    def prefetch(self, tr: Transaction, level: Level) -> Value:
        """Start to read whether a group has ready items, into the client's cache."""
        return tr[self._layout.group_members + level.packed_group + level.rest]

    # Taking

    def begin_taking(self, tr: Transaction, items: list[StoredItem], are_claimed: bool) -> Taking:
        """Add read conflicts for items found in turns; return how many are taken in each turn.

        Call this before any write: the engine compares read conflicts with earlier writes.
        """
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
                self._options.has_any_rate = True
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
        """Record that ready items were taken, or removed if not found in turns."""
        stale = dict.fromkeys(each for turn in taking for each in turn.stale)
        for others in [each for each in stale if each.level.group is None]:
            tr[others.key] = encode_pass(others.passes[0]) + IDLE
        of_group, started = dict[str | None, int](), dict[str, int]()
        # The last group without items says where shares begin again: the one that has most.
        for turn, n in sorted(taking.items(), key=lambda each: each[0].passes[each[1]]):
            group = turn.level.group
            n_so_far = of_group[group] = of_group.get(group, 0) + n  # in several priorities
            self._take(tr, now, turn, n, n_so_far, are_claimed)
            if group is not None and turn.settings.rate is not None:
                started[group] = n_so_far
        for group, n in started.items():
            self._starts.add(tr, now, group, n)
        for level in (each.level for each in taking if each.following is None):
            if level.group is not None:
                self._forget_idle(tr, now, level.rest)
        for group in (each.level.group for each in stale):
            if group is not None:
                self.settle(tr, now, group)
        removed = {item.level for item in items if item.turn is None and item.level.group}
        for level in sorted(removed):
            self._note_removed(tr, now, level)

    def _take(
        self, tr: Transaction, now: int, turn: Turn, n: int, n_so_far: int, are_claimed: bool
    ) -> None:
        """Move back a group's turn after `n` items were taken.

        `n_so_far` includes items taken in its other turns.
        """
        layout, level, group = self._layout, turn.level, turn.level.group
        rest = level.rest
        following, pass_ = turn.following, turn.passes[n]
        tr.max(layout.taken_passes + rest, encode_pass(turn.passes[n - 1]))
        if group is None:
            tr[turn.key] = encode_pass(pass_) + (IDLE if following is None else b"")
            if following is None:
                self._begin_shares_again(tr, rest, pass_)
            return
        packed = level.packed_group
        tr.clear(turn.key)
        tr[layout.group_passes + packed + rest] = encode_pass(pass_)
        if following is None:
            self._become_idle(tr, level, pass_)
        is_full, due = are_claimed and turn.claimed_left <= n_so_far, None
        rate = turn.settings.rate
        if not is_full and rate is not None and turn.started_left <= n_so_far:
            room, due = self._starts.room(tr, now, group, rate, n_so_far)
            due = None if room > n_so_far else due
        if is_full or due is not None:
            self._hold(tr, group, due)
        elif following is not None:
            tr[layout.timer_key(layout.turns + rest, pass_, packed)] = turn.own

    def _note_removed(self, tr: Transaction, now: int, level: Level) -> None:
        layout, group, rest = self._layout, level.group or "", level.rest
        if [*tr.get_range(level.begin, level.end, limit=1)]:
            return
        pass_ = decode_count(tr[self._pass_key(group, rest)].value)
        tr.clear(layout.turn_key(layout.turns, rest, pass_, group))
        self._become_idle(tr, level, pass_)
        self._forget_idle(tr, now, rest)

    def _become_idle(self, tr: Transaction, level: Level, pass_: int) -> None:
        layout, group, rest = self._layout, level.group or "", level.rest
        tr.clear(layout.group_key(layout.group_members, group, rest))
        tr.compare_and_clear(layout.group_key(layout.group_counts, group), ZERO)
        tr[layout.turn_key(layout.idle_groups, rest, pass_, group)] = b""
        self._begin_shares_again(tr, rest, pass_)

    def _forget_idle(self, tr: Transaction, now: int, rest: bytes) -> None:
        """Forget some idle groups; record the transaction's starts first."""
        layout = self._layout
        # A pass that is not above the highest one that was taken is no disadvantage any more.
        taken = decode_count(tr.snapshot[layout.taken_passes + rest].value)
        begin, end = layout.timers_until(layout.idle_groups + rest, taken)
        for row in tr.snapshot.get_range(begin, end, limit=_FORGOTTEN):
            _, idle = layout.unpack_turn_key(layout.idle_groups, rest, row.key)
            if self._starts.number(tr.snapshot, idle):
                rate = read_settings(tr, layout, idle).rate
                self._starts.room(tr, now, idle, (0, rate[1] if rate else 0))
                if self._starts.number(tr, idle):  # some are not old yet
                    continue
            key = self._pass_key(idle, rest)
            tr.add_read_conflict_key(key)  # it may just have items again
            tr.clear(key)
            tr.clear(row.key)

    def _begin_shares_again(self, tr: Transaction, rest: bytes, pass_: int) -> None:
        """Restart all shares behind an idle group, if nobody has a turn."""
        turns = self._layout.range_of(self._layout.turns + rest)
        rows, others = (
            tr.snapshot.get_range(*turns, limit=1),
            tr.snapshot[self._pass_key(None, rest)],
        )
        if not [*rows] and (others.value or IDLE).endswith(IDLE):
            tr.max(self._layout.taken_passes + rest, encode_pass(pass_))

    # Returning

    def _begin_turn(self, tr: Transaction, level: Level) -> None:
        layout, group, rest = self._layout, level.group or "", level.rest
        self._options.note(tr, has_groups=True)
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

    def _goes_on(self, tr: Transaction, now: int, group: str) -> bool:
        held = self._held(group)
        if not tr[held].present():
            return False
        self.settle(tr, now, group)
        return not tr[held].present()

    def _note_failed(self, tr: Transaction, now: int, failed: ItemRow) -> None:
        """Hold a sequence until its failed item, or the one due last, is available again."""
        group = failed.item.level.group
        if group is not None and read_settings(tr.snapshot, self._layout, group).is_sequence:
            awaited = tr[self._awaited(group)].value
            if awaited is None or self._due(tr, awaited) <= failed.due:
                tr[self._awaited(group)] = self._layout.position(failed.key)
            self.settle(tr, now, group)

    def _due(self, tr: Transaction, position: bytes) -> int:
        stored = tr[self._layout.delayed + position].value
        return 0 if stored is None else int(decode_metadata(stored)[0][0])

    def _note_available(self, tr: Transaction, now: int, item: StoredItem) -> None:
        """Resume a sequence that waited for a delayed item, and wake a client."""
        layout, group = self._layout, item.level.group
        if group is None:
            return
        if tr[self._awaited(group)].value == layout.position(item.key):
            tr.clear(self._awaited(group))
            self.settle(tr, now, group)
            tr.add(layout.wake_counter, ONE)
            wake(tr, layout.waiters, 1)

    def end_holds(self, tr: Transaction, now: int, references: Iterable[bytes]) -> int:
        """Release groups with deleted timers if their rates allow it; return their number.

        The queue's own timer stands for groups to settle.
        """
        layout = self._layout
        if layout.queue_reference in references:
            self._settle_some(tr, now)
        found = {layout.unpack_reference(each)[1] for each in references}
        groups = sorted(filter(None, found))
        for group in groups:
            tr[self._held(group)]
        return [self._goes_on(tr, now, group) for group in groups].count(True)

    def settle_all(self, tr: Transaction, now: int) -> None:
        """Let the next sweeps settle all groups."""
        self._settle_from(tr, now, _FIRST_GROUP)

    def is_settling(self, reads: ReadTransaction) -> bool:
        """Return whether groups are left to settle."""
        return reads[self._progress].present()

    def _settle_from(self, tr: Transaction, due: int, group: bytes) -> None:
        tr[self._progress] = group
        set_timer(tr, self._layout, due, self._layout.queue_reference)

    def _settle_some(self, tr: Transaction, now: int) -> None:
        """Settle groups that are held, have claimed or started items, or wait for a failed one."""
        layout, begin = self._layout, tr[self._progress].value
        if begin is None:
            return
        spaces = layout.held_groups, layout.group_slots, layout.start_counts, layout.awaited_retries
        found = [
            tr.snapshot.get_range(space + begin, layout.range_of(space)[1], limit=_SETTLED)
            for space in spaces
        ]
        packed = {row.key[len(space) :] for space, rows in zip(spaces, found) for row in rows}
        groups = sorted(packed)[:_SETTLED]
        for group in groups:
            self.settle(tr, now, layout.unpack_entry(b"", group)[0], True)
        if len(groups) == _SETTLED:
            self._settle_from(tr, now + 1, groups[-1] + b"\x00")
        else:
            tr.clear(self._progress)

    def take_back(self, tr: Transaction, position: bytes, time: int) -> None:
        """Forget the start of an item, before its slot is freed."""
        group = self._levels.level_of(self._layout.items + position).group
        if group is not None:
            self._starts.take_back(tr, group, time)

    def take_back_turn(self, tr: Transaction, item: StoredItem) -> None:
        """Move a group's turn back to its place before it had an item, which becomes ready again.

        Otherwise an item that workers give back again and again would come behind other groups.
        """
        layout, group, rest = self._layout, item.level.group, item.level.rest
        key = self._pass_key(group, rest)
        stored = tr[key].value
        if stored is None:  # forgotten: no group is behind it
            return
        pass_ = decode_count(stored.removesuffix(IDLE))
        settings = read_settings(tr.snapshot, layout, group or "")
        if group is None:
            settings = of_each_shard(settings, self._options)
        earlier = max(0, pass_ - settings.step(item.header.cost))
        tr[key] = encode_pass(earlier) + (IDLE if stored.endswith(IDLE) else b"")
        if group is None:
            return
        for space in layout.turns, layout.idle_groups:
            turn = layout.turn_key(space, rest, pass_, group)
            row = tr[turn].value
            if row is not None:
                tr.clear(turn)
                tr[layout.turn_key(space, rest, earlier, group)] = row

    def settle(self, tr: Transaction, now: int, group: str, is_new_rate: bool = False) -> None:
        """Hold or release a group, by its limits; with `is_new_rate`, its timer may be too late."""
        held = tr[self._held(group)].value
        settings = read_settings(tr, self._layout, group)
        is_full, due = self._is_full(tr, group, settings), None
        if not is_full and settings.rate is not None:
            room, due = self._starts.room(tr, now, group, settings.rate)
            is_full = room == 0
        before = decode_count(held) if held else None
        is_known = before is not None and before > now and not is_new_rate
        if is_known and is_full and due is not None:
            return  # it is looked at again in any case
        if before is not None:
            layout = self._layout
            tr.clear(layout.timer_key(layout.dues, before, layout.group_reference(group)))
        if is_full and held is None:
            self._hold(tr, group, due)
        elif is_full:
            self.set_held(tr, group, due)
        elif held is not None:
            self._release(tr, group)

    def _is_full(self, reads: ReadTransaction, group: str, settings: GroupSettings) -> bool:
        """Return whether no more items of a group may be claimed."""
        if settings.paused or (settings.is_sequence and reads[self._awaited(group)].present()):
            return True
        limit = settings.concurrency
        return limit is not None and decode_count(reads[self._slot(group)].value) >= limit

    def is_held_wrongly(self, reads: ReadTransaction, group: str) -> bool:
        """Return whether a group without a timer is held, or not held, against its limits."""
        settings = read_settings(reads, self._layout, group)
        held, is_full = reads[self._held(group)].value, self._is_full(reads, group, settings)
        if held:
            return False
        if held is None and settings.rate is not None:
            is_full = is_full or self._starts.number(reads, group) >= settings.rate[0]
        return is_full != (held is not None)

    def _hold(self, tr: Transaction, group: str, due: int | None) -> None:
        layout = self._layout
        for rest, pass_ in self._passes(tr, group).items():
            tr.clear(layout.turn_key(layout.turns, rest, pass_, group))
        self.set_held(tr, group, due)

    def set_held(self, tr: Transaction, group: str, due: int | None) -> None:
        """Record that a group has no turns until it is due or something is freed."""
        layout = self._layout
        tr[self._held(group)] = b"" if due is None else encode_count(due)
        if due is not None:
            set_timer(tr, layout, due, layout.group_reference(group))

    def _release(self, tr: Transaction, group: str) -> None:
        layout, own = self._layout, tr[self._settings_key(group)].value or NO_SETTINGS
        passes = self._passes(tr, group)
        taken = read_all(tr.snapshot, [layout.taken_passes + rest for rest in passes])
        for (rest, before), most in zip(passes.items(), taken):
            pass_ = max(before, decode_count(most))
            tr[self._pass_key(group, rest)] = encode_pass(pass_)
            tr[layout.turn_key(layout.turns, rest, pass_, group)] = own
        tr.clear(self._held(group))

    def _passes(self, tr: Transaction, group: str) -> dict[bytes, int]:
        prefix = self._layout.group_key(self._layout.group_members, group)
        rows = tr.get_range(prefix, prefix + b"\xff", streaming_mode=WANT_ALL)
        members = [row.key[len(prefix) :] for row in rows]
        passes = read_all(tr, [self._pass_key(group, rest) for rest in members])
        return {rest: decode_count(value) for rest, value in zip(members, passes)}

    def index_entries(self, reads: ReadTransaction, level: Level) -> dict[bytes, bytes]:
        """Return the rows of a group with ready items in a level."""
        layout, group, rest = self._layout, level.group or "", level.rest
        rows = {layout.group_key(layout.group_members, group, rest): b""}
        if not reads[self._held(group)].present():
            pass_ = decode_count(reads[self._pass_key(group, rest)].value)
            own = reads[self._settings_key(group)].value or NO_SETTINGS
            rows[layout.turn_key(layout.turns, rest, pass_, group)] = own
        return rows

    # Settings

    def set(self, tr: Transaction, now: int, group: str | None, changes: dict[str, Any]) -> None:
        """Change a group's settings; `None` sets the defaults."""
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
            turns = {} if tr[self._held(group)].present() else self._passes(tr, group)
            for rest, pass_ in turns.items():
                tr[self._layout.turn_key(self._layout.turns, rest, pass_, group)] = own
