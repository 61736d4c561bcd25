"""Tasks within a transaction: find and count them by id, agent and client without a scan."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, cast

from fdbqueue.layout.items import ItemRow, Level, StoredItem
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.priorities import Levels
from fdbqueue.layout.tasks import decode_header, rank_at
from fdbqueue.layout.values import ZERO, Header, decode_count, encode_count
from fdbqueue.operations.groups.agents import Agents
from fdbqueue.operations.items import Items
from fdbqueue.operations.payloads import read_payload
from fdbqueue.operations.transitions import TAKEN, Change
from fdbqueue.types import Options, ReadTransaction, Transaction


def count_by_agent(tr: ReadTransaction, layout: Layout) -> dict[str, int]:
    """Return the number of ready tasks of each agent that has any."""
    rows = tr.get_range(*layout.range_of(layout.agent_counts))
    counts = {
        layout.unpack_entry_key(layout.agent_counts, row.key): decode_count(row.value)
        for row in rows
    }
    return {agent: counts[agent] for agent in sorted(counts) if counts[agent] > 0}


class TaskItems(Items):
    """The items of a task queue, with indexes, and with counters by priority and agent.

    It maintains them (`transitions.Maintainer`).
    """

    ids_are_positions = False

    def __init__(self, layout: Layout, levels: Levels, options: Options) -> None:
        super().__init__(layout, levels, options)
        self._agents = Agents(layout, self.groups, self.options)
        self.transitions.always.append(self)

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
        entries, counters = self._index_entries(tr, item)
        timers, _ = super().index_entries(tr, item)
        return entries | timers, counters

    def _index_entries(
        self, tr: ReadTransaction, item: StoredItem
    ) -> tuple[dict[bytes, bytes], list[bytes]]:
        layout = self.layout
        position = layout.position(item.key)
        priority, agent, client = decode_header(read_payload(tr, layout, item.content))
        entries = {layout.entry_key(layout.ids, layout.unpack_item_key(item.key)[-1]): position}
        entries[layout.entry_key(layout.agents, agent) + position] = b""
        counters = [layout.counter_key(layout.level_prefix(priority))]
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

    def pop(
        self,
        tr: Transaction,
        now: int,
        items: Sequence[StoredItem],
        staged: Sequence[StoredItem] = (),
        *,
        are_first: bool = True,
    ) -> None:
        """Pop ready tasks.

        Between the tasks that `first` has returned, there may be tasks of agents that are held.
        """
        are_first = are_first and not self.options.limited_groups
        super().pop(tr, now, items, staged, are_first=are_first)

    def begin(self, tr: Transaction, now: int, changes: Sequence[Change]) -> Callable[[], None]:
        """Start the reads for the indexes of tasks, and for the starts of their agents."""
        gone: dict[bytes, bytes] = {}
        entries: dict[bytes, bytes] = {}
        counters = Counter[bytes]()
        started = Counter[str]()
        for why, before, after, _ in changes:
            if before is not None and not before.is_staged:
                old, counts = self._indexed(tr, before)
                gone |= old
                counters.subtract(counts)
            if after is not None and not after.is_staged:
                new, counts = self._indexed(tr, after)
                entries |= new
                counters.update(counts)
            if before is not None and why in TAKEN and self.options.limited_groups:
                agent = self.group_of(tr, before.item)
                if agent is not None:
                    started[agent] += 1

        def finish() -> None:
            for entry in gone:
                if entry not in entries:
                    tr.clear(entry)
            for entry, value in entries.items():
                tr[entry] = value
            for counter, n in counters.items():
                if n:
                    tr.add(counter, encode_count(n))
                    tr.compare_and_clear(counter, ZERO)
            for agent, n in started.items():
                self._agents.note_started(tr, now, agent, n)

        return finish

    def _indexed(self, tr: ReadTransaction, row: ItemRow) -> tuple[dict[bytes, bytes], list[bytes]]:
        """Return the index entries of a task in its state, without timers, and its counters."""
        if row.state == "ready":
            return self._index_entries(tr, row.item)
        return self.parked_index_entries(self.layout.position(row.key)), []

    def level_at_tick(self, tr: ReadTransaction, priority: Any, tick: int) -> Level:
        """Return the level of a task, whose deadline is a time after the tick that pushes it."""
        options = self.options.read(tr)
        ageing = None if options is None else options.ageing
        return self.levels.level(rank_at(priority, tick, ageing))

    def find(self, tr: ReadTransaction, reference: bytes) -> ItemRow | None:
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

    def parked_index_entries(self, position: bytes) -> dict[bytes, bytes]:
        """Return the index entry by id."""
        layout = self.layout
        random = layout.unpack_item_key(layout.items + position)[-1]
        return {layout.entry_key(layout.ids_parked, random): position}


def _snapshot(tr: ReadTransaction) -> ReadTransaction:
    snapshot: ReadTransaction = getattr(tr, "snapshot", tr)
    return snapshot
