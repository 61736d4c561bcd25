"""Concurrency limits: how many items of a queue or of an agent may be claimed at a time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

from fdbqueue.layout import Layout
from fdbqueue.layout.items import StoredItem
from fdbqueue.operations.schedule import Schedule
from fdbqueue.types import ReadTransaction, Transaction

__all__ = ["MAX_SLOTS", "Agents", "Candidate", "First", "ReadFirst", "Slots"]

MAX_SLOTS = 10_000
"""The highest concurrency limit."""

First: TypeAlias = Callable[[Transaction, int], Sequence[StoredItem]]
"""A function that reads up to `n` first items in a transaction."""

ReadFirst: TypeAlias = Callable[[ReadTransaction, int], Sequence[StoredItem]]
"""The same, where nothing but reads is needed."""


Candidate: TypeAlias = tuple[StoredItem, tuple[bytes, ...]]
"""An item that may be claimed, and the slots it would hold."""


class Agents(Protocol):
    """The agents of a task queue."""

    def agent_of(self, tr: ReadTransaction, item: StoredItem) -> str | None:
        """Return the agent of a task."""
        ...

    def first_excluding(
        self, tr: Transaction, n: int, agents: Container[str | None]
    ) -> Iterator[StoredItem]:
        """Yield tasks in order, excluding some agents; at most `n` per remaining agent."""
        ...


class Slots:
    """The slots of one queue, which enforce its concurrency limits.

    A queue with a limit has as many slots as the limit allows, and so does each agent with a limit.
    A claimed item holds a slot of its queue and a slot of its agent. A claim takes random free
    slots and conflicts only with claims of the same slots. So claimed items never outnumber slots,
    and a claim does not conflict with an acknowledgement that frees another slot.
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

    def admit(
        self, tr: Transaction, n: int, first: First, may_skip: bool = True
    ) -> list[Candidate]:
        """Return up to `n` first items that may be claimed; none if the queue is paused.

        Args:
            tr: A transaction.
            n: The maximum number of items, from 1.
            first: Reads the first items.
            may_skip: Whether to skip the tasks of agents at their limit for any other tasks.
        """
        options = self._schedule.options(tr)
        if options is not None:
            self._schedule.max_attempts = options.max_attempts
            if options.paused:
                return []
        if options is None or (options.concurrency is None and options.agent_concurrency is None):
            return [(item, ()) for item in first(tr, n)]
        of_queue = _FreeSlots(n)
        if options.concurrency is not None:
            of_queue = self._free(tr, None, options.concurrency)
            n = min(n, of_queue.left)
        if n == 0:
            return []
        if options.agent_concurrency is None or self._agents is None:
            return [(item, of_queue.take(tr)) for item in first(tr, n)]
        limit = options.agent_concurrency
        return self._by_agent(tr, n, first, may_skip, of_queue, self._agents, limit)

    def _by_agent(
        self,
        tr: Transaction,
        n: int,
        first: First,
        may_skip: bool,
        of_queue: _FreeSlots,
        agents: Agents,
        limit: int,
    ) -> list[Candidate]:
        prefix = self._layout.agent_slots
        held: dict[str, list[bytes]] = defaultdict(list)
        for row in tr.snapshot.get_range(*self._layout.range_of(prefix)):
            held[self._layout.unpack_agent_slot_key(row.key)].append(row.key)
        slots: dict[str | None, _FreeSlots] = {None: _FreeSlots(n)}

        def slots_of(agent: str | None) -> _FreeSlots:
            if agent not in slots:
                slots[agent] = self._free(tr, agent, limit, held.get(str(agent), ()))
            return slots[agent]

        items: Iterable[StoredItem] = first(tr, n)
        wanted = Counter(agents.agent_of(tr, item) for item in items)
        if may_skip and any(slots_of(agent).left < number for agent, number in wanted.items()):
            # Skip the agents at their limit; read the next tasks of the other agents.
            full = {agent for agent in held if slots_of(agent).left == 0}
            items = agents.first_excluding(tr, n, full)
        admitted: list[Candidate] = []
        for item in items:
            of_agent = slots_of(agents.agent_of(tr, item))
            if of_agent.left > 0:
                admitted.append((item, of_queue.take(tr) + of_agent.take(tr)))
            if len(admitted) == n:
                break
        return admitted

    def _free(
        self, tr: Transaction, agent: str | None, limit: int, held: Iterable[bytes] | None = None
    ) -> _FreeSlots:
        """Return the slots of the queue, or of an agent, that the transaction sees free."""
        layout = self._layout
        prefix = layout.slot_prefix(agent)
        all_slots = layout.range_of(prefix)
        if held is None:
            held = [row.key for row in tr.snapshot.get_range(*all_slots)]
        taken = {layout.unpack_slot_key(prefix, key) for key in held}
        free = [number for number in range(limit) if number not in taken]
        self._shuffle(free)
        # After the limit was lowered, items may still hold slots beyond it.
        left = max(0, limit - len(taken))
        if left == 0 or max(taken, default=0) >= limit:
            tr.add_read_conflict_range(*all_slots)
        keys = [layout.slot_key(prefix, number) for number in free[:left]]
        return _FreeSlots(left, [key[len(layout.slots) :] for key in keys], layout.slots)


class _FreeSlots:
    """The free slots of a queue or an agent. Without a list of slots there is no limit."""

    def __init__(self, left: int, free: list[bytes] | None = None, prefix: bytes = b"") -> None:
        self.left = left
        self._free = free
        self._prefix = prefix

    def take(self, tr: Transaction) -> tuple[bytes, ...]:
        """Take a free slot and conflict on it; return it in the form that a claim stores.

        Without a limit, return an empty tuple.
        """
        if self._free is None:
            return ()
        self.left -= 1
        slot = self._free.pop()
        tr.add_read_conflict_key(self._prefix + slot)
        return (slot,)
