"""Pops that wait for an item."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Claim, PriorityQueue
from fdbqueue.coordination import sans_io
from fdbqueue.coordination.pops import REQUEST_TIMEOUT, PopRequests
from fdbqueue.coordination.sans_io import sleep_on
from fdbqueue.embedded.transaction.futures import Future
from fdbqueue.errors import FDBError
from fdbqueue.queue.base import store_of
from recipes.priority_queue import PriorityQueue as Recipe
from tests.support.counting import CountingDatabase
from tests.support.keys import layout_of


def test_a_pop_with_a_wait_returns_at_once_or_when_it_is_over(
    db: Any, queue: PriorityQueue
) -> None:
    queue.push_many(db, ["a", "b", "c"])
    assert queue.pop(db, wait=60).value == "a"
    assert queue.pop_max(db, wait=math.inf).value == "b"
    assert [item.value for item in queue.pop_many(db, 5, wait=60)] == ["c"]
    began = time.monotonic()
    assert queue.pop(db, wait=0.15) is None
    assert queue.pop_many(db, 2, wait=0.15) == []
    assert time.monotonic() - began >= 0.3
    assert queue.pop_many(db, 0, wait=math.inf) == []


@pytest.mark.damaged
def test_a_pop_looks_once_more_when_its_wait_is_over(
    db: Any, queue: PriorityQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push by the plain recipe fires no watch, but the last look finds its item."""
    recipe = Recipe(Subspace(rawPrefix=layout_of(queue).items))

    def push_and_sleep(*arguments: Any) -> Any:
        recipe.push(db, b"1", 5)
        return sleep_on(*arguments)

    monkeypatch.setattr(sans_io, "sleep_on", push_and_sleep)
    assert queue.pop(db, wait=0.5).value == 1


SOON = 0.2  # seconds


def claims_at_once(db: Any, queue: PriorityQueue, _: Claim) -> None:
    """Push an item of which a waiting client sees only that it is claimed."""

    @fdbqueue.transactional
    def body(tr: Any) -> None:
        queue.push(tr, "x")
        queue.claim(tr, lease=SOON)

    body(db)


EVENTS: dict[str, Callable[[Any, PriorityQueue, Claim], object]] = {
    "push": lambda db, queue, _: queue.push(db, "x"),
    "push, delayed": lambda db, queue, _: queue.push(db, "x", delay=SOON),
    "push and claim": claims_at_once,
    "release": lambda db, queue, claim: queue.release(db, claim),
    "nack": lambda db, queue, claim: queue.nack(db, claim, delay=0),
    "nack, delayed": lambda db, queue, claim: queue.nack(db, claim, delay=SOON),
    "shorter lease": lambda db, queue, claim: queue.extend(db, claim, SOON),
    "put back": lambda db, queue, claim: queue.put_back(db, [claim.item]),
}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("take", ["pop", "claim"])
def test_whatever_brings_an_item_wakes_a_client_that_sleeps(
    db: Any, space: Subspace, take: str, event: str, asleep: threading.Event
) -> None:
    ours, others = PriorityQueue(space["queue"]), PriorityQueue(space["queue"])
    others.push(db, "x")
    claim = others.claim(db, lease=10_000)
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(getattr(ours, take), db, wait=120)
        assert asleep.wait(60)
        if event == "put back":
            others.ack(db, claim)
        EVENTS[event](db, others, claim)
        taken = waits.result(60)
    assert (taken.item if take == "claim" else taken).value == "x"


@pytest.mark.parametrize("take", ["claim", "pop", "wait"])
def test_a_waiting_client_looks_every_25_seconds_with_one_transaction(
    db: Any, queue: PriorityQueue, take: str, monkeypatch: Any
) -> None:
    counting = CountingDatabase(db)
    sleeps: list[float] = []

    def sleep(watches: list[Any], seconds: float, *others: Any) -> Any:
        sleeps.append(seconds)
        assert counting.transactions <= len(sleeps) + 4
        assert counting.commits == (take != "wait")  # a client that can be woken has a key
        if len(sleeps) == 10:
            queue.push(db, "x")
        return sleep_on(watches, 0, *others)  # as if the time were over

    monkeypatch.setattr(sans_io, "sleep_on", sleep)
    if take == "wait":
        assert queue.wait(counting, math.inf)
    else:
        assert getattr(queue, take)(counting, wait=math.inf)
    assert sleeps == [25] * 10


def test_a_pop_looks_often_while_a_dead_process_may_hold_items(
    db: Any, queue: PriorityQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = layout_of(queue)
    tr = db.create_transaction()
    PopRequests(layout, store_of(queue).items).write(tr, b"dead", [(1, False)])
    tr.commit().wait()
    sleeps: list[float] = []

    def push_and_sleep(watches: list[Any], seconds: float, *others: Any) -> Any:
        sleeps.append(seconds)
        queue.push(db, "x")
        return sleep_on(watches, seconds, *others)

    monkeypatch.setattr(sans_io, "sleep_on", push_and_sleep)
    assert queue.pop(db, wait=math.inf).value == "x"
    assert sleeps == [REQUEST_TIMEOUT]


def test_wait_reports_an_item_and_leaves_it_in_the_queue(db: Any, queue: PriorityQueue) -> None:
    assert queue.wait(db, 0) is False
    assert queue.wait(db, 0.1) is False
    threading.Timer(0.1, queue.push, [db, "x"]).start()
    assert queue.wait(db, math.inf) is True
    assert queue.wait(db, 0) is True
    assert queue.size(db) == 1


@pytest.mark.parametrize("code", [1009, 1032])
def test_a_watch_that_fails_because_a_server_lags_behind_ends_only_its_sleep(
    db: Any, queue: PriorityQueue, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(*_: Any) -> Future[None]:
        monkeypatch.undo()
        queue.push(db, "a")
        return Future(None, FDBError(code))

    monkeypatch.setattr(sans_io, "sleep_on", fail)
    if code == 1009:
        assert queue.pop(db, wait=60).value == "a"
    else:
        with pytest.raises(FDBError, match="1032"):
            queue.pop(db, wait=60)
