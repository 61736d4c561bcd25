"""What a crash left: SQLite's write-ahead log, compared with how much of it had reached the disk.

SQLite recovers the log up to the first frame whose checksum is wrong, and says nothing of the rest.
A torn tail is normal: the frames of commits that were on their way. A log that was cut, removed or
damaged looks the same to SQLite, and commits that were acknowledged are gone. The two are told
apart by a note in the log of commits (shared memory that outlives its processes): how many frames
were on disk. It is taken after each sync, so it never claims more than was acknowledged, not after
a power failure either; then it may be missing or old, and claims less.
"""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from fdbqueue.embedded.disk.commit_log import CommitLog
from fdbqueue.embedded.disk.damage import check_integrity
from fdbqueue.embedded.disk.files import COMMITS_FILE
from fdbqueue.embedded.disk.generations import database_file
from fdbqueue.embedded.disk.write_ahead_log import Extent, header
from fdbqueue.errors import CorruptDatabase

__all__ = ["check_after_crash"]

_RECOVERED = struct.Struct("=16xI")  # the number of frames, in SQLite's index of the log
_PATIENCE = 2.0  # seconds that an opening may take to look for damage
_ADVICE = f"restore a copy; to go on with what is left, delete {COMMITS_FILE} and open it again"
_PUT_BACK = (
    "put it back or restore a copy; if another program opened the database since the crash, it has "
    f"moved the log into it and nothing is missing: delete {COMMITS_FILE} and open it again"
)


def check_after_crash(directory: Path, commits: CommitLog) -> None:
    """Look for damage before SQLite recovers the files and removes its traces; change nothing.

    Called by the first process to open the database, before it connects. It does nothing if the
    last one closed it in order: that removes the write-ahead log. Pages are checked for up to two
    seconds, about two gigabytes.

    Raises:
        CorruptDatabase: Pages are damaged, or frames of the log that were on disk are missing.
    """
    database = database_file(directory)
    log = database.with_name(f"{database.name}-wal")
    synced = commits.synced
    if not database.stat().st_size:  # SQLite would remove the log beside it
        if synced.frames:
            raise CorruptDatabase(str(database), "there is nothing in the database")
        return
    if not log.exists() or not log.stat().st_size:
        if synced.frames:
            problem = "the write-ahead log is gone, perhaps with acknowledged commits"
            raise CorruptDatabase(str(log), problem, _PUT_BACK)
        return
    recovered = _recovered(database)
    with log.open("rb") as file:
        is_log, salt = header(file.fileno())
    if recovered < synced.frames and (salt == synced.salt or not is_log):
        raise CorruptDatabase(
            str(log),
            f"{synced.frames:,} frames of the write-ahead log were on disk and {recovered:,} can "
            "be read: acknowledged commits are lost",
            _ADVICE,
        )
    if synced.frames:
        commits.synced = Extent(0, 0)  # from here on SQLite may remove the log at any time


def _recovered(database: Path) -> int:
    """Check the pages as SQLite recovers them; return how many frames of the log it can read."""
    uri = f"file:{quote(str(database))}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, check_same_thread=False)) as connection:
        check_integrity(connection, database, _PATIENCE)
    # Read when SQLite has closed it: to close a file drops all locks that a process has on it.
    index = Path(f"{database}-shm")
    if not index.exists():
        return 0  # the file is not in the mode that has a log, so SQLite reads none
    return int(_RECOVERED.unpack_from(index.read_bytes())[0])
