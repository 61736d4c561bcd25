"""The clock of versions: a million a second, on the machine's clock that nobody sets."""

from __future__ import annotations

import sqlite3
import time

from fdbqueue.embedded.storage.commits import NEWEST


def begin_clock(connection: sqlite3.Connection) -> int:
    """Return what to add to the clock to get versions, as the first process does.

    If the clock has begun anew, as after a restart, versions go on from the newest commit.
    While the clock goes on, they count the time that no process had the database open as well.
    """
    (newest,) = connection.execute(NEWEST).fetchone()
    shift = newest + 1 - time.monotonic_ns() // 1000
    connection.execute("UPDATE clock SET shift = ? WHERE shift < ?", (shift, shift))
    return shift_of_versions(connection)


def shift_of_versions(connection: sqlite3.Connection) -> int:
    """Return what to add to the clock to get versions."""
    return int(connection.execute("SELECT shift FROM clock").fetchone()[0])
