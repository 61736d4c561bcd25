"""The steps of a job change while it runs: the cases of `docs/howto/change-jobs.md`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from fdbqueue.jobs import App, Context, Handle, Retry, WaitTimedOut
from fdbqueue.layout.keys import Layout
from fdbqueue.testing import Clock
from fdbqueue.types import Transaction
from fdbqueue.worker.outcomes import StepChanged

Function = Callable[[Context], Any]


@dataclass
class Versions:
    """A queue whose workers get another version of its only job.

    Attributes:
        done: The functions of steps that were called, in order.
    """

    db: Any
    name: str
    done: list[str]

    def work(self, function: Function) -> None:
        """Run what is ready, with this version of the job."""
        app = App(self.db)
        app.job(name="job", queue=self.name, retry=Retry(attempts=1))(function)
        app.work(self.name, drain=True)

    def begin(self, function: Function) -> Handle[Any]:
        """Push the job, and run it with its first version."""
        app = App(self.db)
        job = app.job(name="job", queue=self.name, retry=Retry(attempts=1))(function)
        handle = job.push()
        self.work(function)
        return handle

    def signal(self, name: str, handle: Handle[Any], value: Any = None) -> int:
        return App(self.db).queue(self.name).steps.signal(self.db, name, key=handle.id, value=value)

    def step(self, context: Context, name: str) -> str:
        """Be a step that notes that it is done."""

        def note() -> str:
            self.done.append(name)
            return f"result of {name}"

        return context.step(name, note)

    def waits(self) -> int:
        """Return how many waits are stored."""
        layout = Layout(App(self.db).queue(self.name).subspace)
        return len([*self.db.get_range(*layout.range_of(layout.signal_waits))])


@pytest.fixture
def versions(db: Any, name: str) -> Versions:
    """Return a queue without jobs."""
    return Versions(db, name, [])


def test_a_step_that_is_added_is_done_also_before_the_place_where_the_job_is(
    versions: Versions, clock: Clock
) -> None:
    def old(context: Context) -> Any:
        versions.step(context, "charge")
        context.sleep("cool off", "1h")

    def new(context: Context) -> None:
        versions.step(context, "check")
        versions.step(context, "charge")
        context.sleep("cool off", "1h")
        versions.step(context, "thank")

    handle = versions.begin(old)
    clock.advance("1h")
    versions.work(new)
    assert (handle.state(), versions.done) == ("done", ["charge", "check", "thank"])


def test_a_step_that_is_dropped_is_ignored(versions: Versions, clock: Clock) -> None:
    def old(context: Context) -> Any:
        versions.step(context, "charge")
        context.sleep("cool off", "1h")

    def new(context: Context) -> str:
        return versions.step(context, "pack")

    handle = versions.begin(old)
    versions.work(new)
    assert handle.state() == "delayed"  # a sleep that is dropped is slept to its end
    clock.advance("1h")
    versions.work(new)
    assert (handle.result(), versions.done) == ("result of pack", ["charge", "pack"])


@pytest.mark.parametrize("end", ["signal", "time-out"])
def test_a_wait_that_is_dropped_goes_on_with_its_end(
    versions: Versions, clock: Clock, end: str
) -> None:
    def old(context: Context) -> Any:
        context.wait("paid", timeout="1d")

    def new(context: Context) -> None:
        context.sleep("cool off", "1h")

    handle = versions.begin(old)
    versions.work(new)
    assert handle.state() == "delayed"
    if end == "signal":
        assert versions.signal("paid", handle) == 1
    else:
        clock.advance("1d")
    versions.work(new)
    assert versions.waits() == 0
    assert versions.signal("paid", handle) == 0
    clock.advance("1h")
    versions.work(new)
    assert handle.state() == "done"


def test_a_step_that_is_renamed_runs_again(versions: Versions, clock: Clock) -> None:
    committed = f"{versions.name} committed".encode()

    def book(tr: Transaction) -> None:
        tr.add(committed, (1).to_bytes(8, "little"))

    def old(context: Context) -> Any:
        context.commit("book", book)
        context.sleep("cool off", "1h")

    def new(context: Context) -> None:
        context.commit("enter", book)
        context.sleep("cool off", "1h")

    versions.begin(old)
    clock.advance("1h")
    versions.work(new)
    assert int.from_bytes(versions.db[committed] or b"", "little") == 2


def test_a_step_whose_function_is_renamed_keeps_its_result(
    versions: Versions, clock: Clock
) -> None:
    def old(context: Context) -> Any:
        versions.step(context, "charge")
        context.sleep("cool off", "1h")

    def collect() -> str:
        return "not called"

    def new(context: Context) -> str:
        return context.step("charge", collect)

    handle = versions.begin(old)
    clock.advance("1h")
    versions.work(new)
    assert handle.result() == "result of charge"


def test_a_wait_that_is_renamed_gets_the_same_signal_if_it_names_it(
    versions: Versions, clock: Clock
) -> None:
    """And the end of the old wait is the moment at which the job comes to the new one."""

    def old(context: Context) -> Any:
        context.wait("shipped", timeout="1d")

    def new(context: Context) -> Any:
        return context.wait("on its way", signal="shipped", timeout="1d").value

    first, second = versions.begin(old), versions.begin(old)
    assert versions.signal("shipped", first, "first") == 1
    clock.advance("1d")
    versions.work(new)
    assert first.result() == "first"
    assert (second.state(), versions.waits()) == ("delayed", 1)
    assert versions.signal("shipped", second, "second") == 1
    versions.work(new)
    assert (second.result(), versions.waits()) == ("second", 0)


def test_a_wait_for_another_signal_leaves_the_first_one(versions: Versions, clock: Clock) -> None:
    def old(context: Context) -> Any:
        context.wait("parcel", signal="shipped")

    def new(context: Context) -> Any:
        return context.wait("parcel", signal="delivered").value

    handle = versions.begin(old)
    assert versions.waits() == 1
    assert versions.signal("delivered", handle, "early") == 0
    assert versions.signal("shipped", handle, "ended") == 1
    versions.work(new)
    assert (handle.result(), versions.waits()) == ("ended", 0)


def test_steps_in_another_order_are_found_by_their_names(versions: Versions, clock: Clock) -> None:
    def old(context: Context) -> Any:
        versions.step(context, "pack")
        context.sleep("cool off", "1h")
        versions.step(context, "charge")
        versions.step(context, "ship")

    def new(context: Context) -> str:
        versions.step(context, "charge")
        packed = versions.step(context, "pack")
        versions.step(context, "ship")
        context.sleep("cool off", "1h")
        return packed

    handle = versions.begin(old)
    clock.advance("1h")
    versions.work(new)
    assert handle.result() == "result of pack"
    assert versions.done == ["pack", "charge", "ship"]


def test_times_of_sleeps_and_waits_that_have_begun_stay(versions: Versions, clock: Clock) -> None:
    def old(context: Context) -> Any:
        context.sleep("cool off", "1h")
        context.wait("shipped", timeout="1h")

    def new(context: Context) -> str:
        context.sleep("cool off", "9h")
        try:
            context.wait("shipped", timeout="9h")
        except WaitTimedOut:
            return "timed out"
        return "shipped"

    handle = versions.begin(old)
    clock.advance("1h")
    versions.work(old)
    clock.advance("1h")
    versions.work(new)
    assert handle.result() == "timed out"


def test_a_job_that_is_renamed_in_a_step_runs_again(versions: Versions) -> None:
    """The job that the old step has begun runs, too; nothing of it is left."""
    app = App(versions.db)
    ran: list[int] = []

    @app.job(name="other", queue=f"{versions.name}-others")
    def other(number: int) -> int:
        ran.append(number)
        return number

    def old(context: Context) -> Any:
        return context.run("resize", other, 1)

    def new(context: Context) -> int:
        return context.run("scale", other, 2)

    handle = versions.begin(old)
    for _ in range(2):
        app.work(f"{versions.name}-others", drain=True)
        versions.work(new)
    assert (handle.result(), ran) == (2, [1, 2])
    layout = Layout(app.queue(versions.name).subspace)
    assert [*versions.db.get_range(*layout.range_of(layout.batches))] == []


@dataclass
class Charge:
    """What a step returns in a later version."""

    id: str
    cents: int = 0


def test_a_stored_result_is_converted_by_the_new_annotation(
    versions: Versions, clock: Clock
) -> None:
    def charge() -> dict[str, str]:
        return {"id": "7"}

    def charge_more() -> Charge:
        return Charge("8", 995)

    def old(context: Context) -> Any:
        context.step("charge", charge)
        context.sleep("cool off", "1h")

    def new(context: Context) -> Any:
        charged = context.step("charge", charge_more)
        return [charged.id, charged.cents]

    handle = versions.begin(old)
    clock.advance("1h")
    versions.work(new)
    assert handle.result() == ["7", 0]


def test_a_step_that_becomes_a_commit_keeps_its_result(versions: Versions, clock: Clock) -> None:
    def charge(tr: Transaction) -> str:
        return "not called"

    def old(context: Context) -> Any:
        versions.step(context, "charge")
        context.sleep("cool off", "1h")

    def new(context: Context) -> str:
        return context.commit("charge", charge)

    handle = versions.begin(old)
    clock.advance("1h")
    versions.work(new)
    assert handle.result() == "result of charge"


def test_a_step_that_becomes_another_kind_is_an_error(versions: Versions, clock: Clock) -> None:
    def old(context: Context) -> Any:
        context.sleep("charge", "1h")

    def new(context: Context) -> str:
        return versions.step(context, "charge")

    handle = versions.begin(old)
    clock.advance("1h")
    versions.work(new)
    info = handle.info()
    assert info.error is not None
    assert (info.state, StepChanged.__name__ in info.error) == ("dead", True)
