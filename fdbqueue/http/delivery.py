"""Requests whose clients may leave before they have their response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

__all__ = ["Delivered", "ends_of_wait", "is_gone"]

# Turns of the event loop until it notices that a client has disconnected: it reads the end of the
# connection, calls `connection_lost`, and resumes the waiting code.
_TURNS = 3

_LAST_BYTES = 16_384  # of a response, held back until the client has taken the bytes before them


class Delivered(Response):
    """A response with items that were taken, and that are returned if it cannot be delivered.

    A server discards what is written for a client that it knows to have disconnected. So the end of
    the response is held back until the server has had time to notice. After it is written, one
    check shows whether it was discarded. If anything fails before (an item cannot be encoded, the
    request is cancelled), the items return as well.

    Args:
        answer: Returns the response.
        undo: Returns the items.
    """

    def __init__(self, answer: Callable[[], Response], undo: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._answer = answer
        self._undo = undo
        self._is_delivered = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond as an ASGI application."""
        try:
            await self._send(self._answer(), receive, send)
        finally:
            if not self._is_delivered:
                await self._undo()

    async def _send(self, answer: Response, receive: Receive, send: Send) -> None:
        """Send a response. Once its end is written, its items belong to the client."""
        body = bytes(answer.body)
        head = {"status": answer.status_code, "headers": answer.raw_headers}
        await send({"type": "http.response.start", **head})
        for part in (body[:-_LAST_BYTES], b""):  # the server waits here while its buffer is full
            await send({"type": "http.response.body", "body": part, "more_body": True})
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        last = body[-_LAST_BYTES:]
        await send({"type": "http.response.body", "body": last, "more_body": True})
        # If it could not be written, the connection is closed before this turn ends. A client that
        # closes the connection after reading its response is not noticed that soon.
        try:
            await asyncio.sleep(0)
        finally:
            self._is_delivered = not is_gone(receive)
        await send({"type": "http.response.body", "body": b""})


def is_gone(receive: Receive) -> bool:
    """Return whether the server has seen the client disconnect, without waiting."""
    asking: Any = receive()
    try:
        asking.send(None)
    except StopIteration as answer:
        return bool(answer.value["type"] == "http.disconnect")
    asking.close()
    return False


@asynccontextmanager
async def ends_of_wait(request: Request) -> AsyncGenerator[list[asyncio.Future[Any]]]:
    """Provide futures that are done once the client disconnects, or the server stops."""
    stopping: asyncio.Event = request.app.state.stopping
    ends: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(_disconnect(request)),
        asyncio.ensure_future(stopping.wait()),
    ]
    try:
        yield ends
    finally:
        for end in ends:
            end.cancel()


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
