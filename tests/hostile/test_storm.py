"""A short storm in every test run; `python -m tests.hostile` runs a long one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.hostile.storm import Amount, Storm

SHORT = Amount(operations=1_000, kills=4, stops=3, cancelled=60, vanished=40)


def test_a_storm_neither_loses_nor_duplicates_values(
    db: Any, shared_url: str, name: str, rng: random.Random, tmp_path: Path
) -> None:
    directory = tmp_path / "storm"
    directory.mkdir()
    verdict = Storm(shared_url, name, rng.randrange(2**32), directory).run(SHORT)
    print(verdict)
    assert not verdict.problems, "\n".join(verdict.problems)
