"""The served queues."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypeAlias

from fastapi import Depends, Request, Response

from fdbqueue import aio
from fdbqueue.errors import InvalidQueueName, QueueNotFound
from fdbqueue.http.parameters import NAME, name_for
from fdbqueue.http.responses import Delivered
from fdbqueue.http.security import Role
from fdbqueue.types import Database, Keep

Handle: TypeAlias = aio.PriorityQueue | aio.Queue | aio.TaskQueue

_KNOWN_FOR = 1.0  # seconds for which a name is taken to be that of the same queue


class Served:
    """The queues of a database, opened on request."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self._queues: dict[str, tuple[float, Handle]] = {}

    async def queue(self, name: str, must_exist: bool = True, keep: Keep | None = None) -> Handle:
        """Return the named queue; a new one is a priority queue that keeps these done items."""
        validate_encoding(name)
        known_until, queue = self._queues.get(name, (0.0, None))
        now = time.monotonic()
        if queue is not None:
            if now < known_until:
                return queue
            self._queues[name] = (now + _KNOWN_FOR, queue)  # one request looks, not all
        try:
            found = await aio.existing_queue(self.db, name)
        except QueueNotFound:
            self.forget(name)
            if must_exist:
                raise
            # Its first push creates it.
            return await aio.PriorityQueue.named(self.db, name, keep=keep)
        # Threads share transactions if they share the queue object.
        is_same = queue is not None and queue.subspace.key() == found.subspace.key()
        if queue is None or not is_same or type(queue) is not type(found):
            queue = found
        self._queues[name] = (now + _KNOWN_FOR, queue)
        return queue

    def forget(self, name: str) -> None:
        """Reopen a queue at the next request."""
        self._queues.pop(name, None)


def validate_encoding(name: str) -> None:
    """Raise `InvalidQueueName` for a name that is not UTF-8."""
    if "\ufffd" in name:
        raise InvalidQueueName(name, "it is not encoded in UTF-8")


async def served(request: Request) -> Served:
    """Return the queues of a request's server."""
    found: Served = request.app.state.served
    return found


ServedQueues: TypeAlias = Annotated[Served, Depends(served)]


class Opened(NamedTuple):
    """A queue that a request names."""

    request: Request
    name: str
    db: Database
    handle: Handle

    @property
    def queue(self) -> Any:
        """The queue without `aio`."""
        return self.handle.queue

    @property
    def client(self) -> str:
        """The client's name."""
        client = self.request.client
        return "HTTP client" if client is None else f"HTTP client {client.host}"

    async def call_waiting(self, method: str, *args: Any, wait: float = 0, **kwargs: Any) -> Any:
        """Call a waiting method until the client leaves or the server stops."""
        if not wait:
            return await getattr(self.handle, method)(self.db, *args, **kwargs)
        stopping: asyncio.Event = self.request.app.state.stopping
        ends: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(_disconnect(self.request)),
            asyncio.ensure_future(stopping.wait()),
        ]
        try:
            return await aio.until(ends, self.handle, method, self.db, *args, wait=wait, **kwargs)
        finally:
            for end in ends:
                end.cancel()

    async def popped(
        self, n: int, wait: float, as_json: Callable[[Any], dict[str, Any]], **options: Any
    ) -> Response:
        """Pop items into a response, which puts them back if undelivered."""
        items = await self.call_waiting("pop_many", n, wait=wait, **options)

        def content() -> dict[str, Any]:
            return {"items": [as_json(item) for item in items]}

        async def put_back() -> None:
            if items:
                await self.handle.put_back(self.db, items)

        return Delivered(content, put_back)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def opened_queue(
    request: Request, name: str, must_exist: bool = True, keep: Keep | None = None
) -> Opened:
    """Open the named queue for a request; see `Served.queue`."""
    served: Served = request.app.state.served
    return Opened(request, name, served.db, await served.queue(name, must_exist, keep))


def _queue_for(role: Role) -> Any:
    async def queue_of_request(request: Request, name: str = name_for(role, NAME)) -> Opened:
        return await opened_queue(request, name)

    return Depends(queue_of_request)


ReadQueue: TypeAlias = Annotated[Opened, _queue_for("read")]

WriteQueue: TypeAlias = Annotated[Opened, _queue_for("write")]
"""A queue whose items the request changes one by one."""

AdminQueue: TypeAlias = Annotated[Opened, _queue_for("admin")]
"""A queue that the request changes as a whole or in bulk."""
