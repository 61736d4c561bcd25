"""A short storm in every run; `python -m tests.hostile` raises a long one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.hostile.storm import Amount, Storm

SHORT = Amount(operations=1_000, kills=4, stops=3, cancelled=60, vanished=40)


def test_nothing_is_lost_or_doubled_in_a_storm(
    db: Any, shared_url: str, name: str, rng: random.Random, tmp_path: Path
) -> None:
    directory = tmp_path / "storm"
    directory.mkdir()
    verdict = Storm(shared_url, name, rng.randrange(2**32), directory).run(SHORT)
    print(verdict)
    assert not verdict.problems, "\n".join(verdict.problems)
