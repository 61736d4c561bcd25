"""Pushes to a group that is full: they are refused, or they replace the items that wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from fdbqueue.errors import QueueFull
from fdbqueue.layout.items import GroupSettings, ItemRow, decode_group_settings
from fdbqueue.layout.keys import WANT_ALL
from fdbqueue.layout.values import decode_count
from fdbqueue.operations.limits.bounds import Places
from fdbqueue.types import ReadTransaction, State, Transaction

if TYPE_CHECKING:
    from fdbqueue.operations.items import Items, NewItem

_MAX_REPLACED = 100  # items that one push cancels


class Room(NamedTuple):
    """How many items a group has, and how many it may have."""

    taken: int
    bound: int


Cancel: TypeAlias = "Callable[[Transaction, int, ItemRow, str], bool]"
"""A function of a transaction, the time, an item, and why it ends: `Changes.cancel`."""

REPLACED = "a newer item of its group has replaced it"
"""Why an item that waited was cancelled by a push."""


class FullGroups:
    """The bounds of the groups of one queue. Each method is part of a transaction.

    In a group with a `max_size`, a push takes a place for each item that it adds, as in a bounded
    queue (see `Pusher`): ready, delayed and claimed items count. A push reads their numbers in its
    own snapshot.

    In a group with `latest`, a push cancels the items that waited before it, and such pushes
    conflict with each other.

    The options of a queue say whether any of its groups may be full. Only then does a push read the
    settings of its groups. It conflicts with changes of them.
    """

    def __init__(self, items: Items, places: Places, cancel: Cancel) -> None:
        self._layout = items.layout
        self._items = items
        self._places = places
        self._cancel = cancel

    # Read

    def begin(
        self, tr: ReadTransaction, items: Iterable[NewItem]
    ) -> Callable[[], dict[str, GroupSettings]]:
        """Start to read which of the groups of items may be full.

        Returns:
            A function that waits for the reads and returns the settings of these groups.
        """
        groups = dict.fromkeys(item.level.group for item in items if item.level.group is not None)
        if not groups:
            return dict
        begun = self._begin_settings(tr, groups)
        return lambda: {group: each for group, each in begun().items() if each.may_be_full}

    def _begin_settings(
        self, tr: ReadTransaction, groups: Iterable[str]
    ) -> Callable[[], dict[str, GroupSettings]]:
        key, space = self._layout.group_key, self._layout.group_settings
        for_all = tr[key(space, None)]
        own = {group: tr[key(space, group)] for group in groups}

        def finish() -> dict[str, GroupSettings]:
            default = decode_group_settings(for_all.value)
            return {
                group: decode_group_settings(read.value).over(default)
                for group, read in own.items()
            }

        return finish

    def rooms(self, tr: Transaction, settings: dict[str, GroupSettings]) -> dict[str, Room]:
        """Return how many items the groups that have a bound have, and may have."""
        pending = {
            group: (self._begin_count(tr.snapshot, group), each.max_size)
            for group, each in settings.items()
            if each.max_size is not None and not each.latest
        }
        return {group: Room(count(), bound) for group, (count, bound) in pending.items()}

    def _begin_count(self, reads: ReadTransaction, group: str) -> Callable[[], int]:
        """Start to count the ready, delayed and claimed items of a group."""
        counters = [reads[key] for key in self._layout.group_counters(group)]
        delayed = reads.get_range(*self._layout.group_delays_range(group), streaming_mode=WANT_ALL)
        return lambda: sum(decode_count(each.value) for each in (*counters, *delayed))

    # Refuse

    def take(self, tr: Transaction, group: str, room: Room, n: int) -> None:
        """Take `n` places in a group that has room for them."""
        prefix = self._layout.group_key(self._layout.group_places, group)
        self._places.take(tr, prefix, room.taken, room.bound, n)

    def reserve(self, tr: Transaction, group: str | None) -> bool:
        """Take a place for one item in its group; return whether only the latest item waits there.

        Raises:
            QueueFull: No place is free.
        """
        if group is None:
            return False
        settings = self._begin_settings(tr, [group])()
        for room in self.rooms(tr, settings).values():
            if room.taken >= room.bound:
                self._rely_on_full(tr, group)
                raise QueueFull(room.bound, 1, group)
            self.take(tr, group, room, 1)
        return settings[group].latest is True

    def rely_on_full(self, tr: Transaction, items: Iterable[NewItem]) -> None:
        """Conflict with every operation that frees a place in the groups of some items."""
        for group in self.rooms(tr, self.begin(tr, items)()):
            self._rely_on_full(tr, group)

    def _rely_on_full(self, tr: Transaction, group: str) -> None:
        for key in self._layout.group_counters(group):
            tr.add_read_conflict_key(key)
        tr.add_read_conflict_range(*self._layout.group_delays_range(group))

    def refusal(
        self, tr: Transaction, items: list[NewItem], must_be_full: bool
    ) -> QueueFull | None:
        """Return the error of items that were refused if a group has no room for its items.

        With `must_be_full` false, a group with a bound suffices: it may have room by now.
        """
        wanted = Counter(item.level.group for item in items)
        rooms = self.rooms(tr, self.begin(tr, items)())
        full = [each for each, room in rooms.items() if room.taken + wanted[each] > room.bound]
        for group in full or ([] if must_be_full else rooms):
            return QueueFull(rooms[group].bound, wanted[group], group)
        return None

    # Replace

    def begin_replacing(self, tr: Transaction, groups: Iterable[str]) -> None:
        """Conflict with other pushes that replace the waiting items of these groups."""
        for group in groups:
            key = self._layout.group_key(self._layout.group_places, group)
            tr.add_read_conflict_key(key)
            tr.add_write_conflict_key(key)

    def replace(self, tr: Transaction, now: int, group: str, kept: set[bytes], n: int) -> None:
        """Cancel the waiting items of a group, except those in `kept`.

        A job that has stored steps has begun, and stays. At most 100 older items are cancelled.

        Args:
            tr: A transaction.
            now: The time in milliseconds since 1970.
            group: The group.
            kept: The keys of the items that stay.
            n: How many items the transaction has pushed to the group.
        """
        layout, left = self._layout, _MAX_REPLACED + n - 1
        spaces: tuple[tuple[State, bytes], ...] = (
            ("ready", layout.group_members),
            ("delayed", layout.group_delays),
        )
        for state, space in spaces:
            for row in [*tr.snapshot.get_range(*layout.range_of(layout.group_key(space, group)))]:
                _, rest = layout.unpack_group_key(space, row.key)
                prefix = layout.group_level_prefix(layout.prefix_of[state], group, rest)
                level = layout.range_of(prefix)
                for each in [*tr.snapshot.get_range(*level, limit=left + len(kept))]:
                    key = layout.items + each.key[len(layout.prefix_of[state]) :]
                    found = self._items.located(state, key, each.value)
                    if left > 0 and key not in kept and not found.item.header.steps:
                        tr.add_read_conflict_key(each.key)
                        self._cancel(tr, now, found, REPLACED)
                        left -= 1
