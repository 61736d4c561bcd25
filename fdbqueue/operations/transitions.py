"""The transitions of items from state to state, and everything that follows from them.

Each operation names the transitions it wants. See `docs/design/transitions.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from fdbqueue.layout.values import (
    MARKS,
    NO_HEADER,
    ZERO,
    encode_count,
    encode_tallies,
)
from fdbqueue.operations.waking import wake, wake_claims
from fdbqueue.types import ENDED, State, Transaction

if TYPE_CHECKING:
    from fdbqueue.layout.batches import End
    from fdbqueue.layout.items import ItemRow
    from fdbqueue.layout.keys import Layout

Why: TypeAlias = Literal[
    "pushed",
    "put back",
    "popped",
    "staged",
    "collected",
    "unstaged",
    "claimed",
    "extended",
    "acked",
    "failed",
    "lease over",
    "returned",
    "buried",
    "due",
    "expired",
    "retried",
    "cancelled",
    "removed",
    "trimmed",
    "updated",
    "marked",
]

_FAILED = {"returned": 1, "failed": 1}
_BACK = {"moved": 1}

TABLE: dict[tuple[Why, State | None, State | None], dict[str, int]] = {
    ("pushed", None, "ready"): {},
    ("pushed", None, "delayed"): {"delayed": 1},
    ("put back", None, "ready"): {"put_back": 1, **_BACK},
    ("popped", "ready", None): {"popped": 1},
    # Items that a leader stages for the pops of other processes count as claimed until then.
    ("staged", "ready", "claimed"): {"claimed": 1},
    ("collected", "claimed", None): {"acked": 1},
    ("unstaged", "claimed", "ready"): {"returned": 1, **_BACK},
    ("claimed", "ready", "claimed"): {"claimed": 1},
    ("extended", "claimed", "claimed"): {},
    ("acked", "claimed", None): {"acked": 1},
    ("acked", "claimed", "done"): {"acked": 1, "done": 1},
    ("failed", "claimed", "ready"): {**_FAILED, "retried": 1, **_BACK},
    ("failed", "claimed", "delayed"): {**_FAILED, "retried": 1, "delayed": 1, **_BACK},
    ("failed", "claimed", "dead"): {**_FAILED, "died": 1, "dead": 1},
    ("lease over", "claimed", "ready"): {**_FAILED, "retried": 1, **_BACK},
    ("lease over", "claimed", "dead"): {**_FAILED, "died": 1, "dead": 1},
    ("returned", "claimed", "ready"): {"returned": 1, **_BACK},
    ("returned", "claimed", "delayed"): {"returned": 1, "delayed": 1, **_BACK},
    ("buried", "claimed", "dead"): {"returned": 1, "died": 1, "dead": 1},
    ("due", "delayed", "ready"): {"delayed": -1},
    ("expired", "ready", None): {"expired": 1},
    ("expired", "delayed", None): {"delayed": -1, "expired": 1},
    ("expired", "claimed", None): {**_FAILED, "expired": 1},
    ("retried", "dead", "ready"): {"dead": -1, "retried": 1, **_BACK},
    ("cancelled", "ready", None): {"removed": 1},
    ("cancelled", "delayed", None): {"removed": 1, "delayed": -1},
    ("cancelled", "ready", "done"): {"removed": 1, "done": 1},
    ("cancelled", "delayed", "done"): {"removed": 1, "delayed": -1, "done": 1},
    ("removed", "ready", None): {"removed": 1},
    ("removed", "delayed", None): {"removed": 1, "delayed": -1},
    ("removed", "dead", None): {"removed": 1, "dead": -1},
    ("removed", "done", None): {"done": -1},
    ("trimmed", "done", None): {"done": -1},
    ("updated", "ready", "ready"): _BACK,
    ("updated", "ready", "delayed"): {"delayed": 1, **_BACK},
    ("updated", "delayed", "ready"): {"delayed": -1, **_BACK},
    ("updated", "delayed", "delayed"): _BACK,
    ("marked", "ready", "ready"): {},
    ("marked", "delayed", "delayed"): {},
    ("marked", "claimed", "claimed"): {},
    ("marked", "dead", "dead"): {},
    ("marked", "done", "done"): {},
}
"""Every transition: why, from which state and to which (`None`: no item), and its change of the
tallies."""

TAKEN: tuple[Why, ...] = ("popped", "claimed", "staged")

_SWEPT = ("due", "lease over", "expired", "trimmed")
"""The transitions whose timers are already cleared."""

_level_of = attrgetter("before.item.level")


class Change(NamedTuple):
    """A transition of one item, perhaps to another position.

    A new item has no `before`, one that is gone no `after`. `end` is for its batches.
    """

    why: Why
    before: ItemRow | None
    after: ItemRow | None
    end: End | None = None


Begin: TypeAlias = Callable[[Transaction, int, Sequence[Change]], Callable[[], None] | None]
"""Starts the reads for some transitions, and adds read conflicts, before anything is written.

The returned function, if any, is called after the rows are written; it waits and writes.
"""

Follow: TypeAlias = Callable[[Transaction, int, Sequence[Change]], None]
"""Writes what follows from some transitions, once the rows are written."""


class Transitions:
    """The transitions of one queue's items.

    Only `history` sees plain items: no header, group or slot, a small payload, neither dead nor
    done. For other items, `groups` reads before the rows are written, and `followers` follow.
    """

    def __init__(
        self,
        layout: Layout,
        history: Begin,
        groups: Begin,
        followers: list[Follow],
    ) -> None:
        self._layout = layout
        self.history = history
        self.groups = groups
        self.followers = followers

    def perform(
        self,
        tr: Transaction,
        now: int,
        changes: Sequence[Change],
        *,
        are_first: bool = False,
        is_marked: bool = False,
    ) -> None:
        """Perform transitions of items that the transaction conflicts on, at most one of each.

        With `are_first`, ready items are the first of their levels in a range that was read, and
        one range per level is cleared. `is_marked` says that the queue has the mark of timers.
        """
        if not changes:
            return
        self.history(tr, now, changes)
        are_plain = all(map(_is_plain, changes))
        finish = None if are_plain else self.groups(tr, now, changes)
        if are_first and len(changes) > 1:
            self._clear_ranges(tr, changes)
        else:
            for change in changes:
                if change.before is not None:
                    self._clear(tr, change, change.before)
        has_timers = False
        for change in changes:
            if change.after is not None:
                has_timers |= self._store(tr, change.why, change.after)
        if has_timers and not is_marked:
            tr[self._layout.scheduled] = b""
        self._count(tr, changes, are_plain)
        if finish is not None:
            finish()
        for follow in () if are_plain else self.followers:
            follow(tr, now, changes)

    def _clear(self, tr: Transaction, change: Change, row: ItemRow) -> None:
        why, _, after, _ = change
        layout, state = self._layout, row.state
        if why == "marked" or (state == "claimed" and not row.token):
            return
        if after is None or after.state != state or after.item.key != row.item.key:
            tr.clear(layout.prefix_of[state] + row.item.key[len(layout.items) :])
        if why not in _SWEPT and (state != "ready" or row.item.header is not NO_HEADER):
            timer = row.timer(layout)
            if timer is not None:
                tr.clear(timer[0])

    def _clear_ranges(self, tr: Transaction, changes: Sequence[Change]) -> None:
        for level, in_level in groupby(changes, _level_of):
            rows = [change.before for change in in_level if change.before is not None]
            tr.clear_range(level.begin, rows[-1].key + b"\x00")
            for row in rows:
                if row.item.header.expires is not None and (timer := row.timer(self._layout)):
                    tr.clear(timer[0])

    def _store(self, tr: Transaction, why: Why, row: ItemRow) -> bool:
        """Store a row and its timer; return whether it needs the mark of timers.

        A queue with several shards always has the mark.
        """
        layout, state, item = self._layout, row.state, row.item
        if state == "ready":
            tr[item.key] = item.value
            if item.header is NO_HEADER:
                return False
        elif state == "claimed" and not row.token:
            return False
        else:
            tr[layout.prefix_of[state] + item.key[len(layout.items) :]] = row.encode()
        if why == "marked":
            return False
        timer = row.timer(layout)
        if timer is not None:
            tr[timer[0]] = timer[1]
        needs_mark = state not in ENDED and why != "extended" and not item.level.shard
        return timer is not None and needs_mark

    def _count(self, tr: Transaction, changes: Sequence[Change], are_plain: bool) -> None:
        layout = self._layout
        counters: dict[bytes, int] = {}
        tallies: dict[str, int] = {}
        pushed, shard = 0, b""
        for why, before, after, _ in changes:
            pushed += why == "pushed"
            kind = (why, before and before.state, after and after.state)
            for tally, n in TABLE[kind].items():
                tallies[tally] = tallies.get(tally, 0) + n
            for row, n in ((before, -1), (after, 1)):
                if row is None:
                    continue
                shard, counter = row.item.level.shard, row.item.level.counter
                if row.state == "ready" and counter is not None:
                    counters[counter] = counters.get(counter, 0) + n
                for key in () if are_plain else row.counters(layout):
                    counters[key] = counters.get(key, 0) + n
                if row.item.header is not NO_HEADER:
                    count_marks(tallies, row, n)
        for counter, n in counters.items():
            if n:
                tr.add(counter, encode_count(n))
            # Its maintainer notices the last ready item of a group.
            if n < 0 and not counter.startswith(layout.group_counts):
                tr.compare_and_clear(counter, ZERO)
        freed = -counters.get(layout.slots + layout.slot_of_queue, 0)
        if freed > 0:
            wake_claims(tr, layout, freed)
        back = tallies.get("moved", 0)
        if pushed or back:
            tr.add(layout.total_in + shard, encode_count(pushed + back))
        if any(tallies.values()):
            # Only their sum over all shards counts: one shard's counters stand for all changes.
            tr.add(layout.tallies + shard, encode_tallies(**tallies))
        if back:
            wake(tr, layout.waiters, back)


def _is_plain(change: Change) -> bool:
    for row in (change.before, change.after):
        if row is None:
            continue
        item = row.item
        if row.slots or row.state in ENDED or item.level.group is not None:
            return False
        # Items without a group take turns with the groups.
        if item.turn is not None or item.value.startswith(MARKS):
            return False
    return True


def count_marks(tallies: dict[str, int], row: ItemRow, n: int) -> None:
    """Count ready items that will expire, and waiting items with an unknown job."""
    if row.state == "ready" and row.item.header.expires is not None:
        tallies["expiring"] = tallies.get("expiring", 0) + n
    if row.state in ("ready", "delayed") and row.item.header.unknown is not None:
        tallies["unknown"] = tallies.get("unknown", 0) + n
