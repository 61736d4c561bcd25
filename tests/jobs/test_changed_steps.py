"""The steps of a job change while it runs: the cases of `docs/howto/change-jobs.md`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from fdbqueue.jobs import App, Context, Handle, Retry, WaitTimedOut
from fdbqueue.testing import Clock
from fdbqueue.worker.outcomes import StepChanged
from tests.support.keys import rows_in

Function = Callable[[Context], Any]


@dataclass
class Charge:
    """What a step returns in a later version."""

    id: str
    cents: int = 0


@dataclass
class Versions:
    """A queue whose workers get another version of its only job.

    Attributes:
        done: The names of the steps whose functions were called, in order.
    """

    db: Any
    name: str
    done: list[str] = field(default_factory=list)

    def work(self, function: Function, *, push: bool = False) -> Handle[Any] | None:
        """Run what is ready, with this version of the job; push the job before, if asked."""
        app = App(self.db)
        job = app.job(name="job", queue=self.name, retry=Retry(attempts=1))(function)
        handle = job.push() if push else None
        app.work(self.name, drain=True)
        return handle

    def begin(self, function: Function) -> Any:
        """Push the job, and run it with its first version."""
        return self.work(function, push=True)

    def version(self, *steps: str) -> Function:
        """Return a job of steps such as "step charge"; it returns the results of the last one."""

        def note(*given: Any) -> str:
            self.done.append(given[-1])
            return f"result of {given[-1]}"

        def parts(name: str) -> dict[str, str]:
            return {"id": note(name)}

        def typed(name: str) -> Charge:
            return Charge(note(name), 995)

        @App(self.db).job(name="other", queue=f"{self.name}-others")
        def other() -> None: ...

        def job(context: Context) -> Any:
            result: Any = None
            for kind, name in map(str.split, steps):
                if kind == "sleep":
                    context.sleep(name, "1h")
                elif kind == "long-sleep":
                    context.sleep(name, "9h")
                elif kind == "commit":
                    result = context.commit(name, note, name)
                elif kind == "run":
                    result = context.run(name, other)
                elif kind == "parts":
                    result = context.step(name, parts, name)
                else:
                    result = context.step(name, typed if kind == "typed" else note, name)
            return [result.id, result.cents] if isinstance(result, Charge) else result

        return job

    def signal(self, name: str, handle: Handle[Any], value: Any = None) -> int:
        return App(self.db).queue(self.name).steps.signal(self.db, name, key=handle.id, value=value)

    def rows(self, *spaces: str) -> int:
        """Return how many rows are stored in some spaces of keys."""
        return len(rows_in(self.db, App(self.db).queue(self.name), *spaces))


@pytest.fixture
def versions(db: Any, name: str) -> Versions:
    """Return a queue without jobs."""
    return Versions(db, name)


@pytest.mark.parametrize(
    ("old", "new", "done", "result"),
    [
        # A step that is added is done also before the place where the job is.
        (
            ["step charge", "sleep nap"],
            ["step check", "step charge", "sleep nap", "step thank"],
            ["charge", "check", "thank"],
            "result of thank",
        ),
        # A step that is dropped is ignored; a sleep that is dropped is slept to its end.
        (["step charge", "sleep nap"], ["step pack"], ["charge", "pack"], "result of pack"),
        # A new name is a new step.
        (["commit book", "sleep nap"], ["commit enter"], ["book", "enter"], "result of enter"),
        (
            ["step pack", "sleep nap", "step charge", "step ship"],
            ["step charge", "step ship", "sleep nap", "step pack"],
            ["pack", "charge", "ship"],
            "result of pack",
        ),
        # The time of a sleep that has begun stays.
        (["sleep nap"], ["long-sleep nap", "step pack"], ["pack"], "result of pack"),
        # Only the name counts, and whether it is a step.
        (["step charge", "sleep nap"], ["commit charge"], ["charge"], "result of charge"),
        (
            ["parts charge", "sleep nap"],
            ["typed charge"],
            ["charge"],
            ["result of charge", 0],
        ),
        (["sleep charge"], ["step charge"], [], StepChanged),
        (["step charge", "sleep nap"], ["sleep charge"], ["charge"], StepChanged),
        (["step charge", "sleep nap"], ["run charge"], ["charge"], StepChanged),
    ],
)
def test_steps_change(
    versions: Versions, clock: Clock, old: list[str], new: list[str], done: list[str], result: Any
) -> None:
    handle = versions.begin(versions.version(*old))
    new_version = versions.version(*new)
    versions.work(new_version)
    assert handle.state() == "delayed"
    clock.advance("1h")
    versions.work(new_version)
    assert versions.done == done
    info = handle.info()
    if result is StepChanged:
        assert (info.state, StepChanged.__name__ in str(info.error)) == ("dead", True)
    else:
        assert (info.state, info.result) == ("done", result)


@pytest.mark.parametrize("end", ["signal", "time-out"])
def test_a_wait_that_is_dropped_goes_on_with_its_end(
    versions: Versions, clock: Clock, end: str
) -> None:
    def old(context: Context) -> Any:
        context.wait("paid", timeout="1d")

    new = versions.version("sleep nap")
    handle = versions.begin(old)
    versions.work(new)
    assert handle.state() == "delayed"
    if end == "signal":
        assert versions.signal("paid", handle) == 1
    else:
        clock.advance("1d")
    versions.work(new)
    assert versions.rows("signal_waits") == 0
    assert versions.signal("paid", handle) == 0
    clock.advance("1h")
    versions.work(new)
    assert handle.state() == "done"


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
    assert (second.state(), versions.rows("signal_waits")) == ("delayed", 1)
    assert versions.signal("shipped", second, "second") == 1
    versions.work(new)
    assert (second.result(), versions.rows("signal_waits")) == ("second", 0)


def test_the_signal_and_the_time_of_a_wait_that_has_begun_stay(
    versions: Versions, clock: Clock
) -> None:
    def old(context: Context) -> Any:
        context.wait("parcel", signal="shipped", timeout="1h")

    def new(context: Context) -> Any:
        try:
            return context.wait("parcel", signal=signal, timeout="9h").value
        except WaitTimedOut:
            return "timed out"

    signal, handle = "delivered", versions.begin(old)
    assert versions.signal("delivered", handle, "early") == 0
    assert versions.signal("shipped", handle, "ended") == 1
    versions.work(new)
    assert handle.result() == "ended"
    signal, handle = "shipped", versions.begin(old)
    clock.advance("1h")
    versions.work(new)
    assert handle.result() == "timed out"
    assert versions.rows("signal_waits") == 0


def test_a_job_that_is_renamed_in_a_step_runs_again(versions: Versions) -> None:
    """The job that the old step has begun runs, too; nothing of it is left."""
    app = App(versions.db)
    ran: list[int] = []

    @app.job(name="other", queue=f"{versions.name}-others")
    def other(number: int) -> int:
        ran.append(number)
        return number

    def old(context: Context) -> int:
        return context.run("resize", other, 1)

    def new(context: Context) -> int:
        return context.run("scale", other, 2)

    handle = versions.begin(old)
    for _ in range(2):
        app.work(f"{versions.name}-others", drain=True)
        versions.work(new)
    assert (handle.result(), ran) == (2, [1, 2])
    assert versions.rows("batches") == 0
