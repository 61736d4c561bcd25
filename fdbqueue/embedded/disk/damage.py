"""Detection of damaged pages, and of commits that were lost in a crash.

SQLite notices an invalid page (zeros, random bytes) when it reads one. It does not notice a valid
page in the wrong place: the search descends into it, and rows are missing or repeated. Two checks
find that. A range read compares the order of its keys, which is almost free and covers the rows of
that read. `check_integrity` covers the whole database.

After a crash, SQLite recovers its write-ahead log up to the first frame with a wrong checksum and
does not report the rest. A torn tail is normal: it holds commits that were still being written. To
SQLite, a log that was cut, removed or damaged looks the same, although acknowledged commits are
gone. A note in the commit log (shared memory that outlives its processes) tells the two apart: the
number of frames on disk. It is taken after each sync, so it never claims more than was
acknowledged, even after a power failure. In that case it may be missing or old, and claims less. It
names the log that it speaks of by its salt, and is withdrawn, also from the disk, before that log
may be removed.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

from fdbqueue.embedded.disk.commit_log import COMMITS_FILE, CommitLog
from fdbqueue.embedded.disk.generations import current, database_file
from fdbqueue.embedded.disk.write_ahead_log import Extent, header, write_again
from fdbqueue.embedded.permissions import check_opened, open_file
from fdbqueue.errors import CorruptDatabase

_RECOVERED = struct.Struct("=16xI")  # the number of frames, in SQLite's index of the log
_PATIENCE = 2.0  # seconds to look for damage while opening
_ADVICE = f"restore a backup; to continue with the rest, delete {COMMITS_FILE} and open it again"
_PUT_BACK = (
    "put it back or restore a backup; if another program opened the database since the crash, it "
    "has moved the log into it and nothing is missing: delete "
    f"{COMMITS_FILE} and open it again"
)


def in_order(
    rows: Iterable[tuple[bytes, bytes]], reverse: bool, path: Path
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of a range read; raise `CorruptDatabase` at a key out of order."""
    previous: bytes | None = None
    for row in rows:
        key = row[0]
        if previous is not None and (key >= previous if reverse else key <= previous):
            raise _out_of_order(key, path)
        previous = key
        yield row


def check_order(rows: list[tuple[bytes, bytes]], reverse: bool, path: Path) -> None:
    """Raise `CorruptDatabase` if a key of a range read is out of order."""
    for (before, _), (after, _) in pairwise(rows):
        if after >= before if reverse else after <= before:
            raise _out_of_order(after, path)


def _out_of_order(key: bytes, path: Path) -> CorruptDatabase:
    return CorruptDatabase(str(path), f"the key {key!r} is out of order")


def check_integrity(
    connection: sqlite3.Connection, path: Path, seconds: float | None = None
) -> bool:
    """Run SQLite's integrity check on the committed state.

    `quick_check` takes as long and does not compare the order of the keys.

    Args:
        connection: A connection that no other thread uses during the check.
        path: The database file, for the message.
        seconds: Seconds after which to give up; `None` for never.

    Returns:
        True if the check finished in time.

    Raises:
        CorruptDatabase: SQLite found damage.
    """
    outcome: list[str | sqlite3.Error] = []

    def check() -> None:
        try:
            outcome.extend(connection.execute("PRAGMA integrity_check(1)").fetchone())
        except sqlite3.Error as error:
            outcome.append(error)

    # The check runs in its own thread so that a signal or the time limit can interrupt it: the main
    # thread runs no signal handler inside a call of SQLite.
    thread = threading.Thread(target=check, daemon=True)
    thread.start()
    try:
        thread.join(seconds)
        ended = not thread.is_alive()
    finally:
        while thread.is_alive():
            connection.interrupt()  # has no effect if the check has not started yet
            thread.join(0.1)
    (finding,) = outcome
    if not ended or finding == "ok":
        return ended
    if isinstance(finding, sqlite3.Error):
        raise finding
    raise CorruptDatabase(str(path), f"the database is damaged ({' '.join(finding.split())})")


def check_after_crash(directory: Path, commits: CommitLog) -> None:
    """Look for damage before SQLite recovers the files and removes the traces.

    The first process to open the database calls this before it connects. The check does nothing if
    the last process closed the database properly, which removes the write-ahead log. It spends up
    to two seconds on pages, enough for about two gigabytes. It changes no contents, but writes the
    log again as it is: a process may have died when a sync had failed.

    Raises:
        CorruptDatabase: Pages are damaged, or frames of the log that were on disk are missing.
    """
    database = database_file(directory)
    log = database.with_name(f"{database.name}-wal")
    synced = commits.synced
    if synced.frames and (
        synced.salt != commits.committed.salt or commits.generation != current(directory)
    ):
        synced = Extent(0, 0)  # the note is about a log that had ended before
    if not database.stat().st_size:  # SQLite would remove the log of an empty file
        if synced.frames:
            raise CorruptDatabase(str(database), "the database file is empty")
        return
    if not log.exists() or not log.stat().st_size:
        if synced.frames:
            problem = "the write-ahead log is gone, perhaps with acknowledged commits"
            raise CorruptDatabase(str(log), problem, _PUT_BACK)
        return
    if not synced.frames and Path(f"{database}-journal").exists():
        return  # its creation was interrupted, and SQLite undoes it: nothing was stored yet
    recovered = _recovered(database)
    with log.open("rb") as file:
        is_log, salt = header(file.fileno())
    if recovered < synced.frames and (salt == synced.salt or not is_log):
        raise CorruptDatabase(
            str(log),
            f"{synced.frames:,} frames of the write-ahead log were on disk and only {recovered:,} "
            "can be read: acknowledged commits are lost",
            _ADVICE,
        )
    commits.withdraw_synced()
    with open_file(log, os.O_RDWR) as file:
        write_again(file.fileno(), Extent(0, 0))


def _recovered(database: Path) -> int:
    """Check the pages as SQLite recovers them; return the number of readable frames of the log."""
    uri = f"file:{quote(str(database))}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, check_same_thread=False)) as connection:
        check_opened(connection, database)
        check_integrity(connection, database, _PATIENCE)
    # Read after SQLite has closed it: closing a file drops all locks that the process has on it.
    index = Path(f"{database}-shm")
    if not index.exists():
        return 0  # the file is not in WAL mode, so SQLite reads no log
    return int(_RECOVERED.unpack_from(index.read_bytes())[0])
