"""The queues for asyncio: the same results, and nothing lost when a task is cancelled."""

from __future__ import annotations

import asyncio
import gc
import inspect
import random
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import aio
from fdbqueue.coordination import event_loop
from fdbqueue.testing import FaultyDatabase
from tests.support.asleep import Asleep
from tests.support.waiting import run_what_is_ready, until, wait_until

_T = TypeVar("_T")


def run(main: Coroutine[Any, Any, _T]) -> _T:
    return asyncio.run(asyncio.wait_for(main, 120))


def parameters(function: Any) -> list[tuple[Any, ...]]:
    given = inspect.signature(function).parameters.values()
    return [(each.name, each.kind, each.default) for each in given]


@pytest.mark.parametrize("kind", ["PriorityQueue", "Queue", "TaskQueue", "Worker"])
def test_an_asyncio_class_has_the_names_and_parameters_of_the_blocking_class(kind: str) -> None:
    blocking, awaited = getattr(fdbqueue, kind), getattr(aio, kind)
    names = [name for name in dir(blocking) if not name.startswith("_")]
    own = {"follow"}  # an iterator over the changes of an item
    assert [name for name in dir(awaited) if name not in own and name[0] != "_"] == names
    for name in names:
        here, there = getattr(awaited, name), getattr(blocking, name)
        assert callable(here) == callable(there)
        if callable(there):
            assert (here.__name__, parameters(here)) == (there.__name__, parameters(there))


def test_every_database_function_exists_with_the_same_parameters() -> None:
    blocking = {
        name: function
        for module in (fdbqueue, fdbqueue.admin)
        for name in module.__all__
        if inspect.isfunction(function := getattr(module, name))
        and [each[0] for each in parameters(function)][:1] in (["tr"], ["db"])
    }
    assert {"existing_queue", "overview", "check"} <= blocking.keys()
    for name, function in blocking.items():
        awaited = getattr(aio, name)
        assert inspect.iscoroutinefunction(awaited)
        assert parameters(awaited) == parameters(function)
        assert name in aio.__all__


@pytest.mark.parametrize("kind", [aio.PriorityQueue, aio.Queue, aio.TaskQueue])
def test_no_call_makes_a_transaction_in_the_thread_of_the_event_loop(
    db: Any, name: str, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when a queue is opened, nor when a listing sweeps or looks for an item."""
    create = type(db).create_transaction

    def create_transaction(self: Any) -> Any:
        assert asyncio._get_running_loop() is None
        return create(self)

    monkeypatch.setattr(type(db), "create_transaction", create_transaction)

    async def main() -> None:
        queue = await kind.named(db, name, keep=10)
        new = [{}, {}] if kind is aio.TaskQueue else ["a", "b"]
        await queue.push_many(db, new)
        first, second = [item async for item in queue.items(db)]
        assert [info.item for info in await queue.items(db, state="ready", after=first)] == [second]
        for _ in range(2):
            await queue.ack(db, await queue.claim(db))
        done = await queue.items(db, state="done", after=second)  # the newest one first
        assert [info.item for info in done] == [first]
        for opened in (await kind.existing(db, name), await aio.existing_queue(db, name)):
            assert type(opened) is kind
            assert await opened.items(db, state="dead") == []
        assert (await aio.check(db, queue)).ok

    run(main())


def test_a_push_wakes_a_waiting_pop(db: Any, space: Subspace, asleep: Asleep) -> None:
    """More calls wait than there are threads."""

    async def main() -> None:
        mail = aio.Queue(fdbqueue.Queue(space))
        waiting = [asyncio.ensure_future(mail.dequeue(db, wait=30)) for _ in range(100)]
        await until(lambda: asleep.count >= 100)
        assert not any(task.done() for task in waiting)
        await mail.enqueue_many(db, list(range(100)))
        items = await asyncio.gather(*waiting)
        assert sorted(item.value for item in items) == list(range(100))
        assert await mail.dequeue(db, wait=0.01) is None
        assert not await mail.wait(db, 0.01)

    run(main())


def test_each_call_takes_effect_once_despite_lost_replies(
    db: Any, name: str, rng: random.Random
) -> None:
    faulty = FaultyDatabase(db, before=0.2, after=0.2, conflict=0.1, seed=rng.randrange(2**32))

    async def main() -> list[Any]:
        jobs = await aio.PriorityQueue.named(faulty, f"{name}jobs")
        await asyncio.gather(*(jobs.push(faulty, number) for number in range(100)))
        items = await asyncio.gather(*(jobs.pop(faulty) for _ in range(100)))
        return [item.value for item in items]

    assert sorted(run(main())) == list(range(100))


async def _tasks(db: Any, name: str) -> aio.TaskQueue:
    tasks = await aio.TaskQueue.named(db, name)
    await tasks.push_many(db, [{"payload": n} for n in range(40)])
    return tasks


async def _jobs(db: Any, name: str) -> aio.PriorityQueue:
    jobs = await aio.PriorityQueue.named(db, name)
    await jobs.push_many(db, list(range(40)))
    return jobs


TAKING: dict[str, tuple[Any, Any]] = {
    "pop": (_jobs, lambda jobs, db: jobs.pop(db, wait=60)),
    "pop_many": (_jobs, lambda jobs, db: jobs.pop_many(db, 3)),
    "claim": (_jobs, lambda jobs, db: jobs.claim(db, lease=600, n=2, wait=60)),
    "pop of a task": (_tasks, lambda tasks, db: tasks.pop(db, wait=60)),
    "claim of a task": (_tasks, lambda tasks, db: tasks.claim(db, lease=600, wait=60)),
}


@pytest.mark.parametrize("call", TAKING)
def test_a_cancelled_call_returns_its_items_before_it_ends_despite_repeated_cancels(
    db: Any, name: str, rng: random.Random, call: str
) -> None:
    make, take = TAKING[call]

    async def main() -> None:
        queue = await make(db, name)
        longest = 0.001
        left = 40
        for _ in range(25):
            taking = asyncio.ensure_future(take(queue, db))
            await asyncio.sleep(rng.random() * longest)
            was_cancelled = taking.cancel()
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(rng.choice((0, 0, 0.0005)))
                taking.cancel()
            try:
                taken = await taking
                left -= len(taken) if isinstance(taken, (list, fdbqueue.Claim)) else 1
                assert not was_cancelled
                longest /= 1.5
            except asyncio.CancelledError:
                longest *= 1.5
            assert await queue.size(db) == left
            if left < 10:
                break
        assert fdbqueue.admin.check(db, queue.queue).ok

    run(main())


def test_closing_a_loop_with_running_pops_loses_no_items(
    db: Any, name: str, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An item is back once Python has collected the task that was to have it.

    The wait for it fails if one is not.
    """
    pool = ThreadPoolExecutor(8)
    monkeypatch.setattr(event_loop, "pool", pool)
    queue = fdbqueue.PriorityQueue.named(db, f"{name}jobs")
    queue.push_many(db, range(100))
    jobs = aio.PriorityQueue(queue)
    tasks: list[asyncio.Task[Any]] = []
    for _ in range(20):
        loop = asyncio.new_event_loop()
        tasks += [loop.create_task(jobs.pop(db, wait=5)) for _ in range(3)]
        loop.run_until_complete(asyncio.sleep(rng.random() * 0.003))
        loop.close()
    taken = sum(task.done() for task in tasks)
    while tasks:
        tasks.pop()._log_destroy_pending = False

    def is_whole() -> bool:
        gc.collect()
        return queue.size(db) == 100 - taken

    wait_until(is_whole)
    pool.shutdown()  # pops that have begun may still take items, and give them back
    wait_until(is_whole)


def test_a_cancel_ends_a_wait_although_a_push_arrives_at_the_same_time(
    db: Any, name: str, rng: random.Random
) -> None:
    """`asyncio.wait_for` drops such a cancel before Python 3.12."""

    async def main() -> None:
        jobs = await aio.PriorityQueue.named(db, f"{name}jobs")
        for number in range(60):
            waiting = asyncio.ensure_future(jobs.wait(db, 60))
            await asyncio.sleep(0.002)
            pushing = asyncio.ensure_future(jobs.push(db, number))
            await asyncio.sleep(rng.random() * 0.004)
            if waiting.cancel():
                done, _ = await asyncio.wait([waiting], timeout=50)
                assert done
                assert waiting.cancelled()
            await pushing
            await jobs.clear(db)

    run(main())


def test_a_worker_runs_its_handlers_in_its_own_event_loop(db: Any, name: str) -> None:
    async def main() -> None:
        jobs = await _jobs(db, name)
        await jobs.configure(db, max_attempts=1)
        loops = []

        async def work(item: fdbqueue.Item) -> None:
            loops.append(asyncio.get_running_loop())
            if item.value == 3:
                raise ValueError("three")

        worker = aio.Worker(db, jobs, work, concurrency=4)
        report = await worker.run(drain=True)
        assert (report.done, report.failed) == (39, 1)
        assert worker.report == report
        assert loops == 40 * [asyncio.get_running_loop()]
        assert [info.item.value for info in await jobs.items(db, state="dead")] == [3]

    run(main())


@pytest.mark.parametrize("cancels", [1, 3])
def test_a_cancelled_worker_finishes_running_jobs_and_starts_no_others(
    db: Any, name: str, cancels: int
) -> None:
    async def main() -> None:
        tasks = await _tasks(db, name)
        began, go_on, ended = asyncio.Event(), asyncio.Event(), []

        async def work(task: fdbqueue.Task) -> None:
            began.set()
            await go_on.wait()
            ended.append(task.id)

        worker = asyncio.ensure_future(aio.Worker(db, tasks, work).run())
        await began.wait()
        for _ in range(cancels):
            worker.cancel()
            await run_what_is_ready()
        assert not worker.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await worker
        assert (len(ended), await tasks.size(db)) == (1, 39)
        assert await tasks.items(db, state="delayed") == []

    run(main())


def test_a_worker_ends_when_its_loop_is_closed(db: Any, name: str) -> None:
    queue = fdbqueue.PriorityQueue.named(db, f"{name}jobs")
    queue.push(db, "job")
    began = threading.Event()

    async def work(item: fdbqueue.Item) -> None:
        began.set()
        await asyncio.Event().wait()

    loop = asyncio.new_event_loop()
    running = loop.create_task(aio.Worker(db, aio.PriorityQueue(queue), work).run())
    loop.run_until_complete(until(began.is_set))
    threads = [each for each in threading.enumerate() if "aio.worker" in each.name]
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False
    loop.close()
    for each in threads:
        each.join(60)
        assert not each.is_alive()
    assert queue.claim(db, wait=30).attempt == 1  # as after any other shutdown
    assert not running.done()
