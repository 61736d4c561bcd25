"""Batches of jobs: the last job to end makes another item ready.

That item is delayed and never due. Either it follows the jobs of the batch, and its first position
is the batch's id, or it is a job that waits for others in its steps. The counts of a batch change
by atomic adds, without conflicts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain

from fdbqueue.layout.batches import (
    BatchCounts,
    End,
    Ending,
    Membership,
    StoredBatch,
    decode_batch,
    decode_counts,
    encode_batch,
    encode_counts,
    linking_ranges,
    memberships_of,
    refer,
    with_counts,
    with_memberships,
)
from fdbqueue.layout.items import StoredItem
from fdbqueue.layout.jobs import BatchClosed, StoredStep, decode_step, encode_step
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import (
    NO_HEADER,
    PIECES,
    UNDECODABLE,
    Header,
    decode_metadata,
    encode_metadata,
    header_of,
    pieces_id,
    with_header,
)
from fdbqueue.operations.limits.places import take_places
from fdbqueue.operations.parallel import read_all
from fdbqueue.operations.payloads import read_payload, write_payload
from fdbqueue.operations.transitions import Change
from fdbqueue.operations.waking import wake
from fdbqueue.types import ReadTransaction, Transaction

_COUNTED: dict[Ending, str] = dict.fromkeys(("done", "discarded", "popped"), "done")
_COUNTED["dead"] = "dead"
"""The counts of the ends of jobs; the others count as cancelled."""

_FAILED: dict[Ending, str] = {
    "discarded": "the job was discarded",
    "popped": "the job was popped",
    "dead": "the job became a dead letter",
    "cancelled": "the job was cancelled",
    "removed": "the job was cancelled",
    "expired": "the job has expired",
}
"""The errors of steps with jobs that ended without one."""


def get_batch(tr: ReadTransaction, layout: Layout, position: bytes) -> StoredBatch | None:
    """Return a batch, or `None`; conflict with its changes."""
    value = tr[layout.batches + position].value
    return None if value is None else decode_batch(value)


def get_counts(tr: ReadTransaction, layout: Layout, position: bytes) -> BatchCounts:
    """Return the counts of a batch."""
    return decode_counts(tr[layout.batch_counts + position].value)


def put_batch(tr: Transaction, layout: Layout, position: bytes, batch: StoredBatch) -> None:
    """Store a batch."""
    tr[layout.batches + position] = encode_batch(batch)


def begin_closed(
    tr: Transaction, layout: Layout, id: bytes, batch: StoredBatch, pushed: int
) -> None:
    """Store a batch with a fixed number of jobs."""
    put_batch(tr, layout, id, batch._replace(stage="closed"))
    tr[layout.batch_counts + id] = encode_counts(BatchCounts(pushed=pushed))


def clear_batch(tr: Transaction, layout: Layout, id: bytes) -> None:
    """Delete the rows of a batch."""
    tr.clear(layout.batches + id)
    tr.clear(layout.batch_counts + id)


def count_pushed(tr: Transaction, layout: Layout, position: bytes, id: str, n: int) -> None:
    """Count pushed jobs of a batch; raise `BatchClosed`."""
    batch = get_batch(tr, layout, position)
    if batch is None or batch.stage != "open":
        raise BatchClosed(id)
    tr.add(layout.batch_counts + position, encode_counts(BatchCounts(pushed=n)))


def close(tr: Transaction, layout: Layout, now: int, position: bytes) -> bool:
    """Do one of the two steps of closing a batch; return whether another follows.

    The first lets no more jobs in. The second, in another transaction, ends the batch's own part.
    """
    batch = get_batch(tr, layout, position)
    if batch is None or batch.stage == "closed":
        return False
    if batch.stage == "open":
        put_batch(tr, layout, position, batch._replace(stage="closing"))
        return True
    counts = get_counts(tr.snapshot, layout, position)
    _end_some(tr, layout, now, position, batch, counts, BatchCounts())
    put_batch(tr, layout, position, batch._replace(stage="closed"))
    return False


def note_ends(own: Layout, tr: Transaction, now: int, changes: Sequence[Change]) -> None:
    """Count the items that end in the batches to which they belong."""
    for _, before, _, end in changes:
        if before is not None and end is not None:
            note_end(tr, own, now, before.item, end)


def note_end(tr: Transaction, own: Layout, now: int, item: StoredItem, end: End) -> None:
    """Count an item's end in its batches, and delete the rows of its followers.

    Removing a dead letter or a done item does not count; a retried dead letter can end again.
    """
    header, position = item.header, own.position(item.key)
    if header is NO_HEADER:
        return
    memberships = all_memberships(tr, own, position, header)
    if header.followers:
        tr.clear_range(*own.range_of(own.owned_prefix(own.followers, position)))
    count_end(tr, own, now, memberships, position, end)


def all_memberships(
    tr: ReadTransaction, own: Layout, position: bytes, header: Header
) -> list[Membership]:
    """Return the batches that count an item's end: its own, and its followers'."""
    memberships = memberships_of(header.batch)
    if header.followers:
        for row in tr.get_range(*own.range_of(own.owned_prefix(own.followers, position))):
            memberships += memberships_of(row.value)
    return memberships


def count_end(
    tr: Transaction,
    own: Layout,
    now: int,
    memberships: list[Membership],
    ended_at: bytes,
    end: End,
) -> None:
    """Count the ends of jobs in their batches; make a batch's item ready with its last end.

    `own` is the layout of the jobs' queue, `ended_at` the position of one of them.
    """
    of_batch: dict[tuple[bytes, bytes], list[Membership]] = {}
    for membership in memberships:
        of_batch.setdefault((membership.subspace, membership.id), []).append(membership)
    for (_, id), members in of_batch.items():
        layout = members[0].layout(own)
        batch = get_batch(tr, layout, id)
        if batch is None:  # its item was cancelled
            continue
        counts = None if batch.stage == "open" else get_counts(tr.snapshot, layout, id)
        if counts is not None and batch.stage == "closed" and counts.ended >= counts.pushed:
            continue  # all of its jobs have ended: one that was restored later ends again
        for membership in members:
            if membership.step:
                _store_result(tr, layout, now, batch.job, membership.step, end)
        ended = BatchCounts(**{_COUNTED.get(end.outcome, "cancelled"): len(members)})
        is_wrong = not ended.done if batch.kind == "after" else ended.dead
        if is_wrong and batch.on_dead == "cancel" and not batch.cancelled:
            batch = batch._replace(cancelled=True)
            put_batch(tr, layout, id, batch)
        is_last = counts is not None and _end_some(
            tr, layout, now, id, batch, counts, ended, ended_at
        )
        if is_last and batch.kind == "run":
            clear_batch(tr, layout, id)
        else:
            tr.add(layout.batch_counts + id, encode_counts(ended))


_GONE = End("cancelled", error="the job is gone: its queue was dropped or cleared")
_CHUNK_ROWS, _CHUNK_BYTES = 1_000, 1_000_000
_MAX_ENDED = 50  # batches: their items, of up to 100,000 bytes each, are stored again


def leave_batches(tr: Transaction, own: Layout, now: int, after: bytes) -> bytes | None:
    """Before a queue is emptied, count its jobs as cancelled in other queues' batches.

    Their rows forget these batches, so each job counts once. Pass the result, the last key seen, as
    the next `after` (at first empty), until it is `None`.
    """
    if not tr[own.linked].present():
        return None
    gone: list[Membership] = []
    batches: set[tuple[bytes, bytes]] = set()

    def leave(membership: Membership) -> Membership:
        if not membership.subspace:
            return membership
        gone.append(membership)
        batches.add((membership.subspace, membership.id))
        return refer(membership, None)

    last: bytes | None = None
    n = size = 0
    begin = after + b"\x00"
    ranges = [(max(begin, first), end) for first, end in linking_ranges(own) if after < end]
    for row in chain.from_iterable(tr.snapshot.get_range(*each) for each in ranges):
        if n == _CHUNK_ROWS or size >= _CHUNK_BYTES or len(batches) == _MAX_ENDED:
            last = after
            break
        n, size, after = n + 1, size + len(row.key) + len(row.value), row.key
        with suppress(*UNDECODABLE):  # a queue that cannot be read can be dropped
            value = with_memberships(row.key[len(own.subspace.key()) :], row.value, leave)
            if value != row.value:
                tr.add_read_conflict_key(row.key)
                tr[row.key] = value
    count_end(tr, own, now, gone, own.subspace.key(), _GONE)
    return last


def read_steps(tr: ReadTransaction, layout: Layout, position: bytes) -> dict[str, StoredStep]:
    """Return an item's steps by name, in the order of their storage."""
    rows = tr.get_range(*layout.range_of(layout.owned_prefix(layout.steps, position)))
    steps = [
        (layout.unpack_entry(layout.steps, row.key)[1], decode_step(row.value)) for row in rows
    ]
    return dict(sorted(steps, key=lambda step: step[1].number))


def end_batch(
    tr: Transaction, layout: Layout, now: int, id: bytes, batch: StoredBatch, counts: BatchCounts
) -> None:
    """Make a batch's item ready, after the end of all its jobs."""
    tr.add_read_conflict_key(layout.batch_counts + id)
    make_ready(tr, layout, now, id, batch, counts)
    if batch.kind == "run":
        clear_batch(tr, layout, id)


def run_again(tr: Transaction, layout: Layout, now: int, position: bytes) -> None:
    """Make an item ready that waits for nothing; its waiting steps fail."""
    for name, step in read_steps(tr, layout, position).items():
        if step.awaits_job:
            _store_result(tr, layout, now, position, name, _GONE)
    delay, value = decode_metadata(tr[layout.delayed + position].value or b"")
    header, content = header_of(value)
    value = with_header(header._replace(awaits=False), content)  # its own batch is gone
    tr[layout.delayed + position] = encode_metadata(delay, value)
    make_ready(tr, layout, now, position, StoredBatch("continue", kind="run"), BatchCounts())


def is_cancelled(tr: ReadTransaction, own: Layout, header: Header, first: bytes) -> bool:
    """Return whether an item's own batch, or an awaited one, keeps it from beginning."""
    batches = [each for each in memberships_of(header.batch) if each.cancels]
    awaited = get_batch(tr, own, first) if header.awaits else None
    if awaited is not None and awaited.kind == "after" and awaited.cancelled:
        return True
    rows = read_all(tr, [each.layout(own).batches + each.id for each in batches])
    return any(value is None or decode_batch(value).cancelled for value in rows)


def _store_result(
    tr: Transaction, layout: Layout, now: int, job: bytes, step: str, end: End
) -> None:
    key = layout.step_key(job, step)
    value = tr[key].value
    if value is None:  # the job that waited was cancelled
        return
    known = decode_step(value)
    if end.outcome == "done":
        known = known._replace(state="done", value=end.returned or b"null")
    else:
        known = known._replace(state="failed", error=end.error or _FAILED[end.outcome])
    tr[key] = encode_step(known._replace(ended_at=now))


def _end_some(
    tr: Transaction,
    layout: Layout,
    now: int,
    position: bytes,
    batch: StoredBatch,
    counts: BatchCounts,
    ended: BatchCounts,
    seed: bytes = b"",
) -> bool:
    """Take places for ends in a batch that is not open, or make its item ready if they are last.

    Return whether they are last. Without a job in `ended`, the batch ends its own part now.
    `counts` come from a snapshot read.

    The batch counts as one more job, which ends when it is closed: P jobs have T = P + 1 ends. Each
    end that commits after the first step of closing calls this function. It sees m earlier ends,
    and either takes one of T - 1 places (`take_places`), or, if m = T - 1, makes the item ready.

    Proof that exactly one transaction makes it ready: P, and the number of ends before the first
    step of closing, are final, because pushes and ends read the definition, which that step
    changes. The ends that take places and the ends before them never exceed T - 1, so at least one
    of the T ends makes the item ready. Such an end has seen all others, and nothing ends twice, so
    at most one does. Several ends of one transaction see the ends before them.
    """
    seen, n = counts.ended + (batch.stage == "closed"), ended.ended or 1
    if seen + n > counts.pushed:
        make_ready(tr, layout, now, position, batch, counts.plus(ended))
        return True
    number = int.from_bytes(hashlib.sha256(seed).digest()[:8], "big")

    def choose(begin: int, end: int) -> int:
        # Not the first places, which conflict with the transactions that commit meanwhile.
        begin += (end - begin) // 8
        return begin + number % (end - begin)

    take_places(tr, layout.batch_places + position, seen, counts.pushed, n, choose)
    return False


def make_ready(
    tr: Transaction, layout: Layout, now: int, id: bytes, batch: StoredBatch, counts: BatchCounts
) -> None:
    """Make a batch's item due now; an item that follows the batch gets the counts."""
    position = batch.job or id
    stored = tr[layout.delayed + position].value
    if stored is None:
        moved = tr[layout.moved + position].value
        stored = None if moved is None else tr[layout.delayed + moved].value
        if moved is None or stored is None:
            return
        position = moved
    (due,), value = decode_metadata(stored)
    header, content = header_of(value)
    if batch.kind == "then":
        own = layout.unpack_item_key(layout.items + position)[-1]
        random = pieces_id(content) if content.startswith(PIECES) else own
        payload = with_counts(read_payload(tr, layout, content), counts)
        value = write_payload(tr, layout, random, payload, header)
    tr.clear(layout.timer_key(layout.dues, due, position))
    tr[layout.delayed + position] = encode_metadata((now,), value)
    tr[layout.timer_key(layout.dues, now, position)] = b""
    wake(tr, layout.waiters, 1)
