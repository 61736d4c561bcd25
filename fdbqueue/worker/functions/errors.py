"""The errors of the steps of jobs, and of handlers that exit."""

from __future__ import annotations

from fdbqueue.errors import FdbqueueError, error_text

__all__ = [
    "ChildFailed",
    "ChildNotPushed",
    "DuplicateStep",
    "HandlerExited",
    "StepChanged",
    "StepFailed",
    "WaitTimedOut",
]


class ChildNotPushed(FdbqueueError):
    """A job that a step was to run, but whose unique key an unfinished job has. Nothing was pushed.

    Attributes:
        name: The name of the step.
        id: The id of the job that has the key.
    """

    name: str
    id: str

    _template = (
        "the job of the step {self.name!r} was not pushed: its unique key is that of the job "
        "{self.id}, which has not ended; run it without a key, with job.using(unique=False)"
    )


class DuplicateStep(FdbqueueError, ValueError):
    """A second step with the name of an earlier one of the same job.

    Attributes:
        name: The name.
    """

    name: str

    _template = (
        "the job has a step named {self.name!r} already; each needs a name of its own, in a loop "
        'with the key of the loop: context.step(f"charge {{order}}", ...)'
    )


class StepChanged(FdbqueueError):
    """A step whose stored form is that of another kind of step.

    Attributes:
        name: The name.
        stored: The kind of the stored step.
        kind: The kind of the step that the job has come to.
    """

    name: str
    stored: str
    kind: str

    _template = (
        "the step {self.name!r} was stored as a {self.stored}, and is a {self.kind} now; a step "
        "that does something else needs another name"
    )


class StepFailed(FdbqueueError):
    """A step whose function has raised an exception.

    Attributes:
        name: The name of the step.
        error: The exception as text. It is the `__cause__` the first time.
    """

    name: str
    error: str | None

    _template = "the step {self.name!r} has failed: {self.error}"


class ChildFailed(StepFailed):
    """A step whose job has died, was discarded or cancelled, or has expired.

    If the job that waits for it does not catch this, it becomes a dead letter: another attempt
    would find the same. To run the other job once more, retry the dead letter from the step.

    Attributes:
        name: The name of the step.
        error: Why the job has failed.
        id: The id of the job that has failed.
    """

    id: str


class WaitTimedOut(FdbqueueError):
    """A wait for a signal that has not come in time.

    If the job does not catch it, it becomes a dead letter: another attempt would find the same.

    Attributes:
        name: The name of the step.
        key: The key of the signal.
    """

    name: str
    key: str

    _template = (
        "no signal has come for the step {self.name!r} with the key {self.key!r}; to wait again, "
        "retry the job from this step: fdbq retry QUEUE ID --step {self.name!r}"
    )


class HandlerExited(FdbqueueError):
    """A handler that raised a `BaseException` which is not an `Exception`, such as `SystemExit`.

    The policy of a job gets this error. Its `__cause__` is what the handler raised, which the
    attempt keeps.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"the handler raised {error_text(error)}, which is not an Exception")
        self.__cause__ = error
