"""A short run of groups with limits; `python -m tests.long.hostile.tenants` makes a long one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.long.hostile.tenant_jobs import GIVEN_BACK
from tests.long.hostile.tenants import Log, Tenants


@pytest.mark.long
def test_groups_keep_their_order_and_limits_while_processes_are_killed_and_stopped(
    db: Any, shared_url: str, name: str, rng: random.Random, tmp_path: Path
) -> None:
    """The fixture `db` removes what the run leaves behind."""
    tenants = Tenants(shared_url, name, rng.randrange(2**32), tmp_path)
    problems = tenants.run(jobs=400)
    print(tenants.counts)
    assert not problems, "\n".join(problems)


Moves = list[tuple[str, str, "str | None"]]


def push(*items: str) -> Moves:
    return [("ready", item, "") for item in items]


def claim(item: str, token: str = "t") -> Moves:
    return [("ready", item, None), ("claimed", item, token)]


def release(item: str) -> Moves:
    return [("claimed", item, None), ("ready", item, "")]


def give_back(version: int) -> Moves:
    return [(GIVEN_BACK, str(version), group) for group in ("ada", None)]


def ack(item: str) -> Moves:
    return [("claimed", item, None)]


@pytest.mark.parametrize(
    ("settings", "commits", "problem"),
    [
        ({"concurrency": 1}, [push("a", "b"), claim("a"), ack("a"), claim("b")], None),
        ({"concurrency": 1}, [push("a", "b"), claim("a"), claim("b")], "2 at 3"),
        ({"concurrency": 1}, [push("a", "b"), claim("a") + claim("b")], "2 at 2"),
        ({"concurrency": 1}, [push("a", "b"), claim("a"), ack("a") + claim("b")], None),
        ({"concurrency": 1}, [push("a"), claim("a"), release("a") + claim("a", "u")], None),
        ({"max_size": 2}, [push("a", "b"), claim("a"), ack("a"), push("c")], None),
        ({"max_size": 2}, [push("a", "b"), claim("a"), push("c")], "3 at 3"),
        ({"rate": (1, 2e-6)}, [push("a", "b"), claim("a"), [], claim("b")], None),
        ({"rate": (1, 2e-6)}, [push("a", "b"), claim("a"), claim("b")], "2 starts in 1"),
        ({"rate": (1, 2e-6)}, [push("a"), claim("a"), release("a"), claim("a", "u")], None),
        ({"rate": (1, 3e-6)}, [push("a"), claim("a"), release("a"), claim("a", "u")], "2 starts"),
        ({"rate": (1, 2e-6)}, [push("a", "b"), claim("a"), give_back(2), claim("b")], None),
        # The same token: its lease was extended
        ({"rate": (1, 3e-6)}, [push("a"), claim("a"), claim("a")], None),
    ],
)
def test_the_log_shows_what_exceeds_a_limit(
    settings: dict[str, Any], commits: list[Moves], problem: str | None
) -> None:
    log = Log(lambda item: "ada", lambda group: settings)
    for version, moves in enumerate(commits, 1):
        log.note(version, moves)
    log.check_rates()
    if problem is None:
        assert log.problems == []
    else:
        assert problem in log.problems[0]
