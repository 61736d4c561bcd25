"""The bounds of a queue and its groups: a push over one is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from fdbqueue.errors import QueueFull
from fdbqueue.layout.values import decode_count, encode_count
from fdbqueue.operations.limits.places import RandRange, take_places
from fdbqueue.operations.limits.turns import begin_settings
from fdbqueue.types import Options, Transaction

if TYPE_CHECKING:
    from fdbqueue.operations.items import Items, NewItem
    from fdbqueue.operations.push import PushRequest

Rooms: TypeAlias = "dict[str | None, Room]"
"""The rooms of bounded groups, and of the queue as `None`."""


class Room(NamedTuple):
    """The size of a queue or group, and its bound."""

    taken: int
    bound: int

    @property
    def left(self) -> int:
        """The room left."""
        return max(0, self.bound - self.taken)


class Bounds:
    """The bounds of one queue and its groups.

    An item occupies one place from its push until it ends. Only pushes, schedules and retries of
    dead letters take places; `put_back` may exceed the bound.
    """

    def __init__(self, items: Items, randrange: RandRange) -> None:
        self._layout = items.layout
        self._items = items
        self._randrange = randrange

    def begin(
        self, tr: Transaction, options: Options, groups: Iterable[str | None]
    ) -> Callable[[], Rooms]:
        """Start to read bounds of the queue and groups, if any."""
        names = [group for group in {*groups} if group is not None and options.limited_groups]
        of_queue = None if options.max_size is None else self._begin_count(tr, None)
        begun = begin_settings(tr, self._layout, names)

        def finish() -> Rooms:
            settings = begun()
            counts = {
                group: (self._begin_count(tr, group), bound)
                for group in names
                if (bound := settings[group].max_size) is not None
            }
            rooms: Rooms
            rooms = {group: Room(count(), bound) for group, (count, bound) in counts.items()}
            if of_queue is not None and options.max_size is not None:
                rooms[None] = Room(of_queue(), options.max_size)
            return rooms

        return finish

    def _begin_count(self, tr: Transaction, group: str | None) -> Callable[[], int]:
        if group is None:
            totals = self._items.begin_counters(tr.snapshot)
            return lambda: totals().unfinished
        counters = [tr.snapshot[key] for key in self._layout.counters_of_group(group)]
        return lambda: sum(decode_count(each.value) for each in counters)

    # Take

    def fitting(
        self, tr: Transaction, pushes: Sequence[PushRequest], rooms: Mapping[str | None, Room]
    ) -> list[list[NewItem]]:
        """Take places for the fitting items of each push; return these items."""
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

    def reserve(self, tr: Transaction, group: str | None, *, in_queue: bool = True) -> None:
        """Take a place for one item in its group and in the queue; raise `QueueFull`."""
        rooms = self.begin(tr, self._items.options.read(tr), [group])()
        if not in_queue:
            rooms.pop(None, None)
        for each, room in rooms.items():
            if not room.left:
                self._rely_on_full(tr, each)
                raise QueueFull(room.bound, 1, each)
        for each, room in rooms.items():
            self._take(tr, each, room, 1)

    def _take(self, tr: Transaction, group: str | None, room: Room, n: int) -> None:
        layout = self._layout
        prefix = layout.places if group is None else layout.group_key(layout.group_places, group)
        take_places(tr, prefix, room.taken, room.bound, n, self._randrange)

    # Refuse

    def rely_on_full(self, tr: Transaction, items: list[NewItem]) -> None:
        """Conflict with every operation that makes room."""
        for group in self.begin(tr, self._items.options.agreed, _numbers(items))():
            self._rely_on_full(tr, group)

    def _rely_on_full(self, tr: Transaction, group: str | None) -> None:
        layout = self._layout
        for key in [layout.tallies] if group is None else layout.counters_of_group(group):
            tr.add_read_conflict_key(key)

    def refusal(self, tr: Transaction, items: list[NewItem]) -> QueueFull | None:
        """Return the error of a refused push; `None` if no bound is left."""
        numbers = _numbers(items)
        rooms = self.begin(tr, self._items.options.agreed, numbers)()
        full = [group for group, room in rooms.items() if room.left < numbers[group]]
        # There may be room by now: then the queue is named, if it has a bound.
        for group in full or sorted(rooms, key=lambda each: each is not None):
            return QueueFull(rooms[group].bound, numbers[group], group)
        return None


def _numbers(items: Sequence[NewItem]) -> Counter[str | None]:
    numbers = Counter(item.level.group for item in items)
    numbers[None] = len(items)
    return numbers


def _number_that_fits(items: Sequence[NewItem], left: Mapping[str | None, int]) -> int:
    left = {**left}
    for number, item in enumerate(items):
        for group in {None, item.level.group} & left.keys():
            left[group] -= 1
            if left[group] < 0:
                return number
    return len(items)
