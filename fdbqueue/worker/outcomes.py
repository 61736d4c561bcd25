"""The outcomes that a handler chooses by raising them."""

from __future__ import annotations

from fdbqueue.queue.arguments import validate_seconds
from fdbqueue.types import Duration
from fdbqueue.worker.functions.errors import HandlerExited

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

    The attempt keeps the reason together with the error that led to it: the error that a policy
    decided on, or the cause, if the outcome is raised `from` another exception.

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
    """The job ends as cancelled, because its batch is, or because one was not done before it."""

    def __init__(self) -> None:
        super().__init__("its batch was cancelled, or a job that it follows was not done")


class Spent(Dead):
    """The job is a dead letter, because its attempts were used up before this claim."""

    def __init__(self, attempts: int) -> None:
        super().__init__(f"all {attempts} attempts are used up")


def as_exception(error: BaseException) -> Exception:
    """Return an error that policies can decide on: itself, or one that stands for it."""
    return error if isinstance(error, Exception) else HandlerExited(error)
