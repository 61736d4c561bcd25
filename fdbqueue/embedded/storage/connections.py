"""The connections of one process to the newest generation of SQLite's files."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from fdbqueue.embedded.disk import generations
from fdbqueue.embedded.disk.commit_log import CommitLog
from fdbqueue.embedded.disk.files import Connection, OpenFiles, connect, explained, storage_errors
from fdbqueue.embedded.disk.sync import SharedSync, sync_path
from fdbqueue.errors import DatabaseClosed, FDBError, FdbqueueError

_CLOSED = -1


class Connections:
    """A pool of connections, with the files they have open and the sync of their commits.

    The pool is replaced when there is a newer generation of the files. A connection in use at that
    moment stays valid for the reads of its transaction, and is closed when it is given back.
    """

    def __init__(self, path: Path, is_durable: bool) -> None:
        self._path = path
        self._is_durable = is_durable
        self._idle: list[Connection] = []
        self.generation = _CLOSED
        self.is_closed = False
        """True once the database was closed for good, and not for a fork."""

    def open(self, log: CommitLog) -> None:
        """Open the newest files.

        One connection, the anchor, is never used. It keeps the write-ahead log, which commits sync,
        from being removed.
        """
        while True:
            newest = generations.current(self._path)
            try:
                return self._open(log)
            except (FdbqueueError, sqlite3.Error, OSError):
                # Another process may remove these files meanwhile, for newer ones.
                if generations.current(self._path) == newest:
                    raise

    def _open(self, log: CommitLog) -> None:
        generation = log.generation  # read first: the opened files may be newer, never older
        anchor = self._connect(generation)
        try:
            anchor.execute("SELECT shift FROM clock").fetchone()
            sync_path(self._path)
            files = OpenFiles(self._path, log, generation)
            self.sync = SharedSync(files.write_ahead_log, log, generation)
            self.files, self._anchor, self._log = files, anchor, log
        except BaseException:
            anchor.close()
            raise
        self.generation = generation

    def follow(self, generation: int) -> None:
        """Open the newest files unless this generation is open. The caller holds the gate."""
        if self.generation in (generation, _CLOSED):
            return
        anchor, sync = self._anchor, self.sync
        with storage_errors(self._path):
            self.open(self._log)
        sync.retire()
        anchor.close()
        self._close_idle()

    def take(self) -> Connection:
        """Return a connection that is not in use."""
        generation = self.generation
        if generation == _CLOSED:
            raise DatabaseClosed()
        try:
            while True:
                connection = self._idle.pop()
                if connection.generation == generation:
                    return connection
                connection.close()
        except IndexError:
            pass
        try:
            return self._connect(generation)
        except sqlite3.Error as error:
            raise explained(self._path, error) from error

    def _connect(self, generation: int) -> Connection:
        return connect(self._path, generation, makes_checkpoints=not self._is_durable)

    def give_back(self, connection: Connection) -> None:
        """Return a connection to the pool, or close it if it is outdated."""
        if connection.generation != self.generation:
            connection.close()
            return
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        self._idle.append(connection)

    @contextmanager
    def lent(self) -> Generator[Connection]:
        """Yield a connection that is given back in the end."""
        connection = self.take()
        try:
            yield connection
        finally:
            self.give_back(connection)

    def failure(self, error: sqlite3.Error | OSError) -> Exception:
        """Return the error to raise for an error of SQLite or of the system."""
        if self.is_closed:
            return DatabaseClosed()
        if isinstance(error, sqlite3.ProgrammingError):
            return FDBError(1025)  # an expired snapshot was closed
        return explained(self._path, error)

    def close(self) -> None:
        """Close all connections that are not in use. The last one removes SQLite's log."""
        self.generation = _CLOSED
        self._close_idle()
        try:
            self.sync.close()
        finally:
            self._anchor.close()

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()
