"""A short run of the thumbnails; `python -m tests.long.hostile.thumbnails` makes a long one."""

from __future__ import annotations

import random
from pathlib import Path

from tests.long.hostile.thumbnails import Service


def test_each_picture_is_written_once_and_each_end_has_its_reasons(
    shared_url: str, name: str, rng: random.Random, tmp_path: Path
) -> None:
    service = Service(shared_url, name, rng.randrange(2**32), tmp_path)
    problems = service.run(jobs=60, kills=3, stops=1)
    print(service.counts)
    assert not problems, "\n".join(problems)
