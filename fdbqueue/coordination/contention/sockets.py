"""The sockets of a host's processes: one belongs to the leader, the others are connected to it.

They are datagram sockets in a directory that only their user can open. A process becomes the leader
by binding the name that all processes of a queue derive. It passes the lead on by passing the
socket itself, with the messages that wait in it, so that the other processes stay connected. If the
leader dies, the system closes the socket, and sends to it fail.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import socket
import stat
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO
from weakref import finalize

IS_AVAILABLE = sys.platform == "linux"  # macOS limits messages to 2 KiB

MAX_MESSAGE = 65_536
"""The size of the largest message, in bytes."""

# How often a process tries while others become the leader, and the seconds between two attempts.
_ATTEMPTS, _PAUSE = 100, 0.001

_DESCRIPTOR_SIZE = array.array("i").itemsize
_ANCILLARY = socket.CMSG_SPACE(_DESCRIPTOR_SIZE)


def meet(name: str) -> FollowerSocket | LeadSocket | None:
    """Connect to the leader, or become the leader if there is none.

    Args:
        name: The name of the leader's socket.

    Returns:
        The socket; `None` if the system offers none at the moment, or another user has made the
        directory.
    """
    try:
        directory = _private_directory()
        path = directory / name
        for _ in range(_ATTEMPTS):
            follower = FollowerSocket.connect(path)
            if follower is not None:
                return follower
            with _lock_file(directory) as lock, suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Another process may have become the leader in the meantime.
                return FollowerSocket.connect(path) or LeadSocket.bind(path)
            time.sleep(_PAUSE)
    except OSError:
        pass
    return None


def _lock_file(directory: Path) -> IO[str]:
    """Open the file that a process locks while it adds or removes the name of a leader's socket.

    All names share this file, so that no name leaves a file of its own.
    """
    return (directory / "lock").open("w")


def _private_directory() -> Path:
    """Return the directory of this user's sockets; raise `OSError` if others can open it."""
    path = Path(tempfile.gettempdir()) / f"fdbqueue-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{path} is not private")
    return path


def _new_socket() -> socket.socket:
    new = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    new.setblocking(False)
    return new


class LeadSocket:
    """The leader's end: the socket that has the name."""

    def __init__(self, bound: socket.socket) -> None:
        self._socket = bound
        self._poll = select.poll()
        self._poll.register(bound, select.POLLIN)
        self._release = finalize(self, _release_lead, bound, os.getpid())

    @classmethod
    def bind(cls, path: Path) -> LeadSocket:
        """Return the socket with this name, which no process has; remove what dead ones left."""
        path.unlink(missing_ok=True)
        with _new_socket() as probe:
            for left in path.parent.glob(f"{path.name}-*"):
                try:
                    probe.connect(os.fspath(left))
                except OSError:
                    left.unlink(missing_ok=True)
        new = _new_socket()
        try:
            new.bind(os.fspath(path))
        except OSError:
            new.close()
            raise
        return cls(new)

    def receive(self) -> tuple[bytes, str] | None:
        """Return the next message and its sender; `None` if none waits."""
        try:
            message, sender = self._socket.recvfrom(MAX_MESSAGE)
        except BlockingIOError:
            return None
        return message, sender

    def send(self, message: bytes, receiver: str) -> None:
        """Send a message; a receiver that is gone or does not read loses it."""
        with suppress(OSError):
            self._socket.sendto(message, receiver)

    def pass_to(self, message: bytes, receiver: str) -> bool:
        """Send a message with this socket itself; return false if the receiver is gone."""
        own = array.array("i", [self._socket.fileno()])
        self._release.detach()  # the name goes with the socket
        try:
            self._socket.sendmsg(
                [message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, own)], 0, receiver
            )
        except OSError:
            self._release = finalize(self, _release_lead, self._socket, os.getpid())
            return False
        self._socket.close()
        return True

    def wait(self, seconds: float) -> None:
        """Wait for a message."""
        self._poll.poll(seconds * 1000)

    def close(self) -> None:
        """Close the socket and remove its name. There is no leader any more.

        This also happens when the program ends, or nothing refers to this object any more. In a
        forked child the name stays: the parent still leads.
        """
        self._release()


def _release_lead(bound: socket.socket, process: int) -> None:
    """Remove the name of a leader's socket, if this is its process, and close it."""
    try:
        if process == os.getpid():
            path = Path(bound.getsockname())
            # While the socket is open and the lock is taken, no other socket can have the name.
            with _lock_file(path.parent) as lock:
                for _ in range(_ATTEMPTS):
                    with suppress(BlockingIOError):
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        path.unlink()
                        break
                    time.sleep(_PAUSE)
    except OSError:
        pass  # the socket or the directory is gone; the next leader removes a name that is left
    finally:
        bound.close()


class FollowerSocket:
    """The end of another process. It receives messages from the leader's socket alone."""

    def __init__(self, connected: socket.socket, path: Path) -> None:
        self._socket = connected
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(connected, select.POLLIN)
        self._writable.register(connected, select.POLLOUT)
        self._release = finalize(self, _release_follower, connected, path, os.getpid())

    @classmethod
    def connect(cls, leader: Path) -> FollowerSocket | None:
        """Return a socket that is connected to the leader's; `None` if there is no leader."""
        new = _new_socket()
        path = leader.with_name(f"{leader.name}-{os.urandom(4).hex()}")
        follower = cls(new, path)  # first, so that an interrupt leaves nothing behind
        try:
            new.connect(os.fspath(leader))
            new.bind(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            follower.close()
            return None
        except OSError:
            follower.close()
            raise
        return follower

    def send(self, message: bytes, seconds: float) -> bool:
        """Send a message, and wait if the leader's queue is full; return false if it stays full.

        Raises:
            OSError: The leader is gone.
        """
        end = time.monotonic() + seconds
        while True:
            try:
                self._socket.send(message)
                return True
            except BlockingIOError:
                left = end - time.monotonic()
                if left <= 0 or not self._writable.poll(left * 1000):
                    return False

    def receive(self, seconds: float) -> tuple[bytes, LeadSocket | None] | None:
        """Wait for a message, and for the lead if it came with the message."""
        if not self._readable.poll(seconds * 1000):
            return None
        message, ancillary, _, _ = self._socket.recvmsg(
            MAX_MESSAGE, _ANCILLARY, socket.MSG_CMSG_CLOEXEC
        )
        for _, kind, content in ancillary:
            if kind == socket.SCM_RIGHTS:
                (descriptor,) = array.array("i", content[:_DESCRIPTOR_SIZE])
                passed = socket.socket(fileno=descriptor)
                passed.setblocking(False)
                return message, LeadSocket(passed)
        return message, None

    def close(self) -> None:
        """Close the socket and remove its name; messages that wait in it are lost.

        This also happens when the program ends, or nothing refers to this object any more. In a
        forked child the name stays: the parent still uses it.
        """
        self._release()


def _release_follower(connected: socket.socket, path: Path, process: int) -> None:
    connected.close()
    if process == os.getpid():
        with suppress(OSError):
            path.unlink()
