"""The command `fdbq work`, which runs a worker."""

from __future__ import annotations

import codecs
import importlib
import logging
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial, wraps
from types import FrameType
from typing import Any, NoReturn

import click

from fdbqueue import Worker, WorkerReport, existing_queue
from fdbqueue.errors import QueueNotFound
from fdbqueue.jobs import App, Context, Job
from fdbqueue.jobs.app import queues_of
from fdbqueue.queue.base import Stop
from fdbqueue.queue.registry import wait_for_queue
from fdbqueue.types import Database
from fdbqueue.worker.presence import serving_health
from fdbqueue.worker.processes.lifetime import exit_after_work, own_health, run_worker, summary_of
from fdbqueue.worker.processes.supervisor import LONGEST, Supervisor, parent, stop_after_changes
from fdbqueue.worker.shutdown import Shutdown

from .common import (
    AnyQueue,
    Duration,
    chosen_database,
    command_options,
    count_noun,
    echo,
    escaped,
    json_line,
    log_to_stderr,
    number_of_bytes,
    number_option,
    open_database,
    queues_argument,
    say,
    usage_errors,
    value_of,
)
from .groups import HELD_BY
from .signals import cleanup_on_signal, exit_on, stop_on_signal
from .terminal import progress_bar
from .work_options import (
    at_most_option,
    health_option,
    log_format_option,
    queues_and_weights,
    set_log_format,
)

_LOOK = 0.2  # seconds between looks at the standard error of a command, and at its job
_PART = 65_536  # bytes
_LAST = 0.5  # seconds from SIGTERM to SIGKILL for a command that outlasts a shutdown
_KILLED = 5.0  # seconds in which a command that gets SIGKILL ends
_MAX_ERRORS = 4_096  # bytes of standard error that a failed attempt keeps

_RELOADED = 0.5  # seconds from the failure of a changed program to its next start

_log = logging.getLogger("fdbqueue.worker")

_OF_APPS = (
    "concurrency",
    "lease",
    "prefetch",
    "name",
    "grace",
    "drain",
    "max_jobs",
    "max_memory",
    "health",
)
"""The options of `fdbq work` that `App.work` has, too."""

_running: set[subprocess.Popen[bytes]] = set()
"""The commands that run."""

_starting = threading.RLock()  # held while a command starts, until it is one of those that run

_IMPORTLIB = os.path.dirname(importlib.__file__)


def _with_app(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option `--app`, with which the database is that of the app."""

    @wraps(command)
    def run(*, app: str | None, queues: tuple[str, ...], **given: Any) -> None:
        stdout: Any = sys.stdout
        if hasattr(stdout, "reconfigure"):
            stdout.reconfigure(line_buffering=True)  # a log shows at once what jobs print
        if given["metrics_port"] is not None:
            _name_metrics()
        if app is not None:
            _work_on_jobs(app, queues, given)
            return
        if not 1 <= len(queues) <= 2:
            raise click.UsageError("give QUEUE and MODULE:FUNCTION, or --app MODULE:APP")
        if given.pop("at_most"):
            raise click.UsageError("--at-most is for the queues of --app")
        queue, handler = (*queues, None)[:2]
        command(queue=queue, handler=handler, **given)

    return click.option(
        "--app", metavar="MODULE:APP", help="Run the jobs of this app, on its own database."
    )(run)


def _work_on_jobs(path: str, names: tuple[str, ...], given: dict[str, Any]) -> None:
    """Run the jobs of an app, from the queues of these names or else from all of its queues."""
    for option in ("command", "agent", "job_timeout"):
        if given[option] is not None:
            name = "exec" if option == "command" else option.replace("_", "-")
            raise click.UsageError(f"--{name} is for the items of a queue, not for --app")
    app = loaded_app(path)
    log_to_stderr(logging.WARNING if given["quiet"] else logging.INFO)
    set_log_format(given["log_format"])
    queues, weights = queues_and_weights(names)
    url, cluster_file = chosen_database(
        click.get_current_context(), given["url"], given["cluster_file"]
    )
    if url is not None or cluster_file is not None or not app.is_bound:
        app.bind(open_database(url, cluster_file, create=True))
    app.db.options.set_transaction_timeout(math.ceil(given["timeout"] * 1000))
    at_most = dict(given["at_most"])
    missing = _missing(app, queues) if given["drain"] else []
    if missing:
        if missing == queues:
            _echo_report(WorkerReport(), given["as_json"])
            sys.exit(1)
        queues = [queue for queue in queues if queue not in missing]
        weights = weights and {name: weights[name] for name in weights if name in queues}
        at_most = {name: most for name, most in at_most.items() if name in queues}

    options = {name: given[name] for name in _OF_APPS}

    def run() -> WorkerReport:
        with usage_errors():
            return app.work(*queues, at_most=at_most, weights=weights, **options)

    found = queues_of(app, queues)
    summary = partial(summary_of, app.db, found, sorted(app.jobs))
    _work(run, summary, partial(_tell_held_back, app.db, found), is_complete=not missing)


def _missing(app: App, names: list[str]) -> list[str]:
    """Return the queues that do not exist and have no job of the app; say so on standard error."""
    missing: list[str] = []
    for name in names:
        try:
            if name not in queues_of(app):
                existing_queue(app.db, name)
        except QueueNotFound as error:
            missing.append(name)
            if parent is None:  # otherwise the parent has said it
                say(f"fdbq work: {error}", err=True)
    return missing


def _work(
    run: Callable[[], WorkerReport],
    summary: Callable[[int], str],
    tell_held_back: Callable[[], None],
    *,
    is_complete: bool = True,
) -> NoReturn:
    """Run workers in this process, or supervise others that do, and exit.

    With `--drain`, exit with code 1 if a job failed or not every queue exists.
    """
    with stop_on_signal(_stop, max_signals=2):
        report = _report(run, summary)
    given = click.get_current_context().params
    if parent is None:
        _echo_report(report, given["as_json"])
        if given["drain"] and not given["quiet"]:
            tell_held_back()
    exit_after_work(1 if given["drain"] and (report.failed or not is_complete) else 0)


def _stop(number: int, _: FrameType | None) -> None:
    """Stop the workers on signals such as SIGHUP, as SIGTERM does while they run."""
    if number in (signal.SIGTERM, signal.SIGINT):
        exit_on(number)  # no worker runs yet, or none does any more
    os.kill(os.getpid(), signal.SIGTERM)


def _report(run: Callable[[], WorkerReport], summary: Callable[[int], str]) -> WorkerReport:
    given = click.get_current_context().params
    processes = given["processes"] or (1 if given["reload"] else None)
    if parent is None and processes is not None:
        _log.info(summary(processes))
        command = [sys.executable, *sys.orig_argv[1:]]
        longest = _RELOADED if given["reload"] else LONGEST
        supervisor = Supervisor(command, processes, given["grace"], longest)
        with cleanup_on_signal(partial(supervisor.kill, 0)):
            if given["metrics_port"] is None:
                return supervisor.run(given["health"])
            with _shared_metrics() as registry:
                _serve_metrics(given["metrics_port"], registry=registry)
                return supervisor.run(given["health"])
    if given["metrics_port"] is not None and parent is None:
        _serve_metrics(given["metrics_port"])
    if given["reload"]:
        stop_after_changes()
    return run()


@click.command()
@queues_argument
@click.option("--exec", "command", metavar="COMMAND", help="Run this shell command for each item.")
@number_option("--concurrency", default=1, highest=1000, help="Number of jobs to run at a time.")
@click.option(
    "--lease",
    default=30.0,
    show_default=True,
    type=Duration(0.1, 1_000_000),
    help="Time after which another worker may take over a dead worker's jobs.",
)
@click.option(
    "--prefetch",
    metavar="N",
    default=100,
    show_default=True,
    type=click.IntRange(0, 1000),
    help="Maximum number of jobs to claim ahead while jobs are quick; 0 for none.",
)
@click.option("--agent", metavar="NAME", help="Claim only tasks of this agent; needs a task queue.")
@click.option(
    "--name",
    metavar="NAME",
    show_default="the host and the process id",
    help="Name for `fdbq workers`, and for the items that the worker claims.",
)
@click.option(
    "--results",
    is_flag=True,
    help="Store the return values, if QUEUE keeps done items; `fdbq result` prints them.",
)
@click.option(
    "--job-timeout",
    type=Duration(0, 1_000_000, min_open=True),
    help="Time after which a job is told to stop, and has failed; a command gets SIGTERM.",
)
@click.option(
    "--grace",
    default=10.0,
    show_default=True,
    type=Duration(0, 1_000_000),
    help="Time after which a job that was told to stop is given up; a command gets SIGKILL.",
)
@click.option(
    "--drain",
    is_flag=True,
    help="Exit when no item can be claimed, without waiting for delayed items and retries.",
)
@click.option(
    "--processes",
    metavar="N",
    type=click.IntRange(1, 1000),
    help="Run jobs in N processes; those that end are replaced.",
)
@click.option(
    "--max-jobs",
    metavar="N",
    type=click.IntRange(1),
    help="End the process after N jobs, when those that run have ended.",
)
@click.option(
    "--max-memory",
    metavar="SIZE",
    type=number_of_bytes,
    help="End it so when its resident memory exceeds SIZE bytes; 500M and 2G are sizes, too.",
)
@click.option(
    "--reload", is_flag=True, help="For development: start again when a module's file changes."
)
@click.option(
    "--metrics-port",
    metavar="PORT",
    type=click.IntRange(1, 65535),
    help="Serve Prometheus metrics of jobs on http://127.0.0.1:PORT/metrics.",
)
@at_most_option
@health_option
@log_format_option
@click.option("-q", "--quiet", is_flag=True, help="No line for each job that ends.")
@_with_app
@command_options(creates=True)
def work(
    db: Database,
    queue: str,
    handler: str | None,
    command: str | None,
    concurrency: int,
    lease: float,
    prefetch: int,
    agent: str | None,
    name: str | None,
    results: bool,
    job_timeout: float | None,
    grace: float,
    drain: bool,
    max_jobs: int | None,
    max_memory: int | None,
    health: str | None,
    log_format: str,
    quiet: bool,
    as_json: bool,
    **_of_processes: object,
) -> None:
    """Run a Python function or a command on each item of QUEUE, or the jobs of an app.

    Items are claimed under a lease. Retries of a job that fails back off exponentially, and after
    the attempts that `fdbq limit` allows it becomes a dead letter. If the queue does not exist, the
    worker waits for it, unless --drain is given.

    MODULE:FUNCTION is called with the item, or with the task of a task queue. If its first
    parameter is named `tr`, it runs in the transaction that acknowledges the job.

    The command of --exec receives the value as JSON on standard input and the id as $FDBQ_ID. Any
    exit code other than 0 is a failure, and `fdbq show` prints the last 4,096 bytes of the
    command's standard error. The command may run again after a crash, and may outlive the worker.
    If its job is cancelled, or takes too long, the command and its children get SIGTERM.

    With --app, the functions that the app declares as jobs are called with their arguments. QUEUE
    limits them to these queues, in this order: a job begins only if the queues before its own have
    none that is ready. With QUEUE=WEIGHT, the queues get slots by their weights instead. --db gives
    the app another database than its own.

    After Ctrl-C or SIGTERM no job begins, and running ones have the --grace period to end. Those
    that take longer, and commands that do not end by SIGTERM then, return to the queue without
    counting an attempt. A second signal ends the worker and its commands at once.

    With --processes, a process that dies is replaced after a delay that doubles from a second to a
    minute. --metrics-port then serves the metrics of all processes together.

    With --drain, exits with code 1 if a job failed or the queue does not exist.

    \b
    Example:
      fdbq work mails mailer:send --concurrency 4
      fdbq work mails --exec 'jq -r .to >> sent.txt' --drain
      fdbq work --app shop:app --concurrency 10
      fdbq work --app shop:app mail=3 images=1 --at-most images=2
    """
    set_log_format(log_format)
    if (handler is None) == (command is None):
        raise click.UsageError(
            "give QUEUE with MODULE:FUNCTION or --exec, or --app MODULE:APP for the jobs of an app"
        )
    if results and command is not None:
        raise click.UsageError("--results stores what a function returns; --exec has none")
    function: Any
    function = _command(command, grace) if command is not None else _function(str(handler))
    target = _find_queue(db, queue, drain, health)
    if target is None:
        _echo_report(WorkerReport(), as_json)
        if drain:
            sys.exit(1)
        return
    if agent is not None and target.kind != "task":
        raise click.UsageError(f"{queue!r} is not a task queue and has no agents")
    shutdown = Shutdown(grace if command is None else grace + _KILLED, _kill_commands)
    with usage_errors():
        worker = Worker(
            db,
            target,
            function,
            concurrency=concurrency,
            lease=lease,
            prefetch=prefetch,
            agent=agent,
            store_results=results,
            name=name,
            timeout=job_timeout,
            grace=shutdown,
        )

    has_bar = drain and parent is None and sys.stderr.isatty()
    if not quiet and not has_bar:
        _log.setLevel(logging.INFO)

    summary = partial(summary_of, db, [queue], [command or str(handler)])

    def run() -> WorkerReport:
        if parent is None:
            _log.info(summary(1))
        with progress_bar(shown=has_bar) as progress:
            task = progress.add_task("work", total=target.size(db) if has_bar else None)
            return run_worker(
                worker,
                shutdown,
                drain=drain,
                progress=lambda done: progress.update(task, completed=done.done + done.failed),
                max_jobs=max_jobs,
                max_memory=max_memory,
                health=health,
            )

    _work(run, summary, partial(_tell_held_back, db, [queue]))


def _tell_held_back(db: Database, names: list[str]) -> None:
    """Say which queues have ready items left that limits or a pause hold back."""
    for name in names:
        with suppress(QueueNotFound):
            queue: Any = existing_queue(db, name)
            first = next(iter(queue.items(db, limit=1)), None)
            info = None if first is None else queue.get(db, first.id)
            if info is not None and info.held_by is not None:
                left = count_noun(queue.size(db), "ready item")
                reason = HELD_BY[info.held_by]
                say(f"fdbq work: {name} has {left} left. The first: {reason}", err=True)


_METRICS = "PROMETHEUS_MULTIPROC_DIR"


@contextmanager
def _shared_metrics() -> Generator[Any]:
    """Let the processes that this one starts share metrics; yield the registry of all of them."""
    with tempfile.TemporaryDirectory(prefix="fdbqueue-metrics-") as directory:
        os.environ.setdefault(_METRICS, directory)
        try:
            from prometheus_client import CollectorRegistry, multiprocess

            registry = CollectorRegistry()
            collect: Any = multiprocess.MultiProcessCollector
            collect(registry)
        except ImportError:  # `_serve_metrics` reports it
            registry = None
        except ValueError as error:
            raise click.ClickException(str(error)) from error
        yield registry


def _name_metrics() -> None:
    """Continue the metrics of the process that this one replaces, if it has a parent."""
    if parent is not None and _METRICS in os.environ:
        number = parent.number
        with suppress(Exception):  # workers log what prometheus_client raises
            values: Any = importlib.import_module("prometheus_client.values")
            values.ValueClass = values.MultiProcessValue(lambda: number)


def _serve_metrics(port: int, **registry: Any) -> None:
    """Serve the metrics of this process, or of a registry, on the loopback interface."""
    try:
        from prometheus_client import start_http_server
    except ImportError as error:
        raise click.UsageError(
            f"--metrics-port needs {error.name}: run pip install '.[server]' in a clone of fdbqueue"
        ) from error
    try:
        start_http_server(port, addr="127.0.0.1", **registry)
    except OSError as error:
        raise click.ClickException(f"cannot listen on port {port}: {error}") from error


def _find_queue(db: Database, name: str, drain: bool, health: int | str | None) -> AnyQueue | None:
    """Return the named queue; without `drain`, wait until there is one or a signal comes."""
    try:
        return existing_queue(db, name)
    except QueueNotFound as error:
        message = f"fdbq work: {error}"
    if drain:
        say(message, err=True)
        return None
    stop = Stop()

    def end(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    with (
        serving_health(own_health(health), lambda: f"there is no queue {name!r} yet"),
        stop_on_signal(end, max_signals=2),
    ):
        say(f"{message} (waiting until there is one)", err=True)
        return wait_for_queue(db, name, stop)


def _echo_report(report: WorkerReport, as_json: bool) -> None:
    if as_json:
        echo(json_line({"done": report.done, "failed": report.failed, "lost": report.lost}))
        return
    lost = f", {report.lost:,} lost to other workers" if report.lost else ""
    echo(f"{report.done:,} done, {report.failed:,} failed{lost}")


def _loaded(path: str, noun: str) -> Any:
    """Import MODULE:NAME, with the current directory first in the search path."""
    module, _, name = path.partition(":")
    if not module or not name:
        example = f"{module or 'MODULE'}:{name or noun.upper()}"
        missing = noun if module else "module"
        raise click.UsageError(f"{path!r} does not name {_article(missing)}; write {example}")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), name)
    except BaseException as error:  # the module may raise anything, also by `sys.exit`
        text = _origin(error)
        if isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]:
            text += f"; it is neither in {os.getcwd()} nor on the Python path"
        raise click.UsageError(
            f"{path!r} cannot be loaded as MODULE:{noun.upper()}: {text}"
        ) from error


def loaded_app(path: str) -> App:
    """Import MODULE:APP."""
    app = _loaded(path, "app")
    if not isinstance(app, App):
        raise click.UsageError(f"{path!r} is not an app, which is what fdbqueue.App(...) returns")
    return app


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def _function(path: str) -> Callable[..., Any]:
    """Import MODULE:FUNCTION."""
    function = _loaded(path, "function")
    if isinstance(function, Job):
        raise click.UsageError(f"{path!r} is a job; run the jobs of its app: --app MODULE:APP")
    if not callable(function):
        raise click.UsageError(f"{path!r} is not a function")
    return function  # type: ignore[no-any-return]


def _origin(error: BaseException) -> str:
    """Describe an error of an import, with the line at which it was raised."""
    text = ": ".join(filter(None, [type(error).__name__, str(error)]))
    frames = traceback.extract_tb(error.__traceback__)[1:]  # without this module's
    lines = [frame for frame in frames if not frame.filename.startswith(("<", _IMPORTLIB))]
    if isinstance(error, SyntaxError) or not lines:
        return text  # a SyntaxError names its line
    return f"{text} ({lines[-1].filename}, line {lines[-1].lineno})"


class CommandError(Exception):
    """A command exited with a code other than 0."""

    def __init__(self, code: int, stderr: str) -> None:
        self.code = code
        self.stderr = stderr
        super().__init__(f"exit code {code}")


def _command(command: str, grace: float) -> Callable[[Context], None]:
    def run(context: Context) -> None:
        item = context.item
        # A file and not a pipe: the command may outlive the worker, and must not fail by that.
        with tempfile.TemporaryFile() as errors:
            with _starting:
                process = subprocess.Popen(
                    command,
                    shell=True,  # the help promises a shell command
                    stdin=subprocess.PIPE,
                    stderr=errors,
                    env={**os.environ, "FDBQ_ID": item.id},
                    start_new_session=True,  # Ctrl-C reaches only the worker, which lets it finish
                )
                _running.add(process)
            try:
                _wait(process, json_line(value_of(item)).encode(), errors.fileno(), context, grace)
            finally:
                _running.discard(process)
            if process.returncode:
                size = os.fstat(errors.fileno()).st_size
                tail = os.pread(errors.fileno(), _MAX_ERRORS, max(0, size - _MAX_ERRORS))
                raise CommandError(process.returncode, tail.decode(errors="replace"))

    return run


def _kill_commands() -> None:
    """Kill the commands, before the process ends; no other one starts."""
    _starting.acquire()
    for process in list(_running):
        _signal(process, signal.SIGKILL)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a command and its children."""
    with suppress(ProcessLookupError):  # there are none
        os.killpg(process.pid, number)


def _wait(
    process: subprocess.Popen[bytes], value: bytes, errors: int, context: Context, grace: float
) -> None:
    """Wait for a command, and meanwhile print what it writes to its standard error.

    Control characters are escaped: a log may be read in a terminal.

    If the job is told to stop, the command and its children get SIGTERM. What is left of them after
    the grace period, or after the end of the command, gets SIGKILL. In a shutdown they first have
    the grace period, because few commands do anything about SIGTERM but die.
    """
    printed = 0
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    told_at: float | None = None
    given: bytes | None = value
    while True:
        try:
            process.communicate(given, _LOOK)
            is_over = True
        except subprocess.TimeoutExpired:
            is_over, given = False, None
        if context.cancelled.is_set():
            told_at = told_at or time.monotonic()
            over = time.monotonic() - told_at
            is_shutdown = context.cancelled.reason == "shutdown"
            term, kill = (grace, grace + _LAST) if is_shutdown else (0.0, grace)
            if over >= term:
                is_late = is_over or over >= kill
                _signal(process, signal.SIGKILL if is_late else signal.SIGTERM)
        # The command shares the position in the file, so this must not move it.
        while part := os.pread(errors, _PART, printed):
            printed += len(part)
            sys.stderr.write(escaped(decoder.decode(part)))
        sys.stderr.write(escaped(decoder.decode(b"", final=is_over)))
        sys.stderr.flush()
        if is_over:
            return
