"""Commands for the steps of jobs: signal, and what `show` says of them."""

from __future__ import annotations

import click

from fdbqueue.queue.steps import KEPT, Step
from fdbqueue.types import Database

from .common import (
    Duration,
    command_options,
    count_noun,
    echo,
    item_queue,
    json_line,
    parse_value,
    queue_argument,
    usage_errors,
)


@click.command("signal")
@queue_argument
@click.argument("name", metavar="NAME")
@click.argument("value", default="null", required=False)
@click.option("--key", default="", help="Key of the signal: as a rule the id of the job.")
@click.option(
    "--keep",
    type=Duration(0),
    default=KEPT,
    show_default=True,
    help="Time for which jobs may still come to wait for it.",
)
@command_options()
def signal_command(
    db: Database, queue: str, name: str, value: str, key: str, keep: float, as_json: bool
) -> None:
    """Send the signal NAME with a JSON VALUE to the jobs of QUEUE that wait for it.

    Jobs wait for signals with `context.wait`. One that comes to wait later goes on at once.

    \b
    Example:
      fdbq signal orders shipped '{"tracking": "1Z999"}' --key "order 7"
    """
    with usage_errors():
        steps = item_queue(db, queue, must_exist=True).steps
        n = steps.signal(db, name, key=key, value=parse_value(value), keep=keep)
    echo(json_line({"signalled": n}) if as_json else f"{count_noun(n, 'job')} waited for it")


def step_line(step: Step) -> str:
    """Return what `show` says of a step."""
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
