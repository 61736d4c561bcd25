"""The command `fdbqueue_work`, which runs tasks."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from inspect import signature
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from fdbqueue.contrib.django.api import task_backends
from fdbqueue.contrib.django.backend import FdbqueueBackend
from fdbqueue.contrib.django.running import worker_app
from fdbqueue.errors import FdbqueueError
from fdbqueue.jobs.app import App
from fdbqueue.jobs.processes import shared_database
from fdbqueue.queue.arguments import validate_number, validate_seconds
from fdbqueue.worker.processes import Supervisor, exit_after_work, parent, summary_of

_LEVELS = {0: logging.ERROR, 1: logging.INFO}


def _seconds(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


_OPTIONS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "concurrency": ("concurrency", int, "Number of tasks to run at a time, each in a thread"),
    "lease": ("lease", _seconds, "Time until others take over from a worker that died"),
    "prefetch": ("prefetch", int, "Maximum number of quick tasks to claim ahead; 0 for none"),
    "grace": ("grace", _seconds, "Time after which a task that was told to stop is given up"),
    "max_jobs": ("max-jobs", int, "End the process after this number of tasks"),
    "max_memory": ("max-memory", int, "End it when its resident memory exceeds these bytes"),
    "health": ("health-port", str, "Port, or HOST:PORT, of health checks at /live and /ready"),
    "name": ("name", str, "Name of the worker, instead of the host and the process id"),
}
"""The options of `App.work` that have a value: flag, type and help."""


class Command(BaseCommand):
    """Run the tasks of a backend."""

    help = "Run the tasks of a backend on fdbqueue, until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command."""
        add = parser.add_argument
        add("queues", nargs="*", metavar="QUEUE", help="Only these queues of the backend.")
        add("--backend", default="default", help="The name in TASKS (default: %(default)s).")
        for name, (flag, kind, text) in _OPTIONS.items():
            default = signature(App.work).parameters[name].default
            shown = "" if default is None else f" (default: {default})"
            add(f"--{flag}", dest=name, type=kind, default=default, help=f"{text}{shown}.")
        add("--processes", type=int, help="Run tasks in this number of processes, from 1.")
        add("--drain", action="store_true", help="Exit when no task is ready.")

    def handle(
        self,
        *,
        queues: list[str],
        backend: str,
        processes: int | None,
        drain: bool,
        verbosity: int,
        **options: Any,
    ) -> None:
        """Run the worker."""
        chosen = task_backends[backend] if backend in task_backends.settings else None
        if not isinstance(chosen, FdbqueueBackend):
            raise CommandError(f"the task backend {backend!r} is not an FdbqueueBackend")
        unknown = {*queues} - chosen.queues
        if chosen.queues and unknown:
            known = ", ".join(sorted(chosen.queues))
            raise CommandError(f"the backend has no queue {min(unknown)!r}; its QUEUES: {known}")
        names = queues or sorted(chosen.queues)
        if not names:
            raise CommandError("the QUEUES of the backend are empty; name the queues to work on")
        logger = logging.getLogger("fdbqueue")
        if not logger.hasHandlers():
            logger.addHandler(logging.StreamHandler(self.stderr))
            logger.setLevel(_LEVELS.get(verbosity, logging.DEBUG))
        try:
            app = worker_app(chosen)
            if processes is None or parent is not None:
                given = {name: options[name] for name in _OPTIONS}
                report = app.work(*names, drain=drain, **given)
            else:
                validate_number(processes, "processes", 1, "processes")
                shared_database(app)
                logger.info(summary_of(app.db, names, sorted(app.jobs), processes))
                command = [sys.executable, *sys.orig_argv[1:]]
                grace = validate_seconds("grace", options["grace"])
                report = Supervisor(command, processes, grace=grace).run(options["health"])
        except (FdbqueueError, OSError, ValueError) as error:
            raise CommandError(str(error)) from error
        if parent is not None:
            exit_after_work(0)
        if verbosity:
            self.stdout.write(f"{report.done:,} done, {report.failed:,} failed")
        if drain and report.failed:
            sys.exit(1)
