"""The frames of SQLite's write-ahead log (https://sqlite.org/fileformat2.html)."""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

_HEADER_SIZE = 32
_FRAME_SIZE = 24 + 4096
_MAGIC = (0x377F0682, 0x377F0683)
_MAGIC_AND_SALT = struct.Struct(">I12xI")
_SIZE_AND_SALT = struct.Struct(">4xII")  # of a frame; the size is 0 except in a commit's last frame
_CHECKSUMS = struct.Struct(">II")
_CHUNK = 1 << 20  # bytes
_CHECKSUMS_AT = 16  # in a frame; they cover the eight bytes before the salts, and the page


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


def write_again(descriptor: int, synced: Extent) -> None:
    """Write everything after `synced` again as it is, so that a sync that begins later covers it.

    The caller holds SQLite's lock for writers, or no other process has the log open.
    """
    is_log, salt = header(descriptor)
    begin = end = synced if is_log and salt == synced.salt else Extent(0, 0)
    while (after := next_commit(descriptor, end)) != end:
        end = after
    at = _end(begin)
    while data := os.pread(descriptor, min(_CHUNK, _end(end) - at), at):
        at += os.pwrite(descriptor, data, at)


def _end(of: Extent) -> int:
    """Return the offset in the file at which an extent ends."""
    return _HEADER_SIZE + of.frames * _FRAME_SIZE if of.frames else 0


def is_intact(descriptor: int, end: Extent) -> bool:
    """Return whether all frames before an end can be read as they were written.

    Each frame has the checksums of itself and of all frames before it. SQLite restarts the log, and
    adds one to the salt, once all frames are in the database file, and on disk there. No commit is
    in a log that was restarted since `end`.
    """
    is_log, salt = header(descriptor)
    if not end.frames or (is_log and salt == (end.salt + 1) & 0xFFFFFFFF):
        return True
    if not is_log or salt != end.salt:
        return False
    head = os.pread(descriptor, _HEADER_SIZE, 0)
    words = ">II" if head[3] & 1 else "<II"
    sums = _add(words, head[:24], 0, 0)
    if sums != _CHECKSUMS.unpack_from(head, 24):
        return False
    for number in range(end.frames):
        frame = os.pread(descriptor, _FRAME_SIZE, _HEADER_SIZE + number * _FRAME_SIZE)
        if len(frame) < _FRAME_SIZE:
            return False
        sums = _add(words, frame[:8] + frame[24:], *sums)
        if sums != _CHECKSUMS.unpack_from(frame, _CHECKSUMS_AT):
            return False
    return True


def _add(words: str, data: bytes, first: int, second: int) -> tuple[int, int]:
    """Continue SQLite's checksums with more data."""
    for one, two in struct.iter_unpack(words, data):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return first, second


def header(descriptor: int) -> tuple[bool, int]:
    """Return whether the file starts like a write-ahead log, and its salt."""
    magic, salt = _unpack(_MAGIC_AND_SALT, descriptor, 0)
    return magic in _MAGIC, salt


def _unpack(layout: struct.Struct, descriptor: int, offset: int) -> tuple[int, int]:
    found = os.pread(descriptor, layout.size, offset)
    first, second = layout.unpack(found.ljust(layout.size, b"\0"))
    return first, second
