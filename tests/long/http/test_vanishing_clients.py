"""Items that a vanishing client did not receive return to the queue."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.testclient import TestClient

from fdbqueue import PriorityQueue
from fdbqueue.http import create_app
from tests.long.http.connection import Connection
from tests.support.waiting import wait_until


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


@pytest.mark.parametrize("cancels", [1, 3])
def test_a_cancelled_request_takes_only_items_it_has_sent(
    db: Any, filled: PriorityQueue, pop_path: str, cancels: int
) -> None:
    async def main() -> None:
        app = create_app(db)
        for turns in range(60):
            connection = Connection(app, pop_path, "wait=5")
            answering = asyncio.ensure_future(connection.run())
            for _ in range(turns):
                await asyncio.sleep(0)
            for _ in range(cancels):
                answering.cancel()
                await asyncio.sleep(0)
            await asyncio.wait([answering])
            sent = b'"items":[{' in connection.body and connection.body.endswith(b"]}")
            assert filled.size(db) == 8 - sent
            filled.clear(db)
            filled.push_many(db, [{"n": n} for n in range(8)])

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


def test_json_that_is_nested_too_deeply_is_rejected(client: TestClient, name: str) -> None:
    headers = {"content-type": "application/json"}
    for levels in (101, 150, 500, 975, 5000):
        item = b'{"a":' * levels + b"1" + b"}" * levels
        one, many = b'{"item":%b}' % item, b'{"items":[{"item":%b}]}' % item
        for route, body in (("push", one), ("batch", many)):
            path = f"/v1/queues/{name}jobs/{route}"
            answer = client.post(path, content=body, headers=headers)
            assert answer.status_code in (400, 422), (levels, answer.text)
    item = b'{"a":' * 100 + b"1" + b"}" * 100
    for route, body in (
        ("push", b'{"item":%b}' % item),
        ("batch", b'{"items":[{"item":%b}]}' % item),
    ):
        path = f"/v1/queues/{name}jobs/{route}"
        assert client.post(path, content=body, headers=headers).status_code == 201
        assert item in client.post(f"/queue/{name}jobs/pop").content


def test_hundreds_of_vanishing_clients_lose_no_items(
    serve: Any, name: str, rng: random.Random
) -> None:
    """Each client closes its side at a random moment and reads the rest of the response."""
    received: list[int] = []

    def vanish(address: Any, seconds: float) -> None:
        with socket.create_connection(address, timeout=60) as connection:
            connection.sendall(
                f"POST /queue/{name}/pop?wait=60 HTTP/1.1\r\nhost: 127.0.0.1\r\n"
                "content-length: 0\r\n\r\n".encode()
            )
            time.sleep(seconds)
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            while part := connection.recv(65536):
                answer += part
        body = answer.partition(b"\r\n\r\n")[2]
        if body:
            received.extend(item["item"]["n"] for item in json.loads(body)["items"])

    with serve() as (_, client), ThreadPoolExecutor(20) as pool:
        address = (client.base_url.host, client.base_url.port)
        client.post(f"/queue/{name}/push", json={"item": {"n": -1}})
        client.post(f"/queue/{name}/pop")
        for wave in range(10):
            leaving = [pool.submit(vanish, address, rng.random() * 0.1) for _ in range(20)]
            time.sleep(rng.random() * 0.1)
            items = [{"item": {"n": 20 * wave + number}} for number in range(20)]
            answer = client.post(f"/v1/queues/{name}/batch", json={"items": items})
            assert answer.status_code == 201
            for each in leaving:
                each.result(60)

        def left() -> list[int]:
            items = client.get(f"/v1/queues/{name}/items", params={"limit": 1000}).json()["items"]
            return [each["item"]["n"] for each in items]

        wait_until(lambda: len(received + left()) >= 200)  # the last items are being put back
        print(f"{len(received)} of 200 received")
        assert sorted(received + left()) == list(range(200))
