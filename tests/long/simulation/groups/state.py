"""The rows of a queue at one version, as far as groups are concerned."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from math import inf
from typing import Any, NamedTuple, TypeAlias

from fdb import tuple as fdb_tuple

from fdbqueue import PriorityQueue
from fdbqueue.layout.items import GroupSettings, decode_group_settings
from fdbqueue.layout.values import decode_count, decode_metadata, decode_options, header_of
from fdbqueue.queue.base import store_of

_IDLE = b"idle"
PASS_OF_ONE = 1 << 20
"""What an item of cost 1 adds to the pass of a group of weight 1."""


Stamp: TypeAlias = tuple[int, int]


class Line(NamedTuple):
    """The ready items of a group in a priority; the group is `None` for those without one."""

    priority: int
    group: str | None


class Place(NamedTuple):
    """Where an item is.

    Attributes:
        line: Its line while it is ready.
        state: Its state; `"staged"` for a pop that has not taken it yet.
        token: The identity of its claim.
        lease_end: The version at which its lease ends.
        is_cancelled: Whether it was cancelled while it was claimed.
        cost: What it counts for in the share of its group.
    """

    line: Line
    state: str
    token: bytes = b""
    lease_end: int = 0
    is_cancelled: bool = False
    cost: float = 1


@dataclass
class State:
    """A queue at one version.

    Attributes:
        places: Where each item is, by its position.
        ready: The positions of the items of each line, in order.
        running: How many items each group has claimed.
        turns: The turns: priority, pass and group.
        passes: The pass of each line.
        is_idle: The priorities whose items without a group were all taken.
        taken: The highest pass of an item that was taken, by priority.
        settings: What was set for each group; `None` for all groups, and an empty text for the
            items without one.
        held: The groups that are held back.
        awaited: The positions of the failed items for which sequences wait.
        starts: The starts of each group, and with `None` those of the queue: how many items, by
            time in milliseconds and read version.
        start_counts: How many items of each group, or of the queue, are said to have been started.
        rate: The rate of the queue; its time is in milliseconds.
    """

    places: dict[bytes, Place] = field(default_factory=dict)
    ready: dict[Line, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    running: Counter[str | None] = field(default_factory=Counter)
    turns: set[tuple[int, int, str]] = field(default_factory=set)
    passes: dict[Line, int] = field(default_factory=dict)
    is_idle: set[int] = field(default_factory=set)
    taken: Counter[int] = field(default_factory=Counter)
    settings: dict[str | None, GroupSettings] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    awaited: dict[str, bytes] = field(default_factory=dict)
    starts: dict[str | None, dict[Stamp, int]] = field(default_factory=dict)
    start_counts: dict[str | None, int] = field(default_factory=dict)
    rate: tuple[int, float] | None = None

    def of(self, group: str | None) -> GroupSettings:
        """Return the settings that hold for a group."""
        for_all = self.settings.get(None, GroupSettings())
        return self.settings.get(group or "", GroupSettings()).over(for_all)

    def steps(self, group: str | None, positions: Iterable[bytes]) -> list[int]:
        """Return what each of these items adds to the pass of a group."""
        costs = (self.places[position].cost for position in positions)
        return [max(1, round(PASS_OF_ONE * cost / (self.of(group).weight or 1))) for cost in costs]

    def of_group(self, group: str | None, *states: str) -> set[bytes]:
        """Return the positions of the items of a group that are in some states."""
        return {
            position
            for position, place in self.places.items()
            if place.line.group == group and place.state in states
        }

    def room_for(self, group: str | None) -> float:
        """Return how many more items may be pushed to a group."""
        settings = self.of(group)
        if group is None or settings.max_size is None:
            return inf
        return settings.max_size - len(self.of_group(group, "ready", "delayed", "claimed"))

    def room(self, group: str | None) -> float:
        """Return how many more items of a group may be taken."""
        settings = self.of(group)
        if group is None:
            return inf
        if settings.paused or (settings.is_sequence and group in self.awaited):
            return 0
        limit, rate = settings.concurrency, settings.rate
        may_run = inf if limit is None else limit - self.running[group]
        may_start = inf if rate is None else rate[0] - self.start_counts.get(group, 0)
        return max(0, min(may_run, may_start))


def read_state(db: Any, queue: PriorityQueue[Any]) -> State:
    """Return the present state of a queue."""
    store = store_of(queue)
    layout, levels, state = store.layout, store.levels, State()

    def line(position: bytes) -> Line:
        level = levels.level_of(layout.items + position)
        assert isinstance(level.priority, int)
        return Line(level.priority, level.group)

    everything = {row.key: row.value for row in db[queue.subspace.range()]}

    keys = sorted(everything)

    def within(prefix: bytes) -> list[tuple[bytes, bytes]]:
        following = keys[bisect_left(keys, prefix) :]
        found = takewhile(lambda key: key.startswith(prefix), following)
        return [(key[len(prefix) :], everything[key]) for key in found]

    def unpacked(prefix: bytes) -> list[tuple[Any, bytes]]:
        return [(fdb_tuple.unpack(key), value) for key, value in within(prefix)]

    for name, prefix in layout.prefix_of.items():
        for position, value in within(prefix):
            place = Place(line(position), name, cost=_cost(name, value))
            if name == "ready":
                state.ready[place.line].append(position)
            elif name == "claimed":
                (token, lease_end, *_), content = decode_metadata(value)
                cancelled = header_of(content)[0].cancelled is not None
                place = place._replace(token=token, lease_end=lease_end, is_cancelled=cancelled)
                state.running[place.line.group] += 1
            state.places[position] = place
    for key, value in layout.staged_items(db.get_range(*layout.range_of(layout.results))):
        position = layout.position(key)
        state.places[position] = Place(line(position), "staged", cost=_cost("ready", value))
    # In later shards, the priority follows the shard.
    state.turns = {(*key[-3:],) for key, _ in unpacked(layout.turns)}
    for (group, *_, priority), value in unpacked(layout.group_passes):
        state.passes[Line(priority, group)] = decode_count(value.removesuffix(_IDLE) or None)
        if value.endswith(_IDLE):
            state.is_idle.add(priority)
    for (*_, priority), value in unpacked(layout.taken_passes):
        state.taken[priority] = max(state.taken[priority], decode_count(value))
    for (group,), value in unpacked(layout.group_settings):
        state.settings[group] = decode_group_settings(value)
    state.awaited = {group: value for (group,), value in unpacked(layout.awaited_retries)}
    state.held = {group for (group,), _ in unpacked(layout.held_groups)}
    for (group, *stamp), value in unpacked(layout.starts):
        time, version = stamp
        state.starts.setdefault(group, {})[time, version] = decode_count(value)
    for (group,), value in unpacked(layout.start_counts):
        state.start_counts[group] = decode_count(value)
    if layout.options in everything:
        rate = decode_options(everything[layout.options]).rate
        state.rate = rate and (rate[0], 1000 * rate[1])
    return state


def _cost(state: str, value: bytes) -> float:
    """Return the cost of an item, given its row in a state."""
    if state != "ready":
        value = decode_metadata(value)[1]
    return header_of(value)[0].cost
