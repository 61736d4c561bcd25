"""The FIFO queue: first in, first out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Literal, overload

from fdb.subspace_impl import Subspace

from fdbqueue.coordination.steps import Steps, driven
from fdbqueue.coordination.store import Store
from fdbqueue.database.clock import uuids
from fdbqueue.database.retrying import read
from fdbqueue.layout import Layout
from fdbqueue.layout.codecs import ItemCodec, codec_name, codec_named, stored_codec
from fdbqueue.layout.priorities import Levels
from fdbqueue.operations.items import Items, NewItem
from fdbqueue.queue.arguments import (
    kept_options,
    validate_if_full,
    validate_number,
    validate_state,
    validate_wait,
)
from fdbqueue.queue.base import BaseQueue, find_stored, open_stored, read_stored
from fdbqueue.types import (
    Codec,
    Duration,
    IfFull,
    Item,
    ItemInfo,
    Keep,
    Options,
    ReadTransactor,
    State,
    Transactor,
)

__all__ = ["Queue"]


class Queue(BaseQueue[Item]):
    """A queue in order of arrival: first in, first out.

    Methods take a transaction or a database, with the rules of `PriorityQueue`. Enqueues conflict
    with nothing; dequeues conflict with each other.

    Args:
        subspace: The subspace of the queue; nothing else may be in it.
        codec: As for `PriorityQueue`.
        max_size: As for `PriorityQueue`.
        keep: As for `PriorityQueue`.

    Source: FoundationDB documentation, Design Recipes, "Queues".

    Example:
        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> mail = Queue(fdbqueue.Subspace(("mail",)))
        >>> _ = mail.enqueue(db, "first")
        >>> _ = mail.enqueue(db, "second")
        >>> mail.dequeue(db).value
        'first'
    """

    def __init__(
        self,
        subspace: Subspace,
        *,
        codec: str | Codec = "json",
        max_size: int | None = None,
        keep: Keep | None = None,
    ) -> None:
        layout = Layout(subspace)
        levels = Levels(layout)
        options = Options("fifo", codec_name(codec), None, max_size, **kept_options(keep))
        items = ItemCodec(layout, levels, codec_named(codec))
        super().__init__(Store(layout, levels, Items(layout, levels), items, options))

    @classmethod
    def _kept(cls, stored: Options) -> dict[str, Any]:
        return {"codec": stored_codec(stored.codec)}

    @classmethod
    def named(
        cls,
        db: Transactor,
        name: str,
        *,
        codec: str | Codec | None = None,
        max_size: int | None = None,
        keep: Keep | None = None,
    ) -> Queue:
        """Return the FIFO queue of this name, which its first push creates.

        An option that is left out is the one that is stored with the queue; a new queue has
        `"json"` and no bound. Cost: three reads in one transaction.

        Args:
            db: A database, or a transaction.
            name: As for `PriorityQueue.named`.
            codec: As for the queue itself.
            max_size: As for the queue itself.
            keep: As for `PriorityQueue`.

        Raises:
            InvalidQueueName: The name is not one that a queue can have.
            OptionsMismatch: The queue has another codec, or is not a FIFO queue.
            LayoutVersionMismatch: Another release of this library stored the queue.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> _ = Queue.named(db, "mail").enqueue(db, "first")
            >>> Queue.named(db, "mail").dequeue(db).value
            'first'
        """
        stored = read(db, partial(find_stored, name=name))
        return open_stored(cls, stored, codec=codec, max_size=max_size, keep=keep)

    @classmethod
    def at(
        cls,
        db: Transactor,
        subspace: Subspace,
        *,
        codec: str | Codec | None = None,
        max_size: int | None = None,
        keep: Keep | None = None,
    ) -> Queue:
        """Return the FIFO queue in this subspace; options are those of `named`.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> space = fdbqueue.Subspace(("my", "mail"))
            >>> _ = Queue(space, codec="bytes").enqueue(db, b"x")
            >>> Queue.at(db, space).dequeue(db).value
            b'x'
        """
        stored = read(db, partial(read_stored, subspace=subspace))
        return open_stored(cls, stored, codec=codec, max_size=max_size, keep=keep)

    @overload
    def enqueue(
        self, tr: Transactor, value: object, *, if_full: Literal["raise"] = "raise"
    ) -> Item: ...

    @overload
    def enqueue(self, tr: Transactor, value: object, *, if_full: IfFull) -> Item | None: ...

    @driven
    def enqueue(
        self, tr: Transactor, value: object, *, if_full: IfFull = "raise"
    ) -> Steps[Item | None]:
        """Put a value at the end of the queue.

        Conflicts with nothing; with a maximum size, as `PriorityQueue.push`. Cost: two reads at the
        same time, and two keys written. A payload over 90,000 bytes takes one more key for each
        90,000 bytes.

        Args:
            tr: A transaction or a database.
            value: A value that the codec accepts, up to 8,000,000 bytes encoded.
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
            >>> Queue(fdbqueue.Subspace(("mail",))).enqueue(db, ["any", "JSON"]).value
            ['any', 'JSON']
        """
        return next(iter((yield from self._enqueue(tr, (value,), False, if_full))), None)

    @driven
    def enqueue_many(
        self,
        tr: Transactor,
        values: Iterable[Any],
        *,
        as_many_as_fit: bool = False,
        if_full: IfFull = "raise",
    ) -> Steps[list[Item]]:
        """Put several values at the end of the queue in one transaction: all of them or none.

        Args:
            tr: A transaction or a database.
            values: Values that the codec accepts.
            as_many_as_fit: As for `PriorityQueue.push_many`.
            if_full: As for `PriorityQueue.push_many`.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> mail = Queue(fdbqueue.Subspace(("mail",)))
            >>> [item.value for item in mail.enqueue_many(db, ["a", "b"])]
            ['a', 'b']
        """
        return (yield from self._enqueue(tr, values, as_many_as_fit, if_full))

    def _enqueue(
        self, tr: Transactor, values: Iterable[Any], as_many_as_fit: bool, if_full: IfFull
    ) -> Steps[list[Item]]:
        raises = validate_if_full(if_full) and not as_many_as_fit
        values = list(values)
        level, encode = self._store.levels.level(None), self._store.codec.encode
        items = [
            NewItem(level, encode(value), random, value=value)
            for value, random in zip(values, uuids(len(values)))
        ]
        return (yield from self._store.push(tr, items, as_many_as_fit, raises))

    @driven
    def dequeue(self, tr: Transactor, *, wait: Duration = 0) -> Steps[Item | None]:
        """Remove and return the oldest item; return `None` if there is none.

        In a transaction, it conflicts with every other dequeue. Given a database, processes that
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
            >>> Queue(fdbqueue.Subspace(("mail",))).dequeue(db) is None
            True
        """
        items = yield from self._store.pop(tr, 1, False, validate_wait(tr, wait))
        return next(iter(items), None)

    @driven
    def dequeue_many(self, tr: Transactor, n: int, *, wait: Duration = 0) -> Steps[list[Item]]:
        """Remove and return up to `n` of the oldest items in order, in one transaction.

        Args:
            tr: A transaction or a database.
            n: The maximum number of items, from 0.
            wait: How many seconds to wait for the first item, as for `PriorityQueue.pop_min`.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> mail = Queue(fdbqueue.Subspace(("mail",)))
            >>> _ = mail.enqueue_many(db, ["a", "b"])
            >>> [item.value for item in mail.dequeue_many(db, 5)]
            ['a', 'b']
        """
        n, wait = validate_number(n), validate_wait(tr, wait)
        return self._store.pop(tr, n, False, wait)

    def peek(self, tr: ReadTransactor) -> Item | None:
        """Return the item that `dequeue` would take, without removing it.

        Args:
            tr: A transaction or a database.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> mail = Queue(fdbqueue.Subspace(("mail",)))
            >>> _ = mail.enqueue(db, "first")
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
        after: Item | str | None = None,
        reverse: bool = False,
    ) -> Iterator[Item]: ...

    @overload
    def items(
        self,
        tr: ReadTransactor,
        *,
        state: State,
        limit: int = 0,
        after: Item | str | None = None,
        reverse: bool = False,
    ) -> Iterator[ItemInfo]: ...

    def items(
        self,
        tr: ReadTransactor,
        *,
        state: State | None = None,
        limit: int = 0,
        after: Item | str | None = None,
        reverse: bool = False,
    ) -> Iterator[Item] | Iterator[ItemInfo]:
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
            >>> _ = mail.enqueue_many(db, ["a", "b", "c"])
            >>> [item.value for item in mail.items(db, limit=2)]
            ['a', 'b']
        """
        limit = validate_number(limit, "limit")
        if state is None:
            return self._store.reads.browse(tr, limit, after, reverse)
        return self._store.reads.inspect(tr, validate_state(state), limit, after, reverse)
