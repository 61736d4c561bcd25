"""The priority queue: the lowest priority first, and within a priority first in, first out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Literal, overload

from fdb.subspace_impl import Subspace

from fdbqueue.coordination.sans_io import SansIO, driven
from fdbqueue.coordination.store import Store
from fdbqueue.layout.codecs import codec_name, codec_named, stored_codec
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.priorities import Priorities
from fdbqueue.layout.rows import ItemCodec
from fdbqueue.operations.items import Items, Moved
from fdbqueue.queue.arguments import (
    kept_options,
    new_headers,
    validate_if_full,
    validate_number,
    validate_state,
    validate_wait,
)
from fdbqueue.queue.base import BaseQueue, each_group, find_stored, new_items, read_stored
from fdbqueue.queue.item_log import log_items
from fdbqueue.queue.schedules import Schedules
from fdbqueue.queue.steps import JobSteps
from fdbqueue.types import (
    Codec,
    Duration,
    IfFull,
    Item,
    ItemInfo,
    Keep,
    OfCodec,
    Options,
    Priority,
    PriorityKind,
    ReadTransactor,
    State,
    Transactor,
    UniqueUntil,
    V,
)


class PriorityQueue(BaseQueue[Item[V]]):
    """A queue ordered by priority, and by time of arrival within a priority.

    **Transactions.** Every method takes a transaction or a database as `tr`. In a transaction, the
    call is part of it: it commits together with everything else in the transaction, and the
    caller's retry loop repeats it. After an unknown commit result (1021) the caller has to find out
    what happened; `fdbqueue.transactional(receipts=...)` does that. Given a database, the method
    commits by itself and takes effect exactly once, even if the result of a commit is unknown.

    **Conflicts.** Pushes conflict neither with each other nor with pops. Pops conflict with each
    other, because they want the same item. Given a database, threads that share a queue object also
    share transactions: everything that they push, or pop, during a commit goes into the next one.
    Pops of several processes are served together as soon as they conflict.

    **Times.** A length of time is a number of seconds, a `timedelta`, or a text such as `"5m"`
    or `"1h30m"`, with the units `ms`, `s`, `m`, `h`, `d` and `w`.

    **Options.** The first push stores them with the queue. A push of a client with another codec or
    other priorities raises `OptionsMismatch`. If its `max_size` or `max_attempts` differs, the
    stored one holds, and a warning is logged. Queue objects are cheap.

    **Types.** For a type checker, `PriorityQueue[Page]` is a queue whose values are pages: write
    `jobs: PriorityQueue[Page] = PriorityQueue.named(db, "jobs")`, or pass a `Codec[Page]`. The same
    holds for `Queue`, and for the payloads of a `TaskQueue`.

    Args:
        subspace: The subspace of the queue; nothing else may be in it.
        codec: `"json"`, `"bytes"`, `"tuple"`, or an object with the methods `encode` and `decode`.
        priorities: The type of priorities: `int` (64 bits), or a tuple of element types such as
            `(int, float)`, from `int`, `float`, `str` and `bytes`.
        max_size: The maximum number of items, with delayed and claimed ones, from 1; `None` keeps
            the stored one.
        max_attempts: How many times an item may be claimed before it becomes a dead letter, from 1;
            `None` keeps the stored number.
        keep: Which done items stay in the queue after their acknowledgement, as for `configure`;
            `None` keeps the stored setting.

    Source: FoundationDB documentation, Design Recipes, "Priority Queues" and its Extensions.

    Example:
        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = PriorityQueue.named(db, "jobs")
        >>> for value, priority in [("later", 5), ("soon", 1), ("soon too", 1)]:
        ...     _ = jobs.push(db, value, priority)
        >>> [jobs.pop(db).value for _ in range(3)]
        ['soon', 'soon too', 'later']
    """

    kind: ClassVar[Literal["priority"]] = "priority"
    """The kind of the queue, as its options have it."""

    def __init__(
        self,
        subspace: Subspace,
        *,
        codec: str | Codec[V] = "json",
        priorities: PriorityKind = int,
        max_size: int | None = None,
        max_attempts: int | None = None,
        keep: Keep | None = None,
    ) -> None:
        layout = Layout(subspace)
        levels = Priorities(layout, priorities)
        options = Options(
            self.kind,
            codec_name(codec),
            priorities,
            max_size,
            max_attempts=max_attempts,
            **kept_options(keep),
        )
        items = ItemCodec(layout, levels, codec_named(codec))
        super().__init__(Store(layout, levels, Items(layout, levels, options), items, options))

    @classmethod
    def _kept(cls, stored: Options) -> dict[str, Any]:
        return {"codec": stored_codec(stored.codec), "priorities": stored.priorities or int}

    @classmethod
    def named(
        cls,
        db: Transactor,
        name: str,
        *,
        codec: str | Codec[OfCodec] | None = None,
        priorities: PriorityKind | None = None,
        max_size: int | None = None,
        max_attempts: int | None = None,
        keep: Keep | None = None,
    ) -> PriorityQueue[OfCodec]:
        """Return the priority queue of this name, which its first push creates.

        Options that are left out are those stored with the queue; a new queue has `"json"`, `int`
        and no limits. A queue whose codec is an object of its users can be opened without it. It
        can be counted, cleared and dropped then; calls that need the codec raise `UnknownCodec` or
        `UndecodableItem`. Cost: three reads in one transaction.

        Args:
            db: A database or a transaction.
            name: Printable text of at most 255 bytes, without spaces at its ends.
            codec: As for the class.
            priorities: As for the class.
            max_size: As for the class.
            max_attempts: As for the class.
            keep: As for the class.

        Raises:
            InvalidQueueName: A queue cannot have this name.
            OptionsMismatch: The queue has other options, or is of another kind.
            LayoutVersionMismatch: Another release of this library stored the queue.
            UnknownCodec: There is no codec of this name.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> PriorityQueue.named(db, "e-mails").size(db)
            0
        """
        queue: PriorityQueue[OfCodec] = cls._open(
            db,
            partial(find_stored, name=name),
            codec=codec,
            priorities=priorities,
            max_size=max_size,
            max_attempts=max_attempts,
            keep=keep,
        )
        return queue

    @classmethod
    def at(
        cls,
        db: Transactor,
        subspace: Subspace,
        *,
        codec: str | Codec[OfCodec] | None = None,
        priorities: PriorityKind | None = None,
        max_size: int | None = None,
        max_attempts: int | None = None,
        keep: Keep | None = None,
    ) -> PriorityQueue[OfCodec]:
        """Return the priority queue in a subspace, which may be a directory of `fdb.directory`.

        Args:
            db: A database or a transaction.
            subspace: The subspace of the queue.
            codec: As for `named`.
            priorities: As for `named`.
            max_size: As for `named`.
            max_attempts: As for `named`.
            keep: As for `named`.

        Raises:
            OptionsMismatch: The queue has other options, or is of another kind.
            LayoutVersionMismatch: Another release of this library stored the queue.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> space = fdbqueue.Subspace(("my", "jobs"))
            >>> _ = PriorityQueue(space, codec="bytes").push(db, b"x")
            >>> PriorityQueue.at(db, space).pop(db).value
            b'x'
        """
        queue: PriorityQueue[OfCodec] = cls._open(
            db,
            partial(read_stored, subspace=subspace),
            codec=codec,
            priorities=priorities,
            max_size=max_size,
            max_attempts=max_attempts,
            keep=keep,
        )
        return queue

    @property
    def schedules(self) -> Schedules[V]:
        """The schedules that push items to this queue."""
        return Schedules(self._store)

    @property
    def steps(self) -> JobSteps[V]:
        """The steps of its jobs, and the signals that they wait for."""
        return JobSteps(self._store)

    # Push

    @overload
    def push(
        self,
        tr: Transactor,
        value: V,
        priority: Priority = 0,
        *,
        group: str | None = None,
        cost: float = 1,
        delay: Duration | None = None,
        at: datetime | None = None,
        ttl: Duration | None = None,
        unique: str | None = None,
        unique_until: UniqueUntil | None = None,
        unique_for: Duration | None = None,
        if_full: Literal["raise"] = "raise",
    ) -> Item[V]: ...

    @overload
    def push(
        self,
        tr: Transactor,
        value: V,
        priority: Priority = 0,
        *,
        group: str | None = None,
        cost: float = 1,
        delay: Duration | None = None,
        at: datetime | None = None,
        ttl: Duration | None = None,
        unique: str | None = None,
        unique_until: UniqueUntil | None = None,
        unique_for: Duration | None = None,
        if_full: IfFull,
    ) -> Item[V] | None: ...

    @driven
    def push(
        self,
        tr: Transactor,
        value: V,
        priority: Priority = 0,
        *,
        group: str | None = None,
        cost: float = 1,
        delay: Duration | None = None,
        at: datetime | None = None,
        ttl: Duration | None = None,
        unique: str | None = None,
        unique_until: UniqueUntil | None = None,
        unique_for: Duration | None = None,
        if_full: IfFull = "raise",
    ) -> SansIO[Item[V] | None]:
        """Put a value behind the last item of its priority.

        Pushes conflict with nothing: two pushes at the same time both succeed, in either order.
        Only the very first push, which stores the options, conflicts with another first push. With
        a maximum size, pushes conflict more often the fewer places are left, and never exceed it;
        an item keeps its place while it is delayed or claimed.

        Cost: two reads at the same time (with a maximum size three), and three keys written. A
        payload over 10,000 bytes takes one more key for each 90,000 bytes. If clients wait for
        items, the push clears the key of one, and so wakes it.

        Args:
            tr: A transaction or a database.
            value: A value that the codec accepts, up to 8,000,000 bytes encoded, with lists and
                objects nested up to 100 levels.
            priority: A priority of the queue's type. The lowest is popped first.
            group: A text of 1 to 255 bytes, such as the name of a customer. Within a priority, the
                groups that have items are served in proportion to their weights (`set_group`),
                however much one of them pushes. Items without a group form a group of their own.
            cost: How much the item counts in the share of its group, from 0.001 to 1,000.
            delay: Seconds during which the item is not handed out, by the clocks of clients. Then
                it is ahead of the items of its priority that were pushed after it.
            at: A `datetime` with a time zone, instead of `delay`. The last one is
                9999-12-31T23:59:59.999+00:00.
            ttl: Seconds after which the item is dropped if no client has taken it, by the clocks of
                clients.
            unique: A key of 1 to 255 bytes of text. If an unfinished item (ready, delayed or
                claimed) has this key, nothing is stored, and the call returns that item, with
                `is_new` false.
            unique_until: `"claimed"`: the key is free once a client has claimed or popped the item,
                so that one item waits while another is being processed. By default `"ended"`.
            unique_for: Seconds during which the key is not free, from the push that stored the item
                on, by the clocks of clients, whether the item has ended or not; instead of
                `unique_until`. If it has ended and is not kept, the value of the returned item is
                the one given.
            if_full: What to do if the queue is full: `"raise"` raises `QueueFull`, `"drop"` stores
                nothing and returns `None`.

        Raises:
            InvalidValue: The codec does not accept the value.
            PayloadTooLarge: The encoded value is too large.
            InvalidPriority: The priority is not of the queue's type.
            OptionsMismatch: The queue has other options.
            QueueFull: The queue is full. Nothing was stored.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = PriorityQueue.named(db, "jobs")
            >>> jobs.push(db, {"to": "ada@example.com"}, priority=2).priority
            2
        """
        raises = if_full == "raise" or validate_if_full(if_full)
        keys = None if unique is None else (unique,)
        headers = new_headers(1, ttl, keys, unique_until, unique_for, cost)
        in_group = None if group is None else (group,)
        new = new_items(self._store, (value,), (priority,), in_group, delay, at, headers)
        items: list[Item[V]] = yield from self._store.push(tr, new, False, raises)
        yield from log_items(self._store, tr, items)
        return items[0] if items else None

    @driven
    def push_many(
        self,
        tr: Transactor,
        values: Iterable[V],
        priority: Priority = 0,
        *,
        priorities: Iterable[Priority] | None = None,
        group: str | None = None,
        groups: Iterable[str | None] | None = None,
        cost: float = 1,
        delay: Duration | None = None,
        at: datetime | None = None,
        ttl: Duration | None = None,
        unique: Iterable[str | None] | None = None,
        unique_until: UniqueUntil | None = None,
        unique_for: Duration | None = None,
        as_many_as_fit: bool = False,
        if_full: IfFull = "raise",
    ) -> SansIO[list[Item[V]]]:
        """Push several values in one transaction: all of them or none.

        Several times as fast as single pushes. A transaction holds 10,000,000 bytes, of which each
        item takes about 250 in addition to its payload; `PushTooLarge` refuses more.
        Conflicts and cost are those of `push`.

        Args:
            tr: A transaction or a database.
            values: Values that the codec accepts.
            priority: The priority of all values.
            priorities: One priority for each value, instead of `priority`.
            group: As for `push`, for all values.
            groups: One group, or `None`, for each value, instead of `group`.
            cost: As for `push`, for all values.
            delay: As for `push`.
            at: As for `push`.
            ttl: As for `push`.
            unique: A unique key, or `None`, for each value.
            unique_until: As for `push`, for all keys.
            unique_for: As for `push`, for all keys.
            as_many_as_fit: If the queue has no room for all values, push the first ones that fit,
                or none.
            if_full: What to do if the queue has no room for all values, unless `as_many_as_fit`:
                `"raise"` raises `QueueFull`, `"drop"` stores nothing.

        Returns:
            The items that were pushed, or that have the unique keys of the values.

        Raises:
            PushTooLarge: One transaction has no room for all values. Nothing was stored.
            ValueError: The numbers of values, priorities and keys differ, or one of the errors of
                `push`.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = PriorityQueue.named(db, "jobs")
            >>> _ = jobs.push_many(db, ["b", "a"], priorities=[2, 1])
            >>> jobs.pop(db).value
            'a'
        """
        values = list(values)
        given = [priority] * len(values) if priorities is None else list(priorities)
        if len(given) != len(values):
            raise ValueError(f"there are {len(values)} values and {len(given)} priorities")
        headers = new_headers(len(values), ttl, unique, unique_until, unique_for, cost)
        in_groups = each_group(len(values), group, groups)
        new = new_items(self._store, values, given, in_groups, delay, at, headers)
        raises = validate_if_full(if_full) and not as_many_as_fit
        items: list[Item[V]] = yield from self._store.push(tr, new, as_many_as_fit, raises)
        yield from log_items(self._store, tr, items)
        return items

    # Pop and peek

    @driven
    def pop_min(self, tr: Transactor, *, wait: Duration = 0) -> SansIO[Item[V] | None]:
        """Remove and return the oldest item of the lowest priority, or `None` if there is none.

        **Conflicts.** In a transaction, a pop reads the keys of the queue from the first one to the
        one of its item, and conflicts with every transaction that changes any of them: with another
        pop, with a claim or removal of the item, and with a push or a return of an item that would
        have come first. It does not conflict with changes behind its item. A pop that finds the
        queue empty conflicts with every push.

        Given a database, a pop that met a conflict leaves a request instead
        of trying again: one process serves the requests of all in order, and the others sleep.
        Items staged for a process that died return to their places after five seconds.

        Cost: one read of one row, and three keys written. A request costs two commits and a share
        of the transaction that serves it.

        Args:
            tr: A transaction or a database.
            wait: How many seconds to wait for an item, `math.inf` for ever. Needs a database. The
                client sleeps until a push wakes it; each item wakes one of the clients that wait.
                (It notices items that another implementation of the recipe writes within 25
                seconds.)
                A call that waits writes two small keys, and one more if its time is over.

        Raises:
            UndecodableItem: The codec cannot decode the item, which stays in the queue.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = PriorityQueue.named(db, "jobs")
            >>> _ = jobs.push_many(db, ["b", "a"], priorities=[2, 1])
            >>> jobs.pop_min(db).value, jobs.pop_min(db).value, jobs.pop_min(db)
            ('a', 'b', None)
        """
        items = yield from self._store.pop(tr, 1, False, validate_wait(tr, wait))
        yield from log_items(self._store, tr, items, popped=True)
        return items[0] if items else None

    pop = pop_min

    @driven
    def pop_max(self, tr: Transactor, *, wait: Duration = 0) -> SansIO[Item[V] | None]:
        """Remove and return the oldest item of the highest priority, or `None` if there is none.

        Works as `pop_min` at the other end of the queue. Within a priority it is first in, first
        out as well, where FoundationDB's recipe is last in, first out. So in a transaction it also
        conflicts with a push of the same priority. Cost: two reads of one row.

        Args:
            tr: A transaction or a database.
            wait: As for `pop_min`.

        Raises:
            UndecodableItem: The codec cannot decode the item, which stays in the queue.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = PriorityQueue.named(db, "jobs")
            >>> _ = jobs.push_many(db, ["low", "first", "second"], priorities=[1, 9, 9])
            >>> jobs.pop_max(db).value
            'first'
        """
        items = yield from self._store.pop(tr, 1, True, validate_wait(tr, wait))
        yield from log_items(self._store, tr, items, popped=True)
        return items[0] if items else None

    @driven
    def pop_many(
        self, tr: Transactor, n: int, max: bool = False, *, wait: Duration = 0
    ) -> SansIO[list[Item[V]]]:
        """Remove and return up to `n` of the first items in order, in one transaction.

        Several times as fast as single pops, whose conflicts it shares. Cost: one read of `n` rows;
        with `max`, two reads for each priority.

        Args:
            tr: A transaction or a database.
            n: The maximum number of items, from 0. The keys of all items have to fit into the
                10,000,000 bytes of a transaction.
            max: Take the items that `pop_max` would take.
            wait: How many seconds to wait for the first item, as for `pop_min`.

        Raises:
            UndecodableItem: The codec cannot decode an item; all of them stay in the queue.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = PriorityQueue.named(db, "jobs")
            >>> _ = jobs.push_many(db, ["a", "b", "c"])
            >>> [item.value for item in jobs.pop_many(db, 2)]
            ['a', 'b']
        """
        n, wait = validate_number(n), validate_wait(tr, wait)
        items = yield from self._store.pop(tr, n, max, wait)
        yield from log_items(self._store, tr, items, popped=True)
        return items

    def peek_min(self, tr: ReadTransactor) -> Item[V] | None:
        """Return the item that `pop_min` would take, without removing it.

        In a transaction that writes, it conflicts with pops; `peek_min(tr.snapshot)` does not.
        Given a database, sweeps first, as `stats` does. Cost: one read of one row.

        Args:
            tr: A transaction or a database.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> PriorityQueue.named(db, "jobs").peek_min(db) is None
            True
        """
        return next(iter(self.peek_many(tr, 1)), None)

    peek = peek_min

    def peek_max(self, tr: ReadTransactor) -> Item[V] | None:
        """Return the item that `pop_max` would take, without removing it.

        Args:
            tr: A transaction or a database.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> PriorityQueue.named(db, "jobs").peek_max(db) is None
            True
        """
        return next(iter(self.peek_many(tr, 1, max=True)), None)

    def peek_many(self, tr: ReadTransactor, n: int, max: bool = False) -> list[Item[V]]:
        """Return the items that `pop_many` would take, without removing them.

        Args:
            tr: A transaction or a database.
            n: The maximum number of items, from 0.
            max: Return the items that `pop_max` would take.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = PriorityQueue.named(db, "jobs")
            >>> _ = jobs.push_many(db, ["a", "b"], priorities=[1, 2])
            >>> [item.value for item in jobs.peek_many(db, 2, max=True)]
            ['b', 'a']
        """
        return self._store.reads.peek(tr, validate_number(n), max)

    # Browse

    @overload
    def items(
        self,
        tr: ReadTransactor,
        *,
        state: None = None,
        priority: Priority | None = None,
        limit: int = 0,
        after: Item[V] | str | None = None,
        reverse: bool = False,
    ) -> Iterator[Item[V]]: ...

    @overload
    def items(
        self,
        tr: ReadTransactor,
        *,
        state: State,
        priority: Priority | None = None,
        limit: int = 0,
        after: Item[V] | str | None = None,
        reverse: bool = False,
    ) -> Iterator[ItemInfo]: ...

    def items(
        self,
        tr: ReadTransactor,
        *,
        state: State | None = None,
        priority: Priority | None = None,
        limit: int = 0,
        after: Item[V] | str | None = None,
        reverse: bool = False,
    ) -> Iterator[Item[V]] | Iterator[ItemInfo]:
        """Iterate over the ready items, or over an `ItemInfo` for each item in a state.

        Items are in order of their priorities, of the names of their groups within a priority, and
        of their arrival within a group. Done items are in order of their acknowledgement, the
        newest first.

        In a transaction, all items are from one moment, within the transaction's five seconds;
        `items(tr.snapshot)` conflicts with nothing. Given a database, items are read in pages of
        500, each in a transaction of its own: the iteration has every item that stays in the queue
        throughout, but no single moment. Cost: one read for each page.

        Args:
            tr: A transaction or a database.
            state: `"ready"`, `"delayed"`, `"claimed"`, `"dead"` or `"done"`; `None` for the ready
                items themselves, which must all be decodable.
            priority: Only the items of this priority.
            limit: The maximum number of items, 0 for all.
            after: An item or the id of one: only the items behind it.
            reverse: Iterate in the opposite order of keys.

        Raises:
            UndecodableItem: The codec cannot decode an item.
            InvalidItemId: `after` is not an item id.
            InvalidPriority: The priority is not of the queue's type.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = PriorityQueue.named(db, "jobs")
            >>> _ = jobs.push_many(db, ["b", "a"], priorities=[2, 1])
            >>> [(item.priority, item.value) for item in jobs.items(db)]
            [(1, 'a'), (2, 'b')]
            >>> claim = jobs.claim(db)
            >>> [(info.item.value, info.attempts) for info in jobs.items(db, state="claimed")]
            [('a', 1)]
        """
        limit = validate_number(limit, "limit")
        state = None if state is None else validate_state(state)
        return self._store.reads.items(tr, state, limit, after, reverse, priority)

    # Change the order

    def reprioritize(
        self, tr: Transactor, item: Item[V] | str, priority: Priority
    ) -> Item[V] | None:
        """Move an item behind the last item of another priority; return it.

        The item keeps its id and stays ready, delayed or dead. Returns `None` if the queue does not
        have the item. Conflicts with clients that take or move the same item. Cost: two reads for a
        ready item, seven for another; a lookup of an item that was moved takes twice as many reads.

        Args:
            tr: A transaction or a database.
            item: An `Item` or its id.
            priority: The new priority.

        Raises:
            InvalidPriority: The priority is not of the queue's type.
            InvalidItemId: The text is not an item id.
            WrongState: The item is claimed or done.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = PriorityQueue.named(db, "jobs")
            >>> item = jobs.push(db, "now urgent", priority=9)
            >>> moved = jobs.reprioritize(db, item, 1)
            >>> moved.priority, moved.id == item.id
            (1, True)
        """
        store = self._store
        levels = store.levels
        level = levels.level(priority)

        def change(before: Item[V]) -> Moved:
            return levels.in_group(level, levels.level_of(before.key).group), None

        moved = store.move(tr, item, change)
        if moved is None:
            return None
        before, key = moved
        return Item(before.value, level.priority, before.id, key)

    def _move_to(self, to: Any) -> Callable[[Item[V]], Moved | None]:
        levels = self._store.levels
        level = levels.level(to)

        def moved(item: Item[V]) -> Moved | None:
            if item.priority == level.priority:
                return None
            return levels.in_group(level, levels.level_of(item.key).group), None

        return moved
