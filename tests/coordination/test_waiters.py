"""Clients of several processes that wait for the same queue: a push wakes one of them."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue, Worker, aio
from fdbqueue.coordination import sans_io, waiting
from fdbqueue.layout.keys import Layout
from fdbqueue.operations.waking import Waiters
from fdbqueue.testing import FaultyDatabase, FaultyTransaction
from tests.support.counting import CountingDatabase
from tests.support.waiting import wait_until

TIMEOUT = 60.0


class Sleeps:
    """Counts how often a client has fallen asleep."""

    begun = 0

    def have_begun(self, n: int) -> bool:
        return self.begun >= n


class NeverFirst(set[bytes]):
    """Says of every wait that it is not the first one of its process."""

    def __contains__(self, prefix: object) -> bool:
        return True


class FirstOfThread(set[bytes]):
    """Takes each thread for a process of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._of_thread = threading.local()

    def __contains__(self, prefix: object) -> bool:
        return getattr(self._of_thread, "has_waited", False)

    def add(self, prefix: bytes) -> None:
        self._of_thread.has_waited = True


@pytest.fixture(autouse=True)
def sleeps(monkeypatch: pytest.MonkeyPatch) -> Sleeps:
    """Let clients sleep until they are woken."""
    sleep_on, sleeps = sans_io.sleep_on, Sleeps()

    def sleep(*arguments: Any) -> Any:
        sleeps.begun += 1
        return sleep_on(*arguments)

    monkeypatch.setattr(waiting, "MAX_SLEEP", 10 * TIMEOUT)
    monkeypatch.setattr(waiting, "_have_waited", NeverFirst())
    monkeypatch.setattr(sans_io, "sleep_on", sleep)
    return sleeps


class Consumers:
    """Threads that each take one item, with a queue object of their own, as processes have."""

    def __init__(self, db: Any, space: Subspace, take: str, sleeps: Sleeps) -> None:
        self._db = db
        self._space = space
        self._take = take
        self._sleeps = sleeps
        self._threads: list[threading.Thread] = []
        self.taken: list[Any] = []

    def start(self, n: int) -> None:
        """Start consumers, one after the other has gone to sleep."""
        for _ in range(n):
            asleep = self._sleeps.begun + 1
            thread = threading.Thread(target=self._consume, daemon=True)
            thread.start()
            self._threads.append(thread)
            wait_until(partial(self._sleeps.have_begun, asleep))

    def _consume(self) -> None:
        queue = PriorityQueue(self._space)
        if self._take == "pop":
            self.taken.append(queue.pop(self._db, wait=10 * TIMEOUT).value)
        else:
            claim = queue.claim(self._db, wait=10 * TIMEOUT)
            self.taken.append(claim.item.value)
            queue.ack(self._db, claim)

    def wait(self, n: int) -> None:
        """Wait until this many items are taken."""
        wait_until(lambda: len(self.taken) >= n)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(TIMEOUT)
            assert not thread.is_alive()


def keys(db: Any, space: Subspace) -> list[bytes]:
    """Return the keys of the waiting clients, from the oldest one."""
    layout = Layout(space)
    return [row.key for row in db.get_range(*layout.range_of(layout.waiters))]


def leave_behind(db: Any, space: Subspace, take: str, name: bytes) -> bytes:
    """Store the key of a client that was killed while it waited."""
    layout = Layout(space)
    prefix = layout.waiting_pops if take == "pop" else layout.waiting_claims
    key = layout.entry_key(prefix, name)
    db[key] = b""
    return key


OLDEST, NEWEST = bytes(16), b"\xff" * 16

takes = pytest.mark.parametrize("take", ["pop", "claim"])


@pytest.fixture
def _no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every client wait until it is woken."""
    monkeypatch.setattr(waiting, "_MOMENT", 10 * TIMEOUT)
    monkeypatch.setattr(waiting, "_MOMENT_ALONE", 10 * TIMEOUT)


@pytest.mark.parametrize(("take", "n"), [("pop", 1), ("claim", 20)])
@pytest.mark.usefixtures("_no_second_look")
def test_a_push_wakes_one_client(
    db: Any, space: Subspace, sleeps: Sleeps, take: str, n: int
) -> None:
    counting = CountingDatabase(db)
    consumers = Consumers(counting, space, take, sleeps)
    consumers.start(n)
    begun = sleeps.begun
    counting.clear()
    for number in range(n):
        PriorityQueue(space).push(counting, number)
        consumers.wait(number + 1)
    consumers.join()
    # A client that is woken in vain sleeps again. If each push woke all, n * n / 2 would.
    assert sleeps.begun - begun <= n
    assert counting.transactions <= 5 * n
    wait_until(lambda: keys(db, space) == [])


def test_a_client_waits_once_if_the_answer_of_its_commit_is_lost(db: Any, space: Subspace) -> None:
    waiters = Waiters(Layout(space), Layout(space).waiting_pops)

    class Losing(FaultyDatabase):
        """Loses the answer when the client begins to wait; pushes an item at its next try."""

        begun = 0

        def commit(self, transaction: FaultyTransaction) -> None:
            transaction.wrapped.commit().wait()
            if not keys(db, space):
                return
            self.begun += 1
            if self.begun == 1:
                fdbqueue.transactional(lambda tr: waiters.wait(tr, None, uuid4().bytes))(db)
                raise fdbqueue.FDBError(1021)
            if self.begun == 2:
                PriorityQueue(space).push(db, "item")  # this wakes the other client

    item = PriorityQueue(space).pop(Losing(db), wait=TIMEOUT)
    assert item is not None
    wait_until(lambda: keys(db, space) == [])


def test_one_client_takes_itself_for_the_oldest_whatever_the_clocks_say(
    db: Any, space: Subspace
) -> None:
    """The name of a client begins with the time of its host, and several may begin at once."""
    layout = Layout(space)
    waiters = Waiters(layout, layout.waiting_claims)
    names = [hour.to_bytes(8, "big") + uuid4().bytes[8:] for hour in (7, 5, 9, 9, 1)]

    @fdbqueue.transactional
    def begin(tr: Any, name: bytes) -> Any:
        return waiters.wait(tr, None, name)

    began = [begin(db, name) for name in names]
    assert [waiter.is_sentinel for waiter in began] == [True, False, False, False, False]
    assert keys(db, space) == [waiter.key for waiter in began]
    fdbqueue.transactional(lambda tr: waiters.wake(tr, 1))(db)
    assert keys(db, space) == [waiter.key for waiter in began[:-1]]


@takes
def test_a_push_under_way_when_a_client_begins_to_wait_wakes_it(
    db: Any, space: Subspace, sleeps: Sleeps, take: str
) -> None:
    consumers = Consumers(db, space, take, sleeps)
    tr = db.create_transaction()
    PriorityQueue(space).push(tr, "job")
    consumers.start(1)
    tr.commit().wait()
    consumers.join()
    assert consumers.taken == ["job"]
    wait_until(lambda: keys(db, space) == [])


def test_two_pushes_that_wake_the_same_client_wake_another_one_too(
    db: Any, space: Subspace, sleeps: Sleeps
) -> None:
    consumers = Consumers(db, space, "pop", sleeps)
    queue = PriorityQueue(space)
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


@takes
@pytest.mark.usefixtures("_no_second_look")
def test_a_push_of_several_items_wakes_as_many_clients(
    db: Any, space: Subspace, sleeps: Sleeps, take: str
) -> None:
    consumers = Consumers(db, space, take, sleeps)
    consumers.start(5)
    queue = PriorityQueue(space)
    queue.push_many(db, range(4))
    assert len(keys(db, space)) == 1
    consumers.wait(4)
    assert fdbqueue.admin.check(db, queue).ok
    PriorityQueue(space).push(db, 4)
    consumers.join()
    assert sorted(consumers.taken) == list(range(5))


@takes
def test_clients_that_were_killed_while_they_waited_swallow_no_wake_up(
    db: Any, space: Subspace, sleeps: Sleeps, take: str
) -> None:
    """A push finds a dead client first, and the sentinels look."""
    consumers = Consumers(db, space, take, sleeps)
    n = 3
    consumers.start(n)
    for number in range(n):
        leave_behind(db, space, take, NEWEST[1:] + bytes([number]))
        PriorityQueue(space).push(db, number)
        consumers.wait(number + 1)
    consumers.join()
    wait_until(lambda: keys(db, space) == [])


def test_a_new_process_removes_the_dead_clients_on_which_most_depends(
    db: Any, space: Subspace, sleeps: Sleeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes the newest client and the sentinel, and those that are alive wait again."""
    take = "claim"
    monkeypatch.setattr(waiting, "_have_waited", FirstOfThread())
    dead = [leave_behind(db, space, take, OLDEST[1:] + bytes([number])) for number in range(5)]
    consumers = Consumers(db, space, take, sleeps)

    def waits(alive: int, left: list[bytes]) -> bool:
        found = keys(db, space)
        return found[:-alive] == left and len(found) == alive + len(left)

    for alive, left in [(1, dead[1:-1]), (2, dead[2:-1]), (3, dead[3:-1])]:
        consumers.start(1)
        wait_until(partial(waits, alive, left))
    PriorityQueue(space).push_many(db, range(3))
    consumers.join()


def test_a_client_that_finds_items_by_itself_wakes_others_for_the_rest(
    db: Any, space: Subspace
) -> None:
    layout = Layout(space)
    waiters = Waiters(layout, layout.waiting_pops)
    sentinel, second, *others = [
        leave_behind(db, space, "pop", bytes([number])) for number in range(20)
    ]

    @fdbqueue.transactional
    def leave(tr: Any, key: bytes, *, has_found: bool) -> None:
        waiters.leave(tr, key, has_found=has_found)

    leave(db, others.pop(3), has_found=False)  # its time was over
    assert keys(db, space) == [sentinel, second, *others]
    leave(db, others.pop(3), has_found=True)  # it took the last item
    assert keys(db, space) == [second, *others]
    PriorityQueue(space).push(db, "left")
    others.pop()
    leave(db, others.pop(0), has_found=True)
    assert keys(db, space) == []


@pytest.mark.parametrize("end", ["time", "stop", "cancel", "interrupt"])
def test_a_client_leaves_when_it_stops_waiting(
    db: Any, space: Subspace, sleeps: Sleeps, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = PriorityQueue(space)
    if end == "time":
        assert queue.pop(db, wait=0.2) is None
        assert queue.claim(db, wait=0.2) is None
        assert keys(db, space) == []
    elif end == "stop":
        worker = Worker(db, queue, print)
        thread = threading.Thread(target=worker.run)
        thread.start()
        wait_until(partial(sleeps.have_begun, 1))
        assert len(keys(db, space)) == 1
        worker.stop()
        thread.join()
    elif end == "cancel":

        async def wait_for_an_item() -> None:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(aio.PriorityQueue(queue).pop(db, wait=TIMEOUT), 0.5)

        asyncio.run(wait_for_an_item())
    else:

        def interrupt(*_: Any) -> Any:
            assert len(keys(db, space)) == 1
            raise KeyboardInterrupt

        monkeypatch.setattr(sans_io, "sleep_on", interrupt)
        with pytest.raises(KeyboardInterrupt):
            queue.pop(db, wait=TIMEOUT)
    wait_until(lambda: keys(db, space) == [])


@pytest.mark.parametrize("event", ["resume", "limit", "slot"])
@pytest.mark.usefixtures("_no_second_look")
def test_clients_wake_when_a_limit_lets_them_go_on(
    db: Any, space: Subspace, sleeps: Sleeps, event: str
) -> None:
    """An end of a claim frees a slot, a resumed queue and a higher limit free all."""
    queue = PriorityQueue(space)
    queue.push_many(db, range(6))
    queue.configure(db, paused=event == "resume", concurrency=None if event == "resume" else 1)
    claim = queue.claim(db)
    counting = CountingDatabase(db)
    consumers = Consumers(counting, space, "claim", sleeps)
    consumers.start(5)
    counting.clear()
    if event == "resume":
        queue.configure(db, paused=False)
    elif event == "limit":
        queue.configure(db, concurrency=None)
    else:
        queue.ack(counting, claim)
    consumers.join()
    assert event != "slot" or counting.transactions <= 5 * 10
