"""A lock among processes, which those that compete for it get in time slices.

To hand the writers' lock over costs more than a commit: the next process has to wake up, and SQLite
drops the pages that it has cached, because another process wrote. So a process that commits again
and again gets the *right of way* for a slice of some milliseconds. It takes and releases the lock
for each commit, but other processes do not try to take it meanwhile. They wait in line, and get
their slices in the order in which they came. A process that has paused, for example one that writes
now and then, goes before those that commit all the time, and gets a short slice.

The right of way is a note in the lock's file. It ends when its owner pauses, and at the end of the
slice at the latest, so a process that is stopped or killed delays others by milliseconds. Writers
are kept apart by the lock alone: only speed and fairness depend on what the file says.

Waking up costs a process almost as much as a commit. So a process in line sleeps until it is
probably the first one. It estimates that time from the number of processes before it and from how
long slices lasted recently.
"""

from __future__ import annotations

import fcntl
import os
import random
import struct
import time
from pathlib import Path

from fdbqueue.embedded.permissions import open_file
from fdbqueue.errors import DatabaseClosed

# All times are microseconds of a clock that the processes of the machine share.
_ROUND = 200_000  # in which each process gets a slice
_LONGEST_SLICE = 25_000
_PAUSE = 5_000  # after it a process goes before those that commit all the time
_SLICE_AFTER_PAUSE = 1_000
_LONGEST_GAP = 400  # between two commits of a process that keeps the right of way
_STEP = 300  # between the attempts of two processes in line: the first one wakes up meanwhile
_FIRST_GAP = 500  # until the second commit of a slice
_RECENT = 30_000  # processes compete if one of them waited within this time
_UNCHECKED = 1_000  # between two looks of a process alone whether others wait
_LATE = 5_000  # after its announced attempt a process in line is considered stopped

# The owner of the right of way, its end unless the owner commits again, and the slice's end.
_RIGHT = struct.Struct("<Qqq")
_WAIT = struct.Struct("<qq")  # when a process last waited, and how long slices lasted
_HEADER = struct.Struct("<Qqqqq")  # the right of way and these two
_PLACE = struct.Struct("<qq")  # when the wait of a process began, and when it next tries
_PLACES = 32
_LINE = struct.Struct(f"<{2 * _PLACES}q")
_WAITED_AT, _LINE_AT = _RIGHT.size, _HEADER.size


class ProcessLock:
    """A lock on a file. The death of its owner frees it.

    The caller excludes the other threads of the process.

    Args:
        path: The file, created if missing.
        takes_slices: Whether this process takes slices. A process that waits for the disk after
            each commit should not: others commit in the meantime, and share its sync.
    """

    def __init__(self, path: Path, takes_slices: bool = True) -> None:
        self._takes_slices = takes_slices
        self._file = open_file(path)
        self._descriptor = self._file.fileno()
        self._id = random.getrandbits(64)
        self._place = random.randrange(_PLACES)
        self._until = 0  # until then this process tries without reading the file
        self._slice_begin = self._slice_end = 0
        self._lasting = 0  # how long the slices of all processes lasted, a moving average
        self._released = 0  # when it last released the lock, if processes competed then
        self._has_paused = False
        self._gap = _LONGEST_GAP // 2  # a moving average
        self._began = 0  # when this process got in line; 0 if it is not in line
        self._next_attempt = 0
        self._competitors = 0
        self._is_contended = False
        if os.fstat(self._descriptor).st_size < _LINE_AT + _LINE.size:
            os.ftruncate(self._descriptor, _LINE_AT + _LINE.size)

    def close(self) -> None:
        """Close the file, which releases the lock. The lock cannot be taken any more."""
        self._descriptor = -1
        self._file.close()

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return self._descriptor < 0

    @property
    def inode(self) -> int:
        """The inode of the file, by which the system lists the owner."""
        return os.fstat(self._descriptor).st_ino

    def take(self) -> bool:
        """Take the lock unless another process has it or the right of way.

        Raises:
            DatabaseClosed: The lock was closed.
        """
        if self._descriptor < 0:
            raise DatabaseClosed()
        now = time.monotonic_ns() // 1000
        has_right = now < self._until
        if not has_right and not self._may_try(now):
            return False
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._until = 0
            return False
        if self._is_contended and self._takes_slices:
            if self._released and not self._began:
                self._gap += (min(now - self._released, 8 * _LONGEST_GAP) - self._gap) // 8
            if not has_right:
                self._begin_slice(now)
        return True

    def release(self) -> None:
        """Release the lock, and keep the right of way if processes compete."""
        if self._is_contended and self._takes_slices:
            now = self._released = time.monotonic_ns() // 1000
            if self._gap >= _LONGEST_GAP:
                if self._until:
                    self._note_right(0)
            elif now + 2 * self._gap > self._until:
                self._note_right(now + 4 * self._gap)
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def unlock(self) -> None:
        """Release the lock if it was left by an interrupt."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _may_try(self, now: int) -> bool:
        """Return whether this process may try to take the lock; note when it may, if not now."""
        header = os.pread(self._descriptor, _HEADER.size, 0)
        if len(header) < _HEADER.size:  # the file was truncated
            return True
        owner, until, slice_end, waited, lasting = _HEADER.unpack(header)
        self._lasting = min(max(lasting, 0), _LONGEST_SLICE)
        self._is_contended = 0 <= now - waited < _RECENT
        if not self._is_contended:
            self._until = now + _UNCHECKED
            self._released = 0
            return True
        if not self._began:
            self._has_paused = now - self._released >= _PAUSE
        is_given = now < until <= slice_end <= now + _LONGEST_SLICE
        if not self._takes_slices:
            self._next_attempt = until if is_given else now
            return not is_given
        is_owner = owner == self._id
        if is_owner and now < slice_end:
            return True
        rank = self._rank(now)
        if rank:
            # When it is probably the first in line: after the slices of all but one before it.
            begin = slice_end if is_given or is_owner else now
            first_at = begin + rank * _STEP + (rank - 1) * self._lasting
            self._next_attempt = min(first_at, now + _ROUND)
        elif is_given and not is_owner:
            # The owner may pause, but rarely does if slices last long.
            look_at = now + max(_STEP, self._lasting // 4)
            self._next_attempt = min(max(look_at, until), slice_end)
        else:
            self._next_attempt = now
        return self._next_attempt <= now

    def _rank(self, now: int) -> int:
        """Return how many processes are in line before this one; note how many are in line.

        A process that is not in line also looks for a free place.
        """
        places = os.pread(self._descriptor, _LINE.size, _LINE_AT)
        if len(places) < _LINE.size:
            return 0
        times = _LINE.unpack(places)
        line = {
            place: began
            for place, (began, attempt) in enumerate(zip(times[::2], times[1::2]))
            if began and -_LATE < attempt - now < 2 * _ROUND
        }
        if not self._began:
            free = [place for place in range(_PLACES) if place not in line]
            self._place = random.choice(free or range(_PLACES))
        self._competitors = sum(began != self._began for began in line.values())
        since = self._in_line_since(now)
        return sum(began < since for began in line.values())

    def _in_line_since(self, now: int) -> int:
        """Return the time that decides about the place in line.

        A process that has paused counts as if it had waited for a whole round. So it waits for one
        slice at most, not for those of all the processes that commit all the time.
        """
        return self._began or (now - _ROUND if self._has_paused else now)

    def wait(self, pause: float) -> float:
        """Get in line after an attempt that failed; return the seconds until the next one.

        Args:
            pause: The seconds to wait if the lock was taken, in spite of the right of way.
        """
        now = time.monotonic_ns() // 1000
        if self._next_attempt <= now:
            self._next_attempt = now + int(pause * 1e6)
        if self._takes_slices:
            if not self._began:
                self._began = self._in_line_since(now)
                if self._released:
                    lasted = self._released - self._slice_begin
                    self._lasting += (lasted - self._lasting) // 4
            place = _PLACE.pack(self._began, self._next_attempt)
            os.pwrite(self._descriptor, place, _LINE_AT + self._place * _PLACE.size)
        os.pwrite(self._descriptor, _WAIT.pack(now, self._lasting), _WAITED_AT)
        return (self._next_attempt - now) / 1e6

    def _begin_slice(self, now: int) -> None:
        """Leave the line, and begin a slice unless one goes on."""
        if not self._began and now < self._slice_end:
            return
        self._slice_begin = now
        longest = _SLICE_AFTER_PAUSE if self._has_paused else _LONGEST_SLICE
        self._slice_end = now + min(longest, _ROUND // (self._competitors + 1))
        self._note_right(now + _FIRST_GAP)
        if self._began:
            self._began = 0
            os.pwrite(self._descriptor, _PLACE.pack(0, 0), _LINE_AT + self._place * _PLACE.size)

    def _note_right(self, until: int) -> None:
        """Keep the right of way until this time, but not longer than the slice."""
        self._until = min(until, self._slice_end)
        right = _RIGHT.pack(self._id, self._until, self._slice_end)
        os.pwrite(self._descriptor, right, 0)
