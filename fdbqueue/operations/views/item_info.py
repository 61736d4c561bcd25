"""Everything about an item, why it waits, and whether a search finds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar, cast

from fdbqueue.errors import UndecodableItem, unknown_job
from fdbqueue.layout.batches import StoredBatch, layout_at, memberships_of
from fdbqueue.layout.codecs import decode_json
from fdbqueue.layout.items import Filter, ItemRow, StoredItem
from fdbqueue.layout.jobs import StoredStep, decode_step
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.rows import RowCodec
from fdbqueue.layout.values import NEVER, UUID_SIZE, Lease, decode_count, time_of, utc_time
from fdbqueue.operations.failures import begin_attempts, begin_last_error
from fdbqueue.operations.items import Items
from fdbqueue.operations.limits.rates import QueueRate
from fdbqueue.operations.limits.turns import read_settings
from fdbqueue.operations.maintainers.batches import get_batch, get_counts, read_steps
from fdbqueue.operations.names import name_of
from fdbqueue.operations.payloads import read_payload
from fdbqueue.operations.timers import begin_lease
from fdbqueue.operations.views.groups import held_by
from fdbqueue.types import (
    ENDED,
    FailedAttempt,
    Item,
    ItemHeldBy,
    ItemInfo,
    JobRef,
    Options,
    Progress,
    ReadTransaction,
    StoredJob,
    Task,
    WaitsFor,
    job_of,
)

_T = TypeVar("_T", bound=Item | Task)

_MAX_JOBS = 100  # that an item waits for are named
_MAX_AHEAD = 100  # items of its group that are ahead of an item are counted


def _client_of(found: ItemRow, lease: Lease | None) -> str | None:
    if found.finished_at:
        return found.client
    if found.state != "claimed":
        return None
    return lease.client if lease else ""


def _progress(lease: Lease | None) -> Progress | None:
    if lease is None or lease.report.fraction is None:
        return None
    return Progress(lease.report.fraction, lease.report.message, utc_time(lease.report.at))


class ItemInfos(Generic[_T]):
    """Everything about the items of one queue."""

    def __init__(self, items: Items, codec: RowCodec[_T], kind: str | None) -> None:
        self._layout = items.layout
        self._items = items
        self._codec = codec
        self._kind = kind

    def decode(self, tr: ReadTransaction, item: StoredItem) -> _T:
        """Return a stored item as its user sees it; raise `UndecodableItem`."""
        return self._codec.decode(item, read_payload(tr, self._layout, item.content))

    def decoded_if_possible(self, tr: ReadTransaction, found: ItemRow) -> _T | None:
        """Return an item; `None` if it cannot be decoded."""
        with suppress(UndecodableItem):
            return self.decode(tr, found.item)
        return None

    def begin(
        self, tr: ReadTransaction, found: ItemRow, counts_ahead: bool = False
    ) -> Callable[[], ItemInfo]:
        """Start to read everything about an item."""
        state, key, header = found.state, found.key, found.item.header
        is_done = found.finished_at > 0
        position = self._layout.position(key)
        expires = None if state in ENDED else header.expires
        returned = tr[self._layout.returned + position] if is_done else None
        claimed = time_of(found.token[:UUID_SIZE])
        if is_done:
            claimed = None if found.started_at is None else utc_time(found.started_at)
        begun_lease = begin_lease(tr, self._layout, found)
        begun_attempts = begin_attempts(tr, self._layout, position)
        begun_options = self._items.options.begin_read(getattr(tr, "snapshot", tr))
        begun_hold = begun_ahead = None
        if state == "ready":
            begun_hold = _begin_held(tr, self._layout, self._items.rate, found.item)
            if counts_ahead and found.item.level.group is not None:
                begun_ahead = _begin_ahead(tr, found.item)

        def finish() -> ItemInfo:
            options, lease, failed = begun_options(), begun_lease(), begun_attempts()
            error = found.error or (failed[-1].error if failed else None)
            item = self.decoded_if_possible(tr, found)
            return ItemInfo(
                item=item,
                id=self._codec.id_of(found.item),
                state=state,
                attempts=found.attempts,
                max_attempts=options.max_attempts,
                pushed_at=self._layout.pushed_at(key),
                due_at=utc_time(found.due) if state == "delayed" and found.due != NEVER else None,
                expires_at=None if expires is None else utc_time(expires),
                claimed_by=_client_of(found, lease),
                claimed_at=claimed,
                lease_ends=lease and utc_time(lease.clock_end),
                died_at=utc_time(found.died_at) if state == "dead" else None,
                cancelling=state not in ENDED and header.cancelled is not None,
                finished_at=utc_time(found.finished_at) if is_done else None,
                outcome=found.outcome if is_done else None,
                result=None if returned is None else decode_json(returned.value),
                error=found.error if is_done else error,
                unique=header.unique_key,
                group=found.item.level.group,
                held_by=begun_hold and begun_hold(options),
                waits_for=_waits_for(tr, self._layout, found, job_of(item), failed),
                parent=_parent_of(tr, self._layout, found),
                ahead_in_group=begun_ahead and begun_ahead(),
                progress=_progress(lease),
                log=lease.report.log if lease else found.log,
                stored_steps=header.steps,
                in_batch=bool(header.batch or header.followers) or header.awaits,
                failed_attempts=tuple(failed),
            )

        return finish

    def begin_match(
        self, tr: ReadTransaction, wanted: Filter, found: ItemRow
    ) -> Callable[[], bool]:
        """Start to read whether an item passes a filter."""
        if not self._may_match(tr, wanted, found):
            return bool  # which returns false
        error, client, job = wanted.error, wanted.client, wanted.job
        begun_error = begun_lease = None
        if error is not None and not found.error:
            position = self._layout.position(found.key)
            begun_error = begin_last_error(tr, self._layout, position)
        if client is not None:
            begun_lease = begin_lease(tr, self._layout, found)

        def test() -> bool:
            if job is not None:
                stored = job_of(self.decoded_if_possible(tr, found))
                if stored is None or not _is_named(stored.name, job):
                    return False
            lease = begun_lease and begun_lease()
            last_error = begun_error() if begun_error else found.error
            return _has(last_error, error) and _has(lease and lease.client, client)

        return test

    def _may_match(self, tr: ReadTransaction, wanted: Filter, found: ItemRow) -> bool:
        """Return whether an item matches a filter, as far as its row tells."""
        level, priority = found.item.level, wanted.priority
        if wanted.group is not None and (level.group or "") != wanted.group:
            return False
        if wanted.id is not None and wanted.id not in self._codec.id_of(found.item):
            return False
        if priority is not None and self._kind == "priority":
            if level.priority != self._items.levels.level(priority).priority:
                return False
        elif priority is not None and cast("tuple[Any, ...]", level.priority)[0] != priority:
            return False
        if wanted.agent is None:
            return True
        task: Any = self.decoded_if_possible(tr, found)
        return task is not None and _has(task.agent_name, wanted.agent)


def _is_named(name: str, wanted: str) -> bool:
    """Return whether a job has this name, or one that ends with it.

    >>> [_is_named("shop.send", wanted) for wanted in ("shop.send", "send", "end")]
    [True, True, False]
    """
    return f".{name}".endswith(f".{wanted}")


def _has(text: str | None, part: str | None) -> bool:
    return part is None or part.casefold() in (text or "").casefold()


# Why it waits


def _begin_held(
    tr: ReadTransaction, layout: Layout, rate: QueueRate, item: StoredItem
) -> Callable[[Options], ItemHeldBy | None]:
    reads: ReadTransaction = getattr(tr, "snapshot", tr)
    group = item.level.group
    held = None if group is None else reads[layout.group_key(layout.held_groups, group)]

    def finish(options: Options) -> ItemHeldBy | None:
        if options.paused:
            return "queue_paused"
        limit = options.concurrency
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


def _begin_ahead(tr: ReadTransaction, item: StoredItem) -> Callable[[], int]:
    reads: ReadTransaction = getattr(tr, "snapshot", tr)
    rows = reads.get_range(item.level.begin, item.key, limit=_MAX_AHEAD)
    return lambda: len([*rows])


def _waits_for(
    tr: ReadTransaction,
    own: Layout,
    found: ItemRow,
    job: StoredJob | None,
    failed: Sequence[FailedAttempt],
) -> WaitsFor | None:
    """Return what a delayed item, or one with an unknown job, waits for.

    Cost: no read for most items, one or two for a suspended job, and more for each awaited job.
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


def _parent_of(tr: ReadTransaction, own: Layout, found: ItemRow) -> JobRef | None:
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
    rows = tr.get_range(*layout.range_of(layout.owned_prefix(layout.followers, first)))
    return any(
        each.id == id and each.layout(layout).subspace.key() == own.subspace.key()
        for row in rows
        for each in memberships_of(row.value)
    )


def _waits_in_step(tr: ReadTransaction, own: Layout, found: ItemRow, step: StoredStep) -> WaitsFor:
    header, name = found.item.header, found.item.header.step
    if step.kind == "wait" and header.waits:
        signal, key, *_ = own.unpack_signal_wait(header.waits)
        of = f" with the key {key!r}" if key else ""
        return WaitsFor("signal", f"it waits for the signal {signal!r}{of}", name, signal, key)
    if step.kind == "run":
        steps = read_steps(tr, own, own.position(found.key))
        left = [each for each in steps.values() if each.awaits_job]
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
