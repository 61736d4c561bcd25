"""Operations of one process that wait for the same: one watches, and a push wakes one."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from fdbqueue import PriorityQueue, aio
from fdbqueue.coordination import waiting
from fdbqueue.coordination.waiting import Lines, Wanted
from tests.support.asleep import Asleep
from tests.support.counting import CountingDatabase
from tests.support.waiting import until

TIMEOUT = 60.0


@pytest.mark.parametrize("take", ["pop", "claim"])
def test_a_push_wakes_one_of_many_consumers(
    db: Any, queue: PriorityQueue, asleep: Asleep, take: str
) -> None:
    counting = CountingDatabase(db)

    async def consume() -> None:
        mine = aio.PriorityQueue(queue)
        calls = [getattr(mine, take)(counting, wait=TIMEOUT) for _ in range(100)]
        consumers = [asyncio.create_task(call) for call in calls]
        await until(lambda: asleep.count >= 100)
        assert counting.watches <= 5
        counting.clear()
        await aio.run(queue.push, counting, "job")
        await asyncio.wait(consumers, return_when=asyncio.FIRST_COMPLETED)
        await until(lambda: asleep.count > 100)
        assert counting.transactions <= 5
        assert counting.commits <= 3
        assert sum(consumer.done() for consumer in consumers) == 1
        for consumer in consumers:
            consumer.cancel()
        await asyncio.wait(consumers)

    asyncio.run(consume())


@pytest.mark.parametrize("end", ["cancelled", "timed out"])
def test_the_next_one_watches_if_the_first_one_gives_up(
    db: Any, queue: PriorityQueue, asleep: Asleep, end: str
) -> None:
    counting = CountingDatabase(db)

    async def consume() -> None:
        mine = aio.PriorityQueue(queue)
        first = asyncio.create_task(mine.pop(counting, wait=0.3 if end == "timed out" else TIMEOUT))
        # On a slow machine the time of the first one may be over before it sleeps.
        await until(lambda: asleep.count or first.done())
        watches = counting.watches
        second = asyncio.create_task(mine.pop(counting, wait=TIMEOUT))
        await until(lambda: asleep.count > 1 or first.done())
        if end == "cancelled":
            first.cancel()
        await asyncio.wait([first])
        await until(lambda: counting.watches > watches)
        await aio.run(queue.push, db, "job")
        assert (await second).value == "job"

    asyncio.run(consume())


def test_a_forked_child_does_not_stand_behind_its_parent(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, wanted = Lines(), Wanted("pop", lambda tr: [], lambda tr: 0.0)
    with lines.turn(db, wanted):
        monkeypatch.setattr(waiting.os, "getpid", lambda: os.getppid())
        with lines.turn(db, wanted) as (_, turn):
            assert turn.is_ready()
