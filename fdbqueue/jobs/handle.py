"""Handles of pushed jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fdbqueue.errors import NoResult
from fdbqueue.queue.following import follow, run
from fdbqueue.types import Duration, ItemInfo, State

if TYPE_CHECKING:
    from fdbqueue.jobs.job import Job

_Result = TypeVar("_Result")


class Handle(Generic[_Result]):
    """A pushed job.

    Attributes:
        id: The id of its item.
        queue: The name of its queue.
        is_new: False if another job has its unique key, and nothing was pushed.
    """

    def __init__(
        self, job: Job[Any, Any, Any, _Result], queue: str, id: str, *, is_new: bool
    ) -> None:
        self._job = job
        self.queue = queue
        self.id = id
        self.is_new = is_new

    def __repr__(self) -> str:
        return f"<{self._job.name} {self.id} in {self.queue}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and (self.queue, self.id) == (other.queue, other.id)

    def __hash__(self) -> int:
        return hash((self.queue, self.id))

    def to_json(self) -> dict[str, Any]:
        """Return its stored form."""
        job = self._job.name
        return {"job": job, "queue": self.queue, "id": self.id, "is_new": self.is_new}

    def result(self, wait: Duration = 0) -> _Result:
        """Return the result of the function; wait for it.

        `wait` is how long to wait for the end of the job; `math.inf` waits forever.

        Raises:
            NoResult: The job has not ended in time, is a dead letter, was discarded or cancelled,
                or is no longer kept.
        """
        queue, db = self._job.app.target(self.queue)
        stored = queue.result(db, self.id, wait=wait)
        if stored is None and (info := self.info()) and info.outcome in ("discarded", "cancelled"):
            raise NoResult(self.id, info.outcome, info.error)
        result: _Result = self._job.arguments.decode_result(stored)
        return result

    def update(self, /, *args: Any, **kwargs: Any) -> None:
        """Replace the arguments of a job that has not begun.

        The job keeps its place, time, group and unique key; `App.queue` has an `update` that
        changes these.

        Raises:
            InvalidArguments: The function does not take these arguments.
            WrongState: The job runs, has stored steps, or has ended.
        """
        queue, db = self._job.app.target(self.queue)
        queue.update(db, self.id, value=self._job.bind(*args, **kwargs).value)

    def cancel(self, *, force: bool = False, children: bool = False) -> bool:
        """Cancel the job; return false if it has ended.

        `PriorityQueue.cancel` describes this, and `force` and `children`.
        """
        queue, db = self._job.app.target(self.queue)
        return queue.cancel(db, self.id, force=force, children=children)

    async def __aiter__(self) -> AsyncIterator[ItemInfo]:
        """Yield everything about the job now, and when its state, progress or log changes.

        End once it is done, dead or no longer kept. Cost: two reads of its item each second.

        Example:
            >>> import asyncio
            >>> from fdbqueue.jobs import App
            >>> app = App("memory:")
            >>> @app.job()
            ... def work(): ...
            >>> async def states(handle):
            ...     return [info.state async for info in handle]
            >>> handle = work.push()
            >>> _ = app.work(drain=True)
            >>> asyncio.run(states(handle))
            ['done']
        """
        queue, db = await run(self._job.app.target, self.queue)
        async for info in follow(queue, db, self.id):
            yield info

    def state(self) -> State | None:
        """Return its state; `None` if it has left the queue."""
        queue, db = self._job.app.target(self.queue)
        return queue.state(db, self.id)

    def info(self) -> ItemInfo | None:
        """Return everything about it; `None` if it has left the queue."""
        queue, db = self._job.app.target(self.queue)
        return queue.get(db, self.id)


def handle_of(stored: Any, jobs: Mapping[str, Job[Any, Any, Any, Any]]) -> Handle[Any]:
    """Return a handle, given its stored form; raise `ValueError` if these jobs lack its job."""
    try:
        name, queue, id, is_new = map(stored.__getitem__, ("job", "queue", "id", "is_new"))
    except (AttributeError, KeyError, TypeError):
        raise ValueError("expected the stored form of a handle") from None
    if name not in jobs:
        raise ValueError(f"the handle belongs to the job {name!r}, which the app does not declare")
    return Handle(jobs[name], queue, id, is_new=is_new)
