"""How an attempt ends: the outcomes that a handler raises, and the errors of its steps."""

from __future__ import annotations

from fdbqueue.errors import FdbqueueError, error_text
from fdbqueue.queue.arguments import validate_seconds
from fdbqueue.types import Duration

_MAX_SECONDS = 10**10


class Suspended(BaseException):
    """A job has given up its claim, and goes on later. Not an `Exception`, so that none catches it.

    Attributes:
        step: The name of the step that waits.
    """

    def __init__(self, step: str) -> None:
        self.step = step
        super().__init__(f"suspended in the step {step!r}")


class Outcome(Exception):
    """The end of an attempt, raised by a handler.

    The attempt keeps the reason with the error that led to it: the one that a policy decided on, or
    the cause, if the outcome is raised `from` another exception.

    Attributes:
        reason: The reason that was given; empty without one.
    """

    reason = ""


def validate_outcome(outcome: Outcome) -> Outcome:
    """Return an outcome; raise an error if the worker cannot do what it says."""
    if isinstance(outcome, (Snooze, RetryIn)):
        validate_seconds("after", outcome.after, below=_MAX_SECONDS)
    for text in (outcome.reason, str(outcome)):
        if not isinstance(text, str):
            raise TypeError(f"the reason of an outcome must be a text, not {text!r}")
    return outcome


class Snooze(Outcome):
    """Try the job again later, as if this attempt had never begun: it does not count.

    Args:
        after: The time until the job is ready again, from 0.

    Example:
        >>> raise Snooze("5m")
        Traceback (most recent call last):
        fdbqueue.worker.outcomes.Snooze: again in 300 seconds
    """

    def __init__(self, after: Duration) -> None:
        self.after = validate_seconds("after", after, below=_MAX_SECONDS)
        super().__init__(f"again in {self.after:g} seconds")


class RetryIn(Outcome):
    """The attempt has failed: try the job again after this time, whatever its policy says.

    A job that has used up its attempts becomes a dead letter nevertheless.

    Args:
        after: The time until the next attempt, from 0.
        reason: What went wrong, as the error of the attempt.

    Example:
        >>> raise RetryIn(30, "the printer is busy")
        Traceback (most recent call last):
        fdbqueue.worker.outcomes.RetryIn: the printer is busy
    """

    def __init__(self, after: Duration, reason: str = "") -> None:
        self.after = validate_seconds("after", after, below=_MAX_SECONDS)
        self.reason = reason
        super().__init__(reason or f"again in {self.after:g} seconds")


class Discard(Outcome):
    """End the job without an effect: it is neither tried again nor kept as a dead letter.

    Example:
        >>> raise Discard("the customer has left")
        Traceback (most recent call last):
        fdbqueue.worker.outcomes.Discard: the customer has left
    """

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason or "discarded")


class Dead(Outcome):
    """The job has failed for good: make it a dead letter now, whatever its policy says.

    Example:
        >>> raise Dead("there is no such customer")
        Traceback (most recent call last):
        fdbqueue.worker.outcomes.Dead: there is no such customer
    """

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason or "dead")


class BatchCancelled(Discard):
    """The job ends as cancelled, because its batch is, or because a job before it was not done."""

    def __init__(self) -> None:
        super().__init__("its batch was cancelled, or a job that it follows was not done")


class Spent(Dead):
    """The job is a dead letter, because its attempts were used up before this claim."""

    def __init__(self, attempts: int) -> None:
        super().__init__(f"all {attempts} attempts are used up")


def as_exception(error: BaseException) -> Exception:
    """Return an error that policies can decide on: itself, or one that stands for it."""
    return error if isinstance(error, Exception) else HandlerExited(error)


class ChildNotPushed(FdbqueueError):
    """A step's job whose unique key an unfinished job has. Nothing was pushed.

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
    """A step that was stored as another kind of step.

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
