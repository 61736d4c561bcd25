"""The bounds of a queue and of its groups: a push over one is refused, or replaces older items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from fdbqueue.errors import QueueFull
from fdbqueue.layout.items import ItemRow
from fdbqueue.layout.keys import WANT_ALL
from fdbqueue.layout.values import decode_count, encode_count
from fdbqueue.operations.limits.places import Places
from fdbqueue.operations.limits.turns import begin_settings
from fdbqueue.types import Options, State, Transaction

if TYPE_CHECKING:
    from fdbqueue.operations.items import Items, NewItem
    from fdbqueue.operations.push import PushRequest

_MAX_REPLACED = 100  # items that one push cancels

REPLACED = "a newer item of its group has replaced it"
"""Why an item that waited was cancelled by a push."""

Cancel: TypeAlias = "Callable[[Transaction, int, ItemRow, str], bool]"
"""A function of a transaction, the time, an item, and why it ends: `Changes.cancel`."""


class Room(NamedTuple):
    """How many items a queue or a group has, and how many it may have."""

    taken: int
    bound: int

    @property
    def left(self) -> int:
        """How many more items it may have."""
        return max(0, self.bound - self.taken)


class Limited(NamedTuple):
    """The bounds of a queue and of some of its groups, as one transaction sees them.

    Attributes:
        rooms: The rooms of the groups that have a bound, and of the queue, as `None`.
        latest: The groups in which only the latest item waits.
    """

    rooms: dict[str | None, Room]
    latest: list[str]


class Bounds:
    """The bounds of one queue and of its groups. Each method is part of a transaction.

    In a bounded queue, a transaction takes one place for each item that it adds. An item occupies a
    place from its push until it ends: while it is ready, delayed or claimed. Pops,
    acknowledgements, expiry, removal and death end an item. A claim, its release, a retried failure
    and an expired lease only move it, and the number of taken places stays the same. So only
    pushes, schedules and retries of dead letters take places. (`put_back` takes none: it may exceed
    the bound.) The transaction reads the counters in its own snapshot, so their sum is exact.

    A group with a `max_size` has places of its own. In a group with `latest`, a push cancels the
    items that waited before it, and such pushes conflict with each other. The options of a queue
    say whether any group has such a setting. Only then does a push read the settings of its groups,
    and conflict with changes of them. Unbounded queues pay nothing.

    `Places` says how pushes keep to a bound without conflicting with each other far from it. All
    operations other than those above leave the number of taken places unchanged or lower it.
    """

    def __init__(self, items: Items, places: Places, cancel: Cancel) -> None:
        self._layout = items.layout
        self._items = items
        self._places = places
        self._cancel = cancel

    def begin(
        self, tr: Transaction, options: Options, groups: Iterable[str | None]
    ) -> Callable[[], Limited] | None:
        """Start to read the bounds that new items of some groups meet.

        Returns:
            A function that waits for the reads; `None` if the queue and its groups have no bounds.
        """
        if options.max_size is None and not options.limited_groups:
            return None
        names = [group for group in {*groups} if group is not None and options.limited_groups]
        of_queue = None if options.max_size is None else self._begin_count(tr, None)
        begun = begin_settings(tr, self._layout, names)

        def finish() -> Limited:
            settings = begun()
            latest = sorted(group for group in names if settings[group].latest)
            counts = {
                group: (self._begin_count(tr, group), bound)
                for group in names
                if (bound := settings[group].max_size) is not None and group not in latest
            }
            rooms: dict[str | None, Room]
            rooms = {group: Room(count(), bound) for group, (count, bound) in counts.items()}
            if of_queue is not None and options.max_size is not None:
                rooms[None] = Room(of_queue(), options.max_size)
            return Limited(rooms, latest)

        return finish

    def _begin_count(self, tr: Transaction, group: str | None) -> Callable[[], int]:
        """Start to count the ready, delayed and claimed items by a snapshot."""
        if group is None:
            totals = self._items.begin_counters(tr.snapshot)
            return lambda: totals().unfinished
        counters = [tr.snapshot[key] for key in self._layout.group_counters(group)]
        delays = self._layout.group_delays_range(group)
        delayed = tr.snapshot.get_range(*delays, streaming_mode=WANT_ALL)
        return lambda: sum(decode_count(each.value) for each in (*counters, *delayed))

    def _limited(self, tr: Transaction, options: Options, groups: Iterable[str | None]) -> Limited:
        begun = self.begin(tr, options, groups)
        return Limited({}, []) if begun is None else begun()

    # Take

    def fitting(
        self, tr: Transaction, pushes: Sequence[PushRequest], rooms: Mapping[str | None, Room]
    ) -> list[list[NewItem]]:
        """Take places for the items of each push that fit, and return these items."""
        left = {group: room.left for group, room in rooms.items()}
        fitting: list[list[NewItem]] = []
        rejected = 0
        for push in pushes:
            fit = _number_that_fits(push.items, left)
            if fit < len(push.items) and not push.as_many_as_fit:
                fit = 0
            fitting.append(push.items[:fit])
            rejected += len(push.items) - fit
            numbers = _numbers(fitting[-1])
            left = {group: n - numbers[group] for group, n in left.items()}
        for group, room in rooms.items():
            if room.left > left[group]:
                self._take(tr, group, room, room.left - left[group])
        if rejected:
            tr.add(self._layout.total_rejected, encode_count(rejected))
        return fitting

    def reserve(self, tr: Transaction, group: str | None) -> bool:
        """Take a place for one item; return whether only the latest item waits in its group.

        Raises:
            QueueFull: No place is free in the queue or in the group.
        """
        options = self._items.options.read(tr)
        if options is None:
            return False
        rooms, latest = self._limited(tr, options, [group])
        for each, room in rooms.items():
            if not room.left:
                self._rely_on_full(tr, each)
                raise QueueFull(room.bound, 1, each)
        for each, room in rooms.items():
            self._take(tr, each, room, 1)
        return bool(latest)

    def _take(self, tr: Transaction, group: str | None, room: Room, n: int) -> None:
        """Take `n` places, for which there is room."""
        layout = self._layout
        prefix = layout.places if group is None else layout.group_key(layout.group_places, group)
        self._places.take(tr, prefix, room.taken, room.bound, n)

    # Refuse

    def rely_on_full(self, tr: Transaction, items: list[NewItem]) -> None:
        """Conflict with every operation that makes room for items that were refused."""
        for group in self._limited(tr, self._items.options.agreed, _numbers(items)).rooms:
            self._rely_on_full(tr, group)

    def _rely_on_full(self, tr: Transaction, group: str | None) -> None:
        layout = self._layout
        if group is None:
            tr.add_read_conflict_key(layout.tallies)
            return
        for key in layout.group_counters(group):
            tr.add_read_conflict_key(key)
        tr.add_read_conflict_range(*layout.group_delays_range(group))

    def refusal(self, tr: Transaction, items: list[NewItem]) -> QueueFull | None:
        """Return the error of a push of items that were refused; `None` if no bound is left."""
        numbers = _numbers(items)
        rooms = self._limited(tr, self._items.options.agreed, numbers).rooms
        full = [group for group, room in rooms.items() if room.left < numbers[group]]
        # There may be room by now: then the queue is named, if it has a bound.
        for group in full or sorted(rooms, key=lambda each: each is not None):
            return QueueFull(rooms[group].bound, numbers[group], group)
        return None

    # Replace

    def replace(self, tr: Transaction, now: int, group: str, kept: set[bytes], n: int) -> None:
        """Cancel the waiting items of a group, except those in `kept`.

        A job that has stored steps has begun, and stays. At most 100 older items are cancelled.
        This conflicts with other transactions that do so.

        Args:
            tr: A transaction.
            now: The time in milliseconds since 1970.
            group: The group.
            kept: The keys of the items that stay.
            n: How many items the transaction has pushed to the group.
        """
        layout, left = self._layout, _MAX_REPLACED + n - 1
        lock = layout.group_key(layout.group_places, group)
        tr.add_read_conflict_key(lock)
        tr.add_write_conflict_key(lock)
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
                    found = self._items.levels.row(state, key, each.value)
                    if left > 0 and key not in kept and not found.item.header.steps:
                        tr.add_read_conflict_key(each.key)
                        self._cancel(tr, now, found, REPLACED)
                        left -= 1


def _numbers(items: Sequence[NewItem]) -> Counter[str | None]:
    """Return the number of items for each group; `None` stands for the queue, with all of them."""
    numbers = Counter(item.level.group for item in items)
    numbers[None] = len(items)
    return numbers


def _number_that_fits(items: Sequence[NewItem], left: Mapping[str | None, int]) -> int:
    """Return how many of the first items fit, given the numbers of places that are left."""
    left = {**left}
    for number, item in enumerate(items):
        for group in {None, item.level.group} & left.keys():
            left[group] -= 1
            if left[group] < 0:
                return number
    return len(items)
