"""The command that works on the items of a queue."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import click

from fdbqueue import TaskQueue, Worker, WorkerReport, existing_queue
from fdbqueue.errors import QueueNotFound
from fdbqueue.types import Database

from .common import AnyQueue, Seconds, as_line, command_options, queue_argument, tell
from .signals import stopped_by
from .terminal import progress_bar

__all__ = ["work"]

_LOOK = 1.0  # seconds from one look for a queue that is not there to the next


@click.command()
@queue_argument
@click.argument("handler", metavar="[MODULE:FUNCTION]", required=False)
@click.option("--exec", "command", metavar="COMMAND", help="Run this in a shell for each item.")
@click.option(
    "--concurrency",
    default=1,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="How many items are worked on at a time.",
)
@click.option(
    "--lease",
    metavar="SECONDS",
    default=30.0,
    show_default=True,
    type=Seconds(0.1, 1_000_000),
    help="Seconds after which another worker may take over the jobs of a dead one.",
)
@click.option("--agent", metavar="NAME", help="Of a task queue: only the tasks of this agent.")
@click.option(
    "--drain",
    is_flag=True,
    help="End when nothing can be claimed: not what is delayed, or tried again later.",
)
@click.option(
    "--metrics-port",
    metavar="PORT",
    type=click.IntRange(1, 65535),
    help="Serve counters of jobs to Prometheus on http://127.0.0.1:PORT/metrics.",
)
@command_options(creates=True)
def work(
    db: Database,
    queue: str,
    handler: str | None,
    command: str | None,
    concurrency: int,
    lease: float,
    agent: str | None,
    drain: bool,
    metrics_port: int | None,
    as_json: bool,
) -> None:
    """Claim the items of QUEUE and work on each, by a Python function or a command.

    The function gets the item (of a task queue, the task); if its first argument is called `tr`,
    it is part of the transaction that ends the job. A command gets the value as JSON on its
    standard input, and its id as $FDBQ_ID; any exit code but 0 is a failure. It may run again after
    a crash, and outlive the worker. What fails is tried again later, at last it is a dead letter
    (`fdbq dead`). SIGTERM and Ctrl-C let the jobs that run end, a second one ends all at once. A
    queue that is not there yet is waited for. Exit code 1 with --drain if any job failed.

    \b
    Example:
      fdbq work mails mailer:send --concurrency 4
      fdbq work mails --exec 'jq -r .to >> sent.txt' --drain
    """
    if (handler is None) == (command is None):
        raise click.UsageError("give either a function as MODULE:FUNCTION, or --exec")
    function = _command(command) if command is not None else _function(str(handler))
    while (target := _found(db, queue)) is None:
        if drain:
            _tell(WorkerReport(), as_json)
            return
        time.sleep(_LOOK)
    if agent is not None and not isinstance(target, TaskQueue):
        raise click.UsageError(f"{queue!r} is no task queue, and has no agents")
    if not logging.getLogger().isEnabledFor(logging.INFO):
        logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    if metrics_port is not None:
        _serve_metrics(metrics_port)
    try:
        worker = Worker(db, target, function, concurrency=concurrency, lease=lease, agent=agent)
    except (TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    with progress_bar() as progress, stopped_by(lambda *_: worker.stop(), patience=2):
        task = progress.add_task("work", total=target.size(db), visible=drain)
        report = worker.run(
            drain=drain,
            progress=lambda report: progress.update(task, completed=report.done + report.failed),
        )
    _tell(report, as_json)
    if drain and report.failed:
        sys.exit(1)


def _serve_metrics(port: int) -> None:
    try:
        from prometheus_client import start_http_server
    except ImportError as error:
        raise click.UsageError(
            f"--metrics-port needs {error.name}: run pip install '.[server]' in a clone of fdbqueue"
        ) from error
    try:
        start_http_server(port, addr="127.0.0.1")
    except OSError as error:
        raise click.ClickException(f"port {port} cannot be listened on: {error}") from error


def _found(db: Database, name: str) -> AnyQueue | None:
    try:
        return existing_queue(db, name)
    except QueueNotFound:
        return None


def _tell(report: WorkerReport, as_json: bool) -> None:
    if as_json:
        tell(as_line({"done": report.done, "failed": report.failed, "lost": report.lost}))
        return
    lost = f", {report.lost:,} were done by others" if report.lost else ""
    tell(f"{report.done:,} done, {report.failed:,} failed{lost}")


def _function(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise click.UsageError(f"{path!r} is no MODULE:FUNCTION: {error}") from error
    if not callable(function):
        raise click.UsageError(f"{path!r} is no function")
    return function  # type: ignore[no-any-return]


class CommandFailed(Exception):
    """A command ended with another exit code than 0."""


def _command(command: str) -> Callable[[Any], None]:
    def run(item: Any) -> None:
        value = item.payload if hasattr(item, "payload") else item.value
        done = subprocess.run(
            command,
            shell=True,  # it is a line of the shell, as its help says
            input=as_line(value).encode(),
            env={**os.environ, "FDBQ_ID": item.id},
            start_new_session=True,  # a Ctrl-C is for the worker, which lets it end
        )
        if done.returncode:
            raise CommandFailed(f"exit code {done.returncode}")

    return run
