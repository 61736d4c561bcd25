"""Import JSON lines into a queue, each line once, however often the import is started."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from io import IOBase
from typing import Any, NamedTuple

from fdbqueue.database.exactly_once import run_once
from fdbqueue.database.retrying import run
from fdbqueue.errors import FdbqueueError, ImportMismatch, ImportRunning, InvalidLine
from fdbqueue.layout.codecs import with_stack
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import decode_progress, encode_progress
from fdbqueue.operations.items import BATCH_BYTES
from fdbqueue.queue.arguments import validate_key
from fdbqueue.queue.base import store_of
from fdbqueue.queue.priority import PriorityQueue
from fdbqueue.types import Database, Json, Priority, Transaction

_BATCH_LINES = 1000
MAX_LINE = 50_000_000
"""Bytes of a line: the largest payload with each byte as in `\\u0061`, and other fields."""

_WEEK = 7 * 86_400  # seconds
_WEEKS = 4  # that an import is remembered at least
_PAGE = 100  # imports that one transaction forgets


@dataclass(frozen=True, slots=True)
class ImportReport:
    """The result of an import.

    Attributes:
        stored: The number of lines that were stored now.
        skipped: The number of lines that an earlier run had stored.
        full: Whether the queue had no room for the remaining lines.
    """

    stored: int
    skipped: int
    full: bool = False


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    size: int
    digest: bytes
    value: Any
    priority: Priority
    group: str | None
    blank: bool

    @property
    def mark(self) -> bytes:
        """The progress of an import that has stored this line."""
        return encode_progress(self.number, self.digest)


class _Parts(NamedTuple):
    """Where the value, the priority and the group of each line come from; see `import_lines`."""

    priority: object
    priority_field: str | None
    value_field: str | None
    group: str | None
    group_field: str | None

    def parse(self, line: bytes) -> tuple[Any, Any, str | None]:
        """Return the value, the priority and the group of a line."""
        if len(line) > MAX_LINE:
            raise ValueError(f"it is longer than {MAX_LINE:,} bytes")
        try:
            value: Json = with_stack(json.loads, line)
        except ValueError as error:
            raise ValueError(f"it is not JSON: {error}") from error
        priority, group = self.priority, self.group
        if self.priority_field is not None:
            priority = _field(value, self.priority_field)
        if self.group_field is not None and isinstance(value, dict):
            found = value.get(self.group_field)
            group = group if found is None else validate_key("a group", found)
        if self.value_field is not None:
            value = _field(value, self.value_field)
        return value, priority, group


def import_lines(
    db: Database,
    queue: PriorityQueue,
    lines: Iterable[bytes],
    source: str | None,
    *,
    priority: object = 0,
    priority_field: str | None = None,
    value_field: str | None = None,
    group: str | None = None,
    group_field: str | None = None,
    again: bool = False,
    progress: Callable[[int, int], object] = lambda lines, size: None,
) -> ImportReport:
    """Push each line, a JSON value, in order; skip lines that an earlier run of this import stored.

    Lines are stored in batches of up to 1,000. Each batch records the progress of the import, with
    a digest of all lines so far, in the same transaction. After a crash, simply run the import
    again. If two imports of the same source run at the same time, one of them fails, and no line is
    stored twice.

    The progress is kept for at least four weeks after the last run and at most five, by the clocks
    of clients; `clear` deletes it at once. After that, the same lines are stored again. Each import
    first deletes outdated progress records, in transactions of 100.

    A full queue is not an error: the report says so, and a later run continues there.

    Args:
        db: A database.
        queue: The queue to push to.
        lines: The lines, or a binary file.
        source: Identifies this import, for example by the path of a file. `None` records no
            progress: every line is pushed.
        priority: The priority of lines that have none, in its JSON form (a list for a tuple).
        priority_field: The field of each line's object that contains its priority.
        value_field: The field to push instead of the whole line.
        group: The group of lines that have none.
        group_field: The field of each line's object that contains its group, if it has one.
        again: Start from the first line, whatever was stored before. To continue such an import
            after a crash, run it without `again`.
        progress: Called after each batch with the number of lines and bytes read so far.

    Raises:
        InvalidLine: A line is not valid, or longer than 50 MB. The lines before it are stored, and
            an import of the corrected input continues there.
        ImportMismatch: The input does not start with the lines that were stored.
        ImportRunning: Another import of the same source stores lines at the same time.

    Example:
        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = PriorityQueue.named(db, "jobs")
        >>> lines = [b'{"n": 1, "p": 5}', b'{"n": 2, "p": 3}']
        >>> import_lines(db, jobs, lines, "a file", priority_field="p")
        ImportReport(stored=2, skipped=0, full=False)
        >>> import_lines(db, jobs, lines, "a file", priority_field="p")
        ImportReport(stored=0, skipped=2, full=False)
        >>> jobs.pop(db).value
        {'n': 2, 'p': 3}
    """
    group = None if group is None else validate_key("a group", group)
    parts = _Parts(priority, priority_field, value_field, group, group_field)
    mark = _begin(db, store_of(queue).layout, source)
    stored_lines, stored_digest = (0, b"") if mark is None or again else decode_progress(mark)
    numbered = _numbered(lines)
    size = _pass_over(numbered, source, stored_lines, stored_digest)
    stored = 0
    for batch in _batches(numbered, queue, source, parts):
        now, done = _store(db, queue, batch, source, mark)
        stored += now
        if done < len(batch):
            return ImportReport(stored, stored_lines, full=True)
        mark = batch[-1].mark
        size += sum(line.size for line in batch)
        progress(batch[-1].number, size)
    return ImportReport(stored, stored_lines)


def _week() -> int:
    return int(time.time() // _WEEK)


def _begin(db: Database, layout: Layout, source: str | None) -> bytes | None:
    """Delete outdated progress records, record that this import runs, and return its progress."""
    week = _week()
    while not run(db, partial(_drop_outdated, layout=layout, week=week)):
        pass
    if source is None:
        return None

    def body(tr: Transaction) -> bytes | None:
        mark: bytes | None = tr[layout.import_key(source)].value
        if mark is not None:
            tr[layout.dated_key(layout.imports, week, source)] = b""
        return mark

    return run(db, body)


def _drop_outdated(tr: Transaction, layout: Layout, week: int) -> bool:
    """Delete a page of outdated progress records; return false if there are more."""
    oldest = week - _WEEKS
    outdated = layout.dated_before(layout.imports, oldest)
    notes = [row.key for row in tr.snapshot.get_range(*outdated, limit=_PAGE)]
    sources = [layout.unpack_dated_key(layout.imports, note) for note in notes]
    # Every read is under way before the first is waited for.
    later = [
        [tr[layout.dated_key(layout.imports, each, source)] for each in range(oldest, week + 1)]
        for source in sources
    ]
    for note, source, reads in zip(notes, sources, later):
        del tr[note]
        if not any(read.present() for read in reads):
            del tr[layout.import_key(source)]
    return len(notes) < _PAGE


def _store(
    db: Database, queue: PriorityQueue, batch: list[_Line], source: str | None, mark: bytes | None
) -> tuple[int, int]:
    """Store the lines that fit; return how many of them have a value, and how many there are."""
    filled = [line for line in batch if not line.blank]
    groups = [line.group for line in filled]
    layout = store_of(queue).layout
    week = _week()

    def body(tr: Transaction) -> tuple[int, int]:
        if source is not None and tr[layout.import_key(source)].value != mark:
            raise ImportRunning(source)
        items = queue.push_many(
            tr,
            [line.value for line in filled],
            priorities=[line.priority for line in filled],
            groups=groups if any(groups) else None,
            as_many_as_fit=True,
        )
        rest = filled[len(items) :]
        done = batch[: batch.index(rest[0])] if rest else batch
        if source is not None and done:
            tr[layout.import_key(source)] = done[-1].mark
            tr[layout.dated_key(layout.imports, week, source)] = b""
        return len(items), len(done)

    return run_once(db, body, layout.receipts)


def _numbered(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield each line with its number and the digest of all lines up to it.

    Of a line in a file, only as much is read as shows that it is too long.
    """
    digest = hashlib.sha256()
    if isinstance(lines, IOBase):
        lines = iter(partial(lines.readline, MAX_LINE + 1), b"")
    for number, line in enumerate(lines, 1):
        digest.update(line.rstrip(b"\r\n") + b"\n")
        yield number, line, digest.digest()


def _pass_over(
    numbered: Iterator[tuple[int, bytes, bytes]], source: str | None, lines: int, digest: bytes
) -> int:
    """Skip the lines that are stored already; return their size in bytes."""
    size = 0
    found = b""
    for _ in range(lines):
        _, line, found = next(numbered, (0, b"", b""))
        size += len(line)
    if source is not None and found != digest:
        raise ImportMismatch(source, lines)
    return size


def _batches(
    numbered: Iterator[tuple[int, bytes, bytes]],
    queue: PriorityQueue,
    source: str | None,
    parts: _Parts,
) -> Iterator[list[_Line]]:
    """Yield the lines in batches; the lines before an invalid one are a batch of their own."""
    store = store_of(queue)
    batch: list[_Line] = []
    size = 0
    for number, line, digest in numbered:
        try:
            value: Any = None
            rank: Priority = 0
            group: str | None = None
            stored = 0
            if line.strip():
                value, given, group = parts.parse(line)
                rank = store.levels.from_json(given)
                stored = len(store.codec.encode(value))
        except (FdbqueueError, ValueError) as error:
            if batch:
                yield batch
            raise InvalidLine(number, str(error), source) from error
        if batch and size + stored > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(_Line(number, len(line), digest, value, rank, group, not line.strip()))
        size += stored
        if len(batch) == _BATCH_LINES or size > BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _field(value: Json, name: str) -> Any:
    if not isinstance(value, dict) or name not in value:
        raise ValueError(f"it is not an object with a field {name!r}")
    return value[name]
