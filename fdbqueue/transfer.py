"""Moving JSON lines into a queue, each line once, however often the import is begun."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fdb import tuple as fdb_tuple

from fdbqueue.database import run, run_once
from fdbqueue.errors import FdbqueueError, ImportMismatch, ImportRunning, InvalidLine
from fdbqueue.priority_queue import PriorityQueue

__all__ = ["ImportReport", "import_lines"]

_BATCH_LINES = 1000
_BATCH_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import did: lines stored now, and lines that an earlier run had stored."""

    stored: int
    skipped: int


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    size: int
    digest: bytes
    value: Any
    priority: int
    blank: bool


def import_lines(
    db: Any,
    queue: PriorityQueue,
    lines: Iterable[bytes],
    source: str | None,
    *,
    priority: int = 0,
    priority_field: str | None = None,
    value_field: str | None = None,
    again: bool = False,
    progress: Callable[[int, int], object] = lambda lines, size: None,
) -> ImportReport:
    """Push each line, a JSON value, in order; a line that an earlier run stored is passed over.

    Lines are stored in batches of up to 1,000, and each batch notes in the same transaction how far
    it came, with a digest of everything so far. An import that was killed is simply run again. Two
    imports of one source at once do not double a line either: one of them fails.

    Parameters: `source`, what tells this import from others, for example the path of a file, or
    `None` for one that is not to be gone on with: every line is pushed;
    `priority`, of lines without a priority of their own; `priority_field`, the field of the line's
    object that has it, an integer; `value_field`, the field to push instead of the whole line;
    `again`, begin anew whatever was stored (if that is killed, go on without `again`);
    `progress(lines, size)`, called after each batch with
    the lines and bytes read so far.

    Raises `InvalidLine` with the number of the line; the lines before it are stored, and an import
    of the corrected input goes on from there. Raises `ImportMismatch` if the beginning of the input
    is not what was stored, and `ImportRunning` if another import of the source stores lines too.

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> jobs = PriorityQueue.named(db, "jobs")
    >>> lines = [b'{"n": 1, "p": 5}', b'{"n": 2, "p": 3}']
    >>> import_lines(db, jobs, lines, "a file", priority_field="p")
    ImportReport(stored=2, skipped=0)
    >>> import_lines(db, jobs, lines, "a file", priority_field="p")
    ImportReport(stored=0, skipped=2)
    >>> jobs.pop(db).value
    {'n': 2, 'p': 3}
    """
    # Without a source of the caller's, one that no other import has, and that is forgotten after.
    name = source if source is not None else f"once:{uuid.uuid4().hex}"
    key = queue.layout.import_key(name)
    mark = run(db, lambda tr: tr[key].value)
    stored_lines, stored_digest = (0, b"") if mark is None or again else fdb_tuple.unpack(mark)
    numbered = _numbered(lines)
    size = _pass_over(numbered, name, stored_lines, stored_digest)
    stored = 0
    for batch in _batches(numbered, queue, priority, priority_field, value_field):
        last = batch[-1]
        new_mark = fdb_tuple.pack((last.number, last.digest))
        filled = [line for line in batch if not line.blank]

        def store(
            tr: Any, mark: Any = mark, new_mark: bytes = new_mark, filled: list[_Line] = filled
        ) -> bool:
            if tr[key].value not in (mark, new_mark):
                raise ImportRunning(name)
            if tr[key].value == mark:
                queue.push_many(
                    tr,
                    [line.value for line in filled],
                    priorities=[line.priority for line in filled],
                    raise_if_full=True,
                )
                tr[key] = new_mark
            return True

        run_once(db, store, queue.layout.receipts)
        mark = new_mark
        stored += len(filled)
        size += sum(line.size for line in batch)
        progress(last.number, size)
    if source is None and stored:
        run(db, lambda tr: tr.clear(key))
    return ImportReport(stored, stored_lines)


def _numbered(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes, bytes]]:
    """Each line with its number and the digest of all lines up to it."""
    digest = hashlib.sha256()
    for number, line in enumerate(lines, 1):
        digest.update(line.rstrip(b"\r\n") + b"\n")
        yield number, line, digest.digest()


def _pass_over(
    numbered: Iterator[tuple[int, bytes, bytes]], source: str, lines: int, digest: bytes
) -> int:
    """Read the lines that are stored already; how many bytes they are."""
    size = 0
    found = b""
    for _ in range(lines):
        _, line, found = next(numbered, (0, b"", b""))
        size += len(line)
    if found != digest:
        raise ImportMismatch(source, lines)
    return size


def _batches(
    numbered: Iterator[tuple[int, bytes, bytes]],
    queue: PriorityQueue,
    priority: int,
    priority_field: str | None,
    value_field: str | None,
) -> Iterator[list[_Line]]:
    """The lines in batches; what is good before a bad line is a batch of its own."""
    batch: list[_Line] = []
    size = 0
    for number, line, digest in numbered:
        try:
            value, rank = _parsed(line, priority, priority_field, value_field)
            queue.checked(rank)
            stored = len(queue.encoded(value))
        except (FdbqueueError, ValueError) as error:
            if batch:
                yield batch
            raise InvalidLine(number, str(error)) from error
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
    if not line.strip():
        return None, priority
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from error
    rank = priority
    if priority_field is not None:
        rank = _field(value, priority_field)
    return (value if value_field is None else _field(value, value_field)), rank


def _field(value: Any, name: str) -> Any:
    if not isinstance(value, dict) or name not in value:
        raise ValueError(f"it is no object with a field {name!r}")
    return value[name]
