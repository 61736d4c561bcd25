"""What steps, signals, ticks and batches cost: the tables of the reference, and idle workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fdbqueue.jobs import App, Context, RetryIn
from fdbqueue.testing import Clock, drain
from fdbqueue.types import Transaction
from tests.support.counting import CountingDatabase
from tests.support.keys import layout_of

COSTS = Path(__file__).parents[2] / "docs" / "reference" / "costs.md"


class Cost(NamedTuple):
    """How much a call asks of the database."""

    transactions: int
    reads: int
    writes: int

    def minus(self, other: Cost) -> Cost:
        return Cost(*(mine - others for mine, others in zip(self, other)))


def table(title: str) -> dict[str, Cost]:
    """Return the table of costs of the section with this title."""
    rows = COSTS.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0].splitlines()
    cells = [row.strip("|").split("|") for row in rows if row.startswith("| ")]
    return {name.strip(): Cost(*map(int, cost)) for name, *cost in cells[2:]}


class OwnThread(CountingDatabase):
    """A database that counts what one thread asks of it: a worker claims jobs meanwhile."""

    thread = 0

    def create_transaction(self) -> Any:
        if threading.get_ident() == self.thread:
            return super().create_transaction()
        return self.db.create_transaction()


class Meter:
    """Measures the costs of calls by name, for jobs of some queues.

    Of several calls the least counts: the first ones mark the queue as one with timers, and now and
    then one reads and writes history. Receipts are those of clusters, and do not count.
    """

    def __init__(self, app: App, *names: str) -> None:
        self.db: Any = app.db
        self.costs: dict[str, Cost] = {}
        self.watches = 0
        self._layouts = [layout_of(app.queue(name)) for name in names]

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        self.db.clear()
        self.db.thread = threading.get_ident()
        try:
            yield
        finally:  # also of a call that suspends the job
            writes = sum(map(self._counts, self.db.mutations))
            cost = Cost(self.db.transactions, self.db.reads, writes)
            self.costs[name] = Cost(*map(min, cost, self.costs.get(name, cost)))
            self.watches += self.db.watches

    def _counts(self, key: bytes) -> bool:
        return not any(
            layout.receipts.contains(key) or key.startswith(layout.history)
            for layout in self._layouts
        )

    def assert_as_in(self, title: str) -> None:
        """Compare the costs with the table of a section."""
        expected = table(title)
        assert {name: self.costs[name] for name in expected} == expected


@pytest.fixture
def app(db: Any) -> App:
    """Return an app on a database that counts."""
    return App(OwnThread(db))


@pytest.fixture
def meter(app: App, name: str) -> Meter:
    """Return a meter for the queues of the test."""
    return Meter(app, name, f"{name}-others")


def test_steps_cost_what_the_reference_says(app: App, name: str, meter: Meter) -> None:
    queue, others = app.queue(name), app.queue(f"{name}-others")

    @app.job(queue=f"{name}-others")
    def other() -> None: ...

    def nothing(tr: Transaction) -> None: ...

    calls: dict[str, Callable[[Context, str], object]] = {
        "a step": lambda context, _: context.step("second", str),
        "a commit": lambda context, _: context.commit("second", nothing),
        "a sleep": lambda context, _: context.sleep("second", "1h"),
        "a wait": lambda context, key: context.wait("second", key=key, timeout="1h"),
        "a wait whose signal was there before": lambda context, key: context.wait(
            "second", key=f"{key} sent", timeout="1h"
        ),
        "another job, with its push": lambda context, _: context.run("second", other),
    }

    @app.job(queue=name)
    def job(context: Context, kind: str, key: str) -> None:
        is_new = not queue.steps.all(app.db, context.item.id)
        context.step("first", str)
        with meter.of(kind if is_new else "going on"):
            calls[kind](context, key)

    @app.job(queue=name)
    def again(context: Context) -> None:
        with meter.of("a step that is done already"):
            context.step("first", str)
        if context.attempt == 1:
            raise RetryIn(0)

    def signal(key: str) -> int:
        return app.signal(app.db, "second", key=key, queue=name)

    def end_other(kind: str) -> None:
        claim = others.claim(app.db)
        with meter.of(kind):
            others.ack(app.db, claim)

    for key in ("one", "two", "three"):
        with meter.of("a signal for which no job waits"):
            signal(f"{key} sent")
        for kind in calls:
            job.push(kind, key)
        again.push()
        drain(app, name)
        with meter.of("a signal for which a job waits"):
            assert signal(key) == 1
        end_other("the end of another job")
        other.push()
        end_other("an end")
        drain(app, name)
    ends = meter.costs["the end of another job"].minus(meter.costs["an end"])
    meter.costs["the end of another job, beside its acknowledgement"] = ends
    meter.assert_as_in("Steps")
    assert meter.watches == 0


def test_a_tick_costs_what_the_reference_says(
    app: App, name: str, meter: Meter, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdbqueue.coordination.sweeper._SWEEP_IN_CLAIM", 0.0)  # each claim sweeps
    queue = app.queue(name)

    @app.job(queue=name)
    def job() -> None: ...

    def claim(kind: str) -> None:
        with meter.of(kind):
            claim = queue.claim(app.db)
        queue.ack(app.db, claim)

    app.schedules.add("each second", job.bind(), every="1s")
    for _ in range(3):
        job.push()
        claim("a claim")
        clock.advance("1s")
        claim("a claim at a tick")
    tick = meter.costs["a claim at a tick"].minus(meter.costs["a claim"])
    meter.costs["a tick, with the push of its job"] = tick
    meter.assert_as_in("Schedules")


def test_a_batch_costs_what_the_reference_says(app: App, name: str, meter: Meter) -> None:
    queue = app.queue(name)

    @app.job(queue=name)
    def job() -> None: ...

    @app.job(queue=name)
    def report(*, done: int, dead: int, cancelled: int) -> None: ...

    def end(kind: str) -> None:
        claim = queue.claim(app.db)
        with meter.of(kind):
            queue.ack(app.db, claim)

    for _ in range(3):
        calls = [job.bind() for _ in range(3)]
        with meter.of("a push"):
            job.push_many(calls)
        for _ in calls:
            end("an end")
        batch = app.batch(then=report)
        batch.push_many(job, calls)
        with meter.of("a push of a batch"):
            batch.flush()
        end("an end while it is open")
        with meter.of("closing it"):
            batch.close()
        end("an end after it was closed")
        end("the last end")
        drain(app, name)
    costs = meter.costs
    for name, cost, plain in (
        ("a transaction that pushes jobs of a batch", "a push of a batch", "a push"),
        ("the end of a job while the batch is open", "an end while it is open", "an end"),
        ("the end of a job after it was closed", "an end after it was closed", "an end"),
    ):
        costs[name] = costs[cost].minus(costs[plain])
    meter.assert_as_in("Batches")
