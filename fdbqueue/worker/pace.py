"""How many jobs a worker claims ahead, by how long the last ones have taken."""

from __future__ import annotations

_WEIGHT = 0.1  # weight of the latest job in the moving average of durations, or that of a mean
_AHEAD = 0.05  # seconds of work for which jobs are claimed ahead
_LATE = 2.0  # times these seconds, after which a job that waits is late


class Pace:
    """How many jobs to claim, by how long the last ones have taken.

    Args:
        concurrency: The number of jobs that run at a time.
        prefetch: The maximum number of jobs to claim ahead.

    Attributes:
        seconds: The moving average of the duration of a job.
        n_timed: The number of jobs in it.
        may_claim_ahead: False if a job that goes back would lose an attempt or a start.

    Example:
        >>> pace = Pace(concurrency=2, prefetch=100)
        >>> pace.room(held=0), pace.room(held=2)
        (2, 0)
        >>> for _ in range(10):
        ...     pace.note(0.001)
        >>> pace.room(held=2)
        10
    """

    def __init__(self, concurrency: int, prefetch: int) -> None:
        self.concurrency = concurrency
        self._prefetch = prefetch
        self.seconds = 1.0
        self.n_timed = 0
        self.may_claim_ahead = True

    def note(self, seconds: float) -> None:
        """Note how long a job has taken that was done."""
        self.n_timed += 1
        weight = max(_WEIGHT, 1 / self.n_timed)
        self.seconds += weight * (max(seconds, 1e-6) - self.seconds)

    def room(self, held: int) -> int:
        """Return how many jobs to claim now; none while more than half are left ahead."""
        free, waiting = max(0, self.concurrency - held), max(0, held - self.concurrency)
        ahead = 0
        if self.may_claim_ahead and self.seconds <= _AHEAD:
            # At first, no more than were timed: one quick job says little about the next hundred.
            soon = int(self.concurrency * _AHEAD / self.seconds)
            ahead = min(self._prefetch, soon, self.n_timed)
        return free + ahead - waiting if 2 * waiting <= ahead else 0

    def is_late(self, seconds: float) -> bool:
        """Return whether a job has waited for too long; then running jobs take as long."""
        is_late = seconds > _LATE * _AHEAD
        if is_late:  # so none are claimed ahead until jobs are quick again
            self.seconds = max(self.seconds, seconds)
        return is_late
