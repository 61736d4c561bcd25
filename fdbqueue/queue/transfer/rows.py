"""The rows of a queue: read as they were at one moment, and written as a queue elsewhere."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain, islice
from typing import NamedTuple, TypeAlias

from fdbqueue.database.clock import uuids
from fdbqueue.database.retrying import TOO_OLD, has_read_for_too_long, prepare_retry, read, run
from fdbqueue.errors import QueueChanged, QueueExists, RestoreRunning, error_classes
from fdbqueue.layout.batches import Links, Lost, with_queues
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.names import (
    ROOT,
    decode_name,
    decode_subspace,
    decode_unfinished,
    encode_unfinished,
    is_name_key,
    name_key,
    restored_subspace,
    unfinished_key,
)
from fdbqueue.operations.maintainers.batches import MAX_ENDED, end_lost
from fdbqueue.operations.names import drop_unfinished, find, find_existing, name_of
from fdbqueue.queue.transfer.errors import QueueDiffers
from fdbqueue.types import Database, KeyValue, State, Transaction

_PAGE = 500  # rows that one range read returns

_LIFETIME = 5.0  # seconds in which a transaction can read
_SHARED = 1.0  # the first of these seconds, in which reads of another queue may still begin
_BATCH_ROWS, _BATCH_BYTES = 1_000, 1_000_000  # that one transaction writes


class Row(NamedTuple):
    """A key without the prefix of its queue, and the value."""

    key: bytes
    value: bytes


Rows: TypeAlias = Callable[[], Iterable[Row]]
"""Returns the rows of a queue, in the order of their keys. A repeated call begins again."""


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
        notes: A sentence for each link to jobs that were not written with it: its jobs wait for
            them, or they wait for its jobs.
    """

    ready: int
    delayed: int
    claimed: int
    dead: int
    done: int
    rows: int
    digest: str
    notes: tuple[str, ...] = field(default=(), compare=False)


class Digest:
    """The number of rows, and their digest."""

    def __init__(self) -> None:
        self.rows = 0
        self._sha256 = hashlib.sha256()

    def add(self, row: Row) -> None:
        """Add a row; rows are added in order."""
        self.rows += 1
        _hash(self._sha256, row)

    @property
    def digest(self) -> bytes:
        """The digest of the rows so far."""
        return self._sha256.digest()


class Summary(Digest):
    """The number of rows of a queue, of items in each state, and the digest."""

    def __init__(self) -> None:
        super().__init__()
        self._layout = Layout(decode_subspace(b""))
        self._items: dict[State, int] = dict.fromkeys(self._layout.prefix_of, 0)
        self._staged: list[Row] = []

    def add(self, row: Row) -> None:
        """Add a row; rows are added in order."""
        super().add(row)
        for state, prefix in self._layout.prefix_of.items():
            if row.key.startswith(prefix):
                self._items[state] += 1
        if row.key.startswith(self._layout.results):
            self._staged.append(row)

    def finish(self) -> QueueCopy:
        """Return the result."""
        staged = sum(1 for _ in self._layout.staged_items(self._staged))
        ready, delayed, claimed, dead, done = self._items.values()
        return QueueCopy(ready, delayed, claimed + staged, dead, done, self.rows, self.digest.hex())


def summary_of(rows: Iterable[Row]) -> QueueCopy:
    """Return the summary of all rows of a queue."""
    summary = Summary()
    for row in rows:
        summary.add(row)
    return summary.finish()


class Moment:
    """A read version that the reads of several queues share, for as long as it lasts.

    Attributes:
        versions: How many read versions they have had.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self.versions = 0
        self.renew()

    def renew(self) -> None:
        """Begin to read at a new version."""
        self.versions += 1
        self.tr = self._db.create_transaction()
        self.begun = time.monotonic()

    def rows(self, begin: bytes, end: bytes) -> Iterator[Row]:
        """Yield the rows of a range, and renew the read version between two pages if it is over."""
        while begin < end:
            page = self._page(begin, end)
            yield from (Row(row.key, row.value) for row in page)
            if len(page) < _PAGE:
                return
            begin = page[-1].key + b"\x00"

    def _page(self, begin: bytes, end: bytes) -> list[KeyValue]:
        if time.monotonic() - self.begun > _LIFETIME:
            self.renew()
        while True:
            try:
                return [*self.tr.snapshot.get_range(begin, end, limit=_PAGE)]
            except error_classes() as error:
                prepare_retry(self.tr, error)
                self.renew()


def rows_of(db: Database, name: str, moment: Moment | None = None) -> Rows:
    """Return a function that reads a named queue; its rows refer to other queues by their names.

    Raises:
        QueueNotFound: There is no queue with this name.
    """
    subspace = run(db, partial(find_existing, name=name))
    return partial(_with_names, db, partial(_read_rows, db, Layout(subspace, name), moment))


def _with_names(db: Database, rows: Rows) -> Iterator[Row]:
    """Yield rows that refer to queues by the keys of their names, if they have one."""

    @cache
    def name_of_queue(prefix: bytes) -> bytes | None:
        if not prefix.startswith(ROOT.key()):
            return prefix
        name = read(db, partial(name_of, prefix=prefix))
        return None if name is None else name_key(name)

    return with_references(rows(), name_of_queue)


def with_references(rows: Iterable[Row], other: Callable[[bytes], bytes | None]) -> Iterator[Row]:
    """Yield rows that refer to other queues by other bytes."""
    return (Row(key, with_queues(key, value, other)) for key, value in rows)


def prefix_in(db: Database, reference: bytes) -> bytes | None:
    """Return the prefix of the queue to which a row refers; `None` if there is none of its name."""
    if not is_name_key(reference):
        return reference  # a queue without a name
    subspace = run(db, partial(find, name=decode_name(reference)))
    return None if subspace is None else bytes(subspace.key())


def links_of(queues: Mapping[str, Rows]) -> Links:
    """Return the links between queues, given their rows by their names."""
    links = Links()
    for name, rows in queues.items():
        for row in rows():
            links.add(name_key(name), *row)
    return links


def notes_of(links: Links, name: str, chosen: Iterable[str]) -> tuple[str, ...]:
    """Return what jobs of a chosen queue and jobs of queues that are left out wait for.

    `links` has the rows of all chosen queues, under their names.
    """
    known = {*map(name_key, chosen)}
    notes = [
        f"jobs of queue {decode_name(target)!r}, which is left out, wait for {n:,} of its jobs"
        for target, n in sorted(links.targets[name_key(name)].items())
        if is_name_key(target) and target not in known
    ]
    if lost := sum(each.n for each in links.lost(name_key(name)).values()):
        notes.append(f"its jobs wait for {lost:,} jobs of queues that are left out")
    return (*notes,)


def _read_rows(db: Database, layout: Layout, moment: Moment | None = None) -> Iterator[Row]:
    """Yield the rows of a queue as they were at one moment, in the order of their keys.

    They are read at one read version, which lasts for five seconds. After that, further
    transactions go on as long as the queue has not changed. Then all rows are read a second time:
    if none differs, both times show the moment between them.

    Raises:
        QueueChanged: The queue has changed, and not all of its rows were read at one moment.
    """
    reader = _Reader(layout, moment or Moment(db))
    first, second = hashlib.sha256(), hashlib.sha256()
    for row in reader.rows():
        _hash(first, row)
        yield row
    if reader.versions == 1:
        return
    for row in reader.rows():
        _hash(second, row)
    if first.digest() != second.digest():
        raise reader.changed()


def _hash(digest: hashlib._Hash, row: Row) -> None:
    for part in row:
        digest.update(len(part).to_bytes(4, "big"))
        digest.update(part)


class _Reader:
    """Reads of one queue at one read version, or at a later one as long as it has not changed."""

    def __init__(self, layout: Layout, moment: Moment) -> None:
        self._moment = moment
        self._layout = layout
        if time.monotonic() - moment.begun > _SHARED:
            moment.renew()
        self._watched: list[Row] | None = None
        self._seen: list[Row] = []  # of what is compared, in this transaction
        self.versions = 1
        self._is_verified = False

    def rows(self) -> Iterator[Row]:
        """Yield all rows of the queue that mean the same in another database."""
        size = len(self._layout.subspace.key())
        for begin, end in self._layout.lasting_ranges():
            while begin < end:
                rows = self.read(begin, end)
                yield from (Row(row.key[size:], row.value) for row in rows)
                if len(rows) < _PAGE:
                    break
                begin = rows[-1].key + b"\x00"

    def changed(self) -> QueueChanged:
        """Return the error that says that the queue has changed."""
        return QueueChanged(self._layout.name or repr(self._layout.subspace))

    def _begin(self) -> None:
        self.versions += 1
        self._moment.renew()
        self._is_verified = False

    def read(self, begin: bytes, end: bytes) -> list[KeyValue]:
        """Return the first rows of a range; raise `QueueChanged` if the queue has changed."""
        if time.monotonic() - self._moment.begun > _LIFETIME:
            self._begin()
        while True:
            try:
                self._verify()
                return [*self._moment.tr.snapshot.get_range(begin, end, limit=_PAGE)]
            except error_classes() as error:
                seconds = time.monotonic() - self._moment.begun
                if not self._is_verified and has_read_for_too_long(error, seconds, len(self._seen)):
                    raise  # to find out what has changed takes too long, and would again
                if error.code == TOO_OLD:
                    self._begin()
                else:
                    prepare_retry(self._moment.tr, error)
                    self._is_verified = False

    def _verify(self) -> None:
        """Compare what changes with every change of the queue, once for each read version."""
        if self._is_verified:
            return
        name = self._layout.name
        if (
            name is not None
            and find_existing(self._moment.tr, name).key() != self._layout.subspace.key()
        ):
            raise QueueChanged(name)
        snapshot = self._moment.tr.snapshot
        watched_ranges = self._layout.watched_ranges()
        reads = [snapshot.get_range(*keys, limit=limit) for keys, limit in watched_ranges]
        self._seen = []
        for row in chain.from_iterable(reads):
            self._seen.append(Row(row.key, row.value))
        if self._watched is None:
            self._watched = self._seen
        elif self._seen != self._watched:
            raise self.changed()
        self._is_verified = True


def stored_copy(db: Database, name: str, rows: Rows) -> QueueCopy | None:
    """Return the summary of a named queue that has these rows already; `None` if there is none.

    Raises:
        QueueDiffers: There is a queue with this name and other rows.
    """
    prefix = prefix_in(db, name_key(name))
    if prefix is None:
        return None
    stored = summary_of(_read_rows(db, Layout(decode_subspace(prefix), name)))
    if stored != summary_of(rows()):
        raise QueueDiffers(name)
    return stored


class NewQueue:
    """A queue that is being written. It gets its name after its last row.

    Until then no client can find it. Each transaction that writes rows also records how many there
    are, and their digest. So a later attempt to write the same rows continues where this stopped.
    """

    def __init__(self, db: Database, name: str) -> None:
        """Find what an earlier attempt has written, or begin.

        Raises:
            QueueExists: There is a queue with this name.
            InvalidQueueName: A queue cannot have this name.
        """
        self._db = db
        self.name = name
        self._key = unfinished_key(name)
        (uuid,) = uuids(1)

        def body(tr: Transaction) -> bytes | None:
            if find(tr, name) is not None:
                drop_unfinished(tr, name)
                return None
            stored = tr[self._key].value
            if stored is None:
                stored = encode_unfinished(restored_subspace(uuid).key(), 0, b"")
                tr[self._key] = stored
            return stored

        progress = run(db, body)
        if progress is None:
            raise QueueExists(name)
        self._progress = progress
        self.subspace = decode_subspace(decode_unfinished(self._progress)[0])

    def write(self, rows: Rows, progress: Callable[[int], object]) -> QueueCopy:
        """Write all rows that no earlier attempt has written.

        Args:
            rows: The rows.
            progress: Called with the number of rows written, now and then.

        Raises:
            RestoreRunning: Another process writes the queue at the same time.
        """
        prefix, written, digest = decode_unfinished(self._progress)
        left = iter(rows())
        summary = Summary()
        for row in islice(left, written):
            summary.add(row)
        if written and (summary.rows, summary.digest) != (written, digest):
            self._store(encode_unfinished(prefix, 0, b""), self._clear)
            left, summary = iter(rows()), Summary()
        for batch in batches(left):
            for row in batch:
                summary.add(row)
            progressed = encode_unfinished(prefix, summary.rows, summary.digest)
            self._store(progressed, partial(self._put, batch=batch))
            progress(summary.rows)
        return summary.finish()

    def end_lost(self, now: int, lost: Mapping[bytes, Lost]) -> None:
        """Count the jobs that batches of the queue have lost as ended.

        If this is interrupted, a later attempt writes the queue anew.

        Raises:
            RestoreRunning: Another process writes the queue at the same time.
        """
        layout, left = Layout(self.subspace), iter(lost.items())
        while some := [*islice(left, MAX_ENDED)]:

            def end(tr: Transaction, some: list[tuple[bytes, Lost]] = some) -> None:
                for id, each in some:
                    end_lost(tr, layout, now, id, each)

            # The digest is that of no row, so a later attempt does not continue here.
            self._store(encode_unfinished(self.subspace.key(), 1, some[0][0]), end)

    def _clear(self, tr: Transaction) -> None:
        del tr[self.subspace.range()]

    def _put(self, tr: Transaction, batch: list[Row]) -> None:
        prefix: bytes = self.subspace.key()
        for key, value in batch:
            tr[prefix + key] = value

    def _store(self, new: bytes, write: Callable[[Transaction], None]) -> None:
        """Write to the queue, and store how far this attempt is."""

        def body(tr: Transaction) -> None:
            stored = tr[self._key].value
            if stored == new:
                return  # an earlier try has committed
            if stored != self._progress:
                raise RestoreRunning(self.name)
            write(tr)
            tr[self._key] = new

        run(self._db, body)
        self._progress = new

    def read(self) -> QueueCopy:
        """Read back all that was written."""
        return summary_of(_read_rows(self._db, Layout(self.subspace)))

    def is_taken(self, tr: Transaction) -> bool:
        """Return whether another queue has the name; if so, delete the rows."""
        found = find(tr, self.name)
        if found is None or found.key() == self.subspace.key():
            return False
        drop_unfinished(tr, self.name)
        return True

    def finish(self, tr: Transaction) -> None:
        """Give the queue its name.

        Raises:
            RestoreRunning: Another process writes the queue at the same time.
        """
        prefix: bytes = self.subspace.key()
        if find(tr, self.name) is not None:
            return  # an earlier try has committed
        if tr[self._key].value != self._progress:
            raise RestoreRunning(self.name)
        del tr[self._key]
        tr[name_key(self.name)] = prefix


def finish(db: Database, queues: Iterable[NewQueue]) -> None:
    """Give queues their names in one transaction.

    Raises:
        QueueExists: Another queue got one of the names meanwhile. None of the new ones gets its
            name.
        RestoreRunning: Another process writes one of the queues at the same time.
    """

    def body(tr: Transaction) -> list[str]:
        taken = [queue.name for queue in queues if queue.is_taken(tr)]
        if not taken:
            for queue in queues:
                queue.finish(tr)
        return taken

    for name in run(db, body):
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
