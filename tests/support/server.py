"""Servers for a test: in the process of the test, and as users start them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest
from starlette.testclient import TestClient

from fdbqueue.http import create_app
from tests.support.forked import Forked

ServerProcess: TypeAlias = "subprocess.Popen[str] | Forked"


@contextmanager
def serving(
    url: str,
    *options: str,
    preexec_fn: Callable[[], None] | None = None,
    **environment: str,
) -> Iterator[tuple[ServerProcess, str]]:
    """Start a server on a free port; yield its process and address."""
    arguments = "serve", "--db", url, "--port", "0", *options
    process: ServerProcess
    if preexec_fn is None and "LD_PRELOAD" not in environment:
        process = Forked(Path.cwd(), os.environ | environment, *arguments)
    else:
        process = subprocess.Popen(
            [sys.executable, "-m", "fdbq", *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
            preexec_fn=preexec_fn,
        )
    try:
        said = ""  # warnings may come first
        while not (found := re.search(r"serving on (https?://\S+),", said)):
            line = process.stderr.readline()
            assert line, said
            said += line
        yield process, found[1]
    finally:
        process.kill()
        process.wait()
        for file in (process.stdin, process.stdout, process.stderr):
            if file is not None:
                file.close()


@contextmanager
def served(
    url: str, *options: str, **environment: Any
) -> Iterator[tuple[ServerProcess, httpx.Client]]:
    """Run `fdbq serve` on a free port; yield its process and a client."""
    with (
        serving(url, *options, **environment) as (process, address),
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        yield process, client


@pytest.fixture
def client(db: Any) -> Iterator[TestClient]:
    """Return a client of a server without tokens."""
    app = create_app(db)
    with TestClient(app, "http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def serve(shared_url: str, db: Any) -> Callable[..., Any]:
    """Run `fdbq serve` on a free port: `with serve("--option") as (process, client)`."""
    return partial(served, shared_url)
