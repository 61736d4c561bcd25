"""Servers of the test's own, in the process of the test and as users start them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import httpx
import pytest
from starlette.testclient import TestClient

from fdbqueue.http import create_app

ServerProcess: TypeAlias = "subprocess.Popen[str]"


@pytest.fixture
def client(db: Any) -> Iterator[TestClient]:
    """A client of a server without tokens."""
    app = create_app(db)
    with TestClient(app, "http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def serve(shared_url: str, db: Any) -> Callable[..., Any]:
    """`with serve("--option") as (process, client)`: `fdbq serve` on a free port."""

    @contextmanager
    def served(*options: str, **environment: str) -> Iterator[tuple[ServerProcess, httpx.Client]]:
        process = subprocess.Popen(
            [sys.executable, "-m", "fdbq", "serve", "--db", shared_url, "--port", "0", *options],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            found = re.search(r"serving on (http://\S+),", line)
            assert found, line + process.stderr.read()
            with httpx.Client(base_url=found[1], timeout=60) as client:
                yield process, client
        finally:
            process.kill()
            process.wait()
            process.stderr.close()

    return served
