"""Backups: queues in a file, each as it was at one moment, and the user's own keys."""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from difflib import get_close_matches
from functools import cache, partial
from typing import IO, Any, NamedTuple

from fdbqueue.database.binding import database_identity
from fdbqueue.errors import InvalidBackup, QueueChanged, QueueExists, QueueNotFound, SameQueue
from fdbqueue.layout.batches import with_queues
from fdbqueue.layout.names import decode_name, name_key, names_with
from fdbqueue.layout.values import LAYOUT_VERSION
from fdbqueue.queue.transfer.rows import (
    Moment,
    NewQueue,
    QueueCopy,
    Row,
    Summary,
    finish,
    prefix_in,
    rows_of,
    summary_of,
)
from fdbqueue.queue.transfer.user_keys import (
    ALL,
    count_missing,
    distinct,
    key_rows,
    prefix_text,
    store_keys,
)
from fdbqueue.types import Database

_FORMAT = "fdbqueue backup"
_HEADER = {"format": _FORMAT, "version": 1, "layout": LAYOUT_VERSION}
_MAX_LINE = 400_000  # bytes; a row of FoundationDB has up to 110,000
_BEGIN = f'{{"format":"{_FORMAT}"'.encode()
_SECTIONS = (b'{"queue":', b'{"prefix":')


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
    lasts for five seconds. If a queue takes longer, the backup reads it a second time to be sure
    that it has not changed. Queues whose reads begin within a second of the first show the same
    moment; other queues may show different moments.

    A job that waits for jobs of another queue goes on after a restore if you write and restore both
    queues together.

    With `prefixes`, the file also has all keys that begin with one of them, except for the keys of
    named queues. The prefix `b""` stands for all other keys of the database. They are read after
    the queues, at the same moment if all takes less than a second or, without large queues, less
    than five. Otherwise they are read in chunks of up to five seconds, each at one moment. What a
    transaction changed in two chunks, or in a chunk and a queue, may then be in the file in part.
    `Copies.moments` says whether that is so. A queue without a name consists of such keys.

    The file has one JSON object in each line: the layout, the rows of each queue and prefix, and a
    digest. It can be restored into any database, embedded or cluster. Cost: one range read for
    every 500 rows. Conflicts with nothing.

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
    output, moment, copies = _Output(file), Moment(db), Copies()
    if names is None:
        chosen = [decode_name(row.key) for row in moment.rows(*names_with(""))]
    else:
        chosen = _names(names)
    output.write(_HEADER)
    for name in chosen:
        output.write({"queue": name})
        summary = Summary()
        for row in output.written(rows_of(db, name, moment), partial(progress, name)):
            summary.add(row)
        copies[name] = summary.finish()
    for prefix in own:
        output.write({"prefix": _base64(prefix)})
        rows = output.written(
            key_rows(prefix, moment), partial(progress, prefix_text(prefix) or ALL)
        )
        copies.prefixes[prefix] = sum(1 for _ in rows)
    file.write(_end(output.sha256))
    copies.moments = moment.versions
    return copies


class _Output:
    """A file that is being written.

    Attributes:
        sha256: The digest of the lines so far.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()

    def write(self, fields: dict[str, Any]) -> None:
        """Write a line."""
        line = _line(fields)
        self.sha256.update(line)
        self._file.write(line)

    def written(self, rows: Iterable[Row], progress: Callable[[int], object]) -> Iterator[Row]:
        """Yield rows once they are written."""
        number = 0
        for number, row in enumerate(rows, 1):
            self.write({"key": _base64(row.key), "value": _base64(row.value)})
            if number % 1000 == 0:
                progress(number)
            yield row
        progress(number)


def _end(sha256: hashlib._Hash) -> bytes:
    """Return the last line of a file, which has the digest of the others."""
    return _line({"sha256": sha256.hexdigest()})


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def _base64(part: bytes) -> str:
    return base64.b64encode(part).decode()


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
    progress: Callable[[str, int], object] = lambda name, rows: None,
) -> Copies:
    """Create the queues and keys of a backup in a database, with everything that it has.

    All queues get their names in one transaction, after the last row. Restore queues together whose
    jobs wait for each other. A job waits on for jobs of a queue that is not restored: cancel it. If
    jobs of a queue that is neither restored nor present wait for a job, its end no longer counts
    for them.

    The whole file is verified first: a damaged file changes nothing, nor does one of another
    layout. No client sees half of a queue. An interrupted restore begins anew when you start it
    again, and deletes the rows that it had written.

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
        What was restored, by the name in the file.

    Raises:
        InvalidBackup: The file is not a complete backup, is damaged, or has another layout.
        QueueNotFound: The file has no queue with one of the names.
        QueueExists: The database has a queue with one of the names. No queue was restored.
        KeyExists: The database has a key of the file with another value.
        RestoreRunning: Another process has begun to restore the same queue meanwhile.

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
    contents = _contents(file)
    is_all = names is None and prefixes is None
    chosen = [*contents.queues] if is_all else _names(names or ())
    own = [*contents.prefixes] if is_all else distinct(prefixes or ())
    for name in chosen:
        if name not in contents.queues:
            similar = get_close_matches(name, contents.queues) or [*contents.queues][:3]
            raise QueueNotFound(name, similar)
    _verify_new_name(new_name, chosen)
    if new_name is not None and is_all and own:
        raise ValueError("the file also has keys, and no key can get a new name; name the queue")
    keys = {prefix: partial(_key_rows, file, contents, prefix) for prefix in own}
    missing = {prefix: count_missing(db, rows()) for prefix, rows in keys.items()}

    def store_own() -> None:
        for prefix, rows in keys.items():
            store_keys(db, rows(), partial(progress, prefix_text(prefix) or ALL))

    queues = {name: contents.queues[name] for name in chosen}
    restored = _create(db, file, queues, new_name, progress, store_own)
    restored.prefixes.update(missing)
    return restored


def _create(
    db: Database,
    file: IO[bytes],
    queues: dict[str, int],
    new_name: str | None,
    progress: Callable[[str, int], object],
    before_names: Callable[[], None],
) -> Copies:
    """Create queues of a file.

    Args:
        db: A database.
        file: The file.
        queues: Where the first row of each queue is.
        new_name: Another name for the only queue.
        progress: As for `restore`.
        before_names: Called after the last row, before the queues get their names.
    """
    copies = Copies()
    names = {name: name if new_name is None else new_name for name in queues}
    for name in names.values():
        if prefix_in(db, name_key(name)) is not None:
            raise QueueExists(name)
    for name, offset in queues.items():
        summary = Summary()
        for row in _rows(file, offset):
            summary.add(row)
        copies[name] = summary.finish()
    new = {name: NewQueue(db, names[name]) for name in queues}
    prefixes = {name_key(name): bytes(queue.subspace.key()) for name, queue in new.items()}

    @cache
    def prefix_of(reference: bytes) -> bytes | None:
        if reference in prefixes:
            return prefixes[reference]
        # A queue with a new name may be there with its old one, too.
        return prefix_in(db, reference) if new_name in (None, *queues) else None

    for name, queue in new.items():
        found = _rows(file, queues[name])
        moved = (Row(key, with_queues(key, value, prefix_of)) for key, value in found)
        queue.write(moved, partial(progress, name))
    before_names()
    finish(db, new.values())
    return copies


class _Contents(NamedTuple):
    """The contents of a file: where the first row of each queue and each prefix is."""

    queues: dict[str, int]
    prefixes: dict[bytes, int]


def _contents(file: IO[bytes]) -> _Contents:
    """Verify a whole file, and return what is in it."""
    file.seek(0)
    sha256, last, number = hashlib.sha256(), b"", 0
    begins: list[tuple[int, bytes]] = []
    for number, line in enumerate(iter(partial(file.readline, _MAX_LINE), b""), 1):
        if number == 1:
            _verify_header(line)
        if line.startswith(_SECTIONS):
            begins.append((file.tell(), line))
        sha256.update(last)
        last = line
    if last != _end(sha256):
        raise InvalidBackup(number, "the file is damaged, cut off, or not a backup")
    contents = _Contents({}, {})
    for offset, line in begins:
        section = json.loads(line)
        if "queue" in section:
            contents.queues[section["queue"]] = offset
        else:
            contents.prefixes[base64.b64decode(section["prefix"])] = offset
    return contents


def _verify_header(line: bytes) -> None:
    if not line.startswith(_BEGIN):
        raise InvalidBackup(1, "it is not the first line of a backup")
    if line != _line(_HEADER):
        raise InvalidBackup(
            1, f"another release wrote the file, and this one restores layout {LAYOUT_VERSION}"
        )


def _rows(file: IO[bytes], offset: int) -> Iterator[Row]:
    """Yield the rows of one section of a file that was verified."""
    file.seek(offset)
    while "key" in (line := json.loads(file.readline())):
        yield Row(base64.b64decode(line["key"]), base64.b64decode(line["value"]))


def _key_rows(file: IO[bytes], contents: _Contents, prefix: bytes) -> Iterator[Row]:
    """Yield the rows of a file whose keys begin with a prefix.

    Raises:
        InvalidBackup: The file is of other prefixes.
    """
    offsets = [
        offset
        for written, offset in contents.prefixes.items()
        if prefix.startswith(written) or written.startswith(prefix)
    ]
    if not offsets:
        raise InvalidBackup(1, f"the file has no keys of the prefix {prefix!r}")
    for offset in offsets:
        for row in _rows(file, offset):
            if row.key.startswith(prefix):
                yield row


def copy(
    source: Database,
    target: Database,
    names: Iterable[str] | None = None,
    *,
    new_name: str | None = None,
    progress: Callable[[str, int], object] = lambda name, rows: None,
) -> Copies:
    """Copy queues to another database, with items in every state and their options.

    A copy is a backup in a temporary file, and its restore. The items keep their ids, their order
    and their failed attempts. The source is not changed. The copies get their names only after the
    source was read again and compared, so no client sees half of one. An interrupted copy begins
    anew when you start it again.

    If a queue changes during the copy, `QueueChanged` is raised. Pause the queues with `pause`, and
    stop the clients that push, pop or hold claims. Do so in any case if the copies are to replace
    the source: otherwise both would run the same jobs. A claimed item stays claimed until its lease
    is over by the clock. The copy of a paused queue is paused.

    Copy queues together whose jobs wait for each other, as `restore` describes.

    Cost: two reads of the queues, twice as many if a read takes longer than five seconds, and one
    transaction for every 1,000 rows or megabyte.

    Args:
        source: The database to copy from.
        target: The database to copy to.
        names: The names of the queues; `None` for all.
        new_name: Another name for the copy, if only one queue is copied.
        progress: Called now and then with the name of a queue, and how many rows of it are copied.

    Returns:
        What was copied, by the name in the source.

    Raises:
        QueueNotFound: The source has no queue with one of the names.
        QueueExists: The target has a queue with one of the names.
        SameQueue: The target is the source, and a copy would have the name of its queue.
        QueueChanged: A queue has changed. The target has no new queue.
        RestoreRunning: Another process has begun to copy or restore the same queue meanwhile.
        InvalidQueueName: A queue cannot have one of the names.

    Example:
        >>> import fdbqueue
        >>> here, there = fdbqueue.open("memory:"), fdbqueue.open("memory:")
        >>> _ = fdbqueue.PriorityQueue.named(here, "jobs").push_many(here, ["a", "b"])
        >>> copy(here, there)["jobs"].ready
        2
    """
    with tempfile.TemporaryFile() as file:
        copied = backup(source, file, names)
        _verify_new_name(new_name, copied)
        identity = database_identity(source)
        is_same = source is target or None is not identity == database_identity(target)
        first = next(iter(copied), None)
        if is_same and first is not None and new_name in (None, first):
            raise SameQueue(first)

        def verify() -> None:
            for name, copy in copied.items():
                if summary_of(rows_of(source, name)) != copy:
                    raise QueueChanged(name)

        _create(target, file, _contents(file).queues, new_name, progress, verify)
    return copied


def _verify_new_name(new_name: str | None, names: Collection[str]) -> None:
    if new_name is not None and len(names) != 1:
        raise ValueError(f"only one queue can get a new name, not {len(names)}")
