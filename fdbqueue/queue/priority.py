"""The priority queue: lowest priority first, first in first out within one priority."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import partial
from typing import Any, Literal, overload

from fdb.subspace_impl import Subspace

from fdbqueue.coordination.clock import uuids
from fdbqueue.coordination.steps import Steps, driven
from fdbqueue.coordination.store import Store
from fdbqueue.database.retrying import read
from fdbqueue.layout import Header, Layout
from fdbqueue.layout.codecs import ItemCodec, codec_name, codec_named, stored_codec
from fdbqueue.layout.priorities import Priorities
from fdbqueue.operations.items import Entry, PriorityRows
from fdbqueue.queue.arguments import (
    checked_number,
    checked_unique,
    checked_wait,
    due_time,
    expiry_time,
)
from fdbqueue.queue.base import BaseQueue, find_stored, open_stored, read_stored
from fdbqueue.types import Codec, Item, Options, Priority, PriorityKind

__all__ = ["PriorityQueue"]


class PriorityQueue(BaseQueue[Item]):
    """A queue that gives its items out by priority, and in order of arrival within one.

    Every method takes a transaction or a database as `tr`. In a transaction, it is part of it: it
    commits or not with whatever else the transaction does, and a user's retry loop runs it again;
    an unknown commit result (1021) is then the user's to handle, for example by
    `fdbqueue.transactional(receipts=...)`. Given a database, the method commits by itself, and
    takes effect exactly once even if the outcome of a commit is unknown.

    Pushes never conflict with each other nor with pops. Pops conflict with each other: they want
    the same item. Threads that share a queue object share transactions, where they pass a database:
    what several push, or pop, while one of them commits is the next commit. Nobody alone waits.
    Pops of several processes that pass a database are served together, too, once they conflict.

    Parameters: `subspace`, where the queue is; `codec`, `"json"`, `"bytes"`, `"tuple"` or an object
    with `encode` and `decode`; `priorities`, `int` (64 bits) or the types of a tuple's elements, as
    in `(int, float)`: from `int`, `float`, `str` and `bytes`; `max_size`, how many items the queue
    has at most, with delayed and claimed ones, from 1, `None` for whatever bound it has;
    `max_attempts`, how often an item is claimed before it is a dead letter, from 1, `None` for
    whatever it has. The first push stores these options with the queue, and one by a client that
    was given others raises `OptionsMismatch`.

    Source: FoundationDB documentation, Design Recipes, "Priority Queues" and its Extensions.

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> jobs = PriorityQueue.named(db, "jobs")
    >>> for value, priority in [("later", 5), ("soon", 1), ("soon too", 1)]:
    ...     _ = jobs.push(db, value, priority)
    >>> [jobs.pop(db).value for _ in range(3)]
    ['soon', 'soon too', 'later']
    """

    def __init__(
        self,
        subspace: Subspace,
        *,
        codec: str | Codec = "json",
        priorities: PriorityKind = int,
        max_size: int | None = None,
        max_attempts: int | None = None,
    ) -> None:
        layout = Layout(subspace)
        levels = Priorities(layout, priorities)
        options = Options(
            "priority", codec_name(codec), priorities, max_size, max_attempts=max_attempts
        )
        items = ItemCodec(layout, levels, codec_named(codec))
        super().__init__(Store(layout, levels, PriorityRows(layout, levels), items, options))

    @classmethod
    def _kept(cls, stored: Options) -> dict[str, Any]:
        return {"codec": stored_codec(stored.codec), "priorities": stored.priorities or int}

    @classmethod
    def named(
        cls,
        db: Any,
        name: str,
        *,
        codec: str | Codec | None = None,
        priorities: PriorityKind | None = None,
        max_size: int | None = None,
        max_attempts: int | None = None,
    ) -> PriorityQueue:
        """The queue that `fdbq` calls by this name; it is made by its first push.

        Options that are not given are those that the queue has; a new one has `"json"`, `int` and
        no bound. A queue whose codec is an object of somebody's can be opened without it: it is
        counted, cleared and dropped then, and what needs the codec raises `UnknownCodec`, or
        `UndecodableItem`. Cost: two reads.

        Parameters: `db`, a database or a transaction; `name`, printable text of at most 255 bytes
        without space at its ends; the options, as for the queue itself.

        Raises `InvalidQueueName`, `OptionsMismatch`, `LayoutVersionMismatch`; `UnknownCodec` for a
        name that is no codec's.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> PriorityQueue.named(db, "e-mails").size(db)
        0
        """
        return open_stored(
            cls,
            read(db, partial(find_stored, name=name)),
            codec=codec,
            priorities=priorities,
            max_size=max_size,
            max_attempts=max_attempts,
        )

    @classmethod
    def at(
        cls,
        db: Any,
        subspace: Subspace,
        *,
        codec: str | Codec | None = None,
        priorities: PriorityKind | None = None,
        max_size: int | None = None,
        max_attempts: int | None = None,
    ) -> PriorityQueue:
        """The queue in this subspace, which may be a directory of `fdb.directory`, as by `named`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> space = fdbqueue.Subspace(("my", "jobs"))
        >>> _ = PriorityQueue(space, codec="bytes").push(db, b"x")
        >>> PriorityQueue.at(db, space).pop(db).value
        b'x'
        """
        return open_stored(
            cls,
            read(db, partial(read_stored, subspace=subspace)),
            codec=codec,
            priorities=priorities,
            max_size=max_size,
            max_attempts=max_attempts,
        )

    # Push

    @overload
    def push(
        self,
        tr: Any,
        value: Any,
        priority: Priority = 0,
        *,
        delay: float | None = None,
        at: datetime | None = None,
        ttl: float | None = None,
        unique: str | None = None,
        raise_if_full: Literal[True],
    ) -> Item: ...

    @overload
    def push(
        self,
        tr: Any,
        value: Any,
        priority: Priority = 0,
        *,
        delay: float | None = None,
        at: datetime | None = None,
        ttl: float | None = None,
        unique: str | None = None,
        raise_if_full: bool = False,
    ) -> Item | None: ...

    @driven
    def push(
        self,
        tr: Any,
        value: Any,
        priority: Priority = 0,
        *,
        delay: float | None = None,
        at: datetime | None = None,
        ttl: float | None = None,
        unique: str | None = None,
        raise_if_full: bool = False,
    ) -> Steps[Item | None]:
        """Put a value behind the last one of its priority; `None` if the queue is full.

        Conflicts with nothing: two pushes at once both go through, in either order. (The very first
        one stores the queue's options, and conflicts with another first one.) Those to a queue with
        a bound conflict the more, the fewer places are left (`fdbqueue.operations.bound` says
        how), and never exceed it: an item keeps its place while it is delayed or claimed. Given a
        database it takes effect exactly once; in a transaction the caller's own retry rules hold.
        Cost: two reads at
        once (with a bound four, one of them of a row for each claimed item), and three keys written
        (a payload over 90,000 bytes: a key more for each 90,000).

        Parameters: `value`, what the codec takes, up to 8,000,000 bytes encoded, with lists and
        objects nested up to 100 levels; `priority`, what the queue takes, the lowest comes
        first; `delay`, in seconds, or `at`, a `datetime` with a
        time zone, before which nobody gets the item (by the clocks of clients; it counts from now
        on, and comes to the place that it would have now); `ttl`, in seconds, after which an item
        that nobody took is dropped (by the same clocks); `unique`, text of 1 to 255 bytes: while
        another item with the same is unfinished (it waits, is delayed or claimed), that one comes
        back, as it is, and nothing is stored; `raise_if_full`, raise `QueueFull` instead.

        Raises `InvalidValue`, `PayloadTooLarge`, `InvalidPriority` and `OptionsMismatch`; nothing
        is stored then.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = PriorityQueue.named(db, "jobs")
        >>> jobs.push(db, {"to": "ada@example.com"}, priority=2).priority
        2
        """
        if unique is not None:
            key = checked_unique(unique)
            (entry,) = _entries(
                self._store, [value], priority, delay=delay, at=at, ttl=ttl, unique=key
            )
            return (yield from self._store.push_unique(tr, entry, raise_if_full))
        entries = _entries(self._store, (value,), priority, delay=delay, at=at, ttl=ttl)
        return next(iter((yield from self._push(tr, entries, False, raise_if_full))), None)

    @driven
    def push_many(
        self,
        tr: Any,
        values: Iterable[Any],
        priority: Priority = 0,
        *,
        priorities: Iterable[Priority] | None = None,
        delay: float | None = None,
        at: datetime | None = None,
        ttl: float | None = None,
        as_many_as_fit: bool = False,
        raise_if_full: bool = False,
    ) -> Steps[list[Item]]:
        """Put several values into the queue in one transaction: all of them, or none.

        As `push` for each, and several times as fast. A transaction takes 10,000,000 bytes in all,
        of which each item takes some 250 beside its payload (2101 beyond that).

        Parameters: `values`; `priority`, of all of them; or `priorities`, as many as values;
        `delay` or `at`, and `ttl`, as `push`; `as_many_as_fit`, the first ones if the queue has no
        room for all; `raise_if_full`, raise `QueueFull` instead if there is none for all of them,
        or not even for the first one.

        Raises as `push`, and `ValueError` where the numbers of values and priorities differ.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push_many(db, ["b", "a"], priorities=[2, 1])
        >>> jobs.pop(db).value
        'a'
        """
        entries = _entries(self._store, values, priority, priorities, delay=delay, at=at, ttl=ttl)
        return (yield from self._push(tr, entries, as_many_as_fit, raise_if_full))

    def _push(
        self, tr: Any, entries: list[Entry], as_many_as_fit: bool, raise_if_full: bool
    ) -> Steps[list[Item]]:
        keys = yield from self._store.push(tr, entries, as_many_as_fit, raise_if_full)
        items = self._store.pushed(entries, keys)
        return (yield from self._store.log(tr, "pushed to", items))

    # Pop and peek

    @driven
    def pop_min(self, tr: Any, *, wait: float = 0) -> Steps[Item | None]:
        """Take the oldest item of the lowest priority; `None` if the queue is empty.

        In a transaction it conflicts with every other pop, and with a push that would have come
        first; the caller's own retry rules hold. Given a database it takes effect exactly once, and
        after a first conflict stands in line with the pops of other processes: one of them serves
        all, in order, and the others sleep. What was put aside for a process that died meanwhile
        goes back to its place after five seconds. Cost: one read of one row, and three keys
        written; in the line two commits, and a share of the one that serves.

        Parameters: `wait`, how many seconds to wait for an item if there is none, `math.inf` for
        ever, for which it needs a database. Who waits sleeps on a watch, which pushes fire (a
        client that writes only the recipe's items does not).

        Raises `UndecodableItem` for an item that the codec cannot read; it stays in the queue.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push_many(db, ["b", "a"], priorities=[2, 1])
        >>> jobs.pop_min(db).value, jobs.pop_min(db).value, jobs.pop_min(db)
        ('a', 'b', None)
        """
        return next(iter((yield from self._pop(tr, 1, False, wait))), None)

    pop = pop_min

    @driven
    def pop_max(self, tr: Any, *, wait: float = 0) -> Steps[Item | None]:
        """Take the oldest item of the highest priority; `None` if the queue is empty.

        As `pop_min`, at the other end, and first in first out there too (the plain recipe is last
        in first out at that end). Cost: two reads of one row.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push_many(db, ["low", "first", "second"], priorities=[1, 9, 9])
        >>> jobs.pop_max(db).value
        'first'
        """
        return next(iter((yield from self._pop(tr, 1, True, wait))), None)

    @driven
    def pop_many(self, tr: Any, n: int, max: bool = False, *, wait: float = 0) -> Steps[list[Item]]:
        """Take the first `n` items in one transaction, in order; fewer if there are fewer.

        As `pop_min` (with `max`: as `pop_max`) for each, in one commit: several times as fast.
        Cost: one read of `n` rows (with `max`: two for each priority).

        Parameters: `n`, from 0 (a transaction has 10,000,000 bytes for keys); `wait`, as `pop_min`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push_many(db, ["a", "b", "c"])
        >>> [item.value for item in jobs.pop_many(db, 2)]
        ['a', 'b']
        """
        return (yield from self._pop(tr, checked_number(n), max, wait))

    def _pop(self, tr: Any, n: int, at_max: bool, wait: float) -> Steps[list[Item]]:
        store = self._store
        items = yield from store.pop(tr, n, at_max, checked_wait(tr, wait))
        return (yield from store.log(tr, "popped from", items, partial(store.put_back, tr)))

    def peek_min(self, tr: Any) -> Item | None:
        """The item that `pop_min` would take, left where it is.

        In a transaction that writes it conflicts with pops, as a read does; `tr.snapshot` does not.
        Cost: one read of one row.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> PriorityQueue.named(db, "jobs").peek_min(db) is None
        True
        """
        return next(iter(self.peek_many(tr, 1)), None)

    peek = peek_min

    def peek_max(self, tr: Any) -> Item | None:
        """The item that `pop_max` would take, left where it is.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> PriorityQueue.named(db, "jobs").peek_max(db) is None
        True
        """
        return next(iter(self.peek_many(tr, 1, max=True)), None)

    def peek_many(self, tr: Any, n: int, max: bool = False) -> list[Item]:
        """The items that `pop_many` would take, left where they are.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push_many(db, ["a", "b"], priorities=[1, 2])
        >>> [item.value for item in jobs.peek_many(db, 2, max=True)]
        ['b', 'a']
        """
        return self._store.peek(tr, checked_number(n), max)

    # Browse and count

    def items(
        self,
        tr: Any,
        *,
        priority: Priority | None = None,
        limit: int = 0,
        after: Item | str | None = None,
        reverse: bool = False,
    ) -> Iterator[Item]:
        """The items in the order of their keys: by priority, and by arrival within one.

        Given a database, they are read in pages of 500, each its own transaction: the whole of a
        long queue, and every item that is there from begin to end, but not all at one moment. In a
        transaction they are of one moment, within its five seconds; there `items(tr.snapshot)`
        conflicts with nothing. Cost: one read for each page.

        Parameters: `priority`, only those; `limit`, at most so many (0: all); `after`, an item or
        an id, only what comes behind it; `reverse`, in the opposite order of keys.

        Raises `UndecodableItem`, `InvalidItemId`, `InvalidPriority`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push_many(db, ["b", "a"], priorities=[2, 1])
        >>> [(item.priority, item.value) for item in jobs.items(db)]
        [(1, 'a'), (2, 'b')]
        """
        limit = checked_number(limit, "limit")
        return self._store.browse(tr, limit, after, reverse, priority)

    def counts(self, tr: Any) -> dict[Any, int]:
        """How many items each priority has; priorities without items are not in it.

        One range read of the counters. Every push and pop changes one of them: in a transaction
        that writes, use `counts(tr.snapshot)`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push_many(db, ["a", "b", "c"], priorities=[1, 5, 5])
        >>> jobs.counts(db)
        {1: 1, 5: 2}
        """
        return self._store.counts(tr)

    # Change the order

    def reprioritize(self, tr: Any, item: Item | str, priority: Priority) -> Item | None:
        """Give an item another priority, behind the last one that has it; `None` if it is gone.

        The item that comes back has the id of its new place. Given a database it takes effect
        exactly once; in a transaction the caller's own retry rules hold. Conflicts with what takes
        or moves the same item. Cost: two reads. Raises `InvalidPriority` and `InvalidItemId`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = PriorityQueue.named(db, "jobs")
        >>> item = jobs.push(db, "now urgent", priority=9)
        >>> jobs.reprioritize(db, item, 1).priority
        1
        """
        store = self._store
        rank = store.levels.checked(priority)
        moved = store.move(tr, item, lambda _: (store.layout.level(rank), None))
        if moved is None:
            return None
        before, key = moved
        return Item(before.value, rank, store.codec.id_of(key), key)


def _entries(
    store: Store[Item],
    values: Iterable[Any],
    priority: Priority = 0,
    priorities: Iterable[Priority] | None = None,
    *,
    delay: float | None = None,
    at: datetime | None = None,
    ttl: float | None = None,
    unique: str | None = None,
) -> list[Entry]:
    """Return what a push of these arguments stores."""
    values = list(values)
    given = [priority] * len(values) if priorities is None else list(priorities)
    if len(given) != len(values):
        raise ValueError(f"there are {len(values)} values and {len(given)} priorities")
    header = Header(expires=expiry_time(ttl), unique=unique)
    due = due_time(delay, at)
    ranks = list(map(store.levels.checked, given))
    level, encode = store.layout.level, store.codec.encode
    return [
        Entry(level(rank), encode(value), random, due, header, value, rank)
        for rank, value, random in zip(ranks, values, uuids(len(values)))
    ]
