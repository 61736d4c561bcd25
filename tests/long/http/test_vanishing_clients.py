"""Items that a vanishing client did not receive return to the queue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fdbqueue import PriorityQueue
from fdbqueue.http import create_app
from tests.long.http.connection import Connection


@pytest.fixture
def filled(db: Any, name: str) -> PriorityQueue:
    queue = PriorityQueue.named(db, f"{name}jobs")
    queue.push_many(db, [{"n": n, "text": "x" * 10_000} for n in range(8)])
    return queue


@pytest.fixture
def pop_path(name: str) -> str:
    """Return the path that pops from the filled queue."""
    return f"/queue/{name}jobs/pop"


@pytest.mark.parametrize("depth", [1, 5])
@pytest.mark.parametrize("query", ["", "&wait=5"])
def test_a_vanishing_client_gets_its_items_or_they_return_at_whichever_iteration_it_leaves(
    db: Any, filled: PriorityQueue, pop_path: str, depth: int, query: str
) -> None:
    async def main() -> None:
        app = create_app(db)
        got = []
        for turns in range(40):
            connection = Connection(app, pop_path, f"depth={depth}{query}")
            answering = asyncio.ensure_future(connection.run())
            for _ in range(turns):
                await asyncio.sleep(0 if turns % 2 else 0.0001)
            if turns == 39:
                await asyncio.wait([answering])
            connection.leave()
            items = await answering
            assert filled.size(db) == 8 - len(items)
            assert [item.value["n"] for item in filled.items(db)] == list(range(len(items), 8))
            got.append(bool(items))
            filled.clear(db)
            filled.push_many(db, [{"n": n, "text": "x" * 10_000} for n in range(8)])
        assert got[-1]
        assert not got[0]

    asyncio.run(main())
