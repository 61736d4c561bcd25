"""Random databases: queues of every kind, with items in every state and of every feature.

They use what the simulations use: the options of `random_options`, and jobs that perform random
programs. `tests/long/test_random_databases.py` fails if an option, a field of a stored record, or
a key space is never used, so that a new one is added here or there.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import fdbqueue
from fdbqueue.errors import QueueFull
from fdbqueue.jobs import App, Context, Retry
from fdbqueue.queue.batches import Batches
from fdbqueue.testing import Clock
from fdbqueue.types import Progress, Transaction
from fdbqueue.worker.presence import Presence
from tests.long.simulation.durable.programs import SHARED_KEYS, SIGNAL, Interpreter, program
from tests.support.idempotency import push_once
from tests.support.random_options import (
    GROUP_SETTINGS,
    GROUPS,
    LATE,
    SETTINGS,
    TIMINGS,
    item_options,
)

PRIORITIES: dict[Any, Callable[[random.Random], Any]] = {
    int: lambda chance: chance.choice([-1000, -1, 0, 0, 3, 2**40]),
    (float, bytes): lambda chance: (chance.choice([-1.5, 0.0]), chance.choice([b"", b"\0\xff"])),
    (str,): lambda chance: (chance.choice(["", "a", "ü\0"]),),
    (int, str): lambda chance: (chance.randrange(3), chance.choice("xy")),
}
_VALUES = [None, 7, "text", {"a": [1, None]}, "x" * 100_000]
_SCALE = 0.02
"""Seconds that a job sleeps, or waits for a signal."""


class Failed(Exception):
    """What a program raises."""


def _lift_limits(tr: Transaction, queue: Any) -> None:
    """Let all items of a queue go on, and remove its schedules."""
    queue.configure(tr, paused=False, rate=None, max_size=None)
    for schedule in () if queue.kind == "task" else queue.schedules.all(tr):
        queue.schedules.remove(tr, schedule.name)
    for group in GROUPS:
        settings: dict[str, Any] = dict.fromkeys(("rate", "max_size"))
        if group is not None:
            settings["paused"] = False
        queue.set_group(tr, group, **settings)


class RandomDatabase:
    """Queues that a random generator fills, and clients that can end all of their work.

    Args:
        db: The database.
        name: The prefix of the names of the queues, and of the keys beside them.
        clock: The clock of all clients.
        chance: The random generator.
    """

    def __init__(
        self, db: Any, name: str, clock: Clock, chance: random.Random | None = None
    ) -> None:
        self.db, self.name, self._clock = db, name, clock
        self._chance = chance or random.Random(0)
        self._is_calm = chance is None
        """Whether no job fails, or waits."""
        self.jobs, self.other_jobs = f"{name}jobs", f"{name}other"
        self.own = f"{name}own/".encode()
        """The prefix of the keys that the program has beside the queues."""
        self._declare(App(db))

    def _declare(self, app: App) -> None:
        self.app = app

        @app.job(queue=self.jobs, name="run", retry=Retry(attempts=3, first=0.1))
        def run(context: Context, payload: dict[str, Any]) -> str:
            return self._perform(context, payload)

        @app.job(queue=self.other_jobs, name="run elsewhere", retry=Retry(attempts=2, first="1h"))
        def run_elsewhere(context: Context, payload: dict[str, Any]) -> str:
            return self._perform(context, payload)

        @app.job(queue=self.jobs, name="count")
        def count(tr: Transaction, key: str) -> None:
            tr[self.own + key.encode()] = b"counted"

        @app.job(queue=self.jobs, name="end")
        def end(*, done: int, dead: int, cancelled: int) -> None: ...

        app.every("1h", args=["ticks"])(count)
        self._runs, self._count, self._end = [run, run_elsewhere], count, end

    # What jobs do

    def _perform(self, context: Context, payload: dict[str, Any]) -> str:
        context.progress(0.5, "half")
        context.log("a line")
        Interpreter(context, self, self, self._chance, _SCALE, self._is_calm).perform(
            payload["program"]
        )
        return str(payload["job"])

    def bind(self, payload: dict[str, Any]) -> Any:
        """Return a child: a job of either queue, always the same one for a payload."""
        return self._runs[len(payload["job"]) % 2].bind(payload)

    def begin(self, step: str, run: str) -> None:
        """Do nothing at the beginning of a step."""

    def effect(self, tr: Transaction, step: str, run: str) -> None:
        """Write a key beside the queues in the transaction of a step."""
        tr[self.own + run.encode()] = step.encode()

    def saw(self, step: str, result: object) -> None:
        """Do nothing with the result of a step."""

    # The queues without jobs

    def fill(self) -> None:
        """Do everything at random."""
        chance, db, name = self._chance, self.db, self.name
        for number, kind in enumerate(chance.sample([*PRIORITIES], 2)):
            title = f"{name}{number}"
            queue = fdbqueue.PriorityQueue.named(db, title, priorities=kind)
            self._fill(queue, partial(self._push, queue, kind))
        fifo: Any = fdbqueue.Queue.named(db, f"{name}fifo")
        self._fill(fifo, lambda value, **options: fifo.push(db, value, **options))
        tasks: Any = fdbqueue.TaskQueue.named(db, f"{name}tasks")
        self._fill(tasks, lambda value, **options: self._push_task(tasks, value, options))
        once: Any = fdbqueue.PriorityQueue.named(db, f"{name}once")
        push_once(db, once, "key", [1, 2], [0, 0])
        self._fill_jobs()
        # A worker that was killed.
        Presence("dead", {self.jobs: 2}, 2, lease=30).write(db, chance.randrange(3))
        # Timers that are over belong to a database as much as others.
        self._pass_time()

    def _push(self, queue: Any, kind: Any, value: Any, **options: Any) -> Any:
        return queue.push(self.db, value, PRIORITIES[kind](self._chance), **options)

    def _push_task(self, tasks: Any, value: Any, options: dict[str, Any]) -> Any:
        deadline = datetime.now(timezone.utc) + timedelta(hours=1)
        return tasks.push(
            self.db,
            payload=value,
            agent_name=options["group"],
            client_id="c",
            deadline=deadline,
            **options,
        )

    def _pass_time(self) -> None:
        self._clock.advance(self._chance.choice([0, 0.1, 0.1, 60, 3600]))

    def _fill(self, queue: Any, push: Callable[..., Any]) -> None:
        chance, db = self._chance, self.db
        pushed: list[str] = []

        def push_some() -> None:
            for _ in range(chance.randrange(1, 9)):
                options = item_options(chance, f"key {len(pushed)}")
                item = push(chance.choice(_VALUES), **options)
                if item is not None:
                    pushed.append(getattr(item, "id", item))

        def work() -> None:
            lease = chance.choice([0.05, 30, 3600])
            claim = queue.claim(db, n=chance.randrange(1, 4), lease=lease)
            if claim is None:
                return
            how = chance.randrange(6)
            if how == 0:
                queue.ack(db, claim, result={"n": 1}, log="log")
            elif how == 1:
                queue.ack(db, claim, discarded="not needed")
            elif how == 2:
                delay = chance.choice([0, 3600])
                queue.nack(db, claim, delay=delay, error=chance.choice(["busy", None]), log="log")
            elif how == 3:
                queue.extend(db, claim, 3600, progress=Progress(0.5, "half"), log="log")
            elif how == 4:
                queue.release(db, claim, delay=chance.choice([None, 3600]))

        def configure() -> None:
            queue.configure(db, **chance.choice(SETTINGS))

        def group() -> None:
            group, settings = chance.choice(GROUPS), GROUP_SETTINGS
            if group is None:
                settings = [each for each in settings if "paused" not in each]
            queue.set_group(db, group, **chance.choice(settings))

        def change() -> None:
            if pushed:
                chance.choice([queue.cancel, queue.remove, queue.retry])(db, chance.choice(pushed))
            queue.change_all(db, "retry", state="dead", by="ada")

        def move() -> None:
            for info in queue.items(db, state=chance.choice(["ready", "delayed", "dead"])):
                if queue.kind == "task":
                    queue.reprioritize(db, info.item.id, chance.randint(1, 5))
                elif queue.kind == "priority":
                    queue.reprioritize(db, info.item, info.item.priority)
                return

        def schedule() -> None:
            stored = queue.options(db)
            if queue.kind == "task" or (queue.kind == "priority" and stored.priorities is not int):
                return
            options = {**chance.choice(TIMINGS), **chance.choice(LATE)}
            options["group"] = chance.choice(GROUPS)
            title = chance.choice(["nightly", "hourly"])
            queue.schedules.add(db, title, 1, **options)
            schedules = queue.schedules
            if chance.choice([schedules.run_now, schedules.pause, schedules.resume])(db, title):
                self._clock.advance(chance.choice([0, 7200]))  # past ticks that may overlap
                queue.size(db)

        push_some()
        acts = [push_some, work, work, work, configure, group, change, move, schedule]
        self._do([*acts, self._pass_time])

    def _do(self, acts: list[Callable[[], Any]]) -> None:
        for act in self._chance.choices(acts, k=self._chance.randrange(5, 25)):
            with suppress(QueueFull):
                act()

    # The jobs

    def _fill_jobs(self) -> None:
        chance, db, app = self._chance, self.db, self.app
        for queue in (self.jobs, self.other_jobs):
            app.queue(queue).configure(db, keep=chance.choice([None, 100]))
        handles: list[Any] = []

        def payload() -> dict[str, Any]:
            return {"job": f"job {len(handles)}", "program": program(chance, _SCALE)}

        def open_batch() -> None:
            on_dead: Any = chance.choice(["continue", "cancel"])
            with suppress(Failed), app.batch(then=self._end, on_dead=on_dead) as batch:
                for _ in range(chance.randrange(1, 4)):
                    batch.push(chance.choice(self._runs), payload())
                if chance.random() < 0.3:
                    raise Failed  # the batch stays open
            handles.append(batch.handle)

        def push() -> None:
            options = item_options(chance, f"key {len(handles)}")
            handles.append(chance.choice(self._runs).using(**options).push(payload()))

        def follow() -> None:
            push()
            on_dead = chance.choice(["continue", "cancel"])
            follows = self._count.using(after=handles[-2:], on_dead=on_dead)
            handles.append(follows.push(f"{len(handles)}"))

        def push_unknown() -> None:
            value: Any = {"job": "renamed", "args": [], "kwargs": {}}
            app.queue(self.jobs).push(db, value)

        def work() -> None:
            self._work(chance.choice([self.jobs, self.other_jobs]))

        def change() -> None:
            queue: Any = app.queue(chance.choice([self.jobs, self.other_jobs]))
            if handles:
                act = chance.choice([queue.cancel, queue.retry, queue.remove])
                act(db, chance.choice(handles).id)

        def hold() -> None:
            queue: Any = app.queue(chance.choice([self.jobs, self.other_jobs]))
            queue.claim(db, n=2, lease=chance.choice([0.05, 3600]))

        def signal() -> None:
            key = chance.choice([*SHARED_KEYS, "nobody waits for it"])
            app.queue(self.jobs).steps.signal(db, SIGNAL, key=key, value=1)

        acts = [
            push,
            push,
            open_batch,
            follow,
            push_unknown,
            work,
            work,
            work,
            signal,
            hold,
            change,
        ]
        self._do([*acts, self._pass_time])

    def _work(self, queue: str) -> None:
        # A single thread uses the random generator at a time.
        self.app.work(queue, drain=True, concurrency=1)

    # The end of all work

    def queues(self) -> dict[str, Any]:
        """Return all queues by name."""
        names = fdbqueue.admin.queue_names(self.db)
        return {
            each: fdbqueue.existing_queue(self.db, each)
            for each in names
            if each.startswith(self.name)
        }

    def problems(self) -> list[str]:
        """Return what `check` finds in all queues."""
        queues = self.queues().items()
        return [
            f"{name}: {problem}"
            for name, queue in queues
            for problem in fdbqueue.admin.check(self.db, queue).problems
        ]

    def own_rows(self, db: Any) -> list[tuple[bytes, bytes]]:
        """Return the rows beside the queues, in this database or another one."""
        return [(row.key, row.value) for row in db.get_range_startswith(self.own)]

    def cancel_waits(self) -> None:
        """Cancel the jobs that wait for others, which may be in a queue that was not restored."""
        for queue in self.queues().values():
            for info in [*queue.items(self.db, state="delayed")]:
                waits = queue.get(self.db, info.item.id).waits_for
                if waits is not None and waits.kind in ("batch", "jobs", "children"):
                    queue.cancel(self.db, info.item.id)

    def drop(self) -> None:
        """Delete all queues, and the keys beside them."""
        for name in self.queues():
            fdbqueue.admin.drop(self.db, name)
        self.db.clear_range_startswith(self.own)

    def finish(self) -> list[str]:
        """End all work; return what does not end."""
        self._is_calm = True

        @self.app.job(queue=self.jobs, name="renamed")
        def renamed() -> None: ...

        for queue in self.queues().values():
            fdbqueue.transactional(_lift_limits)(self.db, queue)
        for _ in range(100):
            queues = self.queues()  # jobs may push the first job of another one
            if not any(map(self._is_busy, queues.values())):
                return []
            # Work on the others as well: an item that has expired there may end a wait here.
            for name, queue in queues.items():
                self._let_go(queue)
                if name in (self.jobs, self.other_jobs):
                    self._work(name)
                else:
                    while (claim := queue.claim(self.db, n=10)) is not None:
                        queue.ack(self.db, claim)
            self._clock.advance(10)  # steps that sleep, or are tried again
        return [
            f"{name} {info}"
            for name, queue in queues.items()
            for state in ("ready", "delayed", "claimed")
            for info in queue.items(self.db, state=state)
        ]

    def _is_busy(self, queue: Any) -> bool:
        stats = queue.stats(self.db)
        return bool(stats.ready + stats.delayed + stats.claimed)

    def _let_go(self, queue: Any) -> None:
        """End what the items of a queue wait for."""
        queue.change_all(self.db, "release", state="claimed")
        queue.change_all(self.db, "retry", state="delayed")
        if queue.kind != "priority":
            return
        for info in [*queue.items(self.db, state="delayed")]:
            Batches(queue).close(self.db, info.id)
            for step in queue.steps.all(self.db, info.id):
                if step.kind == "wait" and step.state == "waiting":
                    queue.steps.signal(self.db, SIGNAL, key=step.key, value=1)
