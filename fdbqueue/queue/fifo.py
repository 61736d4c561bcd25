"""The FIFO queue: first in, first out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, overload

from fdb.subspace_impl import Subspace

from fdbqueue.coordination.clock import uuids
from fdbqueue.database.retrying import read
from fdbqueue.layout import Layout
from fdbqueue.layout.codecs import codec_name, codec_named
from fdbqueue.operations.items import Entry, Rows
from fdbqueue.queue.claimable import ClaimableStore
from fdbqueue.types import Codec, Item, Options

__all__ = ["Queue"]


class Queue(ClaimableStore):
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

    _position_parts = 2

    def __init__(
        self, subspace: Subspace, *, codec: str | Codec = "json", max_size: int | None = None
    ) -> None:
        layout = Layout(subspace)
        rows = Rows(layout, lambda key: layout.items)
        options = Options("fifo", codec_name(codec), None, max_size)
        super().__init__(layout, rows, codec_named(codec), options)

    @overload
    def enqueue(self, tr: Any, value: Any, *, raise_if_full: Literal[True]) -> Item: ...

    @overload
    def enqueue(self, tr: Any, value: Any, *, raise_if_full: bool = False) -> Item | None: ...

    def enqueue(self, tr: Any, value: Any, *, raise_if_full: bool = False) -> Item | None:
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
        return next(iter(self.enqueue_many(tr, (value,), raise_if_full=raise_if_full)), None)

    def enqueue_many(
        self,
        tr: Any,
        values: Iterable[Any],
        *,
        as_many_as_fit: bool = False,
        raise_if_full: bool = False,
    ) -> list[Item]:
        """Put several values at the end of the queue in one transaction: all of them, or none.

        `as_many_as_fit` and `raise_if_full` are those of `PriorityQueue.push_many`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> mail = Queue(fdbqueue.Subspace(("mail",)))
        >>> [item.value for item in mail.enqueue_many(db, ["a", "b"])]
        ['a', 'b']
        """
        values = list(values)
        level = self.layout.items
        entries: list[Entry] = [
            Entry(level, self.encoded(value), random)
            for value, random in zip(values, uuids(len(values)))
        ]
        keys = self._push(tr, entries, as_many_as_fit, raise_if_full)
        item_id = self.layout.item_id
        return [Item(value, None, item_id(key), key) for value, key in zip(values, keys)]

    def dequeue(self, tr: Any, *, wait: float = 0) -> Item | None:
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
        return next(iter(self.dequeue_many(tr, 1, wait=wait)), None)

    def dequeue_many(self, tr: Any, n: int, *, wait: float = 0) -> list[Item]:
        """Take the `n` oldest items in one transaction, in order; fewer if there are fewer.

        `wait` is how many seconds to wait for the first one if there is none.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> mail = Queue(fdbqueue.Subspace(("mail",)))
        >>> _ = mail.enqueue_many(db, ["a", "b"])
        >>> [item.value for item in mail.dequeue_many(db, 5)]
        ['a', 'b']
        """
        return self._pop(tr, n, False, wait)

    def peek(self, tr: Any) -> Item | None:
        """The item that `dequeue` would take, left where it is.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> mail = Queue(fdbqueue.Subspace(("mail",)))
        >>> _ = mail.enqueue(db, "first")
        >>> mail.peek(db).value, mail.size(db)
        ('first', 1)
        """

        def body(tr: Any) -> Item | None:
            rows = self.rows.first(tr, 1)
            return self._item(tr, rows[0].key, rows[0].value) if rows else None

        return read(tr, body)

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
        begin, end = self.layout.range_of(self.layout.items)
        return self._browse(tr, begin, end, limit, after, reverse)
