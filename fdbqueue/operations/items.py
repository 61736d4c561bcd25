"""Items in a transaction: put behind others, taken from either end, found, counted."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any, Literal, NamedTuple, TypeAlias

from fdb import fdboptions

from fdbqueue.errors import ForeignKey
from fdbqueue.layout import (
    MINUS_ONE,
    NO_HEADER,
    ONE,
    ZERO,
    Header,
    Layout,
    decode_count,
    decode_facts,
    encode_count,
    encode_facts,
    header_of,
)
from fdbqueue.layout.priorities import Levels

__all__ = ["WANT_ALL", "Entry", "Found", "PriorityRows", "Row", "Rows", "State", "find"]

WANT_ALL = fdboptions.StreamingMode["want_all"][0]
"""For reads whose rows are all needed: so that they come in one answer."""


class Entry(NamedTuple):
    """What a push stores: `due` is when it comes, in milliseconds since 1970; `None` for now.

    `value` and `priority` are what the caller gave.
    """

    level: bytes
    payload: bytes
    random: bytes
    due: int | None = None
    header: Header = NO_HEADER
    value: Any = None
    priority: Any = None


class Rows:
    """The rows of a queue within a transaction; each of its methods is part of one.

    An item stands in a level, behind the items that were there before. A FIFO queue has one level,
    a priority queue one for each priority.

    """

    def __init__(self, layout: Layout, levels: Levels) -> None:
        self._layout = layout
        self.level_of = levels.level_of

    # Levels

    def count(self, tr: Any, level: bytes, change: int) -> None:
        """Note that a level, and so the queue, has so many items more or less."""
        self.count_level(tr, level, change)
        self.count_total(tr, change)

    def count_total(self, tr: Any, change: int) -> None:
        """Note that so many items came, or with a minus, went."""
        key = self._layout.came if change > 0 else self._layout.went
        tr.add(key, ONE if change in (1, -1) else encode_count(abs(change)))

    def count_moved(self, tr: Any) -> None:
        """Note that an item which came again had only changed its place."""
        tr.add(self._layout.moved, ONE)

    def count_level(self, tr: Any, level: bytes, change: int) -> None:
        """Note that a level has so many items more or less."""

    def counts(self, tr: Any) -> dict[Any, int]:
        """How many items each priority has, of those that have any."""
        layout = self._layout
        rows = tr.get_range(*layout.range_of(layout.counts))
        counted = {layout.counted_priority(row.key): decode_count(row.value) for row in rows}
        return {priority: count for priority, count in counted.items() if count > 0}

    # What a kind of queue keeps of each item besides

    def level_counter(self, level: bytes) -> bytes | None:
        """The key of the counter of this level, if there is one."""
        return None

    def derived(self, tr: Any, key: bytes, stored: bytes) -> tuple[dict[bytes, bytes], list[bytes]]:
        """The rows by which an item is found that is at its place, and what else counts it."""
        expires = header_of(stored)[0].expires
        if expires is None:
            return {}, []
        layout = self._layout
        return {layout.when_key(layout.expiries, expires, layout.place(key)): b""}, []

    def indexed_elsewhere(self, place: bytes) -> dict[bytes, bytes]:
        """The rows by which an item is found that is delayed, claimed or dead."""
        return {}

    def entered(self, tr: Any, key: bytes, stored: bytes) -> None:
        """Make an item found, and counted, that came to its place with this value."""
        rows, counters = self.derived(tr, key, stored)
        for index, value in rows.items():
            tr[index] = value
        for counter in counters:
            tr.add(counter, ONE)

    def left(self, tr: Any, key: bytes, stored: bytes) -> None:
        """Make it found and counted no more, while its payload is still there."""
        rows, counters = self.derived(tr, key, stored)
        for index in rows:
            del tr[index]
        for counter in counters:
            tr.add(counter, MINUS_ONE)
            tr.compare_and_clear(counter, ZERO)

    # Elsewhere

    def keep(
        self, tr: Any, prefix: bytes, place: bytes, facts: tuple[Any, ...], value: bytes
    ) -> None:
        """Keep an item, with facts about it, that is not at its place."""
        tr[prefix + place] = encode_facts(facts, value)
        for index, found in self.indexed_elsewhere(place).items():
            tr[index] = found

    def let_go(self, tr: Any, prefix: bytes, place: bytes) -> None:
        """Keep it there no more."""
        del tr[prefix + place]
        for index in self.indexed_elsewhere(place):
            del tr[index]

    def delay(self, tr: Any, place: bytes, due: int, value: bytes) -> None:
        """Keep an item that is to come at a time, in milliseconds since 1970."""
        layout = self._layout
        self.keep(tr, layout.delayed, place, (due,), value)
        tr[layout.when_key(layout.dues, due, place)] = b""
        tr[layout.scheduled] = b""

    def end_delay(self, tr: Any, place: bytes, due: int) -> None:
        """Take it away from there."""
        self.let_go(tr, self._layout.delayed, place)
        del tr[self._layout.when_key(self._layout.dues, due, place)]

    # Finding

    def find(self, tr: Any, reference: bytes) -> Found | None:
        """Return the item with this reference, wherever it is; `None` if it ended."""
        return find(tr, self._layout, reference)

    def waiting(self, tr: Any, reference: bytes) -> Row | None:
        """Return the row of the item with this reference, if it waits."""
        key = self._layout.items + reference
        value = tr[key].value
        return None if value is None else (key, value)

    def begin_look(self, tr: Any, key: bytes) -> list[Any]:
        """Begin to read whether the item that was taken from this key is back."""
        return [tr[key]]

    # Putting in

    def last(self, tr: Any, level: bytes) -> Any:
        """Begin to read the last row of a level, for `append`."""
        begin, end = self._layout.range_of(level)
        # A snapshot read, so that two pushes never conflict; `random` keeps their keys apart.
        return tr.snapshot.get_range(begin, end, limit=1, reverse=True)

    def append_all(self, tr: Any, entries: list[Entry], lasts: dict[bytes, Any]) -> list[bytes]:
        """Put payloads behind the last items of their levels; the keys of the new items."""
        if len(entries) == 1:
            return self.append(tr, entries[0].level, entries, lasts[entries[0].level])
        by_level: dict[bytes, list[int]] = {}
        for index, entry in enumerate(entries):
            by_level.setdefault(entry.level, []).append(index)
        keys = [b""] * len(entries)
        for level, indexes in by_level.items():
            new = self.append(tr, level, [entries[index] for index in indexes], lasts[level])
            for index, key in zip(indexes, new):
                keys[index] = key
        return keys

    @staticmethod
    def first_count(tr: Any) -> int:
        """The lowest count of an item that is pushed now.

        Behind what was in the level before, which may be claimed, or delayed, and come back. (There
        are more versions than there can be items.)
        """
        version: int = tr.get_read_version().wait()
        return version

    def append(self, tr: Any, level: bytes, entries: list[Entry], last_row: Any) -> list[bytes]:
        """Put entries behind the last item of a level; their keys.

        Those that are due some time wait elsewhere until then.
        """
        layout = self._layout
        last = next(iter(last_row), None)
        count = self.first_count(tr)
        if last is not None:
            if not layout.is_place(last.key, level):
                raise ForeignKey(last.key)
            count = max(count, layout.count_in(last.key, level) + 1)
        keys = []
        delayed = 0
        for _, payload, random, due, header, *_ in entries:
            key = layout.item_key(level, count, random)
            stored = layout.value_of(tr, random, payload, header)
            if header != NO_HEADER:
                self._note(tr, layout.place(key), header)
            if due is None:
                tr[key] = stored
                self.entered(tr, key, stored)
            else:
                self.delay(tr, layout.place(key), due, stored)
                delayed += 1
            keys.append(key)
            count += 1
        self.count_total(tr, len(keys))
        if delayed < len(keys):
            self.count_level(tr, level, len(keys) - delayed)
        return keys

    def _note(self, tr: Any, place: bytes, header: Header) -> None:
        if header.expires is not None:
            tr[self._layout.scheduled] = b""
        if header.unique is not None:
            tr[self._layout.unique_key(header.unique)] = place

    def put_aside(self, tr: Any, request: bytes, pops: list[list[Any]]) -> None:
        """Keep rows that were taken out for the pops that wait; they have not gone yet."""
        self._layout.write_result(tr, request, pops)
        tr.add(self._layout.went, encode_count(-sum(map(len, pops))))

    def place(self, tr: Any, key: bytes, stored: bytes) -> None:
        """Put the value of an item into its place; it counts in its level, and not in all."""
        tr[key] = stored
        self.entered(tr, key, stored)
        self.count_level(tr, self.level_of(key), 1)

    def restore(self, tr: Any, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Put (key, value) of items back that were put aside."""
        for key, stored in rows:
            self.place(tr, key, stored)
            # They were never gone; but who waits for items watches what came.
            self.count_total(tr, 1)
            self.count_total(tr, -1)
            self.count_moved(tr)

    def put_back(self, tr: Any, places: list[tuple[bytes, bytes]]) -> None:
        """Put payloads back to the keys from which they were taken, unless they are back."""
        # Every read is under way before the first is waited for.
        looks = [self.begin_look(tr, key) for key, _ in places]
        for (key, payload), reads in zip(places, looks):
            if not any(read.present() for read in reads):
                value = self._layout.value_of(tr, self._layout.position(key)[-1], payload)
                tr[key] = value
                self.entered(tr, key, value)
                self.count(tr, self.level_of(key), 1)
                self.count_moved(tr)

    # Taking out

    def first(self, tr: Any, n: int, at_max: bool = False) -> list[Any]:
        """The first `n` rows, or as many as there are, in the order of pops."""
        begin, end = self._layout.range_of(self._layout.items)
        if n == 0:
            return []
        return list(tr.get_range(begin, end, limit=n, streaming_mode=WANT_ALL))

    def drop_first(self, tr: Any, rows: list[Any]) -> None:
        """Take out the first items of levels: all those that `first` read, up to these.

        Each level by one range, on which that read conflicts: a server that has many cleared keys
        to pass, one by one, is slow to find the first that is left. The payloads' pieces stay.
        """
        for row in rows:
            self.left(tr, row.key, row.value)
        if len(rows) == 1:
            key = rows[0].key
            del tr[key]
            self.count(tr, self.level_of(key), -1)
            return
        for level, group in groupby(rows, lambda row: self.level_of(row.key)):
            dropped = [row.key for row in group]
            tr.clear_range(self._layout.range_of(level)[0], dropped[-1] + b"\x00")
            self.count(tr, level, -len(dropped))

    def drop(self, tr: Any, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Take out (key, value) of items, wherever they stand, and conflict on their keys.

        The pieces stay.
        """
        for level, group in groupby(rows, lambda row: self.level_of(row[0])):
            dropped = list(group)
            for key, stored in dropped:
                tr.add_read_conflict_key(key)
                self.left(tr, key, stored)
                del tr[key]
            self.count(tr, level, -len(dropped))

    def take_first(self, tr: Any, rows: list[Any]) -> None:
        """Take for good the first items, which `first` read."""
        self.drop_first(tr, rows)
        for row in rows:
            self._layout.end(tr, row.value)

    def take(self, tr: Any, key: bytes, stored: bytes) -> None:
        """Take for good one item that a transaction read, wherever it stands."""
        self.drop(tr, [(key, stored)])
        self._layout.end(tr, stored)

    def remove(self, tr: Any, found: Found | None) -> bool:
        """Remove an item that waits or is delayed; false if it does neither."""
        layout = self._layout
        if found is None or found.state not in ("waiting", "delayed"):
            return False
        if found.state == "waiting":
            self.take(tr, found.key, found.value)
        else:
            self.end_delay(tr, layout.place(found.key), found.facts[0])
            self.count_total(tr, -1)
            layout.end(tr, found.value)
        tr.add(layout.removed, ONE)
        return True

    def move(self, tr: Any, key: bytes, stored: bytes, payload: bytes, level: bytes) -> bytes:
        """Put an item that a transaction read, with this payload, behind a level; its new key."""
        self.take(tr, key, stored)
        # The random part stays the item's own, and so does what else is known of it.
        random = self._layout.position(key)[-1]
        entry = Entry(level, payload, random, header=header_of(stored)[0])
        (new,) = self.append(tr, level, [entry], self.last(tr, level))
        self.count_moved(tr)
        return new

    def clear(self, tr: Any) -> None:
        """Take out all items, with their claims, dead letters and counters, and the imports."""
        layout = self._layout
        for prefix in (*layout.of_items, layout.totals, layout.imports):
            tr.clear_range(*layout.range_of(prefix))


class PriorityRows(Rows):
    """The rows of a queue that has a level for each priority, and a counter for each level."""

    def level_counter(self, level: bytes) -> bytes | None:
        return self._layout.count_key(level)

    def count_level(self, tr: Any, level: bytes, change: int) -> None:
        """Change the counter of the level; a counter at zero has no key."""
        key = self.level_counter(level)
        if key is None:
            return
        tr.add(key, ONE if change == 1 else MINUS_ONE if change == -1 else encode_count(change))
        if change < 0:
            tr.compare_and_clear(key, ZERO)

    def first(self, tr: Any, n: int, at_max: bool = False) -> list[Any]:
        """The first `n` rows of the lowest priorities, or of the highest ones."""
        if not at_max:
            return super().first(tr, n)
        begin, end = self._layout.range_of(self._layout.items)
        rows: list[Any] = []
        while len(rows) < n:
            last = list(tr.get_range(begin, end, limit=1, reverse=True))
            if not last:
                break
            level = self.level_of(last[0].key)
            in_level = self._layout.range_of(level)
            limit = n - len(rows)
            rows += tr.get_range(*in_level, limit=limit, streaming_mode=WANT_ALL)
            end = in_level[0]
        return rows


State: TypeAlias = Literal["waiting", "delayed", "claimed", "dead"]
"""Where an item is."""


class Found(NamedTuple):
    """An item that a transaction read: its key while it waits, its value, facts where it is."""

    state: State
    key: bytes
    value: bytes
    facts: tuple[Any, ...] = ()


def find(tr: Any, layout: Layout, place: bytes) -> Found | None:
    """The item of this place; `None` if it is there no more, nor elsewhere.

    Conflicts with whatever changes the item. Cost: one read if it waits, else three more at once.

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
    >>> item = jobs.push(db, "send", delay=60)
    >>> layout = Layout(jobs.subspace)
    >>> find(db.create_transaction(), layout, layout.place(item.key)).state
    'delayed'
    """
    key = layout.items + place
    value = tr[key].value
    if value is not None:
        return Found("waiting", key, value)
    delayed, claimed, dead = (tr[prefix + place] for prefix in layout.elsewhere)
    if delayed.present():
        return _kept("delayed", key, delayed.value)
    if claimed.present():
        return _kept("claimed", key, claimed.value)
    return _kept("dead", key, dead.value) if dead.present() else None


def _kept(state: State, key: bytes, stored: bytes) -> Found:
    facts, value = decode_facts(stored)
    return Found(state, key, value, facts)


Row: TypeAlias = tuple[bytes, bytes]
"""Key and value of an item."""
