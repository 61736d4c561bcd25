"""The clock of the machine that nobody sets, and the versions that follow it."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path


def microseconds() -> int:
    """Return the time of a clock that never goes back and that all processes share."""
    return time.monotonic_ns() // 1000


def identity() -> str | None:
    """Return a text that is the same as long as the clock of `microseconds` goes on.

    It is `None` if the system has none. Then each opening may follow a start of the machine.
    """
    boot = Path("/proc/sys/kernel/random/boot_id")
    # A container can have a clock of its own.
    clock = Path("/proc/self/ns/time")
    if not boot.exists():
        return None
    return f"{boot.read_text().strip()} {clock.stat().st_ino if clock.exists() else 0}"


def set_clock(connection: sqlite3.Connection, step: int) -> tuple[int, int]:
    """Store the shift from the machine's clock to versions; return a version and its ceiling.

    Args:
        connection: A connection of the only process that has the database open.
        step: How far the ceiling is ahead.
    """
    # One commit: `SharedSync` finds the end of the log by the first one after the checkpoint.
    connection.execute("BEGIN IMMEDIATE")
    columns = connection.execute("PRAGMA table_info(clock)").fetchall()
    if "identity" not in [name for _, name, *_ in columns]:  # new, or of an older release
        connection.execute("ALTER TABLE clock ADD COLUMN identity TEXT")
    stored = connection.execute("SELECT shift, ceiling, identity FROM clock").fetchone()
    shift, ceiling, of_clock = stored
    clock = identity()
    now: int = microseconds() + shift
    # The clock of the last opening goes on, and so do versions: programs rely on the time that
    # passes. Otherwise they continue from the highest that they can have had.
    goes_on = clock is not None and clock == of_clock
    if not goes_on or now < ceiling - step:
        now = max(now, ceiling)
        shift = now - microseconds()
    new = shift, now + step, clock
    connection.execute("UPDATE clock SET shift = ?, ceiling = ?, identity = ?", new)
    connection.execute("COMMIT")
    return now, now + step
