"""Concurrency limits: how many items of a queue or of an agent may be claimed at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias
from weakref import WeakKeyDictionary

from fdbqueue.errors import QueueFull
from fdbqueue.layout.items import StoredItem
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import MINUS_ONE, ONE, ZERO, decode_count, encode_count
from fdbqueue.operations.waking import Waiters
from fdbqueue.types import Options, ReadTransaction, Transaction

if TYPE_CHECKING:
    from fdbqueue.operations.items import Items

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


class Places:
    """Numbered places below a bound, of which a transaction takes one for each item that it adds.

    Places are never written; transactions only conflict on them. A counter says how many are taken.
    A transaction reads it by a snapshot, so that it does not conflict with every other one. It
    chooses places at random between the number of taken places and the bound. Two transactions
    conflict if they choose the same place, or if one chooses a place with a number below the number
    that the other one read. Conflicts are rare far from the bound, and frequent near it.

    Proof that the bound is never exceeded: consider all transactions that took places and have
    committed. Let T be the one with the latest read version, and m the number of taken places that
    T saw. Only the transactions that committed after this read version matter. No read version is
    later, so all of them were checked against each other and against T. So their places differ. No
    place is below m, because its transaction would have conflicted with T. No place is above the
    bound. All other operations since then left the number of taken places unchanged or lowered it.
    So the taken places never outnumber the bound.

    A transaction that also ends items sees their places as free. This is sound: it conflicts with
    every other operation that ends or moves the same items, so each place is freed only once.
    """

    def __init__(self, randrange: Callable[[int, int], int] | None = None) -> None:
        self._randrange = randrange
        # What transactions in progress took, by prefix: read version, begin, end.
        self._taken: WeakKeyDictionary[Any, dict[bytes, tuple[int, int, int]]] = WeakKeyDictionary()

    def take(
        self,
        tr: Transaction,
        prefix: bytes,
        taken: int,
        bound: int,
        n: int,
        choose: Callable[[int, int], int] | None = None,
    ) -> None:
        """Take `n` places in addition to the places that the transaction already has.

        Args:
            tr: The transaction.
            prefix: The prefix of the places.
            taken: The number of taken places, including the transaction's own.
            bound: The number of places.
            n: The number of places to take; the bound must have room for them.
            choose: Returns a number from the first one to below the second one; by default, it is
                chosen at random.
        """
        choose = choose or self._randrange
        assert choose is not None
        version = tr.get_read_version().wait()
        own = self._taken.setdefault(tr, {})
        since, begin, end = own.get(prefix, (version, 0, 0))
        if since != version:  # an earlier try of the transaction took these places
            begin = end = 0
        seen = taken - (end - begin)
        if begin == end:
            begin = end = choose(seen, bound - n + 1)
        above = min(n, bound - end)
        begin, end = begin - (n - above), end + above
        own[prefix] = version, begin, end
        between = Layout.places_between
        places = between(prefix, 0, begin, end)
        tr.add_write_conflict_range(*places)
        tr.add_read_conflict_range(*places)
        tr.add_read_conflict_range(*between(prefix, 1, begin, end))
        if seen > 0:
            tr.add_write_conflict_range(*between(prefix, 1, 0, seen))
            tr.add_read_conflict_range(*between(prefix, 0, 0, seen))


class Bound:
    """The bound of a queue: an item takes a place until it ends, whatever its state."""

    def __init__(self, items: Items, places: Places) -> None:
        self._layout = items.layout
        self._items = items
        self._places = places

    def reserve(self, tr: Transaction) -> None:
        """Take a place for one item; raise `QueueFull` if no place is free."""
        options = self._items.options.read(tr)
        if options is None or options.max_size is None:
            return
        taken = self.begin_count(tr)()
        if taken >= options.max_size:
            self.rely_on_full(tr)
            raise QueueFull(options.max_size, 1)
        self.take(tr, taken, options.max_size, 1)

    def begin_count(self, tr: Transaction) -> Callable[[], int]:
        """Start to count the taken places.

        The reads are snapshot reads, which see the transaction's own writes.

        Cost: the counters, at most 260 small rows.

        Returns:
            A function that waits for the reads and returns the count.
        """
        counters = self._items.begin_counters(tr.snapshot)
        return lambda: counters().unfinished

    def take(self, tr: Transaction, taken: int, bound: int, n: int) -> None:
        """Take `n` places below the bound, given the number of those that are taken."""
        self._places.take(tr, self._layout.places, taken, bound, n)

    def rely_on_full(self, tr: Transaction) -> None:
        """Conflict with every operation that frees a place, so that the queue is full at commit."""
        layout = self._layout
        for key in (layout.tallies, layout.level_counts):
            tr.add_read_conflict_key(key)
        tr.add_read_conflict_range(*layout.range_of(layout.level_counts))


class Limit:
    """The limit of a queue or an agent, as one transaction sees it.

    Attributes:
        slot: The name of its counter within the space of slots, as claims store it.
        left: The number of items that may still be claimed.
    """

    def __init__(
        self, layout: Layout, places: Places, agent: str | None, taken: int, bound: int
    ) -> None:
        self._layout = layout
        self._places = places
        self._taken = taken
        self._bound = bound
        self.slot = layout.slot_of(agent)
        self.left = max(0, bound - taken)

    def hold(self, tr: Transaction, n: int) -> None:
        """Take a slot for each of `n` items; there must be as many left."""
        layout = self._layout
        self._places.take(tr, layout.slot_places + self.slot, self._taken, self._bound, n)
        self._taken += n
        tr.add(layout.slots + self.slot, encode_count(n))


class Slots:
    """The slots of one queue, which enforce its concurrency limits.

    A queue with a limit has as many slots as the limit allows, and so does each agent with a limit.
    A claimed item holds a slot of its queue and a slot of its agent. Only their number is stored;
    `Places` says how claims keep to the limit without conflicting with each other far from it. A
    claim conflicts with an acknowledgement that frees a slot only if it saw that none was free.

    Cost: a claim reads one counter, and with limits for agents one for each agent that has claimed
    tasks, whatever the limit is.
    """

    def __init__(self, items: Items, agents: Agents | None, places: Places) -> None:
        layout = self._layout = items.layout
        self._places = places
        self._options = items.options
        self._groups = items.groups
        self._waiting = Waiters(layout, layout.waiting_claims)
        self._agents = agents

    def admit(
        self, tr: Transaction, n: int, options: Options | None, first: First, may_skip: bool = True
    ) -> list[Candidate]:
        """Return up to `n` first items that may be claimed; none if the queue is paused.

        Args:
            tr: A transaction.
            n: The maximum number of items, from 1.
            options: The options of the queue, as the transaction read them.
            first: Reads the first items.
            may_skip: Whether to skip the tasks of agents at their limit for any other tasks.
        """
        if options is not None:
            self._options.note(options)
            if options.paused:
                return []
        if options is None or (options.concurrency is None and options.agent_concurrency is None):
            return [*map(Candidate, first(tr, n))]
        limits: tuple[Limit, ...] = ()
        if options.concurrency is not None:
            counter = tr.snapshot[self._layout.slots + self._layout.slot_of(None)]
            limit = self._limit(tr, None, decode_count(counter.value), options.concurrency)
            n = min(n, limit.left)
            limits = (limit,)
        if n == 0:
            return []
        if options.agent_concurrency is None or self._agents is None:
            return [Candidate(item, limits) for item in first(tr, n)]
        bound = options.agent_concurrency
        return self._by_agent(tr, n, first, may_skip, limits, self._agents, bound)

    def _by_agent(
        self,
        tr: Transaction,
        n: int,
        first: First,
        may_skip: bool,
        limits: tuple[Limit, ...],
        agents: Agents,
        bound: int,
    ) -> list[Candidate]:
        layout = self._layout
        rows = tr.snapshot.get_range(*layout.range_of(layout.agent_slots))
        taken = {
            layout.unpack_entry_key(layout.agent_slots, row.key): decode_count(row.value)
            for row in rows
        }
        of_agent: dict[str, Limit] = {}

        def has_room(agent: str | None, number: int = 1) -> bool:
            if agent is None:
                return True
            if agent not in of_agent:
                of_agent[agent] = self._limit(tr, agent, taken.get(agent, 0), bound)
            return of_agent[agent].left >= number

        items: Iterable[StoredItem] = first(tr, n)
        wanted = Counter(agents.agent_of(tr, item) for item in items)
        if may_skip and not all(has_room(agent, number) for agent, number in wanted.items()):
            # Skip the agents at their limit; read the next tasks of the other agents.
            items = agents.first_excluding(tr, n, {name for name in taken if not has_room(name)})
        admitted: list[Candidate] = []
        for item in items:
            agent = agents.agent_of(tr, item)
            if has_room(agent):
                held = limits
                if agent is not None:
                    of_agent[agent].left -= 1
                    held = (*limits, of_agent[agent])
                admitted.append(Candidate(item, held))
            if len(admitted) == n:
                break
        return admitted

    def _limit(self, tr: Transaction, agent: str | None, taken: int, bound: int) -> Limit:
        limit = Limit(self._layout, self._places, agent, taken, bound)
        if limit.left == 0:  # conflict with operations that free a slot
            tr.add_read_conflict_key(self._layout.slots + limit.slot)
        return limit

    def free(self, tr: Transaction, now: int, slots: Sequence[bytes]) -> None:
        """Free slots, and wake the clients that wait for a free slot."""
        n = 0
        for slot in slots:
            counter = self._layout.slot_counter(slot)
            tr.add(counter, MINUS_ONE)
            tr.compare_and_clear(counter, ZERO)
            group = self._layout.group_of_slot(slot)
            n += group is None or self._groups.note_freed(tr, now, group)
        if n:
            tr.add(self._layout.wake_counter, ONE)
            self._waiting.wake(tr, n)
