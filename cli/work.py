"""The command `fdbq work`."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, NoReturn

import click

from fdbqueue import Worker, WorkerReport, existing_queue
from fdbqueue.errors import QueueNotFound
from fdbqueue.jobs import App
from fdbqueue.jobs.app import queues_of
from fdbqueue.queue.arguments import validate_address
from fdbqueue.queue.base import Stop
from fdbqueue.queue.overview import wait_for_queue
from fdbqueue.types import Database
from fdbqueue.worker.presence import serving_health
from fdbqueue.worker.processes import (
    Supervisor,
    exit_after_work,
    limit_of,
    own_health,
    parent,
    run_worker,
    summary_of,
)
from fdbqueue.worker.shutdown import Shutdown

from .arguments import Duration, number_of_bytes, usage_errors
from .command import QUEUES, command, explained_time_outs, on_database
from .interrupts import cleanup_on_signal, exit_on, stop_on_signal
from .loading import bound_app, loaded_function
from .logs import log_to_stderr
from .metrics import continue_metrics, serving_metrics
from .opening import AnyQueue
from .options import flag, integer, option, options_of
from .output import count_noun, report, say
from .shell import KILLED, handler_of, kill_commands
from .show import HELD_BY

_log = logging.getLogger("fdbqueue.worker")


def _queue_number(text: str) -> tuple[str, float]:
    queue, _, number = text.rpartition("=")
    if not queue:
        raise click.BadParameter(f"{text!r} does not name a queue, as in images=2")
    try:
        return queue, int(number) if number.isdigit() else float(number)
    except ValueError:
        raise click.BadParameter(f"{text!r} does not end with a number, as in images=2") from None


_OF_WORKERS = options_of(
    App.work,
    omit=("weights",),
    concurrency=option(
        "--concurrency", metavar="N", type=int, default=1, help="Number of jobs to run at a time."
    ),
    at_most=option(
        "--at-most",
        metavar="QUEUE=N",
        multiple=True,
        type=_queue_number,
        help="With --app: run at most N jobs of this queue at a time. Repeatable.",
    ),
    processes=integer(
        "--processes", highest=1000, help="Run jobs in N processes; replace each that ends."
    ),
    max_jobs=integer(
        "--max-jobs", help="End the process after N jobs, once running ones have ended."
    ),
    max_memory=option(
        "--max-memory",
        metavar="SIZE",
        type=number_of_bytes,
        help="End it so when its resident memory exceeds SIZE bytes; 500M and 2G are sizes, too.",
    ),
    health=option(
        *("--health-port", "health"),
        metavar="[HOST:]PORT",
        help="Answer /live and /ready on this port; without a host, on 127.0.0.1.",
    ),
)
"""The options that `App.work` also has."""


@command(
    QUEUES,
    option("--app", metavar="MODULE:APP", help="Run the jobs of this app, on its own database."),
    option("--exec", "command", metavar="COMMAND", help="Run this shell command for each item."),
    flag(
        "--results",
        help="Store the return values, if QUEUE keeps done items; `fdbq result` prints them.",
    ),
    option(
        "--job-timeout",
        type=Duration(0, 1_000_000, min_open=True),
        help="Time after which a job is told to stop, and has failed; a command gets SIGTERM.",
    ),
    *_OF_WORKERS,
    option(
        "--metrics-port",
        metavar="[HOST:]PORT",
        help="Serve Prometheus metrics of jobs at /metrics; without a host, on 127.0.0.1.",
    ),
    option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        help="Format of the log on standard error; json writes an object a line.",
    ),
    flag("-q", "--quiet", help="No line for each job that ends."),
    opens=False,
)
def work(queues: tuple[str, ...], app: str | None, **given: Any) -> None:
    """Run a Python function or a command on each item of QUEUE, or the jobs of an app.

    Retries of a failed job back off exponentially; after the attempts that `fdbq limit` allows, it
    becomes a dead letter. Without --drain, the worker waits for a missing queue.

    MODULE:FUNCTION is called with the item or task. If its first parameter is named `tr`, it runs
    in the transaction that acknowledges the job.

    The command of --exec gets the value as JSON on standard input and the id as $FDBQ_ID. An exit
    code other than 0 is a failure; `fdbq show` then prints the last 4,096 bytes of standard error.
    If its job is cancelled, takes too long or loses its lease, the command and its children get
    SIGTERM.

    With --app, the worker runs the app's jobs, or only the jobs of each QUEUE. A job begins only if
    no queue named before its own has a ready one; with QUEUE=WEIGHT, the queues get slots by weight
    instead. --db replaces the app's own database.

    After Ctrl-C or SIGTERM, no job begins, and running jobs have the --grace period to end. Jobs
    that take longer return to the queue without counting an attempt. A second signal ends the
    worker and its commands at once.

    With --processes, a process that dies is replaced after a delay that doubles from a second to a
    minute. --metrics-port serves the metrics of all processes together.

    With --drain, exits with code 1 if a job failed, and with 2 if the queue does not exist.

    \b
    Example:
      fdbq work mails --exec 'jq -r .to >> sent.txt' --drain
      fdbq work --app shop:app mail=3 images=1 --at-most images=2
    """
    stdout: Any = sys.stdout
    if hasattr(stdout, "reconfigure"):
        stdout.reconfigure(line_buffering=True)  # a log shows at once what jobs print
    for address in (given["health"], given["metrics_port"]):
        if address is not None:
            with usage_errors():
                validate_address(address)
    if given["metrics_port"] is not None:
        continue_metrics()
    is_verbose = given["verbose"] or (app is not None and not given["quiet"])
    log_to_stderr(
        logging.INFO if is_verbose else logging.WARNING, as_json=given["log_format"] == "json"
    )
    if app is not None:
        _work_on_jobs(app, queues, given)
    on_database(_work_on_items, creates=True)(queues=queues, **given)


def _work_on_jobs(path: str, names: tuple[str, ...], given: dict[str, Any]) -> NoReturn:
    for name, value in (("exec", given["command"]), ("job-timeout", given["job_timeout"])):
        if value is not None:
            raise click.UsageError(f"--{name} is for the items of a queue, not for --app")
    app = bound_app(path, given["url"], given["timeout"])
    queues, weights = _queues_and_weights(names)
    options = {each.name: given[each.name] for each in _OF_WORKERS if each.name != "processes"}
    options["at_most"] = dict(given["at_most"])
    if given["drain"]:
        for name in {*queues} - {*queues_of(app)}:
            existing_queue(app.db, name)  # raises if it does not exist: nothing would push to it

    def run() -> WorkerReport:
        with usage_errors(), explained_time_outs(app.db, given["timeout"]):
            return app.work(*queues, weights=weights, **options)

    found = queues_of(app, queues)
    summary = partial(summary_of, app.db, found, sorted(app.jobs))
    _work(given, run, summary, app.db, found)


def _queues_and_weights(texts: tuple[str, ...]) -> tuple[list[str], dict[str, float] | None]:
    """Return the named queues, and their weights if given.

    >>> _queues_and_weights(("mail=3", "images"))
    (['mail', 'images'], {'mail': 3})
    """
    weights = dict(_queue_number(text) for text in texts if "=" in text)
    queues = [text.rpartition("=")[0] if "=" in text else text for text in texts]
    return queues, weights or None


def _work_on_items(db: Database, queues: tuple[str, ...], **given: Any) -> None:
    shell = given["command"]
    if not queues or len(queues) != (2 if shell is None else 1):
        raise click.UsageError(
            "give QUEUE with MODULE:FUNCTION or --exec, or --app MODULE:APP for the jobs of an app"
        )
    if given["at_most"]:
        raise click.UsageError("--at-most is for the queues of --app")
    if given["results"] and shell is not None:
        raise click.UsageError("--results stores what a function returns; --exec has none")
    queue, handler, grace = queues[0], queues[-1], given["grace"]
    function: Any = loaded_function(handler) if shell is None else handler_of(shell, grace)
    target = existing_queue(db, queue) if given["drain"] else _find(db, queue, given["health"])
    if target is None:
        _report(WorkerReport())
        return
    limit = limit_of(given["max_jobs"], given["max_memory"])
    shutdown = Shutdown(grace if shell is None else grace + KILLED, kill_commands, limit)
    with usage_errors():
        worker = Worker(
            db,
            target,
            function,
            store_results=given["results"],
            timeout=given["job_timeout"],
            grace=shutdown,
            **{name: given[name] for name in ("concurrency", "lease", "prefetch", "name")},
        )
    if not given["quiet"]:
        _log.setLevel(logging.INFO)
    summary = partial(summary_of, db, [queue], [shell or handler])

    def run() -> WorkerReport:
        if parent is None:
            _log.info(summary(1))
        return run_worker(worker, shutdown, drain=given["drain"], health=given["health"])

    _work(given, run, summary, db, [queue])


def _find(db: Database, name: str, health: int | str | None) -> AnyQueue | None:
    try:
        return existing_queue(db, name)
    except QueueNotFound as error:
        message = f"fdbq work: {error}"
    stop = Stop()

    with (
        serving_health(own_health(health), lambda: f"there is no queue {name!r} yet"),
        stop_on_signal(lambda _number, _frame: stop.set()),
    ):
        say(f"{message} (waiting until there is one)", err=True)
        return wait_for_queue(db, name, stop)


def _work(
    given: dict[str, Any],
    run: Callable[[], WorkerReport],
    summary: Callable[[int], str],
    db: Database,
    queues: list[str],
) -> NoReturn:
    """Run workers in this process, or supervise others that do, and exit.

    `summary` returns the log's first line for a number of processes.
    """
    processes = given["processes"]
    supervises = parent is None and processes is not None
    address = given["metrics_port"] if parent is None else None
    with stop_on_signal(_stop), serving_metrics(address, of_all=supervises):
        if supervises and processes is not None:
            _log.info(summary(processes))
            command = [sys.executable, *sys.orig_argv[1:]]
            supervisor = Supervisor(command, processes, given["grace"])
            with cleanup_on_signal(partial(supervisor.kill, 0)):
                done = supervisor.run(given["health"])
        else:
            done = run()
    if parent is None:
        _report(done)
        if given["drain"] and not given["quiet"]:
            _tell_held_back(db, queues)
    exit_after_work(1 if given["drain"] and done.failed else 0)


def _stop(number: int, _: FrameType | None) -> None:
    if number in (signal.SIGTERM, signal.SIGINT):
        exit_on(number)  # no worker runs yet, or none does any more
    os.kill(os.getpid(), signal.SIGTERM)


def _report(done: WorkerReport) -> None:
    lost = f", {done.lost:,} lost to other workers" if done.lost else ""
    fields = {"done": done.done, "failed": done.failed, "lost": done.lost}
    report(fields, f"{done.done:,} done, {done.failed:,} failed{lost}")


def _tell_held_back(db: Database, names: list[str]) -> None:
    for name in names:
        with suppress(QueueNotFound):
            queue: Any = existing_queue(db, name)
            first = next(iter(queue.items(db, limit=1)), None)
            info = None if first is None else queue.get(db, first.id)
            if info is not None and info.held_by is not None:
                left = count_noun(queue.size(db), "ready item")
                reason = HELD_BY[info.held_by]
                say(f"fdbq work: {name} has {left} left. The first: {reason}", err=True)
