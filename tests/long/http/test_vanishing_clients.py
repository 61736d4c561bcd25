"""Items that a vanishing client did not receive return to the queue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fdbqueue import PriorityQueue
from fdbqueue.http import create_app
from tests.long.http.connection import Connection


@pytest.mark.parametrize("depth", [1, 5])
@pytest.mark.parametrize("query", ["", "&wait=5"])
def test_a_vanishing_client_gets_its_items_or_they_return_at_whichever_iteration_it_leaves(
    db: Any, name: str, depth: int, query: str
) -> None:
    queue = PriorityQueue.named(db, name)

    async def main() -> None:
        app = create_app(db)
        got = []
        for turns in range(40):
            queue.clear(db)
            queue.push_many(db, [{"n": n, "text": "x" * 10_000} for n in range(8)])
            connection = Connection(app, f"/queue/{name}/pop", f"depth={depth}{query}")
            answering = asyncio.ensure_future(connection.run())
            for _ in range(turns):
                await asyncio.sleep(0 if turns % 2 else 0.0001)
            if turns == 39:
                await asyncio.wait([answering])
            connection.leave()
            items = await answering
            assert [item.value["n"] for item in queue.items(db)] == list(range(len(items), 8))
            got.append(bool(items))
        assert got[-1]
        assert not got[0]

    asyncio.run(main())
