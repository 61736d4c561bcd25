"""A cancelled job learns of it while it runs, with steps at the one where it stands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import transactional
from fdbqueue.admin import check
from fdbqueue.errors import NoResult
from fdbqueue.jobs import App, Context, JobCancelled, Retry
from fdbqueue.testing import Clock, drain
from tests.support.leases import lapse
from tests.support.waiting import MAX_WAIT

STANDING: dict[str, Callable[[Context], object]] = {
    "sleep": lambda context: context.sleep("stand", "1h"),
    "wait": lambda context: context.wait("stand", timeout="1h"),
}


@pytest.fixture(autouse=True)
def _keep(app: App, name: str) -> None:
    app.queue(name).configure(app.db, keep=10)


def ended(handle: Any) -> tuple[Any, ...]:
    """Return the end of a job, and how its steps have ended."""
    app = handle._job.app
    info = handle.info()
    steps = app.queue(handle.queue).steps.all(app.db, handle.id)
    assert check(app.db, app.queue(handle.queue)).problems == ()
    return info.state, info.outcome, {step.name: step.state for step in steps}


@pytest.mark.parametrize("how", STANDING)
def test_a_suspended_job_goes_on_where_it_stands(app: App, name: str, how: str) -> None:
    raised: list[str] = []

    @app.job(queue=name)
    def fulfil(context: Context) -> str:
        context.step("charge", str)
        try:
            STANDING[how](context)
        except JobCancelled as cancelled:
            raised.append(cancelled.step)
            context.step("refund", str)
            context.sleep("cool off", "1h")  # a compensation can take its time, too
            context.step("tell", str)
        return "nobody sees that"

    handle = fulfil.push()
    with Clock() as clock:
        drain(app)
        assert handle.cancel()
        assert handle.state() == "ready"
        assert handle.info().cancelling
        assert app.signal(app.db, "stand", key=handle.id, queue=name) == 0
        drain(app)
        assert handle.state() == "delayed"
        assert handle.cancel()  # which changes nothing
        assert handle.state() == "delayed"
        clock.advance("2h")  # so the sleep or the wait where it stood is over, too
        assert drain(app).outcomes() == ["cancelled"]
    assert raised == ["stand"] * 2
    state, outcome, steps = ended(handle)
    assert (state, outcome) == ("done", "cancelled")
    assert {"charge", "refund", "cool off", "tell"} <= {*steps}
    assert not handle.cancel()
    with pytest.raises(NoResult, match="cancelled"):
        handle.result()


@pytest.mark.parametrize("kind", ["function", "coroutine"])
@pytest.mark.parametrize("catches", [True, False])
def test_a_running_job_learns_at_its_next_step(
    app: App, name: str, kind: str, catches: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    done: list[str] = []

    def charge() -> None:
        assert handle.cancel()
        done.append("charge")

    def function(context: Context) -> None:
        try:
            context.step("charge", charge)
            context.step("ship", done.append, "ship")
        except JobCancelled:
            context.step("refund", done.append, "refund")
            if not catches:
                raise

    async def coroutine(context: Context) -> None:
        try:
            await context.aio.step("charge", charge)
            await context.aio.step("ship", done.append, "ship")
        finally:
            await context.aio.step("refund", done.append, "refund")

    job: Any = function if kind == "function" else coroutine
    handle = app.job(queue=name, name="job")(job).push()
    app.work(name, drain=True)
    assert done == ["charge", "refund"]
    assert ended(handle) == ("done", "cancelled", {"charge": "done", "refund": "done"})
    logged = [record.__dict__["outcome"] for record in caplog.records if hasattr(record, "outcome")]
    assert logged == ["cancelled"]


@pytest.mark.parametrize("call", ["commit", "sleep", "wait", "run"])
def test_a_step_that_a_cancel_overtakes_raises(app: App, name: str, call: str) -> None:
    """The cancel comes after the step has been looked up, and before it takes effect."""

    @app.job(queue=name)
    def other() -> None: ...

    def effect(tr: Any) -> None:
        handle.cancel()

    calls: dict[str, Callable[[Context], object]] = {
        "commit": lambda context: context.commit("last", effect),
        "sleep": lambda context: context.sleep("last", "1h"),
        "wait": lambda context: context.wait("last"),
        "run": lambda context: context.run("last", other),
    }

    @app.job(queue=name)
    def job(context: Context) -> None:
        context.step("first", str)
        if call != "commit":
            handle.cancel()
        try:
            calls[call](context)
        except JobCancelled as cancelled:
            context.step(f"after {cancelled.step}", str)

    handle = job.push()
    drain(app)
    assert ended(handle)[1:] == ("cancelled", {"first": "done", "after last": "done"})


def test_a_compensation_that_fails_or_dies_is_retried_from_the_same_step(
    app: App, name: str
) -> None:
    runs: list[str] = []

    @app.job(queue=name, retry=Retry(attempts=10, first=0))
    def job(context: Context) -> None:
        context.step("charge", str)
        try:
            context.wait("stand")
        except JobCancelled:
            context.step("refund", runs.append, "refund")
            runs.append("attempt")
            if runs.count("attempt") == 1:
                raise OSError("no answer") from None
            if runs.count("attempt") == 2:
                lapse(app.db, app.queue(name))  # as if its process had died
                assert app.queue(name).stats(app.db).ready == 1
            context.step("tell", runs.append, "tell")

    handle = job.push()
    drain(app)
    handle.cancel()
    assert drain(app).outcomes() == ["failed", "lost", "cancelled"]
    assert runs == ["refund", *["attempt"] * 3, "tell"]
    assert ended(handle)[:2] == ("done", "cancelled")


def test_a_compensation_that_dies_goes_on_after_a_retry(app: App, name: str) -> None:
    runs: list[str] = []

    @app.job(queue=name, retry=Retry(attempts=1))
    def job(context: Context) -> None:
        try:
            context.step("charge", handle.cancel)
            context.sleep("stand", 0)
        except JobCancelled:
            runs.append("undo")
            if len(runs) == 1:
                raise OSError("no answer") from None

    handle = job.push()
    assert drain(app).outcomes() == ["dead"]
    assert app.queue(name).retry(app.db, handle.id)
    assert drain(app).outcomes() == ["cancelled"]
    assert (runs, ended(handle)[:2]) == (["undo"] * 2, ("done", "cancelled"))


def test_a_job_that_comes_to_no_further_step_is_done(app: App, name: str) -> None:
    @app.job(queue=name)
    def job(context: Context) -> bool:
        return context.step("charge", handle.cancel)

    handle = job.push()
    assert drain(app).outcomes() == ["done"]
    assert (ended(handle)[:2], handle.result()) == (("done", "done"), True)


@pytest.mark.parametrize("when", ["suspended", "running", "compensating"])
def test_force_ends_a_job_at_once(app: App, name: str, when: str) -> None:
    undone: list[str] = []

    def force() -> None:
        assert handle.cancel(force=True)
        assert handle.state() == "done"

    @app.job(queue=name)
    def job(context: Context) -> None:
        context.step("charge", str)
        try:
            if when == "running":
                context.step("force", force)
            context.wait("stand")
        except JobCancelled:
            context.sleep("cool off", "1h")
            undone.append("all")

    handle = job.push()
    drain(app)
    if when == "compensating":
        assert handle.cancel()
        drain(app)
    if when != "running":
        assert handle.state() == "delayed"
        force()
    drain(app)
    assert not handle.cancel(force=True)
    assert ended(handle)[:2] == ("done", "cancelled")
    assert undone == []
    with pytest.raises(ValueError, match="True or False"):
        app.queue(name).cancel(app.db, handle.id, force="no")


@pytest.mark.parametrize("children", [True, False])
@pytest.mark.parametrize("in_transaction", [True, False])
def test_a_job_compensates_after_the_jobs_that_it_runs_by_option(
    app: App, name: str, children: bool, in_transaction: bool
) -> None:
    done: list[str] = []

    @app.job(queue=f"{name}-children")
    def child(context: Context, number: int) -> None:
        try:
            context.step("begin", str)
            context.wait("stand", key=str(number))
            done.append(f"child {number}")
        except JobCancelled:
            context.step("undo", done.append, f"undo child {number}")

    @app.job(queue=name)
    def parent(context: Context) -> None:
        try:
            later = child.using(delay="1h").bind(2)
            context.gather("children", [child.bind(0), child.bind(1), later])
        except JobCancelled:
            context.step("undo", done.append, "undo parent")

    handle = parent.push()
    app.work(name, drain=True)
    app.work(f"{name}-children", drain=True)  # two of them begin
    queue = app.queue(name)
    if in_transaction:
        transactional(lambda tr: queue.cancel(tr, handle.id, children=children))(app.db)
    else:
        assert handle.cancel(children=children)
    assert handle.info().cancelling
    assert handle.state() == ("delayed" if children else "ready")
    app.work(name, drain=True)
    assert done == ([] if children else ["undo parent"])
    app.work(f"{name}-children", drain=True)
    for number in range(2):
        app.signal(app.db, "stand", key=str(number), queue=f"{name}-children")
    app.work(f"{name}-children", drain=True)
    app.work(name, drain=True)
    ends = ["undo child 0", "undo child 1"] if children else ["child 0", "child 1"]
    assert sorted(set(done) - {"undo parent"}) == ends
    assert done.index("undo parent") == (2 if children else 0)
    assert ended(handle)[:2] == ("done", "cancelled")


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_a_running_job_is_told_and_does_not_run_again(
    app: App, name: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def function(context: Context) -> None:
        handle.cancel()
        assert context.cancelled.wait(MAX_WAIT)
        raise OSError("it stops with an error")

    async def coroutine(context: Context) -> str:
        handle.cancel()
        work = asyncio.create_task(asyncio.sleep(MAX_WAIT))
        await context.cancelled
        work.cancel()
        await context.cancelled  # a second time, at once
        return "stopped"

    job: Any = function if kind == "function" else coroutine
    handle = app.job(queue=name, name="job")(job).push()
    app.work(name, drain=True)
    info = handle.info()
    result = None if kind == "function" else "stopped"
    assert (info.outcome, info.attempts, info.result) == ("cancelled", 1, result)
    # The outcomes in the log of workers are those in the metrics.
    logged = [record.__dict__["outcome"] for record in caplog.records if hasattr(record, "outcome")]
    assert logged == ["cancelled"]
    assert not handle.cancel()
