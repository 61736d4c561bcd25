"""Outboxes of both adapters, in SQLite and in PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from django.apps import apps
from django.core.management import call_command
from django.db import connections, transaction
from sqlalchemy.orm import Session

from fdbqueue.contrib import django, sqlalchemy
from fdbqueue.contrib.outbox import IDENTITY
from fdbqueue.jobs import App
from tests.support.postgres import Postgres


class SqlAlchemyStore:
    """An outbox of SQLAlchemy."""

    def __init__(self, app: App, url: str) -> None:
        self.engine = sa.create_engine(url)
        metadata = sa.MetaData()
        self.outbox = sqlalchemy.Outbox(app, self.engine, metadata)
        metadata.create_all(self.engine)

    def another(self, app: App) -> Any:
        """Return an outbox on the same table."""
        return sqlalchemy.Outbox(app, self.engine, sa.MetaData())

    @contextmanager
    def transaction(self) -> Generator[Callable[..., None]]:
        """Begin a transaction, and yield how to push in it."""
        with Session(self.engine) as session, session.begin():
            yield lambda *calls, **options: self.outbox.push(session, *calls, **options)

    def clear(self) -> None:
        """Delete all rows."""
        with self.engine.begin() as connection:
            connection.execute(sa.delete(self.outbox.table))

    @property
    def ids(self) -> list[int]:
        """The ids of the rows that are to be pushed."""
        column = self.outbox.table.c.id
        with self.engine.connect() as connection:
            return [*connection.scalars(sa.select(column).where(column > IDENTITY))]

    def close(self) -> None:
        """Close its connections."""
        self.engine.dispose()


class DjangoStore:
    """An outbox of Django."""

    def __init__(self, app: App, alias: str) -> None:
        self.alias = alias
        call_command("migrate", database=alias, verbosity=0)
        self.clear()
        self.outbox = self.another(app)

    @property
    def _rows(self) -> Any:
        # Not imported at the top: this module is, also where Django has no settings.
        return apps.get_model("fdbqueue", "OutboxRow").objects.using(self.alias)

    def another(self, app: App) -> Any:
        """Return an outbox on the same table."""
        return django.Outbox(app, using=self.alias)

    @contextmanager
    def transaction(self) -> Generator[Callable[..., None]]:
        """Begin a transaction, and yield how to push in it."""
        with transaction.atomic(self.alias):
            yield self.outbox.push

    def clear(self) -> None:
        """Delete all rows."""
        self._rows.all().delete()

    @property
    def ids(self) -> list[int]:
        """The ids of the rows that are to be pushed."""
        return [*self._rows.filter(id__gt=IDENTITY).values_list("id", flat=True)]

    def close(self) -> None:
        """Close its connections."""
        connections[self.alias].close()


def store_of(kind: str, app: App, server: Postgres | None, path: Path) -> Any:
    """Return an empty outbox of this adapter, in SQLite or on a server."""
    if kind == "sqlalchemy":
        url = server.url(server.new_database()) if server else f"sqlite:///{path / 'rows.sqlite3'}"
        return SqlAlchemyStore(app, url)
    if server is None:
        return DjangoStore(app, "default")
    parameters = server.parameters(alias := server.new_database())
    connections.databases[alias] = {
        **connections.databases["default"],
        "ENGINE": "django.db.backends.postgresql",
        **dict(zip(("HOST", "USER", "NAME"), parameters.values())),
    }
    return DjangoStore(app, alias)
