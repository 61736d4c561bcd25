"""The jobs that a job runs in its steps: pushed by the transaction that stores the steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from fdbqueue.database.clock import uuids
from fdbqueue.types import Transaction
from fdbqueue.worker.steps.errors import ChildFailed, ChildNotPushed

if TYPE_CHECKING:
    from fdbqueue.queue.base import BaseQueue
    from fdbqueue.queue.batches import Members

_P = ParamSpec("_P")
_R = TypeVar("_R")
_R_co = TypeVar("_R_co", covariant=True)

_MAX_GATHERED = 1_000


class Child(Protocol[_R_co]):
    """A job with its arguments; `Job.bind` returns one."""

    @property
    def members(self) -> Members:
        """The item to push."""
        ...

    def decode_result(self, stored: Any) -> _R_co:
        """Return its result, given the JSON form."""
        ...


class ChildJob(Protocol[_P, _R_co]):
    """A job, perhaps with options of its push."""

    def bind(self, /, *args: _P.args, **kwargs: _P.kwargs) -> Child[_R_co]:
        """Return it with arguments."""
        ...


def gathered(name: str, children: Iterable[Child[_R]]) -> dict[str, Child[_R]]:
    """Return jobs by the names of their steps."""
    jobs = [*children]
    if len(jobs) > _MAX_GATHERED:
        raise ValueError(
            f"gather runs up to {_MAX_GATHERED:,} jobs, not {len(jobs):,}; push a batch of them, "
            "whose last one sends a signal to this job"
        )
    return {f"{name} {number}": job for number, job in enumerate(jobs)}


def first_error_or(results: list[Any]) -> list[Any]:
    """Return the results; raise the first error among them."""
    for each in results:
        if isinstance(each, ChildFailed):
            raise each
    return results


class ChildPushes:
    """The pushes of the jobs of some steps, as one batch.

    Args:
        owner: The prefix of the queue of the job that runs them.
        job: The first position of that job.
        children: The jobs by the names of their steps.
    """

    def __init__(self, owner: bytes, job: bytes, children: Mapping[str, Child[Any]]) -> None:
        (self.batch,) = uuids(1)
        self.names = [*children]
        self._owner, self._job = owner, job
        self._children = children

    @cached_property
    def _members(self) -> list[Members]:  # only the first run of the job pushes
        return [child.members for child in self._children.values()]

    @cached_property
    def _new(self) -> list[Any]:
        new: list[Any] = []
        for name, members in zip(self.names, self._members):
            new += members.join(self._owner, self.batch, step=name, job=self._job)
        return new

    def push(self, tr: Transaction, numbers: list[int]) -> list[tuple[bytes, str]]:
        """Push the jobs of the steps with these numbers.

        Returns:
            The prefixes of their queues, empty for that of the job, and their ids.

        Raises:
            ChildNotPushed: An unfinished job has the unique key of one of them.
            QueueFull: A queue has no room.
        """
        of_queue: dict[BaseQueue[Any], list[int]] = {}
        for number in numbers:
            of_queue.setdefault(self._members[number].queue, []).append(number)
        ids: dict[int, str] = {}
        # One push for each queue: a later one may replace the jobs of a group.
        for some in of_queue.values():
            pushed = self._members[some[0]].push(tr, [self._new[number] for number in some])
            for number, item in zip(some, pushed):
                if not item.is_new:
                    raise ChildNotPushed(self.names[number], item.id)
                ids[number] = item.id
        prefixes = [self._members[number].prefix for number in numbers]
        return [
            (b"" if prefix == self._owner else prefix, ids[number])
            for prefix, number in zip(prefixes, numbers)
        ]
