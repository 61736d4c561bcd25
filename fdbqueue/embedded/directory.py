"""The directory of a database: its files (`docs/explanation/embedded.md`), and their permissions.

    fdbqueue.failed       a failed sync: nobody commits until the files are copied; then the copy
    fdbqueue.copy         the copy in progress, with its own -wal and -shm

A process that has the database open holds a shared lock on the directory.

The directory must belong to this user, to root, or to a user who shares it with a group of this
user: whoever can write to it can replace its files, which must be plain files.
"""

from __future__ import annotations

import io
import os
import re
import select
import sqlite3
import stat
import sys
from contextlib import suppress
from pathlib import Path

from fdbqueue.errors import UnsafeDirectory

DATABASE_FILE = "fdbqueue.sqlite"
LOG_FILE = f"{DATABASE_FILE}-wal"
INDEX_FILE = f"{DATABASE_FILE}-shm"
LOCK_FILE = "fdbqueue.lock"
FAILED_FILE = "fdbqueue.failed"
COPY_FILE = "fdbqueue.copy"

# A file object refuses a directory. An object of this type owns any descriptor, and no more of it
# is used.
if sys.platform == "linux":
    Owner = select.epoll
else:
    Owner = select.kqueue

_OUR_FILES = re.compile(r"fdbqueue\.(lock|failed|(sqlite|copy)(-\w+)?)")

_NOT_A_FILE = "this is a link or a special file, where the database has a plain file"
_REMOVE_IT = "find out who made it, then remove it, or name another directory"
_WRITABLE_BY_ALL = "every user of the system can create files here"
_TAKE_AWAY = "take that permission away (chmod o-w), or name a directory of your own below it"
_FOREIGN = "the directory belongs to another user, who does not share it with a group of yours"
_SHARE_IT = "name a directory of your own, or give this one to a group that you belong to"


def check_directory(path: Path) -> None:
    """Raise `UnsafeDirectory` if an existing directory breaks these rules; open nothing in it."""
    try:
        found = os.stat(path)
        entries = [entry for entry in os.scandir(path) if _OUR_FILES.fullmatch(entry.name)]
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        with suppress(FileNotFoundError):  # another process has just removed it
            status = entry.stat(follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                raise UnsafeDirectory(entry.path, _NOT_A_FILE, _REMOVE_IT)
    if found.st_mode & stat.S_IWOTH:
        raise UnsafeDirectory(str(path), _WRITABLE_BY_ALL, _TAKE_AWAY)
    user = os.geteuid()
    is_shared = found.st_mode & stat.S_IWGRP and found.st_gid in (os.getegid(), *os.getgroups())
    if user not in (0, found.st_uid) and found.st_uid != 0 and not is_shared:
        raise UnsafeDirectory(str(path), _FOREIGN, _SHARE_IT)


def check_opened(connection: sqlite3.Connection, file: Path) -> None:
    """Raise `UnsafeDirectory` if SQLite followed a link made after `check_directory`."""
    ((_, _, opened),) = connection.execute("PRAGMA database_list").fetchall()
    directory, name = os.path.split(opened)
    if name != file.name or not os.path.samefile(directory, file.parent):
        raise UnsafeDirectory(str(file), _NOT_A_FILE, _REMOVE_IT)


def open_file(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> io.FileIO:
    """Open a file, but no link. It closes with its last reference."""
    mode = "r+" if flags & os.O_RDWR else "r"
    flags |= os.O_CLOEXEC | os.O_NOFOLLOW
    # In one step: an exception of a signal handler between two calls would leave the file open.
    return next(map(io.FileIO, map(os.open, (path,), (flags,), (0o600,)), (mode,)))


def open_directory(path: Path) -> Owner:
    """Open a directory. It closes with its last reference."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    return next(map(Owner.fromfd, map(os.open, (path,), (flags,))))  # in one step, as above


def create_like(old: Path, new: Path) -> None:
    """Create an empty file with the permissions and, if possible, the owner of `old`.

    If its group cannot be set, only this user has access.
    """
    found = old.stat()
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with suppress(PermissionError):
            os.fchown(descriptor, -1, found.st_gid)
            os.fchmod(descriptor, found.st_mode & 0o777)
            os.fchown(descriptor, found.st_uid, -1)  # only root can; the group has to be enough
    finally:
        os.close(descriptor)
