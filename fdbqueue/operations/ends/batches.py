"""Batches of jobs within a transaction: the one that ends the last job makes another item ready.

The item exists from the beginning, as a delayed one that is never due. Its first position is the id
of the batch. The jobs of the batch may be in any queue; their headers name the batch.

A batch has two rows. The definition changes when the batch closes, is cancelled or, if it is to be
so, when a job has died. The counts of jobs that were pushed and have ended change by atomic adds
only, so that neither pushes nor ends conflict with each other.
"""

from __future__ import annotations

import hashlib

from fdbqueue.layout.batches import (
    BatchCounts,
    Ending,
    Membership,
    StoredBatch,
    decode_batch,
    decode_counts,
    decode_membership,
    encode_batch,
    encode_counts,
    with_counts,
)
from fdbqueue.layout.errors import BatchClosed
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import decode_metadata, encode_metadata, header_of, with_header
from fdbqueue.operations.slots import Places
from fdbqueue.operations.waking import Waiters
from fdbqueue.types import ReadTransaction, Transaction

_COUNTED: dict[Ending, BatchCounts] = {
    "done": BatchCounts(done=1),
    "discarded": BatchCounts(done=1),
    "popped": BatchCounts(done=1),
    "dead": BatchCounts(dead=1),
    "cancelled": BatchCounts(cancelled=1),
    "removed": BatchCounts(cancelled=1),
    "expired": BatchCounts(cancelled=1),
}

_PLACES = Places()
# One for all queues: jobs of one batch that are in several queues may end in one transaction.


def get_batch(tr: ReadTransaction, layout: Layout, position: bytes) -> StoredBatch | None:
    """Return the definition of a batch, or `None`; conflict with its changes."""
    value = tr[layout.batches + position].value
    return None if value is None else decode_batch(value)


def get_counts(tr: ReadTransaction, layout: Layout, position: bytes) -> BatchCounts:
    """Return the counts of a batch. With a snapshot, the read conflicts with nothing."""
    return decode_counts(tr[layout.batch_counts + position].value)


def put_batch(tr: Transaction, layout: Layout, position: bytes, batch: StoredBatch) -> None:
    """Store the definition of a batch."""
    tr[layout.batches + position] = encode_batch(batch)


def count_pushed(tr: Transaction, layout: Layout, position: bytes, id: str, n: int) -> None:
    """Count jobs that the transaction pushes for a batch; raise `BatchClosed` unless it is open."""
    batch = get_batch(tr, layout, position)
    if batch is None or batch.stage != "open":
        raise BatchClosed(id)
    tr.add(layout.batch_counts + position, encode_counts(BatchCounts(pushed=n)))


def close(tr: Transaction, layout: Layout, now: int, position: bytes) -> bool:
    """Do one of the two steps of closing a batch; return whether there is another one.

    The first step lets no more jobs in. The second one, which has to be another transaction, ends
    the own part of the batch, and makes its item ready if all jobs have ended before.
    """
    batch = get_batch(tr, layout, position)
    if batch is None or batch.stage == "closed":
        return False
    if batch.stage == "open":
        put_batch(tr, layout, position, batch._replace(stage="closing"))
        return True
    _end_one(tr, layout, now, position, batch, BatchCounts())
    put_batch(tr, layout, position, batch._replace(stage="closed"))
    return False


def end_job(
    tr: Transaction, own: Layout, now: int, batch: bytes, ended_at: bytes, outcome: Ending
) -> None:
    """Count the end of a job of a batch; if it is the last one, make the item ready.

    Args:
        tr: The transaction that ends the job.
        own: The layout of the queue of the job.
        now: The time in milliseconds since 1970.
        batch: What the header of the job says of its batch.
        ended_at: The position of the job.
        outcome: How it has ended.
    """
    membership = decode_membership(batch)
    layout, position = membership.layout(own), membership.position
    stored = get_batch(tr, layout, position)
    if stored is None:  # its item was cancelled
        return
    if outcome == "dead" and stored.on_dead == "cancel" and not stored.cancelled:
        stored = stored._replace(cancelled=True)
        put_batch(tr, layout, position, stored)
    ended = _COUNTED[outcome]
    if stored.stage != "open":
        _end_one(tr, layout, now, position, stored, ended, ended_at)
    tr.add(layout.batch_counts + position, encode_counts(ended))


def is_cancelled(tr: ReadTransaction, own: Layout, membership: Membership) -> bool:
    """Return whether a job of this batch that has not begun is not to begin."""
    batch = get_batch(tr, membership.layout(own), membership.position)
    return batch is None or batch.cancelled


def _end_one(
    tr: Transaction,
    layout: Layout,
    now: int,
    position: bytes,
    batch: StoredBatch,
    ended: BatchCounts,
    seed: bytes = b"",
) -> None:
    """Take a place for an end in a batch that is not open, or make its item ready if it is last.

    The batch itself counts as one more job, which ends when it is closed. So with P jobs there are
    T = P + 1 ends, and this function is called in the transaction of each one that commits after
    the first step of closing. It sees m ends before its own one, by a snapshot, and either takes
    one of T - 1 places (see `Places`), or, if m = T - 1, makes the item ready.

    Proof that exactly one transaction makes it ready. P is final, because a push reads the
    definition, which the first step of closing changes: it commits before that, or never. So is
    the number of ends that commit before: they read the definition, too. All others call this
    function. By the proof of `Places`, those that take places and the ends before them never exceed
    T - 1. So at least one of the T ends makes the item ready. Such an end has seen that all others
    have ended, and nothing ends twice: at most one does.

    Several ends of one transaction take their places one after the other; each sees those before.
    """
    counts = get_counts(tr.snapshot, layout, position)
    seen = counts.ended + (batch.stage == "closed")
    if seen == counts.pushed:
        _make_ready(tr, layout, now, position, counts.plus(ended))
        return
    number = int.from_bytes(hashlib.sha256(seed).digest()[:8], "big")

    def choose(begin: int, end: int) -> int:
        # Not the first places, which conflict with the transactions that commit meanwhile.
        begin += (end - begin) // 8
        return begin + number % (end - begin)

    _PLACES.take(tr, layout.batch_places + position, seen, counts.pushed, 1, choose)


def _make_ready(
    tr: Transaction, layout: Layout, now: int, position: bytes, counts: BatchCounts
) -> None:
    """Let the item of a batch be due now, with the counts as arguments."""
    stored = tr[layout.delayed + position].value
    if stored is None:
        moved = tr[layout.moved + position].value
        stored = None if moved is None else tr[layout.delayed + moved].value
        if moved is None or stored is None:
            return
        position = moved
    (due,), value = decode_metadata(stored)
    header, payload = header_of(value)
    value = with_header(header, with_counts(payload, counts))
    tr.clear(layout.timer_key(layout.dues, due, position))
    tr[layout.delayed + position] = encode_metadata((now,), value)
    tr[layout.timer_key(layout.dues, now, position)] = b""
    Waiters(layout, layout.waiters).wake(tr, 1)
