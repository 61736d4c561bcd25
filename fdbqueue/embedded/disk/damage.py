"""Find damage to the pages of a database, and say so instead of answering from them.

SQLite itself notices a page that is not a page of its kind (zeros, random bytes) when it reads it.
It does not notice a valid page in the wrong place: the search descends into it, and rows are
missing or repeated. Two tests find that. A range read looks at the order of its keys, which is
almost free and sees what is inside one read. `check_integrity` looks at the whole database.
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

    `quick_check` would take as long, and does not compare the order of the keys.

    Args:
        connection: A connection that no other thread uses meanwhile.
        path: The database file, for the message.
        seconds: When to give up; `None` for never.

    Returns:
        Whether the check ended in time.

    Raises:
        CorruptDatabase: SQLite found damage.
    """
    outcome: list[str | sqlite3.Error] = []

    def check() -> None:
        try:
            outcome.extend(connection.execute("PRAGMA integrity_check(1)").fetchone())
        except sqlite3.Error as error:
            outcome.append(error)

    # In a thread of its own, so that a signal or the time limit can interrupt it: the main thread
    # runs no signal handler inside a call of SQLite.
    thread = threading.Thread(target=check, daemon=True)
    thread.start()
    try:
        thread.join(seconds)
        ended = not thread.is_alive()
    finally:
        while thread.is_alive():
            connection.interrupt()  # without effect if the check has not begun yet
            thread.join(0.1)
    (finding,) = outcome
    if not ended or finding == "ok":
        return ended
    if isinstance(finding, sqlite3.Error):
        raise finding
    raise CorruptDatabase(str(path), f"the database is damaged ({' '.join(finding.split())})")
