"""Worker processes: how each runs its worker, and how a parent supervises them.

The end of the socket to its parent tells a child to stop. A child that ends without a report has
died.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fdbqueue.database.binding import database_name
from fdbqueue.database.clock import retry_delay
from fdbqueue.types import Database
from fdbqueue.worker.endings import WorkerReport
from fdbqueue.worker.functions.coroutines import IN_THREAD
from fdbqueue.worker.presence import check_address
from fdbqueue.worker.shutdown import Shutdown, stopping_on_signals
from fdbqueue.worker.telemetry import Log
from fdbqueue.worker.timeouts import has_hung

if TYPE_CHECKING:
    from fdbqueue.worker.worker import Worker

_log = Log("fdbqueue.worker")

_VARIABLE = "FDBQUEUE_SUPERVISOR"
_STATM = Path("/proc/self/statm")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_LOOK = 0.1  # seconds between looks at processes, and at threads that go on
_MEMORY = 1.0  # seconds between looks at the memory of the process
_LAST = 5.0  # seconds that a process has to kill what it runs, and itself
_FIRST = 1.0  # seconds from the death of a process to the start of another one, at first
_LONGEST = 60.0  # seconds from a death to that start, at most
_HEALTHY = 60.0  # seconds after whose life a death is the first one again
_PATIENCE = 5.0  # seconds beyond the grace period after which a process is killed

# Taken at once, so that no program that this one runs takes itself for a child.
_given = os.environ.pop(_VARIABLE, None)


class Parent:
    """The parent of this process, which supervises it."""

    def __init__(self, descriptor: int, number: int) -> None:
        self.number = number
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)

    def stop_with(self, stop: Callable[[], object], kill: Callable[[], object]) -> None:
        """Call `stop` when the parent wants so, or has died; end when it kills."""

        def wait() -> None:
            self._socket.recv(1)
            stop()
            if self._socket.recv(1):
                kill()
                os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=wait, daemon=True).start()

    def report(self, report: WorkerReport, *, is_drained: bool) -> None:
        """Send the parent the report, and whether nothing is left to do."""
        message = {"is_drained": is_drained, "report": asdict(report)}
        with suppress(OSError):  # the parent has died
            self._socket.sendall(json.dumps(message).encode())


parent = None if _given is None else Parent(*map(int, _given.split(":")))
"""The parent of this process; `None` if it is not supervised."""


def run_worker(
    worker: Worker, shutdown: Shutdown, *, drain: bool, health: int | str | None
) -> WorkerReport:
    """Run the worker of this process, for its parent if it has one."""
    if parent is not None:
        parent.stop_with(worker.stop, shutdown.kill)
    report = worker.run(drain=drain, health=own_health(health))
    if parent is not None:
        parent.report(report, is_drained=drain and not shutdown.stop.is_set)
    return report


def own_health(health: int | str | None) -> int | str | None:
    """Return where this process answers health checks, if it is the first."""
    return health if is_first() else None


def is_first() -> bool:
    """Return whether this process is the first of several, or the only one."""
    return parent is None or parent.number == 1


def summary_of(db: Database, queues: Iterable[str], jobs: Iterable[str], processes: int) -> str:
    """Return a line for the log."""
    return (
        f"working on {database_name(db)} (--db, $FDBQ_DB or App.bind choose another database): "
        f"queues {', '.join(queues)}; jobs {', '.join(jobs)}; processes {processes}"
    )


def exit_after_work(code: int) -> NoReturn:
    """Exit, although threads may hang."""
    in_thread = [each for each in threading.enumerate() if each.name.startswith(IN_THREAD)]
    if has_hung() or any(map(_goes_on, in_thread)):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _goes_on(thread: threading.Thread) -> bool:
    thread.join(_LOOK)  # most have no function left to call, and end at once
    return thread.is_alive()


def limit_of(
    max_jobs: int | None, max_memory: int | None
) -> Callable[[WorkerReport], str | None] | None:
    """Return a function that says why a worker ends by itself, or `None`."""
    if (max_jobs, max_memory, parent) == (None, None, None):
        return None
    if max_memory is not None and not _STATM.exists():
        raise ValueError("the memory of a process is known on Linux only; leave out max_memory")
    looked_at = 0.0

    def reason(report: WorkerReport) -> str | None:
        nonlocal looked_at
        jobs = report.done + report.failed + report.lost
        if max_jobs is not None and jobs >= max_jobs:
            return f"{jobs:,} jobs have ended, of at most {max_jobs:,}"
        if parent is not None and has_hung():
            return "a job hangs, whose thread only the end of the process ends"
        now = time.monotonic()
        if max_memory is not None and now - looked_at >= _MEMORY:
            looked_at = now
            memory = int(_STATM.read_text().split()[1]) * _PAGE
            if memory > max_memory:
                return f"its memory has grown to {memory:,} bytes, of at most {max_memory:,}"
        return None

    return reason


@dataclass
class _Slot:
    number: int
    process: subprocess.Popen[bytes] | None = None
    socket: socket.socket | None = None
    began: float = 0.0
    due: float = 0.0
    deaths: int = 0
    is_over: bool = False
    is_told: bool = False

    def send(self, message: bytes) -> None:
        """Send a byte to stop the process, or two to kill it and what it runs."""
        if self.socket is not None:
            with suppress(OSError):  # it has ended
                self.socket.send(message)


class Supervisor:
    """Processes that run the same command, each with one worker."""

    def __init__(self, command: Sequence[str], n: int, grace: float) -> None:
        self._command = command
        self._grace = grace
        self._slots = [_Slot(number) for number in range(1, n + 1)]
        self._report = WorkerReport()
        self._stopped_at: float | None = None

    def stop(self) -> None:
        """Stop all processes, as SIGTERM stops a worker."""
        if self._stopped_at is None:
            self._stopped_at = time.monotonic()

    def kill(self, patience: float = _LAST) -> None:
        """Kill all processes and what they run."""
        for slot in self._slots:
            slot.send(b"!!")
        end = time.monotonic() + patience
        for slot in self._slots:
            if slot.process is not None:
                with suppress(subprocess.TimeoutExpired):
                    slot.process.wait(max(0, end - time.monotonic()))
                slot.process.kill()

    def run(self, health: int | str | None = None) -> WorkerReport:
        """Run the processes until a signal or `stop`, or until none has more to do."""
        check_address(health)
        try:
            with stopping_on_signals(self.stop, "processes", lambda: len(self._slots), self.kill):
                while not all(slot.is_over for slot in self._slots):
                    for slot in self._slots:
                        self._look_after(slot)
                    time.sleep(_LOOK)
        finally:
            self.kill()  # after an error of the program's logging
        return self._report

    def _look_after(self, slot: _Slot) -> None:
        now = time.monotonic()
        if slot.process is None:
            slot.is_over = slot.is_over or self._stopped_at is not None
            if not slot.is_over and now >= slot.due:
                self._start(slot)
        elif (code := slot.process.poll()) is not None:
            self._note_end(slot, slot.process.pid, code)
        elif self._stopped_at is not None and slot.socket is not None:
            if not slot.is_told:
                slot.is_told = True
                slot.send(b"!")
            if now > self._stopped_at + self._grace + _PATIENCE:
                _log.error("process %d hangs, and is killed", slot.process.pid)
                slot.process.kill()

    def _start(self, slot: _Slot) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            slot.process = subprocess.Popen(
                self._command,
                pass_fds=[theirs.fileno()],
                env={**os.environ, _VARIABLE: f"{theirs.fileno()}:{slot.number}"},
            )
        slot.socket, slot.began, slot.is_told = ours, time.monotonic(), False
        _log.info("process %d of %d: pid %d", slot.number, len(self._slots), slot.process.pid)

    def _note_end(self, slot: _Slot, pid: int, code: int) -> None:
        assert slot.socket is not None
        with slot.socket as link:
            link.setblocking(False)
            try:
                text = link.recv(1000)
            except (BlockingIOError, ConnectionResetError):
                text = b""
        slot.process = slot.socket = None
        if text:
            message = json.loads(text)
            for name, n in message["report"].items():
                setattr(self._report, name, getattr(self._report, name) + n)
            slot.is_over = message["is_drained"]
            slot.due, slot.deaths = slot.began + _FIRST, 0
            return
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        if self._stopped_at is not None:
            _log.error("process %d died: %s", pid, how)
            return
        now = time.monotonic()
        slot.deaths = 1 if now - slot.began >= _HEALTHY else slot.deaths + 1
        delay = retry_delay(slot.deaths, max, first=_FIRST, longest=_LONGEST)
        slot.due = now + delay
        _log.error("process %d died: %s; another one starts in %g s", pid, how, delay)
