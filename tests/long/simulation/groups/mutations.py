"""Bugs to plant into the rules of groups, each of which the ledger has to find."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

import pytest

from fdbqueue.layout.items import GroupSettings
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import decode_count, encode_count
from fdbqueue.operations.claims import ClaimedItems
from fdbqueue.operations.limits import bounds, rates
from fdbqueue.operations.limits.bounds import Bounds
from fdbqueue.operations.limits.rates import QueueRate, Starts
from fdbqueue.operations.limits.turns import Turn, Turns
from fdbqueue.operations.maintainers import groups
from fdbqueue.operations.maintainers.groups import Groups
from fdbqueue.operations.options import StoredOptions
from fdbqueue.operations.transitions import Transitions

_Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutation:
    """A bug.

    Attributes:
        plant: Plants it.
        finds: What the problem says. Any other problem is one of the mutation itself.
    """

    plant: _Plant
    finds: tuple[str, ...]

    def has_found(self, problem: str) -> bool:
        """Return whether a problem is that of the bug."""
        return any(text in problem for text in self.finds)


MUTATIONS: dict[str, Mutation] = {}
"""All bugs by name."""


def _found_by(*finds: str) -> Callable[[_Plant], _Plant]:
    def add(plant: _Plant) -> _Plant:
        MUTATIONS[plant.__name__.strip("_").replace("_", "-")] = Mutation(plant, finds)
        return plant

    return add


def _change(patch: pytest.MonkeyPatch, owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    patch.setattr(owner, name, change(getattr(owner, name)))


class _Adding:
    """A transaction that adds by another function."""

    def __init__(self, tr: Any, add: Callable[[bytes, bytes], None]) -> None:
        self._tr = tr
        self.add = add

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tr, name)


def _change_moves(patch: pytest.MonkeyPatch, change: Callable[[str, str, int], int]) -> None:
    """Change how many items of groups enter a state, given why they do and the state."""

    def changed(count: Any) -> Any:
        def counted(self: Any, tr: Any, changes: Any, are_plain: bool) -> None:
            def add(key: bytes, value: bytes) -> None:
                for state, space in self._layout.group_counters.items():
                    if key.startswith(space):
                        value = encode_count(change(changes[0].why, state, decode_count(value)))
                tr.add(key, value)

            count(self, _Adding(tr, add), changes, are_plain)

        return counted

    _change(patch, Transitions, "_count", changed)


class _Unseen:
    """A transaction whose reads conflict with nothing."""

    def __init__(self, tr: Any) -> None:
        self._tr = tr

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tr.snapshot if name.startswith("get") else self._tr, name)

    def __getitem__(self, key: Any) -> Any:
        return self._tr.snapshot[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._tr[key] = value

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        pass

    def add_read_conflict_key(self, key: bytes) -> None:
        pass


def _with(owner: Any, **methods: Any) -> Any:
    """Return an object with other methods. Clients take turns, so its class has to stay."""
    changed = copy(owner)
    vars(changed).update(methods)
    return changed


def _unseen(method: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, tr, *args, **options: method(self, _Unseen(tr), *args, **options)


def _clears(patch: pytest.MonkeyPatch, *spaces: str) -> None:
    """Let a queue that is cleared lose these rows as well."""
    of_items: Any = vars(Layout)["of_items"].fget
    forgets = property(lambda self: (*of_items(self), *(getattr(self, each) for each in spaces)))
    patch.setattr(Layout, "of_items", forgets)


# Shares


@_found_by("the pass of", "the shares of")
def _weights_do_not_count(patch: pytest.MonkeyPatch) -> None:
    _change(patch, GroupSettings, "step", lambda step: lambda _, cost: step(GroupSettings(), cost))


@_found_by("the pass of", "the shares of")
def _costs_do_not_count(patch: pytest.MonkeyPatch) -> None:
    _change(patch, GroupSettings, "step", lambda step: lambda self, _: step(self, 1))


@_found_by("turns: stored")
def _turns_keep_old_settings(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Groups, "_set_turns", lambda *_: None)


@_found_by("had the turns")
def _any_turn_is_next(patch: pytest.MonkeyPatch) -> None:
    """A pop passes over the first turn."""

    def all_turns(all_turns: Any) -> Any:
        def others(self: Any, *args: Any) -> Any:
            turns = all_turns(self, *args)
            yield next(turns)
            next(turns, None)
            yield from turns

        return others

    _change(patch, Turns, "_all", all_turns)


@_found_by("had the turns", "was taken, and")
def _turns_are_read_by_snapshot(patch: pytest.MonkeyPatch) -> None:
    """A pop does not see that another group got a turn before its own."""

    def first(first: Any) -> Any:
        return lambda self, tr, *args: first(self, getattr(tr, "snapshot", tr), *args)

    _change(patch, Turns, "first", first)


@_found_by("the pass of")
def _a_group_catches_up(patch: pytest.MonkeyPatch) -> None:
    """A group that had no items goes on with its own pass."""

    def stored(stored: Any) -> Any:
        def without_time(self: Any, tr: Any, level: Any, *args: Any) -> None:
            layout = self._layout
            hidden = layout.taken_passes + level.rest

            class Hidden(_Unseen):
                @property
                def snapshot(self) -> Any:
                    return self

                def __getitem__(self, key: Any) -> Any:
                    return self._tr[b"\x00nothing" if key == hidden else key]

            stored(self, Hidden(tr), level, *args)

        return without_time

    _change(patch, Groups, "_begin_turn", stored)


@_found_by("go on when they come back")
def _items_without_a_group_catch_up(patch: pytest.MonkeyPatch) -> None:
    """The items without a group go on with their own pass if their end was not counted."""

    def read(read: Any) -> Any:
        def is_idle(self: Any, *args: Any) -> Turn:
            turn: Turn = read(self, *args)
            turn.is_idle = True
            return turn

        return is_idle

    _change(patch, Turns, "_turn_of_others", read)


@_found_by("the pass of", "the virtual time")
def _others_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    """A claim that skips the groups takes items without one that it does not count."""
    patch.setattr(StoredOptions, "note_groups", lambda *_: None)


@_found_by("were not taken in their order")
def _second_before_first(patch: pytest.MonkeyPatch) -> None:
    """A turn leads to the second item of its group."""

    def find(find: Any) -> Any:
        def second(self: Any) -> Any:
            if len(self.passes) > 1 or self.row(1) is None:
                return find(self)
            self._rows[0], self._rows[1] = self._rows[1], self._rows[0]
            return find(self)

        return second

    _change(patch, Turn, "find", find)


# Taking


@_found_by("had the turns", "they are stuck", "admin.check", "the pass of", "turns: stored")
def _taking_conflicts_with_nothing(patch: pytest.MonkeyPatch) -> None:
    """What is taken of a group may change meanwhile."""

    _change(patch, Groups, "begin_taking", _unseen)


@_found_by("turns: stored", "members: stored", "idle groups: stored")
def _last_one_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    """A cancelled item leaves the turn of its group, of which it was the last one."""
    patch.setattr(Groups, "_note_removed", lambda *_: None)


@_found_by("members: stored", "turns: stored")
def _pushes_conflict_with_nothing(patch: pytest.MonkeyPatch) -> None:
    """A push does not see that the last item of its group was just taken."""

    def begin(begin: Any) -> Any:
        def unseen(self: Any, tr: Any, now: int, changes: Any) -> Any:
            is_push = all(change.before is None for change in changes)
            return begin(self, _Unseen(tr) if is_push else tr, now, changes)

        return unseen

    _change(patch, Groups, "begin", begin)


@_found_by("counts: stored")
def _removed_items_stay_counted(patch: pytest.MonkeyPatch) -> None:
    """A ready item that is removed is counted as ready."""

    def stay(why: str, state: str, n: int) -> int:
        return max(0, n) if (why, state) == ("cancelled", "ready") else n

    _change_moves(patch, stay)


# Limits


@_found_by("are claimed, and")
def _limits_are_off_by_one(patch: pytest.MonkeyPatch) -> None:
    def one_more(left: Any) -> Any:
        return property(lambda self: left.fget(self) + 1)

    _change(patch, Turn, "claimed_left", one_more)


@_found_by("are claimed, and", "may not go on, and has turns", "may go on, and is held back")
def _settings_may_change_meanwhile(patch: pytest.MonkeyPatch) -> None:
    """A claim does not see that the limit of all groups was just set."""

    def begin_taking(begin_taking: Any) -> Any:
        def without_settings(self: Any, tr: Any, *args: Any, **options: Any) -> Any:
            class Without(_Unseen):
                def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
                    tr.add_read_conflict_range(begin, end)

                def add_read_conflict_key(self, key: bytes) -> None:
                    if not key.startswith(settings):
                        tr.add_read_conflict_key(key)

            settings = self._layout.group_settings
            return begin_taking(self, Without(tr), *args, **options)

        return without_settings

    _change(patch, Groups, "begin_taking", begin_taking)


@_found_by("it has ended the claim of another client")
def _a_zombie_ends_the_next_claim(patch: pytest.MonkeyPatch) -> None:
    """A client whose claim is over ends the one that the next client has, and frees its slot."""

    def any_claim(self: Any, claim: Any, reads: Any) -> Any:
        stored = [(key, read.value) for key, read in zip(claim.keys, reads)]
        return [self._row("claimed", key, value) for key, value in stored if value is not None]

    patch.setattr(ClaimedItems, "_claimed", any_claim)


@_found_by("slots: stored")
def _a_slot_is_freed_twice(patch: pytest.MonkeyPatch) -> None:
    """The end of a claim frees its slot, and the return of the item frees it again."""

    _change_moves(patch, lambda _, state, n: min(n, 2 * n) if state == "claimed" else n)


@_found_by("may go on, and is held back", "they are stuck")
def _nobody_hands_the_slot_over(patch: pytest.MonkeyPatch) -> None:
    """The end of a claim leaves its group held back."""
    patch.setattr(Groups, "_goes_on", lambda *_: False)


@_found_by("may go on, and is held back", "slots: stored")
def _a_sweep_frees_no_slot(patch: pytest.MonkeyPatch) -> None:
    """A lease that is over leaves its slot taken."""

    def unless_over(why: str, state: str, n: int) -> int:
        return 0 if (why, state) == ("lease over", "claimed") else n

    _change_moves(patch, unless_over)


@_found_by("is held back, and has a turn")
def _held_groups_keep_their_turns(patch: pytest.MonkeyPatch) -> None:
    def hold(self: Any, tr: Any, group: str, *_: Any) -> None:
        tr[self._held(group)] = b""

    patch.setattr(Groups, "_hold", hold)


@_found_by("is held back, and has a turn")
def _pushes_give_turns_to_held_groups(patch: pytest.MonkeyPatch) -> None:
    def stored(stored: Any) -> Any:
        return lambda self, *args: stored(_with(self, _held=lambda *_: b"\x00nothing"), *args)

    _change(patch, Groups, "_begin_turn", stored)


@_found_by("may not go on, and has turns", "is paused, and was claimed")
def _a_pause_holds_nothing(patch: pytest.MonkeyPatch) -> None:
    def running(read: Any) -> Any:
        return lambda *args: read(*args)._replace(paused=False)

    _change(patch, groups, "read_settings", running)


@_found_by("may not go on, and has turns", "may go on, and is held back")
def _limits_wait_for_the_next_claim(patch: pytest.MonkeyPatch) -> None:
    """A new limit of a group holds nothing back, and releases nothing."""

    def change(change: Any) -> Any:
        return lambda self, *args: change(_with(self, settle=lambda *_: None), *args)

    _change(patch, Groups, "set", change)


@_found_by("held groups of a cleared queue", "may not go on, and has turns")
def _a_cleared_queue_forgets_its_pauses(patch: pytest.MonkeyPatch) -> None:
    _clears(patch, "held_groups")


@_found_by("the pass of")
def _released_groups_catch_up(patch: pytest.MonkeyPatch) -> None:
    """A group that was held back goes on with its own pass."""

    def release(self: Any, tr: Any, group: str) -> None:
        layout = self._layout
        for rest, pass_ in self._passes(tr, group).items():
            tr[layout.turn_key(layout.turns, rest, pass_, group)] = b""
        tr.clear(self._held(group))

    patch.setattr(Groups, "_release", release)


# Rates


@_found_by("are started in", "may not go on, and has turns")
def _rates_are_off_by_one(patch: pytest.MonkeyPatch) -> None:
    def room(room: Any) -> Any:
        return lambda self, tr, now, group, rate, n=0: room(
            self, tr, now, group, (rate[0] + 1, rate[1]), n
        )

    _change(patch, Starts, "room", room)


@_found_by("are started in")
def _clocks_decide_what_is_over(patch: pytest.MonkeyPatch) -> None:
    """A client whose clock is ahead forgets the starts of others too early."""
    patch.setattr(rates, "_age", lambda *_: 1 << 62)


@_found_by("are started in")
def _versions_decide_what_is_over(patch: pytest.MonkeyPatch) -> None:
    """All starts before a recovery are forgotten."""
    _change(patch, Layout, "unpack_start_key", lambda of: lambda self, key: (0, of(self, key)[1]))


@_found_by("are started in")
def _starts_conflict_with_nothing(patch: pytest.MonkeyPatch) -> None:
    """Two clients start the last item that a rate allows."""
    _change(patch, Starts, "room", _unseen)


@_found_by("they are stuck")
def _no_timer_ends_a_hold(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Groups, "end_holds", lambda *_: 0)


@_found_by("they are stuck", "may go on, and is held back", "over its rate, and has no timer")
def _a_cleared_queue_forgets_its_timers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Groups, "settle_all", lambda *_: None)


# The rate of the queue


@_found_by("of the queue are started in")
def _the_rate_of_the_queue_is_off_by_one(patch: pytest.MonkeyPatch) -> None:
    _change(patch, QueueRate, "room", lambda room: lambda *args: room(*args[:-1], args[-1] - 1) + 1)


@_found_by("of the queue are started in")
def _pops_look_for_no_rate_of_the_queue(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueRate, "room_to_pop", lambda self, tr, now, n: n)


@_found_by("of the queue are started, and")
def _pops_are_no_starts_of_the_queue(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueRate, "note_popped", lambda *_: None)


@_found_by("of the queue are started in")
def _a_cleared_queue_begins_a_new_window(patch: pytest.MonkeyPatch) -> None:
    _clears(patch, "starts", "start_counts")


@_found_by("the queue is over its rate, and has no timer")
def _no_timer_for_the_rate_of_the_queue(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueRate, "_set_timer", lambda *_: None)


@_found_by("the queue is over its rate, and has no timer")
def _the_timer_of_the_queue_looks_at_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueRate, "end_hold", lambda *_: None)


@_found_by("the queue is over its rate, and has no timer", "starts of a queue without a rate")
def _nobody_follows_a_new_rate_of_the_queue(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueRate, "change", lambda *_: None)


# Full groups


def _change_rooms(patch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    def begin(begin: Any) -> Any:
        def changed(*args: Any) -> Any:
            begun = begin(*args)

            def finish() -> Any:
                return {group: change(room) for group, room in begun().items()}

            return begun and finish

        return changed

    _change(patch, Bounds, "begin", begin)


@_found_by("items more than may be")
def _bounds_are_off_by_one(patch: pytest.MonkeyPatch) -> None:
    _change_rooms(patch, lambda room: room._replace(bound=room.bound + 1))


@_found_by("and there was room all the time")
def _a_group_is_full_too_early(patch: pytest.MonkeyPatch) -> None:
    _change_rooms(patch, lambda room: room._replace(taken=room.taken + 1))


@_found_by("items more than may be")
def _two_pushes_take_the_last_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Bounds, "_take", lambda *_: None)


@_found_by("items more than may be")
def _claimed_items_take_no_place(patch: pytest.MonkeyPatch) -> None:
    _change(patch, Layout, "counters_of_group", lambda of: lambda *args: of(*args)[:1])


@_found_by("delays: stored")
def _delayed_items_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    _change_moves(patch, lambda _, state, n: min(0, n) if state == "delayed" else n)


@_found_by("delays: stored")
def _due_items_stay_counted(patch: pytest.MonkeyPatch) -> None:
    _change_moves(patch, lambda _, state, n: max(0, n) if state == "delayed" else n)


@_found_by("items more than may be")
def _retried_dead_letters_take_no_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Bounds, "reserve", lambda *_, **__: None)


@_found_by("items more than may be")
def _bounds_may_change_meanwhile(patch: pytest.MonkeyPatch) -> None:
    """A push does not see that the bound of its group was just set."""
    _change(
        patch, bounds, "begin_settings", lambda begin: lambda tr, *args: begin(tr.snapshot, *args)
    )
