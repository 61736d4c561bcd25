"""Items that a vanishing client did not receive return to the queue."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fdbqueue import PriorityQueue
from fdbqueue.http import create_app

TURNS = 40
"""After more turns of the event loop than a pop takes."""


async def popped(app: Any, scope: dict[str, Any], turns: int) -> list[int]:
    """Pop, leave after some turns of the event loop, and return the items that were received."""
    loop = asyncio.get_running_loop()
    is_closed, is_gone = asyncio.Event(), asyncio.Event()
    received = b""

    async def receive() -> Any:
        await is_gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal received
        if not is_closed.is_set():
            received += message.get("body", b"")

    def close() -> None:
        """Drop all later writes; the server learns of the end in the next turn, as of asyncio's."""
        is_closed.set()
        loop.call_soon(is_gone.set)

    answering = asyncio.ensure_future(app(scope, receive, send))
    for _ in range(turns):
        await asyncio.sleep(0 if turns % 2 else 0.0001)
    if turns == TURNS:
        await asyncio.wait([answering])
    loop.call_soon(close)
    await answering
    try:
        return [item["item"]["n"] for item in json.loads(received)["items"]]
    except ValueError:
        return []  # the response is incomplete


@pytest.mark.parametrize("query", ["depth=1", "depth=5", "depth=1&wait=5", "depth=5&wait=5"])
def test_a_vanishing_client_gets_its_items_or_they_return_at_whichever_turn_it_leaves(
    db: Any, name: str, query: str
) -> None:
    queue, app = PriorityQueue.named(db, name), create_app(db)
    scope = {
        **{"type": "http", "scheme": "http", "method": "POST", "path": f"/queue/{name}/pop"},
        **{"query_string": query.encode(), "headers": [(b"host", b"127.0.0.1")]},
    }

    async def main() -> None:
        got = []
        for turns in range(TURNS + 1):
            queue.clear(db)
            queue.push_many(db, [{"n": n, "text": "x" * 10_000} for n in range(8)])
            got.append(len(await popped(app, dict(scope), turns)))
            assert [item.value["n"] for item in queue.items(db)] == [*range(got[-1], 8)]
        assert got[-1]
        assert not got[0]

    asyncio.run(main())
