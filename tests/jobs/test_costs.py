"""What steps, signals, ticks and batches cost: the figures of the reference."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fdbqueue.jobs import App, Context, RetryIn
from fdbqueue.testing import drain
from fdbqueue.types import Transaction
from tests.support.counting import CountingDatabase, writes

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "costs.md"
TEXT = " ".join(re.sub(r"\[(.*?)\]\(.*?\)", r"\1", PAGE.read_text()).split())
ROWS = re.findall(r"\| ([a-z][^|]*) \| (\d+) \| (\d+) \| (\d+) \|", TEXT)

Cost = tuple[int, ...]
"""How many transactions, reads and writes a call makes."""


class OwnThread(CountingDatabase):
    """A database that counts what one thread asks of it: a worker claims jobs meanwhile."""

    thread = 0

    def create_transaction(self) -> Any:
        if threading.get_ident() == self.thread:
            return super().create_transaction()
        return self.db.create_transaction()


class Meter:
    """Measures the costs of calls by name.

    Of several calls the least counts: the first ones mark the queue as one with timers, and now and
    then one reads history.
    """

    def __init__(self, app: App, *names: str) -> None:
        self.db: Any = app.db
        self.queues = [app.queue(name) for name in names]
        self.costs: dict[str, Cost] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        self.db.clear()
        self.db.thread = threading.get_ident()
        try:
            yield
        finally:  # also of a call that suspends the job
            cost = self.db.transactions, self.db.reads, writes(self.db, *self.queues)
            self.costs[name] = tuple(map(min, cost, self.costs.get(name, cost)))

    def more(self, name: str, than: str) -> Cost:
        return tuple(one - other for one, other in zip(self.costs[name], self.costs[than]))


@pytest.fixture
def app(db: Any) -> App:
    """Return an app on a database that counts."""
    return App(OwnThread(db))


@pytest.fixture
def meter(app: App, name: str) -> Meter:
    """Return a meter for the queues of the test."""
    return Meter(app, name, f"{name}-others")


def test_steps_cost_what_the_reference_says(app: App, name: str, meter: Meter) -> None:
    queue, others = meter.queues

    @app.job(queue=f"{name}-others")
    def other() -> None: ...

    def nothing(tr: Transaction) -> None: ...

    calls: dict[str, Callable[[Context], object]] = {
        "a step": lambda context: context.step("second", str),
        "a commit": lambda context: context.commit("second", nothing),
        "a sleep": lambda context: context.sleep("second", "1h"),
        "a wait": lambda context: context.wait("second", key=key, timeout="1h"),
        "another job, with its push": lambda context: context.run("second", other),
    }

    @app.job(queue=name)
    def job(context: Context, kind: str) -> None:
        is_new = not queue.steps.all(app.db, context.item.id)
        context.step("first", str)
        with meter.of(kind if is_new else "going on"):
            calls[kind](context)

    @app.job(queue=name)
    def again(context: Context) -> None:
        with meter.of("a step already done"):
            context.step("first", str)
        if context.attempt == 1:
            raise RetryIn(0)

    def end_other(kind: str) -> None:
        claim = others.claim(app.db)
        with meter.of(kind):
            others.ack(app.db, claim)

    for key in ("one", "two", "three"):
        for kind in calls:
            job.push(kind)
        again.push()
        drain(app, name)
        with meter.of("a signal for which a job waits"):
            assert app.signal(app.db, "second", key=key, queue=name) == 1
        end_other("the end of another job")
        other.push()
        end_other("an end")
        drain(app, name)
        assert app.db.watches == 0
    meter.costs["the end of another job"] = meter.more("the end of another job", "an end")
    expected = {name: tuple(map(int, cost)) for name, *cost in ROWS}
    assert {*calls} < {*expected}
    assert {name: meter.costs[name] for name in expected} == expected


def test_a_batch_costs_what_the_reference_says(app: App, name: str, meter: Meter) -> None:
    @app.job(queue=name)
    def job() -> None: ...

    @app.job(queue=name)
    def report(*, done: int, dead: int, cancelled: int) -> None: ...

    for _ in range(3):
        with meter.of("a push"):
            job.push_many([job.bind()] * 3)
        batch = app.batch(then=report)
        batch.push_many(job, [job.bind()] * 3)
        with meter.of("a push of a batch"):
            batch.flush()
        with meter.of("closing it"):
            batch.close()
        drain(app, name)
    assert "pushes jobs of a batch takes one read and one write more" in TEXT
    assert meter.more("a push of a batch", "a push") == (0, 1, 1)
    assert "Closing takes two transactions, three reads and two writes" in TEXT
    assert meter.costs["closing it"] == (2, 3, 2)
