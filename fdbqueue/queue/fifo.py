"""The FIFO queue: first in, first out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Literal, overload

from fdb.subspace_impl import Subspace

from fdbqueue.coordination.sans_io import SansIO, driven
from fdbqueue.coordination.store import Store
from fdbqueue.layout.codecs import codec_name, codec_named, stored_codec
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.priorities import Levels
from fdbqueue.layout.rows import ItemCodec
from fdbqueue.operations.items import Items
from fdbqueue.queue.arguments import (
    kept_options,
    new_headers,
    validate_if_full,
    validate_number,
    validate_state,
    validate_wait,
)
from fdbqueue.queue.base import BaseQueue, each_group, find_stored, new_items, read_stored
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
    ReadTransactor,
    State,
    Transactor,
    UniqueUntil,
    V,
)


class Queue(BaseQueue[Item[V]]):
    """A queue in order of arrival: first in, first out.

    Methods take a transaction or a database, with the rules of `PriorityQueue`. Pushes conflict
    with nothing; pops conflict with each other. `enqueue`, `enqueue_many`, `dequeue` and
    `dequeue_many` are other names of `push`, `push_many`, `pop` and `pop_many`.

    Args:
        subspace: The subspace of the queue; nothing else may be in it.
        codec: As for `PriorityQueue`.
        max_size: As for `PriorityQueue`.
        max_attempts: As for `PriorityQueue`.
        keep: As for `PriorityQueue`.

    Source: FoundationDB documentation, Design Recipes, "Queues".

    Example:
        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> mail = Queue(fdbqueue.Subspace(("mail",)))
        >>> _ = mail.push(db, "first")
        >>> _ = mail.push(db, "second")
        >>> mail.pop(db).value
        'first'
    """

    kind: ClassVar[Literal["fifo"]] = "fifo"
    """The kind of the queue, as its options have it."""

    def __init__(
        self,
        subspace: Subspace,
        *,
        codec: str | Codec[V] = "json",
        max_size: int | None = None,
        max_attempts: int | None = None,
        keep: Keep | None = None,
    ) -> None:
        layout = Layout(subspace)
        levels = Levels(layout)
        options = Options(
            kind=self.kind,
            codec=codec_name(codec),
            priorities=None,
            max_size=max_size,
            max_attempts=max_attempts,
            **kept_options(keep),
        )
        items = ItemCodec(layout, levels, codec_named(codec))
        super().__init__(Store(layout, levels, Items(layout, levels, options), items, options))

    @classmethod
    def _kept(cls, stored: Options) -> dict[str, Any]:
        return {"codec": stored_codec(stored.codec)}

    @classmethod
    def named(
        cls,
        db: Transactor,
        name: str,
        *,
        codec: str | Codec[OfCodec] | None = None,
        max_size: int | None = None,
        max_attempts: int | None = None,
        keep: Keep | None = None,
    ) -> Queue[OfCodec]:
        """Return the FIFO queue of this name, which its first push creates.

        An option that is left out is the one that is stored with the queue; a new queue has
        `"json"` and no bound. Cost: three reads in one transaction.

        Args:
            db: A database, or a transaction.
            name: As for `PriorityQueue.named`.
            codec: As for the queue itself.
            max_size: As for the queue itself.
            max_attempts: As for the queue itself.
            keep: As for `PriorityQueue`.

        Raises:
            InvalidQueueName: The name is not one that a queue can have.
            OptionsMismatch: The queue has another codec, or is not a FIFO queue.
            LayoutVersionMismatch: Another release of this library stored the queue.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> _ = Queue.named(db, "mail").push(db, "first")
            >>> Queue.named(db, "mail").pop(db).value
            'first'
        """
        queue: Queue[OfCodec] = cls._open(
            db,
            partial(find_stored, name=name),
            codec=codec,
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
        max_size: int | None = None,
        max_attempts: int | None = None,
        keep: Keep | None = None,
    ) -> Queue[OfCodec]:
        """Return the FIFO queue in this subspace; options are those of `named`.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> space = fdbqueue.Subspace(("my", "mail"))
            >>> _ = Queue(space, codec="bytes").push(db, b"x")
            >>> Queue.at(db, space).pop(db).value
            b'x'
        """
        queue: Queue[OfCodec] = cls._open(
            db,
            partial(read_stored, subspace=subspace),
            codec=codec,
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
        """Put a value at the end of the queue. `enqueue` is another name for this.

        Conflicts with nothing; with a maximum size, as `PriorityQueue.push`. Cost: two reads at the
        same time, and two keys written. A payload over 10,000 bytes takes one more key for each
        90,000 bytes.

        Args:
            tr: A transaction or a database.
            value: A value that the codec accepts, up to 8,000,000 bytes encoded.
            group: As for `PriorityQueue.push`.
            cost: As for `PriorityQueue.push`.
            delay: As for `PriorityQueue.push`. After its delay, the item is ahead of the items that
                were pushed after it.
            at: As for `PriorityQueue.push`.
            ttl: As for `PriorityQueue.push`.
            unique: As for `PriorityQueue.push`.
            unique_until: As for `PriorityQueue.push`.
            unique_for: As for `PriorityQueue.push`.
            if_full: What to do if the queue is full: `"raise"` raises `QueueFull`, `"drop"` stores
                nothing and returns `None`.

        Raises:
            InvalidValue: The codec does not accept the value.
            PayloadTooLarge: The encoded value is too large.
            OptionsMismatch: The queue has other options.
            QueueFull: The queue is full. Nothing was stored.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> Queue(fdbqueue.Subspace(("mail",))).push(db, ["any", "JSON"]).value
            ['any', 'JSON']
        """
        raises = validate_if_full(if_full)
        keys = None if unique is None else (unique,)
        headers = new_headers(1, ttl, keys, unique_until, unique_for, cost)
        in_group = None if group is None else (group,)
        new = new_items(self._store, (value,), (None,), in_group, delay, at, headers)
        return next(iter((yield from self._store.push(tr, new, False, raises))), None)

    enqueue = push

    @driven
    def push_many(
        self,
        tr: Transactor,
        values: Iterable[V],
        *,
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
        """Put several values at the end of the queue in one transaction: all of them or none.

        Args:
            tr: A transaction or a database.
            values: Values that the codec accepts.
            group: As for `push`, for all values.
            groups: As for `PriorityQueue.push_many`.
            cost: As for `push`, for all values.
            delay: As for `push`.
            at: As for `push`.
            ttl: As for `push`.
            unique: As for `PriorityQueue.push_many`.
            unique_until: As for `push`, for all keys.
            unique_for: As for `push`, for all keys.
            as_many_as_fit: As for `PriorityQueue.push_many`.
            if_full: As for `PriorityQueue.push_many`.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> mail = Queue(fdbqueue.Subspace(("mail",)))
            >>> [item.value for item in mail.push_many(db, ["a", "b"])]
            ['a', 'b']
        """
        values = list(values)
        raises = validate_if_full(if_full) and not as_many_as_fit
        headers = new_headers(len(values), ttl, unique, unique_until, unique_for, cost)
        in_groups = each_group(len(values), group, groups)
        new = new_items(self._store, values, [None] * len(values), in_groups, delay, at, headers)
        return (yield from self._store.push(tr, new, as_many_as_fit, raises))

    enqueue_many = push_many

    # Pop and peek

    @driven
    def pop(self, tr: Transactor, *, wait: Duration = 0) -> SansIO[Item[V] | None]:
        """Remove and return the oldest item, or `None`. `dequeue` is another name for this.

        In a transaction, it conflicts with every other pop. Given a database, processes that
        meet conflicts are served together, as by `PriorityQueue.pop_min`. Cost: one read of one
        row, and two keys written.

        Args:
            tr: A transaction or a database.
            wait: How many seconds to wait for an item, as for `PriorityQueue.pop_min`.

        Raises:
            UndecodableItem: The codec cannot decode the item, which stays in the queue.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> Queue(fdbqueue.Subspace(("mail",))).pop(db) is None
            True
        """
        items = yield from self._store.pop(tr, 1, False, validate_wait(tr, wait))
        return next(iter(items), None)

    dequeue = pop

    dequeue_many = BaseQueue[Item[V]].pop_many

    def peek(self, tr: ReadTransactor) -> Item[V] | None:
        """Return the item that `pop` would take, without removing it.

        Args:
            tr: A transaction or a database.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> mail = Queue(fdbqueue.Subspace(("mail",)))
            >>> _ = mail.push(db, "first")
            >>> mail.peek(db).value, mail.size(db)
            ('first', 1)
        """
        return next(iter(self._store.reads.peek(tr, 1)), None)

    @overload
    def items(
        self,
        tr: ReadTransactor,
        *,
        state: None = None,
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
        limit: int = 0,
        after: Item[V] | str | None = None,
        reverse: bool = False,
    ) -> Iterator[ItemInfo]: ...

    def items(
        self,
        tr: ReadTransactor,
        *,
        state: State | None = None,
        limit: int = 0,
        after: Item[V] | str | None = None,
        reverse: bool = False,
    ) -> Iterator[Item[V]] | Iterator[ItemInfo]:
        """Iterate over the ready items in order of arrival, as `PriorityQueue.items` does.

        Args:
            tr: A transaction or a database.
            state: As for `PriorityQueue.items`.
            limit: The maximum number of items, 0 for all.
            after: An item or the id of one: only the items behind it.
            reverse: Iterate from the newest to the oldest.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> mail = Queue(fdbqueue.Subspace(("mail",)))
            >>> _ = mail.push_many(db, ["a", "b", "c"])
            >>> [item.value for item in mail.items(db, limit=2)]
            ['a', 'b']
        """
        state = None if state is None else validate_state(state)
        return self._store.reads.items(tr, state, validate_number(limit, "limit"), after, reverse)
