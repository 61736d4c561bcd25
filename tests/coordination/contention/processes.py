"""Processes of one host, as far as the library can tell: each has its own database and sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.coordination.contention import leading, sharing, sockets
from fdbqueue.coordination.contention.messages import Signal

FOREVER = 1e6  # seconds
TIMEOUT = 5  # seconds after which a test fails instead of waiting


class Process:
    """A process with one thread for calls that wait for the leader."""

    def __init__(self, db: Any, queue: PriorityQueue) -> None:
        self.db = db
        self.queue = queue
        self._thread = ThreadPoolExecutor(1)

    @property
    def host(self) -> sharing.Host:
        host: sharing.Host = self.queue._store.contention.host(self.db)
        return host

    @property
    def turn(self) -> leading.Leader:
        assert self.host._leader is not None
        return self.host._leader

    @property
    def leads(self) -> bool:
        return self.host.leads

    def push(self, value: object, **options: Any) -> None:
        self.queue.push(self.db, value, **options)

    def pop(self) -> Any:
        item = self.queue.pop(self.db)
        return None if item is None else item.value

    def ask(self, call: Callable[[], Any]) -> Future[Any]:
        """Start a call, and return once its request waits for the leader."""
        asked = threading.Event()
        send = sockets.FollowerSocket.send

        def note(socket: sockets.FollowerSocket, message: bytes, seconds: float) -> bool:
            is_sent = send(socket, message, seconds)
            if message.startswith(Signal.REQUEST.value):
                asked.set()
            return is_sent

        sockets.FollowerSocket.send = note
        try:
            future = self._thread.submit(call)
            assert asked.wait(TIMEOUT)
        finally:
            sockets.FollowerSocket.send = send
        return future

    def ask_alone(self, call: Callable[[], Any]) -> Future[Any]:
        """Start a call of the leader."""
        return self._thread.submit(call)

    def left(self) -> list[Any]:
        """Pop what is left, after a check of the queue."""
        report = fdbqueue.admin.check(self.db, self.queue)
        assert report.ok, report.problems
        return [item.value for item in self.queue.pop_many(self.db, 1_000)]

    def end(self) -> None:
        """Release the sockets, as the system does when a process ends."""
        self.host.close()
        self._thread.shutdown()
