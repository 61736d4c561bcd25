"""Items in the order of their keys: what the priority queue and the FIFO queue have in common."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from fdb.subspace_impl import Subspace

from fdbqueue.coordination.batches import Pushes
from fdbqueue.coordination.clock import milliseconds
from fdbqueue.coordination.combiner import Combiner
from fdbqueue.coordination.staged_pops import LEASE, MOST_ITEMS, StagedPops
from fdbqueue.coordination.sweeper import Sweeper
from fdbqueue.coordination.watches import checked_wait, wait_for_change
from fdbqueue.database.binding import error_classes, is_database
from fdbqueue.database.receipts import run_once
from fdbqueue.database.retrying import read, run
from fdbqueue.errors import (
    FdbqueueError,
    InvalidItemId,
    InvalidValue,
    PayloadTooLarge,
    QueueFull,
    UndecodableItem,
)
from fdbqueue.layout import MAX_PAYLOAD, ONE, Layout, decode_count, decode_options, header_of
from fdbqueue.layout.codecs import with_stack
from fdbqueue.operations.items import Entry, Rows, find
from fdbqueue.operations.push import Push, Pushing
from fdbqueue.operations.schedule import Schedule
from fdbqueue.queue.arguments import checked_bound
from fdbqueue.types import Codec, Item, Options

__all__ = ["ItemStore", "log_items"]

_T = TypeVar("_T")

_PAGE = 500  # items that a browse of a database reads in one transaction

_BATCH_BYTES = 1_000_000  # that one transaction pushes for several threads, or puts back
_ITEM_BYTES = 250  # of a transaction, for each item beside its payload


def _push_size(push: Push) -> int:
    return sum(len(entry.payload) + _ITEM_BYTES for entry in push.entries)


def _pop_size(request: tuple[int, bool]) -> int:
    return request[0]


def _not_empty(result: Any) -> bool:
    return result is not None and result is not False and result != []


class ItemStore:
    """The items of one subspace: appended to levels, browsed, taken, counted.

    A FIFO queue has one level, a priority queue one for each priority.
    """

    _position_parts: int
    """How many elements the position of an item has: with a priority three, without two."""

    def __init__(
        self,
        layout: Layout,
        rows: Rows,
        codec: Codec,
        options: Options,
    ) -> None:
        checked_bound("max_size", options.max_size)
        checked_bound("max_attempts", options.max_attempts)
        self.layout = layout
        self.rows = rows
        self._codec = codec
        self.given_options = options
        pushing = self._pushing = Pushing(layout, rows, options, random.randrange)
        self.pushes = Combiner(lambda: Pushes(pushing), _push_size, _BATCH_BYTES)
        self.pops = Combiner(lambda: StagedPops(layout, rows, self._item), _pop_size, MOST_ITEMS)
        self.schedule = Schedule(layout, rows)
        self.sweeper = Sweeper(layout, self.schedule)

    @property
    def subspace(self) -> Subspace:
        """The subspace of the whole queue."""
        return self.layout.subspace

    # Transactions

    def _change(
        self,
        tr: Any,
        body: Callable[[Any], _T],
        wrote: Callable[[Any], bool] = _not_empty,
        committed: Callable[[Any], object] = lambda _: None,
    ) -> _T:
        """Run a change: in the caller's transaction, or on a database exactly once."""
        if is_database(tr):
            return run_once(tr, body, self.layout.receipts, wrote, committed)
        return body(tr)

    # Payloads

    def encoded(self, value: Any) -> bytes:
        """The payload of a value; raises `InvalidValue` or `PayloadTooLarge`."""
        return self._payload(self._codec.encode, value)

    def _restored(self, item: Item) -> bytes:
        """The payload of an item that was taken; an older release may have stored a deeper one."""
        return self._payload(getattr(self._codec, "restore", self._codec.encode), item.value)

    def _payload(self, encode: Callable[[Any], bytes], value: Any) -> bytes:
        try:
            payload = with_stack(encode, value)
        except FdbqueueError:
            raise
        except (ValueError, TypeError) as error:
            raise InvalidValue(value, f"the value cannot be stored: {error}") from error
        if not isinstance(payload, bytes):
            raise InvalidValue(value, f"the codec made {type(payload).__name__}, not bytes")
        if len(payload) > MAX_PAYLOAD:
            raise PayloadTooLarge(len(payload), MAX_PAYLOAD)
        return payload

    def _item(self, tr: Any, key: bytes, stored: bytes) -> Item:
        """The item of a row; raises `UndecodableItem` if the codec cannot read it."""
        priority = self.layout.priority_of(self.rows.level_of(key))
        item_id = self.layout.item_id(key)
        payload = self.layout.read_payload(tr, stored)
        try:
            value = with_stack(self._codec.decode, payload)
        except (ValueError, TypeError) as error:
            raise UndecodableItem(item_id, str(error)) from error
        return Item(value, priority, item_id, key)

    def _items_of(self, tr: Any, rows: Iterable[Any]) -> list[Item]:
        return [self._item(tr, row.key, row.value) for row in rows]

    # Push

    def _push(
        self, tr: Any, entries: list[Entry], as_many_as_fit: bool, raise_if_full: bool
    ) -> list[bytes]:
        """Put payloads behind the last items of their levels; the keys of the new items.

        On a database together with what other threads push at the time.
        """
        if not entries:
            return []
        push = Push(entries, as_many_as_fit)
        if self._pushing.max_size is not None:  # what is to expire makes room
            self.sweeper.prepare(tr)
        if is_database(tr):
            keys = self.pushes(tr, push)
        else:
            (keys,) = self._pushing.push(tr, [push])
            if len(keys) < len(entries):
                self._pushing.rely_on_full(tr)
        if raise_if_full:
            self.check_room(push, keys)
        return keys

    def check_room(self, push: Push, keys: list[bytes]) -> None:
        """Raise `QueueFull` if a push stored nothing because there was no room."""
        bound = self._pushing.max_size
        if bound is not None and len(keys) < (1 if push.as_many_as_fit else len(push.entries)):
            raise QueueFull(bound, len(push.entries))

    def options(self, tr: Any) -> Options:
        """What the queue is: its kind, codec, priorities and bound.

        Until the first push they are those with which it was opened. Cost: one read.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> fdbqueue.PriorityQueue.named(db, "jobs", max_size=100).options(db)
        Options(kind='priority', codec='json', priorities=<class 'int'>, max_size=100, ...)
        """

        def body(tr: Any) -> Options:
            stored = tr[self.layout.options].value
            return self.given_options if stored is None else decode_options(stored)

        return read(tr, body)

    def set_max_size(self, tr: Any, max_size: int | None) -> None:
        """Give the queue another bound, or none; items that are over it stay.

        Items count that wait, are delayed, or are claimed, whenever that was. All clients that have
        the queue open keep to the bound from their next push on. Given a database it takes effect
        exactly once; in a transaction the caller's own retry rules hold. Conflicts with pushes.

        Parameters: `max_size`, from 1, or `None`. Raises `OptionsMismatch`, `ValueError`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs", max_size=1)
        >>> _ = jobs.push(db, "a")
        >>> jobs.set_max_size(db, 2)
        >>> jobs.push(db, "b") is None
        False
        """
        checked_bound("max_size", max_size)
        self._change(tr, lambda tr: self._pushing.set_option(tr, "max_size", max_size))

    # Pop

    def _pop(self, tr: Any, n: int, at_max: bool, wait: float) -> list[Item]:
        """Take the first `n` items; on a database together with what other threads pop.

        If there is none, wait for one. Who wakes and finds that another one was quicker sleeps
        again; when the time is over there is one more look.
        """
        self.check_number(n)
        wait = checked_wait(tr, wait)
        if n == 0:
            return []
        if not is_database(tr):
            admits = self.sweeper.admits(tr, milliseconds())
            return self._take(tr, self.rows.first(tr, n, at_max)) if admits else []
        deadline = time.monotonic() + wait
        while True:
            taken = self.pops(tr, (n, at_max)) if self.sweeper.prepare(tr, n) else []
            if not taken and self.sweeper.is_behind:
                continue  # others took what had come
            left = deadline - time.monotonic()
            if taken or left <= 0:
                return taken
            self._sleep(tr, min(left, LEASE))

    def _sleep(self, db: Any, seconds: float) -> None:
        """Sleep until somebody pushes, or something is due; not at all if there is an item."""
        seconds = min(seconds, self.sweeper.seconds_left(db))
        wait_for_change(db, self.to_watch, seconds)

    def to_watch(self, tr: Any) -> list[bytes]:
        """What changes once an item can be taken; nothing if one can be."""
        if self.is_empty(tr):
            return [self.layout.came]
        return [self.layout.freed] if self.schedule.is_paused(tr) else []

    def has_none(self, db: Any) -> bool:
        """Whether there is no item to be taken, once what is due has come."""
        return not self.sweeper.prepare(db) or self.is_empty(db)

    def wait(self, db: Any, seconds: float) -> bool:
        """Sleep until there is an item, and leave it; whether there is one.

        Another client may take it before this one does: `pop(db, wait=...)` waits and takes. This
        is for who must not be interrupted between taking an item and using it, and may be while it
        waits. Cost: one read transaction for each time that it wakes.

        Parameters: `db`, a database; `seconds`, from 0, `math.inf` for ever.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push(db, "send")
        >>> jobs.wait(db, 60)
        True
        """
        deadline = time.monotonic() + checked_wait(db, seconds)
        while self.has_none(db):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._sleep(db, left)
        return True

    @staticmethod
    def check_number(n: object, name: str = "n", lowest: int = 0) -> None:
        if isinstance(n, bool) or not isinstance(n, int) or n < lowest:
            raise ValueError(f"{name} is a number of items from {lowest}, not {n!r}")

    def _take(self, tr: Any, rows: list[Any]) -> list[Item]:
        """Take rows out of the queue."""
        items = self._items_of(tr, rows)
        self.rows.drop_first(tr, rows)
        for row in rows:
            self.layout.end(tr, row.value)
        return items

    # Changes of single items

    def key_of(self, item: Item | str) -> bytes:
        """The key of an item of this queue, or of an id; raises `InvalidItemId` for another."""
        if not isinstance(item, Item):
            return self.layout.key_of_id(item, self._position_parts)
        if not item.key.startswith(self.layout.items):
            raise InvalidItemId(item.id)
        return item.key

    def _take_one(self, tr: Any, key: bytes, stored: bytes) -> None:
        """Take one item out of the queue that a transaction read, wherever it stands."""
        self.rows.drop(tr, [(key, stored)])
        self.layout.end(tr, stored)

    def _move(self, tr: Any, key: bytes, stored: bytes, payload: bytes, level: bytes) -> bytes:
        """Put an item that a transaction read, with this payload, behind a level; its new key."""
        self._take_one(tr, key, stored)
        # The random part stays the item's own, and so does what else is known of it.
        random = self.layout.position(key)[-1]
        entry = Entry(level, payload, random, header=header_of(stored)[0])
        (new,) = self.rows.append(tr, level, [entry], self.rows.last(tr, level))
        self.rows.count_moved(tr)
        return new

    def _remove(self, tr: Any, key: bytes) -> bool:
        found = find(tr, self.layout, self.layout.place(key))
        if found is None or found.state not in ("waiting", "delayed"):
            return False
        if found.state == "waiting":
            self._take_one(tr, found.key, found.value)
        else:
            self.rows.end_delay(tr, self.layout.place(key), found.facts[0])
            self.rows.count_total(tr, -1)
            self.layout.end(tr, found.value)
        tr.add(self.layout.removed, ONE)
        return True

    def remove(self, tr: Any, item: Item | str) -> bool:
        """Take one item out of the queue, wherever it stands; false if it is there no more.

        A delayed one too; not one that is claimed, or a dead letter. Given a database it takes
        effect exactly once; in a transaction the caller's own retry rules hold. Conflicts with what
        takes or moves the same item, nothing else. Cost: one read, of a delayed one four.

        Parameters: `tr`, a transaction or a database; `item`, an `Item` or its id. Raises
        `InvalidItemId`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> item = jobs.push(db, "send")
        >>> jobs.remove(db, item.id), jobs.remove(db, item.id)
        (True, False)
        """
        key = self.key_of(item)
        return self._change(tr, lambda tr: self._remove(tr, key))

    def clear(self, tr: Any) -> None:
        """Take all items out of the queue; the queue itself stays, with its options.

        Claims and dead letters end too, counters begin at zero, and an import of the same file
        stores its lines anew. Idempotency keys stay for their 24 hours: a request that is repeated
        by mistake is not done again.

        Given a database it takes effect exactly once; in a transaction the caller's own retry
        rules hold. A push that commits before it is cleared, one that commits later is not. Pops
        and other reads that run at the same time conflict with it. Cost: a few
        clears of ranges, whatever the number of items.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push(db, "send")
        >>> jobs.clear(db)
        >>> jobs.is_empty(db)
        True
        """

        def body(tr: Any) -> bool:
            layout = self.layout
            for prefix in (*layout.of_items, layout.totals, layout.imports):
                tr.clear_range(*layout.range_of(prefix))
            return True

        self._change(tr, body)

    def put_back(self, tr: Any, items: Iterable[Item]) -> None:
        """Put items that were taken back into their own places, even beyond a bound.

        For whoever popped them and cannot use them after all. Given a database it takes effect
        exactly once, in one transaction for each 1,000,000 bytes; in a transaction the caller's own
        retry rules hold. An item that is back already is not counted twice. Cost: a read for each
        item, and what a push writes.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push_many(db, ["first", "second"])
        >>> jobs.put_back(db, [jobs.pop(db)])
        >>> jobs.pop(db).value
        'first'
        """
        places = [(self.key_of(item), self._restored(item)) for item in items]
        if not is_database(tr):
            self._put_back(tr, places)
            return
        begin = size = 0
        for end, (_, payload) in enumerate(places):
            if size and size + len(payload) > _BATCH_BYTES:
                run_once(
                    tr, partial(self._put_back, places=places[begin:end]), self.layout.receipts
                )
                begin, size = end, 0
            size += len(payload) + _ITEM_BYTES
        run_once(tr, partial(self._put_back, places=places[begin:]), self.layout.receipts)

    def _put_back(self, tr: Any, places: list[tuple[bytes, bytes]]) -> None:
        # Every read is under way before the first is waited for.
        there = [tr[key] for key, _ in places]
        for (key, payload), stored in zip(places, there):
            if not stored.present():
                value = self.layout.value_of(tr, self.layout.position(key)[-1], payload)
                tr[key] = value
                self.rows.entered(tr, key, value)
                self.rows.count(tr, self.rows.level_of(key), 1)
                self.rows.count_moved(tr)

    # Reads

    def size(self, tr: Any) -> int:
        """How many items are in the queue.

        Two reads at once of counters, which pushes and pops change: in a transaction that writes,
        read them by `size(tr.snapshot)` unless it is to conflict with them all.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push_many(db, ["a", "b"])
        >>> jobs.size(db)
        2
        """
        return read(tr, lambda tr: max(0, self.layout.begin_size(tr)()))

    def throughput(self, tr: Any) -> tuple[int, int]:
        """How many items ever came into the queue, and how many went, since it was cleared.

        The differences between two moments are what was pushed and popped between them.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push_many(db, ["a", "b"]), jobs.pop(db)
        >>> jobs.throughput(db)
        (2, 1)
        """

        def body(tr: Any) -> tuple[int, int]:
            came, went = tr[self.layout.came], tr[self.layout.went]
            return decode_count(came.value), decode_count(went.value)

        return read(tr, body)

    def pushed_at(self, item: Item | str) -> datetime | None:
        """When an item was pushed, by the clock of who did; `None` if another client did.

        It is a part of the item's id: nothing is read. Raises `InvalidItemId`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> jobs.pushed_at(jobs.push(db, "a")).tzname()
        'UTC'
        """
        return self.layout.pushed_at(self.key_of(item))

    def is_empty(self, tr: Any) -> bool:
        """Whether there is no item, by a look at the items themselves.

        Conflicts with what changes the head of the queue. Cost: one read of one row.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> fdbqueue.PriorityQueue.named(db, "jobs").is_empty(db)
        True
        """
        begin, end = self.layout.range_of(self.layout.items)
        return read(tr, lambda tr: not list(tr.get_range(begin, end, limit=1)))

    def _browse(
        self, tr: Any, begin: bytes, end: bytes, limit: int, after: Item | str | None, reverse: bool
    ) -> Iterator[Item]:
        self.check_number(limit, "limit")
        if after is not None:
            passed = self.key_of(after)
            begin, end = (begin, min(end, passed)) if reverse else (max(begin, passed + b"\0"), end)
        if not is_database(tr):
            for row in tr.get_range(begin, end, limit=limit, reverse=reverse):
                yield self._item(tr, row.key, row.value)
            return
        left = limit
        while begin < end:
            page = self._page(tr, begin, end, min(left, _PAGE) if limit else _PAGE, reverse)
            yield from page
            left -= len(page)
            if len(page) < _PAGE or (limit and left <= 0):
                return
            if reverse:
                end = page[-1].key
            else:
                begin = page[-1].key + b"\0"

    def _page(self, db: Any, begin: bytes, end: bytes, size: int, reverse: bool) -> list[Item]:
        def body(tr: Any) -> list[Item]:
            return self._items_of(tr, tr.get_range(begin, end, limit=size, reverse=reverse))

        return run(db, body)


_log = logging.getLogger("fdbqueue")


def log_items(queue: Any, tr: Any, verb: str, items: list[Item]) -> None:
    """Log a line for each item that came or went, and how many are left, if it is wanted.

    Of a transaction of the caller's nobody knows yet whether it commits: it is not logged.
    """
    if not items or not _log.isEnabledFor(logging.INFO) or not is_database(tr):
        return
    name = queue.layout.name or queue.subspace.key()
    try:
        counts = queue.counts(tr)
    except error_classes() as error:  # what came or went did so all the same
        left = f"unknown ({error.code})"
    else:
        left = " ".join(f"{level}:{count:,}" for level, count in counts.items()) or "nothing"
    for item in items:
        _log.info("%s %s, priority %s; left: %s", verb, name, item.priority, left)
