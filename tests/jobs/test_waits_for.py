"""A job says what it waits for: a signal, other jobs, another attempt, its time, or a worker."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue.jobs import App, Context, Handle
from fdbqueue.testing import Clock
from fdbqueue.types import JobRef, WaitsFor


def waits(handle: Handle[Any]) -> WaitsFor:
    """Return what a job waits for, which a list of items says, too."""
    app = handle._job.app
    listed = {info.id: info for info in app.queue(handle.queue).items(app.db, state="delayed")}
    found: WaitsFor = handle.info().waits_for
    assert listed[handle.id].waits_for == found
    return found


def test_a_job_waits_for_its_time_another_attempt_or_a_signal(
    app: App, name: str, clock: Clock
) -> None:
    @app.job(queue=name)
    def work(context: Context) -> None:
        if context.attempt == 1:
            raise OSError
        context.wait("paid", signal="payment", key="order 7", timeout="1d")

    handle = work.push()
    assert handle.info().waits_for is None
    assert waits(work.using(delay="1h").push()).kind == "time"
    app.work(name, drain=True)
    assert (waits(handle).kind, waits(handle).step) == ("retry", None)
    clock.advance(100)
    app.work(name, drain=True)
    why = "it waits for the signal 'payment' with the key 'order 7'"
    assert waits(handle) == WaitsFor("signal", why, "paid", "payment", "order 7")
    app.signal(app.db, "payment", key="order 7")
    assert handle.info().waits_for is None


def test_a_job_waits_for_the_jobs_that_it_runs_and_each_of_them_names_it(
    app: App, name: str
) -> None:
    @app.job(queue=f"{name}-other")
    def child(number: int) -> None: ...

    @app.job(queue=name)
    def parent(context: Context) -> None:
        context.gather("some", [child.bind(0), child.bind(1)])

    handle = parent.push()
    app.work(name, drain=True)
    found = waits(handle)
    assert (found.kind, found.left) == ("children", 2)
    assert found.why == "it runs 2 jobs that have not ended"
    other: Any = app.queue(f"{name}-other")
    children = [info.id for info in other.items(app.db, state="ready")]
    assert {*found.jobs} == {JobRef(f"{name}-other", id) for id in children}
    steps = app.queue(name).steps.all(app.db, handle.id)
    assert {step.queue for step in steps} == {f"{name}-other"}
    parents = [other.get(app.db, id).parent for id in children]
    assert parents == [JobRef(name, handle.id, f"some {number}") for number in range(2)]
    other.ack(app.db, other.claim(app.db))
    assert [ref.id for ref in waits(handle).jobs] == children[1:]
    other.nack(app.db, other.claim(app.db), dead=True)
    dead = other.get(app.db, children[1])
    assert (dead.state, dead.parent) == ("dead", parents[1])
    assert (handle.info().waits_for, handle.info().parent) == (None, None)


def test_a_job_waits_for_the_jobs_that_it_follows(app: App, name: str) -> None:
    @app.job(queue=name)
    def note(what: str) -> None: ...

    @app.job(queue=f"{name}-other")
    def other(what: str) -> None: ...

    first, second = note.push("a"), other.push("b")
    follower = note.using(after=[first, second]).push("c")
    found = waits(follower)
    assert (found.kind, found.left, found.step) == ("jobs", 2, None)
    assert {*found.jobs} == {JobRef(name, first.id), JobRef(f"{name}-other", second.id)}
    app.work(name, drain=True)
    assert waits(follower).jobs == (JobRef(f"{name}-other", second.id),)
    assert waits(follower).why == "it follows a job that has not ended"
    app.work(f"{name}-other", drain=True)
    assert follower.info().waits_for is None


def test_a_job_waits_for_the_others_of_its_batch(app: App, name: str) -> None:
    @app.job(queue=name)
    def work() -> None: ...

    @app.job(queue=name)
    def report(*, done: int, dead: int, cancelled: int) -> None: ...

    batch = app.batch(then=report)
    batch.push(work)
    batch.flush()
    why = "it runs at the end of a batch: 1 of 1 jobs have not ended, and the batch is not closed"
    assert waits(batch.handle) == WaitsFor("batch", why, left=1)
    batch.close()
    assert not waits(batch.handle).why.endswith("closed")


@pytest.mark.parametrize(("version", "of"), [(1, ""), (3, " in version 3")])
def test_a_job_waits_for_a_worker_that_knows_it(
    app: App, name: str, clock: Clock, version: int, of: str
) -> None:
    @app.job(queue=name)
    def work() -> None: ...

    queue: Any = app.queue(name)
    item = queue.push(app.db, {"job": "shop.send", "version": version})
    app.work(name, drain=True)
    info = queue.get(app.db, item)
    expected = WaitsFor("worker", f"no worker knows the job 'shop.send'{of}")
    assert (info.state, info.waits_for) == ("delayed", expected)
    clock.advance(11)
    info = queue.get(app.db, item)
    assert (info.state, info.waits_for) == ("ready", expected)
    assert queue.claim(app.db) is not None
    info = queue.get(app.db, item)
    assert (info.state, info.waits_for) == ("claimed", None)
