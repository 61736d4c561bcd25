"""Clients that wait for the same queue, in one process and in several: a push wakes one of them."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any
from uuid import uuid4

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue, aio
from fdbqueue.coordination import sans_io, waiting
from fdbqueue.coordination.waiting import Lines, Wanted
from fdbqueue.layout.keys import Layout
from fdbqueue.operations.waking import Waiters
from fdbqueue.testing import FaultyDatabase, FaultyTransaction
from tests.support.asleep import Asleep
from tests.support.counting import CountingDatabase
from tests.support.keys import waiting_clients
from tests.support.waiting import until, wait_until

TIMEOUT = 60.0


class NeverFirst(set[bytes]):
    """Says of every wait that it is not the first one of its process."""

    def __contains__(self, prefix: object) -> bool:
        return True


class Consumers:
    """Threads that each take one item, with a queue object of their own, as processes have."""

    def __init__(self, db: Any, queue: PriorityQueue, take: str, asleep: Asleep) -> None:
        self.db, self._queue, self._take, self._asleep = db, queue, take, asleep
        self._threads: list[threading.Thread] = []
        self.taken: list[Any] = []

    def start(self, n: int) -> None:
        """Start consumers, one after the other has gone to sleep."""
        for _ in range(n):
            before = self._asleep.count
            self._threads.append(threading.Thread(target=self._consume, daemon=True))
            self._threads[-1].start()
            wait_until(lambda: self._asleep.count > before)  # noqa: B023

    def _consume(self) -> None:
        queue = PriorityQueue(self._queue.subspace)
        taken = getattr(queue, self._take)(self.db, wait=10 * TIMEOUT)
        self.taken.append((taken if self._take == "pop" else taken.item).value)
        if self._take == "claim":
            queue.ack(self.db, taken)

    def wait(self, n: int) -> None:
        """Wait until this many items are taken."""
        wait_until(lambda: len(self.taken) >= n)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(TIMEOUT)
            assert not thread.is_alive()


@pytest.fixture(params=["pop", "claim"])
def consumers(
    request: pytest.FixtureRequest,
    db: Any,
    queue: PriorityQueue,
    asleep: Asleep,
    monkeypatch: pytest.MonkeyPatch,
) -> Consumers:
    """Return consumers that pop, or claim, and sleep until they are woken."""
    monkeypatch.setattr(waiting, "_have_waited", NeverFirst())
    return Consumers(CountingDatabase(db), queue, request.param, asleep)


@pytest.fixture
def _no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no client look because another one was woken."""
    monkeypatch.setattr(waiting, "_MOMENT", 10 * TIMEOUT)
    monkeypatch.setattr(waiting, "_MOMENT_ALONE", 10 * TIMEOUT)


@pytest.mark.parametrize("n", [1, 10])
@pytest.mark.usefixtures("_no_second_look")
def test_a_push_wakes_one_client(
    consumers: Consumers, queue: PriorityQueue, asleep: Asleep, n: int
) -> None:
    consumers.start(n)
    begun = asleep.count
    consumers.db.clear()
    for number in range(n):
        PriorityQueue(queue.subspace).push(consumers.db, number)
        consumers.wait(number + 1)
    consumers.join()
    # A client that is woken in vain sleeps again. If each push woke all, n * n / 2 would.
    assert asleep.count - begun <= n
    assert consumers.db.transactions <= 5 * n
    wait_until(lambda: not waiting_clients(consumers.db, queue))


def test_a_client_waits_once_if_the_answer_of_its_commit_is_lost(
    db: Any, queue: PriorityQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_have_waited", NeverFirst())
    layout = Layout(queue.subspace)
    waiters = Waiters(layout, layout.waiting_pops)

    class Losing(FaultyDatabase):
        """Loses the answer when the client begins to wait; pushes an item at its next try."""

        begun = 0

        def commit(self, transaction: FaultyTransaction) -> None:
            transaction.wrapped.commit().wait()
            if not waiting_clients(db, queue):
                return
            self.begun += 1
            if self.begun == 1:
                fdbqueue.transactional(lambda tr: waiters.wait(tr, None, uuid4().bytes))(db)
                raise fdbqueue.FDBError(1021)
            if self.begun == 2:
                queue.push(db, "item")  # this wakes the other client

    assert PriorityQueue(queue.subspace).pop(Losing(db), wait=TIMEOUT) is not None
    wait_until(lambda: not waiting_clients(db, queue))


def test_a_push_under_way_when_a_client_begins_to_wait_wakes_it(
    consumers: Consumers, db: Any, queue: PriorityQueue
) -> None:
    tr = db.create_transaction()
    queue.push(tr, "job")
    consumers.start(1)
    tr.commit().wait()
    consumers.join()
    assert consumers.taken == ["job"]
    wait_until(lambda: not waiting_clients(db, queue))


def test_pushes_that_wake_the_same_client_wake_others_too(
    consumers: Consumers, db: Any, queue: PriorityQueue
) -> None:
    queue.push(db, "first")
    assert queue.pop(db).value == "first"  # later pushes do not conflict over the options
    consumers.start(3)
    pushes = [db.create_transaction() for _ in range(3)]
    for number, tr in enumerate(pushes):
        queue.push(tr, number)
    for tr in pushes:
        tr.commit().wait()
    consumers.join()
    assert sorted(consumers.taken) == [0, 1, 2]


@pytest.mark.usefixtures("_no_second_look")
def test_a_push_of_several_items_wakes_as_many_clients(
    consumers: Consumers, db: Any, queue: PriorityQueue
) -> None:
    consumers.start(5)
    queue.push_many(db, range(4))
    assert len(waiting_clients(db, queue)) == 1
    consumers.wait(4)
    assert fdbqueue.admin.check(db, queue).ok
    PriorityQueue(queue.subspace).push(db, 4)
    consumers.join()
    assert sorted(consumers.taken) == list(range(5))


def test_clients_that_were_killed_while_they_waited_swallow_no_wake_up(
    consumers: Consumers, db: Any, queue: PriorityQueue
) -> None:
    """A push finds a dead client first, and the sentinels look."""
    consumers.start(3)
    layout = Layout(queue.subspace)
    for number in range(3):
        for prefix in (layout.waiting_pops, layout.waiting_claims):
            db[layout.entry_key(prefix, b"\xff" * 15 + bytes([number]))] = b""
        PriorityQueue(queue.subspace).push(db, number)
        consumers.wait(number + 1)
    consumers.join()
    assert sorted(consumers.taken) == list(range(3))


@pytest.mark.parametrize("event", ["resume", "limit", "slot"])
@pytest.mark.parametrize("consumers", ["claim"], indirect=True)
@pytest.mark.usefixtures("_no_second_look")
def test_clients_wake_when_a_limit_lets_them_go_on(
    consumers: Consumers, db: Any, queue: PriorityQueue, event: str
) -> None:
    """An end of a claim frees a slot, a resumed queue and a higher limit free all."""
    queue.push_many(db, range(6))
    queue.configure(db, paused=event == "resume", concurrency=None if event == "resume" else 1)
    claim = queue.claim(db)
    consumers.start(5)
    consumers.db.clear()
    if event == "slot":
        queue.ack(consumers.db, claim)
    else:
        queue.configure(db, paused=False, concurrency=None)
    consumers.join()
    assert event != "slot" or consumers.db.transactions <= 5 * 10


@pytest.mark.parametrize("end", ["time", "cancel", "interrupt"])
def test_a_client_leaves_when_it_stops_waiting(
    db: Any, queue: PriorityQueue, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if end == "time":
        assert queue.pop(db, wait=0.2) is None
        assert queue.claim(db, wait=0.2) is None
        assert not waiting_clients(db, queue)
    elif end == "cancel":

        async def wait_for_an_item() -> None:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(aio.PriorityQueue(queue).pop(db, wait=TIMEOUT), 0.5)

        asyncio.run(wait_for_an_item())
    else:

        def interrupt(*_: Any) -> Any:
            assert len(waiting_clients(db, queue)) == 1
            raise KeyboardInterrupt

        monkeypatch.setattr(sans_io, "sleep_on", interrupt)
        with pytest.raises(KeyboardInterrupt):
            queue.pop(db, wait=TIMEOUT)
    wait_until(lambda: not waiting_clients(db, queue))


# Their keys, from the oldest client to the newest


class Keys:
    """The waiting clients of a queue, each act of which is a transaction."""

    def __init__(self, db: Any, space: Subspace) -> None:
        self._db = db
        layout = Layout(space)
        self._range = layout.range_of(layout.waiting_claims)
        self._waiters = Waiters(layout, layout.waiting_claims)

    def all(self) -> list[bytes]:
        return [row.key for row in self._db.get_range(*self._range)]

    def do(self, verb: str, *args: Any, **options: Any) -> Any:
        act = getattr(self._waiters, verb)
        return fdbqueue.transactional(lambda tr: act(tr, *args, **options))(self._db)

    def wait(self, name: bytes, **options: Any) -> Any:
        return self.do("wait", None, name, **options)


@pytest.fixture
def keys(db: Any, queue: PriorityQueue) -> Keys:
    return Keys(db, queue.subspace)


def test_a_new_process_wakes_the_clients_on_which_most_depends(keys: Keys) -> None:
    """The oldest one and the newest one may be dead; those that are alive wait again."""
    old = [keys.wait(bytes([number]) * 16).key for number in range(4)]
    new = keys.wait(b"\x09" * 16, is_first=True)
    assert keys.all() == [*old[1:3], new.key]


def test_a_client_that_finds_items_by_itself_wakes_others_for_the_rest(
    db: Any, queue: PriorityQueue, keys: Keys
) -> None:
    sentinel, second, *others = [keys.wait(bytes([number]) * 16).key for number in range(17)]
    keys.do("leave", others.pop(3), has_found=False)  # its time was over
    assert keys.all() == [sentinel, second, *others]
    keys.do("leave", others.pop(3), has_found=True)  # it took the last item
    assert keys.all() == [second, *others]
    queue.push(db, "left")
    others.pop()
    keys.do("leave", others.pop(0), has_found=True)
    assert keys.all() == []


# Clients of one process, of which one watches


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
