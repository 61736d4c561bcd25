"""Backups: queues in a file, each as it was at one moment, and the user's own keys."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import IO, Any, NamedTuple

from fdbqueue.database.clock import milliseconds
from fdbqueue.errors import InvalidBackup, InvalidQueueName, QueueNotFound
from fdbqueue.layout.batches import Links
from fdbqueue.layout.names import name_key
from fdbqueue.layout.records import RowCheck
from fdbqueue.layout.values import UNDECODABLE
from fdbqueue.queue.arguments import naming_database
from fdbqueue.queue.overview import queue_names
from fdbqueue.queue.transfer.rows import (
    Digest,
    Moment,
    NewQueue,
    QueueCopy,
    Row,
    Summary,
    finish,
    links_of,
    notes_of,
    prefix_in,
    rows_of,
    stored_copy,
    summary_of,
    with_references,
)
from fdbqueue.queue.transfer.user_keys import (
    ALL,
    count_missing,
    distinct,
    key_rows,
    prefix_text,
    problem_of,
    store_keys,
)
from fdbqueue.types import Database

_FORMAT = "fdbqueue backup"
_VERSION = 1
_MAX_LINE = 400_000  # bytes; a row of FoundationDB has up to 110,000
_BEGIN = f'{{"format":"{_FORMAT}"'.encode()


class Copies(dict[str, QueueCopy]):
    """The queues that were written or restored, by name.

    Attributes:
        prefixes: How many keys were written or restored, by their prefix.
        moments: How many moments a backup shows. If it is 1, all queues and keys are as they were
            at one moment.
    """

    def __init__(self) -> None:
        super().__init__()
        self.prefixes: dict[bytes, int] = {}
        self.moments = 1


@naming_database
def backup(
    db: Database,
    file: IO[bytes],
    names: Iterable[str] | None = None,
    *,
    prefixes: Iterable[bytes] = (),
    progress: Callable[[str, int], object] = lambda name, rows: None,
) -> Copies:
    """Write queues, and on request other keys, to a file.

    Of a queue, these are its options, and items in every state with ids, attempts and order.

    Each queue is read at one read version, so its part of the file shows one moment. A read version
    lasts for five seconds. If a queue takes longer, the backup continues as long as the queue does
    not change, and reads it a second time to be sure of that. Queues whose reads begin
    within a second of the first show the same moment; other queues may show different moments.

    A job that waits for jobs of another queue goes on after a restore if the file has both queues.
    `QueueCopy.notes` says if jobs wait for jobs of queues that the file does not have, or for jobs
    of a queue that may show another moment.

    With `prefixes`, the file also has all keys that begin with one of them, except for the keys of
    named queues. The prefix `b""` stands for all other keys of the database. They are read after
    the queues, at the same moment if all takes less than a second or, without large queues, less
    than five. Otherwise they are read in chunks of up to five seconds, each at one moment. What a
    transaction changed in two chunks, or in a chunk and a queue, may then be in the file in part.
    `Copies.moments` says whether that is so. A queue without a name consists of such keys.

    The file has one JSON object in each line, and a digest of each queue and prefix. It can be
    restored into any database, embedded or cluster. Cost: one range read for every 500 rows.
    Conflicts with nothing.

    Args:
        db: A database.
        file: A binary file, open for writing.
        names: The names of the queues; `None` for all.
        prefixes: The first bytes of other keys to write.
        progress: Called now and then with the name of a queue, or the text of a prefix, and how
            many rows of it are written.

    Returns:
        What was written, by the name of the queue.

    Raises:
        ValueError: A prefix begins with byte 255, or only begins keys of queues.
        QueueNotFound: There is no queue with one of the names.
        QueueChanged: A queue takes longer than five seconds, and has changed. The file is not
            complete.

    Example:
        >>> import fdbqueue, io
        >>> db, file = fdbqueue.open("memory:"), io.BytesIO()
        >>> _ = fdbqueue.PriorityQueue.named(db, "jobs").push_many(db, ["a", "b"])
        >>> backup(db, file)["jobs"].ready
        2
    """
    own = distinct(prefixes)
    chosen = queue_names(db) if names is None else _names(names)
    moment, links = Moment(db), Links()
    sources = {name: rows_of(db, name, moment) for name in chosen}
    in_header = {"prefixes": [*map(_base64, own)]} if own else {}
    _write(file, format=_FORMAT, version=_VERSION, queues=[*sources], **in_header)
    copies = Copies()
    for name, rows in sources.items():
        summary = Summary()
        _write(file, queue=name)
        for row in _written(file, rows(), summary, partial(progress, name)):
            links.add(name_key(name), *row)
        copies[name] = summary.finish()
    torn = ("it may show another moment than queues whose jobs wait for its jobs",)
    is_torn = moment.versions > 1
    for prefix in own:
        digest = Digest()
        _write(file, prefix=_base64(prefix))
        for _ in _written(
            file, key_rows(prefix, moment), digest, partial(progress, prefix_text(prefix) or ALL)
        ):
            pass
        copies.prefixes[prefix] = digest.rows
    copies.moments = moment.versions
    for name, copied in copies.items():
        notes = notes_of(links, name, copies)
        if is_torn and links.targets.get(name_key(name)):
            notes += torn
        copies[name] = replace(copied, notes=notes)
    return copies


def _written(
    file: IO[bytes], rows: Iterable[Row], digest: Digest, progress: Callable[[int], object]
) -> Iterator[Row]:
    """Yield rows once they are written, and write their digest."""
    for row in rows:
        _write(file, key=_base64(row.key), value=_base64(row.value))
        digest.add(row)
        if digest.rows % 1000 == 0:
            progress(digest.rows)
        yield row
    progress(digest.rows)
    _write(file, rows=digest.rows, sha256=digest.digest.hex())


def _base64(part: bytes) -> str:
    return base64.b64encode(part).decode()


def _names(names: Iterable[str]) -> list[str]:
    if isinstance(names, str):
        raise TypeError(f"names is a list of names, not the text {names!r}")
    return [*dict.fromkeys(names)]


def _write(file: IO[bytes], **fields: Any) -> None:
    file.write(json.dumps(fields, separators=(",", ":")).encode() + b"\n")


def is_backup(begin: bytes) -> bool:
    """Return whether a file that begins with these bytes is a backup.

    >>> is_backup(b'{"format":"fdbqueue backup","version":1,"queues":[]}')
    True
    """
    return begin.startswith(_BEGIN)


@naming_database
def restore(
    db: Database,
    file: IO[bytes],
    names: Iterable[str] | None = None,
    *,
    prefixes: Iterable[bytes] | None = None,
    new_name: str | None = None,
    progress: Callable[[str, int], object] = lambda name, rows: None,
) -> Copies:
    """Create the queues and keys of a backup in a database, with everything that it has.

    All queues get their names in one transaction, after the last row. A job that waits for a job of
    a queue that is not restored goes on: that job counts as cancelled, and a step that ran it
    fails. If jobs of a queue that is neither restored nor present wait for a job, its end no
    longer counts for them.

    The whole file is verified first: a damaged file changes nothing, nor does one with a row that
    no queue can have, whatever its digest. No client sees half of a queue. An interrupted restore
    continues where it stopped when you start it again. A queue that already exists, exactly as in
    the file, is left alone.

    Keys of `prefixes` are written before the queues appear, in transactions of their own, so other
    clients may see a part of them. Keys that are already there with the same value are left alone,
    and so are keys that the file does not have. A key that is there with another value is found
    before anything is changed, unless a client writes it during the restore.

    A claimed item stays claimed until its lease is over by the clock. Cost: one transaction for
    every 1,000 rows or megabyte.

    Args:
        db: A database.
        file: A binary file that `backup` has written. It is read twice, so it must be seekable.
        names: The names of the queues to restore.
        prefixes: The prefixes of the keys to restore; longer and shorter ones than in the file
            choose among its keys. If neither `names` nor `prefixes` is given, all is restored.
        new_name: Another name for the queue, if only one is restored.
        progress: Called now and then with the name of a queue, or the text of a prefix, and how
            many rows of it are stored.

    Returns:
        What was restored now, by the name in the file.

    Raises:
        InvalidBackup: The file is not a complete backup, is damaged, or has a row that cannot be
            read.
        QueueNotFound: The file has no queue with one of the names.
        QueueDiffers: The database has a queue with this name whose rows differ from the file.
            Nothing was restored.
        QueueExists: Another client created a queue with one of the names meanwhile. No queue was
            restored.
        KeyExists: The database has a key of the file with another value.
        RestoreRunning: Another process restores the same queue at the same time.

    Example:
        >>> import fdbqueue, io
        >>> db, file = fdbqueue.open("memory:"), io.BytesIO()
        >>> _ = fdbqueue.PriorityQueue.named(db, "jobs").push_many(db, ["a", "b"])
        >>> _ = backup(db, file)
        >>> other = fdbqueue.open("memory:")
        >>> restore(other, file)["jobs"].ready
        2
        >>> fdbqueue.existing_queue(other, "jobs").pop(other).value
        'a'
    """
    contents = _verified(file)
    is_all = names is None and prefixes is None
    chosen = [*contents.queues] if is_all else _names(names or ())
    own = [*contents.prefixes] if is_all else distinct(prefixes or ())
    for name in chosen:
        if name not in contents.queues:
            similar = get_close_matches(name, contents.queues) or [*contents.queues][:3]
            raise QueueNotFound(name, similar)
    if new_name is not None and len(chosen) != 1:
        raise ValueError(f"only one queue can get a new name, not {len(chosen)}")
    if new_name is not None and is_all and own:
        raise ValueError("the file also has keys, and no key can get a new name; name the queue")
    own_rows = {prefix: partial(_key_rows, file, contents, prefix) for prefix in own}
    targets = {name: name if new_name is None else new_name for name in chosen}
    same = dict(zip(chosen, chosen))
    subspaces: dict[bytes, bytes | None] = {}

    def prefix_of(reference: bytes) -> bytes | None:
        if reference not in subspaces:  # a queue with a new name may be there with its old one
            there = prefix_in(db, reference) if targets == same else None
            subspaces[reference] = there
        return subspaces[reference]

    def rows(name: str) -> Iterator[Row]:
        return with_references(_rows(file, contents.queues[name], Summary()), prefix_of)

    in_file = {name: partial(_rows, file, contents.queues[name], Summary()) for name in chosen}
    links = links_of(in_file)
    missing = [
        name
        for name, target in targets.items()
        if stored_copy(db, target, partial(rows, name)) is None
    ]
    restored = Copies()
    for prefix, keys in own_rows.items():
        restored.prefixes[prefix] = count_missing(db, keys())
    queues = {name: NewQueue(db, targets[name]) for name in missing}
    for prefix, keys in own_rows.items():
        store_keys(db, keys(), partial(progress, prefix_text(prefix) or ALL))
    for name, queue in queues.items():
        subspaces[name_key(name)] = queue.subspace.key()
    for name, queue in queues.items():
        queue.write(partial(rows, name), partial(progress, name))
    for name, queue in queues.items():
        queue.end_lost(milliseconds(), links.lost(name_key(name)))
    finish(db, queues.values())
    for name in missing:
        restored[name] = replace(contents.copies[name], notes=notes_of(links, name, chosen))
    return restored


def _key_rows(file: IO[bytes], contents: _Contents, prefix: bytes) -> Iterator[Row]:
    """Yield the rows of a file whose keys begin with a prefix.

    Raises:
        InvalidBackup: The file is of other prefixes.
    """
    sections = {
        written: section
        for written, section in contents.prefixes.items()
        if prefix.startswith(written) or written.startswith(prefix)
    }
    if not sections:
        raise InvalidBackup(1, f"the file has no keys of the prefix {prefix!r}")
    for section in sections.values():
        for row in _rows(file, section, Digest()):
            if row.key.startswith(prefix):
                yield row


class _Section(NamedTuple):
    """A queue or a prefix in a file: where the line of its first row is."""

    offset: int
    line: int


class _Contents(NamedTuple):
    """The contents of a file."""

    copies: dict[str, QueueCopy]
    queues: dict[str, _Section]
    prefixes: dict[bytes, _Section]


def _verified(file: IO[bytes]) -> _Contents:
    """Verify a whole file, and return what is in it."""
    file.seek(0)
    lines = _Lines(file)
    header = lines.read()
    if header.get("format") != _FORMAT:
        raise lines.error("it is not the first line of a backup")
    if header.get("version") != _VERSION:
        raise lines.error("a newer release of fdbqueue wrote this file: update fdbqueue")
    contents = _Contents({}, {}, {})
    for name in lines.field(header, "queues", list):
        if lines.read().get("queue") != name:
            raise lines.error(f"queue {name!r} does not begin here")
        try:
            name_key(name)
        except InvalidQueueName as error:
            raise lines.error(str(error)) from error
        contents.queues[name] = _Section(file.tell(), lines.number)
        try:
            contents.copies[name] = summary_of(lines.checked_rows())
        except InvalidBackup:
            raise
        except UNDECODABLE as error:
            raise lines.error(f"the items staged for pops cannot be read: {error}") from error
    for prefix in lines.prefixes(header):
        if lines.bytes_of(lines.read(), "prefix") != prefix:
            raise lines.error(f"the keys of the prefix {prefix!r} do not begin here")
        contents.prefixes[prefix] = _Section(file.tell(), lines.number)
        last = None
        for row in lines.rows(Digest()):
            problem = problem_of(row, prefix, last)
            if problem is not None:
                raise lines.error(problem)
            last = row.key
    if file.read(1):
        raise lines.error("the file continues after its end")
    return contents


def _rows(file: IO[bytes], section: _Section, digest: Digest) -> Iterator[Row]:
    """Yield the rows of one section."""
    file.seek(section.offset)
    return _Lines(file, section.line).rows(digest)


class _Lines:
    """The lines of a file, each a JSON object.

    Attributes:
        number: The number of the last line that was read, from 1.
    """

    def __init__(self, file: IO[bytes], number: int = 0) -> None:
        self._file = file
        self.number = number

    def error(self, reason: str) -> InvalidBackup:
        """Return the error for the last line that was read."""
        return InvalidBackup(self.number, reason)

    def read(self) -> dict[str, Any]:
        """Return the next line."""
        self.number += 1
        text = self._file.readline(_MAX_LINE)
        if not text.endswith(b"\n"):
            raise self.error("the file is cut off here, or is not a backup")
        try:
            line: dict[str, Any] | None = json.loads(text)
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict):
            raise self.error("it is not a line of a backup")
        return line

    def field(self, line: dict[str, Any], name: str, kind: type) -> Any:
        """Return a field of the last line that was read."""
        value = line.get(name)
        if not isinstance(value, kind):
            raise self.error(f"it has no {name!r}")
        return value

    def prefixes(self, header: dict[str, Any]) -> list[bytes]:
        """Return the prefixes that the first line of a file names."""
        texts = header.get("prefixes", [])
        try:
            prefixes = [base64.b64decode(text, validate=True) for text in texts]
            if prefixes == distinct(prefixes):
                return prefixes
        except (ValueError, TypeError):
            pass
        raise self.error("its 'prefixes' are not those of a backup")

    def rows(self, digest: Digest) -> Iterator[Row]:
        """Yield the rows of a section, up to the line with their digest, which must be right."""
        while "sha256" not in (line := self.read()):
            row = Row(self.bytes_of(line, "key"), self.bytes_of(line, "value"))
            digest.add(row)
            yield row
        if (line["sha256"], line.get("rows")) != (digest.digest.hex(), digest.rows):
            raise self.error("the digest does not match the rows")

    def checked_rows(self) -> Iterator[Row]:
        """Yield the rows of a queue, and raise `InvalidBackup` for one that it cannot have."""
        check = RowCheck()
        for row in self.rows(Summary()):
            problem = check.problem(*row)
            if problem is not None:
                raise self.error(problem)
            yield row

    def bytes_of(self, line: dict[str, Any], name: str) -> bytes:
        """Return a field of the last line that was read, which is bytes in Base64."""
        try:
            return base64.b64decode(self.field(line, name, str), validate=True)
        except ValueError as error:
            raise self.error(f"its {name} is not Base64") from error
