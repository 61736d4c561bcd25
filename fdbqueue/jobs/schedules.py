"""The schedules of an app. When they tick: `operations/jobs/ticks.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fdbqueue.database.clock import Since
from fdbqueue.jobs.errors import DuplicateSchedule
from fdbqueue.jobs.job import BoundJob, Job
from fdbqueue.options import LateOptions, ScheduleOptions
from fdbqueue.queue.priority import PriorityQueue
from fdbqueue.queue.schedules import Declared, Schedule, declare, validate_schedule

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from fdbqueue.jobs.app import App

_BETWEEN = 3600.0  # seconds between declarations of a worker; a schedule goes on for a day
_AGAIN = 60.0  # seconds after which it tries again if it could not declare them


class DeclaredOptions(LateOptions, total=False):
    """The options of a schedule that the code of an app declares, with the `LateOptions`.

    Attributes:
        name: Its name within the queue; by default that of the job.
        args: The positional arguments of the job.
        kwargs: Its keyword arguments.
    """

    name: str | None
    args: Sequence[Any]
    kwargs: Mapping[str, Any] | None


class AppSchedules:
    """The schedules of the jobs of an app, on its database.

    `App.cron` and `App.every` declare schedules in code, `add` adds others at run time.
    """

    def __init__(self, app: App, queues: Callable[[], list[PriorityQueue[Any]]]) -> None:
        self._app = app
        self._queues = queues
        self.declared: dict[str, dict[str, Declared]] = {}
        """The declared schedules by queue and name."""

    def add(self, name: str, call: BoundJob[Any, Any], **options: Unpack[ScheduleOptions]) -> None:
        """Add a schedule that pushes a job with its arguments, or change the one of this name.

        Options are as for `Schedules.add`; `group` is by default that of the job.

        Raises:
            InvalidSchedule: The timing or an option is not valid.

        Example:
            >>> import fdbqueue
            >>> app = fdbqueue.App("memory:")
            >>> @app.job(queue="reports")
            ... def report(customer: str) -> None: ...
            >>> app.schedules.add("ada", report.bind("ada"), cron="0 6 * * MON")
            >>> app.schedules.get("ada").next_tick.strftime("%A, %H:%M")
            'Monday, 06:00'
        """
        job = self._app.jobs[call.stored.name]
        options.setdefault("group", call.group)
        added = Declared(name, call.stored.value, job.settings.priority, options, job.alert)
        schedules = self._app.queue(job.settings.queue).schedules
        declare(schedules, self._app.db, [added], is_declared=False)

    def all(self) -> list[Schedule]:
        """Return the schedules in the queues of the app, declared or not."""
        return [each for queue in self._queues() for each in queue.schedules.all(self._app.db)]

    def get(self, name: str) -> Schedule | None:
        """Return a schedule by name, or `None`."""
        found = (queue.schedules.get(self._app.db, name) for queue in self._queues())
        return next(filter(None, found), None)

    def remove(self, name: str) -> bool:
        """Remove a schedule; return false if there is none.

        A worker whose code declares it stores it again when it starts.
        """
        return any(queue.schedules.remove(self._app.db, name) for queue in self._queues())

    def pause(self, name: str) -> bool:
        """Let a schedule push nothing until `resume`; return false if there is none."""
        return any(queue.schedules.pause(self._app.db, name) for queue in self._queues())

    def resume(self, name: str) -> bool:
        """Let a paused schedule go on; return false if there is none."""
        return any(queue.schedules.resume(self._app.db, name) for queue in self._queues())

    def run_now(self, name: str) -> str | None:
        """Push the job of a schedule now; return the id of its item, or `None`."""
        ids = (queue.schedules.run_now(self._app.db, name) for queue in self._queues())
        return next(filter(None, ids), None)

    def declare(
        self,
        job: Job[Any, Any, Any, Any],
        name: str | None,
        call: BoundJob[Any, Any],
        options: ScheduleOptions,
    ) -> None:
        """Declare a schedule of a job, which workers store when they start."""
        aliases = job.aliases if name is None else ()
        name = job.name if name is None else name
        settings = job.settings
        options = {**options, "group": call.group}
        validate_schedule(name, options)
        if self._app.jobs[job.name] is not job:  # its file runs as a script and is also imported
            return
        declared = self.declared.setdefault(settings.queue, {})
        if name in declared:
            raise DuplicateSchedule(name, settings.queue)
        value = call.stored.value
        declared[name] = Declared(name, value, settings.priority, options, job.alert, aliases)

    def renewing(self, names: Sequence[str]) -> Callable[[], None]:
        """Return a call that declares the schedules of some queues again every hour.

        Different or missing ones stay so: newer workers may have changed or renamed them.
        """
        since, pause = Since(), _BETWEEN

        def renew() -> None:
            nonlocal since, pause
            if since.seconds() >= pause:
                since, pause = Since(), _AGAIN
                for name in self.declared.keys() & {*names}:
                    schedules, declared = self._app.queue(name).schedules, self.declared[name]
                    declare(schedules, self._app.db, declared.values(), replaces=False)
                pause = _BETWEEN

        return renew
