"""Workers whose processes are killed, stopped and started again: each job ends once.

Other processes push jobs meanwhile, cancel some of them, and are killed, too. A handler that takes
the transaction adds to a counter of its job there, and so does what a handler gives to `at_end`;
any other handler returns a name of its run. The queue keeps done jobs with what their handlers
returned. So at the end it is known which run ended each job, and each job that ended in a
transaction has exactly one effect.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue.jobs import Context, Dead, Discard, RetryIn, Snooze
from fdbqueue.types import ItemInfo
from tests.long.simulation.cluster.inside.clients import Client
from tests.long.simulation.cluster.workloads.shared import (
    keep_running,
    look_a_day_later,
    look_for_leftovers,
    run_threads,
    seconds_of_commits,
    take_dead_waiters,
    wait_until,
)

_SPACE = Subspace(("queue",))
_EFFECTS = Subspace(("effects",))
_LEASE = 3
_KEPT = 100_000

_pushed: dict[str, bool] = {}
"""The jobs of all clients, and whether their pushes returned."""
_runs: dict[str, list[str]] = {}
"""The runs of each job that a handler has begun."""
_returned: set[str] = set()
"""The runs outside of transactions that have returned."""
_discarded: set[str] = set()
"""The jobs that a handler has discarded, perhaps in vain."""
_cancelled: set[str] = set()
"""The jobs that a client has cancelled, perhaps in vain."""
_reports: Counter[str] = Counter()


class Workers:
    """Each client has a process that pushes, and two with workers."""

    def __init__(self, client: Client) -> None:
        chance = random.Random(f"workers {client.scenario['seed']}")  # the same for all clients
        self._pause = chance.choice([0.1, 0.3, 1])
        self._max_attempts = chance.choice([2, 5])
        self._shards = chance.choice([1, 1, 3, 16])
        self._client = client

    def _queue(self) -> fdbqueue.PriorityQueue:
        return fdbqueue.PriorityQueue(_SPACE, max_attempts=self._max_attempts)

    def setup(self, db: Any) -> None:
        """Create the queue."""
        if self._client.id == 0:
            self._queue().configure(db, keep=_KEPT, shards=self._shards)

    def start(self, db: Any) -> None:
        """Keep processes running until the time is over."""
        end = time.monotonic() + self._client.scenario["seconds"]

        def work(name: str) -> None:
            body = self._push if name.endswith("a") else self._work
            keep_running(self._client, name, end, body, stop=_LEASE)

        run_threads(self._client, work, n=3)

    # The processes

    def _push(self, name: str, life: float, db: Any) -> None:
        """Push jobs, some of them later, some together."""
        chance = random.Random(f"{self._client.scenario['seed']} {name}")
        queue, end = self._queue(), time.monotonic() + life
        for number in itertools.count():
            if time.monotonic() >= end:
                break
            values = [f"{name}-{number}.{i}" for i in range(chance.choice([1, 1, 1, 4]))]
            items = self._push_all(db, queue, values, delay=chance.choice([0, 0, 0, 2]))
            if chance.random() < 0.1:
                _cancelled.add(items[0].value)
                queue.cancel(db, items[0])
            time.sleep(2 * self._pause * chance.random())

    @staticmethod
    def _push_all(
        db: Any, queue: fdbqueue.PriorityQueue, values: list[str], **facts: Any
    ) -> list[fdbqueue.Item]:
        _pushed.update(dict.fromkeys(values, False))
        items = queue.push_many(db, values, **facts)
        _pushed.update(dict.fromkeys(values, True))
        return items

    def _work(self, name: str, life: float, db: Any) -> None:
        """Run a worker, and stop it at the end of this process's life."""
        chance = random.Random(f"{self._client.scenario['seed']} {name}")
        handlers = Handlers(name, chance)
        handler = chance.choice([handlers.in_transaction, handlers.outside, handlers.at_end])
        options = {"concurrency": chance.choice([1, 3]), "timeout": chance.choice([None, 4])}
        worker = self._worker(db, handler, grace=1, **options)
        run_threads(
            self._client, lambda each: worker.run() if each.endswith("a") else _stop(worker, life)
        )
        for outcome in ("done", "failed", "lost"):
            _reports[outcome] += getattr(worker.report, outcome)

    def _worker(
        self, db: Any, handler: Callable[..., Any], concurrency: int = 1, **options: Any
    ) -> fdbqueue.Worker:
        options |= {"lease": _LEASE, "store_results": True, "concurrency": concurrency}
        return fdbqueue.Worker(db, self._queue(), handler, **options)

    # The end

    def check(self, db: Any) -> None:
        """End all jobs, look how long ones end in a calm, and account for all of them."""
        if self._client.id != 0:
            return
        queue = self._queue()
        self._drain(db, queue)
        self._look_at_long_jobs(db, queue)
        report = fdbqueue.admin.check(db, queue)
        if not report.ok:
            self._client.problem(f"fdbqueue.admin.check: {report.problems}")
        self._account(db, queue)
        take_dead_waiters(db, queue)
        look_for_leftovers(self._client, db, _SPACE, expected={"a receipt"})
        look_a_day_later(self._client, queue)

    def _drain(self, db: Any, queue: fdbqueue.PriorityQueue) -> None:
        """Let a worker end all jobs; leases of killed workers end by themselves."""
        handlers = Handlers("drain", random.Random(0), is_calm=True)

        def is_done() -> bool:
            self._worker(db, handlers.in_transaction, 8).run(drain=True)
            stats = queue.stats(db)
            return not (stats.ready or stats.delayed or stats.claimed)

        wait_until(self._client, is_done, 300, "the queue does not become empty")

    def _look_at_long_jobs(self, db: Any, queue: fdbqueue.PriorityQueue) -> None:
        """Check that a worker keeps its jobs for some leases, with another one idle."""
        values = [f"long-{i}" for i in range(3)]
        handlers = Handlers("long", random.Random(0), is_calm=True, seconds=3 * _LEASE)
        workers = [self._worker(db, handlers.outside, 3)]
        self._push_all(db, queue, values)

        ended: list[str] = []
        commits: list[float] = []

        def run(name: str) -> None:
            if name.endswith("c"):
                while len(ended) < 2:
                    commits.append(seconds_of_commits(db, 1))
                    time.sleep(0.1)
                return
            if name.endswith("b"):
                wait_until(self._client, lambda: len(_runs.keys() & {*values}) == 3, 60, "no run")
                workers.append(self._worker(db, handlers.outside, 3))
                workers[1].run(drain=True)
                time.sleep(2 * _LEASE)
            workers[name.endswith("b")].run(drain=True)
            ended.append(name)

        run_threads(self._client, run, n=3)
        can_extend = max(commits) < _LEASE / 4
        for value in values:
            if len(_runs[value]) != 1 and can_extend:
                self._client.problem(f"{value} was taken from a live worker: {_runs[value]}")

    def _account(self, db: Any, queue: fdbqueue.PriorityQueue) -> None:
        done = {info.item.value: info for info in queue.items(db, state="done")}
        dead = {info.item.value for info in queue.items(db, state="dead")}
        effects = {
            _EFFECTS.unpack(row.key)[0]: int.from_bytes(row.value, "little")
            for row in db.get_range(_EFFECTS.range().start, _EFFECTS.range().stop)
        }
        for value, is_certain in _pushed.items():
            info, n = done.get(value), effects.get(value, 0)
            if is_certain and info is None and value not in dead | _cancelled:
                self._client.problem(f"{value} is lost, after {_runs.get(value)}")
            if info is not None and value in dead:
                self._client.problem(f"{value} is a dead letter, and {info.outcome}")
            by = "" if info is None else info.result or ""
            if n != by.startswith(("in", "at")):
                self._client.problem(f"{value} has {n} effects, and was ended by {by!r}")
            if by.startswith("out") and by not in _returned:
                self._client.problem(f"{value} was ended by {by}, which has not returned")
            if info is not None and not _is_explained(value, info):
                self._client.problem(f"{value} is {info.outcome}, by {by!r}: nobody has said so")
        if appeared := {*done, *dead, *effects} - _pushed.keys():
            self._client.problem(f"nobody has pushed {appeared}")
        stats = queue.stats(db)
        # A job that is cancelled while it waits counts as removed.
        if (stats.total_completed + stats.total_removed, stats.dead) != (len(done), len(dead)):
            self._client.problem(f"{len(done)} jobs are done, {len(dead)} dead: {stats}")
        lines = [
            f"{value}: {_runs.get(value)}, {done[value].result if value in done else None}"
            for value in _pushed
        ]
        self._client.keep_log(lines)
        digest = hashlib.sha256(repr(lines).encode()).hexdigest()
        operations = len(_pushed) + sum(map(len, _runs.values()))
        facts = {"pushed": len(_pushed), "dead": len(dead), **_reports}
        self._client.report(operations=operations, digest=digest, **facts)


def _is_explained(value: str, info: ItemInfo) -> bool:
    """Return whether a job has ended as a handler or a client wanted it."""
    if info.outcome == "cancelled":
        return value in _cancelled
    return value in _discarded if info.outcome == "discarded" else info.result is not None


def _count(tr: fdbqueue.Transaction, value: str) -> None:
    tr.add(_EFFECTS.pack((value,)), (1).to_bytes(8, "little"))


def _stop(worker: fdbqueue.Worker, life: float) -> None:
    time.sleep(life)
    worker.stop()


class Handlers:
    """The handlers of one worker: some jobs take long, some fail.

    Args:
        name: The name of the process, which no other one has.
        chance: Its random choices.
        is_calm: Whether all jobs succeed.
        seconds: How long jobs take, if they do not choose it themselves.
    """

    def __init__(
        self, name: str, chance: random.Random, is_calm: bool = False, seconds: float = 0.0
    ) -> None:
        self._name = name
        self._chance = chance
        self._is_calm = is_calm
        self._seconds = seconds
        self._numbers = itertools.count(1)

    def _run(self, kind: str, value: str) -> str:
        run = f"{kind} {self._name} {next(self._numbers)}"
        _runs.setdefault(value, []).append(run)
        return run

    def _behave(self, durations: list[float]) -> None:
        time.sleep(self._seconds if self._is_calm else self._chance.choice(durations))
        if not self._is_calm and self._chance.random() < 0.1:
            raise ValueError("a job that fails")

    def in_transaction(self, tr: Any, item: fdbqueue.Item) -> str:
        """Add to the counter of the job. A transaction that takes six seconds is too slow."""
        run = self._run("in a transaction", item.value)
        _count(tr, item.value)
        self._behave([0, 0, 0, 0, 0.1, 1, 6])
        return run

    def outside(self, item: fdbqueue.Item) -> str:
        """Take up to three leases."""
        run = self._run("outside", item.value)
        self._behave([0.01, 0.1, 0.1, 1, 3 * _LEASE])
        _returned.add(run)
        return run

    def at_end(self, context: Context) -> str:
        """Take up to three leases, report, and count in the transaction that ends the job."""
        value = context.item.value
        run = self._run("at end", value)
        context.progress(0.5, run)
        context.log(run)
        context.at_end(_count, value)
        self._behave([0.01, 0.1, 0.1, 1, 3 * _LEASE])
        if self._chance.random() < 0.2:
            outcome = self._chance.choice(
                [Snooze(1), RetryIn(1), Discard("no such customer"), Dead("no such customer")]
            )
            if isinstance(outcome, Discard):
                _discarded.add(value)
            raise outcome
        return run
