"""The queues for asyncio: the same results, and nothing lost when a task is cancelled."""

from __future__ import annotations

import asyncio
import gc
import inspect
import random
import threading
from collections.abc import Coroutine
from contextlib import suppress
from itertools import chain
from typing import Any, TypeVar

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import aio
from fdbqueue.errors import InvalidPriority, InvalidValue, QueueFull
from fdbqueue.testing import Clock, FaultyDatabase
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
    assert [name for name in dir(awaited) if not name.startswith("_")] == names
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


def test_concurrent_tasks_pop_each_item_once(db: Any, name: str, rng: random.Random) -> None:
    async def main() -> list[Any]:
        jobs = await aio.PriorityQueue.named(db, f"{name}jobs")

        async def work(task: int) -> list[Any]:
            taken = []
            for number in range(10):
                await jobs.push(db, [task, number], rng.randrange(3))
                if (item := await jobs.pop(db)) is not None:
                    taken.append(item.value)
            return taken

        taken = await asyncio.gather(*(work(task) for task in range(30)))
        left = [item.value for item in await jobs.pop_many(db, 1000)]
        return [*chain.from_iterable(taken), *left]

    assert sorted(run(main())) == [[task, number] for task in range(30) for number in range(10)]


def test_asyncio_methods_return_the_same_results(db: Any, name: str) -> None:
    async def main() -> None:
        jobs = await aio.PriorityQueue.named(db, f"{name}jobs", max_size=5)
        first, second = await jobs.push_many(db, ["a", "b"], priorities=[2, 1])
        assert [item async for item in jobs.items(db)] == [second, first]
        assert [item.value async for item in jobs.items(db, limit=1)] == ["b"]
        assert (await jobs.peek(db), await jobs.peek_max(db)) == (second, first)
        assert await jobs.counts(db) == {1: 1, 2: 1}
        assert (await jobs.reprioritize(db, first, 0)).priority == 0
        assert (await jobs.pop_max(db)).value == "b"
        claim = await jobs.claim(db)
        assert claim.item.value == "a"
        await jobs.ack(db, claim)
        assert (await jobs.size(db), await jobs.is_empty(db)) == (0, True)
        assert len(await jobs.push_many(db, range(7), as_many_as_fit=True)) == 5
        with pytest.raises(QueueFull):
            await jobs.push(db, "no room")
        assert (await jobs.options(db)).max_size == 5
        assert f"{name}jobs" in await aio.queue_names(db)
        await aio.rename(db, f"{name}jobs", f"{name}new")
        assert (await (await aio.PriorityQueue.existing(db, f"{name}new")).pop(db)).value == 0
        await aio.drop(db, f"{name}new")

    run(main())


@pytest.fixture
def never_blocked(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a coroutine makes a transaction in the thread of its event loop."""
    create = type(db).create_transaction

    def create_transaction(self: Any) -> Any:
        assert asyncio._get_running_loop() is None
        return create(self)

    monkeypatch.setattr(type(db), "create_transaction", create_transaction)


@pytest.mark.parametrize("state", [None, "delayed", "dead"])
@pytest.mark.usefixtures("never_blocked")
def test_a_listing_sweeps_in_another_thread(db: Any, name: str, state: Any) -> None:
    async def main() -> None:
        jobs = await aio.PriorityQueue.named(db, f"{name}jobs")
        await jobs.push(db, "job", delay=600)
        found = [item async for item in jobs.items(db, state=state)]
        assert len(found) == (state == "delayed")

    run(main())


@pytest.mark.parametrize("state", ["ready", "done"])
@pytest.mark.usefixtures("never_blocked")
def test_a_listing_behind_an_item_looks_for_it_in_another_thread(
    db: Any, name: str, state: Any
) -> None:
    async def main() -> None:
        jobs = await aio.PriorityQueue.named(db, f"{name}jobs")
        await jobs.configure(db, keep=10)
        first, second = await jobs.push_many(db, ["a", "b"])
        if state == "done":
            for _ in range(2):
                await jobs.ack(db, await jobs.claim(db))
            first, second = second, first  # the newest one first
        found = await jobs.items(db, state=state, after=first)
        assert [info.item for info in found] == [second]

    run(main())


def test_asyncio_methods_raise_the_same_errors(db: Any, name: str) -> None:
    async def main() -> None:
        jobs = await aio.PriorityQueue.named(db, f"{name}jobs")
        for pushing, error in [
            (jobs.push(db, {1, 2}), InvalidValue),
            (jobs.push(db, 1, True), InvalidPriority),
            (jobs.push_many(db, [1], priorities=[]), ValueError),
            (jobs.pop_many(db, -1), ValueError),
            (jobs.pop(db, wait=-1), ValueError),
        ]:
            with pytest.raises(error):
                await pushing
        results = await asyncio.gather(
            jobs.push(db, 1), jobs.push(db, object()), jobs.push(db, 2), return_exceptions=True
        )
        assert [type(result) for result in results] == [fdbqueue.Item, InvalidValue, fdbqueue.Item]

    run(main())


def test_a_push_wakes_a_waiting_pop(db: Any, space: Subspace, asleep: Asleep) -> None:
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


def test_a_cancelled_pop_takes_no_item(db: Any, name: str, rng: random.Random) -> None:
    """This holds for a cancel before, during and after the pop."""

    async def main() -> list[Any]:
        jobs = await aio.PriorityQueue.named(db, f"{name}jobs")
        await jobs.push_many(db, list(range(60)))
        taken = []
        longest = 0.001
        for _ in range(60):
            popping = asyncio.ensure_future(jobs.pop(db, wait=1))
            await asyncio.sleep(rng.random() * longest)
            popping.cancel()
            try:
                taken.append((await popping).value)
                longest /= 1.5
            except asyncio.CancelledError:
                longest *= 1.5
        assert 0 < len(taken) < 60
        return taken + [item.value for item in await jobs.pop_many(db, 100)]

    assert sorted(run(main())) == list(range(60))


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


def test_a_queue_works_in_consecutive_event_loops(db: Any, name: str) -> None:
    async def main(number: int) -> Any:
        jobs = await aio.PriorityQueue.named(db, f"{name}jobs")
        await jobs.push(db, number)
        return (await jobs.pop(db)).value

    assert [run(main(number)) for number in range(3)] == [0, 1, 2]


def test_tasks_and_claims(db: Any, name: str, asleep: Asleep) -> None:
    async def main() -> None:
        tasks = await aio.TaskQueue.named(db, f"{name}tasks", max_attempts=1)
        first = await tasks.push(db, priority=1, agent_name="ada", payload="first")
        await tasks.push_many(db, [{"payload": "second"}, {"priority": 5, "payload": "third"}])
        assert [task.payload for task in await tasks.get_all_tasks(db)] == [
            "first",
            "second",
            "third",
        ]
        assert [task.id for task in await tasks.get_tasks_for_agent(db, "ada")] == [first]
        assert (await tasks.pop(db, wait=1)).id == first
        claim = await tasks.claim(db, n=1, within=1)
        await tasks.nack(db, claim, error="busy")
        (letter,) = await tasks.items(db, state="dead")
        assert (letter.item.payload, await tasks.state(db, letter.item.id)) == ("second", "dead")
        await tasks.configure(db, paused=True)
        begun = asleep.count
        waits = asyncio.ensure_future(tasks.claim(db, wait=60))
        pops = asyncio.ensure_future(tasks.pop(db, wait=60))
        await until(lambda: asleep.count >= begun + 2)
        await tasks.configure(db, paused=False)
        done, _ = await asyncio.wait((waits, pops), return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        await tasks.push(db, payload="fourth")
        await asyncio.gather(waits, pops)

    run(main())


def test_a_cancelled_claim_leaves_the_item_in_the_queue(db: Any, name: str, asleep: Asleep) -> None:
    async def main() -> None:
        jobs = await aio.PriorityQueue.named(db, f"{name}jobs")
        await jobs.push_many(db, range(50))
        for _ in range(60):
            claiming = asyncio.ensure_future(jobs.claim(db, wait=60))
            await asyncio.sleep(random.random() * 0.005)
            claiming.cancel()
            with suppress(asyncio.CancelledError):
                await jobs.release(db, await claiming)
        assert await jobs.size(db) == 50
        begun = asleep.count
        waits = [asyncio.ensure_future(jobs.claim(db, n=50, wait=60)) for _ in range(60)]
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        assert done
        # More calls wait than there are threads, yet a push succeeds.
        await until(lambda: asleep.count >= begun + 59)
        await asyncio.wait_for(jobs.push(db, "late"), 60)
        for each in waits:
            each.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    run(main())


@pytest.mark.parametrize("kind", [aio.PriorityQueue, aio.Queue, aio.TaskQueue])
def test_queues_of_any_kind_are_opened_by_name_or_location(db: Any, name: str, kind: Any) -> None:
    async def main() -> None:
        queue = await kind.named(db, f"{name}any", max_size=3)
        with pytest.raises(fdbqueue.errors.QueueNotFound):
            await kind.existing(db, f"{name}any")
        await (
            queue.enqueue(db, 1)
            if kind is aio.Queue
            else queue.push(db, payload=1)
            if kind is aio.TaskQueue
            else queue.push(db, 1)
        )
        for opened in (
            await kind.existing(db, f"{name}any"),
            await kind.named(db, queue.subspace),
            await aio.existing_queue(db, f"{name}any"),
        ):
            assert type(opened) is kind
            assert (await opened.options(db)).max_size == 3
            assert (await opened.peek(db)) == await queue.peek(db)
        assert f"{name}any" in await aio.overview(db)
        assert (await aio.check(db, queue)).ok

    run(main())


def test_an_expired_item_makes_room(db: Any, name: str, clock: Clock) -> None:
    async def main() -> None:
        jobs = await aio.PriorityQueue.named(db, f"{name}jobs", max_size=1)
        await jobs.push(db, "expires", ttl=60)
        clock.advance(61)
        reopened = await aio.PriorityQueue.named(db, f"{name}jobs", max_size=1)
        assert (await reopened.push(db, "new")).value == "new"

    run(main())


async def _tasks(db: Any, name: str) -> aio.TaskQueue:
    tasks = await aio.TaskQueue.named(db, f"{name}tasks")
    await tasks.push_many(db, [{"payload": n} for n in range(40)])
    return tasks


async def _jobs(db: Any, name: str) -> aio.PriorityQueue:
    jobs = await aio.PriorityQueue.named(db, f"{name}jobs")
    await jobs.push_many(db, list(range(40)))
    return jobs


TAKING: dict[str, tuple[Any, Any]] = {
    "pop": (_jobs, lambda jobs, db: jobs.pop(db, wait=60)),
    "pop_max": (_jobs, lambda jobs, db: jobs.pop_max(db)),
    "pop_many": (_jobs, lambda jobs, db: jobs.pop_many(db, 3, wait=60)),
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
        for _ in range(40):
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


def test_the_end_of_the_loop_loses_no_items(db: Any, name: str, rng: random.Random) -> None:
    """Waiting tasks are cancelled, as by Ctrl-C, and none outlives the loop."""
    queue = fdbqueue.PriorityQueue.named(db, f"{name}jobs")
    queue.push_many(db, range(400))
    taken: list[Any] = []

    async def main() -> None:
        jobs = await aio.PriorityQueue.existing(db, f"{name}jobs")

        async def work() -> None:
            while (item := await jobs.pop(db, wait=5)) is not None:
                taken.append(item.value)

        workers.extend(asyncio.ensure_future(work()) for _ in range(3))
        await asyncio.sleep(rng.random() * 0.005)

    for _ in range(20):
        workers: list[asyncio.Future[None]] = []
        asyncio.run(main())
        assert all(worker.cancelled() for worker in workers)
        assert len(taken) + queue.size(db) == 400
    assert sorted(taken + [item.value for item in queue.items(db)]) == list(range(400))


def test_closing_a_loop_with_running_pops_loses_no_items(
    db: Any, name: str, rng: random.Random
) -> None:
    """An item is back once Python has collected the task that was to have it."""
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
        jobs = await aio.PriorityQueue.named(db, f"{name}jobs")
        await jobs.push_many(db, range(10))
        loops = []

        async def work(item: fdbqueue.Item) -> None:
            loops.append(asyncio.get_running_loop())
            if item.value == 3:
                raise ValueError("three")

        worker = aio.Worker(db, jobs, work, concurrency=4)
        report = await worker.run(drain=True)
        assert (report.done, report.failed) == (9, 1)
        assert worker.report == report
        assert loops == 10 * [asyncio.get_running_loop()]
        assert await jobs.state(db, (await jobs.claim(db, wait=10)).item.id) == "claimed"

    run(main())


@pytest.mark.parametrize("cancels", [1, 3])
def test_a_cancelled_worker_finishes_running_jobs_and_starts_no_others(
    db: Any, name: str, cancels: int
) -> None:
    async def main() -> None:
        tasks = await aio.TaskQueue.named(db, f"{name}tasks", max_attempts=1)
        await tasks.push_many(db, [{"payload": n} for n in range(10)])
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
        assert len(ended) == 1
        assert await tasks.size(db) == 9
        assert await tasks.items(db, state="dead") == []

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
