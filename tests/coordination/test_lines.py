"""Operations of one process that wait for the same: one watches, and a push wakes one."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

from fdbqueue import PriorityQueue, aio
from fdbqueue.coordination import waiting
from fdbqueue.coordination.waiting import Lines, Wanted
from fdbqueue.queue.base import store_of
from tests.support.counting import CountingDatabase
from tests.support.waiting import until

TIMEOUT = 60.0
WANTED = Wanted("pop", lambda tr: [], lambda tr: 0.0)


class Sleeps:
    """Counts how often an operation begins to sleep on the database."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = 0
        begin = waiting.begin_sleep

        def begin_sleep(*arguments: Any) -> Any:
            sleep = begin(*arguments)
            self.begun += 1
            return sleep

        monkeypatch.setattr(waiting, "begin_sleep", begin_sleep)


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> Sleeps:
    return Sleeps(monkeypatch)


def waiters(queue: Any) -> int:
    return sum(len(line.turns) for line in store_of(queue)._lines._lines.values())


@pytest.fixture
def counting(db: Any) -> CountingDatabase:
    return CountingDatabase(db)


@pytest.mark.parametrize("take", ["pop", "claim", "wait"])
@pytest.mark.parametrize("n", [1, 100])
def test_a_push_wakes_one_of_many_consumers(
    db: Any, counting: CountingDatabase, queue: PriorityQueue, sleeps: Sleeps, n: int, take: str
) -> None:
    async def consume() -> None:
        mine = aio.PriorityQueue(queue)
        consumers = [
            asyncio.create_task(
                mine.wait(counting, TIMEOUT)
                if take == "wait"
                else getattr(mine, take)(counting, wait=TIMEOUT)
            )
            for _ in range(n)
        ]
        await until(lambda: waiters(queue) == n and sleeps.begun == 1)
        counting.clear()
        await aio.run(queue.push, counting, "job")
        await asyncio.wait(consumers, return_when=asyncio.FIRST_COMPLETED)
        if take != "wait":
            await until(lambda: sleeps.begun == 1 + (n > 1))
            assert counting.transactions <= 5
            assert counting.commits <= 3
            assert waiters(queue) == n - 1
        for consumer in consumers:
            consumer.cancel()
        await asyncio.wait(consumers)

    asyncio.run(consume())
    assert waiters(queue) == 0


def test_waiting_threads_share_one_watch(db: Any, queue: PriorityQueue, sleeps: Sleeps) -> None:
    taken: list[Any] = []
    threads = [
        threading.Thread(target=lambda: taken.append(queue.pop(db, wait=TIMEOUT).value))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    asyncio.run(until(lambda: waiters(queue) == 20 and sleeps.begun == 1))
    queue.push_many(db, range(20))
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(20))


@pytest.mark.parametrize("end", ["cancelled", "timed out"])
def test_the_next_one_watches_if_the_first_one_gives_up(
    db: Any, queue: PriorityQueue, sleeps: Sleeps, end: str
) -> None:
    async def consume() -> None:
        mine = aio.PriorityQueue(queue)
        seconds = 0.3 if end == "timed out" else TIMEOUT
        first = asyncio.create_task(mine.pop(db, wait=seconds))
        # On a slow machine the time of the first one may be over before it sleeps.
        await until(lambda: sleeps.begun == 1 or first.done())
        before = sleeps.begun
        second = asyncio.create_task(mine.pop(db, wait=TIMEOUT))
        await until(lambda: waiters(queue) == 2 or first.done())
        if end == "cancelled":
            first.cancel()
        await asyncio.wait([first])
        await until(lambda: sleeps.begun == before + 1)
        await aio.run(queue.push, db, "job")
        assert (await second).value == "job"

    asyncio.run(consume())
    assert waiters(queue) == 0


def test_a_forked_child_does_not_stand_behind_its_parent(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = Lines()
    with lines.turn(db, WANTED):
        monkeypatch.setattr(waiting.os, "getpid", lambda: os.getppid())
        with lines.turn(db, WANTED) as (_, turn):
            assert turn.is_ready()
