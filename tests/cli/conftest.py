"""`fdbq` on the database of a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.shell import Inside, Shell


@pytest.fixture
def fdbq(db: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Inside:
    """Return `fdbq` within this process."""
    return Inside(tmp_path, db, name, monkeypatch)


@pytest.fixture
def shell(db: Any, shared_url: str, name: str, tmp_path: Path) -> Shell:
    """Return `fdbq` as a program, on each engine that processes can share."""
    return Shell(tmp_path, shared_url, name)


@pytest.fixture
def local(tmp_path: Path) -> Shell:
    """Return `fdbq` as a program, for tests to which the engine makes no difference."""
    return Shell(tmp_path, f"embedded:{tmp_path / 'db'}")
