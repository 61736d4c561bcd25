"""How an attempt ends: the outcomes that a handler raises, and the errors of its steps."""

from __future__ import annotations

from fdbqueue.errors import FdbqueueError, error_text
from fdbqueue.queue.arguments import MAX_SECONDS, validate_seconds
from fdbqueue.types import Duration


class Outcome(Exception):
    """The end of an attempt, raised by a handler.

    The attempt keeps the reason, and the error that a policy decided on, or the `__cause__`.
    """

    reason = ""


def validate_outcome(outcome: Outcome) -> Outcome:
    """Return an outcome; raise an error if it has invalid values."""
    if isinstance(outcome, (Snooze, RetryIn)):
        validate_seconds("after", outcome.after, below=MAX_SECONDS)
    for text in (outcome.reason, str(outcome)):
        if not isinstance(text, str):
            raise TypeError(f"the reason of an outcome must be a text, not {text!r}")
    return outcome


class Snooze(Outcome):
    """Try the job again later, without counting this attempt.

    Args:
        after: The time until the job is ready again, from 0.

    Example:
        >>> raise Snooze("5m")
        Traceback (most recent call last):
        fdbqueue.worker.outcomes.Snooze: again in 300 seconds
    """

    def __init__(self, after: Duration) -> None:
        self.after = validate_seconds("after", after, below=MAX_SECONDS)
        super().__init__(f"again in {self.after:g} seconds")


class RetryIn(Outcome):
    """Fail the attempt, and try the job again after this time, whatever its policy says.

    If its attempts are used up, the job becomes a dead letter. `after` is the time until the next
    attempt, from 0, and `reason` the error of this one.
    """

    def __init__(self, after: Duration, reason: str = "") -> None:
        self.after = validate_seconds("after", after, below=MAX_SECONDS)
        self.reason = reason
        super().__init__(reason or f"again in {self.after:g} seconds")


class Discard(Outcome):
    """End the job without an effect: neither try it again nor keep it as a dead letter."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason or "discarded")


class Dead(Outcome):
    """Make the job a dead letter now, whatever its policy says."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason or "dead")


class Spent(Dead):
    """The attempts of the job were used up before this claim."""

    def __init__(self, attempts: int) -> None:
        super().__init__(f"all {attempts} attempts are used up")


def as_exception(error: BaseException) -> Exception:
    """Return an error that policies can decide on: itself, or a `HandlerExited`."""
    return error if isinstance(error, Exception) else HandlerExited(error)


class ChildNotPushed(FdbqueueError):
    """The unique key of a step's job belongs to an unfinished job. Nothing was pushed.

    Attributes:
        id: The id of the unfinished job.
    """

    name: str
    id: str

    _template = (
        "the job of the step {self.name!r} was not pushed: its unique key is that of the job "
        "{self.id}, which has not ended; run it without a key, with job.using(unique=False)"
    )


class StepChanged(FdbqueueError):
    """A step was stored as another kind of step."""

    name: str
    stored: str
    kind: str

    _template = (
        "the step {self.name!r} was stored as a {self.stored}, and is a {self.kind} now; a step "
        "that does something else needs another name"
    )


class StepFailed(FdbqueueError):
    """The function of a step has raised an exception.

    Attributes:
        error: The exception as text. It is the `__cause__` the first time.
    """

    name: str
    error: str | None

    _template = "the step {self.name!r} has failed: {self.error}"


class ChildFailed(StepFailed):
    """The job of a step has died, was discarded or cancelled, or has expired.

    Uncaught, it makes the waiting job a dead letter. A retry from the step runs the other job
    again.

    Attributes:
        id: The id of the other job.
    """

    id: str


class WaitTimedOut(FdbqueueError):
    """No signal has come in time.

    Uncaught, it makes the job a dead letter.

    Attributes:
        key: The key of the signal.
    """

    name: str
    key: str

    _template = (
        "no signal has come for the step {self.name!r} with the key {self.key!r}; to wait again, "
        "retry the job from this step: fdbq retry QUEUE ID --step {self.name!r}"
    )


class HandlerExited(FdbqueueError):
    """A handler raised a `BaseException` that is not an `Exception`; it is the `__cause__`."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"the handler raised {error_text(error)}, which is not an Exception")
        self.__cause__ = error
