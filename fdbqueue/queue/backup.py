"""Backups: queues in a file, each as it was at one moment, and the user's own keys."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import partial
from typing import IO, Any

from fdbqueue.database.binding import database_identity
from fdbqueue.database.clock import milliseconds
from fdbqueue.errors import InvalidBackup, QueueChanged, QueueNotFound, SameQueue
from fdbqueue.layout.batches import Links, with_queues
from fdbqueue.layout.names import decode_name, is_name_key, name_key, names_with
from fdbqueue.layout.values import LAYOUT_VERSION
from fdbqueue.queue.rows import (
    OURS,
    Moment,
    NewQueues,
    QueueCopy,
    Row,
    count_missing,
    key_rows,
    rows_of,
    store_keys,
    summary_of,
)
from fdbqueue.types import Database

_FORMAT = "fdbqueue backup"
_HEADER = {"format": _FORMAT, "version": 1, "layout": LAYOUT_VERSION}
_MAX_LINE = 400_000  # bytes; a row of FoundationDB has up to 110,000
_BEGIN = f'{{"format":"{_FORMAT}"'.encode()
_SECTIONS = (b'{"queue":', b'{"prefix":')

ALL = "keys outside queues"
"""How a report calls the keys with the empty prefix."""


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

    A job that waits for jobs of another queue goes on waiting for them after a restore if the file
    has both queues. Without the other queue, it goes on as if they were cancelled.

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
    moment, copies, sha256 = Moment(db), Copies(), hashlib.sha256()

    def write(fields: dict[str, Any]) -> None:
        line = _line(fields)
        sha256.update(line)
        file.write(line)

    def written(rows: Iterable[Row], name: str) -> Iterator[Row]:
        for row in _counted(rows, partial(progress, name)):
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
        copies[name] = summary_of(written(rows_of(db, name, moment), name))
        if moment.versions != versions:
            # If nothing differs now, both reads show the moment between them.
            _verify_unchanged(db, {name: copies[name]})
    for prefix in own:
        write({"prefix": _base64(prefix)})
        rows = written(key_rows(prefix, moment), prefix_text(prefix) or ALL)
        copies.prefixes[prefix] = sum(1 for _ in rows)
    file.write(_end(sha256))
    copies.moments = moment.versions
    return copies


def _counted(rows: Iterable[Row], progress: Callable[[int], object]) -> Iterator[Row]:
    """Yield rows; call `progress` with their number now and then, and at the end."""
    n = 0
    for n, row in enumerate(rows, 1):
        yield row
        if n % 1000 == 0:
            progress(n)
    progress(n)


def _verify_unchanged(db: Database, copies: Mapping[str, QueueCopy]) -> None:
    for name, copy in copies.items():
        if summary_of(rows_of(db, name)) != copy:
            raise QueueChanged(name)


def _end(sha256: hashlib._Hash) -> bytes:
    """Return the last line of a file, which has the digest of the others."""
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
    progress: Callable[[str, int], object] = lambda name, rows: None,
) -> Copies:
    """Create the queues and keys of a backup in a database, with everything that it has.

    All queues get their names in one transaction, after the last row. A job that waits for a job of
    a queue that is not restored goes on: that job counts as cancelled, and all steps in which the
    waiting job runs it and others fail. The end of a restored job counts for no job of a queue that
    is not restored.

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
    sections, key_sections = _sections(file)
    is_all = names is None and prefixes is None
    chosen = [*sections] if is_all else _names(names or ())
    own = [*key_sections] if is_all else distinct(prefixes or ())
    for name in chosen:
        if name not in sections:
            similar = get_close_matches(name, sections) or [*sections][:3]
            raise QueueNotFound(name, similar)
    _verify_new_name(new_name, chosen)
    if new_name is not None and is_all and own:
        raise ValueError("the file also has keys, and no key can get a new name; name the queue")
    missing = {prefix: count_missing(db, _key_rows(file, key_sections, prefix)) for prefix in own}

    def store_own() -> None:
        for prefix in own:
            rows = _key_rows(file, key_sections, prefix)
            store_keys(db, _counted(rows, partial(progress, prefix_text(prefix) or ALL)))

    queues = {name: sections[name] for name in chosen}
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
    names = {name: new_name if new_name is not None else name for name in queues}
    new, links, copies = NewQueues(db, [*names.values()]), Links(), Copies()
    prefixes = {name_key(name): new.subspaces[names[name]].key() for name in queues}
    for name, offset in queues.items():
        copies[name] = summary_of(links.noted(name_key(name), _rows(file, offset)))

    def prefix_of(reference: bytes) -> bytes | None:
        """Return the prefix of a restored queue; a queue without a name keeps its own."""
        return prefixes.get(reference) if is_name_key(reference) else reference

    for name, offset in queues.items():
        found = _counted(_rows(file, offset), partial(progress, name))
        new.write(
            names[name], (Row(key, with_queues(key, value, prefix_of)) for key, value in found)
        )
    before_names()
    for name in queues:
        new.end_lost(names[name], milliseconds(), links.lost(name_key(name)))
    new.finish()
    return copies


def _sections(file: IO[bytes]) -> tuple[dict[str, int], dict[bytes, int]]:
    """Verify a whole file; return where the first row of each queue and of each prefix is."""
    file.seek(0)
    sha256, last, number = hashlib.sha256(), b"", 0
    begins: list[tuple[bytes, int]] = []
    for number, line in enumerate(iter(partial(file.readline, _MAX_LINE), b""), 1):
        if number == 1:
            _verify_header(line)
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
        yield Row(_bytes(line["key"]), _bytes(line["value"]))


def _key_rows(file: IO[bytes], sections: dict[bytes, int], prefix: bytes) -> Iterator[Row]:
    """Yield the rows of a file whose keys begin with a prefix.

    Raises:
        InvalidBackup: The file is of other prefixes.
    """
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

    A job that waits for jobs of another queue goes on waiting for them if you copy both queues
    together. Otherwise what `restore` says of queues that are not restored holds here, too.

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
        for name in copied:
            if is_same and new_name in (None, name):
                raise SameQueue(name)
        verify = partial(_verify_unchanged, source, copied)
        return _create(target, file, _sections(file)[0], new_name, progress, verify)


def _verify_new_name(new_name: str | None, names: Collection[str]) -> None:
    if new_name is not None and len(names) != 1:
        raise ValueError(f"only one queue can get a new name, not {len(names)}")


def distinct(prefixes: Iterable[bytes]) -> list[bytes]:
    r"""Return prefixes in order, without repetitions and those that begin with another one.

    Raises:
        ValueError: A prefix begins only keys that are not the user's.

    Example:
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


def prefix_text(prefix: bytes) -> str:
    r"""Return a prefix as text, with an escape for each byte that is no printable ASCII.

    >>> print(prefix_text(b"sold/\x00\\"))
    sold/\x00\\
    """
    text = prefix.replace(b"\\", b"\\\\").decode("latin-1")
    return "".join(char if " " <= char <= "~" else f"\\x{ord(char):02x}" for char in text)


def prefix_from(text: str) -> bytes:
    r"""Return the prefix that a text stands for, with `\xNN` for any byte and `\\` for a backslash.

    Raises:
        ValueError: The text has another backslash.

    Example:
        >>> prefix_from(r"sold/\x00\\")
        b'sold/\x00\\'
    """
    parts = re.split(rb"(\\(?:x[0-9a-fA-F]{2}|\\))", os.fsencode(text))
    for number, part in enumerate(parts):
        if number % 2:
            parts[number] = bytes.fromhex(part[2:].decode()) or b"\\"
        elif b"\\" in part:
            raise ValueError(f"write \\xNN for a byte and \\\\ for a backslash, not {text}")
    return b"".join(parts)
