"""The steps of jobs, whose results are stored under the claim of the job."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from fdbqueue.database.clock import Since, milliseconds
from fdbqueue.database.retrying import read
from fdbqueue.errors import FdbqueueError
from fdbqueue.layout.codecs import encode_returned
from fdbqueue.layout.jobs import JobCancelled as JobCancelled
from fdbqueue.layout.jobs import StepKind, StepState, StoredSignal, StoredStep
from fdbqueue.layout.jobs import TooManyWaiting as TooManyWaiting
from fdbqueue.layout.values import LAST_MILLISECOND, NO_REPORT, Report, utc_time
from fdbqueue.operations.maintainers.batches import read_steps
from fdbqueue.operations.names import name_of
from fdbqueue.queue.arguments import MAX_SECONDS, validate_by, validate_key, validate_seconds
from fdbqueue.types import (
    Claim,
    Database,
    Duration,
    Item,
    ReadTransaction,
    ReadTransactor,
    Transaction,
    Transactor,
    V,
)

if TYPE_CHECKING:
    from fdbqueue.coordination.store import Store
    from fdbqueue.operations.items import NewItem
    from fdbqueue.operations.jobs.steps import PushChildren, Steps
    from fdbqueue.queue.batches import Members

_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a job, as it is stored.

    Attributes:
        kind: What the job does in it.
        state: How it ended; `"waiting"` until then.
        began_at: When the job first came to it.
        ended_at: When it ended, or `None`.
        failures: How often its function has failed.
        due_at: When a job that sleeps or waits goes on; `None` for never.
        key: The key of the signal that it waits for, or the id of the job that it runs.
        queue: The name of the queue of that job, or `None`.
        error: Why its function failed last, or `None`.
        value: Its result, as JSON.
    """

    name: str
    kind: StepKind
    state: StepState
    began_at: datetime
    ended_at: datetime | None
    failures: int
    due_at: datetime | None
    key: str
    queue: str | None
    error: str | None
    value: Any


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal that a job has waited for."""

    name: str
    key: str
    value: Any
    sent_at: datetime


KEPT = "30d"
"""How long a signal is kept by default."""


class JobSteps(Generic[V]):
    """The steps of the jobs of one queue, and the signals that they wait for.

    A job stores them with `fdbqueue.jobs.Context`; they are deleted with its item.
    """

    def __init__(self, store: Store[Any]) -> None:
        self._store = store
        self._in = store.steps

    def all(self, tr: ReadTransactor, item: Item[V] | str) -> list[Step]:
        """Return the steps of a job in the order of their storing; none for an unknown item.

        Cost: two reads of an item, and a range read of its steps with their results.

        Example:
            >>> jobs.steps.all(db, jobs.push(db, "no steps"))
            []
        """
        reference = self._store.codec.reference(item)

        def body(tr: ReadTransaction) -> list[Step]:
            found = self._store.items.at(tr, reference)
            if found is None or not found.item.header.steps:
                return []
            layout = self._store.layout
            own, steps = layout.subspace.key(), read_steps(tr, layout, layout.position(found.key))
            runs = {step.queue or own for step in steps.values() if step.kind == "run"}
            names = {queue: name_of(tr, queue) for queue in runs}
            return [_public(*each, names.get(each[1].queue or own)) for each in steps.items()]

        return read(tr, body)

    def signal(
        self,
        tr: Transactor,
        name: str,
        *,
        key: str = "",
        value: Any = None,
        keep: Duration = KEPT,
    ) -> int:
        """Send a signal; return how many jobs waited for it, which go on in this transaction.

        A job that waits for it later, while it is kept, goes on at once, with the last signal of
        this name and key. Conflicts with other signals of both, and with jobs that begin or cease
        to wait for them. Cost: three reads and two or three writes; for each job that waits eight
        of each.

        Args:
            tr: A transaction or a database.
            name: Text of 1 to 255 bytes.
            key: Text of up to 255 bytes, such as the id of the job.
            value: JSON of up to 90,000 bytes.
            keep: The time for which jobs may still come to wait for it.

        Raises:
            InvalidValue: The value is not JSON.
            PayloadTooLarge: The value is too large.
            TooManyWaiting: More than 1,000 jobs, or fewer if the value is large, wait for it.
        """
        validate_key("the name of a signal", name)
        validate_key("the key of a signal", key, may_be_empty=True)
        seconds = validate_seconds("keep", keep, is_over=True, below=MAX_SECONDS)
        stored = encode_returned(value, "a signal")

        def body(tr: Transaction, now: int) -> int:
            ends = min(LAST_MILLISECOND, now + round(1000 * seconds))
            return self._in.signal(tr, now, name, key, StoredSignal(now, ends, stored))

        return self._store.change(tr, body)

    def retry_from(
        self, tr: Transactor, item: Item[V] | str, step: str, *, by: str | None = None
    ) -> bool:
        """Retry a dead letter, as `retry` does, from a step on; return false if it is none.

        This step and all that were stored later are forgotten, with their results.
        """
        return self._store.retry_from(tr, item, step, validate_by(by))


class Suspended(BaseException):
    """A job has given up its claim, and goes on later. No `except Exception` catches it."""

    def __init__(self, step: str) -> None:
        self.step = step
        super().__init__(f"suspended in the step {step!r}")


class DuplicateStep(FdbqueueError, ValueError):
    """Two steps of a job have the same name."""

    name: str

    _template = (
        "the job has a step named {self.name!r} already; each needs a name of its own, in a loop "
        'with the key of the loop: context.step(f"charge {{order}}", ...)'
    )


@dataclass(slots=True)
class HeldLease:
    """The lease of a claim, and the last report of its job.

    A context refers to it, not to the job: a cycle would wait for the garbage collector.
    """

    store: Store[Any]
    db: Database
    claim: Claim[Any]
    seconds: float
    since: Since
    report: Report = NO_REPORT

    def seconds_left(self) -> float:
        """Return the seconds until its end; below 0 afterwards."""
        return self.seconds - self.since.seconds()

    @property
    def extension(self) -> tuple[Claim[Any], Report, float]:
        """The claim to extend, the report, and the seconds."""
        return self.claim, self.report, self.seconds

    def extend(self, **fields: Any) -> None:
        """Restart it, store the report, and change the item's header; raise `LeaseLost`."""
        since = Since()
        self.store.extend(self.db, self.extension, **fields)
        self.since = since

    def steps(self, is_told: Callable[[], bool]) -> ClaimedSteps:
        """Return the steps of the job."""
        return ClaimedSteps(self, is_told)


class ClaimedSteps:
    """The steps of one claimed job; each call is a transaction.

    Each stored step restarts the lease, with the job's current report.
    """

    def __init__(self, lease: HeldLease, is_told: Callable[[], bool] = lambda: False) -> None:
        self._lease = lease
        self._store = lease.store
        self._is_told = is_told
        self._left: int | None = None  # stored steps that this run has not come to
        self._unstored: dict[str, StoredStep] = {}
        self.names: dict[str, object] = {}
        """The names of the steps that the job has come to."""
        self.is_suspended = False
        """True once the job has given up its claim."""
        self.has_raised = False
        """True once this attempt has raised `JobCancelled`."""

    @property
    def id(self) -> str:
        """The id of the job."""
        id: str = self._lease.claim.item.id
        return id

    def find(self, name: str) -> StoredStep | None:
        """Return the step of this name, or `None`.

        Raises `DuplicateStep`, `LeaseLost` or `JobCancelled`.
        """
        self._take_name(name)
        return self._find(name)

    def _take_name(self, name: str) -> None:
        validate_key("the name of a step", name)
        mine = object()
        if self.names.setdefault(name, mine) is not mine:  # steps of a coroutine have threads
            raise DuplicateStep(name)

    def _find(self, name: str) -> StoredStep | None:
        if self._left == 0 and not self._is_told():
            return None
        found, n = self._telling(lambda: read(self._lease.db, lambda tr: self._look(tr, name)))
        self._left = (n if self._left is None else self._left) - (found is not None)
        return found

    def _look(self, tr: ReadTransaction, name: str) -> tuple[StoredStep | None, int]:
        found, header = self._store.steps.begin(tr, self._lease.claim, name)
        if header.cancelled is not None and not self.has_raised:
            is_over = found is not None and found.state != "waiting"
            if not is_over or name == header.cancelled_step:
                raise JobCancelled(name)
        return found, header.steps

    def _telling(self, act: Callable[[], _R]) -> _R:
        """Act; store the step that raises `JobCancelled`, before the job learns of it."""
        try:
            return act()
        except JobCancelled as cancelled:
            self._lease.extend(cancelled_step=cancelled.step)
            self.has_raised = True
            raise

    def _change(self, body: Callable[[Transaction, int], _R]) -> _R:
        """Run `body(tr, now=now)`."""
        return self._telling(partial(self._store.change, self._lease.db, body))

    def add(self, name: str, step: StoredStep) -> None:
        """Store a step together with the next one."""
        self._unstored[name] = step

    def store(self, name: str, begun: StoredStep, value: bytes) -> StoredStep:
        """Store the result of a step; raise `LeaseLost` if another worker may have the job."""
        step = self._change(lambda tr, now: self._end(tr, now, name, begun, value))
        self._unstored.clear()
        return step

    def commit(
        self, name: str, body: Callable[[Transaction], bytes], begun: StoredStep
    ) -> StoredStep:
        """Run `body(tr)` in a transaction that also stores what it returns as the result."""

        def once(tr: Transaction, now: int) -> StoredStep:
            known, _ = self._look(tr, name)
            if known is not None and known.state == "done":
                return known
            return self._end(tr, now, name, begun, body(tr))

        step = self._change(once)
        self._unstored.clear()
        return step

    def _end(
        self, tr: Transaction, now: int, name: str, begun: StoredStep, value: bytes
    ) -> StoredStep:
        step = begun._replace(state="done", ended_at=now, due=None, value=value)
        steps = {**self._unstored, name: step}
        if self._store.steps.store(tr, now, self._lease.extension, steps):
            self._left = -1  # so each later step is looked for
        return step

    def suspend(self, name: str, step: StoredStep) -> NoReturn:
        """Store a step that waits, give up the claim until it is due, and raise `Suspended`."""

        def body(tr: Transaction, now: int) -> None:
            steps = {**self._unstored, name: step}
            self._store.steps.suspend(tr, now, self._lease.claim, steps, name, step.due)

        self._change(body)
        self._suspended(name)

    def _suspended(self, name: str) -> NoReturn:
        self.is_suspended = True
        raise Suspended(name)

    def wait(self, name: str, step: StoredStep, signal: str) -> StoredStep:
        """Return a wait for a signal if it has ended; otherwise suspend the job."""

        def body(tr: Transaction, now: int) -> StoredStep | None:
            steps = {**self._unstored, name: step}
            return self._store.steps.wait(tr, now, self._lease.extension, steps, name, signal)

        ended = self._change(body)
        self._unstored.clear()
        return ended or self._suspended(name)

    def run(self, names: list[str], batch: bytes, push: PushChildren) -> Steps:
        """Return the steps that run other jobs if all have ended; otherwise suspend the job.

        `push(tr, names)` pushes these jobs, as part of the same transaction.
        """

        def body(tr: Transaction, now: int) -> Steps | None:
            claim = self._lease.claim
            return self._store.steps.run(tr, now, claim, self._unstored, names, batch, push)

        for name in names:
            self._take_name(name)
        if names and self._is_told():
            self._find(names[0])
        ended = self._change(body)
        if ended is None:
            self._suspended(names[0])
        if self._left is not None:
            self._left -= len(ended)
        return ended

    def child(self, members: Members, batch: bytes, step: str) -> NewItem:
        """Return the item of the job that a step runs."""
        own, job = self._store.layout.subspace.key(), self._store.codec.reference(self.id)
        (new,) = members.join(own, batch, step=step, job=job)
        return new


def _public(name: str, stored: StoredStep, queue: str | None) -> Step:
    ended, due = stored.ended_at, stored.due
    state = stored.state
    if stored.kind == "sleep" and due is not None and due <= milliseconds():
        state, ended = "done", due
    return Step(
        name,
        stored.kind,
        state,
        utc_time(stored.began_at),
        None if ended is None else utc_time(ended),
        stored.failures,
        None if due is None else utc_time(due),
        stored.key,
        queue if stored.kind == "run" else None,
        stored.error,
        json.loads(stored.value),
    )
