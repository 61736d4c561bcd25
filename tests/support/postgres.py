"""A PostgreSQL server of the tests, on a Unix socket."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

MISSING = "no PostgreSQL server on PATH or in /usr/lib/postgresql (Debian's package is postgresql)"

_numbers = count()


class Postgres:
    """A server that ends with `stop`, of the first installed version; raises `FileNotFoundError`.

    It does not run as root. Its files do not survive a power cut, which no test causes.
    """

    def __init__(self) -> None:
        found = shutil.which("initdb")
        places = [
            *map(Path, [found] if found else []),
            *Path("/usr/lib/postgresql").glob("*/bin/initdb"),
        ]
        if not places or not places[0].with_name("postgres").exists():
            raise FileNotFoundError(MISSING)
        self.user = "postgres" if os.geteuid() == 0 else None
        self.directory = tempfile.mkdtemp(prefix="fdbq-postgres-", dir="/tmp")
        if self.user is not None:
            shutil.chown(self.directory, self.user)
        self._bin, self._data = places[0].parent, f"{self.directory}/data"
        self._run("initdb", "--no-sync", "--auth=trust", "--username=test", "--encoding=UTF8")
        options = f"-c listen_addresses= -c fsync=off -k {self.directory}"
        self._run(
            "pg_ctl", "--wait", "--options", options, "--log", f"{self.directory}/log", "start"
        )

    def _run(self, program: str, *arguments: str) -> None:
        command = [self._bin / program, "--pgdata", self._data, *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, user=self.user, cwd="/")

    def new_database(self) -> str:
        """Create a database, and return its name."""
        name = f"test_{next(_numbers)}"
        with psycopg.connect(**self.parameters("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return name

    def parameters(self, database: str) -> dict[str, Any]:
        """Return how psycopg connects to a database."""
        return {"host": self.directory, "user": "test", "dbname": database}

    def url(self, database: str) -> str:
        """Return how SQLAlchemy connects to a database."""
        return f"postgresql+psycopg://test@/{database}?host={self.directory}"

    def sessions(self, database: str) -> int:
        """Return the number of connections to a database."""
        count = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
        with psycopg.connect(**self.parameters("postgres")) as connection:
            return int(connection.execute(count, [database]).fetchall()[0][0])

    def disconnect(self) -> None:
        """End the connections to all databases, as a restart does."""
        others = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        with psycopg.connect(**self.parameters("postgres")) as connection:
            connection.execute(f"{others} WHERE datname LIKE 'test%'")

    def stop(self) -> None:
        """Stop the server at once, and delete its files."""
        self._run("pg_ctl", "--mode=immediate", "stop")
        shutil.rmtree(self.directory)
