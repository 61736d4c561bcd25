"""`fdbq` in a process forked with its modules loaded, which starts ten times as fast.

A template process loads the modules and forks for each command. A command has its own
arguments, environment, directory, standard streams and exit code, and exits as Python does. That
writes to the memory of every loaded module, which the kernel then copies. So `serve`, which needs
many modules, has a template of its own, and all others share one.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from pkgutil import iter_modules
from typing import IO

import fdbq

_ROOT = Path(__file__).parents[2]

_lock = threading.Lock()


class Forked:
    """A process of `fdbq` with the part of Popen's interface that the tests need."""

    def __init__(self, path: Path, environment: Mapping[str, str], *arguments: str) -> None:
        self.args = arguments
        self.returncode: int | None = None
        (stdin, our_stdin), (our_stdout, stdout), (our_stderr, stderr) = (os.pipe() for _ in "012")
        self.stdin: IO[bytes] = open(our_stdin, "wb")  # noqa: SIM115
        self.stdout: IO[str] = open(our_stdout, encoding="utf-8")  # noqa: SIM115
        self.stderr: IO[str] = open(our_stderr, encoding="utf-8")  # noqa: SIM115
        self._monitor, its_end = socket.socketpair()
        descriptors = [stdin, stdout, stderr, its_end.detach()]
        with _lock:
            socket.send_fds(_template(arguments[:1] == ("serve",)), [b"x"], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        self._monitor.sendall(json.dumps([str(path), {**environment}, arguments]).encode() + b"\n")
        self.pid = self._receive()
        self._texts: dict[IO[str], str] = {}
        self._threads: list[threading.Thread] = []

    def poll(self) -> int | None:
        with suppress(BlockingIOError):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended; raise `TimeoutError` after `timeout` seconds."""
        if self.returncode is None:
            self._monitor.settimeout(timeout)
            self.returncode = self._receive()
            self._monitor.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, stdin: bytes = b"", timeout: float | None = None) -> tuple[str, str]:
        """Wait until the process has ended, and return its output and its errors."""
        if not self._threads:
            begin = [(self._write, stdin), (self._read, self.stdout), (self._read, self.stderr)]
            self._threads = [
                threading.Thread(target=target, args=(argument,), daemon=True)
                for target, argument in begin
            ]
            for thread in self._threads:
                thread.start()
        self.wait(timeout)
        for thread in self._threads:
            thread.join()
        return self._texts[self.stdout], self._texts[self.stderr]

    def _write(self, data: bytes) -> None:
        with suppress(BrokenPipeError), self.stdin as stdin:
            stdin.write(data)

    def _read(self, file: IO[str]) -> None:
        with file:
            self._texts[file] = file.read()

    def _receive(self) -> int:
        received = self._monitor.recv(4)
        assert received, f"the process that forks has ended; the command was {self.args}"
        return int(struct.unpack("i", received)[0])


@cache
def _template(serves: bool) -> socket.socket:
    """Start the process that forks for `serve`, or for all others; it ends with this one."""
    ours, its_end = socket.socketpair()
    with its_end:
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.forked", str(its_end.fileno()), "serve" * serves],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[its_end.fileno()],
            cwd=_ROOT,
            start_new_session=True,  # so that it gets no Ctrl-C
        )
    return ours


def _fork_commands(connection: socket.socket) -> None:
    """Fork for each command; return only in the process of a command.

    An intermediate process waits for the command and sends its exit code.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the intermediate processes
    while descriptors := socket.recv_fds(connection, 1, 4)[1]:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            connection.close()
            break
        for descriptor in descriptors:
            os.close(descriptor)
    else:
        os._exit(0)
    *standard, own = descriptors
    monitor = socket.socket(fileno=own)
    with monitor.makefile("rb") as lines:
        path, environment, sys.argv[1:] = json.loads(lines.readline())
    if pid := os.fork():
        for descriptor in standard:
            os.close(descriptor)
        monitor.send(struct.pack("i", pid))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        monitor.send(struct.pack("i", code))
        os._exit(0)
    monitor.close()
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(path)
    sys.path[0] = path  # as with `python -m`
    os.environ.clear()
    os.environ.update(environment)
    faulthandler.register(signal.SIGTRAP)  # prints where a process hangs


def _main() -> None:
    importlib.import_module("fdbq.__main__")
    if sys.argv[2]:
        modules = ["fdbq.serve", "fdbqueue.http", "uvicorn", "uvicorn.protocols.http.h11_impl"]
    else:
        modules = [f"fdbq.{each.name}" for each in iter_modules(fdbq.__path__)]
        modules.remove("fdbq.serve")
    for name in modules:
        importlib.import_module(name)
    gc.freeze()  # so that the memory of the template stays shared
    _fork_commands(socket.socket(fileno=int(sys.argv[1])))
    sys.modules["fdbq.__main__"].main()


if __name__ == "__main__":
    _main()
