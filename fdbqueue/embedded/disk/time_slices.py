"""Time slices of the writers' lock, for processes that compete for it.

To hand the lock over costs more than a commit: the next process has to wake up, and SQLite drops
the pages that it has cached, because another process wrote. So a process that commits again and
again gets the *right of way* for a slice of some milliseconds. It takes and releases the lock for
each commit, but other processes do not try to take it meanwhile. They wait in line, and get their
slices in the order in which they came.

The right of way is a note in the lock's file. It ends when its owner pauses, and at the end of the
slice at the latest, so a process that is stopped or killed delays others by milliseconds. Writers
are kept apart by the lock alone: only speed and fairness depend on what the file says.
"""

from __future__ import annotations

import os
import random
import struct
import time

__all__ = ["TimeSlices"]

# All times are microseconds of a clock that the processes of the machine share.
_ROUND = 40_000  # in which each process gets a slice
_LONGEST_SLICE = 8_000
_LONGEST_GAP = 400  # between two commits of a process that keeps the right of way
_STEP = 300  # between the attempts of two processes in line: the first one wakes up meanwhile
_LOOK = 500  # between two looks of the first in line whether the owner has paused
_RECENT = 20_000  # processes compete if one of them waited within this time
_LATE = 5_000  # after its announced attempt a process in line is considered stopped

# The owner of the right of way, its end unless the owner commits again, and the slice's end.
_RIGHT = struct.Struct("<Qqq")
_HEADER = struct.Struct("<Qqqq")  # and when a process last waited
_TIME = struct.Struct("<q")
_PLACE = struct.Struct("<qq")  # when the wait of a process began, and when it next tries
_PLACES = 32
_LINE = struct.Struct(f"<{2 * _PLACES}q")
_WAITED_AT, _LINE_AT = _RIGHT.size, _HEADER.size


class TimeSlices:
    """The right of way among the processes that share a lock file, as seen by one of them.

    The caller excludes the other threads of the process.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._id = random.getrandbits(64)
        self._place_at = _LINE_AT + random.randrange(_PLACES) * _PLACE.size
        self._slice_end = 0
        self._released = 0
        self._gap = _LONGEST_GAP // 2  # a moving average
        self._began = 0  # when this process got in line; 0 if it is not in line
        self._next_attempt = 0
        self._competitors = 0
        self.are_needed = False
        if os.fstat(descriptor).st_size < _LINE_AT + _LINE.size:
            os.ftruncate(descriptor, _LINE_AT + _LINE.size)

    def may_try(self) -> bool:
        """Return whether this process may try to take the lock now."""
        now = time.monotonic_ns() // 1000
        header = os.pread(self._descriptor, _HEADER.size, 0)
        if len(header) < _HEADER.size:
            return True  # the file was truncated
        owner, until, slice_end, waited = _HEADER.unpack(header)
        self.are_needed = 0 <= now - waited < _RECENT
        if not self.are_needed:
            return True
        if self._released:
            self._gap += (min(now - self._released, 8 * _LONGEST_GAP) - self._gap) // 8
            self._released = 0
        is_owner = owner == self._id
        if is_owner and now < slice_end:
            return True
        rank = self._rank(now)
        if is_owner:
            self._next_attempt = slice_end + (rank + 1) * _STEP if rank else now
        elif not now < until <= now + _LONGEST_SLICE:
            self._next_attempt = now + rank * _STEP
        elif rank:
            self._next_attempt = slice_end + rank * _STEP
        else:
            self._next_attempt = min(max(until, now + _LOOK), slice_end)
        return self._next_attempt <= now

    def _rank(self, now: int) -> int:
        """Return how many processes are in line before this one; note how many are in line."""
        places = os.pread(self._descriptor, _LINE.size, _LINE_AT)
        if len(places) < _LINE.size:
            return 0
        times = _LINE.unpack(places)
        line = [
            began
            for began, attempt in zip(times[::2], times[1::2])
            if began and -_LATE < attempt - now < _RECENT
        ]
        self._competitors = sum(began != self._began for began in line)
        return sum(began < (self._began or now) for began in line)

    def wait(self, pause: float) -> float:
        """Get in line after an attempt that failed; return the seconds until the next one.

        Args:
            pause: The seconds to wait if the lock was taken, in spite of the right of way.
        """
        now = time.monotonic_ns() // 1000
        if not self._began:
            self._began = now
        if self._next_attempt <= now:
            self._next_attempt = now + int(pause * 1e6)
        os.pwrite(self._descriptor, _PLACE.pack(self._began, self._next_attempt), self._place_at)
        os.pwrite(self._descriptor, _TIME.pack(now), _WAITED_AT)
        return (self._next_attempt - now) / 1e6

    def begin(self) -> None:
        """Leave the line, and begin a slice unless one goes on. The caller has taken the lock."""
        now = time.monotonic_ns() // 1000
        if not self._began and now < self._slice_end:
            return
        self._slice_end = now + min(_LONGEST_SLICE, _ROUND // (self._competitors + 1))
        os.pwrite(self._descriptor, _RIGHT.pack(self._id, now + _LOOK, self._slice_end), 0)
        if self._began:
            self._began = 0
            os.pwrite(self._descriptor, _PLACE.pack(0, 0), self._place_at)

    def extend(self) -> None:
        """Note the right of way. The caller is about to release the lock."""
        now = self._released = time.monotonic_ns() // 1000
        until = min(now + 2 * self._gap, self._slice_end) if self._gap < _LONGEST_GAP else 0
        os.pwrite(self._descriptor, _RIGHT.pack(self._id, until, self._slice_end), 0)
