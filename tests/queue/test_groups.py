"""Groups share what is taken from a priority, within their limits; sequences keep their order."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest

import fdbqueue
from fdbqueue import admin
from fdbqueue.errors import LeaseLost
from fdbqueue.testing import Clock
from tests.support.asleep import Asleep
from tests.support.kinds import KINDS, push, value_of
from tests.support.leases import lapse
from tests.support.threads import later
from tests.support.waiting import MAX_WAIT


@pytest.mark.parametrize("kind", KINDS)
def test_groups_share_whatever_one_of_them_pushes_first(db: Any, name: str, kind: Any) -> None:
    """Each of them in the order of arrival; the items without a group are one more."""
    jobs = kind.named(db, name)
    groups = ["flood"] * 40 + ["ada", "bob", None] * 10
    for number, group in enumerate(groups):
        push(db, jobs, [group, number], group=group)
    taken = [value_of(jobs.pop(db)) for _ in range(40)]
    assert Counter(group for group, _ in taken) == dict.fromkeys(("flood", "ada", "bob", None), 10)
    for group in {*groups}:
        own = [number for each, number in taken if each == group]
        assert own == sorted(own)
    assert value_of(jobs.pop(db))[0] == "flood"


def test_groups_are_listed_by_pages_also_if_all_their_items_are_delayed(db: Any, jobs: Any) -> None:
    names = ["ada", "bob", "bob\x00", "cleo"]
    for group in names:
        for priority in (1, 2):
            jobs.push(db, 0, priority, group=group, delay=60 if "bob" in group else None)
    listed = jobs.groups(db)
    assert [each.name for each in listed] == names
    assert [(each.ready, each.delayed) for each in listed] == [(2, 0), (0, 2), (0, 2), (2, 0)]
    for limit in (1, 3):
        paged: list[str] = []
        while page := jobs.groups(db, after=paged[-1] if paged else None, limit=limit):
            assert len(page) == min(limit, len(names) - len(paged))
            paged += [each.name for each in page]
        assert paged == names


def test_items_without_a_group_have_a_weight_and_are_not_listed(db: Any, jobs: Any) -> None:
    def shown() -> list[tuple[Any, ...]]:
        return [(each.name, each.ready, each.claimed, each.weight) for each in jobs.groups(db)]

    jobs.push_many(db, [None] * 20)
    assert shown() == []  # a queue without groups
    jobs.push_many(db, ["ada"] * 20, group="ada")
    jobs.set_group(db, "", weight=3)
    claim = jobs.claim(db, n=8)
    assert Counter(item.value for item in claim.items) == {None: 6, "ada": 2}
    assert shown() == [("ada", 18, 2, 1)]
    assert jobs.groups(db, after="") == jobs.groups(db)
    jobs.set_group(db, None, weight=0.5)
    jobs.set_group(db, "", weight=None)
    jobs.ack(db, claim)
    assert shown() == [("ada", 18, 0, 0.5)]
    jobs.change_all(db, "clear", group="")
    assert jobs.size(db) == 18


def test_weights_hold_at_once_and_change_in_the_middle(db: Any, jobs: Any) -> None:
    jobs.set_group(db, "big", weight=3)
    for group in ("big", "small"):
        jobs.push_many(db, [group] * 150, group=group)

    def shares(n: int) -> Counter[str]:
        return Counter(item.value for item in jobs.pop_many(db, n))

    assert shares(40) == {"big": 30, "small": 10}
    jobs.set_group(db, "small", weight=6)
    assert abs(shares(60)["small"] - 40) <= 2
    jobs.set_group(db, None, weight=2)  # of all groups without a weight of their own
    jobs.set_group(db, "small", weight=None)
    assert abs(shares(50)["big"] - 30) <= 2


def test_the_lowest_priority_comes_first_and_groups_share_within_it(db: Any, jobs: Any) -> None:
    jobs.push_many(db, ["late ada"] * 2, priority=5, group="ada")
    jobs.push_many(db, ["ada", "ada"], priority=1, group="ada")
    jobs.push_many(db, ["bob", "bob"], priority=1, group="bob")
    jobs.push(db, "plain", priority=3)
    assert [item.value for item in jobs.peek_many(db, 7)][4:] == ["plain", "late ada", "late ada"]
    claim = jobs.claim(db, n=7)
    assert sorted(item.value for item in claim.items[:4]) == ["ada", "ada", "bob", "bob"]
    assert [item.value for item in claim.items[4:]] == ["plain", "late ada", "late ada"]
    jobs.release(db, claim)
    assert jobs.pop_max(db).value == "late ada"


def test_claims_do_not_exceed_the_concurrency(db: Any, jobs: Any, limit: Any) -> None:
    limit(concurrency=2)
    jobs.push_many(db, range(9), priorities=[0, 1, 1, *[2] * 6], group="ada")
    assert jobs.pop(db).value == 0  # takes no slot
    first, _ = jobs.claim(db, n=10)
    assert jobs.claim(db) is None
    jobs.extend(db, first)
    assert jobs.claim(db) is None
    jobs.ack(db, first)
    with pytest.raises(LeaseLost):
        jobs.ack(db, first)  # frees no slot twice
    for end in (partial(jobs.nack, delay=3600), jobs.release, partial(jobs.nack, delay=0)):
        (held,) = jobs.claim(db, n=10)
        assert jobs.claim(db) is None
        end(db, held)
        jobs.set_group(db, "ada", in_order=False)
        assert admin.check(db, jobs).ok
    lapse(db, jobs)  # which also frees that of the second one
    assert len(jobs.claim(db, n=10)) == 2


def test_a_lower_concurrency_holds_at_once(db: Any, jobs: Any, limit: Any, asleep: Asleep) -> None:
    """A client that waits wakes once enough of the items that are over it have ended."""
    limit(concurrency=3)
    jobs.push_many(db, range(4), group="ada")
    claims = [jobs.claim(db) for _ in range(3)]
    limit(concurrency=1)
    jobs.wait(db, 0)
    for claim in claims[:2]:
        jobs.ack(db, claim)
        assert jobs.claim(db) is None
    with later(lambda: jobs.claim(db, wait=2 * MAX_WAIT)) as found:
        assert asleep.wait(MAX_WAIT)
        jobs.ack(db, claims[2])
        assert found.result(MAX_WAIT).item.value == 3
    limit(concurrency=None)
    jobs.push_many(db, range(9), group="ada")
    assert len(jobs.claim(db, n=9)) == 9


def test_settings_are_read_back_as_they_were_set(db: Any, jobs: Any) -> None:
    assert jobs.group_settings(db) == jobs.group_settings(db, "ada") == {}
    given: dict[str, Any] = {
        **{"weight": 2.5, "concurrency": 1, "rate": (3, 60.0)},
        **{"in_order": False, "max_size": 7},
    }
    jobs.set_group(db, None, **given)
    assert jobs.group_settings(db) == given
    jobs.set_group(db, "ada", paused=True, **given)
    jobs.clear(db)  # keeps them
    jobs.set_group(db, None, **dict.fromkeys(given))
    assert (jobs.group_settings(db), jobs.group_settings(db, "bob")) == ({}, {})
    read = jobs.group_settings(db, "ada")
    assert read == {**given, "paused": True}
    jobs.set_group(db, "bob", **read)
    assert jobs.group_settings(db, "bob") == read


def test_an_item_counts_by_its_cost(db: Any, jobs: Any) -> None:
    jobs.push_many(db, ["ada"] * 20, group="ada", cost=3)
    jobs.push_many(db, ["bob"] * 20, group="bob")
    taken = [jobs.pop(db).value for _ in range(16)]
    assert (taken.count("ada"), taken.count("bob")) == (4, 12)
    claim = jobs.claim(db, n=8)
    assert [item.value for item in claim.items].count("ada") == 2
    jobs.nack(db, claim, delay=0)  # they keep their costs
    assert [jobs.pop(db).value for _ in range(4)].count("ada") == 1


def test_claims_that_skip_items_do_not_skip_groups(db: Any, jobs: Any) -> None:
    """A claim in a transaction begins at any of the first `within` items."""
    jobs.push_many(db, ["ada"] * 30, group="ada")
    jobs.push_many(db, ["others"] * 300)
    claims = [fdbqueue.transactional(lambda tr: jobs.claim(tr, within=256))(db) for _ in range(40)]
    assert Counter(claim.item.value for claim in claims) == {"ada": 20, "others": 20}


def test_a_group_that_was_away_does_not_catch_up(db: Any, jobs: Any) -> None:
    for away, present in (("ada", None), (None, "ada")):
        jobs.clear(db)
        jobs.push_many(db, [away, away], group=away)
        jobs.push(db, present, group=present)
        assert Counter(jobs.pop(db).value for _ in range(3)) == {away: 2, present: 1}
        jobs.push_many(db, [present] * 60, group=present)
        jobs.pop_many(db, 50)
        jobs.push_many(db, [away] * 10, group=away)
        assert [jobs.pop(db).value for _ in range(10)].count(away) in (5, 6)


# Sequences: groups of one item at a time keep their order despite failures


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
