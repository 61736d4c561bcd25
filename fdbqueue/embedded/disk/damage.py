"""Detection of damaged pages, so that reads fail instead of returning wrong rows.

SQLite notices an invalid page (zeros, random bytes) when it reads one. It does not notice a valid
page in the wrong place: the search descends into it, and rows are missing or repeated. Two checks
find that. A range read compares the order of its keys, which is almost free and covers the rows of
that read. `check_integrity` covers the whole database.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from fdbqueue.errors import CorruptDatabase

__all__ = ["check_integrity", "in_order"]


def in_order(
    rows: Iterable[tuple[bytes, bytes]], reverse: bool, path: Path
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of a range read; raise `CorruptDatabase` at a key out of order."""
    previous: bytes | None = None
    for row in rows:
        key = row[0]
        if previous is not None and (key >= previous if reverse else key <= previous):
            raise CorruptDatabase(str(path), f"the key {key!r} is out of order")
        previous = key
        yield row


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
