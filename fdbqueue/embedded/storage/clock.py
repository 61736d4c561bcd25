"""The clock of versions: a million a second, on the machine's clock that nobody sets."""

from __future__ import annotations

import sqlite3
import time

NEWEST = "SELECT max(version) FROM commits"


def microseconds() -> int:
    """Return the time of a clock that never goes back and that all processes share."""
    return time.monotonic_ns() // 1000


def begin_clock(connection: sqlite3.Connection) -> None:
    """Let versions go on from the newest commit if the clock has begun anew, as after a restart.

    While the clock goes on, versions count the time that no process had the database open as well.
    """
    (newest,) = connection.execute(NEWEST).fetchone()
    shift = newest + 1 - microseconds()
    connection.execute("UPDATE clock SET shift = ? WHERE shift < ?", (shift, shift))


def shift_of_versions(connection: sqlite3.Connection) -> int:
    """Return what to add to the clock to get versions."""
    shift: int = connection.execute("SELECT shift FROM clock").fetchone()[0]
    return shift
