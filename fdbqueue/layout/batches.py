"""The stored form of batches: jobs whose ends another job waits for."""

from __future__ import annotations

import functools
import json
from typing import Any, Literal, NamedTuple, TypeAlias

from fdb import tuple as fdb_tuple
from fdb.subspace_impl import Subspace

from fdbqueue.layout.codecs import json_bytes
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import NO_HEADER, Header, decode_fields, encode_fields
from fdbqueue.types import OnDead

Ending: TypeAlias = Literal[
    "done", "discarded", "cancelled", "dead", "removed", "expired", "popped"
]
"""The ways in which an item ends, or becomes a dead letter."""

Stage: TypeAlias = Literal["open", "closing", "closed"]

BatchKind: TypeAlias = Literal["then", "after", "run"]
"""The one that waits for a batch: the item that follows it, which gets its counts; an item that
runs only if all others were done; or a step of a job, which gets their results."""


class End(NamedTuple):
    """The end of an item.

    Attributes:
        outcome: How it ended.
        returned: What its handler returned, as JSON, or `None`.
        error: Why it was discarded or became a dead letter, if that is known.
    """

    outcome: Ending
    returned: bytes | None = None
    error: str | None = None


class StoredBatch(NamedTuple):
    """The definition of a batch, which changes only when the batch closes or is cancelled.

    Attributes:
        on_dead: What happens to its other jobs when one becomes a dead letter.
        stage: Whether jobs can be added. While it is closing they cannot, but the batch has not
            ended its own part yet: it counts as one more job, which ends when the batch is closed.
        cancelled: Whether its jobs that have not begun are not to begin; or, of the kind `"after"`,
            the item that waits for it.
        kind: What waits for it.
        job: The first position of the job that waits for it in a step; otherwise empty.
    """

    on_dead: OnDead
    stage: Stage = "open"
    cancelled: bool = False
    kind: BatchKind = "then"
    job: bytes = b""


def encode_batch(batch: StoredBatch) -> bytes:
    """Return the value of a batch.

    >>> decode_batch(encode_batch(StoredBatch("cancel")))
    StoredBatch(on_dead='cancel', stage='open', cancelled=False, kind='then', job=b'')
    """
    return fdb_tuple.pack(batch)


def decode_batch(value: bytes) -> StoredBatch:
    """Return the batch with this value."""
    return StoredBatch(*fdb_tuple.unpack(value))


class BatchCounts(NamedTuple):
    """How many jobs of a batch were pushed, and how many have ended in which way."""

    pushed: int = 0
    done: int = 0
    dead: int = 0
    cancelled: int = 0

    @property
    def ended(self) -> int:
        """How many have ended in any way."""
        return self.done + self.dead + self.cancelled

    def plus(self, other: BatchCounts) -> BatchCounts:
        """Return the sum of both."""
        return BatchCounts(*map(sum, zip(self, other)))


def encode_counts(counts: BatchCounts) -> bytes:
    """Return a change of the counts of a batch, for atomic `add`.

    >>> decode_counts(encode_counts(BatchCounts(pushed=3, done=1)))
    BatchCounts(pushed=3, done=1, dead=0, cancelled=0)
    """
    return encode_fields(counts)


def decode_counts(value: bytes | None) -> BatchCounts:
    """Return the counts of a batch; zeros for a missing counter."""
    return BatchCounts(*decode_fields(value or b"", len(BatchCounts._fields)))


class Membership(NamedTuple):
    """A batch in which a job counts when it ends, as its header or the row of a follower names it.

    Attributes:
        subspace: The prefix of the queue that the batch is in; empty if that of the job.
        id: The first position of the item that waits for the batch; random bytes if a step does.
        cancels: Whether a job that dies cancels the others.
        step: The name of the step that gets the result of the job; empty if none does.
    """

    subspace: bytes
    id: bytes
    cancels: bool = False
    step: str = ""

    def layout(self, own: Layout) -> Layout:
        """Return the layout of the queue that the batch is in, given that of the job."""
        return _layout_of(self.subspace) if self.subspace else own


@functools.lru_cache(64)
def _layout_of(subspace: bytes) -> Layout:
    return Layout(Subspace(rawPrefix=subspace))


def encode_membership(membership: Membership) -> bytes:
    """Return what the header of a job, or the row of a follower, says of a batch.

    >>> membership = Membership(b"q", b"id", step="resize")
    >>> memberships_of(encode_membership(membership)) == [membership]
    True
    """
    return fdb_tuple.pack(membership)


def memberships_of(batch: bytes) -> list[Membership]:
    """Return the batch that `encode_membership` has encoded; none for the bytes of none."""
    return [Membership(*fdb_tuple.unpack(batch))] if batch else []


def may_be_member(item: object) -> bool:
    """Return false if an item that was claimed is known to count in no batch."""
    metadata = getattr(item, "metadata", None)
    return metadata is not NO_HEADER and not (metadata and not Header(*metadata).batch)


def with_counts(payload: bytes, counts: BatchCounts) -> bytes:
    """Return the payload of a job with the numbers of ends as its keyword arguments.

    >>> with_counts(b'{"job":"report","kwargs":{"of":"May"}}', BatchCounts(3, 2, 1))
    b'{"job":"report","kwargs":{"of":"May","done":2,"dead":1,"cancelled":0}}'
    """
    value: Any = json.loads(payload)
    ends = {"done": counts.done, "dead": counts.dead, "cancelled": counts.cancelled}
    return json_bytes({**value, "kwargs": {**value.get("kwargs", {}), **ends}})
