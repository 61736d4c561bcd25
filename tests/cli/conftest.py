"""`fdbq` on the database of a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.shell import Inside, Shell


@pytest.fixture
def fdbq(db: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Inside:
    """Return `fdbq` within this process."""
    return Inside(tmp_path, db, name, monkeypatch)


@pytest.fixture
def shell(db: Any, shared_url: str, name: str, tmp_path: Path) -> Iterator[Shell]:
    """Return `fdbq` as a program, on each engine that processes can share."""
    with Shell(tmp_path, shared_url, name) as shell:
        yield shell


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Shell]:
    """Return `fdbq` as a program, for tests to which the engine makes no difference."""
    with Shell(tmp_path, f"embedded:{tmp_path / 'db'}") as shell:
        yield shell
