"""Queues for asyncio, with the names and parameters of the blocking queues.

    from fdbqueue import aio

    jobs = await aio.PriorityQueue.named(db, "jobs")
    item = await jobs.pop(db, wait=60)

Await every method except `subspace`, `pushed_at` and `Worker.stop`. An iterator of a blocking queue
is a `Listing` here. To do several things in one transaction, decorate a plain function with
`fdbqueue.transactional` and call it with `await run(function, db, ...)`.

A cancelled pop or claim takes nothing: it raises `CancelledError` after its items are back in their
positions. If the database fails meanwhile, it raises that error, or 1021 if the disk fails after
the items were taken; the log then has them. If the event loop closes or the program ends, a thread
puts them back. A cancelled push or other change may still take effect.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Sequence
from concurrent import futures
from contextvars import copy_context
from datetime import datetime
from functools import partial
from itertools import islice
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

from fdb.subspace_impl import Subspace

from fdbqueue.coordination.event_loop import drive, finished, perform, run
from fdbqueue.coordination.sans_io import sans_io_of
from fdbqueue.options import Selecting
from fdbqueue.queue import backup as _backup
from fdbqueue.queue import check as _check
from fdbqueue.queue import overview as _overview
from fdbqueue.queue.base import BaseQueue
from fdbqueue.queue.following import follow
from fdbqueue.queue.priority import PriorityQueue as _PriorityQueue
from fdbqueue.queue.priority import Queue as _FifoQueue
from fdbqueue.queue.priority import ValueQueue
from fdbqueue.queue.schedules import Schedules as _Schedules
from fdbqueue.queue.steps import JobSteps as _JobSteps
from fdbqueue.queue.task import TaskQueue as _TaskQueue
from fdbqueue.types import (
    Database,
    Duration,
    Item,
    ItemInfo,
    ReadTransactor,
    State,
    Task,
    Transaction,
    V,
)
from fdbqueue.worker import presence, worker
from fdbqueue.worker.endings import WorkerReport
from fdbqueue.worker.invocation import FunctionHandler

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "Listing",
    "PriorityQueue",
    "Queue",
    "TaskQueue",
    "Worker",
    "backup",
    "check",
    "copy",
    "drop",
    "existing_queue",
    "overview",
    "queue_names",
    "rename",
    "rename_job",
    "restore",
    "run",
    "workers",
]

_PAGE = 500  # items that a listing reads at a time
_LOOK = 1.0  # seconds between looks whether the loop of a worker is closed

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Q = TypeVar("_Q", bound=BaseQueue[Any])
_VQ = TypeVar("_VQ", bound=ValueQueue[Any])
_I = TypeVar("_I", bound=Item | Task)
_H = TypeVar("_H", bound="_Handle[Any, Any]")

_Awaited: TypeAlias = Coroutine[Any, Any, _T]


def _function(function: Callable[_P, _T]) -> Callable[_P, _Awaited[_T]]:
    @functools.wraps(function)
    async def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await run(function, *args, **kwargs)

    return call


def _method(
    method: Callable[Concatenate[_Q, _P], _T],
) -> Callable[Concatenate[_Handle[Any, Any], _P], _Awaited[_T]]:
    @functools.wraps(method)
    async def call(self: _Handle[Any, Any], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await perform(method, self.queue, *args, **kwargs)

    return call


def _listed(
    method: Callable[Concatenate[_Q, _P], Iterator[_T]],
) -> Callable[Concatenate[_Handle[Any, Any], _P], Listing[_T]]:
    """Return a method that returns a `Listing` instead of an iterator."""

    @functools.wraps(method)
    def call(self: _Handle[Any, Any], /, *args: _P.args, **kwargs: _P.kwargs) -> Listing[_T]:
        return Listing(method(self.queue, *args, **kwargs))

    return call


def _opened(
    method: Callable[_P, BaseQueue[Any]], kind: Callable[[], type[_H]]
) -> Callable[_P, _Awaited[_H]]:
    """Return a coroutine function that opens a blocking queue and returns it as a `kind()`."""

    @functools.wraps(method)
    async def call(*args: _P.args, **kwargs: _P.kwargs) -> _H:
        return kind()(await run(method, *args, **kwargs))

    return call


class Listing(Generic[_T]):
    """Items that are read page by page, once: with `async for`, or as a list with `await`.

    Example:
        >>> async def main():
        ...     return await Listing(iter("ab")), [letter async for letter in Listing(iter("cd"))]
        >>> asyncio.run(main())
        (['a', 'b'], ['c', 'd'])
    """

    def __init__(self, items: Iterator[_T]) -> None:
        self._items = items

    async def __aiter__(self) -> AsyncIterator[_T]:
        while page := await run(self._read, _PAGE):
            for item in page:
                yield item

    def __await__(self) -> Generator[Any, Any, list[_T]]:
        return run(self._read, None).__await__()

    def _read(self, n: int | None) -> list[_T]:
        return list(islice(self._items, n))


class _Items(Protocol[_I]):
    @overload
    def __call__(
        self, tr: ReadTransactor, *, state: None = None, **which: Unpack[Selecting]
    ) -> Listing[_I]: ...

    @overload
    def __call__(
        self, tr: ReadTransactor, *, state: State, **which: Unpack[Selecting]
    ) -> Listing[ItemInfo]: ...


queue_names = _function(_overview.queue_names)
rename = _function(_overview.rename)
rename_job = _function(_overview.rename_job)
drop = _function(_overview.drop)
overview = _function(_overview.overview)
backup = _function(_backup.backup)
restore = _function(_backup.restore)
copy = _function(_backup.copy)
workers = _function(presence.workers)


class _Handle(Generic[_Q, _I]):
    """The methods of all queues."""

    def __init__(self, queue: _Q) -> None:
        self.queue = queue
        """The blocking queue."""

    def __repr__(self) -> str:
        return f"<aio.{repr(self.queue)[1:]}"

    @property
    def subspace(self) -> Subspace:
        """The subspace of the queue."""
        return self.queue.subspace

    def pushed_at(self, item: _I | str) -> datetime | None:
        """Return the time at which an item was pushed."""
        return self.queue.pushed_at(item)

    def follow(self, db: Database, item: _I | str) -> AsyncIterator[ItemInfo]:
        """Yield everything about an item now, and when its state, progress or log changes.

        End once it is done, dead or no longer kept. Cost: two reads of the item each second, and at
        its end.
        """
        return follow(self.queue, db, item)

    options = _method(BaseQueue[_I].options)
    configure = _method(BaseQueue[_I].configure)
    pop = _method(BaseQueue[_I].pop)
    pop_many = _method(BaseQueue[_I].pop_many)
    peek = _method(BaseQueue[_I].peek)
    peek_many = _method(BaseQueue[_I].peek_many)
    claim = _method(BaseQueue[_I].claim)
    ack = _method(BaseQueue[_I].ack)
    nack = _method(BaseQueue[_I].nack)
    extend = _method(BaseQueue[_I].extend)
    release = _method(BaseQueue[_I].release)
    result = _method(BaseQueue[_I].result)
    items: _Items[_I] = cast("_Items[_I]", _listed(BaseQueue[_I].items))
    search = _method(BaseQueue[_I].search)
    count = _method(BaseQueue[_I].count)
    change_all = _method(BaseQueue[_I].change_all)
    get = _method(BaseQueue[_I].get)
    state = _method(BaseQueue[_I].state)
    position = _method(BaseQueue[_I].position)
    retry = _method(BaseQueue[_I].retry)
    remove = _method(BaseQueue[_I].remove)
    cancel = _method(BaseQueue[_I].cancel)
    put_back = _method(BaseQueue[_I].put_back)
    wait = _method(BaseQueue[_I].wait)
    size = _method(BaseQueue[_I].size)
    counts = _method(BaseQueue[_I].counts)
    is_empty = _method(BaseQueue[_I].is_empty)
    stats = _method(BaseQueue[_I].stats)
    history = _method(BaseQueue[_I].history)
    clear = _method(BaseQueue[_I].clear)
    set_group = _method(BaseQueue[_I].set_group)
    group_settings = _method(BaseQueue[_I].group_settings)
    groups = _method(BaseQueue[_I].groups)


class JobSteps(Generic[V]):
    """`PriorityQueue.steps` for asyncio: await its methods."""

    def __init__(self, steps: _JobSteps[V]) -> None:
        self.all = _function(steps.all)
        self.signal = _function(steps.signal)
        self.retry_from = _function(steps.retry_from)


class Schedules(Generic[V]):
    """`PriorityQueue.schedules` for asyncio: await its methods."""

    def __init__(self, schedules: _Schedules[V]) -> None:
        self.add = _function(schedules.add)
        self.remove = _function(schedules.remove)
        self.pause = _function(schedules.pause)
        self.resume = _function(schedules.resume)
        self.run_now = _function(schedules.run_now)
        self.get = _function(schedules.get)
        self.all = _function(schedules.all)


class _ValueHandle(_Handle[_VQ, Item[V]], Generic[_VQ, V]):
    """The methods of queues of values."""

    @property
    def schedules(self) -> Schedules[V]:
        """The schedules that push items to this queue."""
        return Schedules(self.queue.schedules)

    @property
    def steps(self) -> JobSteps[V]:
        """The steps of its jobs, and their signals."""
        return JobSteps(self.queue.steps)


class PriorityQueue(_ValueHandle[_PriorityQueue[V], V], Generic[V]):
    """`fdbqueue.PriorityQueue` for asyncio: await its methods, and pass a database to them.

    Example:
        >>> import fdbqueue
        >>> async def main():
        ...     db = fdbqueue.open("memory:")
        ...     jobs = await PriorityQueue.named(db, "jobs")
        ...     await jobs.push_many(db, ["now", "later"])
        ...     return (await jobs.pop(db)).value, [item.value async for item in jobs.items(db)]
        >>> asyncio.run(main())
        ('now', ['later'])
    """

    kind = _PriorityQueue.kind
    named = staticmethod(_opened(_PriorityQueue[Any].named, lambda: PriorityQueue[Any]))
    existing = staticmethod(_opened(_PriorityQueue[Any].existing, lambda: PriorityQueue[Any]))
    push = _method(_PriorityQueue[V].push)
    push_many = _method(_PriorityQueue[V].push_many)
    pop_min = _method(BaseQueue[Item[V]].pop)
    pop_max = _method(_PriorityQueue[V].pop_max)
    pop_many = _method(_PriorityQueue[V].pop_many)
    peek_min = _method(BaseQueue[Item[V]].peek)
    peek_max = _method(_PriorityQueue[V].peek_max)
    peek_many = _method(_PriorityQueue[V].peek_many)
    update = _method(_PriorityQueue[V].update)


class Queue(_ValueHandle[_FifoQueue[V], V], Generic[V]):
    """`fdbqueue.Queue` for asyncio; see `PriorityQueue`."""

    kind = _FifoQueue.kind
    named = staticmethod(_opened(_FifoQueue[Any].named, lambda: Queue[Any]))
    existing = staticmethod(_opened(_FifoQueue[Any].existing, lambda: Queue[Any]))
    push = enqueue = _method(_FifoQueue[V].push)
    push_many = enqueue_many = _method(_FifoQueue[V].push_many)
    dequeue = _method(BaseQueue[Item[V]].pop)
    dequeue_many = _method(BaseQueue[Item[V]].pop_many)
    update = _method(_FifoQueue[V].update)


class TaskQueue(_Handle[_TaskQueue[V], Task[V]], Generic[V]):
    """`fdbqueue.TaskQueue` for asyncio; see `PriorityQueue`."""

    kind = _TaskQueue.kind
    named = staticmethod(_opened(_TaskQueue[Any].named, lambda: TaskQueue[Any]))
    existing = staticmethod(_opened(_TaskQueue[Any].existing, lambda: TaskQueue[Any]))
    push = _method(_TaskQueue[V].push)
    push_many = _method(_TaskQueue[V].push_many)
    get_all_tasks = _listed(_TaskQueue[V].get_all_tasks)
    get_tasks_for_agent = _listed(_TaskQueue[V].get_tasks_for_agent)
    get_tasks_for_client = _listed(_TaskQueue[V].get_tasks_for_client)
    get_task = _method(_TaskQueue[V].get_task)
    counts = _method(_TaskQueue[V].counts)
    get_stats = _method(_TaskQueue[V].get_stats)
    update = _method(_TaskQueue[V].update)


class Worker:
    """`fdbqueue.Worker` for asyncio: await its `run`. Options without a description are the same.

    A coroutine function runs in the event loop that awaits `run`, any other handler in a thread.
    Each running job needs a thread. A cancelled `run` stops the worker, and raises `CancelledError`
    once the running jobs have ended or the grace period is over. Signals do not stop it.

    Args:
        db: A database.
        queue: A queue of this module.
        handler: A function or coroutine function to call for each job.

    Example:
        >>> import fdbqueue
        >>> async def main():
        ...     db = fdbqueue.open("memory:")
        ...     jobs = await PriorityQueue.named(db, "jobs")
        ...     await jobs.push(db, 0)
        ...     async def work(item):
        ...         await asyncio.sleep(item.value)
        ...     return await Worker(db, jobs, work).run(drain=True)
        >>> asyncio.run(main())
        WorkerReport(done=1, failed=0, lost=0)
    """

    def __init__(
        self,
        db: Database,
        queue: _Handle[Any, Any],
        handler: Callable[[Any], object] | Callable[[Transaction, Any], object],
        *,
        concurrency: int = 1,
        lease: Duration = 30,
        prefetch: int = 100,
        store_results: bool = False,
        name: str | None = None,
        timeout: Duration | None = None,
        grace: Duration = 10,
    ) -> None:
        if not isinstance(queue, _Handle):
            raise TypeError(f"a worker works on a queue of fdbqueue.aio, not on {queue!r}")
        self._handler = FunctionHandler(handler)
        self._worker = worker.Worker(
            db,
            queue.queue,
            self._handler,
            concurrency=concurrency,
            lease=lease,
            prefetch=prefetch,
            store_results=store_results,
            name=name,
            timeout=timeout,
            grace=grace,
        )
        self.report = self._worker.report

    def stop(self) -> None:
        """Let the running jobs end, and start no others."""
        self._worker.stop()

    async def run(self, *, drain: bool = False, health: int | str | None = None) -> WorkerReport:
        """Do jobs until `stop` is called or this call is cancelled.

        Args:
            drain: Also stop once no job can be claimed and none is running.
            health: As for `fdbqueue.Worker.run`.
        """
        loop = self._handler.coroutines.loop = asyncio.get_running_loop()

        def stop_with_loop() -> None:
            """Stop the worker if the loop is closed, which cancels nothing."""
            while not futures.wait([work], _LOOK).done:
                if loop.is_closed():
                    self.stop()

        threads = futures.ThreadPoolExecutor(2, thread_name_prefix="fdbqueue.aio.worker")
        in_context = partial(copy_context().run, self._worker.run)
        work = threads.submit(in_context, drain=drain, health=health)
        threads.submit(stop_with_loop)
        threads.shutdown(wait=False)
        try:
            await asyncio.wait([asyncio.wrap_future(work)])
        except asyncio.CancelledError:
            self.stop()
            await finished(work)
            raise
        return work.result()


async def existing_queue(db: Database, name: str) -> PriorityQueue | Queue | TaskQueue:
    """Return the named queue of any kind, as `fdbqueue.existing_queue` does."""
    queue = await run(_overview.existing_queue, db, name)
    if queue.kind == "priority":
        return PriorityQueue(queue)
    return Queue(queue) if queue.kind == "fifo" else TaskQueue(queue)


async def check(
    tr: Transaction, queue: _Handle[Any, Any], *, repair: bool = False
) -> _check.CheckReport:
    """Verify a queue, as `fdbqueue.admin.check` does."""
    return await run(_check.check, tr, queue.queue, repair=repair)


async def until(
    ends: Sequence[asyncio.Future[Any]],
    queue: _Handle[Any, Any],
    method: str,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Call a method that waits, until one of `ends` is done."""
    blocking: Any = queue.queue
    operation: Any = sans_io_of(getattr(blocking.__class__, method))
    return await drive(operation(queue.queue, *args, **kwargs), ends)
