"""The FIFO queue: first in, first out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Literal, overload

from fdb.subspace_impl import Subspace

from fdbqueue.coordination.clock import uuids
from fdbqueue.coordination.steps import Steps, driven
from fdbqueue.coordination.store import Store
from fdbqueue.database.retrying import read
from fdbqueue.layout import Layout
from fdbqueue.layout.codecs import ItemCodec, codec_name, codec_named, stored_codec
from fdbqueue.layout.priorities import Levels
from fdbqueue.operations.items import Entry, Rows
from fdbqueue.queue.arguments import checked_number, checked_wait
from fdbqueue.queue.base import BaseQueue, find_stored, open_stored, read_stored
from fdbqueue.types import Codec, Item, Options

__all__ = ["Queue"]


class Queue(BaseQueue[Item]):
    """A queue that gives its items out in order of arrival.

    Methods take a transaction or a database, with the rules of `PriorityQueue`: in a transaction
    they are part of it, given a database they take effect exactly once. Enqueues never conflict;
    dequeues conflict with each other.

    Parameters: `subspace`, where the queue is; `codec` and `max_size`, as for `PriorityQueue`.

    Source: FoundationDB documentation, Design Recipes, "Queues".

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> mail = Queue(fdbqueue.Subspace(("mail",)))
    >>> _ = mail.enqueue(db, "first")
    >>> _ = mail.enqueue(db, "second")
    >>> mail.dequeue(db).value
    'first'
    """

    def __init__(
        self, subspace: Subspace, *, codec: str | Codec = "json", max_size: int | None = None
    ) -> None:
        layout = Layout(subspace)
        levels = Levels(layout)
        options = Options("fifo", codec_name(codec), None, max_size)
        items = ItemCodec(layout, levels, codec_named(codec))
        super().__init__(Store(layout, levels, Rows(layout, levels), items, options))

    @classmethod
    def _kept(cls, stored: Options) -> dict[str, Any]:
        return {"codec": stored_codec(stored.codec)}

    @classmethod
    def named(
        cls, db: Any, name: str, *, codec: str | Codec | None = None, max_size: int | None = None
    ) -> Queue:
        """Return the FIFO queue of this name, which its first push creates.

        An option that is left out is the one that is stored with the queue; a new queue has
        `"json"` and no bound. Cost: three reads in one transaction.

        Args:
            db: A database, or a transaction.
            name: As for `PriorityQueue.named`.
            codec: As for the queue itself.
            max_size: As for the queue itself.

        Raises:
            InvalidQueueName: The name is not one that a queue can have.
            OptionsMismatch: The queue has another codec or bound, or is not a FIFO queue.
            LayoutVersionMismatch: Another release of this library stored the queue.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> _ = Queue.named(db, "mail").enqueue(db, "first")
            >>> Queue.named(db, "mail").dequeue(db).value
            'first'
        """
        stored = read(db, partial(find_stored, name=name))
        return open_stored(cls, stored, codec=codec, max_size=max_size)

    @classmethod
    def at(
        cls,
        db: Any,
        subspace: Subspace,
        *,
        codec: str | Codec | None = None,
        max_size: int | None = None,
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
        return open_stored(cls, stored, codec=codec, max_size=max_size)

    @overload
    def enqueue(self, tr: Any, value: Any, *, raise_if_full: Literal[True]) -> Item: ...

    @overload
    def enqueue(self, tr: Any, value: Any, *, raise_if_full: bool = False) -> Item | None: ...

    @driven
    def enqueue(self, tr: Any, value: Any, *, raise_if_full: bool = False) -> Steps[Item | None]:
        """Put a value at the end of the queue; `None` if the queue is full.

        Conflicts with nothing, unless the queue has a bound: then as `PriorityQueue.push`. Given a
        database it takes effect exactly once; in a transaction the caller's own retry rules hold.
        Cost: two reads at once, and two keys written (a payload over 90,000 bytes: a key more for
        each 90,000).

        Raises `InvalidValue`, `PayloadTooLarge` and `OptionsMismatch`, and with `raise_if_full`
        `QueueFull`; nothing is stored then.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> Queue(fdbqueue.Subspace(("mail",))).enqueue(db, ["any", "JSON"]).value
        ['any', 'JSON']
        """
        return next(iter((yield from self._enqueue(tr, (value,), False, raise_if_full))), None)

    @driven
    def enqueue_many(
        self,
        tr: Any,
        values: Iterable[Any],
        *,
        as_many_as_fit: bool = False,
        raise_if_full: bool = False,
    ) -> Steps[list[Item]]:
        """Put several values at the end of the queue in one transaction: all of them, or none.

        `as_many_as_fit` and `raise_if_full` are those of `PriorityQueue.push_many`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> mail = Queue(fdbqueue.Subspace(("mail",)))
        >>> [item.value for item in mail.enqueue_many(db, ["a", "b"])]
        ['a', 'b']
        """
        return (yield from self._enqueue(tr, values, as_many_as_fit, raise_if_full))

    def _enqueue(
        self, tr: Any, values: Iterable[Any], as_many_as_fit: bool, raise_if_full: bool
    ) -> Steps[list[Item]]:
        values = list(values)
        level, encode = self._store.layout.items, self._store.codec.encode
        entries = [
            Entry(level, encode(value), random, value=value)
            for value, random in zip(values, uuids(len(values)))
        ]
        keys = yield from self._store.push(tr, entries, as_many_as_fit, raise_if_full)
        return self._store.pushed(entries, keys)

    @driven
    def dequeue(self, tr: Any, *, wait: float = 0) -> Steps[Item | None]:
        """Take the oldest item; `None` if the queue is empty.

        In a transaction it conflicts with every other dequeue, and the caller's own retry rules
        hold. Given a database it takes effect exactly once, and stands in line with those of other
        processes, as `PriorityQueue.pop_min` does. Cost: one read of one row, and two keys
        written.

        Parameters: `wait`, how many seconds to wait for an item if there is none, as in
        `PriorityQueue.pop_min`. Raises `UndecodableItem` for an item that the codec cannot read; it
        stays.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> Queue(fdbqueue.Subspace(("mail",))).dequeue(db) is None
        True
        """
        items = yield from self._store.pop(tr, 1, False, checked_wait(tr, wait))
        return next(iter(items), None)

    @driven
    def dequeue_many(self, tr: Any, n: int, *, wait: float = 0) -> Steps[list[Item]]:
        """Take the `n` oldest items in one transaction, in order; fewer if there are fewer.

        `wait` is how many seconds to wait for the first one if there is none.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> mail = Queue(fdbqueue.Subspace(("mail",)))
        >>> _ = mail.enqueue_many(db, ["a", "b"])
        >>> [item.value for item in mail.dequeue_many(db, 5)]
        ['a', 'b']
        """
        n, wait = checked_number(n), checked_wait(tr, wait)
        return (yield from self._store.pop(tr, n, False, wait))

    def peek(self, tr: Any) -> Item | None:
        """The item that `dequeue` would take, left where it is.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> mail = Queue(fdbqueue.Subspace(("mail",)))
        >>> _ = mail.enqueue(db, "first")
        >>> mail.peek(db).value, mail.size(db)
        ('first', 1)
        """
        return next(iter(self._store.peek(tr, 1)), None)

    def items(
        self,
        tr: Any,
        *,
        limit: int = 0,
        after: Item | str | None = None,
        reverse: bool = False,
    ) -> Iterator[Item]:
        """The items in order of arrival, with the rules of `PriorityQueue.items`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> mail = Queue(fdbqueue.Subspace(("mail",)))
        >>> _ = mail.enqueue_many(db, ["a", "b", "c"])
        >>> [item.value for item in mail.items(db, limit=2)]
        ['a', 'b']
        """
        return self._store.browse(tr, checked_number(limit, "limit"), after, reverse)
