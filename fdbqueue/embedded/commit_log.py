"""The log of recent commits, in memory that all processes of a database share.

A commit is checked against what was written since its transaction's snapshot. That is all the log
is for, so it need not outlive the machine: it is a ring in a mapped file, begun anew by whoever
opens the database while nobody else has it open.

Only who has the writers' lock writes, or reads entries. The order of a commit is: write the entry;
note it as written; SQLite's COMMIT; publish. A process killed in between leaves an entry that is
written and not published; the next writer publishes it, whether its COMMIT took place or not. An
entry too many can cause a conflict that was none; an entry too few cannot happen.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from fdbqueue.embedded.ranges import Range, pack_ranges, unpack_ranges
from fdbqueue.errors import FDBError

__all__ = ["CommitLog"]

_HEADER = struct.Struct("<QqQqq")  # tail, last version; written tail, written version; ceiling
_PUBLISHED = struct.Struct("<Qq")
_WRITTEN = struct.Struct("<Qq")
_CEILING = struct.Struct("<q")
_ENTRY = struct.Struct("<Iq")  # size, version

_BEGIN = 64  # bytes before the ring
_RING = 4 << 20  # bytes
_LARGEST_ENTRY = _RING // 8
# A writer killed in the middle may have overwritten the oldest entries by as much as one entry has.
_KEPT = _RING - 2 * _LARGEST_ENTRY


class CommitLog:
    """The write conflict ranges of the last commits, and the version of the last one.

    A place in the log (`tail`) is the number of bytes ever written to it; what a reader noted as
    tail before it took its snapshot is where the commits begin that it may not have seen.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if os.fstat(self._descriptor).st_size < _BEGIN + _RING:
                _reserve(self._descriptor, _BEGIN + _RING)
            self._map = mmap.mmap(self._descriptor, _BEGIN + _RING)
        except BaseException:
            os.close(self._descriptor)
            raise

    def is_first(self) -> bool:
        """Whether nobody else has the database open; asked once, under the writers' lock."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            first = False
        else:
            first = True
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)
        return first

    def join(self) -> None:
        """Be one of those that have the database open."""
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def begin_anew(self, version: int, ceiling: int) -> None:
        """Forget all entries; `version` is that of the last commit."""
        _HEADER.pack_into(self._map, 0, 0, version, 0, version, ceiling)

    def close(self) -> None:
        """Let the next one be first. The map stays for threads that still look at it."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # the map has the descriptor too
        os.close(self._descriptor)

    @property
    def published(self) -> tuple[int, int]:
        """The tail and the version of the last commit that is sure to be visible."""
        return _PUBLISHED.unpack_from(self._map, 0)

    @property
    def ceiling(self) -> int:
        """The version below which all versions are that anybody was told of."""
        return int(_CEILING.unpack_from(self._map, 32)[0])

    @ceiling.setter
    def ceiling(self, version: int) -> None:
        _CEILING.pack_into(self._map, 32, version)

    def recover(self) -> tuple[int, int]:
        """Publish what a killed writer left; the tail and the version of the last commit."""
        written = self._map[16:32]
        if written != self._map[:16]:
            self._map[:16] = written
        return self.published

    def append(self, tail: int, version: int, writes: list[tuple[bytes, bytes | None]]) -> int:
        """Write the entry of a commit that is about to take place; where the log will end."""
        packed = pack_ranges(writes)
        if len(packed) > _LARGEST_ENTRY:
            # One range around all of them: more conflicts than there are, never less.
            packed = pack_ranges(
                [(min(b for b, _ in writes), max(e or b + b"\0" for b, e in writes))]
            )
        entry = _ENTRY.pack(len(packed), version) + packed
        self._put(tail, entry)
        _WRITTEN.pack_into(self._map, 16, tail + len(entry), version)
        return tail + len(entry)

    def publish(self) -> None:
        """Say that the commit took place."""
        self._map[:16] = self._map[16:32]

    def since(self, place: int) -> Iterator[Range]:
        """What commits wrote since a place; raises 1007 if that is no longer known."""
        tail = self.published[0]
        while place < tail:
            size, _ = self._entry(place)
            yield from unpack_ranges(self._get(place + _ENTRY.size, size))
            place += _ENTRY.size + size

    def version_after(self, place: int) -> int:
        """The version of the first commit since a place; there is one."""
        return self._entry(place)[1]

    def _entry(self, place: int) -> tuple[int, int]:
        if self.published[0] - place > _KEPT:
            raise FDBError(1007)
        size, version = _ENTRY.unpack(self._get(place, _ENTRY.size))
        return size, version

    @property
    def unpublished(self) -> bool:
        """Whether a commit is on its way, or was left by a writer that was killed."""
        return self._map[16:32] != self._map[:16]

    def _put(self, place: int, data: bytes) -> None:
        at = _BEGIN + place % _RING
        room = _BEGIN + _RING - at
        if len(data) <= room:
            self._map[at : at + len(data)] = data
        else:
            self._map[at : at + room] = data[:room]
            self._map[_BEGIN : _BEGIN + len(data) - room] = data[room:]

    def _get(self, place: int, size: int) -> bytes:
        at = _BEGIN + place % _RING
        room = _BEGIN + _RING - at
        data = self._map[at : at + min(size, room)]
        return data if size <= room else data + self._map[_BEGIN : _BEGIN + size - room]


def _reserve(descriptor: int, size: int) -> None:
    """Give the file its blocks now: a write to a mapped hole on a full disk kills the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.pwrite(descriptor, bytes(size), 0)
