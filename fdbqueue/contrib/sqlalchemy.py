"""Jobs that commit with rows of SQLAlchemy: an outbox."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Session, scoped_session

from fdbqueue.contrib import outbox as core
from fdbqueue.contrib.outbox import BATCH, IDENTITY, TABLE, Row, new_row
from fdbqueue.jobs.app import App
from fdbqueue.jobs.job import BoundJob
from fdbqueue.types import Duration


class Outbox(core.Outbox):
    """Pushes jobs that commit with the rows of a SQL database, or not at all.

    Workers of the app push the rows of the outbox to the queues. See `docs/howto/outbox.md`.

    Args:
        app: The app on whose database the queues are.
        engine: A synchronous engine, with which relays read and delete the rows.
        metadata: Gets the table `fdbqueue_outbox`, for `create_all` or Alembic.

    Attributes:
        table: The table.
    """

    def __init__(self, app: App, engine: sa.Engine, metadata: sa.MetaData) -> None:
        super().__init__(app)
        self._engine = engine
        integer = sa.BigInteger().with_variant(sa.Integer, "sqlite")
        self.table = sa.Table(
            TABLE,
            metadata,
            sa.Column("id", integer, primary_key=True),
            sa.Column("token", sa.String(32), nullable=False),
            sa.Column("queue", sa.String(255), nullable=False),
            sa.Column("push", sa.Text, nullable=False),
            sqlite_autoincrement=True,
        )

    def push(
        self,
        session: Session | scoped_session[Any] | sa.Connection,
        /,
        *calls: BoundJob[Any, Any],
        delay: Duration | None = None,
    ) -> None:
        """Push jobs when the transaction of a session or connection commits.

        With an `AsyncSession`, call `await session.run_sync(outbox.push, send.bind(...))`. `delay`
        is the time from this call until the jobs are ready, instead of their own.

        Raises:
            InvalidValue: A job cannot be pushed with these options, or another error of a push.
            TypeError: The session is asynchronous, or a job has `after` or a transaction.
        """
        if hasattr(session, "run_sync"):
            raise TypeError("write `await session.run_sync(outbox.push, ...)` with an AsyncSession")
        connection = session if isinstance(session, sa.Connection) else session.connection()
        if rows := [new_row(*call.push_many, delay) for call in calls]:
            connection.execute(sa.insert(self.table), rows)
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_notify(TABLE, "")))
        if not isinstance(session, sa.Connection):
            event.listen(session, "after_commit", self.wake)

    def identity(self) -> str:
        """Return the identity of the outbox."""
        columns = self.table.c
        with self._engine.begin() as connection:
            found = connection.scalar(sa.select(columns.token).where(columns.id == IDENTITY))
            if found is None:
                new = core.new_identity()
                connection.execute(sa.insert(self.table), new)
                found = new["token"]
            return str(found)

    def take(self, pushed: Sequence[tuple[int, str]], held: Collection[str]) -> list[Row]:
        """Delete pushed rows, and return the first others."""
        columns = self.table.c
        others = sa.select(self.table).where(columns.id > IDENTITY, columns.queue.not_in(held))
        with self._engine.begin() as connection:
            if pushed:
                ids, tokens = zip(*pushed)
                mine = columns.id.in_(ids) & columns.token.in_(tokens)
                connection.execute(sa.delete(self.table).where(mine))
            return [*map(Row._make, connection.execute(others.order_by(columns.id).limit(BATCH)))]

    def listen(self) -> Any:
        """Return a connection of its own that listens, if the driver is psycopg 3."""
        if self._engine.dialect.driver != "psycopg":
            return None
        pooled = self._engine.raw_connection()
        connection: Any = pooled.driver_connection
        pooled.detach()
        connection.autocommit = True
        connection.execute(f"LISTEN {TABLE}")
        return connection
