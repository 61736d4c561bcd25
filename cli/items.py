"""The command `fdbq items`."""

from __future__ import annotations

from typing import Any

from fdbqueue import existing_queue
from fdbqueue.options import Filters
from fdbqueue.queue.arguments import text_of_seconds
from fdbqueue.queue.overview import info_as_json, priority_as_json
from fdbqueue.types import Database, Item, ItemInfo, PriorityJson, State, Task, stored_job

from .command import QUEUE, command
from .opening import check_integrity, exact_priority, json_queue
from .options import chosen, options_of
from .output import count_noun, item_fields, json_line, printable, priority_text, show, value_of


@command(QUEUE, *options_of(Filters))
def items(
    db: Database,
    queue: str,
    priority: PriorityJson | None,
    *,
    state: State | None,
    limit: int = 0,
    after: str | None,
    reverse: bool = False,
    **texts: str | None,
) -> None:
    """List the ready items of QUEUE by priority, group and arrival: id, priority, value.

    With --state or a filter, a line has the id, priority, attempts, times or last error, and the
    value or the call of a job. With --json, it has the fields of `fdbq show`.

    \b
    Example:
      fdbq items jobs --state dead --job send --error KeyError

    Options:
        state: State of the items; by default, ready.
        limit: Maximum number of items; 0 for all.
        after: List only items after this one.
        reverse: List in reverse order.
    """
    target = existing_queue(db, queue)
    wanted: dict[str, Any] = {"after": after, "reverse": reverse}
    if priority is not None:
        wanted["priority"] = exact_priority(target, queue, priority)
    if state is not None or any(text is not None for text in texts.values()):
        codec = target.options(db).codec
        infos = target.items(db, state=state or "ready", limit=limit, **wanted, **chosen(texts))
        for info in infos:
            fields = info_fields(info, codec)
            show(fields, _info_line(info, fields))
    else:
        values: Any = json_queue(target, queue)
        for item in values.items(db, limit=limit, **wanted):
            job = stored_job(item.value)
            value = json_line(item.value) if job is None else printable(str(job))
            show(item_fields(item), f"{item.id}  {priority_text(item.priority):>4}  {value}")
    check_integrity(db)


def info_fields(info: ItemInfo, codec: str) -> dict[str, Any]:
    """Return an item's JSON object, with the `repr` of a value that is not JSON."""
    item: Item | Task | None = info.item
    value = item and value_of(item)
    if codec not in ("json", "task"):
        value = repr(value)
    priority = item and priority_as_json(item.priority)
    return {**info_as_json(info), "priority": priority, "value": value}


def _info_line(info: ItemInfo, fields: dict[str, Any]) -> str:
    client = printable(info.claimed_by or "an unknown client")
    verb = "cancelled, still claimed" if info.cancelling else "claimed"
    times = {
        "due": info.due_at,
        f"{verb} by {client} at": info.claimed_at if info.state == "claimed" else None,
        "lease ends": info.lease_ends,
        "died": info.died_at,
        info.outcome or "done": info.finished_at,
        "expires": info.expires_at,
    }
    waits = info.waits_for
    notes = [f"{what} {time:%Y-%m-%dT%H:%M:%SZ}" for what, time in times.items() if time]
    if info.run_time is not None:
        notes.append(f"ran {text_of_seconds(info.run_time.total_seconds())}")
    if waits is not None and waits.kind not in ("time", "retry"):
        notes.append(printable(waits.why))
    if info.error:
        notes.append(printable(info.error))
    of = "" if info.max_attempts is None else f" of {info.max_attempts:,}"
    priority = "-" if fields["priority"] is None else json_line(fields["priority"])
    value = "cannot be decoded" if info.item is None else json_line(fields["value"])
    if info.job is not None:
        value = printable(str(info.job))
    attempts = f"{count_noun(info.attempts, 'attempt')}{of}"
    return "  ".join([info.id, f"{priority:>4}", ", ".join([attempts, *notes]), value])
