"""The steps of a job change while it runs: the cases of `docs/howto/change-jobs.md`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from fdbqueue.jobs import App, Context, Handle, Retry, WaitTimedOut
from fdbqueue.testing import Clock
from fdbqueue.worker.outcomes import StepChanged

Function = Callable[[Context], Any]


@dataclass
class Charge:
    """What a step returns in a later version."""

    id: str
    cents: int = 0


class Versions:
    """A queue whose workers get another version of its only job.

    Attributes:
        done: The names of the steps whose functions were called, in order.
    """

    def __init__(self, db: Any, name: str) -> None:
        self.db, self.name = db, name
        self.others = f"{name}-others"
        self.done: list[str] = []

    def work(self, function: Function, *, push: bool = False) -> Any:
        """Run what is ready, with this version of the job; push the job before, if asked."""
        app = App(self.db)
        job = app.job(name="job", queue=self.name, retry=Retry(attempts=1))(function)
        handle = job.push() if push else None
        app.work(self.name, drain=True)
        return handle

    def version(self, *steps: str) -> Function:
        """Return a job of steps such as "step charge"; it returns the result of the last one."""

        def job(context: Context) -> Any:
            result = None
            for kind, name in map(str.split, steps):
                result = self._perform(context, kind, name)
            return [result.id, result.cents] if isinstance(result, Charge) else result

        return job

    def _perform(self, context: Context, kind: str, name: str) -> Any:
        def note(*_: object) -> str:
            self.done.append(name)
            return f"result of {name}"

        def parts() -> dict[str, str]:
            return {"id": note()}

        def typed() -> Charge:
            return Charge(note(), 995)

        @App(self.db).job(name="other", queue=self.others)
        def other() -> str:
            return note()

        calls: dict[str, Callable[[], Any]] = {
            "step": lambda: context.step(name, note),
            "parts": lambda: context.step(name, parts),
            "typed": lambda: context.step(name, typed),
            "commit": lambda: context.commit(name, note),
            "run": lambda: context.run(name, other),
            "sleep": lambda: context.sleep(name, "1h"),
            "long-sleep": lambda: context.sleep(name, "9h"),
            "wait": lambda: context.wait(name, timeout="1h"),
            "long-wait": lambda: context.wait(name, signal="another", timeout="9h"),
        }
        return calls[kind]()

    def signal(self, name: str, handle: Handle[Any], value: Any = None) -> int:
        return App(self.db).queue(self.name).steps.signal(self.db, name, key=handle.id, value=value)


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
        # A step that is dropped is ignored; a sleep or wait that is dropped goes on to its end.
        (["step charge", "sleep nap"], ["step pack"], ["charge", "pack"], "result of pack"),
        (["wait paid"], ["step pack"], ["pack"], "result of pack"),
        # A new name is a new step.
        (["commit book", "sleep nap"], ["commit enter"], ["book", "enter"], "result of enter"),
        (
            ["step pack", "sleep nap", "step charge", "step ship"],
            ["step charge", "step ship", "sleep nap", "step pack"],
            ["pack", "charge", "ship"],
            "result of pack",
        ),
        # The time of a sleep or wait that has begun stays.
        (["sleep nap"], ["long-sleep nap", "step pack"], ["pack"], "result of pack"),
        (["wait paid"], ["long-wait paid"], [], WaitTimedOut),
        # Only the name counts, and whether it is a step.
        (["step charge", "sleep nap"], ["commit charge"], ["charge"], "result of charge"),
        (["parts charge", "sleep nap"], ["typed charge"], ["charge"], ["result of charge", 0]),
        (["sleep charge"], ["step charge"], [], StepChanged),
        (["step charge", "sleep nap"], ["run charge"], ["charge"], StepChanged),
    ],
)
def test_steps_change(
    versions: Versions, clock: Clock, old: list[str], new: list[str], done: list[str], result: Any
) -> None:
    handle = versions.work(versions.version(*old), push=True)
    new_version = versions.version(*new)
    versions.work(new_version)
    assert handle.state() == "delayed"
    clock.advance("1h")
    versions.work(new_version)
    assert versions.done == done
    info = handle.info()
    if isinstance(result, type):
        assert (info.state, result.__name__ in str(info.error)) == ("dead", True)
    else:
        assert (info.state, info.result) == ("done", result)


def test_a_wait_keeps_its_signal_which_a_renamed_one_gets_too_if_it_names_it(
    versions: Versions,
) -> None:
    def old(context: Context) -> Any:
        context.wait("shipped", timeout="1d")

    def new(context: Context) -> Any:
        return context.wait("on its way", signal="shipped", timeout="1d").value

    def other(context: Context) -> Any:
        return context.wait("shipped", signal="delivered").value

    first, second = (versions.work(old, push=True) for _ in "12")
    assert versions.signal("shipped", first, "first") == 1
    versions.work(new)
    assert first.result() == "first"
    assert versions.signal("delivered", second, "early") == 0
    assert versions.signal("shipped", second, "second") == 1
    versions.work(other)
    assert second.result() == "second"
