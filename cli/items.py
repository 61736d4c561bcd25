"""Commands for items: push, pop, peek, items, show, rm, clear."""

from __future__ import annotations

import math
import re
import sys
import time
from contextlib import suppress
from shlex import quote
from typing import Any, BinaryIO

import click

from fdbqueue import (
    FdbqueueError,
    Item,
    PriorityQueue,
    Queue,
    TaskPriority,
    TaskQueue,
    error_classes,
    existing_queue,
)
from fdbqueue.errors import NoResult, QueueFull, WrongState
from fdbqueue.queue.arguments import text_of_seconds
from fdbqueue.queue.overview import STATES, info_as_json, priority_as_json
from fdbqueue.queue.steps import step_as_json
from fdbqueue.types import Database, ItemInfo, JobRef, PriorityJson, State, stored_job

from .common import (
    PRIORITY,
    AnyQueue,
    Duration,
    OutputError,
    PrintError,
    check_integrity,
    command_options,
    confirm,
    count_noun,
    create_option,
    deleted_text,
    echo,
    echo_results,
    found_queue,
    item_json,
    item_queue,
    json_line,
    json_queue,
    number_option,
    parse_value,
    print_items,
    printable,
    priority_from_json,
    priority_line,
    push_options,
    queue_argument,
    read_value,
    say,
    states_text,
    unsupported,
    usage_errors,
    value_of,
    with_priorities,
)
from .groups import HELD_BY
from .signals import defer_signals
from .steps import step_line

_PAGE = 500  # items that are read before they are printed
_MOVABLE: tuple[State, ...] = ("ready", "delayed", "dead")

_ROOMS = "coordination|database|embedded|jobs|layout|operations|queue|worker"
_OWN_FRAMES = re.compile(rf'(?:  File "[^"]*\bfdbqueue[/\\](?:{_ROOMS})\b.*\n(?:    .*\n)*)+')
"""Frames of this library in a traceback, one after the other."""

_count_option = number_option("-n", "count", default=1, help="Maximum number of items.")


@click.command()
@queue_argument
@click.argument("value", required=False)
@click.option("--file", metavar="FILE", type=click.File("rb"), help="Read the value from FILE.")
@click.option(
    "-p",
    "--priority",
    default=0,
    show_default=True,
    type=PRIORITY,
    help="Integer, or a JSON list for a tuple; the lowest is popped first.",
)
@click.option("--group", metavar="GROUP", help="Group, which shares what is taken with others.")
@click.option("--cost", type=float, default=1, help="What it counts for in the share of its group.")
@push_options("item", "such as 2030-01-31T08:00+01:00")
@command_options(creates=True)
def push(
    db: Database,
    queue: str,
    value: str | None,
    file: BinaryIO | None,
    priority: PriorityJson,
    as_json: bool,
    **options: Any,
) -> None:
    """Push a JSON VALUE to QUEUE and print the id of the item.

    If VALUE is `-`, it is read from standard input. With --unique, the id may belong to an
    existing item; a line on standard error then says so. The first push creates the queue.

    Exits with code 1 if the queue is full; `fdbq limit` shows and sets its maximum size.

    \b
    Example:
      fdbq push jobs '{"send": "ada@example.com"}' --priority 1
      echo '"hello"' | fdbq push jobs - --delay 60
    """
    if (value is None) == (file is None):
        raise click.UsageError(
            "give the value as VALUE, as `-` to read standard input, or with --file"
        )
    if file is not None:
        text: str | bytes = read_value(file)
    else:
        text = read_value(sys.stdin.buffer) if value == "-" else str(value)
    parsed = parse_value(text)
    target = json_queue(db, queue)
    with usage_errors():
        if target.kind == "priority":
            options["priority"] = priority_from_json(target, priority)
        elif priority:
            raise unsupported(target, queue, "--priority")
        try:
            item = target.push(db, parsed, **options, if_full="raise")
        except QueueFull as error:
            full = queue if error.group is None else f"the group {error.group!r} of {queue}"
            say(f"fdbq push: {full} is full; nothing was stored", err=True)
            sys.exit(1)
    if not item.is_new:
        say(f"fdbq push: nothing was stored; item {item.id} has this key", err=True)
    stored = {} if options["unique"] is None else {"stored": item.is_new}
    echo(item_json(item, **stored) if as_json else item.id)


class _Wait(Duration):
    """The length of time of `--wait`, which takes the next argument for it."""

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            self.fail(f"{error.message} (QUEUE comes before --wait)", param, ctx)


@click.command()
@queue_argument
@click.option("--max", "highest", is_flag=True, help="Pop the highest priority first.")
@_count_option
@click.option(
    "--wait",
    metavar="[DURATION]",
    is_flag=False,
    flag_value=math.inf,
    default=0.0,
    type=_Wait(0),
    help="Wait up to DURATION for an item; without DURATION, forever. Put --wait last.",
)
@create_option("the database")
@command_options()
def pop(
    db: Database,
    queue: str,
    highest: bool,
    count: int,
    wait: float,
    create: bool,
    as_json: bool,
) -> None:
    """Pop the first item of QUEUE and print its value.

    With -n, up to N items are popped in one transaction.

    Items are removed from the queue before they are printed, and put back if they cannot be
    printed. Ctrl-C, SIGTERM and SIGHUP take effect before items are popped or after they are
    printed; if printing takes long, the remaining items are put back.

    Exits with code 1 if the queue is empty, or still empty after --wait, or does not exist.

    \b
    Example:
      while item=$(fdbq pop jobs); do echo "working on $item"; done
      while item=$(fdbq pop jobs --wait); do echo "working on $item"; done
    """
    deadline = time.monotonic() + wait
    target = found_queue(db, queue, "pop", wait)
    if target is None:
        sys.exit(1)
    if highest:
        with_priorities(target, queue, "--max")
    while not _pop_and_print(db, target, count, highest, as_json):
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            sys.exit(1)
        target.wait(db, remaining)


def _pop_and_print(
    db: Database, queue: PriorityQueue | Queue, count: int, highest: bool, as_json: bool
) -> bool:
    """Pop and print items, with signals deferred; return false if the queue is empty."""
    with defer_signals():
        items = queue.pop_many(db, count, **({"max": True} if highest else {}))
        try:
            print_items(items, as_json)
        except PrintError as error:
            _put_back(db, queue, error.items)
            raise OutputError(f"{error} but put back") from error
        return bool(items)


def _put_back(db: Database, queue: PriorityQueue | Queue, items: list[Item]) -> None:
    failures: tuple[type[Exception], ...] = (FdbqueueError, *error_classes())
    try:
        queue.put_back(db, items)
    except failures as error:
        raise click.ClickException(
            f"cannot write to standard output, and cannot put back all of "
            f"{count_noun(len(items), 'item')} from {items[0].id} on: {error}"
        ) from error


@click.command()
@queue_argument
@click.option("--max", "highest", is_flag=True, help="Show the highest priority first.")
@_count_option
@command_options()
def peek(db: Database, queue: str, highest: bool, count: int, as_json: bool) -> None:
    """Print the first value of QUEUE without removing it.

    Exits with code 1 if the queue is empty or does not exist.

    \b
    Example:
      fdbq peek jobs -n 3
    """
    target = found_queue(db, queue, "peek")
    if target is None:
        sys.exit(1)
    if highest:
        items = with_priorities(target, queue, "--max").peek_many(db, count, max=True)
    else:
        items = list(target.items(db, limit=count))
    print_items(items, as_json)
    if not items:
        sys.exit(1)


@click.command()
@queue_argument
@click.option(
    "--state",
    type=click.Choice(STATES),
    help="List the items in this state; without it, the ready items.",
)
@click.option("-p", "--priority", type=PRIORITY, help="List only items of this priority.")
@number_option("--limit", default=0, lowest=0, help="Maximum number of items; 0 for all.")
@click.option("--agent", metavar="TEXT", help="Only tasks with this text in the agent's name.")
@click.option("--id", metavar="TEXT", help="Only items with this text in their id.")
@click.option("--error", metavar="TEXT", help="Only items with this text in their last error.")
@click.option(
    "--client",
    metavar="TEXT",
    help="With --state claimed, only items held by a client with this text in its name.",
)
@click.option("--job", metavar="NAME", help="Only jobs of this name.")
@click.option("--group", metavar="GROUP", help='Only items of this group; "" for those of none.')
@click.option("--after", metavar="ID", help="List only items after this one.")
@click.option("--reverse", is_flag=True, help="List items in reverse order.")
@command_options()
def items(
    db: Database,
    queue: str,
    state: State | None,
    priority: PriorityJson | None,
    limit: int,
    after: str | None,
    reverse: bool,
    as_json: bool,
    **texts: str | None,
) -> None:
    """List the ready items of QUEUE by priority, group and arrival: id, priority, value.

    With --state or a filter, the items in that state are listed: id, priority, attempts, times or
    last error, and the value, or the call if it is a job. With --json, each line has the same
    fields as `fdbq show`. A TEXT is any part of the name, id or error. A NAME is that of a job,
    such as shop.send, or its end, such as send.

    \b
    Example:
      fdbq items jobs --limit 20
      fdbq items jobs --state delayed
      fdbq items jobs --state dead --job send --error KeyError
    """
    if state is not None or any(text is not None for text in texts.values()):
        found = existing_queue(db, queue)
        wanted = {"state": state or "ready", "after": after, "reverse": reverse, **texts}
        wanted["priority"] = _exact_priority(found, queue, priority)
        _list_in_state(db, found, wanted, limit, as_json)
        return
    target = json_queue(db, queue, must_exist=True)
    if priority is None:
        listed = target.items(db, limit=limit, after=after, reverse=reverse)
    else:
        ordered = with_priorities(target, queue, "--priority")
        exact = priority_from_json(ordered, priority)
        listed = ordered.items(db, priority=exact, limit=limit, after=after, reverse=reverse)
    for item in listed:
        job = stored_job(item.value)
        value = json_line(item.value) if job is None else printable(str(job))
        line = f"{item.id}  {priority_line(item.priority):>4}  {value}"
        say(item_json(item) if as_json else line)
    check_integrity(db)


def _list_in_state(
    db: Database, queue: AnyQueue, wanted: dict[str, Any], limit: int, as_json: bool
) -> None:
    """Print items page by page; `wanted` has the arguments of `search`."""
    codec = queue.options(db).codec
    left = limit or math.inf
    while left:
        with usage_errors():
            page = queue.search(db, limit=int(min(left, _PAGE)), **wanted)
        for info in page.items:
            fields = _info_json(info, codec)
            say(json_line(fields) if as_json else _info_line(info, fields))
        left -= len(page.items)
        wanted["after"] = page.next
        if page.next is None:
            break
    check_integrity(db)


def _info_json(info: ItemInfo, codec: str) -> dict[str, Any]:
    """Return everything about an item as a JSON object; a value that is not JSON as its `repr`."""
    fields, item = info_as_json(info), info.item
    value = item and value_of(item)
    priority = item and priority_as_json(item.priority)
    if codec not in ("json", "task"):
        value = repr(value)
    return {**fields, "priority": priority, "value": value}


def _info_line(info: ItemInfo, fields: dict[str, Any]) -> str:
    """Return what matters most about an item in one line."""
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


@click.command()
@queue_argument
@click.argument("id")
@command_options()
def show(db: Database, queue: str, id: str, as_json: bool) -> None:
    """Show everything about one item of QUEUE, in any state, with its steps and failed attempts.

    If a ready item is not handed out, `held_by` says why; `ahead_in_group` is the number of ready
    items of its group ahead of it, up to 100. `waits_for` says what a delayed one waits for: its
    time, another attempt, a signal, other jobs, or a worker that knows its job. `parent` is the job
    that runs it in a step.

    Exits with code 1 if the queue has no item with this ID, for example because it was removed.

    \b
    Example:
      fdbq show jobs FQUUAQD_AQIDBAUGBwgJCgsMDQ4PAA
    """
    target = existing_queue(db, queue)
    info = target.get(db, id)
    if info is None:
        say(f"fdbq show: {queue} has no item {id}", err=True)
        sys.exit(1)
    fields = _info_json(info, target.options(db).codec)
    steps = [] if target.kind == "task" else target.steps.all(db, id)
    if as_json:
        say(json_line({**fields, "steps": [*map(step_as_json, steps)]}))
        return
    failed, log = fields.pop("failed_attempts"), fields.pop("log")
    fields["in_batch"] = info.in_batch or None
    del fields["stored_steps"]  # which follow
    if info.held_by is not None:
        fields["held_by"] = HELD_BY[info.held_by]
    if info.waits_for is not None:
        fields["waits_for"] = "; ".join([info.waits_for.why, *map(_ref_text, info.waits_for.jobs)])
    if info.parent is not None:
        fields["parent"] = _ref_text(info.parent)
    if info.state in ("ready", "delayed"):
        from fdbqueue.admin import workers  # a push does not need it

        if not any(queue in worker.queues for worker in workers(db)):
            fields["workers"] = "Nobody works on this queue."
    if info.job is not None:
        fields["job"] = str(info.job)
    if info.progress is not None:
        fields["progress"] = f"{info.progress.fraction:.0%} {info.progress.message}".rstrip()
    for name, value in fields.items():
        if value is not None or name == "value":
            text = value if isinstance(value, str) and name != "value" else json_line(value)
            say(f"{name:<14}  {text}")
    _show_log(log)
    for step in steps:
        say(step_line(step))
    for attempt in failed:
        client = attempt["client"] or "unknown client"
        error = attempt["error"] or "failed"
        ran = attempt["run_time"]
        after = "" if ran is None else f" after {text_of_seconds(ran)}"
        line = f"attempt {attempt['number']}, {attempt['ended_at']}{after}, {client}: {error}"
        say(line)
        _show_log(attempt["log"])
        if attempt["traceback"]:
            say(_indented(_OWN_FRAMES.sub("  ...\n", attempt["traceback"])))
        if attempt["retried_at"]:
            say(f"retried {attempt['retried_at']} by {attempt['retried_by']}")


def _ref_text(job: JobRef) -> str:
    step = "" if job.step is None else f", in its step {job.step}"
    return f"{job.queue or 'a queue without a name'} {job.id}{step}"


def _show_log(log: str) -> None:
    if log:
        say("log")
        say(_indented(log))


def _indented(text: str) -> str:
    return "  " + text.rstrip().replace("\n", "\n  ")


@click.command()
@queue_argument
@click.argument("id")
@click.option(
    "--wait",
    type=Duration(0),
    default=0,
    help="Time to wait until the item is done.",
)
@command_options()
def result(db: Database, queue: str, id: str, wait: float, as_json: bool) -> None:
    """Print the result of a done item of QUEUE as JSON.

    The result is the return value of the handler. The queue must keep done items (`fdbq limit
    --keep-last` or `--keep-for`), and the worker must store results (`fdbq work --results`). If a
    done item has no result, the command prints null.

    Exits with code 1 if the item is not done, is a dead letter, or is unknown to the queue.

    \b
    Example:
      fdbq result jobs FQUUAQD_AQIDBAUGBwgJCgsMDQ4PAA --wait 1m
    """
    try:
        returned = existing_queue(db, queue).result(db, id, wait=wait)
    except NoResult as error:
        say(f"fdbq result: {error}", err=True)
        sys.exit(1)
    say(json_line({"id": id, "result": returned} if as_json else returned))


@click.command()
@queue_argument
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option(
    "--state",
    type=click.Choice([state for state in STATES if state != "claimed"]),
    help="Remove all items in this state, instead of items by ID.",
)
@click.option("-p", "--priority", type=PRIORITY, help="With --state, only items of this priority.")
@command_options()
def rm(
    db: Database,
    queue: str,
    ids: tuple[str, ...],
    state: State | None,
    priority: PriorityJson | None,
    as_json: bool,
) -> None:
    """Remove items in any state but claimed from QUEUE, by id or by state.

    `fdbq push` and `fdbq items` print the ids. If an ID is not valid, nothing is removed.

    Exits with code 1 if an item is claimed or unknown.

    \b
    Example:
      fdbq rm jobs FQUUAQD_AQIDBAUGBwgJCgsMDQ4PAA
    """
    _validate_choice(ids, state, priority)
    if state is not None:
        target = existing_queue(db, queue)
        exact = _exact_priority(target, queue, priority)
        removed = target.change_all(db, "remove", state=state, priority=exact)
    else:
        named = item_queue(db, queue, must_exist=True)
        for item_id in ids:
            named.pushed_at(item_id)  # raises for an invalid id, before anything is removed
        removed = {item_id: named.remove(db, item_id) for item_id in ids}

    def explain(item_id: str) -> str:
        found = existing_queue(db, queue).state(db, item_id)
        if found == "claimed":
            return f"it is claimed; `fdbq cancel {quote(queue)} {item_id}` ends it"
        return "the queue has no such item"

    echo_results(removed, "removed", as_json, explain)


@click.command()
@queue_argument
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.argument("to", metavar="PRIORITY")
@click.option(
    "--state",
    type=click.Choice(_MOVABLE),
    help="Move all items in this state, instead of items by ID.",
)
@click.option("-p", "--priority", type=PRIORITY, help="With --state, only items of this priority.")
@command_options()
def reprioritize(
    db: Database,
    queue: str,
    ids: tuple[str, ...],
    to: str,
    state: State | None,
    priority: PriorityJson | None,
    as_json: bool,
) -> None:
    """Move items of QUEUE behind the last item of PRIORITY, by id or by state.

    The items must be ready, delayed or dead. They keep their state, their ids and their order. If
    an ID is not valid, nothing is moved. In a task queue, PRIORITY is a name such as `high`. If
    PRIORITY is negative, write `--` before the arguments.

    Exits with code 1 if an item was not moved, for example because it is claimed.

    \b
    Example:
      fdbq reprioritize jobs FQUUAQD_AQIDBAUGBwgJCgsMDQ4PAA 1
      fdbq reprioritize jobs --state dead 1
    """
    _validate_choice(ids, state, priority)
    target = existing_queue(db, queue)
    new: Any
    if target.kind == "task":
        new = TaskPriority.__members__.get(to.upper(), to)
    else:
        target = with_priorities(target, queue, "`fdbq reprioritize`")
        new = priority_from_json(target, PRIORITY(to))
    if state is not None:
        exact = _exact_priority(target, queue, priority)
        moved = target.change_all(db, "reprioritize", state=state, priority=exact, to=new)
    else:
        for item_id in ids:
            target.pushed_at(item_id)  # raises for an invalid id, before anything is moved
        moved = {item_id: _is_moved(db, target, item_id, new) for item_id in ids}

    def explain(item_id: str) -> str:
        found = target.state(db, item_id)
        if found is None:
            return "the queue has no such item"
        return "it has this priority already" if found in _MOVABLE else f"it is {found}"

    echo_results(moved, "moved", as_json, explain)


def _is_moved(db: Database, queue: PriorityQueue | TaskQueue, item_id: str, to: Any) -> bool:
    with suppress(WrongState):
        return bool(queue.reprioritize(db, item_id, priority=to))
    return False


def _validate_choice(ids: tuple[str, ...], state: State | None, priority: object) -> None:
    """Raise a usage error unless items are chosen either by id, or by state and priority."""
    if bool(ids) == (state is not None) or (priority is not None and state is None):
        raise click.UsageError("give either ids, or --state and perhaps --priority")


def _exact_priority(target: AnyQueue, queue: str, priority: PriorityJson | None) -> Any:
    """Return the value of `--priority`; raise a usage error if the queue has no priorities."""
    if priority is None:
        return None
    return priority_from_json(with_priorities(target, queue, "--priority"), priority)


@click.command()
@queue_argument
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@command_options()
def clear(db: Database, queue: str, yes: bool, as_json: bool) -> None:
    """Remove all items from QUEUE, after asking for confirmation.

    Claimed items and dead letters are removed too. The queue keeps its name and its options.

    \b
    Example:
      fdbq clear jobs --yes
    """
    target = existing_queue(db, queue)
    numbers = target.stats(db)
    if not yes:
        confirm(f"Remove all items from {queue!r} ({states_text(numbers)})?")
    target.clear(db)
    echo(deleted_text(queue, "cleared", numbers, as_json))
