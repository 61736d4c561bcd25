"""Batches: any number of jobs, and one that runs once all others have ended."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from fdbqueue.database.binding import Guard
from fdbqueue.jobs.handle import Handle
from fdbqueue.jobs.job import BoundJob, JobPusher
from fdbqueue.queue.batches import Batches, BatchProgress
from fdbqueue.types import OnDead

if TYPE_CHECKING:
    from typing import Self

    from fdbqueue.jobs.app import App

_P = ParamSpec("_P")
_R = TypeVar("_R")
_R2 = TypeVar("_R2")

_TOGETHER = 500  # jobs that one transaction pushes

_first = itemgetter(0)


class Batch(Generic[_R]):
    """A batch of jobs, and the job that runs once they have ended; `App.batch` begins it.

    Pushes are stored 500 to a transaction; `flush` and the end of the `with` block store the rest.
    The block does not close a batch from `App.existing_batch`. If a process dies within the block,
    `app.existing_batch(id).close()` closes the batch.

    Cost: see `docs/reference/costs.md`.

    Attributes:
        id: The id of the batch, and of the item of the job that follows.
        queue: The name of the queue of that job.
        handle: The handle of that job. Cancelling it cancels the batch: jobs that were pushed still
            run, unless `on_dead` is `"cancel"`.
    """

    def __init__(
        self, app: App, queue: str, handle: Handle[_R], on_dead: OnDead, *, is_own: bool
    ) -> None:
        self._app = app
        self._on_dead: OnDead = on_dead
        self._is_own = is_own
        self._batches = Batches(app.queue(queue))
        self._guard = Guard()
        self._collected: list[tuple[JobPusher[Any, Any], BoundJob[Any, Any]]] = []
        self.id = handle.id
        self.queue = queue
        self.handle = handle

    def __repr__(self) -> str:
        return f"<batch {self.id} in {self.queue}>"

    def push(
        self,
        job: JobPusher[_P, Any],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> None:
        """Add a job, or what its `using` returned, with these arguments of its function.

        Raises:
            BatchClosed: The batch takes no more jobs.
            InvalidArguments: The function does not take these arguments.
            QueueFull: The queue of a job is full. Collected jobs were not pushed.
        """
        self.push_many(job, [job.bind(*args, **kwargs)])

    def push_many(self, job: JobPusher[_P, _R2], calls: Iterable[BoundJob[_P, _R2]]) -> None:
        """Add many jobs from `Job.bind`; see `push`."""
        job.check_member()
        with self._guard:
            for call in calls:
                self._collected.append((job, call))
                if len(self._collected) >= _TOGETHER:
                    self._flush()

    def flush(self) -> None:
        """Push the collected jobs."""
        with self._guard:
            self._flush()

    def _flush(self) -> None:
        collected, self._collected = self._collected, []
        pushes = [
            pusher.members(call for _, call in group)
            for pusher, group in groupby(collected, _first)
        ]
        if pushes:
            self._batches.add(self._app.db, self.id, self._on_dead, pushes)

    def close(self) -> None:
        """Push the collected jobs, and accept no more. Closing twice does nothing."""
        self.flush()
        self._batches.close(self._app.db, self.id)

    def progress(self) -> BatchProgress:
        """Return how many jobs there are, and how many have ended.

        Raises:
            BatchNotFound: The job that follows has left its queue, and the batch with it.
        """
        return self._batches.progress(self._app.db, self.id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            if self._is_own:
                self.close()
            else:
                self.flush()
            return
        with self._guard:
            self._collected.clear()
        if self._is_own:
            self.handle.cancel()
