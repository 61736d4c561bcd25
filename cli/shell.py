"""How `fdbq work --exec` runs a shell command for an item."""

from __future__ import annotations

import codecs
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from fdbqueue.jobs import Context

from .output import escaped, json_line, value_of

KILLED = 5.0
"""Seconds within which a command ends after SIGKILL."""

_LOOK = 0.2  # seconds between looks at the standard error of a command, and at its job
_PART = 65_536  # bytes
_LAST = 0.5  # seconds from SIGTERM to SIGKILL for a command that outlasts a shutdown
_MAX_ERRORS = 4_096  # bytes of standard error that a failed attempt keeps

_running: set[subprocess.Popen[bytes]] = set()

_starting = threading.RLock()  # held until a started command is registered as running


class CommandError(Exception):
    """A command exited with a code other than 0."""

    def __init__(self, code: int, stderr: str) -> None:
        self.code = code
        self.stderr = stderr
        super().__init__(f"exit code {code}")


def handler_of(command: str, grace: float) -> Callable[[Context], None]:
    """Return a handler that runs a command."""

    def run(context: Context) -> None:
        item = context.item
        # A file and not a pipe: the command may outlive the worker, and must not fail by that.
        with tempfile.TemporaryFile() as errors:
            with _starting:
                process = subprocess.Popen(
                    command,
                    shell=True,  # the help promises a shell command
                    stdin=subprocess.PIPE,
                    stderr=errors,
                    env={**os.environ, "FDBQ_ID": item.id},
                    start_new_session=True,  # Ctrl-C reaches only the worker, which lets it finish
                )
                _running.add(process)
            try:
                _wait(process, json_line(value_of(item)).encode(), errors.fileno(), context, grace)
            finally:
                _running.discard(process)
            if process.returncode:
                size = os.fstat(errors.fileno()).st_size
                tail = os.pread(errors.fileno(), _MAX_ERRORS, max(0, size - _MAX_ERRORS))
                raise CommandError(process.returncode, tail.decode(errors="replace"))

    return run


def kill_commands() -> None:
    """Kill the commands, and start no others."""
    _starting.acquire()
    for process in list(_running):
        _signal(process, signal.SIGKILL)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):  # there are none
        os.killpg(process.pid, number)


def _wait(
    process: subprocess.Popen[bytes], value: bytes, errors: int, context: Context, grace: float
) -> None:
    """Wait for a command, and print its standard error, escaped.

    If the job is told to stop, the command and its children get SIGTERM; any that remain after the
    grace period, or after the command's end, get SIGKILL. In a shutdown, SIGTERM comes only after
    the grace period.
    """
    printed = 0
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    told_at: float | None = None
    given: bytes | None = value
    while True:
        try:
            process.communicate(given, _LOOK)
            is_over = True
        except subprocess.TimeoutExpired:
            is_over, given = False, None
        if context.cancelled.is_set():
            told_at = told_at or time.monotonic()
            over = time.monotonic() - told_at
            is_shutdown = context.cancelled.reason == "shutdown"
            term, kill = (grace, grace + _LAST) if is_shutdown else (0.0, grace)
            if over >= term:
                is_late = is_over or over >= kill
                _signal(process, signal.SIGKILL if is_late else signal.SIGTERM)
        # The command shares the position in the file, so this must not move it.
        while part := os.pread(errors, _PART, printed):
            printed += len(part)
            sys.stderr.write(escaped(decoder.decode(part)))
        sys.stderr.write(escaped(decoder.decode(b"", final=is_over)))
        sys.stderr.flush()
        if is_over:
            return
