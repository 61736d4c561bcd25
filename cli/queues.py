"""Commands for whole queues."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from string import ascii_letters, digits
from typing import Any

import click

from fdbqueue import admin, embedded, existing_queue
from fdbqueue.admin import overview
from fdbqueue.queue.overview import as_json, key_ranges, priority_as_json, stats_as_json
from fdbqueue.types import STATES, Database, HistoryWindow, QueueStats

from .command import QUEUE, YES, command
from .opening import check_integrity
from .options import argument
from .output import (
    confirm,
    fail,
    notes_text,
    priority_text,
    report,
    show,
    show_fields,
    show_table,
    states_text,
    wait_text,
)

_PLAIN = frozenset(ascii_letters + digits)  # bytes that fdbcli takes as they are
_HISTORY = ("pushed", "taken", "completed", "failed", "died")


@command()
def ls(db: Database) -> None:
    """List all queues, the number of items in each state, and the age of the oldest ready item.

    A note says if a queue is paused or has jobs that no worker knows. Unnamed queues are not
    listed. With --json, each line has the numbers of `fdbq stats`, without limits. A queue that
    cannot be decoded has an error instead.

    \b
    Example:
      fdbq ls
    """
    show_table(
        ("queue", *STATES, "oldest", ""),
        [*overview(db).items()],
        lambda queue: {"queue": queue[0], **stats_as_json(queue[1])},
        lambda queue: _row(*queue),
        "no queues",
    )
    check_integrity(db)


def _row(name: str, stats: QueueStats) -> list[str]:
    if stats.error is not None:
        return [name, *["-"] * (len(STATES) + 1), stats.error]
    numbers = [f"{number:,}" for number in stats.by_state.values()]
    return [name, *numbers, wait_text(stats) or "-", notes_text(stats_as_json(stats))]


@command(QUEUE)
def counts(db: Database, queue: str) -> None:
    """Show the number of ready items of each priority in QUEUE.

    \b
    Example:
      fdbq counts jobs
    """
    target = existing_queue(db, queue)
    by_priority: dict[Any, int] = {**target.counts(db)}
    if target.kind == "fifo" and (size := target.size(db)):
        by_priority = {None: size}
    show_table(
        ("priority", "items"),
        [*by_priority.items()],
        lambda count: {"priority": priority_as_json(count[0]), "count": count[1]},
        lambda count: (priority_text(count[0]), f"{count[1]:,}"),
    )
    check_integrity(db)


@command(QUEUE)
def ranges(db: Database, queue: str, *, undo: bool = False) -> None:
    """Print commands for fdbcli that let FoundationDB store QUEUE, and each of its shards, apart.

    By itself, FoundationDB does not divide less than 20 MB of keys, however busy they are. Run this
    again after each change of the number of shards.

    \b
    Example:
      fdbq ranges jobs --db fdb.cluster | fdbcli -C fdb.cluster

    Options:
        undo: Print the command that takes it back.
    """
    if isinstance(db, embedded.Database):
        raise click.UsageError("only a cluster has ranges to move; name its file with --db")
    found = key_ranges(existing_queue(db, queue), db)
    for shard, begin, end in found[:1] if undo else found:
        keys = _for_fdbcli(begin), _for_fdbcli(end)
        where = "default" if undo else f"teamID {shard}"
        fields = {"shard": shard, "begin": keys[0], "end": keys[1]}
        show(fields, f"rangeconfig set {keys[0]} {keys[1]} {where}")


def _for_fdbcli(key: bytes) -> str:
    return "".join(chr(byte) if chr(byte) in _PLAIN else f"\\x{byte:02x}" for byte in key)


@command(QUEUE)
def stats(db: Database, queue: str) -> None:
    """Show how many items of QUEUE are in each state, its limits and its totals.

    An item is ready once its lease or delay is over, even if no worker runs.

    \b
    Example:
      fdbq stats jobs
    """
    show_fields({"queue": queue, **stats_as_json(existing_queue(db, queue).stats(db))})
    check_integrity(db)


@command(QUEUE)
def history(db: Database, queue: str) -> None:
    """Show the activity of QUEUE in the last 5 minutes, hour and day.

    An item waits from the moment it becomes ready until a pop or a claim takes it. With --json,
    each window is a line, with its periods.

    \b
    Example:
      fdbq history jobs
    """
    windows = existing_queue(db, queue).history(db)
    show_table(
        ("last", *_HISTORY, "median wait", "wait (p95)", "median run", "run (p95)"),
        [*zip(("5 minutes", "hour", "day"), windows)],
        lambda window: {"queue": queue, **as_json(window[1])},
        lambda window: [
            window[0],
            *(f"{getattr(window[1], number):,}" for number in _HISTORY),
            *_times(window[1]),
        ],
    )
    check_integrity(db)


def _times(window: HistoryWindow) -> Iterator[str]:
    waits = window.waiting_median, window.waiting_p95
    for time in (*waits, window.running_median, window.running_p95):
        if time is None:
            yield "-"
        else:
            yield f"{time:.2f} s" if time < 60 else str(timedelta(seconds=round(time)))


@command(QUEUE, YES)
def clear(db: Database, queue: str, yes: bool) -> None:
    """Remove all items from QUEUE, in any state, after asking for confirmation.

    The queue keeps its name and its options.

    \b
    Example:
      fdbq clear jobs --yes
    """
    target = existing_queue(db, queue)
    numbers = target.stats(db)
    confirm(yes, f"Remove all items from {queue!r} ({states_text(numbers)})?")
    target.clear(db)
    _report_deleted(queue, "cleared", numbers)


@command(QUEUE, argument("name"))
def rename(db: Database, queue: str, name: str) -> None:
    """Rename QUEUE to NAME, with everything in it.

    Running workers and clients follow the queue. A later push to QUEUE creates a new one; then
    these workers are not ready, and have to be restarted.

    \b
    Example:
      fdbq rename jobs old-jobs
    """
    admin.rename(db, queue, name)
    report({"queue": name, "was": queue}, f"renamed {queue} to {name}")


@command(QUEUE, argument("old"), argument("new"), name="rename-job")
def rename_job(db: Database, queue: str, old: str, new: str) -> None:
    """Give the stored calls of the job OLD in QUEUE the name NEW, in every state.

    A claimed call goes on; if it is tried again, it has the new name. Schedules of the job follow.
    Repeat the command until it finds none, as programs may still push the old name.

    Exits with code 1 if there is none.

    \b
    Example:
      fdbq rename-job mail shop.send shop.deliver
    """
    renamed = admin.rename_job(db, queue, old, new)
    if not any(renamed.values()):
        fail(f"{queue} has no job named {old}")
    shown = ", ".join(f"{number:,} {kind}" for kind, number in renamed.items() if number)
    report({"job": new, "was": old, **renamed}, f"renamed {old} to {new}: {shown}")


@command(QUEUE, YES)
def drop(db: Database, queue: str, yes: bool) -> None:
    """Drop QUEUE and all its items, after asking for confirmation.

    Stop its clients first: a later push creates the queue again. Jobs of other queues that wait for
    its jobs continue as if these were cancelled.

    \b
    Example:
      fdbq drop jobs --yes
    """
    # Without numbers, perhaps a restore of it has not finished.
    numbers = overview(db, prefix=queue, limit=1).get(queue)
    if numbers is not None:
        items = states_text(numbers) if numbers.error is None else numbers.error
        confirm(yes, f"Drop {queue!r} with all its items ({items})?")
    admin.drop(db, queue)
    is_known = numbers is not None and numbers.error is None
    _report_deleted(queue, "dropped", numbers if is_known else None)


def _report_deleted(queue: str, done: str, numbers: QueueStats | None) -> None:
    known = {} if numbers is None else numbers.by_state
    items = "" if numbers is None else f": {states_text(numbers)}"
    report({"queue": queue, done: True, **known}, f"{done} {queue}{items}")


@command(QUEUE)
def pause(db: Database, queue: str) -> None:
    """Stop handing out items of QUEUE until `fdbq resume`.

    Pushes are accepted, and claimed items stay with their workers.

    \b
    Example:
      fdbq pause jobs
    """
    existing_queue(db, queue).configure(db, paused=True)
    report({"queue": queue, "paused": True}, f"paused {queue}")


@command(QUEUE)
def resume(db: Database, queue: str) -> None:
    """Hand out items of QUEUE again after `fdbq pause`.

    \b
    Example:
      fdbq resume jobs
    """
    existing_queue(db, queue).configure(db, paused=False)
    report({"queue": queue, "paused": False}, f"resumed {queue}")
