"""The rows of a queue at one version, as far as groups are concerned."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fdb import tuple as fdb_tuple

from fdbqueue import PriorityQueue
from fdbqueue.layout.items import GroupSettings, decode_group_settings
from fdbqueue.layout.values import decode_claim, decode_count, header_of
from fdbqueue.queue.base import store_of

_IDLE = b"idle"
PASS_OF_ONE = 1 << 20
"""What an item adds to the pass of a group of weight 1."""


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
    """

    line: Line
    state: str
    token: bytes = b""
    lease_end: int = 0
    is_cancelled: bool = False


@dataclass
class State:
    """A queue at one version.

    Attributes:
        places: Where each item is, by its position.
        ready: The positions of the items of each line, in order.
        running: How many items each group has claimed.
        turns: The turns: priority, pass and group.
        members: The lines that are known to have items.
        passes: The pass of each line.
        is_idle: The priorities whose items without a group were all taken.
        idle: The lines that are known to have had items, with their passes.
        taken: The highest pass of an item that was taken, by priority.
        settings: What was set for each group; `None` for all groups, and an empty text for the
            items without one.
        held: The groups that are held back.
        awaited: The positions of the failed items for which sequences wait.
        counts: How many ready items each group is said to have.
        slots: How many claimed items each group is said to have.
    """

    places: dict[bytes, Place] = field(default_factory=dict)
    ready: dict[Line, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    running: Counter[str | None] = field(default_factory=Counter)
    turns: set[tuple[int, int, str]] = field(default_factory=set)
    members: set[Line] = field(default_factory=set)
    passes: dict[Line, int] = field(default_factory=dict)
    is_idle: set[int] = field(default_factory=set)
    idle: set[tuple[int, int, str]] = field(default_factory=set)
    taken: Counter[int] = field(default_factory=Counter)
    settings: dict[str | None, GroupSettings] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    awaited: dict[str, bytes] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)

    def of(self, group: str | None) -> GroupSettings:
        """Return the settings that hold for a group."""
        for_all = self.settings.get(None, GroupSettings())
        return self.settings.get(group or "", GroupSettings()).over(for_all)

    def step(self, group: str | None) -> int:
        """Return what an item adds to the pass of a group."""
        return max(1, round(PASS_OF_ONE / (self.of(group).weight or 1)))

    def may_go_on(self, group: str | None, running: Counter[str | None] | None = None) -> bool:
        """Return whether another item of a group may be taken."""
        settings = self.of(group)
        n = (self.running if running is None else running)[group]
        is_full = settings.concurrency is not None and n >= settings.concurrency
        is_full |= settings.is_sequence and group in self.awaited
        return group is None or not (settings.paused or is_full)


def read_state(db: Any, queue: PriorityQueue[Any]) -> State:
    """Return the present state of a queue."""
    store = store_of(queue)
    layout, levels, state = store.layout, store.levels, State()

    def line(position: bytes) -> Line:
        level = levels.level_of(layout.items + position)
        assert isinstance(level.priority, int)
        return Line(level.priority, level.group)

    rows = {row.key: row.value for row in db[queue.subspace.range()]}

    def within(prefix: bytes) -> list[tuple[bytes, bytes]]:
        found = [(key, value) for key, value in rows.items() if key.startswith(prefix)]
        return [(key[len(prefix) :], value) for key, value in sorted(found)]

    def unpacked(prefix: bytes) -> list[tuple[Any, bytes]]:
        return [(fdb_tuple.unpack(key), value) for key, value in within(prefix)]

    for name, prefix in layout.prefix_of.items():
        for position, value in within(prefix):
            place = Place(line(position), name)
            if name == "ready":
                state.ready[place.line].append(position)
            elif name == "claimed":
                claimed = decode_claim(value)
                cancelled = header_of(claimed.value)[0].cancelled is not None
                place = place._replace(
                    token=claimed.token, lease_end=claimed.lease_end, is_cancelled=cancelled
                )
                state.running[place.line.group] += 1
            state.places[position] = place
    for key, _ in layout.staged_items(db.get_range(*layout.range_of(layout.results))):
        position = layout.position(key)
        state.places[position] = Place(line(position), "staged")
    state.turns = {key for key, _ in unpacked(layout.turns)}
    state.idle = {key for key, _ in unpacked(layout.idle_groups)}
    state.members = {
        Line(priority, group) for (group, priority), _ in unpacked(layout.group_members)
    }
    for (group, priority), value in unpacked(layout.group_passes):
        state.passes[Line(priority, group)] = decode_count(value.removesuffix(_IDLE) or None)
        if value.endswith(_IDLE):
            state.is_idle.add(priority)
    for (priority,), value in unpacked(layout.taken_passes):
        state.taken[priority] = decode_count(value)
    for (group,), value in unpacked(layout.group_settings):
        state.settings[group] = decode_group_settings(value)
    state.awaited = {group: value for (group,), value in unpacked(layout.awaited_retries)}
    state.held = {group for (group,), _ in unpacked(layout.held_groups)}
    state.counts = {group: decode_count(value) for (group,), value in unpacked(layout.group_counts)}
    state.slots = {group: decode_count(value) for (group,), value in unpacked(layout.group_slots)}
    return state
