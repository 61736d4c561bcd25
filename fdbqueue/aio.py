"""The same queues for asyncio: the same names, to be awaited.

    from fdbqueue import aio

    jobs = await aio.PriorityQueue.named(db, "jobs")
    await jobs.push(db, {"send": "ada@example.com"})
    item = await jobs.pop(db, wait=60)

Pushes and pops that come at the same time share transactions, as those of threads do, and threads;
every other call runs in a thread of this module's pool. A call that waits for an item holds none.
What belongs into one transaction is a plain function, `fdbqueue.transactional`, that
`await run(function, db, ...)` runs.

A pop or claim that is cancelled takes nothing, whenever and however often it is cancelled: it ends
with `CancelledError` once its transaction has ended and what that took is back in its place. If
the database fails then, it raises that error instead. If the event loop is closed, or the program
ends, before the call has its items, a thread puts them back. A push or another change that is
cancelled may take effect all the same.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, TypeVar

from fdbqueue.coordination.combiner import Combiner
from fdbqueue.coordination.handover import HandOver, call, finished, pool, start
from fdbqueue.coordination.staged_pops import LEASE
from fdbqueue.coordination.watches import begin_watch, checked_wait
from fdbqueue.errors import LeaseLost
from fdbqueue.operations.push import Push
from fdbqueue.operations.slots import First
from fdbqueue.queue import fifo, registry
from fdbqueue.queue import priority as priority_queue
from fdbqueue.queue import task as task_queue
from fdbqueue.queue.arguments import checked_number
from fdbqueue.queue.base import BaseQueue, store_of
from fdbqueue.queue.priority import entries_of
from fdbqueue.queue.task import first_of
from fdbqueue.types import Claim, Item, Priority, Task

__all__ = [
    "PriorityQueue",
    "Queue",
    "TaskQueue",
    "drop_queue",
    "queue_names",
    "queues",
    "rename_queue",
    "run",
]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_S = TypeVar("_S", bound="BaseQueue[Any]")
_Request = TypeVar("_Request")
_Result = TypeVar("_Result")

_PAGE = 500


async def run(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a function in a thread of the pool: one that is given a database, for example.

    >>> import asyncio, fdbqueue
    >>> asyncio.run(run(fdbqueue.queue_names, fdbqueue.open("memory:")))
    []
    """
    work = functools.partial(function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(pool, work)


def _awaitable(function: Callable[_P, _T]) -> Callable[_P, Awaitable[_T]]:
    @functools.wraps(function)
    async def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await run(function, *args, **kwargs)

    return call


queue_names = _awaitable(registry.queue_names)
queues = _awaitable(registry.queues)
rename_queue = _awaitable(registry.rename_queue)
drop_queue = _awaitable(registry.drop_queue)


async def _combined(
    combiner: Combiner[_Request, _Result],
    db: Any,
    request: _Request,
    undo: Callable[[_Result], object] | None = None,
) -> _Result:
    """Do a request together with others; it goes on even if the task is cancelled."""
    handover: HandOver[_Result] = HandOver(undo)
    combiner.submit(db, request, start, handover.arrive)
    return await handover.result()


def _method(
    method: Callable[Concatenate[_S, _P], _T],
) -> Callable[Concatenate[_Store, _P], Awaitable[_T]]:
    """The method of the same name, to be awaited."""

    @functools.wraps(method)
    async def call(self: _Store, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        bound: Callable[_P, _T] = getattr(self.queue, method.__name__)
        return await run(bound, *args, **kwargs)

    return call


def _listed(
    method: Callable[Concatenate[_S, _P], Iterator[_T]],
) -> Callable[Concatenate[_Store, _P], Awaitable[list[_T]]]:
    """What the method of the same name gives one by one, in a list."""

    @functools.wraps(method)
    async def call(self: _Store, /, *args: _P.args, **kwargs: _P.kwargs) -> list[_T]:
        bound: Callable[_P, Iterator[_T]] = getattr(self.queue, method.__name__)
        return await run(lambda: list(bound(*args, **kwargs)))

    return call


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _cancel_all(watches: list[Any]) -> None:
    for watch in watches:
        watch.cancel()


class _Store:
    """What all kinds of queues have."""

    def __init__(self, queue: Any) -> None:
        self.queue = queue
        """The queue whose methods are not to be awaited."""

    def __repr__(self) -> str:
        return f"<aio.{repr(self.queue)[1:]}"

    size = _method(BaseQueue.size)
    is_empty = _method(BaseQueue.is_empty)
    options = _method(BaseQueue.options)
    set_max_size = _method(BaseQueue.set_max_size)
    throughput = _method(BaseQueue.throughput)
    remove = _method(BaseQueue.remove)
    clear = _method(BaseQueue.clear)
    ack = _method(BaseQueue.ack)
    nack = _method(BaseQueue.nack)
    extend = _method(BaseQueue.extend)
    release = _method(BaseQueue.release)
    state = _method(BaseQueue.state)
    pause = _method(BaseQueue.pause)
    resume = _method(BaseQueue.resume)
    set_concurrency = _method(BaseQueue.set_concurrency)
    set_max_attempts = _method(BaseQueue.set_max_attempts)
    retry_dead_letter = _method(BaseQueue.retry_dead_letter)
    drop_dead_letter = _method(BaseQueue.drop_dead_letter)

    dead_letters = _listed(BaseQueue.dead_letters)

    async def claim(self, db: Any, *, wait: float = 0, **options: Any) -> Claim | None:
        """As `fdbqueue.PriorityQueue.claim`; a cancelled call releases what it claimed."""
        return await self._claim(db, wait, None, options)

    async def _claim(
        self, db: Any, wait: float, first: First | None, options: dict[str, Any]
    ) -> Claim | None:
        def release(claim: Claim | None) -> None:
            with suppress(LeaseLost):  # the items are back already
                self.queue.release(db, claim)

        claim = functools.partial(self.queue.claim, db, **options)
        keys = functools.partial(store_of(self.queue).keys_to_watch_claims, first=first)
        return await self._until_found(db, wait, lambda: call(claim, release), keys)

    async def put_back(self, db: Any, items: Iterable[Item]) -> None:
        """As `fdbqueue.PriorityQueue.put_back`; a cancel does not keep it from its end."""
        await finished(pool.submit(self.queue.put_back, db, list(items)))

    async def wait(self, db: Any, seconds: float) -> bool:
        """Sleep until there is an item, and leave it; whether there is one."""
        store = store_of(self.queue)

        async def has_some() -> bool:
            return not await run(store.is_idle, db)

        return await self._until_found(db, seconds, has_some, store.keys_to_watch)

    async def _until_found(
        self,
        db: Any,
        wait: float,
        look: Callable[[], Awaitable[_T]],
        keys: Callable[[Any], list[bytes]],
        ends: Sequence[asyncio.Future[Any]] = (),
    ) -> _T:
        """Look, and again whenever a key changes that `keys(tr)` returns, until there is something.

        When the time is over there is one more look; once one of `ends` is done, there is none.
        """
        deadline = time.monotonic() + checked_wait(db, wait)
        while True:
            found = await look()
            left = deadline - time.monotonic()
            if found or left <= 0:
                return found
            await self._sleep(db, min(left, LEASE), keys, ends)
            if any(end.done() for end in ends):
                return found

    async def _sleep(
        self,
        db: Any,
        seconds: float,
        keys: Callable[[Any], list[bytes]],
        ends: Sequence[asyncio.Future[Any]],
    ) -> None:
        """Sleep until one of the keys that `keys(tr)` returns changes; not at all for none."""
        seconds = min(seconds, await run(store_of(self.queue).sweeper.seconds_left, db))
        watches = await call(functools.partial(begin_watch, db, keys), _cancel_all)
        if not watches:
            return
        loop = asyncio.get_running_loop()
        fired = loop.create_future()

        def wake(_: Any) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_settle, fired)

        try:
            for watch in watches:
                watch.on_ready(wake)
            # `wait_for` drops a cancel that comes when the watch has fired, before Python 3.12.
            await asyncio.wait([fired, *ends], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            _cancel_all(watches)

    async def pop_until(
        self, ends: Sequence[asyncio.Future[Any]], db: Any, n: int, wait: float
    ) -> list[Item]:
        """Pop as `pop_many`, and wait for items no longer than until one of `ends` is done."""
        return await self._pop(db, n, False, wait, ends)

    async def _pop(
        self,
        db: Any,
        n: int,
        at_max: bool,
        wait: float,
        ends: Sequence[asyncio.Future[Any]] = (),
    ) -> list[Any]:
        checked_number(n)
        store = store_of(self.queue)
        sweeper = store.sweeper
        put_back = functools.partial(self.queue.put_back, db)

        async def look() -> list[Any]:
            while n:
                is_ready = sweeper.is_ready
                if sweeper.is_time():
                    is_ready = await run(sweeper.prepare, db, n)
                if is_ready:
                    taken: list[Any] = await _combined(store.pops, db, (n, at_max), put_back)
                    if taken:
                        return taken
                if not sweeper.is_behind:
                    break  # else others took what had come
            return []

        wait = checked_wait(db, wait)
        return await self._until_found(db, wait if n else 0, look, store.keys_to_watch, ends)

    async def _items(self, db: Any, options: dict[str, Any]) -> AsyncIterator[Item]:
        left = options.pop("limit")
        while True:
            page = min(left, _PAGE) if left else _PAGE
            read = functools.partial(self.queue.items, db, limit=page, **options)
            found = await run(lambda read=read: list(read()))  # type: ignore[misc]
            for item in found:
                yield item
            if len(found) < page or left == len(found):
                return
            left -= len(found) if left else 0
            options["after"] = found[-1]


class PriorityQueue(_Store):
    """`fdbqueue.PriorityQueue`, whose methods are awaited and take a database.

    A pop or claim that is cancelled ends when what it took is back in its place. A push that is
    cancelled may take effect all the same.

    >>> import asyncio, fdbqueue
    >>> async def main():
    ...     db = fdbqueue.open("memory:")
    ...     jobs = await PriorityQueue.named(db, "jobs")
    ...     await jobs.push(db, "later", 5)
    ...     await jobs.push(db, "now", 1)
    ...     return [item.value async for item in jobs.items(db)], (await jobs.pop(db)).value
    >>> asyncio.run(main())
    (['now', 'later'], 'now')
    """

    @classmethod
    async def named(cls, db: Any, name: str, **options: Any) -> PriorityQueue:
        """As `fdbqueue.PriorityQueue.named`."""
        return cls(await run(priority_queue.PriorityQueue.named, db, name, **options))

    @classmethod
    async def existing(cls, db: Any, name: str) -> PriorityQueue:
        """As `fdbqueue.PriorityQueue.existing`."""
        return cls(await run(priority_queue.PriorityQueue.existing, db, name))

    peek = peek_min = _method(priority_queue.PriorityQueue.peek_min)
    peek_max = _method(priority_queue.PriorityQueue.peek_max)
    peek_many = _method(priority_queue.PriorityQueue.peek_many)
    counts = _method(priority_queue.PriorityQueue.counts)
    reprioritize = _method(priority_queue.PriorityQueue.reprioritize)

    async def push_many(
        self,
        db: Any,
        values: Iterable[Any],
        priority: Priority = 0,
        *,
        priorities: Iterable[Priority] | None = None,
        delay: float | None = None,
        at: datetime | None = None,
        ttl: float | None = None,
        as_many_as_fit: bool = False,
        raise_if_full: bool = False,
    ) -> list[Item]:
        """As `fdbqueue.PriorityQueue.push_many`."""
        store = store_of(self.queue)
        entries = entries_of(store, values, priority, priorities, delay=delay, at=at, ttl=ttl)
        push = Push(entries, as_many_as_fit)
        keys = await _combined(store.pushes, db, push) if entries else []
        if raise_if_full:
            store.check_room(push, keys)
        pushed = store.pushed(entries, keys)
        self._log(db, "pushed to", pushed)
        return pushed

    async def push(
        self,
        db: Any,
        value: Any,
        priority: Priority = 0,
        *,
        unique: str | None = None,
        **options: Any,
    ) -> Item | None:
        """As `fdbqueue.PriorityQueue.push`."""
        if unique is not None:
            push = functools.partial(self.queue.push, unique=unique, **options)
            pushed: Item | None = await run(push, db, value, priority)
            return pushed
        return next(iter(await self.push_many(db, (value,), priority, **options)), None)

    async def pop_many(self, db: Any, n: int, max: bool = False, *, wait: float = 0) -> list[Item]:
        """As `fdbqueue.PriorityQueue.pop_many`; a cancelled call puts back what it took."""
        items = await self._pop(db, n, max, wait)
        self._log(db, "popped from", items)
        return items

    def _log(self, db: Any, verb: str, items: list[Item]) -> None:
        if logging.getLogger("fdbqueue").isEnabledFor(logging.INFO):
            start(functools.partial(store_of(self.queue).log, db, verb, items))

    async def pop_min(self, db: Any, *, wait: float = 0) -> Item | None:
        """As `fdbqueue.PriorityQueue.pop_min`."""
        return next(iter(await self.pop_many(db, 1, wait=wait)), None)

    pop = pop_min

    async def pop_max(self, db: Any, *, wait: float = 0) -> Item | None:
        """As `fdbqueue.PriorityQueue.pop_max`."""
        return next(iter(await self.pop_many(db, 1, max=True, wait=wait)), None)

    def items(
        self,
        db: Any,
        *,
        priority: Any = None,
        limit: int = 0,
        after: Item | str | None = None,
        reverse: bool = False,
    ) -> AsyncIterator[Item]:
        """As `fdbqueue.PriorityQueue.items`, for `async for`."""
        options = {"priority": priority, "limit": limit, "after": after, "reverse": reverse}
        return self._items(db, options)


class Queue(_Store):
    """`fdbqueue.Queue`, whose methods are awaited and take a database.

    >>> import asyncio, fdbqueue
    >>> async def main():
    ...     db, mail = fdbqueue.open("memory:"), Queue(fdbqueue.Queue(fdbqueue.Subspace(("m",))))
    ...     await mail.enqueue(db, "first")
    ...     return (await mail.dequeue(db)).value
    >>> asyncio.run(main())
    'first'
    """

    enqueue = _method(fifo.Queue.enqueue)
    enqueue_many = _method(fifo.Queue.enqueue_many)
    peek = _method(fifo.Queue.peek)

    async def dequeue_many(self, db: Any, n: int, *, wait: float = 0) -> list[Item]:
        """As `fdbqueue.Queue.dequeue_many`; a cancelled call puts back what it took."""
        return await self._pop(db, n, False, wait)

    async def dequeue(self, db: Any, *, wait: float = 0) -> Item | None:
        """As `fdbqueue.Queue.dequeue`."""
        return next(iter(await self.dequeue_many(db, 1, wait=wait)), None)

    def items(
        self, db: Any, *, limit: int = 0, after: Item | str | None = None, reverse: bool = False
    ) -> AsyncIterator[Item]:
        """As `fdbqueue.Queue.items`, for `async for`."""
        return self._items(db, {"limit": limit, "after": after, "reverse": reverse})


class TaskQueue(_Store):
    """`fdbqueue.TaskQueue`, whose methods are awaited and take a database.

    >>> import asyncio, fdbqueue
    >>> async def main():
    ...     db = fdbqueue.open("memory:")
    ...     tasks = await TaskQueue.named(db, "tasks")
    ...     await tasks.push(db, priority=2, agent_name="ada", payload="hers")
    ...     return [task.payload for task in await tasks.get_tasks_for_agent(db, "ada")]
    >>> asyncio.run(main())
    ['hers']
    """

    @classmethod
    async def named(cls, db: Any, name: str, **options: Any) -> TaskQueue:
        """As `fdbqueue.TaskQueue.named`."""
        return cls(await run(task_queue.TaskQueue.named, db, name, **options))

    push = _method(task_queue.TaskQueue.push)
    push_many = _method(task_queue.TaskQueue.push_many)
    peek = _method(task_queue.TaskQueue.peek)
    get_task = _method(task_queue.TaskQueue.get_task)
    get_stats = _method(task_queue.TaskQueue.get_stats)
    counts = _method(task_queue.TaskQueue.counts)
    position = _method(task_queue.TaskQueue.position)
    set_agent_concurrency = _method(task_queue.TaskQueue.set_agent_concurrency)
    get_all_tasks = _listed(task_queue.TaskQueue.get_all_tasks)
    get_tasks_for_agent = _listed(task_queue.TaskQueue.get_tasks_for_agent)
    get_tasks_for_client = _listed(task_queue.TaskQueue.get_tasks_for_client)

    async def reprioritize(self, db: Any, task_id: str, **changes: Any) -> bool:
        """As `fdbqueue.TaskQueue.reprioritize`."""
        return await run(self.queue.reprioritize, db, task_id, **changes)

    async def claim(
        self, db: Any, *, wait: float = 0, agent: str | None = None, **options: Any
    ) -> Claim | None:
        """As `fdbqueue.TaskQueue.claim`; a cancelled call releases what it claimed."""
        first = None if agent is None else first_of(self.queue, agent)
        return await self._claim(db, wait, first, {"agent": agent, **options})

    async def pop_many(self, db: Any, n: int, *, wait: float = 0) -> list[Task]:
        """As `fdbqueue.TaskQueue.pop_many`; a cancelled call puts back what it took."""
        return await self._pop(db, n, False, wait)

    async def pop(self, db: Any, *, agent: str | None = None, wait: float = 0) -> Task | None:
        """As `fdbqueue.TaskQueue.pop`; a cancelled call puts back what it took."""
        if agent is None:
            return next(iter(await self.pop_many(db, 1, wait=wait)), None)
        store = store_of(self.queue)
        first = first_of(self.queue, agent)

        def put_back(task: Task | None) -> None:
            self.queue.put_back(db, [task])

        pop = functools.partial(store.try_pop_of, db, first)
        keys = functools.partial(store.keys_to_watch, first=first)
        task: Task | None = await self._until_found(db, wait, lambda: call(pop, put_back), keys)
        return task
