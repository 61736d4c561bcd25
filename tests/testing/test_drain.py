"""Jobs run in a test as they do in production, and the test learns how each attempt ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Transaction
from fdbqueue.jobs import App, Context, Dead, Discard, Retry, RetryIn, Snooze
from fdbqueue.testing import Clock, DrainLimit, bound_app, drain
from tests.support.waiting import wait_until

HOURLY = Retry(attempts=4, first="1h", factor=1, jitter=0)


@pytest.fixture
def app(db: Any) -> Iterator[App]:
    """Return an app on the database of the test."""
    with bound_app(App(keep=timedelta(days=7)), db) as app:
        yield app


def test_a_retry_runs_once_the_clock_says_so(app: App, name: str, clock: Clock) -> None:
    @app.job(queue=name, retry=HOURLY)
    def fetch(context: Context) -> int:
        if context.attempt < 2:
            raise OSError("no answer")
        return context.attempt

    handle = fetch.push()
    (first,) = drain(app)
    facts = first.job, first.id, first.number, first.outcome
    assert facts == (fetch.name, handle.id, 1, "failed")
    assert isinstance(first.error, OSError)
    clock.advance("59m")
    assert drain(app) == []
    clock.advance("1m")
    assert drain(app).outcomes(handle) == ["done"]
    assert handle.result() == 2


def test_a_drain_that_advances_the_clock_runs_all_that_waits(
    app: App, name: str, clock: Clock
) -> None:
    ran = []

    @app.job(queue=name, retry=HOURLY)
    def fail() -> None:
        ran.append("fail")
        raise OSError("no answer")

    @app.job(queue=f"{name}-b")
    def snooze() -> None:
        ran.append("snooze")
        if ran.count("snooze") < 3:
            raise Snooze("80m")

    @app.job(queue=name)
    def later() -> None:
        ran.append("later")
        if ran.count("later") == 1:
            later.using(delay="2d").push()

    began = clock.now()
    fail.push()
    snooze.push()
    later.using(delay="1d").push()
    drained = drain(app, advance=clock)
    assert drained.outcomes(fail) == ["failed", "failed", "failed", "dead"]
    assert drained.outcomes(snooze) == ["snoozed", "snoozed", "done"]
    assert drained.outcomes(later) == ["done", "done"]
    order = ["fail", "snooze"] * 3 + ["fail", "later", "later"]
    assert ran == order
    assert timedelta(days=3) <= clock.now() - began < timedelta(days=3, hours=1)
    assert drain(app, advance=clock) == []


@pytest.mark.parametrize("keep", [None, timedelta(days=1)])
def test_each_outcome_is_told_also_of_jobs_that_no_queue_keeps(
    db: Any, name: str, keep: Any, clock: Clock
) -> None:
    """The policy and the queue decide about them."""
    errors = {
        "failed": OSError("no answer"),
        "snoozed": Snooze("1h"),
        "discarded": Discard("too old"),
        "dead": Dead("nobody there"),
        "retried": RetryIn("1h"),
        "cancelled and failed": OSError("no answer"),
    }
    with bound_app(App(keep=keep), db) as app:

        @app.job(queue=name, retry=HOURLY)
        def end(how: str) -> None:
            if how.startswith("cancelled"):
                handles[how].cancel()
            if how in errors:
                raise errors[how]

        @app.job(queue=name)
        def in_transaction(tr: Transaction) -> None: ...

        @app.job(queue=name, retry=lambda error, context: Snooze("1m"))
        async def patient() -> None:
            raise OSError

        @app.job(queue=f"{name}-limited", retry=lambda error, context: "1m")
        def limited() -> None:
            raise OSError

        app.queue(f"{name}-limited").configure(db, max_attempts=1)
        handles: dict[str, Any] = {how: end.push(how) for how in ("done", "cancelled", *errors)}
        handles |= {job.name: job.push() for job in (in_transaction, patient, limited)}
        drained = drain(app)
        told = {how: drained.outcomes(handle) for how, handle in handles.items()}
        others = {in_transaction.name: "done", patient.name: "snoozed", limited.name: "dead"}
        others |= {"retried": "failed", "cancelled and failed": "cancelled"}
        assert told == {how: [others.get(how, how)] for how in handles}
        assert [drained.of(handles[how])[0].error for how in errors] == [*errors.values()]
        assert (handles["cancelled"].state() is None) == (keep is None)


def test_what_is_no_job_of_the_app_is_told_too(app: App, name: str) -> None:
    @app.job(queue=name)
    def work() -> None: ...

    app.queue(name).push(app.db, {"job": "elsewhere"})
    app.queue(name).push(app.db, "no job")
    first, second = drain(app)
    assert (first.job, first.number, first.outcome) == ("elsewhere", 0, "unknown")
    assert (second.job, second.outcome) == ("", "dead")


def test_a_job_that_moves_the_clock_over_its_lease_loses_it(
    app: App, name: str, clock: Clock
) -> None:
    """As a process does that was stopped for an hour, if another worker looks meanwhile."""

    @app.job(queue=name)
    def work(context: Context) -> None:
        if context.attempt == 1:
            clock.advance("1h")
            wait_until(lambda: app.queue(name).claim(app.db, lease="1h"))

    work.push()
    assert drain(app).outcomes() == ["lost"]
    assert drain(app, advance=clock).outcomes() == ["done"]


def test_functions_run_in_the_thread_of_the_test_one_at_a_time(app: App, name: str) -> None:
    threads: list[threading.Thread] = []

    @app.job(queue=name)
    def in_transaction(tr: Transaction) -> None:
        threads.append(threading.current_thread())
        plain.using(tr).push()

    @app.job(queue=f"{name}-b")
    def plain() -> None:
        threads.append(threading.current_thread())

    @app.job(queue=name)
    async def coroutine() -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name

    in_transaction.push()
    handle = coroutine.push()
    drained = drain(app)
    order = [each.name for each in (in_transaction, coroutine, plain)]
    assert [attempt.job for attempt in drained] == order
    assert threads == [threading.current_thread()] * 2
    assert handle.result() != threading.current_thread().name


def test_only_the_named_queues_that_are_not_paused_are_drained(
    app: App, name: str, clock: Clock
) -> None:
    @app.job(queue=name)
    def work() -> None: ...

    work.push()
    elsewhere = work.using(queue=f"{name}-other").push()
    assert drain(app, f"{name}-other").of(elsewhere).outcomes() == ["done"]
    work.using(queue=f"{name}-other", delay="1h").push()
    app.queue(f"{name}-other").configure(app.db, paused=True)
    assert drain(app, advance=clock).outcomes(work) == ["done"]
    app.queue(f"{name}-other").configure(app.db, paused=False)
    assert drain(app, advance=clock).outcomes() == ["done"]


def test_a_drain_ends_after_a_number_of_attempts(app: App, name: str, clock: Clock) -> None:
    @app.job(queue=name)
    def push_again() -> None:
        push_again.push()

    push_again.push()
    with pytest.raises(DrainLimit, match="more than 10 attempts") as caught:
        drain(app, limit=10)
    assert caught.value.drained.outcomes() == ["done"] * 11

    @app.job(queue=f"{name}-b")
    def snooze() -> None:
        raise Snooze("1h")

    snooze.push()
    with pytest.raises(DrainLimit, match="snooze snoozed, "):
        drain(app, f"{name}-b", advance=clock, limit=10)
    with pytest.raises(ValueError, match="limit is a number of items from 1"):
        drain(app, limit=0)
    assert drain(App(app.db), advance=clock) == []


@pytest.mark.parametrize("ending", [KeyboardInterrupt, pytest.fail.Exception])
def test_a_job_may_end_the_test(app: App, name: str, ending: Any) -> None:
    @app.job(queue=name)
    def work() -> None:
        raise ending("now")

    handles = [work.push(), work.push()]
    with pytest.raises(ending):
        drain(app)
    for handle in handles:
        assert (handle.state(), handle.info().attempts) == ("ready", 0)  # as after a shutdown


def test_an_app_is_bound_to_a_new_database_and_restored() -> None:
    own = fdbqueue.open("memory:")
    app = App(own)

    @app.job()
    def work() -> None: ...

    work.push()
    with bound_app(app) as bound:
        assert bound is app
        assert app.db is not own
        assert drain(app) == []
        work.push()
        with bound_app(app):
            assert app.queue("jobs").size(app.db) == 0
        assert app.queue("jobs").size(app.db) == 1
    with pytest.raises(ZeroDivisionError), bound_app(app):
        1 / 0
    assert app.db is own
    assert app.queue("jobs").size(app.db) == 1


def test_a_job_that_is_suspended_goes_on_in_a_later_drain(
    app: App, name: str, clock: Clock
) -> None:
    @app.job(queue=name)
    async def sleeper(context: Context) -> str:
        await context.aio.sleep("nap", "1h")
        return "slept"

    handle = sleeper.push()
    assert drain(app).outcomes() == ["suspended"]
    assert drain(app, advance=clock).outcomes() == ["done"]
    assert handle.result() == "slept"
