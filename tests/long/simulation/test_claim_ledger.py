"""The ledger of the claim simulation accepts valid acts and rejects invalid ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fdbqueue import Claim, Item
from tests.long.simulation.ledger import Act, Ledger
from tests.long.simulation.scheduler import Commit

A = Item("a", 1, "id of a", b"place of a")
DEAD: Any = SimpleNamespace(item=A, attempts=2)


def took_place(kind: str, version: int, **about: Any) -> Act:
    """Return an act that read at a version and committed a moment later."""
    return Act(kind, returned=True, commits=[Commit(version, version + 1)], **about)


def claimed(version: int, token: bytes, attempt: int = 1, key: bytes = A.key) -> Act:
    """Return a claim with a lease of one millisecond: a thousand versions."""
    claim = Claim((A,), (attempt,), (key,), token)
    return took_place("claim at once", version, n=1, lease=0.001, result=claim)


PUSH = took_place("push", 10, pushed={"a": 1}, result=[("a", A.key)])
LATER = took_place("push", 10, pushed={"a": 1}, delay=5.0, result=[("a", A.key)])
X, Y = claimed(100, b"x"), claimed(2_000, b"y", 2)
KILLED = Act("claim at once", n=1, commits=[Commit(50, 51)])
NONE = took_place("claim at once", 5_000, n=1, begun=5)


def by(kind: str, claim: Act, version: int) -> Act:
    """Return an act of the holder of a claim."""
    return took_place(kind, version, claim=claim.result, lease=0.001)


def made_again(first: Act, last: Act) -> Act:
    """Return an act whose first commit had an unknown result."""
    return replace(last, commits=first.commits + last.commits)


@pytest.mark.parametrize(
    ("acts", "verdict"),
    [
        ([PUSH, X, by("ack", X, 200)], "right"),
        ([PUSH, X, by("ack", X, 1_500)], "right"),  # late, but not claimed again
        ([PUSH, X, Y, by("ack", Y, 2_100)], "right"),
        ([PUSH, X], "are lost"),
        ([PUSH, X, claimed(500, b"y", 2)], "is claimed"),  # before the lease was over
        ([PUSH, X, by("extend", X, 900), claimed(1_500, b"y", 2)], "is claimed"),
        ([PUSH, X, by("release", X, 200), claimed(500, b"y"), by("ack", Y, 600)], "right"),
        ([PUSH, X, by("nack", X, 200), claimed(500, b"y"), by("ack", Y, 600)], "1 times"),
        ([PUSH, X, Y, by("ack", X, 2_100)], "not its own"),
        ([PUSH, X, by("ack", X, 200), by("ack", X, 300)], "gone by ack"),
        ([PUSH, X, by("ack", X, 200), Y], "gone by ack"),
        ([PUSH, claimed(100, b"x", key=b"elsewhere")], "not in its place"),
        ([PUSH, took_place("pop inside", 100, result=[("a", A.key)]), Y], "gone by pop"),
        ([PUSH, NONE], "waits"),
        ([PUSH, X, NONE], "waits"),
        ([LATER, X], "not due"),
        ([LATER, NONE], "are lost"),
        (
            [PUSH, claimed(100, b"x", 2), by("ack", X, 200)],
            "too often",
        ),  # the first claim is missing
        ([PUSH, KILLED, Y, by("ack", Y, 2_100)], "right"),
        ([PUSH, replace(NONE, returned=False, failed=True), X, by("ack", X, 200)], "right"),
        ([PUSH, replace(X, returned=False, failed=True), Y, by("ack", Y, 2_100)], "too often"),
        ([PUSH, made_again(X, Y), by("ack", Y, 2_100)], "right"),
        ([PUSH, made_again(X, claimed(500, b"y", 2)), by("ack", Y, 600)], "too often"),
        ([took_place("push", 10), made_again(PUSH, took_place("push", 9_000))], "took place twice"),
    ],
)
def test_the_ledger_accepts_valid_acts_and_rejects_invalid_ones(
    acts: list[Act], verdict: str
) -> None:
    commits = [act.commits[0] for act in acts]
    ledger = Ledger(commits)
    effects = Counter("a" for act in acts[-1:] if act.kind == "ack")
    try:
        ledger.note(acts)
        ledger.close([], effects)
    except AssertionError as error:
        assert verdict in str(error)  # noqa: PT017
    else:
        assert verdict == "right"


def test_a_lease_is_lost_only_after_a_sweep() -> None:
    read: Any = SimpleNamespace(version=3_000)
    lost = Act("ack", X.result, lost=A.id, transaction=read)
    Ledger([Commit(2_000, 2_001)]).note([PUSH, X, lost])
    with pytest.raises(AssertionError, match="is its own"):
        Ledger([Commit(500, 501)]).note([PUSH, X, lost])
    lost.commits.append(Commit(3_000, 3_001))
    with pytest.raises(AssertionError, match="and committed"):
        Ledger([Commit(2_000, 2_001)]).note([PUSH, X, lost])


def test_dead_letters_and_effects_must_match_the_acts() -> None:
    nacked = by("nack", Y, 2_100)
    Ledger([], 2).note([PUSH, X, Y, nacked])
    for letters, effects, verdict in [
        ([], Counter[str](), "no dead letters"),
        ([DEAD, DEAD], Counter[str](), "twice"),
        ([DEAD], Counter("a"), "effects"),
    ]:
        ledger = Ledger([], 2)
        ledger.note([PUSH, X, Y, nacked])
        with pytest.raises(AssertionError, match=verdict):
            ledger.close(letters, effects)
    ledger.close([DEAD], Counter())
