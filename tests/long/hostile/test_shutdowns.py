"""A few shutdowns under load of each kind of worker: nothing is lost and no attempt counts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.long.hostile.shutdowns import KINDS, Shutdowns


@pytest.mark.long
def test_shutdowns_count_no_attempt_and_lose_nothing(
    shared_url: str, tmp_path: Path, rng: random.Random
) -> None:
    directory = tmp_path / "program"
    directory.mkdir()
    shutdowns = Shutdowns(shared_url, 0.5, rng.randrange(2**32), directory)
    try:
        for kind in KINDS:
            shutdowns.round(kind)
    finally:
        shutdowns.end()
