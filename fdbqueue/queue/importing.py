"""Moving JSON lines into a queue, each line once, however often the import is begun."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from io import IOBase
from typing import Any

from fdbqueue.database.receipts import run_once
from fdbqueue.database.retrying import run
from fdbqueue.errors import FdbqueueError, ImportMismatch, ImportRunning, InvalidLine
from fdbqueue.layout import Layout
from fdbqueue.layout.codecs import with_stack
from fdbqueue.layout.values import decode_progress, encode_progress
from fdbqueue.queue.base import store_of
from fdbqueue.queue.priority import PriorityQueue
from fdbqueue.types import Priority

__all__ = ["MAX_LINE", "ImportReport", "import_lines"]

_BATCH_LINES = 1000
_BATCH_BYTES = 1_000_000
MAX_LINE = 50_000_000
"""Bytes of a line: the largest payload with each byte as in `\\u0061`, and other fields."""

_WEEK = 7 * 86_400  # seconds
_WEEKS = 4  # that an import is remembered at least
_PAGE = 100  # imports that one transaction forgets


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import did: lines stored now, and lines that an earlier run had stored.

    `full`: the queue has no room for the others.
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
    blank: bool

    @property
    def mark(self) -> bytes:
        """That an import is as far as this line."""
        return encode_progress(self.number, self.digest)


def import_lines(
    db: Any,
    queue: PriorityQueue,
    lines: Iterable[bytes],
    source: str | None,
    *,
    priority: Any = 0,
    priority_field: str | None = None,
    value_field: str | None = None,
    again: bool = False,
    progress: Callable[[int, int], object] = lambda lines, size: None,
) -> ImportReport:
    """Push each line, a JSON value, in order; a line that an earlier run stored is passed over.

    Lines are stored in batches of up to 1,000, and each batch notes in the same transaction how far
    it came, with a digest of everything so far. An import that was killed is simply run again. Two
    imports of one source at once do not double a line either: one of them fails.

    How far an import came is remembered for at least four weeks after its last run, and at most
    five, by the clients' clocks; `clear` forgets it at once. After that the same lines are stored
    anew. Each import forgets all old ones first, in transactions of 100.

    Parameters: `source`, what tells this import from others, for example the path of a file, or
    `None` for one that is not to be gone on with: every line is pushed;
    `priority`, of lines without a priority of their own, in its JSON form (a tuple is a list);
    `priority_field`, the field of the line's object that has it; `value_field`, the field to push
    instead of the whole line; `again`, begin anew whatever was stored (if that is killed, go on
    without `again`); `progress(lines, size)`, called after each batch with the lines and bytes read
    so far.

    Raises `InvalidLine` with the number of the line, also of one over 50 MB; the lines before it
    are stored, and an import of the corrected input goes on from there. Raises `ImportMismatch` if
    the beginning of the input is not what was stored, and `ImportRunning` if another import of the
    source stores lines too. A queue that is full is no error: the report says so, and the import
    can be gone on with.

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
    mark = _begin(db, store_of(queue).layout, source)
    stored_lines, stored_digest = (0, b"") if mark is None or again else decode_progress(mark)
    numbered = _numbered(lines)
    size = _pass_over(numbered, source, stored_lines, stored_digest)
    stored = 0
    for batch in _batches(numbered, queue, source, priority, priority_field, value_field):
        now, new_mark = _store(db, queue, batch, source, mark)
        stored += now
        if new_mark != batch[-1].mark:
            return ImportReport(stored, stored_lines, full=True)
        mark = new_mark
        size += sum(line.size for line in batch)
        progress(batch[-1].number, size)
    return ImportReport(stored, stored_lines)


def _week() -> int:
    return int(time.time() // _WEEK)


def _begin(db: Any, layout: Layout, source: str | None) -> bytes | None:
    """Forget old imports, and note that this one is run; return its mark."""
    week = _week()
    while not run(db, partial(_drop_outdated, layout=layout, week=week)):
        pass
    if source is None:
        return None

    def body(tr: Any) -> bytes | None:
        mark: bytes | None = tr[layout.import_key(source)].value
        if mark is not None:
            tr[layout.import_week(week, source)] = b""
        return mark

    return run(db, body)


def _drop_outdated(tr: Any, layout: Layout, week: int) -> bool:
    """Forget imports that were not run for some weeks, a page of them; false if there are more."""
    oldest = week - _WEEKS
    outdated = layout.import_weeks_before(oldest)
    notes = [row.key for row in tr.snapshot.get_range(*outdated, limit=_PAGE)]
    sources = [layout.source_in(note) for note in notes]
    # Every read is under way before the first is waited for.
    later = [
        [tr[layout.import_week(each, source)] for each in range(oldest, week + 1)]
        for source in sources
    ]
    for note, source, reads in zip(notes, sources, later):
        del tr[note]
        if not any(read.present() for read in reads):
            del tr[layout.import_key(source)]
    return len(notes) < _PAGE


def _store(
    db: Any, queue: PriorityQueue, batch: list[_Line], source: str | None, mark: bytes | None
) -> tuple[int, bytes | None]:
    """Store the lines for which there is room; how many, and the mark of how far that is."""
    filled = [line for line in batch if not line.blank]
    layout = store_of(queue).layout
    week = _week()

    def body(tr: Any) -> tuple[int, bytes | None]:
        if source is not None and tr[layout.import_key(source)].value != mark:
            raise ImportRunning(source)
        items = queue.push_many(
            tr,
            [line.value for line in filled],
            priorities=[line.priority for line in filled],
            as_many_as_fit=True,
        )
        rest = filled[len(items) :]
        done = batch[: batch.index(rest[0])] if rest else batch
        new_mark = done[-1].mark if done else mark
        if source is not None and done:
            tr[layout.import_key(source)] = new_mark
            tr[layout.import_week(week, source)] = b""
        return len(items), new_mark

    return run_once(db, body, layout.receipts)


def _numbered(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes, bytes]]:
    """Each line with its number and the digest of all lines up to it.

    Of a file no more is read of a line than shows that it is too long.
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
    """Read the lines that are stored already; how many bytes they are."""
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
    priority: Any,
    priority_field: str | None,
    value_field: str | None,
) -> Iterator[list[_Line]]:
    """The lines in batches; what is good before a bad line is a batch of its own."""
    store = store_of(queue)
    batch: list[_Line] = []
    size = 0
    for number, line, digest in numbered:
        try:
            value: Any = None
            rank: Priority = 0
            stored = 0
            if line.strip():
                value, given = _parsed(line, priority, priority_field, value_field)
                rank = store.levels.from_json(given)
                stored = len(store.codec.encode(value))
        except (FdbqueueError, ValueError) as error:
            if batch:
                yield batch
            raise InvalidLine(number, str(error), source) from error
        if batch and size + stored > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(_Line(number, len(line), digest, value, rank, not line.strip()))
        size += stored
        if len(batch) == _BATCH_LINES or size > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _parsed(
    line: bytes, priority: int, priority_field: str | None, value_field: str | None
) -> tuple[Any, Any]:
    if len(line) > MAX_LINE:
        raise ValueError(f"it is longer than {MAX_LINE:,} bytes")
    try:
        value = with_stack(json.loads, line)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from error
    rank = priority
    if priority_field is not None:
        rank = _field(value, priority_field)
    return (value if value_field is None else _field(value, value_field)), rank


def _field(value: Any, name: str) -> Any:
    if not isinstance(value, dict) or name not in value:
        raise ValueError(f"it is no object with a field {name!r}")
    return value[name]
