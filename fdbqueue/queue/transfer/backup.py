"""Backups: queues in a file, each as it was at one moment."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import IO, Any, NamedTuple

from fdbqueue.errors import InvalidBackup, InvalidQueueName, QueueExists, QueueNotFound
from fdbqueue.layout.batches import Links, name_in, named
from fdbqueue.layout.names import name_key
from fdbqueue.layout.records import RowCheck
from fdbqueue.layout.values import UNDECODABLE
from fdbqueue.queue.overview import queue_names
from fdbqueue.queue.transfer.rows import (
    Moment,
    NewQueue,
    QueueCopy,
    Row,
    Summary,
    finish,
    notes_of,
    prefix_in,
    rows_of,
    stored_copy,
    summary_of,
    with_references,
)
from fdbqueue.types import Database

_FORMAT = "fdbqueue backup"
_VERSION = 1
_MAX_LINE = 400_000  # bytes; a row of FoundationDB has up to 110,000
_BEGIN = f'{{"format":"{_FORMAT}"'.encode()


def backup(
    db: Database,
    file: IO[bytes],
    names: Iterable[str] | None = None,
    *,
    progress: Callable[[str, int], object] = lambda name, rows: None,
) -> dict[str, QueueCopy]:
    """Write queues to a file: their options, and items in every state with ids, attempts and order.

    Each queue is read at one read version, so its part of the file shows one moment. A read version
    lasts for five seconds. If a queue takes longer, the backup continues as long as the queue does
    not change, and reads it a second time to be sure of that. Queues whose reads begin
    within a second of the first show the same moment; other queues may show different moments.

    A job that waits for jobs of another queue goes on after a restore if the file has both queues.
    `QueueCopy.notes` says if jobs wait for jobs of queues that the file does not have, or for jobs
    of a queue that may show another moment.

    The file has one JSON object in each line, and a digest of each queue. It can be restored into
    any database, embedded or cluster. Cost: one range read for every 500 rows of a queue. Conflicts
    with nothing.

    Args:
        db: A database.
        file: A binary file, open for writing.
        names: The names of the queues; `None` for all.
        progress: Called now and then with the name of a queue and how many rows of it are written.

    Returns:
        What was written, by the name of the queue.

    Raises:
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
    chosen = queue_names(db) if names is None else _names(names)
    moment, links = Moment(db), Links()
    sources = {name: rows_of(db, name, moment) for name in chosen}
    _write(file, format=_FORMAT, version=_VERSION, queues=[*sources])
    copies: dict[str, QueueCopy] = {}
    for name, rows in sources.items():
        summary = Summary()
        _write(file, queue=name)
        for row in rows():
            key, value = (base64.b64encode(part).decode() for part in row)
            _write(file, key=key, value=value)
            summary.add(row)
            links.add(named(name), *row)
            if summary.rows % 1000 == 0:
                progress(name, summary.rows)
        copies[name] = summary.finish()
        progress(name, summary.rows)
        _write(file, rows=summary.rows, sha256=summary.digest.hex())
    torn = ("it may show another moment than queues whose jobs wait for its jobs",)
    for name, copied in copies.items():
        notes = notes_of(links, name, copies)
        if moment.versions > 1 and links.targets.get(named(name)):
            notes += torn
        copies[name] = replace(copied, notes=notes)
    return copies


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


def restore(
    db: Database,
    file: IO[bytes],
    names: Iterable[str] | None = None,
    *,
    new_name: str | None = None,
    progress: Callable[[str, int], object] = lambda name, rows: None,
) -> dict[str, QueueCopy]:
    """Create the queues of a backup in a database, with everything that `backup` has written.

    All queues get their names in one transaction, after the last row. A job that waits for a job of
    a queue that is not restored goes on: that job counts as cancelled, and a step that ran it
    fails. If jobs of a queue that is neither restored nor present wait for a job, its end no
    longer counts for them.

    The whole file is verified first: a damaged file changes nothing, nor does one with a row that
    no queue can have, whatever its digest. No client sees half of a queue. An interrupted restore
    continues where it stopped when you start it again. A queue that already exists, exactly as in
    the file, is left alone.

    A claimed item stays claimed until its lease is over by the clock. Cost: one transaction for
    every 1,000 rows or megabyte.

    Args:
        db: A database.
        file: A binary file that `backup` has written. It is read twice, so it must be seekable.
        names: The names of the queues to restore; `None` for all in the file.
        new_name: Another name for the queue, if only one is restored.
        progress: Called now and then with the name of a queue and how many rows of it are stored.

    Returns:
        What was restored now, by the name in the file.

    Raises:
        InvalidBackup: The file is not a complete backup, is damaged, or has a row that cannot be
            read.
        QueueNotFound: The file has no queue with one of the names.
        QueueExists: The database has a queue with this name whose rows differ from the file.
            Nothing was restored.
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
    sections = _verified(file)
    chosen = [*sections] if names is None else _names(names)
    for name in chosen:
        if name not in sections:
            raise QueueNotFound(name, get_close_matches(name, sections) or [*sections][:3])
    if new_name is not None and len(chosen) != 1:
        raise ValueError(f"only one queue can get a new name, not {len(chosen)}")
    targets = {name: name if new_name is None else new_name for name in chosen}
    same = dict(zip(chosen, chosen))
    prefixes: dict[bytes, bytes | None] = {}

    def prefix_of(reference: bytes) -> bytes | None:
        if reference not in prefixes:  # a queue with a new name may be there with its old one
            there = prefix_in(db, name_in(reference)) if targets == same else None
            prefixes[reference] = there
        return prefixes[reference]

    def rows(name: str) -> Iterator[Row]:
        return with_references(_rows(file, sections[name]), prefix_of)

    links = Links()
    for name in chosen:
        for row in _rows(file, sections[name]):
            links.add(named(name), *row)
    missing: list[str] = []
    for name, target in targets.items():
        stored = stored_copy(db, target)
        if stored is None:
            missing.append(name)
        elif stored != summary_of(rows(name)):
            raise QueueExists(target)
    queues = {name: NewQueue(db, targets[name]) for name in missing}
    for name, queue in queues.items():
        prefixes[named(name)] = queue.subspace.key()
    for name, queue in queues.items():
        queue.write(partial(rows, name), partial(progress, name))
    finish(db, {queue: links.lost(named(name)) for name, queue in queues.items()})
    return {
        name: replace(sections[name].copy, notes=notes_of(links, name, chosen)) for name in missing
    }


class _Section(NamedTuple):
    """A queue in a file: what it holds, and where the line of its first row is."""

    copy: QueueCopy
    offset: int
    line: int


def _verified(file: IO[bytes]) -> dict[str, _Section]:
    """Verify a whole file, and return the queues in it by name."""
    file.seek(0)
    lines = _Lines(file)
    header = lines.read()
    if header.get("format") != _FORMAT:
        raise lines.error("it is not the first line of a backup")
    if header.get("version") != _VERSION:
        raise lines.error("a newer release of fdbqueue wrote this file: update fdbqueue")
    sections: dict[str, _Section] = {}
    for name in lines.field(header, "queues", list):
        if lines.read().get("queue") != name:
            raise lines.error(f"queue {name!r} does not begin here")
        try:
            name_key(name)
        except InvalidQueueName as error:
            raise lines.error(str(error)) from error
        offset, line = file.tell(), lines.number
        try:
            copy = summary_of(lines.checked_rows())
        except InvalidBackup:
            raise
        except UNDECODABLE as error:
            raise lines.error(f"the items staged for pops cannot be read: {error}") from error
        sections[name] = _Section(copy, offset, line)
    if file.read(1):
        raise lines.error("the file continues after its last queue")
    return sections


def _rows(file: IO[bytes], section: _Section) -> Iterator[Row]:
    """Yield the rows of one queue."""
    file.seek(section.offset)
    return _Lines(file, section.line).rows()


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

    def rows(self) -> Iterator[Row]:
        """Yield the rows of a queue, up to the line with their digest, which must be right."""
        summary = Summary()
        while "sha256" not in (line := self.read()):
            row = Row(self._bytes(line, "key"), self._bytes(line, "value"))
            summary.add(row)
            yield row
        if (line["sha256"], line.get("rows")) != (summary.digest.hex(), summary.rows):
            raise self.error("the digest does not match the rows")

    def checked_rows(self) -> Iterator[Row]:
        """Yield the rows of a queue, and raise `InvalidBackup` for one that it cannot have."""
        check = RowCheck()
        for row in self.rows():
            problem = check.problem(*row)
            if problem is not None:
                raise self.error(problem)
            yield row

    def _bytes(self, line: dict[str, Any], name: str) -> bytes:
        try:
            return base64.b64decode(self.field(line, name, str), validate=True)
        except ValueError as error:
            raise self.error(f"its {name} is not Base64") from error
