"""The served queues, and reads that requests share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Annotated, Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

from fastapi import Depends, Request, Response

from fdbqueue import aio
from fdbqueue.errors import InvalidQueueName, QueueNotFound
from fdbqueue.http.parameters import NAME, name_for
from fdbqueue.http.responses import Delivered, json_response
from fdbqueue.http.security import Role, grant_of
from fdbqueue.queue.overview import stats_as_json
from fdbqueue.types import Database, Keep

_P = ParamSpec("_P")
_T = TypeVar("_T")

Handle: TypeAlias = aio.PriorityQueue | aio.Queue | aio.TaskQueue

_KNOWN_FOR = 1.0  # seconds for which a name is taken to be that of the same queue


class SharedReads:
    """Reads of many queues, one at a time, whose results requests share.

    A read began at most `max_age` seconds before the request.
    """

    def __init__(self, max_age: float = 0.0) -> None:
        self._max_age = max_age
        self._one_at_a_time = asyncio.Lock()
        self._results: dict[Hashable, tuple[float, Any]] = {}  # with the times when they began

    async def get(
        self, read: Callable[_P, Awaitable[_T]], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Return the result of `await read(...)`, perhaps another request's."""
        oldest = time.monotonic() - self._max_age
        key = read, args, *kwargs.items()
        async with self._one_at_a_time:
            # Requests get the lock in the order in which they came: none needs an older result.
            self._results = {
                kept: found for kept, found in self._results.items() if found[0] >= oldest
            }
            if key not in self._results:
                began = time.monotonic()
                self._results[key] = began, await read(*args, **kwargs)
            shared: _T = self._results[key][1]
        return shared


class Served:
    """The queues of a database, opened on request."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self._queues: dict[str, tuple[float, Handle]] = {}
        self._numbers = SharedReads()

    async def page(self, request: Request, limit: int, after: str | None, prefix: str) -> Response:
        """Return a page of the queues with this prefix that the token allows, with numbers."""
        grant = grant_of(request)
        allowed = "" if grant is None else grant.queues.removesuffix("*")
        beginning = max(prefix, allowed, key=len)
        if not (beginning.startswith(prefix) and beginning.startswith(allowed)):
            return json_response({"queues": [], "next": None})
        numbers = await self._numbers.get(
            aio.overview, self.db, after=after, limit=limit + 1, prefix=beginning
        )
        found = [each for each in numbers.items() if grant is None or grant.includes(each[0])]
        page = [{"name": name, **stats_as_json(stats)} for name, stats in found[:limit]]
        more = len(found) > limit
        return json_response({"queues": page, "next": found[limit - 1][0] if more else None})

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
"""A queue that the request reads."""

WriteQueue: TypeAlias = Annotated[Opened, _queue_for("write")]
"""A queue with single items that the request changes."""

AdminQueue: TypeAlias = Annotated[Opened, _queue_for("admin")]
"""A queue that the request changes as a whole or in bulk."""
