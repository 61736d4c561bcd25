"""The servers of peers, run for the time of a benchmark, with every commit on disk."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path


def has_redis() -> bool:
    """Return whether a Redis server and its client are installed."""
    return bool(find_spec("redis") and shutil.which("redis-server"))


def has_postgres() -> bool:
    """Return whether a Postgres server and its client are installed."""
    return bool(find_spec("psycopg") and _postgres_program("initdb"))


def postgres_address(port: int) -> str:
    """Return the connection string of the server at a port."""
    return f"host=127.0.0.1 port={port} user=postgres dbname=postgres"


@contextmanager
def redis_server(directory: Path) -> Iterator[int]:
    """Run a Redis server that writes each change to disk before it answers; yield its port."""
    port = _free_port()
    options = {
        "port": str(port),
        "bind": "127.0.0.1",
        "dir": str(directory),
        "save": "",
        "appendonly": "yes",
        "appendfsync": "always",
    }
    command = ["redis-server"]
    for option, value in options.items():
        command += [f"--{option}", value]
    with _server(command, lambda: import_module("redis").Redis("127.0.0.1", port).ping(), None):
        yield port


@contextmanager
def postgres_server(directory: Path, connections: int = 100) -> Iterator[int]:
    """Run a Postgres server with its defaults, but not as root; yield its port."""
    port = _free_port()
    user = "postgres" if os.geteuid() == 0 else None
    if user:
        shutil.chown(directory, user)
    initdb, postgres = str(_postgres_program("initdb")), str(_postgres_program("postgres"))
    data = str(directory / "data")
    subprocess.run(
        [initdb, "-A", "trust", "-U", "postgres", "-D", data],
        check=True,
        stdout=subprocess.DEVNULL,
        user=user,
        group=user,
        cwd=directory,
    )
    command = [postgres, "-D", data, "-p", str(port), "-k", str(directory)]
    command += ["-c", "listen_addresses=127.0.0.1", "-c", f"max_connections={connections}"]
    with _server(
        command, lambda: import_module("psycopg").connect(postgres_address(port)).close(), user
    ):
        yield port


def _postgres_program(name: str) -> str | None:
    """Return the path of a program of Postgres; in Debian's directory, of the newest version."""
    found = sorted(map(str, Path("/usr/lib/postgresql").glob(f"*/bin/{name}")))
    return shutil.which(name) or (found[-1] if found else None)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def _server(command: list[str], is_up: Callable[[], object], user: str | None) -> Iterator[None]:
    """Run a server: wait until it answers, and end it with SIGINT."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, user=user, group=user
    )
    try:
        for _ in range(100):
            time.sleep(0.1)
            with suppress(Exception):
                is_up()
                break
        else:
            raise RuntimeError(f"no answer from {command[0]}")
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)
