"""The commits: the version of each one, and what it wrote.

Versions are a million a second, on the machine's clock that nobody sets. The database stores what
to add to that clock.
"""

from __future__ import annotations

import sqlite3
import time

from fdbqueue.embedded.limits import TRANSACTION_LIFETIME, VERSIONS_PER_SECOND
from fdbqueue.embedded.ranges import Range, RangeSet, pack_ranges, unpack_ranges
from fdbqueue.errors import FDBError

LIFETIME = int(TRANSACTION_LIFETIME * VERSIONS_PER_SECOND)
"""The versions from the first read of a transaction to the latest one at which it can commit."""

NEWEST = "SELECT max(version) FROM commits"
FOLLOWING = "SELECT min(version) FROM commits WHERE version > ?"
_SINCE = "SELECT version, writes FROM commits WHERE version >= ? ORDER BY version"
_NOTE = "INSERT INTO commits VALUES (?, ?)"
# The newest of the rows that are too old stays: a snapshot at it may have begun a moment ago.
_FORGET = "DELETE FROM commits WHERE version < (SELECT max(version) FROM commits WHERE version < ?)"
_FORGET_EVERY = 64  # commits, on average: the last bits of the time are as good as random ones


def note(connection: sqlite3.Connection, version: int, writes: list[bytes]) -> None:
    """Add a commit, within its SQLite transaction, and delete now and then what is too old.

    Args:
        connection: The connection.
        version: The version of the commit.
        writes: Its write conflict ranges, as `pack_ranges` takes them.
    """
    connection.execute(_NOTE, (version, pack_ranges(writes)))
    if version % _FORGET_EVERY == 0:
        connection.execute(_FORGET, (version - LIFETIME,))


def compare(connection: sqlite3.Connection, seen: int, reads: list[Range]) -> None:
    """Compare the reads of a transaction with the commits after the newest that it has seen.

    Raises:
        FDBError: 1020, one of the commits wrote a key of `reads`. 1007, the rows of some of them
            may have been deleted.
    """
    lowest, highest = min(reads)[0], max(end for _, end in reads)
    keys: RangeSet | None = None
    # All rows at once: a statement that is not finished would outlive a rollback.
    (first, _), *rows = connection.execute(_SINCE, (seen,)).fetchall()
    if first != seen:
        raise FDBError(1007)
    for _, writes in rows:
        for begin, end in unpack_ranges(writes):
            # Compare with all reads at once: most commits write elsewhere.
            if begin < highest and lowest < end:
                keys = keys or RangeSet(reads)
                if keys.within(begin, end):
                    raise FDBError(1020)


def begin_clock(connection: sqlite3.Connection) -> None:
    """Prepare the clock of versions, as the first process does.

    If the clock has begun anew, as after a restart, versions go on from the newest commit.
    While the clock goes on, they count the time that no process had the database open as well.
    """
    (newest,) = connection.execute(NEWEST).fetchone()
    shift = newest + 1 - time.monotonic_ns() // 1000
    connection.execute("UPDATE clock SET shift = ? WHERE shift < ?", (shift, shift))


def shift_of_versions(connection: sqlite3.Connection) -> int:
    """Return what to add to the clock to get versions."""
    return int(connection.execute("SELECT shift FROM clock").fetchone()[0])
