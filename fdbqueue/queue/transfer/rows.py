"""The rows of a queue: read as they were at one moment, and written as a queue elsewhere."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple, TypeVar

from fdbqueue.database.clock import uuids
from fdbqueue.database.exactly_once import run_once
from fdbqueue.database.retrying import prepare_retry, read, run
from fdbqueue.errors import QueueChanged, QueueExists, RestoreRunning, error_classes
from fdbqueue.layout.batches import with_queues
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.names import (
    NAME_RECEIPTS,
    ROOT,
    decode_name,
    decode_subspace,
    is_name_key,
    name_key,
    restored_subspace,
    unfinished_key,
)
from fdbqueue.operations.names import drop_unfinished, find, find_existing, name_of
from fdbqueue.types import Database, State, Transaction

_T = TypeVar("_T")

_PAGE = 500  # rows that one range read returns

_LIFETIME = 5.0  # seconds in which a transaction can read
_SHARED = 1.0  # the first of these seconds, in which reads of another queue may still begin
_BATCH_ROWS, _BATCH_BYTES = 1_000, 1_000_000  # that one transaction writes


class Row(NamedTuple):
    """A key without the prefix of its queue, and the value."""

    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class QueueCopy:
    """A queue that was written to a file or to another database.

    Attributes:
        ready: The number of ready items, as they are stored: an item whose delay or lease is over
            counts as delayed or claimed until a client sweeps it.
        delayed: The number of delayed items.
        claimed: The number of claimed items.
        dead: The number of dead letters.
        done: The number of done items that are kept.
        rows: The number of keys.
        digest: The SHA-256 of all keys and values, as hexadecimal digits. Two queues with the same
            digest hold the same items, in the same states and the same order.
    """

    ready: int
    delayed: int
    claimed: int
    dead: int
    done: int
    rows: int
    digest: str


class Summary:
    """The number of rows of a queue, of items in each state, and the digest."""

    def __init__(self) -> None:
        self.rows = 0
        self._sha256 = hashlib.sha256()
        self._layout = Layout(decode_subspace(b""))
        self._items: dict[State, int] = dict.fromkeys(self._layout.prefix_of, 0)
        self._staged: list[Row] = []

    def add(self, row: Row) -> None:
        """Add a row; rows are added in order."""
        self.rows += 1
        _hash(self._sha256, row)
        for state, prefix in self._layout.prefix_of.items():
            if row.key.startswith(prefix):
                self._items[state] += 1
        if row.key.startswith(self._layout.results):
            self._staged.append(row)

    def finish(self) -> QueueCopy:
        """Return the result."""
        staged = sum(1 for _ in self._layout.staged_items(self._staged))
        ready, delayed, claimed, dead, done = self._items.values()
        digest = self._sha256.hexdigest()
        return QueueCopy(ready, delayed, claimed + staged, dead, done, self.rows, digest)


def summary_of(rows: Iterable[Row]) -> QueueCopy:
    """Return the summary of all rows of a queue."""
    summary = Summary()
    for row in rows:
        summary.add(row)
    return summary.finish()


def _hash(digest: hashlib._Hash, row: Row) -> None:
    for part in row:
        digest.update(len(part).to_bytes(4, "big"))
        digest.update(part)


class Moment:
    """A read version that the reads of several queues share, for as long as it lasts.

    Attributes:
        versions: How many read versions they have had.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self.versions = 0
        self._renew()

    def _renew(self) -> None:
        self.versions += 1
        self._tr = self._db.create_transaction()
        self._begun = time.monotonic()

    def begin_queue(self) -> None:
        """Go on to a new read version, unless most of the time of this one is left."""
        if time.monotonic() - self._begun > _SHARED:
            self._renew()

    def read(self, body: Callable[[Transaction], _T]) -> _T:
        """Return the result of a read; before it, renew the read version if that is over."""
        if time.monotonic() - self._begun > _LIFETIME:
            self._renew()
        while True:
            try:
                return body(self._tr)
            except error_classes() as error:
                prepare_retry(self._tr, error)
                self._renew()

    def rows(self, begin: bytes, end: bytes) -> Iterator[Row]:
        """Yield the rows of a range, whose pages may have different read versions."""
        while begin < end:
            page = self.read(partial(_page, begin=begin, end=end))
            yield from page
            if len(page) < _PAGE:
                return
            begin = page[-1].key + b"\x00"


def _page(tr: Transaction, begin: bytes, end: bytes) -> list[Row]:
    rows = tr.snapshot.get_range(begin, end, limit=_PAGE)
    return [Row(row.key, row.value) for row in rows]


def rows_of(db: Database, name: str, moment: Moment | None = None) -> Iterator[Row]:
    """Yield the rows of a named queue as they were at one moment, in the order of their keys.

    They are read at one read version, which lasts for five seconds. If that is over before the last
    row, further transactions go on. Then all rows are read a second time: if none differs, both
    times show the moment between them. The rows refer to other queues by their names.

    Raises:
        QueueNotFound: There is no queue with this name.
        QueueChanged: The queue has changed, and not all of its rows were read at one moment.
    """

    @cache
    def name_of_queue(prefix: bytes) -> bytes | None:
        if not prefix.startswith(ROOT.key()):
            return prefix
        other = read(db, partial(name_of, prefix=prefix))
        return None if other is None else name_key(other)

    moment = moment or Moment(db)
    moment.begin_queue()
    layout = Layout(moment.read(partial(find_existing, name=name)), name)
    size, versions = len(layout.subspace.key()), moment.versions
    first, second = hashlib.sha256(), hashlib.sha256()
    for row in _lasting_rows(layout, moment):
        _hash(first, row)
        key = row.key[size:]
        yield Row(key, with_queues(key, row.value, name_of_queue))
    if moment.versions == versions:
        return
    for row in _lasting_rows(layout, moment):
        _hash(second, row)
    if first.digest() != second.digest():
        raise QueueChanged(name)


def _lasting_rows(layout: Layout, moment: Moment) -> Iterator[Row]:
    for begin, end in layout.lasting_ranges():
        yield from moment.rows(begin, end)


def prefix_in(db: Database, reference: bytes) -> bytes | None:
    """Return the prefix of the queue to which a row refers; `None` if there is none of its name."""
    if not is_name_key(reference):
        return reference  # a queue without a name
    subspace = run(db, partial(find, name=decode_name(reference)))
    return None if subspace is None else bytes(subspace.key())


class NewQueue:
    """A queue that is being written. It gets its name after its last row.

    Until then no client can find it. The next attempt to write a queue of this name deletes the
    rows that an interrupted one has left.

    Raises:
        QueueExists: There is a queue with this name.
        InvalidQueueName: A queue cannot have this name.
    """

    def __init__(self, db: Database, name: str) -> None:
        self._db = db
        self.name = name
        (self._uuid,) = uuids(1)
        self.subspace = restored_subspace(self._uuid)
        run(db, self._begin)

    def _begin(self, tr: Transaction) -> None:
        key = unfinished_key(self.name)
        if find(tr, self.name) is not None:
            raise QueueExists(self.name)
        drop_unfinished(tr, self.name)
        tr[key] = self._uuid

    def verify(self, tr: Transaction) -> None:
        """Raise `RestoreRunning` if another process has begun to write a queue of this name."""
        if tr[unfinished_key(self.name)].value != self._uuid:
            raise RestoreRunning(self.name)

    def write(self, rows: Iterable[Row], progress: Callable[[int], object]) -> None:
        """Write all rows; call `progress` with the number of rows written, now and then."""
        written = 0
        for batch in batches(iter(rows)):
            run(self._db, partial(self._put, rows=batch))
            written += len(batch)
            progress(written)

    def _put(self, tr: Transaction, rows: list[Row]) -> None:
        self.verify(tr)
        prefix: bytes = self.subspace.key()
        for key, value in rows:
            tr[prefix + key] = value


def finish(db: Database, queues: Iterable[NewQueue]) -> None:
    """Give queues their names in one transaction.

    Raises:
        QueueExists: Another queue got one of the names meanwhile. None of the new ones gets its
            name, and their rows are deleted.
        RestoreRunning: Another process writes one of the queues at the same time.
    """

    def body(tr: Transaction) -> list[str]:
        taken = [queue.name for queue in queues if find(tr, queue.name) is not None]
        for queue in queues:
            queue.verify(tr)
            if taken:
                drop_unfinished(tr, queue.name)
            else:
                del tr[unfinished_key(queue.name)]
                tr[name_key(queue.name)] = queue.subspace.key()
        return taken

    for name in run_once(db, body, NAME_RECEIPTS):
        raise QueueExists(name)


def batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Yield rows in batches that a transaction has room for."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += len(row[0]) + len(row[1])
        if len(batch) == _BATCH_ROWS or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
