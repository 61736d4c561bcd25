"""Random databases: queues of every kind, with items in every state and of every feature.

`tests/queue/test_random_databases.py` fails if a field of a stored record, or a key space, is never
used, so that a new one is added here.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import fdbqueue
from fdbqueue.errors import QueueFull
from fdbqueue.jobs import App, Context, Dead, Retry
from fdbqueue.queue.transfer.idempotency import push_once
from fdbqueue.types import Progress

PRIORITIES: dict[Any, Callable[[random.Random], Any]] = {
    int: lambda chance: chance.choice([-1000, -1, 0, 0, 3, 2**40]),
    (float, bytes): lambda chance: (chance.choice([-1.5, 0.0]), chance.choice([b"", b"\0\xff"])),
    (str,): lambda chance: (chance.choice(["", "a", "ü\0"]),),
    (int, str): lambda chance: (chance.randrange(3), chance.choice("xy")),
}
_VALUES = [None, 7, "text", {"a": [1, None]}, "x" * 100_000]
_OF_AGENTS = {"concurrency", "rate", "paused"}
GROUPS = [None, "ada", "bob", "ü"]


class Failed(Exception):
    """What a handler raises."""


class RandomDatabase:
    """Queues that a random generator fills, and clients that can end all of their work.

    Args:
        db: The database.
        name: The prefix of the names of the queues.
        chance: The random generator.
    """

    def __init__(self, db: Any, name: str, chance: random.Random | None = None) -> None:
        self.db, self.name = db, name
        self.chance = chance or random.Random(0)
        self.fails = chance is not None
        """Whether jobs may fail and wait. Otherwise each of them ends."""
        self.ran: list[str] = []
        self.jobs, self.other_jobs = f"{name}jobs", f"{name}other"
        self._declare(App(db))

    def _declare(self, app: App) -> None:
        self.app, chance = app, self.chance

        @app.job(queue=self.other_jobs, name="note", retry=Retry(attempts=2, first="1h"))
        def note(context: Context, what: str) -> str:
            context.progress(0.5, "half")
            context.log("a line")
            if self.fails and chance.random() < 0.3:
                raise Failed(what)
            if self.fails and chance.random() < 0.1:
                raise Dead("declined")
            self.ran.append(what)
            return what

        @app.job(queue=self.jobs, name="parent", retry=Retry(attempts=1))
        def parent(context: Context) -> None:
            context.step("before", str)
            context.gather("all", [note.bind(what) for what in "ab"])

        @app.job(queue=self.jobs, name="wait", retry=Retry(attempts=1))
        def wait(context: Context, key: str) -> None:
            context.wait("go", key=key, timeout=None if self.fails else 0)

        @app.job(queue=self.jobs, name="sleep")
        def sleep(context: Context) -> None:
            context.commit("first", lambda tr: None)
            context.sleep("nap", 0.2)

        @app.job(queue=self.jobs, name="flaky", retry=Retry(attempts=2, first="1h"))
        def flaky(context: Context) -> None:
            def fail() -> None:
                if self.fails:
                    raise Failed

            context.using(retry=Retry(attempts=3, first=0.1)).step("fails", fail)

        @app.job(queue=self.jobs, name="follow")
        def follow() -> None: ...

        @app.job(queue=self.jobs, name="end")
        def end(*, done: int, dead: int, cancelled: int) -> None: ...

        app.every("1h")(follow)

        self.note, self.parent, self.wait, self.follow = note, parent, wait, follow
        self.simple, self.end = [sleep, flaky, follow], end

    # The queues without jobs

    def fill(self) -> None:
        """Do everything at random."""
        chance, db, name = self.chance, self.db, self.name
        kinds = chance.sample([*PRIORITIES], 2)
        for number, kind in enumerate(kinds):
            title = f"{name}{number}"
            queue = fdbqueue.PriorityQueue.named(db, title, priorities=kind)
            self._fill(queue, partial(self._push, queue, kind))
        fifo: Any = fdbqueue.Queue.named(db, f"{name}fifo")
        self._fill(fifo, lambda value, **options: fifo.push(db, value, **options))
        tasks: Any = fdbqueue.TaskQueue.named(db, f"{name}tasks", ageing=timedelta(minutes=1))
        self._fill(tasks, lambda value, **options: self._push_task(tasks, value, options))
        once: Any = fdbqueue.PriorityQueue.named(db, f"{name}once")
        push_once(db, once, "key", [1, 2], [0, 0])
        self._fill_jobs()

    def _push(self, queue: Any, kind: Any, value: Any, **options: Any) -> Any:
        return queue.push(self.db, value, PRIORITIES[kind](self.chance), **options)

    def _push_task(self, tasks: Any, value: Any, options: dict[str, Any]) -> Any:
        agent = options.pop("group", None)
        cost = options.pop("cost", 1)
        deadline = datetime.now(timezone.utc) + timedelta(hours=1)
        return tasks.push(
            self.db,
            payload=value,
            agent_name=agent,
            client_id="c",
            cost=cost,
            deadline=deadline,
            **options,
        )

    def _options(self, number: int) -> dict[str, Any]:
        chance = self.chance
        options: dict[str, Any] = {"group": chance.choice(GROUPS)}
        if chance.random() < 0.2:
            options["delay"] = 3600
        if chance.random() < 0.2:
            options["ttl"] = 3600
        if chance.random() < 0.2:
            options["cost"] = 2.5
        if chance.random() < 0.3:
            options["unique"] = f"key {number}"
            how = chance.randrange(3)
            if how == 1:
                options["unique_until"] = "claimed"
            elif how == 2:
                options["unique_for"] = "1h"
        return options

    def _fill(self, queue: Any, push: Callable[..., Any]) -> None:
        chance, db = self.chance, self.db
        pushed: list[Any] = []

        def push_some() -> None:
            for _ in range(chance.randrange(1, 9)):
                with suppress(QueueFull):
                    item = push(chance.choice(_VALUES), **self._options(len(pushed)))
                    pushed.append(getattr(item, "id", item))

        def work() -> None:
            claim = queue.claim(db, n=chance.randrange(1, 4))
            if claim is None:
                return
            how = chance.randrange(5)
            if how == 0:
                queue.ack(db, claim, result={"n": 1}, log="log")
            elif how == 1:
                queue.ack(db, claim, discarded="not needed")
            elif how == 2:
                delay = chance.choice([0, 3600])
                queue.nack(db, claim, delay=delay, error=chance.choice(["busy", None]))
            elif how == 3:
                queue.extend(db, claim, 3600, progress=Progress(0.5, "half"), log="log")

        def configure() -> None:
            setting = chance.choice(
                [
                    {"keep": 100},
                    {"keep": "1d"},
                    {"max_attempts": 1},
                    {"max_size": 40},
                    {"concurrency": 30},
                    {"rate": (100, "1m")},
                    {"kept_attempts": 2},
                    {"traceback_bytes": 500},
                ]
            )
            queue.configure(db, **setting)

        def group() -> None:
            name = chance.choice(["ada", "bob", "ü", None])
            settings: list[dict[str, Any]] = [
                {"weight": 2.5},
                {"concurrency": 1},
                {"rate": (50, "1h")},
                {"max_size": 30},
                {"concurrency": 1, "in_order": False},
            ]
            if name is not None:
                settings += [{"paused": True}, {"latest": True}]
            if queue.kind == "task":
                settings = [each for each in settings if {*each} <= _OF_AGENTS]
            queue.set_group(db, name, **chance.choice(settings))

        def change() -> None:
            if pushed:
                chance.choice([queue.cancel, queue.remove, queue.retry])(db, chance.choice(pushed))
            queue.change_all(db, "retry", state="dead", by="ada")

        def move() -> None:
            for info in queue.items(db, state=chance.choice(["ready", "delayed", "dead"])):
                if isinstance(queue, fdbqueue.TaskQueue):
                    queue.reprioritize(db, info.item.id, cost=chance.random())
                elif queue.kind == "priority":
                    queue.reprioritize(db, info.item, info.item.priority)
                return

        def schedule() -> None:
            value = {"payload": 1} if isinstance(queue, fdbqueue.TaskQueue) else 1
            timing: dict[str, Any] = chance.choice(
                [{"cron": "*/5 * * * *", "tz": "Europe/Lisbon"}, {"every": "1h"}]
            )
            overlap = chance.choice(["allow", "skip"])
            kind = queue.options(db)
            priority = None
            if kind is not None and kind.kind == "priority" and kind.priorities is not int:
                return
            title = chance.choice(["nightly", "hourly"])
            of = None if queue.kind == "task" else chance.choice(GROUPS)
            queue.schedules.add(db, title, value, priority, overlap=overlap, group=of, **timing)
            chance.choice([queue.schedules.run_now, queue.schedules.pause])(db, title)

        push_some()
        acts = [push_some, work, work, work, configure, group, change, move, schedule]
        for act in chance.choices(acts, k=chance.randrange(5, 25)):
            act()
        if chance.random() < 0.2:
            queue.configure(db, paused=True)

    # The jobs

    def _fill_jobs(self) -> None:
        chance, db, app = self.chance, self.db, self.app
        for queue in (self.jobs, self.other_jobs):
            app.queue(queue).configure(db, keep=chance.choice([None, 100]))
        handles: list[Any] = []

        def open_batch() -> None:
            on_dead: Any = chance.choice(["continue", "cancel"])
            with suppress(Failed), app.batch(then=self.end, on_dead=on_dead) as batch:
                for number in range(chance.randrange(1, 4)):
                    batch.push(self.note, f"member {number}")
                if chance.random() < 0.3:
                    raise Failed  # the batch stays open
            handles.append(batch.handle)

        def follow() -> None:
            others = [self.note.push("first"), *handles[-2:]]
            on_dead = chance.choice(["continue", "cancel"])
            handles.append(self.follow.using(after=others, on_dead=on_dead).push())

        def push() -> None:
            acts: list[Callable[[], Any]] = [each.push for each in self.simple]
            acts += [self.parent.push, lambda: self.wait.push(chance.choice("kl"))]
            handles.append(chance.choice(acts)())

        def work() -> None:
            app.work(chance.choice([self.jobs, self.other_jobs]), drain=True)

        def change() -> None:
            queue: Any = app.queue(self.jobs)
            if handles:
                chance.choice([queue.cancel, queue.retry])(db, chance.choice(handles).id)

        def hold() -> None:
            queue: Any = app.queue(chance.choice([self.jobs, self.other_jobs]))
            queue.claim(db, n=2, lease=3600)

        def signal() -> None:
            app.queue(self.jobs).steps.signal(db, "go", key=chance.choice("klm"), value=1)

        acts = [open_batch, follow, push, push, push, work, work, signal, hold, change]
        for act in chance.choices(acts, k=chance.randrange(5, 25)):
            act()

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

    def finish(self) -> dict[str, int]:
        """End all work; return how many items each queue still has."""
        self.fails = False
        queues: dict[str, Any] = self.queues()
        for queue in queues.values():
            queue.configure(self.db, paused=False, rate=None, max_size=None)
            for schedule in queue.schedules.all(self.db):
                queue.schedules.remove(self.db, schedule.name)
            for group in [None, *(each for each in GROUPS if each)]:
                settings: dict[str, Any] = dict.fromkeys(("rate", "max_size", "latest"))
                if queue.kind == "task":
                    settings = {"rate": None}
                if group is not None:
                    settings["paused"] = False
                queue.set_group(self.db, group, **settings)
        left: dict[str, int] = {}
        for _ in range(100):
            for name, queue in queues.items():
                queue.change_all(self.db, "release", state="claimed")
                queue.change_all(self.db, "retry", state="delayed")
                if name in (self.jobs, self.other_jobs):
                    for key in "kl":
                        queue.steps.signal(self.db, "go", key=key, value=1)
                    self._close_batches(queue)
                    self.app.work(name, drain=True)
                else:
                    while (claim := queue.claim(self.db, n=10)) is not None:
                        queue.ack(self.db, claim)
            stats = {name: queue.stats(self.db) for name, queue in queues.items()}
            left = {name: each.ready + each.delayed + each.claimed for name, each in stats.items()}
            left = {name: n for name, n in left.items() if n}
            if not left:
                break
            time.sleep(0.05)  # steps that sleep, or are tried again
        return left

    def _close_batches(self, queue: Any) -> None:
        from fdbqueue.queue.batches import Batches

        for info in [*queue.items(self.db, state="delayed")]:
            Batches(queue).close(self.db, info.id)
