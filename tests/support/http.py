"""Servers for one test, and their clients: fixtures of the tests of HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from starlette.testclient import TestClient

from fdbqueue.http import create_app
from tests.support.server import served


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
