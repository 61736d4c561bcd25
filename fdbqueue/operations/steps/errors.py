"""The errors of storing steps and of signals."""

from __future__ import annotations

from fdbqueue.errors import FdbqueueError

__all__ = ["TooManySteps", "TooManyWaiting"]


class TooManySteps(FdbqueueError):
    """Another step of a job that has as many as a job may have.

    Attributes:
        limit: The number of steps that a job may have.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(f"a job has at most {limit:,} steps; let it push other jobs for the rest")


class TooManyWaiting(FdbqueueError):
    """A signal for which more jobs wait than one transaction can wake.

    Attributes:
        name: The name of the signal.
        limit: The number of jobs that may wait for the same name and key.
    """

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        super().__init__(f"more than {limit:,} jobs wait for {name!r}; let each use another key")
