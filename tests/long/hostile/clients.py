"""The clients of a storm: processes that use the same queues until the storm stops them.

    python -m tests.long.hostile.clients KIND WORLD DATABASE PREFIX DIRECTORY CLIENT SEED

The kind `prepare` creates the queues and ends.

What a client does with a queue is written once, as coroutines: an asyncio client awaits the methods
of `fdbqueue.aio`, a thread those of the library, which block. An HTTP client has operations and bad
manners of its own.

There are two worlds with separate queues: `killed`, whose processes are killed, and `spared`, whose
processes are not. A pop in flight when its process is killed may have taken unknown values. Such a
doubt must not explain a value that a cancelled call has lost. HTTP clients that close both ways
raise the same doubt, so they pop from a separate queue, `left`.

Workers have queues of their own. Their handlers count each value in the database: `handled` in a
transaction of its own, `transacted` in the one that acknowledges the job, `stepped` in one that
stores a durable step.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import fdbqueue
from fdbqueue import aio
from fdbqueue.errors import FdbqueueError, WrongState
from fdbqueue.jobs import Context
from fdbqueue.testing import FaultyDatabase
from tests.long.hostile.http_client import JOBS, HttpClient
from tests.long.hostile.ledger import DISK_ERRORS, Gone, Ledger

KINDS = ("threads", "aio", "http", "worker")
WORLDS = ("spared", "killed")
QUEUES = [f"{world}-{name}" for world in WORLDS for name in ("jobs", "left", *JOBS)]
LEASE = 0.3  # seconds
JOB_LEASE = 1.0  # seconds
MAX_ATTEMPTS = 2
ONE = (1).to_bytes(8, "little")
LATE_ACK = 3 * LEASE  # seconds after which another client usually has the item
PRIORITIES = 4
THREADS = 3
TASKS = 8
LARGE = "x" * 100_000  # larger than one stored value

_T = TypeVar("_T")


def open_queue(db: Any, prefix: str, queue: str) -> Any:
    """Return the handle of one of the storm's queues."""
    return fdbqueue.PriorityQueue.named(db, prefix + queue)


def effect_key(prefix: str, queue: str, value: str = "") -> bytes:
    """Return the key that counts how often a job was done, or the beginning of all such keys."""
    return f"{prefix}effects/{queue}/{value}".encode()


def until_it_works(function: Callable[..., _T], *arguments: Any) -> _T:
    """Call a function again as long as the disk fails."""
    while True:
        try:
            return function(*arguments)
        except FdbqueueError as error:
            if getattr(error, "code", None) != 1021 and type(error) not in DISK_ERRORS:
                raise
        threading.Event().wait(0.05)


@dataclass(frozen=True)
class Setting:
    """The arguments of a client."""

    kind: str
    world: str
    url: str
    prefix: str
    directory: Path
    client: str
    seed: int

    def jobs(self, db: Any) -> Any:
        """Return the handle of the queue of jobs."""
        return until_it_works(open_queue, db, self.prefix, f"{self.world}-jobs")

    def must_stop(self) -> bool:
        """Return whether the storm is over."""
        return (self.directory / "stop").exists()


class Blocking:
    """A blocking queue whose methods can be awaited like those of `fdbqueue.aio`."""

    def __init__(self, queue: Any) -> None:
        self.queue = queue

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **options: Any) -> Any:
            result = getattr(self.queue, name)(*arguments, **options)
            return list(result) if isinstance(result, Iterator) else result

        return call


def run_blocking(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that awaits nothing but `Blocking`."""
    with suppress(StopIteration):
        coroutine.send(None)
        raise AssertionError("it waits for an event loop")


def value_of(item: Any) -> str:
    return str(item.value["id"])


class Jobs:
    """The operations of a client on a priority queue."""

    def __init__(
        self, setting: Setting, db: Any, queue: Any, ledger: Ledger, values: Iterator[str]
    ) -> None:
        self.name = f"{setting.world}-jobs"
        self.db, self.queue, self.ledger, self._values = db, queue, ledger, values
        self._is_killed = setting.world == "killed"
        self._pushed: deque[Any] = deque(maxlen=20)
        """The values and ids of recently pushed items, some of them delayed."""

    async def step(self, rng: random.Random) -> None:
        """Perform one random operation."""
        steps = [self.push, self.pop, self.claim, self.change, self.remove, self.dead]
        (step,) = rng.choices(steps, [40, 25, 25, 5, 5, 10])
        await step(rng)

    def wait(self, rng: random.Random) -> float:
        """Return how long to wait for an item; hardly if killed, so that few pops are in flight."""
        return rng.choice([0, rng.uniform(0, 0.02 if self._is_killed else 1)])

    async def _push(self, values: list[Any], rng: random.Random, delay: float | None) -> list[Any]:
        priorities = [rng.randrange(PRIORITIES) for _ in values]
        if len(values) == 1:
            return [await self.queue.push(self.db, values[0], priorities[0], delay=delay)]
        return list(await self.queue.push_many(self.db, values, priorities=priorities, delay=delay))

    async def _pop(self, n: int, at_max: bool, rng: random.Random) -> list[Any]:
        return list(await self.queue.pop_many(self.db, n, at_max, wait=self.wait(rng)))

    def _check_order(self, items: Sequence[Any], at_max: bool = False) -> None:
        ranks = [(-item.priority if at_max else item.priority, item.key) for item in items]
        assert ranks == sorted(ranks), f"not in order: {ranks}"

    # Operations

    async def push(self, rng: random.Random) -> None:
        names = [next(self._values) for _ in range(rng.choice([1, 1, 1, 3]))]
        large = {"large": LARGE} if rng.random() < 0.02 else {}
        delay = 0.3 if rng.random() < 0.2 else None
        with self.ledger.operation("push", self.name, names) as operation:
            found = await self._push([{"id": name, **large} for name in names], rng, delay)
            operation.done()
            self._pushed.extend(zip(names, found))

    async def pop(self, rng: random.Random) -> None:
        n, at_max = rng.choice([1, 1, 1, 2, 5]), rng.random() < 0.3
        with self.ledger.operation("pop", self.name, at_most=n) as operation:
            items = await self._pop(n, at_max, rng)
            operation.done(map(value_of, items))
            self._check_order(items, at_max)
        if operation.values and rng.random() < 0.3:
            back = items[rng.randrange(len(items)) :]
            names = list(map(value_of, back))
            with self.ledger.operation("put_back", self.name, names) as operation:
                await self.queue.put_back(self.db, back)
                operation.done()

    async def claim(self, rng: random.Random) -> None:
        n = rng.choice([1, 1, 3])
        with self.ledger.operation("claim", self.name, at_most=n, lease=LEASE) as operation:
            claim = await self.queue.claim(self.db, n=n, lease=LEASE, wait=self.wait(rng))
            if claim is not None:
                operation.done(map(value_of, claim.items))
                self._check_order(claim.items)
        if operation.outcome == "done":
            for each in claim if rng.random() < 0.5 else [claim]:
                await self._end(each, operation.number, rng)

    async def _end(self, claim: Any, number: int, rng: random.Random) -> None:
        """Acknowledge, release or abandon a claim, before or after its lease has expired."""
        kinds = ["ack", "nack", "release", "extend", "forget"]
        (kind,) = rng.choices(kinds, [60, 15, 10, 10, 5])
        if rng.random() < 0.15:
            await self._pause(LATE_ACK)
        options = {"nack": {"delay": rng.choice([0, 0.2, None])}, "extend": {"lease": LEASE}}
        if kind == "forget":
            return
        names = map(value_of, claim.items)
        with self.ledger.operation(kind, self.name, names, claim=number) as operation:
            await getattr(self.queue, kind)(self.db, claim, **options.get(kind, {}))
            operation.done()
        if kind == "extend" or rng.random() < 0.05:  # expired claims are acknowledged, too
            names = map(value_of, claim.items)
            with self.ledger.operation("ack", self.name, names, claim=number) as operation:
                await self.queue.ack(self.db, claim)
                operation.done()

    async def _pause(self, seconds: float) -> None:
        if isinstance(self.queue, Blocking):
            threading.Event().wait(seconds)
        else:
            await asyncio.sleep(seconds)

    async def remove(self, rng: random.Random) -> None:
        value, item = await self._any(rng)
        with self.ledger.operation("remove", self.name, [value]) as operation:
            if item is not None and await self.queue.remove(self.db, item):
                operation.done()

    async def change(self, rng: random.Random) -> None:
        value, item = await self._any(rng)
        with self.ledger.operation("update", self.name, [value]) as operation:
            priority = rng.randrange(PRIORITIES)
            with suppress(WrongState):
                if item is not None:
                    await self.queue.update(self.db, item, priority=priority)
                    operation.done()

    async def _any(self, rng: random.Random) -> tuple[str, Any]:
        """Return the value, and the item or id, of a waiting or recently pushed item."""
        known = list(self._pushed)
        if rng.random() < 0.5:
            with self.ledger.operation("peek", self.name) as operation:
                known = [(value_of(item), item) for item in await self.queue.peek_many(self.db, 5)]
                operation.done(value for value, _ in known)
        value, item = rng.choice(known or [("none", None)])
        return value, item

    async def dead(self, rng: random.Random) -> None:
        letters: list[Any] = []
        with self.ledger.operation("peek", self.name) as operation:
            letters = await self.queue.items(self.db, state="dead")
            operation.done(value_of(letter.item) for letter in letters)
        for letter in rng.sample(letters, min(3, len(letters))):
            kind, method = rng.choice([("retry", self.queue.retry), ("drop", self.queue.remove)])
            with self.ledger.operation(kind, self.name, [value_of(letter.item)]) as operation:
                if await method(self.db, letter.id):
                    operation.done()


def named_values(client: str) -> Iterator[str]:
    """Yield values that no other client uses."""
    number = 0
    while True:
        number += 1
        yield f"{client}-{number}"


def threads(setting: Setting, ledger: Ledger) -> None:
    """Run threads that share queues and two databases, one of which is troubled."""
    db = until_it_works(fdbqueue.open, setting.url)
    db.options.set_transaction_max_retry_delay(20)  # milliseconds
    values = named_values(setting.client)
    troubled = FaultyDatabase(
        db, before=0.05, after=0.1, lost_as=(1021, 1039), conflict=0.05, seed=setting.seed
    )
    works = [
        Jobs(setting, each, Blocking(setting.jobs(db)), ledger, values)
        for each in (db, db, troubled, troubled)
    ]
    rngs = [random.Random(f"{setting.seed} {number}") for number in range(THREADS)]

    def work(rng: random.Random) -> None:
        while not setting.must_stop():
            run_blocking(rng.choice(works).step(rng))

    each_in_a_thread(work, rngs)


def each_in_a_thread(work: Callable[[Any], None], arguments: list[Any]) -> None:
    """Call a function in a thread for each argument; a thread that fails ends the process."""

    def call(argument: Any) -> None:
        try:
            work(argument)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)

    running = [threading.Thread(target=call, args=[argument]) for argument in arguments]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def asynchronous(setting: Setting, ledger: Ledger) -> None:
    """Run consecutive event loops whose tasks are cancelled once, repeatedly and at the end."""
    db = until_it_works(fdbqueue.open, setting.url)
    values = named_values(setting.client)
    rng = random.Random(setting.seed)

    def work() -> Jobs:
        return Jobs(setting, db, aio.PriorityQueue(setting.jobs(db)), ledger, values)

    async def live() -> None:
        works = [work(), work()]
        running = [asyncio.create_task(rng.choice(works).step(rng)) for _ in range(TASKS)]
        for _ in range(rng.randrange(5, 40)):
            if setting.must_stop():
                break
            for number, task in enumerate(running):
                if rng.random() < 0.3:
                    await cancel(task, rng)
                if task.done():
                    running[number] = asyncio.create_task(rng.choice(works).step(rng))
            await asyncio.sleep(rng.uniform(0, 0.02))
        # The end of the loop cancels the other tasks.

    async def cancel(task: asyncio.Task[None], rng: random.Random) -> None:
        for _ in range(rng.choice([1, 1, 2, 3])):
            task.cancel()
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)

    while not setting.must_stop():
        asyncio.run(live())


def http(setting: Setting, ledger: Ledger) -> None:
    """Run threads that use HTTP and vanish."""
    values = named_values(setting.client)
    rngs = [random.Random(f"{setting.seed} {number}") for number in range(THREADS)]

    def work(rng: random.Random) -> None:
        server = setting.directory / f"{setting.world}.server"
        client = HttpClient(server, setting.prefix, setting.world, ledger, values)
        while not setting.must_stop():
            client.step(rng)

    each_in_a_thread(work, rngs)


def worker(setting: Setting, ledger: Ledger) -> None:
    """Run a worker for each kind of handler, and push jobs for them."""
    db = until_it_works(fdbqueue.open, setting.url)
    values = named_values(setting.client)
    logging.getLogger("fdbqueue.worker").propagate = False

    def work(name: str) -> None:
        queue = f"{setting.world}-{name}"
        rng = random.Random(f"{setting.seed} {name}")

        def may_fail() -> None:
            threading.Event().wait(rng.choice([0, 0, 0.01, 0.1]))
            if rng.random() < 0.1:
                raise Gone("nothing", "failed on purpose")

        def count(tr: fdbqueue.Transaction, item: fdbqueue.Item) -> None:
            tr.add(effect_key(setting.prefix, queue, item.value["id"]), ONE)
            may_fail()

        def handle_alone(item: fdbqueue.Item) -> None:
            fdbqueue.transactional(count)(db, item)

        def handle_in_steps(context: Context) -> None:
            name = context.step("read", lambda: context.item.value["id"])
            assert name == context.item.value["id"], "another result of a step"
            context.sleep("rest", rng.choice([0.0, 0.1]))
            context.commit("count", count, context.item)
            may_fail()

        jobs = until_it_works(open_queue, db, setting.prefix, queue)
        handlers = {"transacted": count, "handled": handle_alone, "stepped": handle_in_steps}
        handler: Any = handlers[name]
        running = fdbqueue.Worker(db, jobs, handler, concurrency=3, lease=JOB_LEASE)
        push_and_wait = threading.Thread(target=push, args=[jobs, queue, running, rng])
        push_and_wait.start()
        running.run()
        push_and_wait.join()

    def push(jobs: Any, queue: str, running: fdbqueue.Worker, rng: random.Random) -> None:
        while not setting.must_stop():
            name = next(values)
            with ledger.operation("push", queue, [name]) as operation:
                delay = 0.3 if rng.random() < 0.1 else None
                jobs.push(db, {"id": name}, rng.randrange(PRIORITIES), delay=delay)
                operation.done()
            threading.Event().wait(rng.uniform(0, 0.1))
        running.stop()

    each_in_a_thread(work, [*JOBS])


def prepare(setting: Setting, _: Ledger) -> None:
    """Create the queues."""
    db = fdbqueue.open(setting.url)
    for name in QUEUES:
        open_queue(db, setting.prefix, name).configure(db, max_attempts=MAX_ATTEMPTS)


def end_with(parent: int) -> None:
    """End this process once its parent has ended, even if it hangs."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main() -> None:
    kind, world, url, prefix, directory, client, seed = sys.argv[1:]
    setting = Setting(kind, world, url, prefix, Path(directory), client, int(seed))
    ledger = Ledger(setting.directory / f"{client}.ledger")
    works = {
        "threads": threads,
        "aio": asynchronous,
        "http": http,
        "worker": worker,
        "prepare": prepare,
    }
    work = works[kind]
    threading.Thread(target=end_with, args=[os.getppid()], daemon=True).start()
    work(setting, ledger)


if __name__ == "__main__":
    main()
