"""The commands `fdbq show`, `fdbq result` and `fdbq batch`."""

from __future__ import annotations

import re
from typing import Any

from fdbqueue import existing_queue
from fdbqueue.errors import NoResult
from fdbqueue.queue.arguments import text_of_seconds
from fdbqueue.queue.batches import Batches, BatchKind, ItemBatch, batch_as_json, batches_of
from fdbqueue.queue.overview import as_json
from fdbqueue.queue.steps import Step
from fdbqueue.types import Database, Duration, ItemInfo, JobRef

from .command import ID, QUEUE, command
from .items import info_fields
from .output import count_noun, fail, json_line, say, show, show_fields, wants_json

HELD_BY = {
    "queue_paused": "The queue is paused.",
    "queue_concurrency": "As many items of the queue are claimed as its concurrency allows.",
    "queue_rate": "As many items of the queue have started as its rate allows.",
    "group_paused": "Its group is paused.",
    "group_concurrency": "As many items of its group are claimed as their concurrency allows.",
    "group_rate": "As many items of its group have started as their rate allows.",
    "group_retry": "A failed item of its group, which waits for its next attempt, comes first.",
}

_WAITING: dict[BatchKind, str] = {"then": "then", "after": "before", "run": "for"}

_ROOMS = "coordination|database|embedded|jobs|layout|operations|queue|worker"
_OWN_FRAMES = re.compile(rf'(?:  File "[^"]*\bfdbqueue[/\\](?:{_ROOMS})\b.*\n(?:    .*\n)*)+')
"""This library's consecutive frames in a traceback."""


@command(QUEUE, ID, name="show")
def show_item(db: Database, queue: str, id: str) -> None:
    """Show everything about one item of QUEUE, in any state, with its steps and failed attempts.

    `held_by` says why a ready item is not handed out; `ahead_in_group` counts the ready items of
    its group that come first, up to 100. `waits_for` says what a delayed item waits for. `parent`
    is the job that runs it in a step.

    Exits with code 1 if the queue has no item with this ID.

    \b
    Example:
      fdbq show jobs FQUUAQD_AQIDBAUGBwgJCgsMDQ4PAA
    """
    target = existing_queue(db, queue)
    info = target.get(db, id)
    if info is None:
        fail(f"{queue} has no item {id}")
    fields = info_fields(info, target.options(db).codec)
    steps = [] if target.kind == "task" else target.steps.all(db, id)
    if wants_json():
        say(json_line({**fields, "steps": [*map(as_json, steps)]}))
        return
    failed, log = fields.pop("failed_attempts"), fields.pop("log")
    show_fields(_readable(db, queue, info, fields))
    _say_indented("log", log)
    for step in steps:
        say(_step_line(step))
    for attempt in failed:
        _say_attempt(attempt)


def _readable(db: Database, queue: str, info: ItemInfo, fields: dict[str, Any]) -> dict[str, Any]:
    shown = {**fields, "in_batch": info.in_batch or None, "value": json_line(fields["value"])}
    del shown["stored_steps"]  # which follow
    if info.held_by is not None:
        shown["held_by"] = HELD_BY[info.held_by]
    if info.waits_for is not None:
        shown["waits_for"] = "; ".join([info.waits_for.why, *map(_ref_text, info.waits_for.jobs)])
    if info.parent is not None:
        shown["parent"] = _ref_text(info.parent)
    if info.state in ("ready", "delayed"):
        from fdbqueue.admin import workers  # a push does not need it

        if not any(queue in worker.queues for worker in workers(db)):
            shown["workers"] = "Nobody works on this queue."
    if info.job is not None:
        shown["job"] = str(info.job)
    if info.progress is not None:
        shown["progress"] = f"{info.progress.fraction:.0%} {info.progress.message}".rstrip()
    return {name: value for name, value in shown.items() if value is not None}


def _say_attempt(attempt: dict[str, Any]) -> None:
    ran = attempt["run_time"]
    after = "" if ran is None else f" after {text_of_seconds(ran)}"
    client, error = attempt["client"] or "unknown client", attempt["error"] or "failed"
    say(f"attempt {attempt['number']}, {attempt['ended_at']}{after}, {client}: {error}")
    _say_indented("log", attempt["log"])
    if attempt["traceback"]:
        _say_indented("", _OWN_FRAMES.sub("  ...\n", attempt["traceback"]))
    if attempt["retried_at"]:
        say(f"retried {attempt['retried_at']} by {attempt['retried_by']}")


def _say_indented(title: str, text: str) -> None:
    if text and title:
        say(title)
    if text:
        say("  " + text.rstrip().replace("\n", "\n  "))


def _ref_text(job: JobRef) -> str:
    step = "" if job.step is None else f", in its step {job.step}"
    return f"{job.queue or 'a queue without a name'} {job.id}{step}"


def _step_line(step: Step) -> str:
    parts = [f"step {step.name!r}", f"{step.kind} {step.state}"]
    if step.ended_at is not None:
        parts.append(step.ended_at.isoformat(timespec="milliseconds"))
    elif step.due_at is not None:
        parts.append(f"until {step.due_at.isoformat(timespec='seconds')}")
    if step.kind == "wait":
        parts.append(f"key {step.key!r}")
    if step.state == "done" and step.value is not None:
        parts.append(json_line(step.value))
    if step.error is not None:
        failures = f"{count_noun(step.failures, 'failure')}: " if step.failures else ""
        parts.append(failures + step.error)
    return ", ".join(parts)


@command(QUEUE, ID)
def result(db: Database, queue: str, id: str, *, wait: Duration = 0) -> None:
    """Print the result of a done item of QUEUE as JSON.

    The queue must keep done items (`fdbq limit --keep-last` or `--keep-for`), and the worker must
    store results (`fdbq work --results`).

    Exits with code 1 if the item is not done, is dead, or is unknown.

    \b
    Example:
      fdbq result jobs FQUUAQD_AQIDBAUGBwgJCgsMDQ4PAA --wait 1m

    Options:
        wait: Time to wait until the item is done.
    """
    try:
        returned = existing_queue(db, queue).result(db, id, wait=wait)
    except NoResult as error:
        fail(str(error))
    show({"id": id, "result": returned}, json_line(returned))


@command(QUEUE, ID)
def batch(db: Database, queue: str, id: str, *, close: bool = False) -> None:
    """Show the batches of the job ID of QUEUE: their jobs, and how these have ended.

    ID is the job at the end of a batch, or a stored job of one. Each batch has a line.

    A batch stays open if the program that pushes its jobs dies. If no more jobs are to come,
    --close lets the job at its end run.

    Exits with code 1 if the job has no batch, or is unknown.

    \b
    Example:
      fdbq batch reports FBcD1wABAaIVC2yNeLOuRsaQk5dWHQA --close

    Options:
        close: First let no more jobs in; ID is the job at the end.
    """
    target = existing_queue(db, queue)
    if close:
        Batches(target).finish(db, id)
    found = batches_of(db, target, id)
    for each in found:
        show(batch_as_json(each), _batch_line(each))
    if not found:
        fail(f"{queue} has no item {id} with a batch")


def _batch_line(batch: ItemBatch) -> str:
    state = "open" if batch.is_open else "ended" if batch.has_ended else "closed"
    cancelled = ", cancelled" if batch.is_cancelled else ""
    line = (
        f"{state}{cancelled}: {count_noun(batch.pushed, 'job')}, {batch.done} done, "
        f"{batch.dead} dead, {batch.cancelled} cancelled, {batch.left} left"
    )
    if not batch.is_member:
        return line
    step = f"step {batch.step!r} of " if batch.step else ""
    queue = batch.queue or "a queue without a name"
    return f"{line}; {_WAITING[batch.kind]} {step}{batch.id} in {queue}"
