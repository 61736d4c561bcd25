"""Following one job: its progress, its log and its end, in Python and as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from fdbqueue import PriorityQueue, aio
from fdbqueue.jobs import App
from fdbqueue.types import ItemInfo, Progress


def steps(db: Any, queue: PriorityQueue, id: str) -> Iterator[tuple[Any, ...]]:
    """Do a job; yield what a follower sees before each of its steps."""
    yield "ready", None, ""
    claim = queue.claim(db)
    yield "claimed", None, ""
    queue.extend(db, claim, 60, progress=Progress(0.5, "half"), log="begun\n")
    yield "claimed", 0.5, "begun\n"
    queue.ack(db, claim, result=7, log="begun\nended\n")
    yield "done", None, "begun\nended\n"


def seen(info: ItemInfo) -> tuple[Any, ...]:
    return info.state, info.progress and info.progress.fraction, info.log


def test_a_follower_sees_each_change_until_the_end(db: Any, name: str) -> None:
    app = App(db)
    queue = PriorityQueue.named(db, name, keep=10)

    @app.job(queue=name)
    def work() -> None: ...

    async def follow(infos: AsyncIterator[ItemInfo], id: str) -> None:
        expected = steps(db, queue, id)
        now = next(expected, None)
        async for info in infos:
            assert seen(info) == now
            now = next(expected, None)
        assert now is None

    handle = work.push()
    asyncio.run(follow(aio.PriorityQueue(queue).follow(db, handle.id), handle.id))
    handle = work.push()
    asyncio.run(follow(aiter(handle), handle.id))


def test_it_ends_at_a_dead_letter_and_when_the_item_is_gone(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name, keep=None, max_attempts=1)

    async def states(item: Any) -> list[str]:
        return [info.state async for info in aio.PriorityQueue(queue).follow(db, item)]

    item = queue.push(db, "fails")
    queue.nack(db, queue.claim(db))
    assert asyncio.run(states(item)) == ["dead"]
    item = queue.push(db, "is not kept")
    queue.ack(db, queue.claim(db))
    assert asyncio.run(states(item)) == []


def test_the_server_streams_the_same_changes(serve: Any, db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name, keep=10)
    id = queue.push(db, "job").id
    url = f"/v1/queues/{name}/items/{id}/events"
    expected = steps(db, queue, id)
    now, events = next(expected, None), []
    with serve() as (_, client), client.stream("GET", url) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("event: "):
                events.append(line.removeprefix("event: "))
            elif line.startswith("data: "):
                info = json.loads(line.removeprefix("data: "))
                progress = info["progress"] and info["progress"]["fraction"]
                assert (info["state"], progress, info["log"]) == now
                now = next(expected, None)
    assert events == ["change", "change", "change", "end"]
    assert info["result"] == 7


def test_an_item_that_is_gone_has_no_stream(client: Any, db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name)
    id = queue.push(db, "job").id
    queue.pop(db)
    assert client.get(f"/v1/queues/{name}/items/{id}/events").status_code == 404
