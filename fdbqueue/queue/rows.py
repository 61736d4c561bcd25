"""Rows of queues, and keys beside them: read as they were at one moment, and written elsewhere."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from typing import NamedTuple, TypeVar

from fdbqueue.database.binding import loaded_binding
from fdbqueue.database.clock import uuids
from fdbqueue.database.exactly_once import run_once
from fdbqueue.database.retrying import prepare_retry, read, run
from fdbqueue.errors import FdbqueueError, QueueExists, RestoreRunning, error_classes
from fdbqueue.layout.batches import with_queues
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.names import (
    NAME_RECEIPTS,
    ROOT,
    decode_subspace,
    name_key,
    restored_subspace,
    unfinished_key,
)
from fdbqueue.operations.maintainers.batches import MAX_ENDED, end_lost
from fdbqueue.operations.names import drop_unfinished, find, find_existing, name_of
from fdbqueue.types import Database, ReadTransaction, Transaction

_T = TypeVar("_T")

OURS: bytes = ROOT.key()
"""Begins the keys of named queues, and of what the library notes of them."""

_PAGE = 500  # rows that one range read returns

_LIFETIME = 5.0  # seconds in which a transaction can read
_SHARED = 1.0  # the first of these seconds, in which reads of another queue may still begin
_BATCH_ROWS, _BATCH_BYTES = 1_000, 1_000_000  # that one transaction writes


class KeyExists(FdbqueueError):
    """A key of a backup that the database has with another value, which stays."""

    key: bytes

    _template = (
        "the database has another value than the backup under the key {self.key!r}; clear the key, "
        "or restore only the queues and prefixes that you name"
    )


class Row(NamedTuple):
    """A key, which of a queue is without the prefix of the queue, and the value."""

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


def summary_of(rows: Iterable[Row]) -> QueueCopy:
    """Return the summary of all rows of a queue, given in order."""
    layout = Layout(decode_subspace(b""))
    items = dict.fromkeys(layout.prefix_of, 0)
    sha256, staged, n = hashlib.sha256(), list[Row](), 0
    for row in rows:
        n += 1
        for part in row:
            sha256.update(len(part).to_bytes(4, "big"))
            sha256.update(part)
        for state, prefix in layout.prefix_of.items():
            items[state] += row.key.startswith(prefix)
        if row.key.startswith(layout.results):
            staged.append(row)
    items["claimed"] += sum(1 for _ in layout.staged_items(staged))
    return QueueCopy(**items, rows=n, digest=sha256.hexdigest())


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
    """Yield the rows of a named queue in the order of their keys.

    They show one moment, unless the read version of `moment` changes meanwhile. They refer to other
    queues by the keys of their names.

    Raises:
        QueueNotFound: There is no queue with this name.
    """

    @cache
    def name_of_queue(prefix: bytes) -> bytes | None:
        if not prefix.startswith(OURS):
            return prefix
        other = read(db, partial(name_of, prefix=prefix))
        return None if other is None else name_key(other)

    moment = moment or Moment(db)
    layout = Layout(moment.read(partial(find_existing, name=name)), name)
    size = len(layout.subspace.key())
    for begin, end in layout.lasting_ranges():
        for row in moment.rows(begin, end):
            yield Row(row.key[size:], with_queues(row.key[size:], row.value, name_of_queue))


def key_rows(prefix: bytes, moment: Moment) -> Iterator[Row]:
    """Yield the rows whose keys begin with a prefix, without those of named queues."""
    strinc = loaded_binding().strinc
    begin, end = prefix, strinc(prefix) if prefix else b"\xff"
    if OURS.startswith(prefix):
        yield from moment.rows(begin, OURS)
        begin = strinc(OURS)
    yield from moment.rows(begin, end)


class NewQueues:
    """Queues that are being written. They get their names after their last rows.

    Until then no client can find them. The next attempt to write a queue of the same name deletes
    the rows that an interrupted one has left.

    Args:
        db: A database.
        names: The names that the queues get.

    Raises:
        QueueExists: There is a queue with one of the names.
        InvalidQueueName: A queue cannot have one of the names.
    """

    def __init__(self, db: Database, names: list[str]) -> None:
        self._db = db
        self._uuids = dict(zip(names, uuids(len(names))))
        self.subspaces = {name: restored_subspace(uuid) for name, uuid in self._uuids.items()}
        run(db, self._begin)

    def _begin(self, tr: Transaction) -> None:
        for name, uuid in self._uuids.items():
            if find(tr, name) is not None:
                raise QueueExists(name)
            drop_unfinished(tr, name)
            tr[unfinished_key(name)] = uuid

    def _verify(self, tr: Transaction, name: str) -> None:
        """Raise `RestoreRunning` if another process has begun to write a queue of this name."""
        if tr[unfinished_key(name)].value != self._uuids[name]:
            raise RestoreRunning(name)

    def write(self, name: str, rows: Iterable[Row]) -> None:
        """Write all rows of a queue."""
        prefix: bytes = self.subspaces[name].key()

        def body(tr: Transaction, batch: list[Row]) -> None:
            self._verify(tr, name)
            for key, value in batch:
                tr[prefix + key] = value

        for batch in _batches(rows):
            run(self._db, partial(body, batch=batch))

    def end_lost(self, name: str, now: int, lost: dict[bytes, int]) -> None:
        """Count the jobs that batches of a queue have lost as cancelled."""
        layout, left = Layout(self.subspaces[name]), iter(lost.items())

        def body(tr: Transaction, some: list[tuple[bytes, int]]) -> None:
            self._verify(tr, name)
            for id, n in some:
                end_lost(tr, layout, now, id, n)

        while some := [*islice(left, MAX_ENDED)]:
            run_once(self._db, partial(body, some=some), NAME_RECEIPTS)

    def finish(self) -> None:
        """Give the queues their names in one transaction.

        Raises:
            QueueExists: Another queue got one of the names meanwhile. None of the new ones gets its
                name, and their rows are deleted.
            RestoreRunning: Another process writes one of the queues at the same time.
        """
        for name in run_once(self._db, self._finish, NAME_RECEIPTS):
            raise QueueExists(name)

    def _finish(self, tr: Transaction) -> list[str]:
        taken = [name for name in self._uuids if find(tr, name) is not None]
        for name, subspace in self.subspaces.items():
            self._verify(tr, name)
            if taken:
                drop_unfinished(tr, name)
            else:
                del tr[unfinished_key(name)]
                tr[name_key(name)] = subspace.key()
        return taken


def count_missing(db: Database, rows: Iterable[Row]) -> int:
    """Return how many of the rows a database does not have.

    Raises:
        KeyExists: It has another value under one of the keys.
    """
    return sum(len(read(db, partial(_missing, rows=batch))) for batch in _batches(rows))


def store_keys(db: Database, rows: Iterable[Row]) -> None:
    """Write the rows that a database does not have.

    Raises:
        KeyExists: It has another value under one of the keys. The rows before it may be stored.
    """

    def body(tr: Transaction, batch: list[Row]) -> None:
        for key, value in _missing(tr, batch):
            tr[key] = value

    for batch in _batches(rows):
        run(db, partial(body, batch=batch))


def _missing(tr: ReadTransaction, rows: list[Row]) -> list[Row]:
    missing: list[Row] = []
    for row, found in [(row, tr[row.key]) for row in rows]:
        if not found.present():
            missing.append(row)
        elif found.value != row.value:
            raise KeyExists(row.key)
    return missing


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield rows in batches that a transaction has room for."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += len(row.key) + len(row.value)
        if len(batch) == _BATCH_ROWS or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
