"""The stored form of the steps of a job, and of signals."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from fdbqueue.layout.records import record_codec

StepKind: TypeAlias = Literal["step", "commit", "sleep", "wait", "run"]
"""The kind of a step: a call of a function, in a transaction or not, a sleep, a wait for a signal,
or another job."""

StepState: TypeAlias = Literal["done", "failed", "timed out", "waiting"]
"""How a step has ended; while it is waiting, the job goes on with it later."""


SKEW = 60_000
"""The milliseconds by which the clocks of clients may differ."""


class StoredStep(NamedTuple):
    """A step of a job. Times are in milliseconds since 1970.

    Attributes:
        kind: What the job does in it.
        state: Whether it has ended, and how.
        began_at: When the job first came to it.
        ended_at: When it ended; `None` until then.
        failures: How often its function has failed.
        due: When the job goes on at the latest, if it sleeps or waits; `None` for never.
        key: The key of the signal that it waits for, or the id of the job that it runs.
        error: Why it failed last, or `None`.
        value: Its result as JSON, once it is done.
        number: How many steps of the job were stored before it.
        queue: The prefix of the queue of the job that it runs; empty if that is its own.
    """

    kind: StepKind
    state: StepState
    began_at: int
    ended_at: int | None = None
    failures: int = 0
    due: int | None = None
    key: str = ""
    error: str | None = None
    value: bytes = b"null"
    number: int = 0
    queue: bytes = b""


encode_step, decode_step = record_codec(StoredStep)


class StoredSignal(NamedTuple):
    """A signal that was sent. Times are in milliseconds since 1970.

    Attributes:
        sent_at: When it was sent.
        ends: When it is forgotten.
        value: Its value as JSON.
    """

    sent_at: int
    ends: int
    value: bytes


encode_signal, decode_signal = record_codec(StoredSignal)


class NamedStep(NamedTuple):
    """A step with its name."""

    name: str
    stored: StoredStep


def is_over(due: int | None, now: int) -> bool:
    """Return whether a job that was suspended until a time, and runs again, may go on.

    The client that made the job ready has found that it is due. The clock of this one may be
    behind, and would suspend the job again and again.

    >>> is_over(10_000, 9_000), is_over(100_000, 9_000), is_over(None, 9_000)
    (True, False, False)
    """
    return due is not None and due - SKEW <= now
