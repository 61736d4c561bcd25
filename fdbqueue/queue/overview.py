"""The named queues: open them by name, rename and drop them; their numbers, also as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from statistics import median, quantiles
from time import time
from typing import Any, TypeVar

from fdb.subspace_impl import Subspace

from fdbqueue.coordination.sans_io import Call, Stop, drive
from fdbqueue.coordination.sweeper import looks_write as looks_write
from fdbqueue.coordination.waiting import Lines, Wanted, until_found
from fdbqueue.database.binding import database_name as database_name
from fdbqueue.database.binding import first_key, is_database
from fdbqueue.database.clock import milliseconds
from fdbqueue.database.exactly_once import run_once
from fdbqueue.database.pages import read_pages
from fdbqueue.database.retrying import read
from fdbqueue.database.retrying import retries as retries
from fdbqueue.errors import ForeignKey, QueueExists, QueueNotFound, UndecodableQueue
from fdbqueue.layout.counters import Counters, counters_range
from fdbqueue.layout.items import Selection
from fdbqueue.layout.keys import WANT_ALL, Layout
from fdbqueue.layout.names import NAME_RECEIPTS, decode_name, decode_subspace, name_key, names_with
from fdbqueue.layout.priorities import priority_as_json as priority_as_json
from fdbqueue.layout.values import UNDECODABLE, utc_time
from fdbqueue.layout.values import as_json as as_json
from fdbqueue.operations.maintainers.batches import leave_batches
from fdbqueue.operations.names import drop_unfinished, find, find_existing, leave
from fdbqueue.operations.views.stats import begin_stats, unknown_stats
from fdbqueue.queue.arguments import LIMITS, validate_key, validate_number
from fdbqueue.queue.base import BaseQueue, Stored, find_stored, open_stored, rename_jobs, store_of
from fdbqueue.queue.priority import PriorityQueue, Queue
from fdbqueue.queue.task import TaskQueue
from fdbqueue.types import (
    STATES,
    Database,
    Item,
    ItemInfo,
    KeyValue,
    QueueStats,
    ReadTransaction,
    ReadTransactor,
    State,
    Task,
    Transaction,
    Transactor,
)

_T = TypeVar("_T")

_TASK_FIELDS = ("deadline", "cost", "agent_name", "client_id")

_KINDS: dict[str, type[PriorityQueue | Queue | TaskQueue]] = {
    "priority": PriorityQueue,
    "fifo": Queue,
    "task": TaskQueue,
}


def existing_queue(db: Transactor, name: str) -> PriorityQueue | Queue | TaskQueue:
    """Return the queue of this name as an object of its kind, with its stored options.

    Raises:
        QueueNotFound: There is no queue with this name.
        LayoutVersionMismatch: Another release stored the queue.

    Example:
        >>> _ = tasks.push(db)
        >>> type(existing_queue(db, "tasks")).__name__
        'TaskQueue'
    """
    return _of_any_kind(read(db, partial(find_stored, name=name, must_exist=True)))


def wait_for_queue(
    db: Database, name: str, stop: Stop, seconds: float = math.inf
) -> PriorityQueue | Queue | TaskQueue | None:
    """Return the queue of this name once there is one; `None` after the time, or after `stop`."""

    def find_now() -> PriorityQueue | Queue | TaskQueue | None:
        with suppress(QueueNotFound):
            return existing_queue(db, name)
        return None

    def keys(tr: Transaction) -> list[bytes]:
        return [name_key(name)] if find(tr, name) is None else []

    wanted = Wanted(name, keys)
    return drive(until_found(Lines(), db, seconds, Call(find_now).alone, wanted), stop)


def open_queue(db: Transactor, name: str) -> PriorityQueue | Queue | TaskQueue:
    """Return the queue of this name as an object of its kind; a new queue is a priority queue."""
    return _of_any_kind(read(db, partial(find_stored, name=name)))


def _of_any_kind(stored: Stored) -> PriorityQueue | Queue | TaskQueue:
    kind = "priority" if stored.options is None else stored.options.kind
    return open_stored(_KINDS[kind], stored)


def rename(tr: Transactor, name: str, new_name: str) -> None:
    """Give a queue another name; clients that have it open can go on.

    A small row for the old name stays. Cost: two to five reads, and two or three keys written.

    Raises:
        QueueNotFound: There is no queue with this name.
        QueueExists: Another queue has the new name.
        InvalidQueueName: A queue cannot have one of the names.

    Example:
        >>> _ = mail.push(db, "x")
        >>> rename(db, "mail", "e-mail")
        >>> queue_names(db)
        ['e-mail']
    """
    keys = name_key(name), name_key(new_name)

    def body(tr: Transaction) -> None:
        subspace = find_existing(tr, name)
        if find(tr, new_name) is not None:
            raise QueueExists(new_name)
        del tr[keys[0]]
        tr[keys[1]] = subspace.key()
        leave(tr, name, subspace)

    _change(tr, body)


def rename_job(db: Database, queue: str, old: str, new: str) -> dict[str, int]:
    """Rename the stored calls of a job; return how many in each state, and how many `schedules`.

    A claimed call goes on; another attempt has the new name. A schedule that a worker has declared
    under the old name gets the new one. Unique keys that contain the name stay, and so does the
    name of an alert that calls of other jobs push when they die.

    Each transaction renames up to 100 calls. Call it until it finds none: programs may push the old
    name, and items change their states meanwhile. Cost: as for `change_all` with the filter `job`.

    Raises:
        QueueNotFound: There is no queue with this name.
        ValueError: The names are equal, or not text.

    Example:
        >>> _ = mail.push(db, {"job": "shop.send", "args": ["ada@example.com"]})
        >>> rename_job(db, "mail", "shop.send", "shop.deliver")["ready"]
        1
    """
    if old == new:
        raise ValueError(f"the job has the name {new!r} already")
    old, new = validate_key("a name", old), validate_key("a name", new)
    return rename_jobs(existing_queue(db, queue), db, old, new)


def drop(tr: Transactor, name: str) -> None:
    """Delete a queue: its items, its options and its name.

    Jobs of other queues that wait for its jobs see them as cancelled, and a step that ran one of
    them fails. A batch whose last job is in this queue ends as if that job were cancelled. The rows
    of an unfinished restore or copy with this name are deleted, too.

    Stop the clients first: a later push creates the queue again. Conflicts with all reads of the
    queue. Cost: two reads, and those of `clear`. Repeat an interrupted drop.

    Raises:
        QueueNotFound: There is no queue with this name.

    Example:
        >>> _ = mail.push(db, "x")
        >>> drop(db, "mail")
        >>> queue_names(db)
        []
    """
    key, now = name_key(name), milliseconds()

    def body(tr: Transaction, after: bytes) -> bytes | None:
        if drop_unfinished(tr, name) and find(tr, name) is None:
            return None
        subspace = find_existing(tr, name)
        last = leave_batches(tr, Layout(subspace), now, after)
        if last is None:
            del tr[subspace.range()]
            del tr[key]
        return last

    after: bytes | None = b""
    while after is not None:
        after = _change(tr, partial(body, after=after))


def _change(tr: Transactor, body: Callable[[Any], _T]) -> _T:
    return run_once(tr, body, NAME_RECEIPTS) if is_database(tr) else body(tr)


def queue_names(tr: ReadTransactor, *, after: str | None = None, limit: int = 0) -> list[str]:
    """Return the names of all queues that were ever pushed to, in order, or a page of them.

    Given a database, each 500 names take a transaction. Cost: one row for each queue.

    A page has up to `limit` names (0 for all) that follow the name `after`.

    Example:
        >>> _ = mail.push(db, "x"), jobs.push(db, "x")
        >>> queue_names(db), queue_names(db, after="jobs")
        (['jobs', 'mail'], ['mail'])
    """
    return _read_queues(tr, lambda tr, page: page, after, limit)


def overview(
    tr: ReadTransactor, *, after: str | None = None, limit: int = 0, prefix: str = ""
) -> dict[str, QueueStats]:
    """Return the stored numbers of all named queues, in order of their names, or of a page.

    Each value is what `stats` returns in a transaction, without the options, or has an `error` if
    it cannot be decoded. Given a database, each 500 queues take a transaction. Conflicts with
    nothing. Cost: for each queue a range read of its counters; if it has items, a read for each of
    up to 100 priorities; one more for a task queue, and for delayed items.

    `after` and `limit` are as for `queue_names`; the names begin with `prefix`.

    Example:
        >>> _ = jobs.push(db, "x", 5)
        >>> overview(db)["jobs"].by_priority
        {5: 1}
    """
    return dict(_read_queues(tr, _stats, after, limit, prefix))


def key_ranges(queue: BaseQueue[Any], db: Database) -> list[tuple[int, bytes, bytes]]:
    """Return the range of a queue's keys, and those in it of each shard but the first."""
    layout, options = store_of(queue).layout, queue.options(db)
    return [(0, *layout.range_of(layout.subspace.key())), *layout.later_shards(options.shards or 1)]


def stats_as_json(stats: QueueStats) -> dict[str, Any]:
    """Return the numbers of a queue as a JSON object; only the error if they are not known.

    >>> numbers = stats_as_json(jobs.stats(db))
    >>> numbers["ready"], numbers["paused"]
    (0, False)
    """
    if stats.error is not None:
        return {"error": stats.error}
    fields: dict[str, Any] = as_json(stats)
    del fields["error"], fields["options"]
    fields["by_priority"] = {
        str(priority): number for priority, number in stats.by_priority.items()
    }
    if stats.options is not None:
        fields |= {name: getattr(stats.options, name) for name in (*LIMITS, "rate")}
    return fields


def item_as_json(item: Item | Task | None) -> dict[str, Any]:
    """Return the priority and the value of an item as a JSON object; of a task, all its fields.

    >>> item_as_json(Item({"send": 7}, (1, float("inf")), "id", b"key"))
    {'priority': [1, 'Infinity'], 'item': {'send': 7}}
    """
    if isinstance(item, Task):
        fields = {name: as_json(getattr(item, name)) for name in _TASK_FIELDS}
        return {"priority": int(item.priority), "item": item.payload, **fields}
    return {"priority": item and priority_as_json(item.priority), "item": item and item.value}


def info_as_json(info: ItemInfo) -> dict[str, Any]:
    """Return everything about an item as a JSON object, without its value and its priority."""
    fields: dict[str, Any] = as_json(dataclasses.replace(info, item=None))
    del fields["item"]
    fields["run_time"] = as_json(info.run_time)
    fields["failed_attempts"] = [
        {**as_json(attempt), "run_time": as_json(attempt.run_time)}
        for attempt in info.failed_attempts
    ]
    return fields


def _stats(tr: ReadTransaction, page: dict[str, Subspace]) -> list[tuple[str, QueueStats]]:
    # The reads of all queues begin before the first is waited for.
    begun = [
        (subspace, tr.get_range(*counters_range(subspace), streaming_mode=WANT_ALL))
        for subspace in page.values()
    ]
    found = [_stats_of(tr, subspace, rows) for subspace, rows in begun]
    for reading in found:
        next(reading)
    stats = zip(page, map(next, found))
    return [(name, numbers) for name, numbers in stats if numbers is not None]


def _stats_of(
    tr: ReadTransaction, subspace: Subspace, rows: Iterable[KeyValue]
) -> Iterator[QueueStats | None]:
    """Yield `None` once further reads have begun, then the numbers of a queue, or its error."""
    try:
        finish = begin_stats(tr, subspace, Counters(subspace, rows), first_key)
        yield None
        yield finish()
    except (UndecodableQueue, ForeignKey) as error:
        yield from repeat(unknown_stats(subspace, error))
    except UNDECODABLE as error:
        reason = f"{type(error).__name__}: {error}"
        yield from repeat(unknown_stats(subspace, UndecodableQueue(reason)))


_PAGE = 500
"""How many queues one transaction reads at most."""


def _read_queues(
    tr: ReadTransactor,
    read: Callable[[ReadTransaction, dict[str, Subspace]], Iterable[_T]],
    after: str | None = None,
    limit: int = 0,
    prefix: str = "",
) -> list[_T]:
    """Read something of all named queues, or of a page, in order of the names, by snapshot reads.

    A queue that is renamed meanwhile may be read twice, or not at all.
    """

    def page(tr: ReadTransaction, rows: list[KeyValue]) -> Iterable[_T]:
        return read(tr, {decode_name(row.key): decode_subspace(row.value) for row in rows})

    begin, end = names_with(prefix)
    if after is not None:
        begin = max(begin, name_key(after) + b"\x00")
    limit = validate_number(limit, "limit", noun="queues")
    pages = read_pages(tr, begin, end, page, size=_PAGE, limit=limit, is_snapshot=True)
    return list(chain.from_iterable(pages))


SAMPLE = 500
"""How many items in each state are looked at."""


def by_job(db: Database, queue: BaseQueue[Any]) -> dict[str, Any]:
    """Return the numbers of each job in a sample, in order of their names."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    times: dict[str, list[float]] = defaultdict(list)
    more: list[State] = []
    reads = store_of(queue).reads
    since, oldest = None, ""  # the first done item of the sample, whatever it is
    for state in STATES:
        for n, (found, job) in enumerate(reads.scan(db, Selection(state), reads.jobs, SAMPLE + 1)):
            if n == SAMPLE:
                more.append(state)
                break
            name = "" if job is None else job.name
            if state == "done":
                since, oldest = found.finished_at, name
                if found.started_at is not None:
                    times[name].append(max(0, found.finished_at - found.started_at) / 1000)
            # The last attempt of a done item has not failed, and that of a claimed one not yet.
            failed = found.attempts - (state == "claimed" or found.finished_at > 0)
            counts[name].update({state: 1, "failed_attempts": failed})
    counts.pop("", None)
    # The first done item began the time, so it did not end within it.
    seconds = 0 if since is None else time() - since / 1000
    return {
        "jobs": [
            {
                "name": name,
                **{number: found[number] for number in (*STATES, "failed_attempts")},
                "rate": (found["done"] - (name == oldest)) / seconds if seconds > 0 else None,
                "run_time_median": median(times[name]) if times[name] else None,
                "run_time_p95": _p95(times[name]),
            }
            for name, found in sorted(counts.items())
        ],
        "since": None if since is None else as_json(utc_time(since)),
        "more": more,
        "limit": SAMPLE,
    }


def _p95(times: list[float]) -> float | None:
    if len(times) < 2:
        return times[0] if times else None
    return quantiles(times, n=20, method="inclusive")[-1]
