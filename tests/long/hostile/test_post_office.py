"""A short run of the post office; `python -m tests.long.hostile.post_office` makes a long one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.long.hostile.post_office import PostOffice


@pytest.mark.long
def test_steps_and_batches_keep_their_promises_while_processes_are_killed_and_stopped(
    db: Any, shared_url: str, name: str, rng: random.Random, tmp_path: Path
) -> None:
    """The fixture `db` removes what the post office leaves behind."""
    office = PostOffice(shared_url, name, rng.randrange(2**32), tmp_path)
    problems = office.run(jobs=40, batch=400)
    print(office.counts)
    assert not problems, "\n".join(problems)
