"""Which items may be claimed: as many at a time as the limits of concurrency allow."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

from fdbqueue.layout import Layout
from fdbqueue.operations.items import Row
from fdbqueue.operations.schedule import Schedule

__all__ = ["MOST_SLOTS", "Agents", "Candidate", "First", "Limits"]

MOST_SLOTS = 10_000
"""The highest limit of concurrency."""

First: TypeAlias = Callable[[Any, int], list[Row]]
"""Reads the first so many items in a transaction."""


class Candidate(NamedTuple):
    """An item that may be claimed, and the slots that it is to hold."""

    key: bytes
    value: bytes
    slots: tuple[bytes, ...] = ()


class Agents(Protocol):
    """The agents of a task queue."""

    def agent_of(self, tr: Any, row: Row) -> str | None:
        """Whose task it is."""
        ...

    def first_but(self, tr: Any, n: int, agents: Container[str | None]) -> Iterator[Row]:
        """The first tasks, in order, but those of some agents; of each other one up to `n`."""
        ...


class Limits:
    """The limits of one queue.

    Each claimed item holds a slot of the queue, and one of its agent, where those have a limit:
    there are as many slots. A claim takes slots at random among those that it sees free, and
    conflicts only with who takes the same ones: never are more items claimed than there are slots,
    and claims do not conflict with the acknowledgements that free others.
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

    def admit(self, tr: Any, n: int, first: First) -> list[Candidate]:
        """The first items that may be claimed, up to `n`; none if the queue is paused."""
        options = self._schedule.options(tr)
        if options is None:
            return [Candidate(*row) for row in first(tr, n)]
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
            return [Candidate(*row, whole.take(tr)) for row in first(tr, n)]
        return self._by_agent(tr, n, first, whole, self._agents, options.agent_concurrency)

    def _by_agent(
        self, tr: Any, n: int, first: First, whole: _Slots, agents: Agents, limit: int
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

        rows: Iterable[Row] = first(tr, n)
        wanted = Counter(agents.agent_of(tr, row) for row in rows)
        if any(of(agent).left < number for agent, number in wanted.items()):
            # What is behind those that have to wait comes after what others have before it.
            full = {agent for agent in held if of(agent).left == 0}
            rows = agents.first_but(tr, n, full)
        admitted: list[Candidate] = []
        for row in rows:
            own = of(agents.agent_of(tr, row))
            if own.left > 0:
                admitted.append(Candidate(*row, whole.take(tr) + own.take(tr)))
            if len(admitted) == n:
                break
        return admitted

    def _slots(
        self, tr: Any, agent: str | None, limit: int, held: Iterable[bytes] | None = None
    ) -> _Slots:
        """The slots of the queue, or of an agent, that a transaction sees free."""
        layout = self._layout
        prefix = layout.slot_prefix(agent)
        whole = layout.range_of(prefix)
        if held is None:
            held = [row.key for row in tr.snapshot.get_range(*whole)]
        taken = {layout.slot_in(prefix, key) for key in held}
        free = [number for number in range(limit) if number not in taken]
        self._shuffle(free)
        # After the limit was lowered, some hold slots beyond it.
        left = max(0, limit - len(taken))
        if left == 0 or max(taken, default=0) >= limit:
            tr.add_read_conflict_range(*whole)
        keys = [layout.slot_key(prefix, number) for number in free[:left]]
        return _Slots(left, [key[len(layout.slots) :] for key in keys], layout.slots)


class _Slots:
    """The slots of one limit that are free; without keys, as many as anybody wants."""

    def __init__(self, left: int, free: list[bytes] | None = None, prefix: bytes = b"") -> None:
        self.left = left
        self._free = free
        self._prefix = prefix

    def take(self, tr: Any) -> tuple[bytes, ...]:
        """Take one of them, as a claim has it noted."""
        if self._free is None:
            return ()
        self.left -= 1
        slot = self._free.pop()
        tr.add_read_conflict_key(self._prefix + slot)
        return (slot,)
