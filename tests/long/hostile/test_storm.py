"""Storms over all operations; `FDBQ_STORMS=10` makes them ten times as long."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.long.hostile.disk.shim import Disk, need_shim
from tests.long.hostile.storm import Amount, Storm

TIMES = int(os.environ.get("FDBQ_STORMS", "1"))
SHORT = Amount(operations=1_000, kills=4, stops=3, cancelled=60, vanished=40).times(TIMES)
DISK = Amount(operations=500, kills=3, stops=2, cancelled=20, vanished=10, faults=6).times(TIMES)


@pytest.mark.long
def test_a_storm_neither_loses_nor_duplicates_values(
    db: Any, shared_url: str, name: str, rng: random.Random, tmp_path: Path
) -> None:
    directory = tmp_path / "storm"
    directory.mkdir()
    verdict = Storm(shared_url, name, rng.randrange(2**32), directory).run(SHORT)
    print(verdict)
    assert not verdict.problems, "\n".join(verdict.problems)


@pytest.mark.long
def test_a_storm_on_a_failing_disk_loses_no_value(rng: random.Random, tmp_path: Path) -> None:
    need_shim()
    for name in ("db", "storm"):
        (tmp_path / name).mkdir()
    disk = Disk(tmp_path / "db", tmp_path)
    storm = Storm(
        f"embedded:{disk.root}", "storm-", rng.randrange(2**32), tmp_path / "storm", disk=disk
    )
    verdict = storm.run(DISK)
    print(verdict)
    assert not verdict.problems, "\n".join(verdict.problems)
