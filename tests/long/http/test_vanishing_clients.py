"""Items that a vanishing client did not receive return to the queue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.testclient import TestClient

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


_MESSAGES = {1: 3, 5: 5}
"""The number of messages of the response, by the number of items: one of 10,000 bytes is short."""

_SENT = [(depth, sent) for depth, messages in _MESSAGES.items() for sent in range(messages)]


@pytest.mark.parametrize(("depth", "sent"), _SENT)
def test_a_response_that_cannot_be_written_returns_its_items(
    db: Any, filled: PriorityQueue, pop_path: str, depth: int, sent: int
) -> None:
    class Leaving(Connection):
        async def send(self, message: Any) -> None:
            if len(parts) == sent:
                self.is_gone.set()
            parts.append(message)
            await super().send(message)

    async def main() -> list[Any]:
        return await Leaving(create_app(db), pop_path, f"depth={depth}").run()

    parts: list[Any] = []
    whole = asyncio.run(main())
    assert filled.size(db) == 8 - len(whole)
    assert bool(whole) == (sent == _MESSAGES[depth] - 1)  # the last part is empty


@pytest.mark.parametrize(("depth", "sent"), _SENT)
def test_a_cancel_during_the_response_returns_the_items_unless_all_was_sent(
    db: Any, filled: PriorityQueue, pop_path: str, depth: int, sent: int
) -> None:
    class Cancelled(Connection):
        async def send(self, message: Any) -> None:
            await super().send(message)
            parts.append(message)
            if len(parts) == sent + 1:
                answering[0].cancel()

    async def main() -> None:
        connection = Cancelled(create_app(db), pop_path, f"depth={depth}")
        answering.append(asyncio.ensure_future(connection.run()))
        await asyncio.wait(answering)
        whole = connection.body.endswith(b"]}")
        assert filled.size(db) == 8 - depth * whole
        assert whole == (sent >= _MESSAGES[depth] - 2)

    parts: list[Any] = []
    answering: list[asyncio.Future[Any]] = []
    asyncio.run(main())


@pytest.mark.parametrize("levels", [940, 956, 964, 972, *range(980, 1000)])
def test_an_item_that_cannot_be_serialized_stays_in_the_queue(
    client: TestClient, db: Any, name: str, levels: int
) -> None:
    """An older release accepted JSON nested too deeply for its own responses."""
    queue = PriorityQueue.named(db, f"{name}jobs")
    db[queue.push(db, {}).key] = b'{"a":' * levels + b"1" + b"}" * levels
    answer = client.post(f"/queue/{name}jobs/pop")
    assert answer.status_code in (200, 409, 500)
    assert queue.size(db) == (0 if answer.status_code == 200 else 1)
    if answer.status_code == 200:
        assert answer.text.count('{"a":') == levels
