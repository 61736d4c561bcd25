"""The steps of jobs, whose results are stored under the claim of the job."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from fdbqueue.database.clock import milliseconds
from fdbqueue.database.retrying import read
from fdbqueue.layout.codecs import encode_returned
from fdbqueue.layout.jobs import JobCancelled as JobCancelled
from fdbqueue.layout.jobs import NamedStep, StepKind, StepState, StoredSignal, StoredStep
from fdbqueue.layout.jobs import TooManyWaiting as TooManyWaiting
from fdbqueue.layout.values import LAST_MILLISECOND, Report, utc_time
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

PushChildren: TypeAlias = Callable[[Transaction, list[int]], list[tuple[bytes, str]]]
"""Pushes the jobs of the steps with these numbers; returns the prefixes of their queues and ids."""


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
            runs = [step.stored.queue or own for step in steps if step.stored.kind == "run"]
            names = {queue: name_of(tr, queue) for queue in {*runs}}
            return [_public(step, names.get(step.stored.queue or own)) for step in steps]

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


class ClaimedSteps:
    """The steps of one claimed job; each call is a transaction.

    Each stored step restarts the `lease`, in seconds, with the job's current `report`.
    """

    def __init__(
        self,
        store: Store[Any],
        db: Database,
        claim: Claim,
        lease: float,
        report: Callable[[], Report],
        is_told: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store = store
        self._db = db
        self._claim = claim
        self._lease = lease
        self._report = report
        self._is_told = is_told
        self._left: int | None = None  # stored steps that this run has not come to
        self._unstored: list[NamedStep] = []
        self.is_suspended = False
        """True once the job has given up its claim."""
        self.has_raised = False
        """True once this attempt has raised `JobCancelled`."""

    def find(self, name: str) -> StoredStep | None:
        """Return the step of this name, or `None`; raise `LeaseLost` or `JobCancelled`."""
        if self._left == 0 and not self._is_told():
            return None
        found, n = self._telling(lambda: read(self._db, lambda tr: self._look(tr, name)))
        self._left = (n if self._left is None else self._left) - (found is not None)
        return found

    def _look(self, tr: ReadTransaction, name: str) -> tuple[StoredStep | None, int]:
        found, header = self._store.steps.begin(tr, self._claim, name)
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
            extension = (self._claim, self._report())
            self._store.extend(self._db, extension, self._lease, cancelled_step=cancelled.step)
            self.has_raised = True
            raise

    def _change(self, body: Callable[[Transaction, int], _R]) -> _R:
        """Run `body(tr, now=now)`, which stores the steps of `add`, too."""
        result = self._telling(partial(self._store.change, self._db, body))
        self._unstored.clear()
        return result

    def add(self, name: str, step: StoredStep) -> None:
        """Store a step together with the next one."""
        self._unstored.append(NamedStep(name, step))

    def store(self, name: str, step: StoredStep) -> None:
        """Store a step; raise `LeaseLost` if another worker may have the job."""
        self._change(lambda tr, now: self._put(tr, now, NamedStep(name, step)))

    def commit(
        self, name: str, body: Callable[[Transaction], bytes], begun: StoredStep
    ) -> StoredStep:
        """Run `body(tr)` in a transaction that also stores what it returns as the result."""

        def once(tr: Transaction, now: int) -> StoredStep:
            known, _ = self._look(tr, name)
            if known is not None and known.state == "done":
                return known
            value = body(tr)
            step = begun._replace(state="done", ended_at=now, due=None, value=value)
            self._put(tr, now, NamedStep(name, step))
            return step

        return self._change(once)

    def suspend(self, name: str, step: StoredStep) -> None:
        """Store a step that waits, and give up the claim until it is due."""

        def body(tr: Transaction, now: int) -> None:
            steps = [*self._unstored, NamedStep(name, step)]
            self._store.steps.suspend(tr, now, self._claim, steps, name, step.due)

        self._change(body)
        self.is_suspended = True

    def wait(self, name: str, step: StoredStep, signal: str) -> StoredStep | None:
        """Return a wait for a signal if it has ended; otherwise suspend the job."""

        def body(tr: Transaction, now: int) -> StoredStep | None:
            steps = [*self._unstored, NamedStep(name, step)]
            extension = (self._claim, self._report())
            return self._store.steps.wait(tr, now, extension, steps, signal, lease=self._lease)

        ended = self._change(body)
        self.is_suspended = ended is None
        return ended

    @property
    def owner(self) -> bytes:
        """The prefix of the queue of the job."""
        return self._store.layout.subspace.key()

    @property
    def job(self) -> bytes:
        """The first position of the job."""
        reference: bytes = self._store.codec.reference(self._claim.item)
        return reference

    def run(self, names: list[str], batch: bytes, push: PushChildren) -> list[StoredStep] | None:
        """Return the steps that run other jobs if all have ended; otherwise suspend the job.

        `push` pushes these jobs, as part of the same transaction.
        """

        def body(tr: Transaction, now: int) -> list[StoredStep] | None:
            push_in = partial(push, tr)
            return self._store.steps.run(
                tr, now, self._claim, self._unstored, names, batch, push_in
            )

        if names and self._is_told():
            self.find(names[0])
        ended = self._telling(partial(self._store.change, self._db, body))
        self.is_suspended = ended is None
        if ended is not None and self._left is not None:
            self._left -= len(ended)
        return ended

    def _put(self, tr: Transaction, now: int, step: NamedStep) -> None:
        steps = [*self._unstored, step]
        extension = (self._claim, self._report())
        if self._store.steps.store(tr, now, extension, steps, lease=self._lease):
            self._left = -1  # so each later step is looked for


def _public(step: NamedStep, queue: str | None) -> Step:
    name, stored = step
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
