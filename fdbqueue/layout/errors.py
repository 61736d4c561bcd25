"""The errors of steps, signals and batches."""

from __future__ import annotations

from fdbqueue.errors import FdbqueueError

__all__ = ["BatchClosed", "BatchNotFound", "TooManyFollowing", "TooManySteps", "TooManyWaiting"]


class BatchClosed(FdbqueueError):
    """A push to a batch that is closed, or gone. Nothing was pushed.

    Attributes:
        id: The id of the batch.
    """

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(
            f"the batch {id} takes no more jobs: it is closed, or the job that it pushes at its "
            "end was removed; push to it within its `with` block, or begin another one"
        )


class BatchNotFound(FdbqueueError, LookupError):
    """A batch that no queue at hand has. It goes with the job that it pushes at its end.

    Attributes:
        id: The id of the batch.
    """

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(
            f"there is no batch {id}; its id is that of the job that it pushes at its end, and it "
            "is gone once that job is"
        )


class TooManyFollowing(FdbqueueError):
    """A push after a job that already has as many followers as are allowed.

    A transaction in which it is raised must not commit.

    Attributes:
        id: The id of the job.
        limit: The number of jobs and batches that may wait for one job.
    """

    def __init__(self, id: str, limit: int) -> None:
        self.id = id
        self.limit = limit
        super().__init__(
            f"{limit} jobs and batches wait for the job {id} already; push the others when it "
            "ends, with context.at_end, or after one that follows it"
        )


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
