"""Steps of jobs: each is done once, survives its process, and holds no worker while it waits."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from fdbqueue.admin import check
from fdbqueue.errors import LeaseLost, QueueFull
from fdbqueue.jobs import App, Context, Dead, Handle, Retry, StepFailed, WaitTimedOut
from fdbqueue.layout.jobs import TooManySteps, TooManyWaiting
from fdbqueue.operations.jobs import steps as operations
from fdbqueue.queue.steps import ClaimedSteps, DuplicateStep, Step
from fdbqueue.testing import Clock
from fdbqueue.types import Transaction
from tests.support.keys import rows_in
from tests.support.waiting import MAX_WAIT, wait_until


def steps_of(app: App, name: str, handle: Handle[Any]) -> list[Step]:
    return app.queue(name).steps.all(app.db, handle.id)


def states(app: App, name: str, handle: Handle[Any]) -> list[tuple[str, str]]:
    return [(step.name, step.state) for step in steps_of(app, name, handle)]


def rows_of_steps(app: App, name: str) -> int:
    """Return how many rows steps have, with those of waits and without those of signals."""
    return len(rows_in(app.db, app.queue(name), "steps", "signal_waits"))


def count(app: App, key: str) -> int:
    """Return how often `add_one` has committed for a key."""
    return int.from_bytes(app.db[key.encode()] or b"", "little")


def add_one(tr: Transaction, key: bytes) -> None:
    tr.add(key, (1).to_bytes(8, "little"))


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_an_order_is_charged_booked_and_shipped_once(
    app: App, name: str, clock: Clock, kind: str
) -> None:
    charged: list[str] = []

    def charge_card(order: str) -> dict[str, str]:
        charged.append(order)
        return {"paid": order}

    async def charge_soon(order: str) -> dict[str, str]:
        await asyncio.sleep(0)
        return charge_card(order)

    booked = f"{name} booked".encode()

    def function(context: Context, order: str) -> str:
        charge = context.step("charge", charge_card, order)
        context.commit("book", add_one, booked)
        context.sleep("cool off", "1h")
        parcel = context.wait("shipped", key=order, timeout="3d")
        assert context.attempt == 1
        return f"{charge['paid']} {parcel.value['tracking']}"

    async def coroutine(context: Context, order: str) -> str:
        charge = await context.aio.step("charge", charge_soon, order)
        await context.aio.commit("book", add_one, booked)
        await context.aio.sleep("cool off", "1h")
        parcel = await context.aio.wait("shipped", key=order, timeout="3d")
        return f"{charge['paid']} {parcel.value['tracking']}"

    fulfil: Any = function if kind == "function" else coroutine
    fulfil = app.job(queue=name, name="fulfil")(fulfil)
    handle = fulfil.using(ttl="10m").push("order 7")  # once it has begun, it does not expire
    app.work(drain=True)
    assert states(app, name, handle) == [
        *(("charge", "done"), ("book", "done"), ("cool off", "waiting"))
    ]
    clock.advance("1h")
    app.work(drain=True)
    assert states(app, name, handle)[2:] == [("cool off", "done"), ("shipped", "waiting")]
    assert handle.state() == "delayed"
    assert app.signal(app.db, "shipped", key="order 7", value={"tracking": "1Z999"}) == 1
    app.work(drain=True)
    assert handle.result() == "order 7 1Z999"
    assert (charged, count(app, booked.decode())) == (["order 7"], 1)


@pytest.mark.parametrize("caught", [Exception, BaseException])
def test_suspension_is_not_swallowed(app: App, name: str, clock: Clock, caught: Any) -> None:
    """Not by `except Exception`; and a job that swallows all the same does not end."""

    @app.job(queue=name)
    def job(context: Context) -> str:
        try:
            context.sleep("nap", "1h")
        except caught:
            return "swallowed"
        return "slept"

    handle = job.push()
    assert app.work(drain=True).done == 0
    assert handle.state() == "delayed"
    clock.advance("1h")
    app.work(drain=True)
    assert handle.result() == "slept"


def test_a_failure_that_the_job_caught_stays_a_failure(app: App, name: str, clock: Clock) -> None:
    tries = 0

    def charge() -> None:
        nonlocal tries
        tries += 1
        raise OSError("no network")

    @app.job(queue=name)
    def pay(context: Context) -> str:
        try:
            context.step("charge", charge)
        except StepFailed as error:
            context.sleep("cool off", "1h")
            return f"refunded: {error.error}"
        return "paid"

    handle = pay.push()
    app.work(drain=True)
    assert states(app, name, handle) == [("charge", "failed"), ("cool off", "waiting")]
    clock.advance("1h")
    app.work(drain=True)
    assert handle.result() == "refunded: OSError: no network"
    assert tries == 1


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_a_failure_that_ends_the_attempt_is_tried_again(app: App, name: str, kind: str) -> None:
    """As the policy says, which also knows `StopIteration`: a coroutine could not raise it."""
    tries: list[str] = []

    def charge() -> str:
        tries.append("charge")
        return next(iter(["paid"] if tries[1:] else []))

    def plain(context: Context) -> str:
        return context.step("charge", charge)

    async def coroutine(context: Context) -> str:
        return await context.aio.step("charge", charge)

    function: Any = plain if kind == "function" else coroutine
    job = app.job(queue=name, name="pay", retry=Retry(first=0, on=(StopIteration,)))(function)
    handle = job.push()
    app.work(drain=True)
    assert (handle.result(), len(tries)) == ("paid", 2)


def test_a_step_with_a_policy_waits_without_a_worker(app: App, name: str, clock: Clock) -> None:
    tries = 0

    def charge() -> str:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise OSError("no network")
        return "paid"

    @app.job(queue=name, retry=Retry(attempts=1))
    def pay(context: Context) -> str:
        policy = Retry(attempts=3, first="10m", factor=1, jitter=0)
        return context.using(retry=policy).step("charge", charge)

    handle = pay.push()
    for n in (1, 2):
        app.work(drain=True)
        (step,) = steps_of(app, name, handle)
        assert (step.state, step.failures, step.error) == ("waiting", n, "OSError: no network")
        assert handle.state() == "delayed"
        clock.advance("10m")
    app.work(drain=True)
    assert (handle.result(), tries) == ("paid", 3)
    info = handle.info()
    assert info.attempts == 1


# Signals


def waiting_job(
    app: App, name: str, timeout: str | None = None, delay: str | None = None
) -> Handle[str]:
    """Push a job that waits for the signal "shipped" with its id; it returns how that ended."""

    def wait(context: Context) -> str:
        try:
            return f"got {context.wait('shipped', timeout=timeout).value}"
        except WaitTimedOut:
            context.sleep("think", "1h")  # so that another run finds the same
            return "timed out"

    job: Any = app.jobs.get("wait") or app.job(queue=name, name="wait")(wait)
    handle: Handle[str] = job.using(delay=delay).push()
    return handle


def test_a_signal_is_kept_for_jobs_that_come_to_wait_for_it(
    app: App, name: str, clock: Clock
) -> None:
    handle, late = waiting_job(app, name), waiting_job(app, name, delay="2h")
    for value in ("first", "second"):
        assert app.signal(app.db, "shipped", key=handle.id, value=value, keep="1h") == 0
        app.signal(app.db, "shipped", key=late.id, value=value, keep="1h")
    app.work(drain=True)
    assert handle.result() == "got second"
    clock.advance("2h")
    app.work(drain=True)
    assert late.state() == "delayed"  # the signal was forgotten
    app.signal(app.db, "other")  # deletes what is over
    assert len(rows_in(app.db, app.queue(name), "signal_ends")) == 1


def test_a_caught_failure_is_stored_although_the_signal_comes_meanwhile(
    app: App, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_changed = False

    def fail() -> None:
        raise OSError("broken")

    @app.job(queue=name, name="wait")
    def wait(context: Context) -> object:
        if is_changed:
            with pytest.raises(StepFailed):
                context.step("new", fail)
        return context.wait("go", timeout="1d").value

    handle = wait.push()
    app.work(drain=True)
    is_changed, wait_for = True, ClaimedSteps.wait

    def signalled(*arguments: Any) -> Any:
        app.signal(app.db, "go", key=handle.id, value=1)
        return wait_for(*arguments)

    monkeypatch.setattr(ClaimedSteps, "wait", signalled)
    app.queue(name).retry(app.db, handle.id)
    app.work(drain=True)
    assert handle.result() == 1
    assert states(app, name, handle) == [("go", "done"), ("new", "failed")]


@pytest.mark.parametrize("is_noticed", [False, True])
def test_a_wait_ends_with_its_time_out_once_the_job_has_noticed_it(
    app: App, name: str, clock: Clock, is_noticed: bool
) -> None:
    handle = waiting_job(app, name, timeout="1d")
    app.work(drain=True)
    clock.advance("1d")
    if is_noticed:
        app.work(drain=True)
        assert states(app, name, handle) == [("shipped", "timed out"), ("think", "waiting")]
    assert app.signal(app.db, "shipped", key=handle.id, value="late") == (not is_noticed)
    clock.advance("1h")
    app.work(drain=True)
    assert handle.result() == ("timed out" if is_noticed else "got late")


def test_a_signal_is_part_of_the_callers_transaction(app: App, name: str) -> None:
    handle = waiting_job(app, name)
    app.work(drain=True)
    for value, is_committed in (("never", False), ("now", True)):
        tr = app.db.create_transaction()
        app.signal(tr, "shipped", key=handle.id, value=value)
        if is_committed:
            tr.commit().wait()
        assert app.work(drain=True).done == is_committed
    assert handle.result() == "got now"


def test_a_signal_wakes_all_that_wait_for_it(
    app: App, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.job(queue=name, name="wait")
    def wait(context: Context) -> object:
        return context.wait("open", key="shop").value

    handles = [wait.push() for _ in range(3)]
    app.work(drain=True)
    monkeypatch.setattr(operations, "MAX_SIGNALLED", 2)
    tr = app.db.create_transaction()
    with pytest.raises(TooManyWaiting, match="more than 2 jobs"):
        app.signal(tr, "open", key="shop", value=1)
    tr.commit().wait()  # it wrote nothing
    monkeypatch.setattr(operations, "MAX_SIGNALLED", 3)
    assert app.signal(app.db, "open", key="shop", value=2) == 3
    app.work(drain=True)
    assert [handle.result() for handle in handles] == [2, 2, 2]


def test_an_uncaught_time_out_makes_a_dead_letter_that_can_wait_again(
    app: App, name: str, clock: Clock
) -> None:
    done: list[str] = []

    @app.job(queue=name)
    def fulfil(context: Context) -> str:
        context.step("charge", done.append, "charged")
        return str(context.wait("shipped", timeout="1d").value)

    handle = fulfil.push()
    app.work(drain=True)
    clock.advance("1d")
    app.work(drain=True)
    assert handle.state() == "dead"
    steps = app.queue(name).steps
    assert not steps.retry_from(app.db, handle.id, "no such step")
    assert steps.retry_from(app.db, handle.id, "shipped")
    app.work(drain=True)
    assert states(app, name, handle) == [("charge", "done"), ("shipped", "waiting")]
    app.signal(app.db, "shipped", key=handle.id, value="sent")
    app.work(drain=True)
    assert (handle.result(), done) == ("sent", ["charged"])


def test_steps_have_an_order_whatever_the_clocks_say(
    app: App, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is set back between two steps, and the second has an earlier name."""

    @app.job(queue=name, name="build")
    def build(context: Context) -> None:
        context.step("lint", str)
        behind = time.time_ns() - 30 * 10**9
        monkeypatch.setattr("fdbqueue.database.clock.time_ns", lambda: behind)
        context.step("build", str)
        raise Dead("no disk")

    handle = build.push()
    app.work(drain=True)
    assert states(app, name, handle) == [("lint", "done"), ("build", "done")]
    assert app.queue(name).steps.retry_from(app.db, handle.id, "build")
    assert states(app, name, handle) == [("lint", "done")]


def test_a_signal_wakes_a_worker_that_sleeps(app: App, name: str, asleep: threading.Event) -> None:
    """As a push does: the worker would sleep for ten minutes otherwise."""

    @app.job(queue=name)
    def job(context: Context) -> Any:
        return context.wait("go on").value

    handle = job.push()
    app.work(name, drain=True)
    worker = threading.Thread(target=app.work, args=[name], kwargs={"max_jobs": 1}, daemon=True)
    worker.start()
    assert asleep.wait(MAX_WAIT)
    app.signal(app.db, "go on", key=handle.id, value=7)
    wait_until(lambda: handle.state() == "done")


# Claims


def test_a_worker_that_lost_its_claim_stores_no_step(app: App, name: str) -> None:
    """It wakes up after another one has run the job: its steps and writes have no effect."""
    queue = app.queue(name)
    lost: list[str] = []

    @app.job(queue=name, name="build")
    def build(context: Context) -> str:
        if lost:
            return "done"
        queue.release(app.db, context.item)
        for store in (
            lambda: context.step("compile", lambda: "stale"),
            lambda: context.commit("publish", add_one, f"{name} stale".encode()),
            lambda: context.sleep("nap", "1h"),
            lambda: context.wait("shipped"),
        ):
            with pytest.raises(LeaseLost):
                store()
            lost.append("lost")
        raise LeaseLost(context.item.id)

    build.push()
    report = app.work(drain=True, concurrency=1)
    assert (report.lost, report.done) == (1, 1)
    assert lost == ["lost"] * 4
    assert count(app, f"{name} stale") == 0
    assert rows_of_steps(app, name) == 0


@pytest.mark.parametrize("keep", [None, 10])
@pytest.mark.parametrize("when", ["suspended", "running"])
def test_a_job_with_steps_can_be_cancelled(
    app: App, name: str, keep: int | None, when: str
) -> None:
    """It ends where it is, or would be, suspended. It stays if the queue keeps done jobs."""
    queue = app.queue(name)
    queue.configure(app.db, keep=keep)

    @app.job(queue=name)
    def fulfil(context: Context) -> None:
        context.step("charge", str)
        if when == "running":
            handle.cancel()
        context.wait("shipped")

    handle = fulfil.push()
    app.work(drain=True)
    if when == "suspended":
        assert rows_of_steps(app, name) == 3
        assert handle.cancel()
        app.work(drain=True)
    assert app.signal(app.db, "shipped", key=handle.id) == 0
    assert check(app.db, queue).problems == ()
    if keep is not None:
        expected = [("charge", "done"), ("shipped", "waiting")]
        assert states(app, name, handle) == expected[: 2 if when == "suspended" else 1]
        assert handle.info().outcome == "cancelled"
        assert queue.remove(app.db, handle.id)
    assert rows_of_steps(app, name) == 0


@pytest.mark.parametrize("obstacle", ["unique key", "queue", "group"])
def test_a_retry_that_is_refused_forgets_no_step(app: App, name: str, obstacle: str) -> None:
    @app.job(queue=name, unique="k", group="g")
    def build(context: Context) -> None:
        context.step("lint", str)
        context.step("compile", str)
        raise Dead("no disk")

    queue, handle = app.queue(name), build.push()
    app.work(drain=True)
    if obstacle == "queue":
        queue.configure(app.db, max_size=1)
    elif obstacle == "group":
        queue.set_group(app.db, "g", max_size=1)
    build.using(unique="k" if obstacle == "unique key" else False).push()
    tr: Any = app.db.create_transaction()
    if obstacle == "unique key":
        assert not queue.steps.retry_from(tr, handle.id, "lint")
    else:
        with pytest.raises(QueueFull):
            queue.steps.retry_from(tr, handle.id, "lint")
    tr.commit().wait()
    assert states(app, name, handle) == [("lint", "done"), ("compile", "done")]


def test_names_of_steps_are_unique_within_a_job_and_limited_in_number(
    app: App, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "MAX_STEPS", 3)

    @app.job(queue=name, retry=Retry(attempts=1))
    def build(context: Context) -> None:
        for target in "abc":
            context.step(f"build {target}", str, target)
        with pytest.raises(DuplicateStep, match="a name of its own"):
            context.step("build a", str, "a")
        with pytest.raises(ValueError, match="the name of a step is text"):
            context.sleep("", "1s")
        with pytest.raises(TooManySteps):
            context.step("one more", str)

    handle = build.push()
    assert app.work(drain=True).done == 1
    assert len(steps_of(app, name, handle)) == 3


def test_a_job_that_is_popped_and_put_back_begins_from_the_top(
    app: App, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps were deleted with it, and no longer count."""
    monkeypatch.setattr(operations, "MAX_STEPS", 2)
    done: list[str] = []

    @app.job(queue=name)
    def fulfil(context: Context) -> str:
        context.step("charge", done.append, "charged")
        return str(context.wait("shipped").value)

    handle = fulfil.push()
    app.work(drain=True)
    app.signal(app.db, "shipped", key=handle.id, value="sent")
    queue = app.queue(name)
    queue.put_back(app.db, [queue.pop(app.db)])
    assert steps_of(app, name, handle) == []
    app.work(drain=True)
    assert (handle.result(), done) == ("sent", ["charged", "charged"])
    assert states(app, name, handle) == [("charge", "done"), ("shipped", "done")]
