"""Python, the command line, HTTP and the metrics show the same after every transition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.long.walk import walk
from tests.support.shell import Shell


@pytest.mark.long
def test_all_views_agree_after_every_transition(
    db: Any, shared_url: str, name: str, tmp_path: Path
) -> None:
    steps = dict(walk(db, Shell(tmp_path, shared_url, name), name))
    assert {*steps.values()} == {"ready", "delayed", "claimed", "dead", "done", None}
