"""The command `fdbqueue_work`, which runs tasks."""

from __future__ import annotations

import logging
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from fdbqueue.contrib.django.api import task_backends
from fdbqueue.contrib.django.backend import FdbqueueBackend
from fdbqueue.contrib.django.running import worker_app
from fdbqueue.errors import FdbqueueError
from fdbqueue.jobs.processes import shared_database
from fdbqueue.queue.arguments import validate_number
from fdbqueue.worker.processes.group import exit_after_work, summary_of
from fdbqueue.worker.processes.supervisor import Supervisor, parent

_LEVELS = {0: logging.ERROR, 1: logging.INFO}
_GRACE = 10.0  # seconds that running tasks have to end, as by default of `App.work`


class Command(BaseCommand):
    """Run the tasks of a backend."""

    help = "Run the tasks of a backend on fdbqueue, until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command."""
        add = parser.add_argument
        add("queues", nargs="*", metavar="QUEUE", help="Only these queues of the backend.")
        add("--backend", default="default", help="The name in TASKS (default: %(default)s).")
        add(
            "--concurrency",
            type=int,
            default=10,
            help="Number of tasks to run at a time, each in a thread (default: %(default)s).",
        )
        add(
            "--lease",
            default="30s",
            help="Time until others take over from a worker that died (default: %(default)s).",
        )
        add(
            "--prefetch",
            type=int,
            default=100,
            help="Maximum number of quick tasks to claim ahead; 0 for none (default: %(default)s).",
        )
        add("--processes", type=int, help="Run tasks in this number of processes, from 1.")
        add("--name", help="Name of the worker (default: the host and the process id).")
        add("--drain", action="store_true", help="Exit when no task is ready.")

    def handle(
        self,
        *,
        queues: list[str],
        backend: str,
        concurrency: int,
        lease: str,
        prefetch: int,
        processes: int | None,
        name: str | None,
        drain: bool,
        verbosity: int,
        **_options: Any,
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
                options: dict[str, Any] = {"lease": lease, "prefetch": prefetch, "name": name}
                report = app.work(*names, concurrency=concurrency, drain=drain, **options)
            else:
                validate_number(processes, "processes", 1, "processes")
                shared_database(app)
                logger.info(summary_of(app.db, names, sorted(app.jobs), processes))
                command = [sys.executable, *sys.orig_argv[1:]]
                report = Supervisor(command, processes, grace=_GRACE).run()
        except (FdbqueueError, ValueError) as error:
            raise CommandError(str(error)) from error
        if parent is not None:
            exit_after_work(0)
        if verbosity:
            self.stdout.write(f"{report.done:,} done, {report.failed:,} failed")
        if drain and report.failed:
            sys.exit(1)
