"""Generations of SQLite's files, so that the write-ahead log ends although a stopped process reads.

SQLite cannot begin its write-ahead log again while a process reads from it. A process that is
stopped in the middle of a read (SIGSTOP, `docker pause`) reads for hours, and the log grows with
every commit of the others. Nothing may break the lock of the reader, which can go on at any moment.
So the others leave it the files and continue with a copy. A process that has the writers' lock,
which keeps all others from committing,

1. copies what was committed, under a name that ends in `.new`;
2. renames the copy to the next generation: `fdbqueue.1.sqlite` after `fdbqueue.sqlite`. The file of
   the highest generation is the database;
3. writes the number into the log of commits, where each transaction looks when it begins and when
   it commits, and opens the new files if it has others open;
4. removes the old files. Processes that have them open keep them, and nobody else uses them,
   whatever those processes do with them. This is why no name is used twice while the database is
   open anywhere.

A process killed before step 2 leaves a file that is never read. If it is killed later, the next
commit does the rest: a change of the directory makes it compare the names with the number, and
nothing is committed in the new files before the number is written.
"""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from fdbqueue.embedded.disk.commit_log import CommitLog
from fdbqueue.errors import FilesReplaced

__all__ = [
    "DATABASE_FILE",
    "Outdated",
    "copy",
    "current",
    "database_file",
    "finish",
    "live_bytes",
    "remove_others",
    "sync",
]

DATABASE_FILE = "fdbqueue.sqlite"
_DATABASE = re.compile(r"fdbqueue\.(?:([1-9]\d*)\.)?sqlite")
_FILES = re.compile(rf"({_DATABASE.pattern})(?:\.new)?(?:-wal|-shm|-journal)?")


class Outdated(Exception):
    """There is a newer generation of the files than the one that was opened."""


def current(path: Path) -> int:
    """Return the newest generation of the files in a directory."""
    with suppress(FileNotFoundError, NotADirectoryError):
        found = (_DATABASE.fullmatch(name) for name in os.listdir(path))
        return max((int(name[1] or 0) for name in found if name), default=0)
    return 0


def database_file(path: Path, generation: int | None = None) -> Path:
    """Return the path of the SQLite file, of the newest generation unless another one is given."""
    number = current(path) if generation is None else generation
    return path / (f"fdbqueue.{number}.sqlite" if number else DATABASE_FILE)


def live_bytes(connection: sqlite3.Connection) -> int:
    """Return how large a copy will be."""
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def copy(path: Path, connection: sqlite3.Connection) -> None:
    """Make the next generation of the files, and name it so.

    With the writers' lock, after `finish`, and after the note of what is on disk of the old
    write-ahead log was withdrawn. If this fails, nothing has changed.
    """
    remove_others(path)
    old, new = database_file(path), database_file(path, current(path) + 1)
    unnamed = new.with_name(f"{new.name}.new")
    try:
        _create_like(old, unnamed)
        connection.execute("VACUUM INTO ?", (str(unnamed),))
        with closing(sqlite3.connect(unnamed, isolation_level=None)) as copied:
            copied.execute("PRAGMA journal_mode=WAL")
        sync(unnamed)
        unnamed.rename(new)
    except BaseException:
        with suppress(OSError):
            remove_others(path)
        raise


def finish(path: Path, log: CommitLog) -> None:
    """Make all processes go on with the newest generation; with the writers' lock.

    Raises:
        FilesReplaced: The newest generation is older than before: an older copy was put here.
    """
    generation = current(path)
    if generation == log.generation:
        return
    if generation < log.generation:
        raise FilesReplaced(str(path), database_file(path, log.generation).name)
    sync(path)
    log.generation = generation
    remove_others(path)


def remove_others(path: Path) -> None:
    """Remove the files of all generations but the newest one.

    With the writers' lock, if the log of commits has the number of the newest generation, or while
    no other process has the database open.
    """
    newest = database_file(path).name
    for name in os.listdir(path):
        found = _FILES.fullmatch(name)
        if found and (found[1] != newest or ".new" in name):
            (path / name).unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Have a file, or the names in a directory, on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _create_like(old: Path, new: Path) -> None:
    """Make an empty file that the same users may read and write."""
    found = old.stat()
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        mine = os.fstat(descriptor)
        if (mine.st_uid, mine.st_gid) != (found.st_uid, found.st_gid):
            os.fchown(descriptor, found.st_uid, found.st_gid)
        os.fchmod(descriptor, found.st_mode & 0o777)
    finally:
        os.close(descriptor)
