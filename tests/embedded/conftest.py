"""The tests of the embedded engine run only on it, on disk and in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fdbqueue


@pytest.fixture(params=["embedded", "memory"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Return an empty database, on disk and in memory."""
    urls = {"embedded": f"embedded:{tmp_path / 'db'}", "memory": "memory:"}
    database = fdbqueue.open(urls[request.param])
    yield database
    database.close()
