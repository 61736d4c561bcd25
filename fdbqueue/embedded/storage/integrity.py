"""SQLite's check of the whole database."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

from fdbqueue.errors import CorruptDatabase


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
