"""Tasks within a transaction: lookups and counts by id, agent and client without a scan."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterator
from typing import Any

from fdbqueue.layout import Layout, decode_count
from fdbqueue.layout.tasks import decode_header
from fdbqueue.operations.items import Found, PriorityRows, StoredItem, find
from fdbqueue.types import KeyValue, ReadTransaction, TaskPriority, TaskStats, Transaction

__all__ = ["TaskIndex", "TaskRows"]


class TaskIndex:
    """The indexes of a task queue. Each method is part of a transaction."""

    def __init__(self, layout: Layout, rows: TaskRows) -> None:
        self._layout = layout
        self._rows = rows

    def agent_of(self, tr: ReadTransaction, row: KeyValue) -> str | None:
        """Return the agent of a task."""
        return decode_header(self._layout.read_payload(tr, row.value))[1]

    def first_but(
        self, tr: Transaction, n: int, agents: Container[str | None]
    ) -> Iterator[StoredItem]:
        """Yield tasks in order, excluding some agents; at most `n` per remaining agent."""
        layout = self._layout
        counted = tr.snapshot.get_range(*layout.range_of(layout.agent_counts))
        names = [None, *(layout.name_in(row.key) for row in counted)]
        indexes = [layout.indexed(layout.agents, name) for name in names if name not in agents]
        # All reads start before the first is waited for.
        found = [tr.snapshot.get_range(*layout.range_of(index), limit=n) for index in indexes]
        places = ([row.key[len(index) :] for row in rows] for index, rows in zip(indexes, found))
        for place in heapq.merge(*places):
            key = layout.items + place
            yield StoredItem(key, bytes(tr.snapshot[key]))

    def first_of(self, tr: Transaction, n: int, agent: str) -> list[StoredItem]:
        """Return up to `n` first tasks of an agent."""
        index = self._layout.indexed(self._layout.agents, agent)
        rows = tr.get_range(*self._layout.range_of(index), limit=n)
        keys = [self._layout.items + row.key[len(index) :] for row in rows]
        values = [tr[key] for key in keys]
        return [StoredItem(key, bytes(value)) for key, value in zip(keys, values)]

    def stats(self, tr: Transaction) -> TaskStats:
        """Return all counters, and when the oldest task was pushed."""
        layout = self._layout
        names = ("came", "went", "moved", "removed", "rejected", "expired", "died")
        totals = [tr[getattr(layout, name)] for name in names]
        by_agent = tr.get_range(*layout.range_of(layout.agent_counts))
        oldest = list(tr.get_range(*layout.range_of(layout.ids), limit=1))
        came, went, moved, removed, rejected, expired, died = (
            decode_count(each.value) for each in totals
        )
        return TaskStats(
            total_pushed=came - moved,
            total_popped=went - moved - removed - expired - died,
            total_rejected=rejected,
            total_removed=removed,
            total_expired=expired,
            total_died=died,
            current_size=max(0, came - went),
            oldest=layout.time_of_id(oldest[0].key) if oldest else None,
            by_priority={TaskPriority(each): n for each, n in self._rows.counts(tr).items()},
            by_agent={layout.name_in(row.key): decode_count(row.value) for row in by_agent},
        )


class TaskRows(PriorityRows):
    """Rows with indexes, and with counters by priority and agent instead of by level."""

    def derived(
        self, tr: ReadTransaction, key: bytes, stored: bytes
    ) -> tuple[dict[bytes, bytes], list[bytes]]:
        """Return index entries by id, agent and client; the counters of priority and agent."""
        layout = self._layout
        place = layout.place(key)
        priority, agent, client = decode_header(layout.read_payload(tr, stored))
        rows, counters = super().derived(tr, key, stored)
        rows[layout.id_key(layout.ids, layout.position(key)[-1])] = place
        rows[layout.indexed(layout.agents, agent) + place] = b""
        counters.append(layout.count_key(layout.level(priority)))
        if agent is not None:
            counters.append(layout.indexed(layout.agent_counts, agent))
        if client is not None:
            rows[layout.indexed(layout.clients, client) + place] = b""
        return rows, counters

    def find(self, tr: Transaction, reference: bytes) -> Found | None:
        """Return the task with this id in any state; `None` if it ended."""
        waits, elsewhere = self._begin_ids(tr, reference)
        place = waits.value if waits.present() else elsewhere.value
        return None if place is None else find(tr, self._layout, place)

    def waiting(self, tr: Transaction, reference: bytes) -> StoredItem | None:
        """Return key and value of the task with this id if it waits."""
        place = tr[self._layout.id_key(self._layout.ids, reference)].value
        return None if place is None else super().waiting(tr, place)

    def begin_look(self, tr: Transaction, key: bytes) -> list[Any]:
        """Start to read whether the task popped from this key exists again, in any state."""
        return self._begin_ids(tr, self._layout.position(key)[-1])

    def _begin_ids(self, tr: Transaction, random: bytes) -> list[Any]:
        layout = self._layout
        return [tr[layout.id_key(ids, random)] for ids in (layout.ids, layout.ids_elsewhere)]

    def indexed_elsewhere(self, place: bytes) -> dict[bytes, bytes]:
        """Return the index entry by id."""
        layout = self._layout
        random = layout.position(layout.items + place)[-1]
        return {layout.id_key(layout.ids_elsewhere, random): place}

    def level_counter(self, level: bytes) -> bytes | None:
        """Return `None`: a level is one priority, deadline and cost, which is too many to count."""
        return None
