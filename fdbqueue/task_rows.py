"""The rows of a task queue: tasks are found by id, agent and client, and counted by priority."""

from __future__ import annotations

from typing import Any

from fdbqueue.rows import PriorityRows
from fdbqueue.task import decode_header

__all__ = ["TaskRows"]


class TaskRows(PriorityRows):
    """As `PriorityRows`, with indexes, and counters by priority and agent instead of by level."""

    def derived(self, tr: Any, key: bytes, stored: bytes) -> tuple[dict[bytes, bytes], list[bytes]]:
        """It is found by id, by agent, if any, and by client; priority and agent count it."""
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

    def indexed_elsewhere(self, place: bytes) -> dict[bytes, bytes]:
        """That of its id."""
        layout = self._layout
        random = layout.position(layout.items + place)[-1]
        return {layout.id_key(layout.ids_elsewhere, random): place}

    def level_counter(self, level: bytes) -> bytes | None:
        """None: a level is one priority, deadline and cost, and there are too many."""
        return None
