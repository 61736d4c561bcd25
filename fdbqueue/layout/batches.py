"""The stored form of batches."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

from fdb.subspace_impl import Subspace

from fdbqueue.layout.codecs import json_bytes
from fdbqueue.layout.jobs import decode_step, encode_step
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import (
    HEADER_MARK,
    NO_HEADER,
    ROW_METADATA,
    Header,
    decode_fields,
    decode_metadata,
    encode_fields,
    encode_metadata,
    header_of,
    record_codec,
    with_header,
)
from fdbqueue.types import OnDead

Ending: TypeAlias = Literal[
    "done", "discarded", "cancelled", "dead", "removed", "expired", "popped"
]

Stage: TypeAlias = Literal["open", "closing", "closed"]

BatchKind: TypeAlias = Literal["then", "after", "run"]
"""The waiter: an item that gets the counts, an item that runs only if all jobs were done, or a step
that gets the results."""


class End(NamedTuple):
    """The end of an item; `returned` is JSON."""

    outcome: Ending
    returned: bytes | None = None
    error: str | None = None


class StoredBatch(NamedTuple):
    """The definition of a batch, which changes only when it closes or is cancelled.

    Attributes:
        stage: A closing batch takes no more jobs, and counts as one job itself.
        cancelled: Whether its jobs, or the waiting item of the kind `"after"`, must not begin.
        job: The first position of the job whose step waits for it.
        jobs: The first 100 jobs that the item follows: queue prefix (empty for its own) and first
            position.
    """

    on_dead: OnDead
    stage: Stage = "open"
    cancelled: bool = False
    kind: BatchKind = "then"
    job: bytes = b""
    jobs: tuple[tuple[bytes, bytes], ...] = ()


encode_batch, decode_batch = record_codec(StoredBatch)


class BatchCounts(NamedTuple):
    """The numbers of a batch's jobs: pushed, and ended in each way."""

    pushed: int = 0
    done: int = 0
    dead: int = 0
    cancelled: int = 0

    @property
    def ended(self) -> int:
        """The number ended in any way."""
        return self.done + self.dead + self.cancelled

    def plus(self, other: BatchCounts) -> BatchCounts:
        """Return the sum."""
        return BatchCounts(*map(sum, zip(self, other)))


encode_counts: Callable[[BatchCounts], bytes] = encode_fields
"""Returns a change of a batch's counts, for atomic `add`."""


def decode_counts(value: bytes | None) -> BatchCounts:
    """Return a batch's counts, or zeros."""
    return BatchCounts(*decode_fields(value or b"", len(BatchCounts._fields)))


class Membership(NamedTuple):
    """A batch that counts a job's end, as stored in a header or for a follower.

    Attributes:
        subspace: The prefix of the batch's queue; empty for the job's own.
        id: The first position of the waiting item; random for a step.
        cancels: Whether a dead job cancels the others.
        step: The step that gets the job's result, of the job at the first position `job`.
    """

    subspace: bytes
    id: bytes
    cancels: bool = False
    step: str = ""
    job: bytes = b""

    def layout(self, own: Layout) -> Layout:
        """Return the layout of the batch's queue."""
        return layout_at(self.subspace, own)


def layout_at(prefix: bytes, own: Layout) -> Layout:
    """Return the layout of a queue's prefix; `own` for an empty one."""
    return _layout_of(prefix) if prefix else own


@functools.lru_cache(64)
def _layout_of(prefix: bytes) -> Layout:
    return Layout(Subspace(rawPrefix=prefix))


encode_membership, _decode_membership = record_codec(Membership)


def memberships_of(batch: bytes) -> list[Membership]:
    """Decode the batch of a header or follower, if any."""
    return [_decode_membership(batch)] if batch else []


def is_link(batch: bytes) -> bool:
    """Return whether a job counts in another queue's batch."""
    return any(each.subspace for each in memberships_of(batch))


def may_be_member(item: object) -> bool:
    """Return false if a claimed item counts in no batch."""
    metadata = getattr(item, "metadata", None)
    return metadata is not NO_HEADER and not (metadata and not Header(*metadata).batch)


def with_counts(payload: bytes, counts: BatchCounts) -> bytes:
    """Return a job's payload with the counts as keyword arguments."""
    value: Any = json.loads(payload)
    ends = {"done": counts.done, "dead": counts.dead, "cancelled": counts.cancelled}
    return json_bytes({**value, "kwargs": {**value.get("kwargs", {}), **ends}})


# References to batches of other queues


_WITH_METADATA = tuple(_layout_of(b"").prefix_of[state] for state in ROW_METADATA)

Change = Callable[[Membership], Membership]


def with_memberships(key: bytes, value: bytes, change: Change) -> bytes:
    """Map a row's references to batches; return its value. The key lacks its queue's prefix."""

    def changed(batch: bytes) -> bytes:
        (membership,) = memberships_of(batch)
        new = change(membership)
        return batch if new == membership else encode_membership(new)

    def of_item(value: bytes) -> bytes:
        header, rest = header_of(value)
        batch = header.batch and changed(header.batch)
        same = batch == header.batch
        return value if same else with_header(header._replace(batch=batch), rest)

    if key.startswith(Layout.followers):
        return changed(value)
    if HEADER_MARK not in value:
        return value
    if key.startswith(Layout.items):
        return of_item(value)
    if key.startswith(_WITH_METADATA):
        metadata, item = decode_metadata(value)
        return encode_metadata(metadata, of_item(item))
    return value


def refer(membership: Membership, subspace: bytes | None) -> Membership:
    """Return a reference to a batch by another prefix, or to none."""
    if subspace is None:
        # A follower keeps its row, because a header counts it. No batch of its queue has the id.
        return membership._replace(subspace=b"", cancels=False)
    return membership._replace(subspace=subspace)


def with_queues(key: bytes, value: bytes, other: Callable[[bytes], bytes | None]) -> bytes:
    """Map a row's references to other queues; `other` returns a queue's new prefix, if any."""

    def changed(membership: Membership) -> Membership:
        of = membership.subspace
        return refer(membership, other(of)) if of else membership

    def shown(queue: bytes) -> bytes:
        return (queue and other(queue)) or queue

    if key.startswith(Layout.batches):
        batch = decode_batch(value)
        jobs = tuple((shown(queue), first) for queue, first in batch.jobs)
        return encode_batch(batch._replace(jobs=jobs))
    if key.startswith(Layout.steps):
        step = decode_step(value)
        return encode_step(step._replace(queue=shown(step.queue))) if step.queue else value
    return with_memberships(key, value, changed)


def linking_ranges(layout: Layout) -> list[tuple[bytes, bytes]]:
    """Return the ranges of rows that may refer to a batch, in order."""
    prefixes = layout.items, layout.claims, layout.delayed, layout.followers
    return sorted(map(layout.range_of, prefixes))
