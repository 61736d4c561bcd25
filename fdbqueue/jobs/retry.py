"""Policies that say when a failed job is retried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from fdbqueue.database.clock import retry_delay
from fdbqueue.queue.arguments import validate_bound, validate_seconds
from fdbqueue.types import Duration
from fdbqueue.worker.context import Context
from fdbqueue.worker.outcomes import (
    ChildFailed,
    Dead,
    Outcome,
    RetryIn,
    StepFailed,
    WaitTimedOut,
    as_exception,
    validate_outcome,
)

ATTEMPTS = 20
"""The default number of attempts: the last one comes about six hours after the first."""

Decision: TypeAlias = Callable[[Exception, Context[Any]], Outcome | Duration]


@dataclass(frozen=True, slots=True)
class Retry:
    """When to retry a job: the delay grows exponentially, up to a number of attempts.

    Args:
        attempts: The number of attempts, with the first one, after which the job becomes a dead
            letter; `None` for no limit.
        first: The delay after the first failure.
        factor: The factor from one delay to the next, from 1 to 1,000.
        longest: The longest delay.
        jitter: The greatest random share of the delay to subtract, from 0 to 1.
        on: The exceptions after which to retry, a class or a tuple; any other one makes the job a
            dead letter.
        never_on: The exceptions after which not to retry.

    Example:
        >>> policy = Retry(attempts=8, first="2s", longest="1h", jitter=0, on=OSError)
        >>> [policy.delay(failures) for failures in (1, 2, 3, 100)]
        [2.0, 4.0, 8.0, 3600.0]
    """

    attempts: int | None = ATTEMPTS
    first: Duration = 1.0
    factor: float = 2.0
    longest: Duration = 3600.0
    jitter: float = 0.5
    on: type[Exception] | tuple[type[Exception], ...] = field(default=Exception, kw_only=True)
    never_on: type[Exception] | tuple[type[Exception], ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        validate_bound("attempts", self.attempts)
        validate_seconds("first", self.first)
        validate_seconds("longest", self.longest)
        for name, number, lowest, highest in (
            ("factor", self.factor, 1, 1000),
            ("jitter", self.jitter, 0, 1),
        ):
            if not isinstance(number, (int, float)) or not lowest <= number <= highest:
                raise ValueError(f"{name} is a number from {lowest} to {highest:,}, not {number!r}")
        for name, kinds in (("on", self.on), ("never_on", self.never_on)):
            if not all(map(_is_exception, kinds if isinstance(kinds, tuple) else (kinds,))):
                raise TypeError(
                    f"{name} must be an exception class, or a tuple of them such as "
                    f"(OSError, ValueError), not {kinds!r}"
                )

    def delay(self, failures: int) -> float:
        """Return the seconds before the next attempt of a job that failed this often."""
        return retry_delay(
            failures,
            first=validate_seconds("first", self.first),
            factor=self.factor,
            longest=validate_seconds("longest", self.longest),
            jitter=self.jitter,
        )

    def decide(self, error: Exception, attempt: int) -> Outcome:
        """Return the outcome of a failed attempt."""
        if isinstance(error, Outcome):
            is_over = isinstance(error, RetryIn) and self.is_last(attempt)
            return Dead(error.reason) if is_over else error
        cause = error.__cause__ if isinstance(error, StepFailed) else None
        raised = cause if isinstance(cause, Exception) else error
        is_hopeless = not isinstance(raised, self.on) or isinstance(
            raised, (self.never_on, ChildFailed, WaitTimedOut)
        )
        if is_hopeless or self.is_last(attempt):
            return Dead()
        return RetryIn(self.delay(attempt))

    def is_last(self, attempt: int) -> bool:
        """Return whether the attempt with this number is the last one."""
        return self.attempts is not None and attempt >= self.attempts


def _is_exception(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Exception)


_DEFAULT = Retry()


def decided(policy: Retry | Decision, error: Exception, context: Context) -> Outcome:
    """Return the outcome that a policy decides on.

    The default policy decides on an error of the policy itself, the `__cause__` of the outcome.
    """
    try:
        return validate_outcome(_decided(policy, error, context))
    except BaseException as failure:
        if failure.__context__ is None and failure is not error:
            failure.__context__ = error
        outcome = _DEFAULT.decide(as_exception(failure), context.attempt)
        if outcome is not failure:
            outcome.__cause__ = failure
        return validate_outcome(outcome)


def _decided(policy: Retry | Decision, error: Exception, context: Context) -> Outcome:
    if isinstance(policy, Retry):
        return policy.decide(error, context.attempt)
    if isinstance(error, Outcome):
        return error
    decision = policy(error, context)
    return decision if isinstance(decision, Outcome) else RetryIn(decision)
