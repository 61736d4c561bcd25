"""What a queue accepts can be shown: each view answers after each push that was accepted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fdbqueue
from fdbqueue import PriorityQueue, Queue, TaskQueue
from fdbqueue.errors import FdbqueueError
from fdbqueue.queue.overview import as_json, info_as_json, stats_as_json

REFUSED = (FdbqueueError, ValueError, TypeError)

zones = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
edges = [datetime.min, datetime.max, datetime.max.replace(microsecond=999_000)]
times = st.builds(
    lambda time, zone: time.replace(tzinfo=zone), st.datetimes() | st.sampled_from(edges), zones
) | st.sampled_from([datetime.max, 10**12, "2030-01-01", None])
integers = st.integers() | st.sampled_from(
    [2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 10**400, -(10**400), 256**254, 10**4000]
)
floats = st.floats() | st.sampled_from([1e308, 5e-324, -0.0, math.inf, -math.inf, math.nan])
seconds = integers | floats | st.timedeltas() | st.booleans() | st.none()
texts = st.text(max_size=20) | st.sampled_from(
    ["", " ", "\ud800", "\0", "\x1b[2J", "x" * 300, "é" * 200]
)
names = texts | st.none() | st.integers()
parts = integers | floats | texts | st.binary(max_size=20)
priorities = (
    integers | floats | st.booleans() | st.none() | st.tuples(integers, floats, texts, st.binary())
)
values = st.recursive(
    st.none() | st.booleans() | integers | floats | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
costs = (
    floats
    | integers
    | st.decimals()
    | st.fractions()
    | st.sampled_from(
        [Decimal("Infinity"), Decimal("NaN"), Decimal(10) ** 400, Fraction(10**400), 1j, True]
    )
)
schedule = {"delay": seconds, "at": times, "ttl": seconds, "unique": names}
schedule |= {"unique_until": names | st.sampled_from(["claimed", "ended"]), "unique_for": seconds}
task = {
    **schedule,
    **{"priority": integers, "deadline": times, "cost": costs},
    **{"agent_name": names, "client_id": names, "payload": values},
}
KINDS: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "priority": (lambda db: PriorityQueue.named(db, "q"), {**schedule, "priority": priorities}),
    "tuple": (
        lambda db: PriorityQueue.named(db, "q", priorities=(int, float, str, bytes)),
        {**schedule, "priority": priorities},
    ),
    "fifo": (lambda db: Queue.named(db, "q"), {}),
    "task": (lambda db: TaskQueue.named(db, "q"), task),
}
CLAIM = {"lease": seconds, "client": names, "within": integers}
NACK = {"delay": seconds, "error": names}


def some(fields: dict[str, Any]) -> Any:
    """Return a strategy for few of some arguments, because one bad value refuses them all."""
    chosen = st.lists(st.sampled_from([*fields] or [""]), max_size=2, unique=True)
    return chosen.flatmap(
        lambda few: st.fixed_dictionaries({name: fields[name] for name in few if name in fields})
    )


@pytest.fixture(scope="module")
def memory() -> Iterator[Any]:
    with fdbqueue.open("memory:") as db:
        yield db


def show_all(db: Any, queue: Any) -> None:
    """Ask for every view of a queue, and of all queues. An item may expire at any moment."""
    (numbers,) = fdbqueue.admin.overview(db).values()
    stats_as_json(numbers)
    stats_as_json(queue.stats(db))
    for window in queue.history(db):
        as_json(window)
    for state in ("ready", "delayed", "claimed", "dead", "done"):
        for info in queue.search(db, state=state).items:
            info_as_json(info)
            queue.get(db, info.id)
            queue.position(db, info.id)
    [*queue.items(db, state="dead")]
    if not isinstance(queue, Queue):
        queue.counts(db)
    if isinstance(queue, TaskQueue):
        queue.get_stats(db)
    assert fdbqueue.admin.check(db, queue).ok


def end(db: Any, queue: Any, data: st.DataObject) -> None:
    """Claim the item, and report that its job failed, with values that may be refused."""
    claim = None
    with suppress(*REFUSED):
        claim = queue.claim(db, **data.draw(some(CLAIM)))
    show_all(db, queue)
    with suppress(*REFUSED):
        queue.extend(db, claim, data.draw(seconds))
    show_all(db, queue)
    with suppress(*REFUSED):
        queue.nack(db, claim, **data.draw(some(NACK)))
    show_all(db, queue)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_each_view_answers_after_each_push_that_is_accepted(
    memory: Any, kind: str, data: st.DataObject
) -> None:
    make, fields = KINDS[kind]
    queue = make(memory)
    given = data.draw(some(fields))
    args = () if kind == "task" else (data.draw(values),)
    push = queue.enqueue if kind == "fifo" else queue.push
    try:
        try:
            pushed = push(memory, *args, **given)
        except REFUSED:
            assert fdbqueue.admin.queue_names(memory) == []
            return
        assert pushed
        show_all(memory, queue)
        end(memory, queue, data)
    finally:
        for each in fdbqueue.admin.queue_names(memory):
            fdbqueue.admin.drop(memory, each)
