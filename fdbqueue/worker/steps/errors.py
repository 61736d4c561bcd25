"""The errors of the steps of jobs."""

from __future__ import annotations

from fdbqueue.errors import FdbqueueError

__all__ = ["DuplicateStep", "StepChanged", "StepFailed", "WaitTimedOut"]


class DuplicateStep(FdbqueueError, ValueError):
    """A second step with the name of an earlier one of the same job.

    Attributes:
        name: The name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"the job has a step named {name!r} already; each needs a name of its own, in a loop "
            'with the key of the loop: context.step(f"charge {order}", ...)'
        )


class StepChanged(FdbqueueError):
    """A step whose stored form is that of another kind of step.

    Attributes:
        name: The name.
        stored: The kind of the stored step.
        kind: The kind of the step that the job has come to.
    """

    def __init__(self, name: str, stored: str, kind: str) -> None:
        self.name = name
        self.stored = stored
        self.kind = kind
        super().__init__(
            f"the step {name!r} was stored as a {stored}, and is a {kind} now; a step that does "
            "something else needs another name"
        )


class StepFailed(FdbqueueError):
    """A step whose function has raised an exception.

    Attributes:
        name: The name of the step.
        error: The exception as text. It is the `__cause__` the first time.
    """

    def __init__(self, name: str, error: str | None) -> None:
        self.name = name
        self.error = error
        super().__init__(f"the step {name!r} has failed: {error}")


class WaitTimedOut(FdbqueueError):
    """A wait for a signal that has not come in time.

    If the job does not catch it, it becomes a dead letter: another attempt would find the same.

    Attributes:
        name: The name of the step.
        key: The key of the signal.
    """

    def __init__(self, name: str, key: str) -> None:
        self.name = name
        self.key = key
        super().__init__(
            f"no signal has come for the step {name!r} with the key {key!r}; to wait again, retry "
            f"the job from this step: fdbq retry QUEUE ID --step {name!r}"
        )
