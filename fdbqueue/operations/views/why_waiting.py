"""The reason why an item waits or is not handed out, and the job that runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from fdbqueue.errors import unknown_job
from fdbqueue.layout.batches import StoredBatch, layout_at, memberships_of
from fdbqueue.layout.items import ItemRow, StoredItem
from fdbqueue.layout.jobs import StoredStep, decode_step
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import NEVER, decode_count, utc_time
from fdbqueue.operations.limits.rates import QueueRate
from fdbqueue.operations.limits.turns import read_settings
from fdbqueue.operations.maintainers.batches import get_batch, get_counts
from fdbqueue.operations.names import name_of
from fdbqueue.operations.views.groups import held_by
from fdbqueue.types import (
    FailedAttempt,
    ItemHeldBy,
    JobRef,
    Options,
    ReadTransaction,
    StoredJob,
    WaitsFor,
)

_MAX_JOBS = 100

MAX_AHEAD = 100
"""How many items of its group that are ahead of an item are counted."""


def begin_held(
    tr: ReadTransaction, layout: Layout, rate: QueueRate, item: StoredItem
) -> Callable[[Options | None], ItemHeldBy | None]:
    """Start to read what holds the group of a ready item back.

    The reads are snapshot reads: claims of other items change the counters all the time.

    Returns:
        A function that waits for it and returns what holds the item back, given the options of the
        queue. Cost: one read for the item of a group, one for the concurrency of the queue, and one
        for its rate.
    """
    reads: ReadTransaction = getattr(tr, "snapshot", tr)
    group = item.level.group
    held = None if group is None else reads[layout.group_key(layout.held_groups, group)]

    def finish(options: Options | None) -> ItemHeldBy | None:
        if options is not None and options.paused:
            return "queue_paused"
        limit = None if options is None else options.concurrency
        taken = layout.slots + layout.slot_of_queue
        if limit is not None and decode_count(reads[taken].value) >= limit:
            return "queue_concurrency"
        if rate.is_used_up(reads, options):
            return "queue_rate"
        if group is None or held is None or held.value is None:
            return None
        running = decode_count(reads[layout.group_key(layout.group_slots, group)].value)
        why = held_by(read_settings(reads, layout, group), running, held.value)
        return cast(ItemHeldBy, f"group_{why}")

    return finish


def begin_ahead(tr: ReadTransaction, item: StoredItem) -> Callable[[], int | None]:
    """Start to count the items of its group that are ahead of a ready item in its priority."""
    if item.level.group is None:
        return lambda: None
    reads: ReadTransaction = getattr(tr, "snapshot", tr)
    rows = reads.get_range(item.level.begin, item.key, limit=MAX_AHEAD)
    return lambda: len([*rows])


def waits_for(
    tr: ReadTransaction,
    own: Layout,
    found: ItemRow,
    job: StoredJob | None,
    failed: Sequence[FailedAttempt],
) -> WaitsFor | None:
    """Return what an item waits for if it is delayed or no worker knows its job; else `None`.

    Cost: none for most items. A read for a job that is suspended in a step, two for one that waits
    for a batch, and a range read of its steps for one that runs others; two reads for the name of
    each other queue.

    Args:
        tr: A transaction.
        own: The layout of the queue.
        found: The item.
        job: The job that is its value, if it is one.
        failed: Its failed attempts, as far as they are kept.
    """
    header = found.item.header
    if found.state not in ("ready", "delayed"):
        return None
    if header.unknown is not None and job is not None:
        return WaitsFor("worker", unknown_job(job.name, job.version))
    if found.state == "ready":
        return None
    position = own.position(found.key)
    first = header.origin or position
    if header.awaits and found.due == NEVER:
        batch = get_batch(tr, own, first)
        return None if batch is None else _waits_for_batch(tr, own, first, batch)
    if header.step:
        value = tr[own.step_key(position, header.step)].value
        if value is not None:
            return _waits_in_step(tr, own, found, decode_step(value))
    has_failed = not failed or utc_time(header.since or 0) == failed[-1].ended_at
    if header.attempts and has_failed:
        return WaitsFor("retry", "its last attempt failed, and it waits for the next one")
    return WaitsFor("time", "its delay is not over")


def parent_of(tr: ReadTransaction, own: Layout, found: ItemRow) -> JobRef | None:
    """Return the job that runs an item in a step, whether that has ended or not, or `None`."""
    for each in memberships_of(found.item.header.batch):
        if each.job:
            return _ref(tr, each.layout(own), each.job, each.step)
    return None


def _ref(tr: ReadTransaction, layout: Layout, first: bytes, step: str | None = None) -> JobRef:
    name = name_of(tr, layout.subspace.key())
    return JobRef(name, layout.item_id(layout.items + first), step)


def _waits_for_batch(
    tr: ReadTransaction, own: Layout, id: bytes, batch: StoredBatch
) -> WaitsFor | None:
    counts = get_counts(tr, own, id)
    left = counts.pushed - counts.ended
    if batch.kind == "then":
        of = f"{left:,} of {counts.pushed:,} jobs have not ended"
        is_open = ", and the batch is not closed" if batch.stage == "open" else ""
        why = f"it runs at the end of a batch: {of}{is_open}"
        return WaitsFor("batch", why, left=left)
    jobs: list[JobRef] = []
    for prefix, first in batch.jobs:
        layout = layout_at(prefix, own)
        if left >= len(batch.jobs) or _is_followed(tr, own, layout, first, id):
            jobs.append(_ref(tr, layout, first))
    return WaitsFor("jobs", f"it follows {_jobs(left)} not ended", jobs=tuple(jobs), left=left)


def _is_followed(tr: ReadTransaction, own: Layout, layout: Layout, first: bytes, id: bytes) -> bool:
    """Return whether the item of a batch still follows the item with this first position."""
    rows = tr.get_range(*layout.followers_range(first))
    return any(
        each.id == id and each.layout(layout).subspace.key() == own.subspace.key()
        for row in rows
        for each in memberships_of(row.value)
    )


def _waits_in_step(tr: ReadTransaction, own: Layout, found: ItemRow, step: StoredStep) -> WaitsFor:
    header, name = found.item.header, found.item.header.step
    if step.kind == "wait" and header.waits:
        signal, key = own.unpack_signal(header.waits)
        of = f" with the key {key!r}" if key else ""
        return WaitsFor("signal", f"it waits for the signal {signal!r}{of}", name, signal, key)
    if step.kind == "run":
        prefix = own.owned_prefix(own.steps, own.position(found.key))
        steps = [decode_step(row.value) for row in tr.get_range(*own.range_of(prefix))]
        left = [each for each in steps if each.kind == "run" and each.state == "waiting"]
        queues = {queue: layout_at(queue, own) for queue in {each.queue for each in left}}
        names = {queue: name_of(tr, each.subspace.key()) for queue, each in queues.items()}
        jobs = [JobRef(names[each.queue], each.key) for each in left[:_MAX_JOBS]]
        why = f"it runs {_jobs(len(left))} not ended"
        return WaitsFor("children", why, name, jobs=tuple(jobs), left=len(left))
    if step.kind == "sleep":
        return WaitsFor("time", f"it sleeps in the step {name!r}", name)
    return WaitsFor("retry", f"the step {name!r} failed, and waits for its next attempt", name)


def _jobs(n: int) -> str:
    return "a job that has" if n == 1 else f"{n:,} jobs that have"
