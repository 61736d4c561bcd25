"""Generations of SQLite's files, which end a write-ahead log that a stopped process keeps open.

SQLite cannot restart its write-ahead log while a process reads from it. A process stopped in the
middle of a read (SIGSTOP, `docker pause`) keeps reading for hours, and the log grows with every
commit of the other processes. The reader's lock must not be broken, because the reader may resume
at any moment. Instead, the other processes leave the files to the reader and continue with a copy.
One process, which holds the writers' lock so that no other process commits,

1. copies the committed state to a file whose name ends in `.new`;
2. renames the copy to the next generation: `fdbqueue.1.sqlite` after `fdbqueue.sqlite`. The file of
   the highest generation is the database;
3. writes the number into the log of commits. Each transaction reads the number when it begins and
   when it commits, and opens the new files if it has older ones open;
4. removes the old files. A process that has them open keeps them. No other process uses them any
   more, so it does not matter what happens in them. For this reason no name is used twice while any
   process has the database open.

A process killed before step 2 leaves a file that is never read. If it is killed later, the next
commit completes the remaining steps: a change of the directory makes that commit compare the names
with the number, and no transaction commits to the new files before the number is written.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from fdbqueue.embedded.disk.commit_log import CommitLog
from fdbqueue.embedded.disk.sync import sync_path
from fdbqueue.embedded.permissions import create_like
from fdbqueue.errors import FilesReplaced

DATABASE_FILE = "fdbqueue.sqlite"
_DATABASE = re.compile(r"fdbqueue\.(?:([1-9]\d*)\.)?sqlite")
_FILES = re.compile(rf"({_DATABASE.pattern})(?:\.new)?(?:-wal|-shm|-journal)?")


class Outdated(Exception):
    """A newer generation of the files exists than the one that is open."""


def current(path: Path | str) -> int:
    """Return the newest generation of the files in a directory."""
    try:
        names = os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    newest = 0
    for found in map(_DATABASE.fullmatch, names):
        if found is not None:
            newest = max(newest, int(found[1] or 0))
    return newest


def database_file(path: Path, generation: int | None = None) -> Path:
    """Return the path of the SQLite file of a generation, by default of the newest one."""
    number = current(path) if generation is None else generation
    return path / (f"fdbqueue.{number}.sqlite" if number else DATABASE_FILE)


def live_bytes(connection: sqlite3.Connection) -> int:
    """Return the size that a copy would have, in bytes."""
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Let a database have a write-ahead log; raise `sqlite3.Error` if that cannot be stored.

    Rows have to be fetched up to the end: SQLite commits the change after the last one, and nobody
    learns of an error of a commit that the end of an unfinished statement makes.
    """
    connection.execute("PRAGMA journal_mode=WAL").fetchall()


def copy(path: Path, connection: sqlite3.Connection, check: Callable[[], object] = bool) -> None:
    """Create the next generation of the files. If this fails, nothing has changed.

    `check()` is called before the copy gets its name, and raises an error if it must not.

    The caller holds the writers' lock, has called `finish`, and has withdrawn the note of how much
    of the old write-ahead log is on disk.
    """
    remove_others(path)
    old, new = database_file(path), database_file(path, current(path) + 1)
    unnamed = new.with_name(f"{new.name}.new")
    try:
        create_like(old, unnamed)
        connection.execute("VACUUM INTO ?", (str(unnamed),))
        with closing(sqlite3.connect(unnamed, isolation_level=None)) as copied:
            use_write_ahead_log(copied)
        sync_path(unnamed)
        check()
        unnamed.rename(new)
    except BaseException:
        with suppress(OSError):
            remove_others(path)
        raise


def finish(path: Path, log: CommitLog) -> None:
    """Move all processes to the newest generation. The caller holds the writers' lock.

    Raises:
        FilesReplaced: The newest generation is older than before, as after restoring a copy.
    """
    generation = current(path)
    if generation == log.generation:
        return
    if generation < log.generation:
        raise FilesReplaced(str(path), database_file(path, log.generation).name)
    sync_path(path)
    log.begin_generation(generation)
    remove_others(path)


def remove_others(path: Path) -> None:
    """Remove the files of all generations but the newest one.

    The caller holds the writers' lock and the log of commits has the number of the newest
    generation, or no other process has the database open.
    """
    newest = database_file(path).name
    for name in os.listdir(path):
        found = _FILES.fullmatch(name)
        if found and (found[1] != newest or ".new" in name):
            (path / name).unlink(missing_ok=True)
