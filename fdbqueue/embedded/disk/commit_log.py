"""The log of recent commits, in a file that all processes of a database share.

A commit is checked against the keys written since its transaction's snapshot. The log serves only
this check, so it need not survive the machine. It is a ring in a file that stays in the system's
page cache. A process that opens the database while no other process has it open clears the log.
System calls read and write the file instead of a mapping: if the file is truncated, a system call
returns too few bytes, whereas a mapping would kill the process.

Only the holder of the writers' lock writes. A commit first announces itself and then takes its
version from the clock. It writes its entry, executes SQLite's COMMIT and publishes the entry. A
process killed in between leaves an unpublished entry. The next writer publishes the entry if it is
complete, whether or not the COMMIT took effect. A superfluous entry can cause an unnecessary
conflict. An entry can never be missing, because a commit whose entry is incomplete did not happen.
"""

from __future__ import annotations

import fcntl
import os
import random
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from fdbqueue.embedded.disk.write_ahead_log import Extent
from fdbqueue.embedded.permissions import open_file
from fdbqueue.embedded.ranges import Range, is_packed, pack_ranges, unpack_ranges
from fdbqueue.errors import DatabaseClosed, FDBError, FilesReplaced, StorageError

COMMITS_FILE = "fdbqueue.commits"

# Tail and version of the last commit; the generation of SQLite's files; the lower bound of the
# version of a commit under way, if higher than the last commit's version; the ceiling; the tail of
# what is on disk.
_HEADER = struct.Struct("<QqQqq16xQ")
_PROGRESS = struct.Struct("<Q8xQ16xII8xQ")  # of it, what a sync reads
_CONFIRMED = struct.Struct("<IIQ")
_PUBLISHED = struct.Struct("<Qq")
_GENERATION = struct.Struct("<Q")
_VERSION = struct.Struct("<q")
_EXTENT = struct.Struct("<II")
_DURABLE = struct.Struct("<Q")
_PUBLISHED_AT, _GENERATION_AT, _BEGAN_AT, _CEILING_AT = 0, 16, 24, 32
_COMMITTED_AT, _SYNCED_AT, _DURABLE_AT = 40, 48, 56
_FAILED = 1 << 63  # added to the number of a generation after a failed sync
_ENTRY = struct.Struct("<Iq")  # size and version; the version is repeated after the entry

_BEGIN = 64  # bytes before the ring
_RING = 4 << 20  # bytes
_SIZE = _BEGIN + _RING
_LARGEST_ENTRY = _RING // 8
# A writer killed while writing may have overwritten the oldest entries, by one entry at most.
_KEPT = _RING - 2 * _LARGEST_ENTRY

_LONGEST_OPENING = 10.0  # seconds to wait for another process that is opening the database


class CommitLog:
    """The write conflict ranges of the last commits, and the version of the last one.

    An offset in the log counts the bytes ever written to it; `tail` is the offset of its end. A
    reader notes the tail before it takes its snapshot. Commits that the snapshot may not contain
    start at that offset.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open_file(path)
        self._descriptor = self._file.fileno()

    def is_first(self) -> bool:
        """Wait until the database may be opened; return whether no other process has it open.

        The first process has the file to itself until it calls `join`. It must call `begin_anew`
        before that.

        Raises:
            StorageError: Another process has been opening the database for ten seconds.
        """
        deadline = time.monotonic() + _LONGEST_OPENING
        while True:
            if self._lock(fcntl.LOCK_EX):
                return True
            if self._lock(fcntl.LOCK_SH):
                if os.fstat(self._descriptor).st_size >= _SIZE:
                    return False
                # The first process died before it had created the log.
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            if time.monotonic() > deadline:
                raise StorageError(
                    str(self._path.parent),
                    "another process has been opening the database for ten seconds",
                    "find out what blocks it; resume a stopped process (kill -CONT) or end it",
                )
            time.sleep(random.uniform(0.001, 0.01))

    def join(self) -> None:
        """Join the processes that have the database open."""
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def _lock(self, kind: int) -> bool:
        try:
            fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def begin_anew(self, version: int, ceiling: int, generation: int = 0) -> None:
        """Clear the log; `version` is that of the last commit."""
        _reserve(self._descriptor, _SIZE)
        os.pwrite(self._descriptor, _HEADER.pack(0, version, generation, 0, ceiling, 0), 0)
        self.committed = self.synced = Extent(0, 0)

    def close(self) -> None:
        """Close the log. The next process to open the database may then be the first."""
        self._descriptor = -1
        self._file.close()

    def check_size(self) -> None:
        """Raise `FilesReplaced` if the file was truncated."""
        if os.lseek(self._descriptor, 0, os.SEEK_END) < _SIZE:
            raise FilesReplaced(str(self._path.parent), self._path.name)

    @property
    def published(self) -> tuple[int, int]:
        """Tail and version of the last commit that is certainly visible."""
        return self.state()[:2]

    @property
    def generation(self) -> int:
        """The generation of SQLite's files that commits are written to."""
        return self.state()[2] & ~_FAILED

    @property
    def has_failed(self) -> bool:
        """True once a sync of the files of this generation failed: no process may write them."""
        return self.state()[2] >= _FAILED

    def note_failure(self, generation: int) -> None:
        """Let no process commit to the files of this generation any more."""
        if self.state()[2] == generation:
            self._set_generation(generation | _FAILED)

    def begin_generation(self, generation: int) -> None:
        """Let all processes commit to new files, which are on disk with all earlier commits.

        The caller holds the writers' lock.
        """
        durable = _DURABLE.pack(self.published[0])
        os.pwrite(self._descriptor, durable, _DURABLE_AT)
        self.committed = Extent(0, 0)  # the new write-ahead log has no commits
        self._set_generation(generation)

    def _set_generation(self, generation: int) -> None:
        os.pwrite(self._descriptor, _GENERATION.pack(generation), _GENERATION_AT)

    def state(self) -> tuple[int, int, int, int, int, int]:
        """Return the header: tail, version, generation, lower bound, ceiling and durable tail.

        Tail and version are those of `published`; the generation is that of SQLite's files to read
        it in. No files have the generation that this returns after a failed sync. A lower bound
        above the version is the least version that the commit under way can get. Otherwise no
        commit is under way, and every later commit takes its version from the clock after this
        call. All versions ever returned to a client are below the ceiling. What was published
        before the durable tail is on disk, if commits wait for the disk at all.
        """
        if self._descriptor < 0:
            raise DatabaseClosed()
        header = os.pread(self._descriptor, _HEADER.size, 0)
        if len(header) < _HEADER.size:
            raise FilesReplaced(str(self._path.parent), self._path.name)
        return _HEADER.unpack(header)

    def recover(self) -> tuple[int, int, int, int]:
        """Publish the commit of a killed writer; return tail, version, generation and ceiling.

        The caller must hold the writers' lock.
        """
        tail, version, generation, began, ceiling, _ = self.state()
        if began > version:
            size, written = self._entry(tail)
            if written >= began and self._is_complete(tail, size, written):
                tail, version = tail + _ENTRY.size + size + _VERSION.size, written
                self.publish(tail, version)
            else:
                self.begin(0)  # no commit is under way
        return tail, version, generation, ceiling

    def _is_complete(self, tail: int, size: int, version: int) -> bool:
        """Return whether there is an entry at the tail, and not the remains of older ones.

        The ring is never cleared, so any bytes may be there: the sizes must agree as well.
        """
        if not 4 <= size <= _LARGEST_ENTRY:
            return False
        entry = self._get(tail + _ENTRY.size, size + _VERSION.size)
        return _VERSION.unpack_from(entry, size)[0] == version and is_packed(entry[:size])

    def begin(self, version: int) -> None:
        """Announce a commit, whose version will be this one or a later one."""
        os.pwrite(self._descriptor, _VERSION.pack(version), _BEGAN_AT)

    def raise_ceiling(self, version: int) -> None:
        """Store a new ceiling, which the database already contains."""
        os.pwrite(self._descriptor, _VERSION.pack(version), _CEILING_AT)

    def progress(self) -> tuple[int, int, Extent, int]:
        """Return tail, generation as of `state`, `committed`, and the durable tail."""
        found = self._read(_PROGRESS.size, 0)
        tail, generation, salt, frames, durable = _PROGRESS.unpack(found)
        return tail, generation, Extent(salt, frames), durable

    def confirm(self, end: Extent, tail: int) -> None:
        """Store up to where SQLite's log, and the commits, are on disk."""
        os.pwrite(self._descriptor, _CONFIRMED.pack(*end, tail), _SYNCED_AT)

    @property
    def committed(self) -> Extent:
        """The end of the last durable commit in SQLite's write-ahead log."""
        return Extent(*_EXTENT.unpack(self._read(_EXTENT.size, _COMMITTED_AT)))

    @committed.setter
    def committed(self, end: Extent) -> None:
        os.pwrite(self._descriptor, _EXTENT.pack(*end), _COMMITTED_AT)

    @property
    def synced(self) -> Extent:
        """The part of SQLite's write-ahead log that is on disk; no frames if unknown.

        The first process to open the database reads the value that the last process stored, and
        that reached the disk at some time.
        """
        if os.lseek(self._descriptor, 0, os.SEEK_END) < _BEGIN:
            return Extent(0, 0)
        return Extent(*_EXTENT.unpack(self._read(_EXTENT.size, _SYNCED_AT)))

    @synced.setter
    def synced(self, end: Extent) -> None:
        os.pwrite(self._descriptor, _EXTENT.pack(*end), _SYNCED_AT)

    def withdraw_synced(self) -> None:
        """Forget how much is on disk, and let the disk forget it: SQLite may remove its log now.

        After a power failure an old note would otherwise claim that commits are missing.
        """
        synced = self.synced
        if synced.frames:
            self.synced = Extent(0, 0)
            try:
                os.fsync(self._descriptor)
            except OSError:
                self.synced = synced  # so that the next call tries it again
                raise

    def append(self, tail: int, version: int, writes: list[bytes]) -> int:
        """Write the entry of a commit that is about to happen; return the tail after it.

        Args:
            tail: The tail of the log.
            version: The version of the commit.
            writes: Its write conflict ranges, as `pack_ranges` takes them.

        Raises:
            FilesReplaced: The file was truncated.
        """
        if os.lseek(self._descriptor, 0, os.SEEK_END) < _SIZE:
            raise FilesReplaced(str(self._path.parent), self._path.name)
        packed = pack_ranges(writes)
        if len(packed) > _LARGEST_ENTRY:
            # One range around all writes may cause unnecessary conflicts, but misses none.
            begins, ends = zip(*unpack_ranges(packed))
            packed = pack_ranges([min(begins), max(ends)])
        entry = _ENTRY.pack(len(packed), version) + packed + _VERSION.pack(version)
        at = tail % _RING
        room = _RING - at
        os.pwrite(self._descriptor, entry[:room], _BEGIN + at)
        if len(entry) > room:
            os.pwrite(self._descriptor, entry[room:], _BEGIN)
        return tail + len(entry)

    def publish(self, tail: int, version: int) -> None:
        """Store that a commit took effect."""
        os.pwrite(self._descriptor, _PUBLISHED.pack(tail, version), _PUBLISHED_AT)

    def between(self, offset: int, tail: int) -> Iterator[Range]:
        """Yield the ranges written by the commits between two offsets.

        Raises:
            FDBError: 1007, the log no longer has them, or they were overwritten by a process with
                another lock, because the lock's file was replaced.
        """
        if tail - offset > _KEPT:
            raise FDBError(1007)
        # All entries in one read: another process may have committed a hundred times.
        entries = self._get(offset, tail - offset)
        if self.published[0] - offset > _KEPT:  # without the lock, writers may have continued
            raise FDBError(1007)
        at = 0
        try:
            while at < len(entries):
                size, _ = _ENTRY.unpack_from(entries, at)
                yield from unpack_ranges(entries, at + _ENTRY.size)
                at += _ENTRY.size + size + _VERSION.size
        except struct.error:
            raise FDBError(1007) from None

    def version_after(self, offset: int) -> int:
        """Return the version of the first commit since an offset, which must have one."""
        return self._entry(offset)[1]

    def _entry(self, offset: int) -> tuple[int, int]:
        size, version = _ENTRY.unpack(self._get(offset, _ENTRY.size))
        if self.published[0] - offset > _KEPT:  # checked after the read: writers may continue
            raise FDBError(1007)
        return size, version

    def _get(self, offset: int, size: int) -> bytes:
        at = offset % _RING
        room = _RING - at
        data = self._read(min(size, room), _BEGIN + at)
        return data if size <= room else data + self._read(size - room, _BEGIN)

    def _read(self, size: int, at: int) -> bytes:
        if self._descriptor < 0:
            raise DatabaseClosed()
        data = os.pread(self._descriptor, size, at)
        if len(data) < size:
            raise FilesReplaced(str(self._path.parent), self._path.name)
        return data


def _reserve(descriptor: int, size: int) -> None:
    """Allocate the blocks of the file now, so that a full disk cannot interrupt a commit."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.pwrite(descriptor, bytes(size), 0)
