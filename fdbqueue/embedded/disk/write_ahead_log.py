"""The length of SQLite's write-ahead log, from its frames (https://sqlite.org/fileformat2.html)."""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

__all__ = ["Extent", "header", "next_commit"]

_HEADER_SIZE = 32
_FRAME_SIZE = 24 + 4096
_MAGIC = (0x377F0682, 0x377F0683)
_MAGIC_AND_SALT = struct.Struct(">I12xI")
_SIZE_AND_SALT = struct.Struct(">4xII")  # of a frame; the size is 0 except in a commit's last frame


class Extent(NamedTuple):
    """A length of the write-ahead log, in frames. The salt changes when SQLite restarts the log."""

    salt: int
    frames: int


def next_commit(descriptor: int, end: Extent) -> Extent:
    """Return the end of the first commit after `end`. The caller has just committed.

    It is the newest commit, unless a writer was killed before it could note its own. Later frames
    are not read: those after the newest commit may be the remains of a killed writer. The caller
    holds the writers' lock.
    """
    is_log, salt = header(descriptor)
    if not is_log:
        return end
    if salt != end.salt:
        end = Extent(salt, 0)  # SQLite restarted the log
    frame = end.frames
    while True:
        size, frame_salt = _unpack(_SIZE_AND_SALT, descriptor, _HEADER_SIZE + frame * _FRAME_SIZE)
        if frame_salt != salt:
            return end
        frame += 1
        if size:
            return Extent(salt, frame)


def header(descriptor: int) -> tuple[bool, int]:
    """Return whether the file starts like a write-ahead log, and its salt."""
    magic, salt = _unpack(_MAGIC_AND_SALT, descriptor, 0)
    return magic in _MAGIC, salt


def _unpack(layout: struct.Struct, descriptor: int, offset: int) -> tuple[int, int]:
    found = os.pread(descriptor, layout.size, offset)
    first, second = layout.unpack(found.ljust(layout.size, b"\0"))
    return first, second
