"""The log of recent commits, in a file that all processes of a database share.

A commit is checked against what was written since its transaction's snapshot. That is all the log
is for, so it need not outlive the machine: it is a ring in a file that stays in the system's page
cache, begun anew by whoever opens the database while nobody else has it open. It is read and
written by system calls, not mapped: if something truncates the file, a mapping would kill the
process where a call returns too few bytes.

Only who has the writers' lock writes. The order of a commit is: say that one begins, and take its
version from the clock after that; write the entry; SQLite's COMMIT; publish. A process killed in
between leaves an entry that is not published; the next writer publishes it if it is whole, whether
its COMMIT took place or not. An entry too many can cause a conflict that was none; an entry too few
cannot happen, for what is not whole was not committed.
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
from fdbqueue.embedded.ranges import Range, pack_ranges, unpack_ranges
from fdbqueue.errors import FDBError, FilesReplaced, StorageError

__all__ = ["CommitLog"]

# Tail and version of the last commit; the generation of SQLite's files; the version from which on
# another commit is under way, if it is higher than the last one's; the ceiling.
_HEADER = struct.Struct("<QqQqq")
_NEWEST = struct.Struct("<QqQ")
_PUBLISHED = struct.Struct("<Qq")
_GENERATION = struct.Struct("<Q")
_VERSION = struct.Struct("<q")
_EXTENT = struct.Struct("<II")
_PUBLISHED_AT, _GENERATION_AT, _BEGAN_AT, _CEILING_AT = 0, 16, 24, 32
_COMMITTED_AT, _SYNCED_AT = 40, 48
_ENTRY = struct.Struct("<Iq")  # size, version; the version stands behind the entry once more

_BEGIN = 64  # bytes before the ring
_RING = 4 << 20  # bytes
_SIZE = _BEGIN + _RING
_LARGEST_ENTRY = _RING // 8
# A writer killed in the middle may have overwritten the oldest entries by as much as one entry has.
_KEPT = _RING - 2 * _LARGEST_ENTRY

_LONGEST_OPENING = 10.0  # seconds for which to wait for a process that is at opening the database


class CommitLog:
    """The write conflict ranges of the last commits, and the version of the last one.

    A place in the log (`tail`) is the number of bytes ever written to it; what a reader noted as
    tail before it took its snapshot is where the commits begin that it may not have seen.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def is_first(self) -> bool:
        """Wait until the database may be opened; whether nobody else has it open.

        The first one has the file to itself until it calls `join`, and calls `begin_anew` before.
        """
        deadline = time.monotonic() + _LONGEST_OPENING
        while True:
            if self._lock(fcntl.LOCK_EX):
                return True
            if self._lock(fcntl.LOCK_SH):
                if os.fstat(self._descriptor).st_size >= _SIZE:
                    return False
                # Whoever was first died before it had made the log.
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            if time.monotonic() > deadline:
                raise StorageError(
                    str(self._path.parent),
                    "another process has been opening the database for ten seconds",
                    "see what stops it; a stopped process can be continued (kill -CONT) or ended",
                )
            time.sleep(random.uniform(0.001, 0.01))

    def join(self) -> None:
        """Be one of those that have the database open."""
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def _lock(self, kind: int) -> bool:
        try:
            fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def begin_anew(self, version: int, ceiling: int, generation: int = 0) -> None:
        """Forget all entries; `version` is that of the last commit."""
        _reserve(self._descriptor, _SIZE)
        self._write(_HEADER.pack(0, version, generation, 0, ceiling), 0)
        self.committed = self.synced = Extent(0, 0)

    def close(self) -> None:
        """Let the next one be first."""
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)

    def check_size(self) -> None:
        """Raise `FilesReplaced` if the file was truncated."""
        if os.lseek(self._descriptor, 0, os.SEEK_END) < _SIZE:
            raise FilesReplaced(str(self._path.parent), self._path.name)

    @property
    def published(self) -> tuple[int, int]:
        """The tail and the version of the last commit that is sure to be visible."""
        return self.newest[:2]

    @property
    def newest(self) -> tuple[int, int, int]:
        """The same, and the generation of SQLite's files that has all that is visible."""
        return _NEWEST.unpack(self._read(_NEWEST.size, 0))

    @property
    def generation(self) -> int:
        """The generation of SQLite's files in which commits take place."""
        return self.newest[2]

    @generation.setter
    def generation(self, generation: int) -> None:
        self._write(_GENERATION.pack(generation), _GENERATION_AT)

    def state(self) -> tuple[int, int, int, int | None, int]:
        """`newest`, and the version from which on another commit is under way.

        If none is, `None`: then each later one has a version from the clock of a moment after this
        call. Last, the ceiling: all versions that anybody was told of are below it.
        """
        tail, version, generation, began, ceiling = _HEADER.unpack(self._read(_HEADER.size, 0))
        return tail, version, generation, began if began > version else None, ceiling

    def recover(self) -> tuple[int, int, int, int]:
        """Publish what a killed writer left; return `newest`, and the ceiling.

        With the writers' lock.
        """
        tail, version, generation, began, ceiling = self.state()
        if began is not None:
            size, written = self._entry(tail)
            end = tail + _ENTRY.size + size + _VERSION.size
            if (
                written >= began
                and _VERSION.unpack(self._get(end - _VERSION.size, 8))[0] == written
            ):
                tail, version = end, written
                self.publish(tail, version)
            else:
                self.give_up()
        return tail, version, generation, ceiling

    def begin(self, version: int) -> None:
        """Say that a commit is under way, whose version will be this one or a later one."""
        self._write(_VERSION.pack(version), _BEGAN_AT)

    def give_up(self) -> None:
        """Say that no commit is under way any more."""
        self._write(_VERSION.pack(0), _BEGAN_AT)

    def raise_ceiling(self, version: int) -> None:
        """Note a ceiling that is stored."""
        self._write(_VERSION.pack(version), _CEILING_AT)

    @property
    def committed(self) -> Extent:
        """Where the last durable commit ends in SQLite's write-ahead log."""
        return Extent(*_EXTENT.unpack(self._read(_EXTENT.size, _COMMITTED_AT)))

    @committed.setter
    def committed(self, end: Extent) -> None:
        self._write(_EXTENT.pack(*end), _COMMITTED_AT)

    @property
    def synced(self) -> Extent:
        """How much of SQLite's write-ahead log is on disk; no frames if that is not known.

        The first process to open the database finds what the last one noted.
        """
        if os.lseek(self._descriptor, 0, os.SEEK_END) == 0:
            return Extent(0, 0)
        return Extent(*_EXTENT.unpack(self._read(_EXTENT.size, _SYNCED_AT)))

    @synced.setter
    def synced(self, end: Extent) -> None:
        self._write(_EXTENT.pack(*end), _SYNCED_AT)

    def append(self, tail: int, version: int, writes: list[tuple[bytes, bytes | None]]) -> int:
        """Write the entry of a commit that is about to take place; where the log will end."""
        packed = pack_ranges(writes)
        if len(packed) > _LARGEST_ENTRY:
            # One range around all of them: more conflicts than there are, never less.
            packed = pack_ranges(
                [(min(b for b, _ in writes), max(e or b + b"\0" for b, e in writes))]
            )
        entry = _ENTRY.pack(len(packed), version) + packed + _VERSION.pack(version)
        self._put(tail, entry)
        return tail + len(entry)

    def publish(self, tail: int, version: int) -> None:
        """Say that the commit took place."""
        self._write(_PUBLISHED.pack(tail, version), _PUBLISHED_AT)

    def since(self, place: int) -> Iterator[Range]:
        """What commits wrote since a place; raises 1007 if that is no longer known.

        With the writers' lock.
        """
        tail = self.published[0]
        while place < tail:
            size, _ = self._entry(place)
            yield from unpack_ranges(self._get(place + _ENTRY.size, size))
            place += _ENTRY.size + size + _VERSION.size

    def version_after(self, place: int) -> int:
        """The version of the first commit since a place; there is one."""
        return self._entry(place)[1]

    def _entry(self, place: int) -> tuple[int, int]:
        size, version = _ENTRY.unpack(self._get(place, _ENTRY.size))
        if self.published[0] - place > _KEPT:  # looked at afterwards: writers may go on
            raise FDBError(1007)
        return size, version

    def _put(self, place: int, data: bytes) -> None:
        at = place % _RING
        room = _RING - at
        self._write(data[:room], _BEGIN + at)
        if len(data) > room:
            self._write(data[room:], _BEGIN)

    def _get(self, place: int, size: int) -> bytes:
        at = place % _RING
        room = _RING - at
        data = self._read(min(size, room), _BEGIN + at)
        return data if size <= room else data + self._read(size - room, _BEGIN)

    def _read(self, size: int, at: int) -> bytes:
        if self._descriptor < 0:
            raise FDBError(1025)
        data = os.pread(self._descriptor, size, at)
        if len(data) < size:
            raise FilesReplaced(str(self._path.parent), self._path.name)
        return data

    def _write(self, data: bytes, at: int) -> None:
        os.pwrite(self._descriptor, data, at)


def _reserve(descriptor: int, size: int) -> None:
    """Give the file its blocks now, so that a full disk stops no commit in the middle."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.pwrite(descriptor, bytes(size), 0)
