"""Tasks within a transaction: find and count them by id, agent and client without a scan."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any, cast

from fdbqueue.layout.items import Level, StoredItem
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.priorities import Levels
from fdbqueue.layout.tasks import decode_header, rank_at
from fdbqueue.layout.values import Header, decode_count
from fdbqueue.operations.groups.agents import Agents
from fdbqueue.operations.items import Items, LocatedItem, Taken
from fdbqueue.operations.payloads import read_payload
from fdbqueue.operations.views.listing import Views
from fdbqueue.operations.views.overdue import corrections
from fdbqueue.types import Options, ReadTransaction, Transaction


class TaskIndex:
    """Reads by agent of a task queue. Each method is part of a transaction."""

    def __init__(self, items: TaskItems) -> None:
        self._layout = items.layout
        self._items = items

    def is_of(self, index: bytes, name: str) -> Callable[[ReadTransaction, StoredItem], bool]:
        """Return a function that tells whether a task belongs to this agent, or to this client."""
        part = 1 if index == self._layout.agents else 2

        def is_one(tr: ReadTransaction, item: StoredItem) -> bool:
            return decode_header(read_payload(tr, self._layout, item.content))[part] == name

        return is_one

    def by_agent(self, tr: ReadTransaction, views: Views, now: int) -> dict[str, int]:
        """Return the number of ready tasks of each agent that has any."""
        layout = self._layout
        rows = tr.get_range(*layout.range_of(layout.agent_counts))
        counts = Counter[str | None]()
        for row in rows:
            agent = layout.unpack_entry_key(layout.agent_counts, row.key)
            counts[agent] = decode_count(row.value)
        counts.update(corrections(tr, self._items, views.overdue(tr, now), self._items.group_of))
        found = {agent: n for agent, n in counts.items() if agent is not None and n > 0}
        return {agent: found[agent] for agent in sorted(found)}


class TaskItems(Items):
    """The items of a task queue, with indexes, and with counters by priority and agent."""

    indexes_every_item = True
    ids_are_positions = False

    def __init__(self, layout: Layout, levels: Levels, options: Options) -> None:
        super().__init__(layout, levels, options)
        self._agents = Agents(layout, self.groups, self.options)

    def limits_of(
        self, reads: ReadTransaction, agents: Iterable[str]
    ) -> list[tuple[int | None, int | None]]:
        """Return how many tasks of each agent may be claimed at a time, and how many started."""
        return self._agents.limits_of(reads, agents)

    def held(self, reads: ReadTransaction) -> set[str]:
        """Return the agents that are held."""
        return self._agents.held(reads)

    def index_entries(
        self, tr: ReadTransaction, item: StoredItem
    ) -> tuple[dict[bytes, bytes], list[bytes]]:
        """Return the entries by id, agent and client, and the counters of priority and agent."""
        layout = self.layout
        position = layout.position(item.key)
        priority, agent, client = decode_header(read_payload(tr, layout, item.content))
        entries, counters = super().index_entries(tr, item)
        entries[layout.entry_key(layout.ids, layout.unpack_item_key(item.key)[-1])] = position
        entries[layout.entry_key(layout.agents, agent) + position] = b""
        counters.append(layout.counter_key(layout.level_prefix(priority)))
        if agent is not None:
            counters.append(layout.entry_key(layout.agent_counts, agent))
        if client is not None:
            entries[layout.entry_key(layout.clients, client) + position] = b""
        return entries, counters

    def group_of(self, tr: ReadTransaction, item: StoredItem) -> str | None:
        """Return the agent of a task."""
        return decode_header(read_payload(tr, self.layout, item.content))[1]

    def first_excluding(
        self, tr: ReadTransaction, n: int, agents: Container[str | None]
    ) -> Iterator[StoredItem]:
        """Yield tasks in order, excluding some agents; at most `n` per remaining agent."""
        layout, reads = self.layout, _snapshot(tr)
        counted = reads.get_range(*layout.range_of(layout.agent_counts))
        names = [None, *(layout.unpack_entry_key(layout.agent_counts, row.key) for row in counted)]
        indexes = [layout.entry_key(layout.agents, name) for name in names if name not in agents]
        # Start all reads before waiting for the first.
        ranges = [reads.get_range(*layout.range_of(index), limit=n) for index in indexes]
        positions = (
            [row.key[len(index) :] for row in rows] for index, rows in zip(indexes, ranges)
        )
        for position in heapq.merge(*positions):
            key = layout.items + position
            yield self.levels.item(key, bytes(reads[key]))

    def first_for_agent(self, tr: ReadTransaction, n: int, agent: str) -> list[StoredItem]:
        """Return up to `n` first tasks of an agent that its pause and its rate allow to start."""
        if self.options.limited_groups:
            ((_, startable),) = self.limits_of(tr, [agent])
            n = n if startable is None else min(n, startable)
        if n == 0:  # which means no limit in FoundationDB
            return []
        index = self.layout.entry_key(self.layout.agents, agent)
        rows = tr.get_range(*self.layout.range_of(index), limit=n)
        return self.at_positions(tr, [row.key[len(index) :] for row in rows])

    # Taking

    def first(self, tr: ReadTransaction, n: int, at_max: bool = False) -> list[StoredItem]:
        """Return up to `n` first tasks, without those of agents that may start no more."""
        found = super().first(tr, n, at_max)
        if not found or not self.options.limited_groups:
            return found
        allowed = self._allowed(tr, found, n)
        if len(allowed) == len(found):
            return found
        allowed = self._allowed(tr, self.first_excluding(tr, n, self.held(tr)), n)
        if _snapshot(tr) is not tr:  # a push of one that comes before them conflicts
            begin, end = self.layout.all_items
            last = allowed[-1].key + b"\x00" if len(allowed) == n else end
            cast("Transaction", tr).add_read_conflict_range(begin, last)
        return allowed

    def _allowed(
        self, tr: ReadTransaction, items: Iterable[StoredItem], n: int
    ) -> list[StoredItem]:
        """Return up to `n` of some tasks whose agents may start them."""
        left: dict[str, int] = {}
        allowed: list[StoredItem] = []
        for item in items:
            agent = self.group_of(tr, item)
            if agent is not None:
                if agent not in left:
                    ((_, startable),) = self.limits_of(tr, [agent])
                    left[agent] = n if startable is None else startable
                if left[agent] == 0:
                    continue
                left[agent] -= 1
            allowed.append(item)
            if len(allowed) == n:
                break
        return allowed

    def delete(
        self,
        tr: Transaction,
        now: int,
        items: list[StoredItem],
        taken: Taken | None,
        are_first: bool = False,
    ) -> None:
        """Delete ready tasks; count the starts of their agents.

        Between the tasks that `first` has returned, there may be tasks of agents that are held.
        """
        limited = self.options.limited_groups
        super().delete(tr, now, items, taken, are_first and not limited)
        if taken is not None and limited:
            for agent, n in Counter(self.group_of(tr, item) for item in items).items():
                if agent is not None:
                    self._agents.note_started(tr, now, agent, n)

    def level_at_tick(self, tr: ReadTransaction, priority: Any, tick: int) -> Level:
        """Return the level of a task, whose deadline is a time after the tick that pushes it."""
        options = self.options.read(tr)
        ageing = None if options is None else options.ageing
        return self.levels.level(rank_at(priority, tick, ageing))

    def find(self, tr: ReadTransaction, reference: bytes) -> LocatedItem | None:
        """Return the task with this id in any state; `None` if it ended."""
        ready, parked = self._begin_ids(tr, reference)
        position = ready.value if ready.present() else parked.value
        return None if position is None else self.at(tr, position)

    def keys_of_end(self, reference: bytes, position: bytes) -> list[bytes]:
        """Return the keys to watch until a task becomes done or dead, or is moved."""
        layout = self.layout
        ends = [layout.prefix_of[state] + position for state in ("dead", "done")]
        # A move changes one of the index entries; the end of a claimed task changes none.
        return [
            *ends,
            *(layout.entry_key(ids, reference) for ids in (layout.ids, layout.ids_parked)),
        ]

    def begin_look(self, tr: ReadTransaction, key: bytes, header: Header) -> list[Any]:
        """Start to read whether the task that was popped from this key exists, in any state."""
        return self._begin_ids(tr, self.layout.unpack_item_key(key)[-1])

    def _begin_ids(self, tr: ReadTransaction, random: bytes) -> list[Any]:
        layout = self.layout
        return [tr[layout.entry_key(ids, random)] for ids in (layout.ids, layout.ids_parked)]

    def park(self, tr: Transaction, prefix: bytes, position: bytes, stored: bytes) -> None:
        """Store a task that is delayed, claimed, dead or done, and its index entry."""
        super().park(tr, prefix, position, stored)
        for entry, value in self.parked_index_entries(position).items():
            tr[entry] = value

    def unpark(self, tr: Transaction, prefix: bytes, position: bytes) -> None:
        """Delete a task stored by `park`, and its index entry."""
        super().unpark(tr, prefix, position)
        for entry in self.parked_index_entries(position):
            del tr[entry]

    def parked_index_entries(self, position: bytes) -> dict[bytes, bytes]:
        """Return the index entry by id."""
        layout = self.layout
        random = layout.unpack_item_key(layout.items + position)[-1]
        return {layout.entry_key(layout.ids_parked, random): position}


def _snapshot(tr: ReadTransaction) -> ReadTransaction:
    snapshot: ReadTransaction = getattr(tr, "snapshot", tr)
    return snapshot
