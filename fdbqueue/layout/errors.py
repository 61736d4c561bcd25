"""The errors of steps, signals and batches."""

from __future__ import annotations

from fdbqueue.errors import FdbqueueError

__all__ = ["BatchClosed", "BatchNotFound", "TooManyFollowing", "TooManySteps", "TooManyWaiting"]


class BatchClosed(FdbqueueError):
    """A push to a batch that is closed, or gone. Nothing was pushed.

    Attributes:
        id: The id of the batch.
    """

    id: str

    _template = (
        "the batch {self.id} takes no more jobs: it is closed, or the job that it pushes at its "
        "end was removed; push to it within its `with` block, or begin another one"
    )


class BatchNotFound(FdbqueueError, LookupError):
    """A batch that no queue at hand has. It goes with the job that it pushes at its end.

    Attributes:
        id: The id of the batch.
    """

    id: str

    _template = (
        "there is no batch {self.id}; its id is that of the job that it pushes at its end, and it "
        "is gone once that job is"
    )


class TooManyFollowing(FdbqueueError):
    """A push after a job that already has as many followers as are allowed.

    A transaction in which it is raised must not commit.

    Attributes:
        id: The id of the job.
        limit: The number of jobs and batches that may wait for one job.
    """

    id: str
    limit: int

    _template = (
        "{self.limit} jobs and batches wait for the job {self.id} already; push the others when it "
        "ends, with context.at_end, or after one that follows it"
    )


class TooManySteps(FdbqueueError):
    """Another step of a job that has as many as a job may have.

    Attributes:
        limit: The number of steps that a job may have.
    """

    limit: int

    _template = "a job has at most {self.limit:,} steps; let it push other jobs for the rest"


class TooManyWaiting(FdbqueueError):
    """A signal for which more jobs wait than one transaction can wake.

    Attributes:
        name: The name of the signal.
        limit: The number of jobs that may wait for the same name and key.
    """

    name: str
    limit: int

    _template = "more than {self.limit:,} jobs wait for {self.name!r}; let each use another key"
