"""The ledger of the storm detects lost and duplicated values, and allows unknown outcomes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.long.hostile.ledger import (
    DISK_FAILED,
    DISK_UNCERTAIN,
    HALF_CLOSED,
    HUNG_UP,
    Operation,
    account,
    account_effects,
)

SERVER_KILLS = [(100.0, 101.0)]
DISK_FAULTS = [(200.0, 203.0)]


def done(kind: str, at: float, *values: str, **fields: Any) -> Operation:
    """Return an acknowledged operation of one second; ends of a claim refer to its number."""
    operation = Operation("holder", int(at), kind, "jobs", list(values), began=at, ended=at + 1)
    claim = fields.pop("claim", None)
    if claim is not None:
        fields |= {"client": claim.client, "claim": claim.number}
    return replace(operation, **{"outcome": "done"} | fields)


def unknown(kind: str, at: float, *values: str, why: str = "killed", **fields: Any) -> Operation:
    """Return an operation that was in flight."""
    return done(kind, at, *values, outcome="unknown", why=why, **fields)


def nothing(kind: str, at: float, *values: str, why: str = "", **fields: Any) -> Operation:
    """Return an operation that promises to have had no effect."""
    return done(kind, at, *values, outcome="nothing", why=why, **fields)


PUSH, POP, BACK = done("push", 1, "a"), done("pop", 3, "a"), done("put_back", 5, "a")
CLAIM, LATER = done("claim", 3, "a", lease=5.0), done("claim", 10, "a", lease=5.0, client="other")
PUSHES = done("push", 1, "a", "b")


def end(kind: str, at: float, claim: Operation = CLAIM, *values: str, **fields: Any) -> Operation:
    """Return an operation that ends or extends a claim."""
    return done(kind, at, *(values or "a"), claim=claim, **fields)


LOST = {"outcome": "nothing", "why": "lease lost"}


@pytest.mark.parametrize(
    ("operations", "left", "problem"),
    [
        # Losses
        ([PUSH], "", "lost"),
        ([PUSH], "a", None),
        ([PUSH, POP], "", None),
        ([PUSH, POP, BACK], "", "lost"),
        ([PUSH, CLAIM], "", "lost"),
        ([PUSH, CLAIM, end("ack", 5)], "", None),
        ([PUSHES, done("remove", 3, "a")], "", "lost: b"),
        # Doubles
        ([PUSH, POP], "a", "doubled"),
        ([PUSH], "aa", "doubled"),
        ([PUSH, POP, done("pop", 5, "a")], "", "doubled"),
        ([done("push", 5, "a"), POP], "", "doubled"),  # before it was pushed
        ([], "a", "appeared"),
        # Unknown operations
        ([unknown("push", 1, "a"), POP], "a", "doubled"),
        ([PUSH, unknown("pop", 3, at_most=1)], "", None),
        ([PUSHES, unknown("pop", 3, at_most=1)], "", "lost"),
        ([PUSH, unknown("pop", 3, "b", at_most=1)], "", "lost: a"),
        ([done("push", 9, "a"), unknown("pop", 3, at_most=1)], "", "lost"),  # pushed later
        ([done("push", 9, "a"), unknown("pop", 3, client="a-http-1", at_most=1)], "", None),
        ([PUSH, done("claim", 9, "a"), unknown("pop", 3, at_most=1)], "", "lost"),  # seen later
        ([PUSH, unknown("nack", 3, "a")], "", "lost"),
        # What was shown was put
        ([unknown("push", 1, "a"), done("peek", 3, "a")], "", "lost"),
        # A disk that fails
        ([PUSH, unknown("pop", 201, why=DISK_UNCERTAIN, at_most=1)], "", None),
        ([PUSH, nothing("pop", 201, why=DISK_FAILED, at_most=1)], "", "lost"),
        ([PUSH, nothing("pop", 3, why=DISK_FAILED, at_most=1)], "a", "failed"),  # it worked
        ([PUSH, nothing("pop", 199, why=HALF_CLOSED, at_most=1)], "", None),
        # Claims
        ([PUSH, CLAIM, LATER, end("ack", 12, LATER)], "", None),
        ([PUSH, CLAIM, LATER, end("ack", 12)], "", "not fenced"),
        ([PUSH, CLAIM, done("claim", 5, "a", client="other")], "a", "handed out twice"),
        ([PUSH, CLAIM, done("pop", 5, "a", client="other")], "", "handed out twice"),
        ([PUSH, CLAIM, end("release", 4), done("claim", 5.5, "a")], "a", None),
        ([PUSH, CLAIM, end("ack", 4, **LOST)], "a", "too early"),
        ([PUSH, CLAIM, end("ack", 9, **LOST)], "a", None),
        # Killed servers
        ([PUSH, unknown("pop", 3, why=HUNG_UP, at_most=1)], "", "failed"),
        ([PUSH, nothing("pop", 98, why=HALF_CLOSED, at_most=1)], "", None),
    ],
)
def test_the_verdict_matches_the_operations(
    operations: list[Operation], left: str, problem: str | None
) -> None:
    verdict = account(operations, {"jobs": list(left)}, SERVER_KILLS, DISK_FAULTS)
    if problem is None:
        assert verdict.problems == []
    else:
        assert verdict.problems
        assert problem in verdict.problems[0]


@pytest.mark.parametrize(
    ("operations", "left", "times", "exactly_once", "problem"),
    [
        ([PUSH], "", 1, True, None),
        ([PUSH], "a", 0, True, None),
        ([PUSH], "", 0, True, "lost"),
        ([PUSH], "", 2, True, "doubled"),
        ([PUSH], "a", 1, True, "doubled"),
        ([unknown("push", 1, "a"), done("peek", 3, "a")], "", 0, True, "lost"),
        ([PUSH], "", 2, False, None),
        ([PUSH], "", 0, False, "lost"),
    ],
)
def test_each_job_has_its_effect(
    operations: list[Operation], left: str, times: int, exactly_once: bool, problem: str | None
) -> None:
    problems = account_effects(operations, list(left), {"a": times}, exactly_once)
    assert [each.partition(":")[0] for each in problems] == ([problem] if problem else [])
