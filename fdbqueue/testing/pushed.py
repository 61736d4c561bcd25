"""The jobs that a program has pushed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fdbqueue.errors import QueueNotFound
from fdbqueue.jobs.app import App, known_queues
from fdbqueue.jobs.job import Job
from fdbqueue.queue.priority import PriorityQueue
from fdbqueue.types import ItemInfo, State, StoredJob

_WAITING: tuple[State, ...] = ("ready", "delayed")
_UNKNOWN = datetime.fromtimestamp(0, UTC)
_SHOWN = 20  # waiting jobs that the message of a failure shows


@dataclass(frozen=True)
class Pushed:
    """A job that was pushed, and waits for a worker.

    Attributes:
        arguments: Its arguments by parameter, with defaults.
        info: Its item.
    """

    job: str
    arguments: dict[str, Any]
    queue: str
    info: ItemInfo


def pushed(job: Job[Any, Any, Any, Any], /, **arguments: object) -> list[Pushed]:
    """Return the waiting jobs with these arguments, the oldest first.

    A job waits while it is ready or delayed. This looks in the queues that the app declares or has
    used.

    The arguments of its function are given by parameter, and compared by `==`.

    Raises:
        TypeError: The function has no such parameter.

    Example:
        >>> app = App("memory:")
        >>> @app.job(queue="mail")
        ... def send(to: str, *, subject: str = "hi"): ...
        >>> _ = send.push("ada@example.com"), send.using(delay="1d").push("bob@example.com")
        >>> [each.arguments["to"] for each in pushed(send, subject="hi")]
        ['ada@example.com', 'bob@example.com']
    """
    if unknown := arguments.keys() - {*job.arguments.names}:
        raise TypeError(f"{job.name} has no parameter {min(unknown)!r}")
    found = [
        Pushed(job.name, job.arguments.by_name(stored.args, stored.kwargs), queue, info)
        for queue, stored, info in _waiting(job.app)
        if stored.name == job.name
    ]
    return [
        each
        for each in found
        if all(each.arguments.get(name) == value for name, value in arguments.items())
    ]


def assert_pushed(job: Job[Any, Any, Any, Any], /, **arguments: object) -> Pushed:
    """Assert that a job with these arguments waits, and return the first one; see `pushed`.

    Raises:
        AssertionError: None waits. The message lists the jobs that do.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    if found := pushed(job, **arguments):
        return found[0]
    wanted = StoredJob(job.name, [], arguments, job.version)
    raise AssertionError(f"no job {wanted} waits; these do:{_text(_waiting(job.app))}")


def refute_pushed(job: Job[Any, Any, Any, Any], /, **arguments: object) -> None:
    """Assert that no job with these arguments waits; see `pushed`.

    Raises:
        AssertionError: Some do. The message lists them.
    """
    __tracebackhide__ = True
    if found := pushed(job, **arguments):
        ids = {each.info.id for each in found}
        shown = [each for each in _waiting(job.app) if each[2].id in ids]
        raise AssertionError(f"these jobs wait:{_text(shown)}")


def _waiting(app: App) -> list[tuple[str, StoredJob, ItemInfo]]:
    found: list[tuple[str, StoredJob, ItemInfo]] = []
    for name in known_queues(app):
        try:
            queue = PriorityQueue[Any].existing(app.db, name)
        except QueueNotFound:
            continue
        for state in _WAITING:
            for info in queue.items(app.db, state=state):
                if info.job is not None:
                    found.append((name, info.job, info))
    return sorted(found, key=lambda each: each[2].pushed_at or _UNKNOWN)


def _text(waiting: list[tuple[str, StoredJob, ItemInfo]]) -> str:
    lines = [
        f"{stored}, {f'due at {info.due_at}' if info.due_at else 'ready'} in {queue!r}"
        for queue, stored, info in waiting[:_SHOWN]
    ]
    if len(waiting) > _SHOWN:
        lines.append(f"and {len(waiting) - _SHOWN:,} more")
    return "".join(f"\n  {line}" for line in lines or ["none"])
