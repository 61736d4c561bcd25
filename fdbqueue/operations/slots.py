"""Concurrency limits: the items that may be claimed while others are."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from fdbqueue.layout import Layout
from fdbqueue.operations.schedule import Schedule
from fdbqueue.types import KeyValue, ReadTransaction, Transaction

__all__ = ["MAX_SLOTS", "Agents", "Candidate", "First", "Limits"]

MAX_SLOTS = 10_000
"""The highest concurrency limit."""

First: TypeAlias = Callable[[Transaction, int], Sequence[KeyValue]]
"""Reads a number of first items in a transaction."""


class Candidate(NamedTuple):
    """An item that may be claimed, and the slots it would hold."""

    key: bytes
    value: bytes
    slots: tuple[bytes, ...] = ()


class Agents(Protocol):
    """The agents of a task queue."""

    def agent_of(self, tr: ReadTransaction, row: KeyValue) -> str | None:
        """Return the agent of a task."""
        ...

    def first_excluding(
        self, tr: Transaction, n: int, agents: Container[str | None]
    ) -> Iterator[KeyValue]:
        """Yield tasks in order, excluding some agents; at most `n` per remaining agent."""
        ...


class Limits:
    """The concurrency limits of one queue.

    Each claimed item holds a slot of the queue and a slot of its agent, as far as these have
    limits. There are as many slots as the limit allows. A claim takes random slots among those that
    it sees free. It conflicts only with claims of the same slots, so claimed items never outnumber
    slots, and claims do not conflict with acknowledgements that free other slots.
    """

    def __init__(
        self,
        layout: Layout,
        schedule: Schedule,
        agents: Agents | None,
        shuffle: Callable[[list[int]], None],
    ) -> None:
        self._layout = layout
        self._shuffle = shuffle
        self._schedule = schedule
        self._agents = agents

    def admit(self, tr: Transaction, n: int, first: First) -> list[Candidate]:
        """Return up to `n` first items that may be claimed; none if the queue is paused."""
        options = self._schedule.options(tr)
        if options is None:
            return [Candidate(row.key, row.value) for row in first(tr, n)]
        self._schedule.max_attempts = options.max_attempts
        if options.paused:
            return []
        whole = _Slots(n)
        if options.concurrency is not None:
            whole = self._slots(tr, None, options.concurrency)
            n = min(n, whole.left)
        if n == 0:
            return []
        if options.agent_concurrency is None or self._agents is None:
            return [Candidate(row.key, row.value, whole.take(tr)) for row in first(tr, n)]
        return self._by_agent(tr, n, first, whole, self._agents, options.agent_concurrency)

    def _by_agent(
        self, tr: Transaction, n: int, first: First, whole: _Slots, agents: Agents, limit: int
    ) -> list[Candidate]:
        prefix = self._layout.agent_slots
        held: dict[str, list[bytes]] = defaultdict(list)
        for row in tr.snapshot.get_range(*self._layout.range_of(prefix)):
            held[self._layout.agent_of_slot(row.key)].append(row.key)
        slots: dict[str | None, _Slots] = {None: _Slots(n)}

        def of(agent: str | None) -> _Slots:
            if agent not in slots:
                slots[agent] = self._slots(tr, agent, limit, held.get(str(agent), ()))
            return slots[agent]

        rows: Iterable[KeyValue] = first(tr, n)
        wanted = Counter(agents.agent_of(tr, row) for row in rows)
        if any(of(agent).left < number for agent, number in wanted.items()):
            # Skip the agents at their limit; read the next tasks of the other agents.
            full = {agent for agent in held if of(agent).left == 0}
            rows = agents.first_excluding(tr, n, full)
        admitted: list[Candidate] = []
        for row in rows:
            own = of(agents.agent_of(tr, row))
            if own.left > 0:
                admitted.append(Candidate(row.key, row.value, whole.take(tr) + own.take(tr)))
            if len(admitted) == n:
                break
        return admitted

    def _slots(
        self, tr: Transaction, agent: str | None, limit: int, held: Iterable[bytes] | None = None
    ) -> _Slots:
        """Return the slots of the queue, or of an agent, that the transaction sees free."""
        layout = self._layout
        prefix = layout.slot_prefix(agent)
        whole = layout.range_of(prefix)
        if held is None:
            held = [row.key for row in tr.snapshot.get_range(*whole)]
        taken = {layout.slot_in(prefix, key) for key in held}
        free = [number for number in range(limit) if number not in taken]
        self._shuffle(free)
        # After the limit was lowered, some items still hold slots beyond it.
        left = max(0, limit - len(taken))
        if left == 0 or max(taken, default=0) >= limit:
            tr.add_read_conflict_range(*whole)
        keys = [layout.slot_key(prefix, number) for number in free[:left]]
        return _Slots(left, [key[len(layout.slots) :] for key in keys], layout.slots)


class _Slots:
    """The free slots of one limit. Without keys there is no limit."""

    def __init__(self, left: int, free: list[bytes] | None = None, prefix: bytes = b"") -> None:
        self.left = left
        self._free = free
        self._prefix = prefix

    def take(self, tr: Transaction) -> tuple[bytes, ...]:
        """Take a free slot and conflict on it; return it in the form that a claim stores."""
        if self._free is None:
            return ()
        self.left -= 1
        slot = self._free.pop()
        tr.add_read_conflict_key(self._prefix + slot)
        return (slot,)
