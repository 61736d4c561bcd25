"""The rows of a task queue: tasks are found by id, agent and client, and counted by priority."""

from __future__ import annotations

from typing import Any

from fdbqueue.rows import PriorityRows
from fdbqueue.task import decode_header

__all__ = ["TaskRows"]


class TaskRows(PriorityRows):
    """As `PriorityRows`, with indexes, and counters by priority and agent instead of by level."""

    def counters(self, tr: Any, key: bytes, stored: bytes) -> list[bytes]:
        """That of its priority, and that of its agent."""
        layout = self._layout
        priority, agent, _ = decode_header(layout.read_payload(tr, stored))
        counters = [layout.count_key(layout.level(priority))]
        if agent is not None:
            counters.append(layout.indexed(layout.agent_counts, agent))
        return counters

    def indexed(self, tr: Any, key: bytes, stored: bytes) -> dict[bytes, bytes]:
        """Those of its id, of its agent or that it has none, of its client; when it expires."""
        layout = self._layout
        place = layout.place(key)
        _, agent, client = decode_header(layout.read_payload(tr, stored))
        rows = super().indexed(tr, key, stored)
        rows[layout.id_key(layout.ids, layout.position(key)[-1])] = place
        rows[layout.indexed(layout.agents, agent) + place] = b""
        if client is not None:
            rows[layout.indexed(layout.clients, client) + place] = b""
        return rows

    def indexed_elsewhere(self, place: bytes) -> dict[bytes, bytes]:
        """That of its id."""
        layout = self._layout
        random = layout.position(layout.items + place)[-1]
        return {layout.id_key(layout.ids_elsewhere, random): place}

    def level_counter(self, level: bytes) -> bytes | None:
        """None: a level is one priority, deadline and cost, and there are too many."""
        return None
