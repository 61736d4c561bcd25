"""A directory whose changes are recorded, and whose writes and syncs fail or hang on command.

    disk = Disk(directory, tmp_path)  # tmp_path is outside of the directory
    child = subprocess.Popen([...], env=disk.environment)
    fault = disk.fail_syncs("-wal", errno.EIO, times=1)
    with disk.hanging_syncs("-wal") as fault:
        fault.wait_until_met()
        ...
    disk.kill(child)
    for entry in read_record(disk.record):
        ...

The faults concern all processes that were started with this environment, at once. `shim.c` says
what is recorded.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import hashlib
import itertools
import mmap
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_name("shim.c")
_COMPILER = os.environ.get("CC", "cc")
_ENTRY = struct.Struct("<ciiQqII")

# struct fault of shim.c, in integers of four bytes, and the size of struct failures.
_FAULTS, _SIZE, _NAME_SIZE = 64, 32, 64
_FAILURES = 4096 * 8
_CALLS, _REMAINING, _ERROR, _DELAY, _HANGS, _MET = range(16, 22)
_SYNCS, _WRITES, _LIES, _ALL = 1, 2, -1, -1

_LONGEST_WAIT = 120.0  # seconds until a fault must have been met


def need_shim() -> None:
    """Skip the test where the shim cannot be built."""
    if sys.platform != "linux":
        pytest.skip("only Linux lets a test record and disturb the calls of other processes")
    if shutil.which(_COMPILER) is None:
        pytest.skip(f"no C compiler ({_COMPILER}), which the shim over the disk's calls needs")


@functools.cache
def _library() -> Path:
    """Return the compiled shim, which is built once for each version of its source."""
    source = _SOURCE.read_bytes()
    directory = Path(tempfile.gettempdir()) / f"fdbqueue-tests-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    library = directory / f"disk-shim-{hashlib.sha256(source).hexdigest()[:16]}.so"
    if not library.exists():
        built = library.with_suffix(f".{os.getpid()}")
        flags = ["-shared", "-fPIC", "-O2", "-U_FORTIFY_SOURCE", "-Wall", "-Wextra", "-Werror"]
        command = [_COMPILER, *flags, "-o", str(built), str(_SOURCE), "-ldl", "-lpthread"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        built.replace(library)
    return library


class Disk:
    """A directory whose changes are recorded.

    Args:
        root: The directory, which exists.
        beside: An existing directory outside of it, for the record and the table of faults.
    """

    def __init__(self, root: Path, beside: Path) -> None:
        self.root = root.resolve()
        self.record = beside.resolve() / "disk.record"
        faults = beside.resolve() / "disk.faults"
        faults.write_bytes(bytes(4 * _SIZE * _FAULTS + _FAILURES))
        self.record.write_bytes(b"")
        with faults.open("rb+") as file:
            self._bytes = memoryview(mmap.mmap(file.fileno(), 0))
        self._numbers = self._bytes.cast("i")  # one number is written at once
        self._places = itertools.count()
        preloaded = [str(_library()), *os.environ.get("LD_PRELOAD", "").split()]
        self.environment = {
            **os.environ,
            "LD_PRELOAD": " ".join(preloaded),
            "DISK_SHIM_ROOT": str(self.root),
            "DISK_SHIM_FAULTS": str(faults),
            "DISK_SHIM_RECORD": str(self.record),
        }
        """The environment of a process to record and disturb."""

    # Faults

    def fail_syncs(self, name_ends_with: str, error: int = errno.EIO, times: int = _ALL) -> Fault:
        """Let the next syncs of files with such a name fail. Nothing is written by them.

        Each other open descriptor of such a file then fails once, too, as on Linux.
        """
        return self._fault(name_ends_with, _SYNCS, times, error=error)

    def fail_writes(
        self, name_ends_with: str, error: int = errno.ENOSPC, times: int = _ALL
    ) -> Fault:
        """Let the next writes and reservations of files with such a name fail."""
        return self._fault(name_ends_with, _WRITES, times, error=error)

    def slow_syncs(self, name_ends_with: str, seconds: float, times: int = _ALL) -> Fault:
        """Let syncs of files with such a name take longer."""
        return self._fault(name_ends_with, _SYNCS, times, delay=int(1000 * seconds))

    def false_syncs(self, name_ends_with: str, times: int = _ALL) -> Fault:
        """Let syncs of files with such a name succeed without doing anything."""
        return self._fault(name_ends_with, _SYNCS, times, error=_LIES)

    @contextmanager
    def hanging_syncs(
        self, name_ends_with: str, times: int = _ALL, error: int = 0
    ) -> Iterator[Fault]:
        """Let syncs of files with such a name hang until the end of the block.

        Those that hung succeed at the end, or fail with `error`.
        """
        fault = self._fault(name_ends_with, _SYNCS, times, error=error, hangs=1)
        try:
            yield fault
        finally:
            fault.end()

    def _fault(
        self,
        name_ends_with: str,
        calls: int,
        times: int,
        error: int = 0,
        delay: int = 0,
        hangs: int = 0,
    ) -> Fault:
        # Places are taken in turn, so that calls that hung can still read theirs after its end.
        first = next(self._places) % _FAULTS * _SIZE
        if self._numbers[first + _CALLS]:
            raise ValueError(f"more than {_FAULTS} faults, or one of them has never been ended")
        name = os.fsencode(name_ends_with).ljust(_NAME_SIZE, b"\0")
        self._bytes[4 * first : 4 * first + _NAME_SIZE] = name
        for at, number in (
            (_ERROR, error),
            (_DELAY, delay),
            (_HANGS, hangs),
            (_MET, 0),
            (_CALLS, calls),
            (_REMAINING, times),  # last: it puts the fault into effect
        ):
            self._numbers[first + at] = number
        return Fault(self._numbers[first : first + _SIZE])

    # The record

    def kill(self, process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
        """Kill a process, but not between a write and its entry in the record."""
        with self.record.open("rb+") as record:
            fcntl.lockf(record, fcntl.LOCK_EX)
            process.kill()
            process.wait()

    def stop(self, process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
        """Stop a child (SIGSTOP) at a moment at which it does not keep others from the record."""
        with self.record.open("rb+") as record:
            fcntl.lockf(record, fcntl.LOCK_EX)
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


class Fault:
    """A fault in the table. It may be ended, and counts the calls that it has met."""

    def __init__(self, numbers: memoryview[int]) -> None:
        self._numbers = numbers

    @property
    def met(self) -> int:
        """Return how many calls have met it."""
        return self._numbers[_MET]

    def wait_until_met(self, times: int = 1) -> None:
        """Wait until so many calls have met it."""
        deadline = time.monotonic() + _LONGEST_WAIT
        while self.met < times:
            assert time.monotonic() < deadline, f"met {self.met} times, not {times}"
            time.sleep(0.001)

    def end(self) -> None:
        """End it. Calls that hang go on."""
        self._numbers[_CALLS] = self._numbers[_REMAINING] = self._numbers[_HANGS] = 0


@dataclass(frozen=True)
class Entry:
    """A call in the record.

    Attributes:
        kind: W write, T new size, A reserved up to a size, C create, R rename, U remove, D create
            a directory, B and E begin and end of a sync, M mark.
        process: The process.
        thread: The thread.
        inode: The file; its name may change.
        at: The offset of a write; the size; the error of a sync that has ended, or 0.
        name: The name below the directory, "." for the directory itself.
        data: What was written or marked; the new name.
    """

    kind: str
    process: int
    thread: int
    inode: int
    at: int
    name: str
    data: bytes


def read_record(path: Path) -> Iterator[Entry]:
    """Yield the calls in the order of their effects."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return
        record = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    begin = 0
    while begin + _ENTRY.size <= len(record):
        kind, process, thread, inode, at, name_size, size = _ENTRY.unpack_from(record, begin)
        name_at = begin + _ENTRY.size
        data_at = name_at + name_size
        begin = data_at + size
        if begin > len(record):
            return  # the recording process was killed
        name, data = os.fsdecode(record[name_at:data_at]), record[data_at:begin]
        yield Entry(kind.decode(), process, thread, inode, at, name, data)


@functools.cache
def _marker() -> ctypes._NamedFuncPointer | None:
    return getattr(ctypes.CDLL(None), "disk_mark", None)


def mark(data: bytes) -> None:
    """Write a mark into the record of this process, at this point of the order."""
    function = _marker()
    assert function is not None, "this process was started without the shim"
    function(data, ctypes.c_size_t(len(data)))
