"""Jobs and tasks that commit with rows of Django's models: an outbox."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ParamSpec

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction

from fdbqueue.contrib import outbox as core
from fdbqueue.contrib.django.api import InvalidTask, Task, task_backends
from fdbqueue.contrib.django.backend import FdbqueueBackend
from fdbqueue.contrib.outbox import BATCH, IDENTITY, TABLE, Row, new_row
from fdbqueue.jobs.app import App
from fdbqueue.jobs.job import BoundJob
from fdbqueue.types import Duration

_P = ParamSpec("_P")


def _app_of(alias: str) -> App:
    backend = task_backends[alias]
    if not isinstance(backend, FdbqueueBackend):
        raise ImproperlyConfigured(f"the task backend {alias!r} is not an FdbqueueBackend")
    return backend.app


class Outbox(core.Outbox):
    """Pushes jobs and enqueues tasks that commit with rows of a database of Django, or not at all.

    Workers of the app, such as `manage.py fdbqueue_work`, push the rows of the outbox to the
    queues. `manage.py migrate` creates the table. See `docs/howto/outbox.md`.

    Args:
        app: The app on whose database the queues are, or the name of a task backend.
        using: The name of Django's database.
    """

    def __init__(self, app: App | str = "default", *, using: str = "default") -> None:
        self._backend = app if isinstance(app, str) else None
        super().__init__(_app_of(app) if isinstance(app, str) else app)
        self._using = using

    @property
    def app(self) -> App:
        """The app on whose database the queues are; a test may override that of a backend."""
        return self._app if self._backend is None else _app_of(self._backend)

    def push(self, *calls: BoundJob[Any, Any], delay: Duration | None = None) -> None:
        """Push jobs when the current transaction commits, or at once outside of one.

        `delay` is the time from this call until the jobs are ready, instead of their own.

        Raises:
            InvalidValue: A job cannot be pushed with these options, or another error of a push.
            TypeError: A job has `after` or a transaction.
        """
        self._store([new_row(*call.push_many, delay) for call in calls])

    def enqueue(self, task: Task[_P, Any], *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Enqueue a task when the current transaction commits, or at once outside of one.

        There is no result: the task gets its id when a relay pushes the row.

        Raises:
            InvalidTask: The backend of the task cannot run it, or is not that of the outbox.
        """
        backend = task.get_backend()
        if not isinstance(backend, FdbqueueBackend) or backend.app is not self.app:
            raise InvalidTask(f"{task.module_path!r} is not a task of the backend of this outbox")
        given = backend.arguments_of(task, args, kwargs)
        values, unique = [given.pop("value")], given.pop("unique")
        unique = None if unique is None else [unique]
        self._store([new_row(task.queue_name, {**given, "values": values, "unique": unique})])

    def _store(self, rows: list[dict[str, str]]) -> None:
        connection: Any = connections[self._using]
        with transaction.atomic(self._using):
            self._rows.bulk_create(self._rows.model(**row) for row in rows)
            if connection.vendor == "postgresql":
                connection.cursor().execute(f"NOTIFY {TABLE}")
            transaction.on_commit(self.wake, self._using)

    @property
    def _rows(self) -> Any:
        return apps.get_model("fdbqueue", "OutboxRow").objects.using(self._using)

    def identity(self) -> str:
        """Return the identity of the outbox."""
        self._renew()
        row, _ = self._rows.get_or_create(id=IDENTITY, defaults=core.new_identity())
        return str(row.token)

    def take(self, pushed: Sequence[tuple[int, str]], held: Collection[str]) -> list[Row]:
        """Delete pushed rows, and return the first others."""
        self._renew()
        rows = self._rows
        with transaction.atomic(self._using, durable=True):
            if pushed:
                ids, tokens = zip(*pushed)
                rows.filter(id__in=ids, token__in=tokens).delete()
            others = rows.filter(id__gt=IDENTITY).exclude(queue__in=held).order_by("id")[:BATCH]
            found = [*map(Row._make, others.values_list(*Row._fields))]
        self._renew()
        return found

    def _renew(self) -> None:
        """Close a connection that is broken or too old, unless it has the transaction of a test."""
        connection = connections[self._using]
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()

    def listen(self) -> Any:
        """Return a connection of its own that listens, if the driver is psycopg 3."""
        wrapper: Any = connections[self._using]
        if wrapper.vendor != "postgresql":
            return None
        own = wrapper.copy()
        own.settings_dict["OPTIONS"].pop("pool", None)  # the relay never gives it back
        own.ensure_connection()
        if not callable(own.connection.notifies):
            return None
        own.connection.execute(f"LISTEN {TABLE}")
        return own.connection
