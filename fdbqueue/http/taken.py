"""The answer to a pop: its items are the client's, or they are back in the queue."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import Response
from starlette.types import Receive, Scope, Send

from fdbqueue.aio import PriorityQueue
from fdbqueue.http.answers import as_json, found
from fdbqueue.types import Item

__all__ = ["Taken"]

# A loop needs so many turns to learn that a client is gone: it reads the end of the connection,
# calls `connection_lost`, and comes back here.
_TURNS = 3

_LAST_BYTES = 16_384  # of an answer, which are held back until the client took those before


class Taken(Response):
    """Sends the items that a pop took, and puts them back if the client cannot have them.

    A server drops what is written for a client that it knows to be gone. So the end of the answer
    is held back until the server has had time to notice, and after it is written, one look tells
    whether it was dropped. If anything fails before (the items cannot be encoded, the request is
    cancelled), the items go back too.
    """

    def __init__(self, queue: PriorityQueue, db: Any, items: list[Item]) -> None:
        super().__init__()
        self._queue = queue
        self._db = db
        self._items = items

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as an ASGI application."""
        try:
            answer = as_json({"items": [found(self._queue, item) for item in self._items]})
            await self._send(answer, receive, send)
        finally:
            if self._items:
                await self._queue.put_back(self._db, self._items)

    async def _send(self, answer: Response, receive: Receive, send: Send) -> None:
        """Send an answer; its items are the client's once its end is written."""
        body = bytes(answer.body)
        head = {"status": answer.status_code, "headers": answer.raw_headers}
        await send({"type": "http.response.start", **head})
        for part in (body[:-_LAST_BYTES], b""):  # a server waits here while its buffer is full
            await send({"type": "http.response.body", "body": part, "more_body": True})
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        last = body[-_LAST_BYTES:]
        await send({"type": "http.response.body", "body": last, "more_body": True})
        # If it could not be written, the connection is closed before this turn is over. A client
        # that has its answer and closes the connection is not noticed so soon.
        try:
            await asyncio.sleep(0)
        finally:
            if not _is_gone(receive):
                self._items = []
        await send({"type": "http.response.body", "body": b""})


def _is_gone(receive: Receive) -> bool:
    """Whether the server has seen the client go away; it is asked without waiting."""
    asking: Any = receive()
    try:
        asking.send(None)
    except StopIteration as answer:
        return bool(answer.value["type"] == "http.disconnect")
    asking.close()
    return False
