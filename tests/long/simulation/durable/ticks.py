"""The ticks of schedules: which ones must have been pushed, and which ones were.

Each change of a schedule has logged its state before and after it. The ticks between two changes
follow from these: with `missed="all"` and `overlap="allow"` all that come after another, with any
other policy some of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SCHEDULES: dict[str, list[dict[str, Any]]] = {
    "all": [{"missed": "all"}],
    "latest": [{"missed": "latest"}, {"missed": "skip"}],
    "one by one": [{"missed": "all", "overlap": "queue"}, {"overlap": "skip"}],
}
"""The names of all schedules, and the options that each of them may have."""

ONE_BY_ONE = "one by one"
"""The schedule whose items do not overlap."""

_SECOND = 1000  # milliseconds, of which all intervals are multiples


@dataclass(eq=False)
class _Schedule:
    """One schedule.

    Attributes:
        after: Its state after the last change.
        expected: All ticks that must have been pushed.
        items: The items of each tick.
        by_hand: The items that were pushed by hand.
    """

    after: dict[str, Any] | None = None
    expected: list[int] = field(default_factory=list)
    items: dict[int, set[str]] = field(default_factory=dict)
    by_hand: set[str] = field(default_factory=set)


class Ticks:
    """The ticks of all schedules of a simulation."""

    def __init__(self) -> None:
        self._schedules: dict[str, _Schedule] = {}

    def _of(self, name: str) -> _Schedule:
        return self._schedules.setdefault(name, _Schedule())

    @property
    def n(self) -> int:
        """How many ticks have been pushed."""
        return sum(len(schedule.items) for schedule in self._schedules.values())

    def note_item(self, name: str, tick: int, item: str) -> None:
        """Note that the item of a tick was claimed."""
        self._of(name).items.setdefault(tick, set()).add(item)

    def note_change(
        self,
        name: str,
        act: str,
        item: str | None,
        before: dict[str, Any] | None,
        after: dict[str, Any] | None,
        begun: int,
        ended: int,
    ) -> str | None:
        """Note a change of a schedule; return what is wrong with it.

        Args:
            name: The schedule.
            act: The change.
            item: The item that it has pushed by hand.
            before: The state before it.
            after: The state after it.
            begun: The time before it, in milliseconds.
            ended: The time after it.
        """
        known = self._of(name)
        known.after, last = after, known.after
        if item is not None:
            known.by_hand.add(item)
        if before is None or last is None:
            return None if before == last else f"the schedule was {last}"
        every, n = before["every"], before["pushed"] - last["pushed"]
        if last["next"] is None:
            if n:
                return "ticks were pushed while it was paused"
        elif name == "all":
            known.expected += range(last["next"], last["next"] + n * every, every)
            if before["next"] != last["next"] + n * every:
                return f"the next tick is not the one after {n} ticks from {last['next']}"
        if after is None or after["next"] is None:
            return None
        if before["next"] is not None and after["every"] == every:
            return None if after["next"] == before["next"] else "another tick is the next one"
        # The library has read the clock between the two times.
        first, last_one = (
            _next(after["every"], max(time, before["last"] or 0)) for time in (begun, ended)
        )
        return None if first <= after["next"] <= last_one else f"the next tick is not {first}"

    def problems(self) -> list[str]:
        """Return what is wrong with the ticks that were pushed."""
        found: list[str] = []
        for name, schedule in self._schedules.items():
            ticks: list[int] = []
            for tick, items in sorted(schedule.items.items()):
                ticks += [tick] * len(items - schedule.by_hand)
            if len({*ticks}) < len(ticks):
                found.append(f"{name}: ticks were pushed twice: {ticks}")
            if any(tick % _SECOND for tick in ticks):
                found.append(f"{name}: ticks are not on the grid: {ticks}")
            if name == "all" and ticks != schedule.expected:
                found.append(f"{name}: {ticks} were pushed, and should be {schedule.expected}")
        return found


def _next(every: int, after: int) -> int:
    """Return the first multiple of an interval after a time."""
    return (after // every + 1) * every
