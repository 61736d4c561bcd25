"""Sequences: groups of one item at a time keep their order despite failures."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import admin
from fdbqueue.testing import Clock
from tests.support.asleep import Asleep
from tests.support.threads import later
from tests.support.waiting import MAX_WAIT


def group_of(db: Any, jobs: Any) -> Any:
    """Return the only group of a queue, as a sweep leaves it."""
    jobs.wait(db, 0)
    (group,) = jobs.groups(db)
    return group


@pytest.fixture
def sequence(db: Any, jobs: Any) -> Any:
    """A queue of which one item of `ada` may be claimed at a time."""
    jobs.set_group(db, "ada", concurrency=1)
    jobs.push_many(db, ["first", "second", "third"], group="ada")
    return jobs


def value(claim: Any) -> Any:
    return claim and claim.items[0].value


def test_a_failed_item_is_tried_again_before_its_successors(db: Any, sequence: Any) -> None:
    with Clock() as clock:
        for _ in range(3):
            claim = sequence.claim(db)
            assert value(claim) == "first"
            sequence.nack(db, claim, delay=60)
            assert sequence.claim(db) is None
            assert sequence.pop(db) is None
            assert group_of(db, sequence).held_by == "retry"
            clock.advance(61)
        assert admin.check(db, sequence).problems == ()
        sequence.ack(db, sequence.claim(db))
        assert value(sequence.claim(db)) == "second"


@pytest.mark.parametrize("change", ["remove", "cancel", "retry", "in_order", "concurrency"])
def test_whatever_ends_the_wait_for_a_retry_lets_the_sequence_go_on(
    db: Any, sequence: Any, change: str, asleep: Asleep
) -> None:
    """It wakes a client that waits."""
    claim = sequence.claim(db)
    sequence.nack(db, claim, delay=3600)
    with later(lambda: sequence.claim(db, wait=2 * MAX_WAIT)) as taken:
        assert asleep.wait(MAX_WAIT)
        if change in ("in_order", "concurrency"):
            sequence.set_group(db, "ada", **{change: False if change == "in_order" else 2})
        else:
            getattr(sequence, change)(db, claim.items[0].id)
        assert value(taken.result(MAX_WAIT)) == ("first" if change == "retry" else "second")


def test_what_was_no_failure_or_none_that_is_tried_again_holds_nobody(
    db: Any, sequence: Any, clock: Clock
) -> None:
    sequence.push(db, "later", group="ada", delay=60)
    assert value(sequence.claim(db, lease=30)) == "first"
    clock.advance(31)
    claim = sequence.claim(db)
    assert value(claim) == "first"  # again: its lease has run out
    assert sequence.claim(db) is None
    sequence.nack(db, claim, dead=True)
    claim = sequence.claim(db)
    assert value(claim) == "second"
    sequence.set_group(db, None, in_order=False)
    sequence.nack(db, claim, delay=60)
    assert value(sequence.claim(db)) == "third"
    assert not group_of(db, sequence).in_order


@pytest.mark.parametrize("delays", [(60, 1), (1, 60)])
def test_a_sequence_waits_for_all_items_that_failed_before_it_was_one(
    db: Any, jobs: Any, delays: tuple[float, float]
) -> None:
    jobs.set_group(db, "ada", concurrency=2)
    jobs.push_many(db, ["first", "second", "third"], group="ada")
    with Clock() as clock:
        claims = jobs.claim(db), jobs.claim(db)
        jobs.set_group(db, "ada", concurrency=1)
        for claim, delay in zip(claims, delays):
            jobs.nack(db, claim, delay=delay)
        clock.advance("2s")
        assert jobs.claim(db) is None
        clock.advance("60s")
        for expected in ("first", "second", "third"):
            claim = jobs.claim(db)
            assert value(claim) == expected
            jobs.ack(db, claim)
