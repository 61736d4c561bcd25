"""Backups: queues in a file, each as it was at one moment, and the user's own keys."""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, partial
from typing import IO, Any, NamedTuple, TypeVar

from fdbqueue.database.binding import loaded_binding
from fdbqueue.database.clock import uuids
from fdbqueue.database.exactly_once import run_once
from fdbqueue.database.pages import in_batches
from fdbqueue.database.retrying import prepare_retry, read, run
from fdbqueue.errors import (
    FdbqueueError,
    InvalidBackup,
    QueueChanged,
    QueueExists,
    QueueNotFound,
    RestoreRunning,
    error_classes,
)
from fdbqueue.layout.batches import with_queues
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.names import (
    NAME_RECEIPTS,
    ROOT,
    decode_name,
    decode_subspace,
    is_name_key,
    name_key,
    names_with,
    restored_subspace,
    unfinished_key,
)
from fdbqueue.layout.values import LAYOUT_VERSION
from fdbqueue.operations.names import drop_unfinished, find, find_existing, name_of
from fdbqueue.types import ByState, Database, ReadTransaction, Transaction

_T = TypeVar("_T")

OURS: bytes = ROOT.key()
"""Begins the keys of named queues, and of the library's notes about them."""

_PAGE = 500  # rows that one range read returns

_LIFETIME = 5.0  # seconds in which a transaction can read
_SHARED = 1.0  # the first of these seconds, in which reads of another queue may still begin
_BATCH_ROWS, _BATCH_BYTES = 1_000, 1_000_000  # that one transaction writes


class KeyExists(FdbqueueError):
    """The database has another value under a key of the backup; it stays."""

    key: bytes

    _template = (
        "the database has another value than the backup under the key {self.key!r}; clear the key, "
        "or restore only the queues and prefixes that you name"
    )


class Row(NamedTuple):
    """A key, for a queue without its prefix, and the value."""

    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class QueueCopy(ByState):
    """A queue that was written to a file or to another database.

    Attributes:
        rows: The number of keys.
        digest: The SHA-256 of all keys and values, in hexadecimal digits.
    """

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

    `versions` is the number of read versions so far.
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
        """Go on to a new read version, unless most of this one is left."""
        if time.monotonic() - self._begun > _SHARED:
            self._renew()

    def read(self, body: Callable[[Transaction], _T]) -> _T:
        """Return the result of a read, by a new read version if the last one is over."""
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


def rows_of(db: Database, name: str, moment: Moment) -> Iterator[Row]:
    """Yield the rows of a named queue in the order of their keys; raise `QueueNotFound`.

    They refer to other queues by the keys of their names.
    """

    @cache
    def name_of_queue(prefix: bytes) -> bytes | None:
        if not prefix.startswith(OURS):
            return prefix
        other = read(db, partial(name_of, prefix=prefix))
        return None if other is None else name_key(other)

    layout = Layout(moment.read(partial(find_existing, name=name)), name)
    size = len(layout.subspace.key())
    for begin, end in layout.lasting_ranges():
        for row in moment.rows(begin, end):
            yield Row(row.key[size:], with_queues(row.key[size:], row.value, name_of_queue))


def key_rows(prefix: bytes, moment: Moment) -> Iterator[Row]:
    """Yield the rows whose keys begin with a prefix, without the rows of named queues."""
    strinc = loaded_binding().strinc
    begin, end = prefix, strinc(prefix) if prefix else b"\xff"
    if OURS.startswith(prefix):
        yield from moment.rows(begin, OURS)
        begin = strinc(OURS)
    yield from moment.rows(begin, end)


class NewQueues:
    """Queues that are being written. They get their names after their last rows.

    The next attempt deletes the rows of an interrupted one. Raises `QueueExists` and
    `InvalidQueueName`.
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
        """Raise `RestoreRunning` if another process writes a queue of this name."""
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

    def finish(self) -> None:
        """Give the queues their names; raise `RestoreRunning`.

        Raises:
            QueueExists: Another queue has got one of the names. All new rows are deleted.
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
    """Return how many of the rows a database does not have; raise `KeyExists`."""
    return sum(len(read(db, partial(_missing, rows=batch))) for batch in _batches(rows))


def store_keys(db: Database, rows: Iterable[Row]) -> None:
    """Write the rows that a database does not have; raise `KeyExists`."""

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
    return in_batches(rows, lambda row: len(row.key) + len(row.value), _BATCH_ROWS, _BATCH_BYTES)


_FORMAT = "fdbqueue backup"
_HEADER = {"format": _FORMAT, "version": 1, "layout": LAYOUT_VERSION}
_MAX_LINE = 400_000  # bytes; a row of FoundationDB has up to 110,000
_BEGIN = f'{{"format":"{_FORMAT}"'.encode()
_OTHER_RELEASE = f"another release wrote the file, and this one restores layout {LAYOUT_VERSION}"
_SECTIONS = (b'{"queue":', b'{"prefix":')


class Copies(dict[str, QueueCopy]):
    """The queues that were written or restored, by their names in the file or the source.

    Attributes:
        prefixes: The number of keys by their prefix.
        moments: The moments that a backup shows; 1 if queues and keys are consistent.
    """

    def __init__(self) -> None:
        super().__init__()
        self.prefixes: dict[bytes, int] = {}
        self.moments = 1


def backup(
    db: Database,
    file: IO[bytes],
    names: Iterable[str] | None = None,
    *,
    prefixes: Iterable[bytes] = (),
) -> Copies:
    """Write queues, and on request other keys, to a file.

    Each queue shows one moment; queues whose reads begin within a second of the first, the same. A
    queue that takes longer than five seconds is read twice, to be sure that it has not changed.

    The keys of `prefixes` are read last. They show the same moment if the backup takes less than a
    second or, without large queues, less than five. Otherwise `Copies.moments` is over 1, and a
    transaction may be in the file in part.

    Conflicts with nothing. Cost: one range read for every 500 rows.

    Args:
        db: A database.
        file: A binary file, open for writing.
        names: The queues; `None` for all. Write queues together whose jobs wait for each other.
        prefixes: The first bytes of other keys; `b""` for all keys except those of named queues.

    Raises:
        ValueError: A prefix begins with byte 255, or only begins keys of queues.
        QueueNotFound: There is no queue with one of the names.
        QueueChanged: A queue that takes longer than five seconds has changed.

    Example:
        >>> import io
        >>> file = io.BytesIO()
        >>> _ = jobs.push_many(db, ["a", "b"])
        >>> backup(db, file)["jobs"].ready
        2
    """
    own = distinct(prefixes)
    moment, copies, sha256 = Moment(db), Copies(), hashlib.sha256()

    def write(fields: dict[str, Any]) -> None:
        line = _line(fields)
        sha256.update(line)
        file.write(line)

    def written(rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            write({"key": _base64(row.key), "value": _base64(row.value)})
            yield row

    if names is None:
        chosen = [decode_name(row.key) for row in moment.rows(*names_with(""))]
    else:
        chosen = _names(names)
    write(_HEADER)
    for name in chosen:
        write({"queue": name})
        moment.begin_queue()
        versions = moment.versions
        copies[name] = summary_of(written(rows_of(db, name, moment)))
        # If nothing differs when it is read again, both reads show the moment between them.
        is_over = moment.versions != versions
        if is_over and summary_of(rows_of(db, name, Moment(db))) != copies[name]:
            raise QueueChanged(name)
    for prefix in own:
        write({"prefix": _base64(prefix)})
        copies.prefixes[prefix] = sum(1 for _ in written(key_rows(prefix, moment)))
    file.write(_end(sha256))
    copies.moments = moment.versions
    return copies


def _end(sha256: hashlib._Hash) -> bytes:
    return _line({"sha256": sha256.hexdigest()})


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def _base64(part: bytes) -> str:
    return base64.b64encode(part).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


def _names(names: Iterable[str]) -> list[str]:
    if isinstance(names, str):
        raise TypeError(f"names is a list of names, not the text {names!r}")
    return [*dict.fromkeys(names)]


def restore(
    db: Database,
    file: IO[bytes],
    names: Iterable[str] | None = None,
    *,
    prefixes: Iterable[bytes] | None = None,
    new_name: str | None = None,
) -> Copies:
    """Create the queues and keys of a backup in a database, with everything that it has.

    A damaged file changes nothing. All queues get their names in one transaction, after the last
    row. Repeat an interrupted restore.

    Keys are written before that, in other transactions: clients may see a part of them. Another
    value of a key is found before anything is changed, unless a client writes it meanwhile.

    A claimed item stays claimed until its lease is over by the clock. A job that waits for jobs of
    a missing queue waits until it is cancelled. Cost: one transaction for every 1,000 rows or
    megabyte.

    Args:
        db: A database.
        file: A seekable binary file that `backup` has written.
        names: The queues to restore.
        prefixes: The prefixes of the keys to restore; without both, all is restored.
        new_name: Another name for the only queue.

    Raises:
        InvalidBackup: The file is not a complete backup, is damaged, or has another layout.
        QueueNotFound: The file has no queue with one of the names.
        QueueExists: The database has a queue with one of the names. No queue was restored.
        KeyExists: The database has another value of a key.
        RestoreRunning: Another process restores the same queue.

    Example:
        >>> import io
        >>> file, other = io.BytesIO(), fdbqueue.open("memory:")
        >>> _ = jobs.push_many(db, ["a", "b"]), backup(db, file)
        >>> restore(other, file)["jobs"].ready
        2
    """
    sections, key_sections = _sections(file)
    is_all = names is None and prefixes is None
    chosen = [*sections] if is_all else _names(names or ())
    own = [*key_sections] if is_all else distinct(prefixes or ())
    for name in chosen:
        if name not in sections:
            similar = get_close_matches(name, sections) or [*sections][:3]
            raise QueueNotFound(name, similar)
    if new_name is not None and len(chosen) != 1:
        raise ValueError(f"only one queue can get a new name, not {len(chosen)}")
    if new_name is not None and is_all and own:
        raise ValueError("the file also has keys, and no key can get a new name; name the queue")
    missing = {prefix: count_missing(db, _key_rows(file, key_sections, prefix)) for prefix in own}

    names = {name: new_name if new_name is not None else name for name in chosen}
    new, copies = NewQueues(db, [*names.values()]), Copies()
    prefix_in = {name_key(name): new.subspaces[names[name]].key() for name in chosen}

    @cache
    def prefix_of(reference: bytes) -> bytes | None:
        if reference in prefix_in:
            return prefix_in[reference]
        if new_name not in (None, *chosen):
            return None  # a queue with a new name may be there with its old one, too
        if not is_name_key(reference):
            return reference  # a queue without a name
        subspace = read(db, partial(find, name=decode_name(reference)))
        return None if subspace is None else bytes(subspace.key())

    for name in chosen:
        copies[name] = summary_of(_rows(file, sections[name]))
        found = _rows(file, sections[name])
        new.write(
            names[name], (Row(key, with_queues(key, value, prefix_of)) for key, value in found)
        )
    for prefix in own:
        store_keys(db, _key_rows(file, key_sections, prefix))
    new.finish()
    copies.prefixes.update(missing)
    return copies


def _sections(file: IO[bytes]) -> tuple[dict[str, int], dict[bytes, int]]:
    """Verify a whole file; return where the first row of each queue and of each prefix is."""
    file.seek(0)
    sha256, last, number = hashlib.sha256(), b"", 0
    begins: list[tuple[bytes, int]] = []
    for number, line in enumerate(iter(partial(file.readline, _MAX_LINE), b""), 1):
        if number == 1:
            if not line.startswith(_BEGIN):
                raise InvalidBackup(1, "it is not the first line of a backup")
            if line != _line(_HEADER):
                raise InvalidBackup(1, _OTHER_RELEASE)
        if line.startswith(_SECTIONS):
            begins.append((line, file.tell()))
        sha256.update(last)
        last = line
    if last != _end(sha256):
        raise InvalidBackup(number, "the file is damaged, cut off, or not a backup")
    sections = [(json.loads(line), offset) for line, offset in begins]
    queues = {each["queue"]: offset for each, offset in sections if "queue" in each}
    keys = {_bytes(each["prefix"]): offset for each, offset in sections if "prefix" in each}
    return queues, keys


def _rows(file: IO[bytes], offset: int) -> Iterator[Row]:
    file.seek(offset)
    while "key" in (line := json.loads(file.readline())):
        yield Row(_bytes(line["key"]), _bytes(line["value"]))


def _key_rows(file: IO[bytes], sections: dict[bytes, int], prefix: bytes) -> Iterator[Row]:
    """Yield a file's rows whose keys begin with a prefix; raise `InvalidBackup` if it has none."""
    fitting = [each for each in sections if prefix.startswith(each) or each.startswith(prefix)]
    if not fitting:
        raise InvalidBackup(1, f"the file has no keys of the prefix {prefix!r}")
    for each in fitting:
        yield from (row for row in _rows(file, sections[each]) if row.key.startswith(prefix))


def copy(
    source: Database,
    target: Database,
    names: Iterable[str] | None = None,
    *,
    new_name: str | None = None,
) -> Copies:
    """Copy queues to another database: a backup in a temporary file, and its restore.

    To replace the source, pause the queues and stop their clients first: later changes are not
    copied, and clients of both would run the same jobs. The copy of a paused queue is paused.
    Raises the errors of `backup` and `restore`; the target has no new queue then.

    `names` are as for `backup`, `new_name` as for `restore`.

    Example:
        >>> other = fdbqueue.open("memory:")
        >>> _ = jobs.push_many(db, ["a", "b"])
        >>> copy(db, other)["jobs"].ready
        2
    """
    with tempfile.TemporaryFile() as file:
        backup(source, file, names)
        return restore(target, file, new_name=new_name)


def distinct(prefixes: Iterable[bytes]) -> list[bytes]:
    """Return the distinct prefixes in order; raise `ValueError` for keys that are not the user's.

    >>> distinct([b"stock/", b"sold/2026/", b"sold/", b"sold/"])
    [b'sold/', b'stock/']
    """
    if isinstance(prefixes, (bytes, str)):
        raise TypeError(f"prefixes is a list of prefixes, not {prefixes!r} alone")
    chosen: list[bytes] = []
    for prefix in sorted(prefixes):
        if not isinstance(prefix, bytes):
            raise TypeError(f"a prefix is of bytes, not {prefix!r}")
        if prefix.startswith(b"\xff"):
            raise ValueError(f"the keys with the prefix {prefix!r} belong to the database")
        if prefix.startswith(OURS):
            raise ValueError(f"the keys with the prefix {prefix!r} belong to queues; name these")
        if not chosen or not prefix.startswith(chosen[-1]):
            chosen.append(prefix)
    return chosen
