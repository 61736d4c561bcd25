"""Worker processes: a parent starts them, replaces those that end, and stops them together.

A child has a socket to its parent. Its end tells the child to stop, also if the parent was killed.
The child's last message tells the parent what it has done, so a child that ends without one died.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from fdbqueue.worker.endings import WorkerReport, sum_of
from fdbqueue.worker.presence import check_address
from fdbqueue.worker.shutdown import stopping_on_signals
from fdbqueue.worker.telemetry import Log

_log = Log("fdbqueue.worker")

_VARIABLE = "FDBQUEUE_SUPERVISOR"
_LOOK = 0.1  # seconds between looks at the processes
_LAST = 5.0  # seconds that a process has to kill what it runs, and itself
_FIRST = 1.0  # seconds from the death of a process to the start of another one, at first
_LONGEST = 60.0  # seconds from a death to that start, at most
_HEALTHY = 60.0  # seconds after whose life a death is the first one again
_PATIENCE = 5.0  # seconds beyond the grace period after which a process is killed

# Taken at once, so that no program that this one runs takes itself for a child.
_given = os.environ.pop(_VARIABLE, None)


class Parent:
    """The parent of this process, which supervises it.

    Attributes:
        number: The number of this process among its siblings, from 1.
    """

    def __init__(self, descriptor: int, number: int) -> None:
        self.number = number
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)

    def stop_with(self, stop: Callable[[], object], kill: Callable[[], object]) -> None:
        """Call `stop` when the parent wants so, or has died; end when it kills, after `kill`."""

        def wait() -> None:
            self._socket.recv(1)
            stop()
            if self._socket.recv(1):
                kill()
                os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=wait, daemon=True).start()

    def report(self, report: WorkerReport, *, is_drained: bool) -> None:
        """Tell the parent what was done, and whether nothing is left to do."""
        message = {"is_drained": is_drained, "report": asdict(report)}
        with suppress(OSError):  # the parent has died
            self._socket.sendall(json.dumps(message).encode())


parent = None if _given is None else Parent(*map(int, _given.split(":")))
"""The parent of this process; `None` if it is not supervised."""


@dataclass
class _Slot:
    """One of the processes, and after it its successors."""

    number: int
    process: subprocess.Popen[bytes] | None = None
    socket: socket.socket | None = None
    began: float = 0.0
    due: float = 0.0
    deaths: int = 0
    is_over: bool = False
    is_told: bool = False

    def send(self, message: bytes) -> None:
        """Send a byte that tells the process to stop, or two to kill what it runs and itself."""
        if self.socket is not None:
            with suppress(OSError):  # it has ended
                self.socket.send(message)


class Supervisor:
    """Processes that run the same command, each with one worker.

    Args:
        command: The command, whose process is `supervised`.
        n: The number of processes.
        grace: The seconds that running jobs have to end after `stop`.
    """

    def __init__(self, command: Sequence[str], n: int, grace: float) -> None:
        self._command = command
        self._grace = grace
        self._slots = [_Slot(number) for number in range(1, n + 1)]
        self._reports: list[WorkerReport] = []
        self._stopped_at: float | None = None

    def stop(self) -> None:
        """Stop all processes, as SIGTERM stops a worker."""
        if self._stopped_at is None:
            self._stopped_at = time.monotonic()

    def kill(self, patience: float = _LAST) -> None:
        """Kill all processes and what they run; their jobs come back after their leases."""
        for slot in self._slots:
            slot.send(b"!!")
        end = time.monotonic() + patience
        for slot in self._slots:
            if slot.process is not None:
                with suppress(subprocess.TimeoutExpired):
                    slot.process.wait(max(0, end - time.monotonic()))
                slot.process.kill()

    def run(self, health: int | str | None = None) -> WorkerReport:
        """Run the processes until `stop`, or until each of them has found nothing more to do.

        In the main thread, SIGTERM and SIGINT stop them, and a second signal kills them.

        Args:
            health: Where the first process answers health checks.

        Returns:
            What all processes have done that did not die.

        Raises:
            OSError: No process can listen on the address of `health`.
        """
        check_address(health)
        try:
            with stopping_on_signals(self.stop, "processes", lambda: len(self._slots), self.kill):
                while not all(slot.is_over for slot in self._slots):
                    for slot in self._slots:
                        self._look_after(slot)
                    time.sleep(_LOOK)
        finally:
            self.kill()  # after an error of the program's logging
        return sum_of(self._reports)

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
        """Note what a process has done that ended, and when to start another one."""
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
            self._reports.append(WorkerReport(**message["report"]))
            slot.is_over = message["is_drained"]
            slot.due, slot.deaths = slot.began + _FIRST, 0
            return
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        if self._stopped_at is not None:
            _log.error("process %d died: %s", pid, how)
            return
        now = time.monotonic()
        if now - slot.began >= _HEALTHY:
            slot.deaths = 0
        delay = min(_LONGEST, _FIRST * 2**slot.deaths)
        slot.due, slot.deaths = now + delay, slot.deaths + 1
        _log.error("process %d died: %s; another one starts in %g s", pid, how, delay)
