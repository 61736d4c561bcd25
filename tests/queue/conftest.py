"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fdbqueue


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Any]:
    """A second database, of the embedded engine."""
    with fdbqueue.open(f"embedded:{tmp_path / 'other'}") as database:
        yield database
