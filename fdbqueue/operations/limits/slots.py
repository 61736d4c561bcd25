"""Concurrency limits: how many items of a queue or of an agent may be claimed at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from fdbqueue.layout.items import StoredItem
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import ONE, ZERO, decode_count, encode_count
from fdbqueue.operations.limits.bounds import Places
from fdbqueue.operations.options import limits_agents
from fdbqueue.operations.transitions import Change
from fdbqueue.operations.waking import Waiters
from fdbqueue.types import Options, ReadTransaction, Transaction, Value

if TYPE_CHECKING:
    from fdbqueue.operations.items import Items

_ANY_NUMBER = 1 << 62  # of items

MAX_SLOTS = 10_000
"""The highest concurrency limit."""

First: TypeAlias = Callable[[Transaction, int], Sequence[StoredItem]]
"""A function that reads up to `n` first items in a transaction."""


class Candidate(NamedTuple):
    """An item that may be claimed.

    Attributes:
        item: The item.
        limits: The limits whose slots it would hold.
    """

    item: StoredItem
    limits: tuple[Limit, ...] = ()


class Freed(NamedTuple):
    """Slots with the same name that a transaction frees.

    Attributes:
        slot: Their name, as the claims have stored it.
        n: Their number.
        group: The group that they belong to; `None` for the queue or an agent.
        held: A value that is present if the group is held.
    """

    slot: bytes
    n: int
    group: str | None
    held: Value | None


class Agents(Protocol):
    """The agents of a task queue, and its tasks by agent."""

    def limits_of(
        self, reads: ReadTransaction, agents: Iterable[str], /
    ) -> Iterable[tuple[int | None, int | None]]:
        """Return how many tasks of each agent may be claimed at a time, and how many started."""
        ...

    def held(self, reads: ReadTransaction, /) -> set[str]:
        """Return the agents that are held."""
        ...

    def first_excluding(
        self, tr: Transaction, n: int, agents: Container[str | None]
    ) -> Iterator[StoredItem]:
        """Yield tasks in order, excluding some agents; at most `n` per remaining agent."""
        ...


class Limit:
    """The limit of a queue or an agent, as one transaction sees it.

    Attributes:
        slot: The name of its counter within the space of slots, as claims store it.
        left: The number of items that may still be claimed.
    """

    def __init__(
        self, layout: Layout, places: Places, agent: str | None, taken: int, bound: int | None
    ) -> None:
        self._layout = layout
        self._places = places
        self._taken = taken
        self._bound = bound
        self.slot = layout.slot_of(agent)
        self.left = _ANY_NUMBER if bound is None else max(0, bound - taken)

    def hold(self, tr: Transaction, n: int) -> None:
        """Take a slot for each of `n` items; there must be as many left."""
        layout = self._layout
        if self._bound is not None:
            self._places.take(tr, layout.slot_places + self.slot, self._taken, self._bound, n)
        self._taken += n
        tr.add(layout.slots + self.slot, encode_count(n))


class Slots:
    """The slots of one queue, which enforce its concurrency limits.

    A queue with a limit has as many slots as the limit allows, and so does each agent with a limit.
    A claimed item holds a slot of its queue and a slot of its agent. Only their number is stored;
    `Places` says how claims keep to the limit without conflicting with each other far from it. A
    claim conflicts with an acknowledgement that frees a slot only if it saw that none was free.

    An agent may be paused, or have a rate, and a limit of its own (`set_group`); the limit of all
    agents is an option of the queue. Once any agent has one of these, the tasks of all agents hold
    slots, so that `groups` can show how many are claimed.

    Cost: a claim reads one counter, and with limits for agents one for each agent that has claimed
    tasks, whatever the limit is. With limits of single agents, it reads those of its tasks' agents.
    """

    def __init__(self, items: Items, agents: Agents | None, places: Places) -> None:
        layout = self._layout = items.layout
        self._places = places
        self._options = items.options
        self._agent_of = items.group_of
        self._groups = items.groups
        self.rate = items.rate
        self._waiting = Waiters(layout, layout.waiting_claims)
        self._agents = agents

    def admit(
        self,
        tr: Transaction,
        now: int,
        n: int,
        options: Options | None,
        first: First,
        may_skip: bool = True,
    ) -> list[Candidate]:
        """Return up to `n` first items that may be claimed; none if the queue is paused.

        Args:
            tr: A transaction.
            now: The time in milliseconds since 1970.
            n: The maximum number of items, from 1.
            options: The options of the queue, as the transaction read them.
            first: Reads the first items.
            may_skip: Whether to skip the tasks of agents at their limit for any other tasks.
        """
        if options is not None:
            self._options.note(options)
            if options.paused:
                return []
            if options.rate is not None:
                n = self.rate.room(tr, now, options, n)
                if n == 0:
                    return []
        agents = self._agents if self._agents and options and limits_agents(options) else None
        if options is None or (options.concurrency is None and agents is None):
            return [*map(Candidate, first(tr, n))]
        limits: tuple[Limit, ...] = ()
        if options.concurrency is not None:
            counter = tr.snapshot[self._layout.slots + self._layout.slot_of(None)]
            limit = self._limit(tr, None, decode_count(counter.value), options.concurrency)
            n = min(n, limit.left)
            limits = (limit,)
        if n == 0:
            return []
        if agents is None:
            return [Candidate(item, limits) for item in first(tr, n)]
        return self._by_agent(tr, n, options, first, may_skip, limits, agents)

    def _by_agent(
        self,
        tr: Transaction,
        n: int,
        options: Options,
        first: First,
        may_skip: bool,
        limits: tuple[Limit, ...],
        agents: Agents,
    ) -> list[Candidate]:
        layout = self._layout
        rows = tr.snapshot.get_range(*layout.range_of(layout.agent_slots))
        taken = {
            layout.unpack_entry_key(layout.agent_slots, row.key): decode_count(row.value)
            for row in rows
        }
        of_agent: dict[str, Limit] = {}

        def read_limits(names: Iterable[str | None]) -> None:
            new = [name for name in names if name is not None and name not in of_agent]
            found: Iterable[tuple[int | None, int | None]] = repeat((None, None))
            if options.limited_groups:
                found = agents.limits_of(tr.snapshot, new)
            for name, (own, startable) in zip(new, found):
                bound = options.agent_concurrency if own is None else own
                limit = self._limit(tr, name, taken.get(name, 0), bound)
                limit.left = min(limit.left, _ANY_NUMBER if startable is None else startable)
                of_agent[name] = limit

        def has_room(agent: str | None, number: int = 1) -> bool:
            read_limits([agent])
            return agent is None or of_agent[agent].left >= number

        items: Iterable[StoredItem] = first(tr, n)
        wanted = Counter(self._agent_of(tr, item) for item in items)
        read_limits(wanted)
        if may_skip and not all(has_room(agent, number) for agent, number in wanted.items()):
            # Skip the agents at their limits; read the next tasks of the other agents.
            read_limits(taken)
            full = {name for name in taken if not has_room(name)}
            if options.limited_groups:
                full |= agents.held(tr.snapshot)
            items = agents.first_excluding(tr, n, full)
        admitted: list[Candidate] = []
        for item in items:
            agent = self._agent_of(tr, item)
            if has_room(agent):
                held = limits
                if agent is not None:
                    of_agent[agent].left -= 1
                    held = (*limits, of_agent[agent])
                admitted.append(Candidate(item, held))
            if len(admitted) == n:
                break
        return admitted

    def _limit(self, tr: Transaction, agent: str | None, taken: int, bound: int | None) -> Limit:
        limit = Limit(self._layout, self._places, agent, taken, bound)
        if limit.left == 0:  # conflict with operations that free a slot
            tr.add_read_conflict_key(self._layout.slots + limit.slot)
        return limit

    def begin(
        self, tr: Transaction, now: int, changes: Sequence[Change]
    ) -> Callable[[], None] | None:
        """Start the reads for the slots that items free; see `transitions.Maintainer`."""
        slots: list[bytes] = []
        for _, before, after, _ in changes:
            if before is not None and (after is None or after.state != "claimed"):
                slots += before.slots
        if not slots:
            return None
        freed = self._begin_free(tr, slots)
        return lambda: self._free(tr, now, freed)

    def _begin_free(self, tr: Transaction, slots: Sequence[bytes]) -> list[Freed]:
        """Start to read whether slots belong to groups that are held."""
        numbers = Counter(slots)
        groups = map(self._layout.group_of_slot, numbers)
        return [
            Freed(slot, n, group, None if group is None else self._groups.begin_free(tr, group))
            for (slot, n), group in zip(numbers.items(), groups)
        ]

    def _free(self, tr: Transaction, now: int, slots: Sequence[Freed]) -> None:
        """Free slots, and wake the clients that wait for a free slot."""
        n_usable = 0
        for slot, n, group, held in slots:
            counter = self._layout.slot_counter(slot)
            tr.add(counter, encode_count(-n))
            tr.compare_and_clear(counter, ZERO)
            if group is None or held is None or self._groups.note_freed(tr, now, group, held):
                n_usable += n
        if n_usable:
            tr.add(self._layout.wake_counter, ONE)
            self._waiting.wake(tr, n_usable)
