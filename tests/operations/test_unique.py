"""The scopes of unique keys: until the item is claimed, until it has ended, and for a period."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue, Queue, TaskQueue
from fdbqueue.admin import check
from fdbqueue.errors import QueueFull
from fdbqueue.testing import Clock, FaultyDatabase
from tests.support.counting import CountingDatabase
from tests.support.full import unless_full
from tests.support.keys import layout_of, rows_in
from tests.support.leases import come_due, expire, lapse

CLAIMED: Any = {"unique": "k", "unique_until": "claimed"}
HOUR: Any = {"unique": "k", "unique_for": "1h"}


@pytest.fixture
def jobs(space: Subspace) -> PriorityQueue:
    """Return an empty queue whose items may be claimed twice."""
    return PriorityQueue(space["jobs"], max_attempts=2)


def rows(db: Any, queue: PriorityQueue, space: str) -> int:
    """Return the number of rows of a key space of a queue."""
    return len(rows_in(db, queue, space))


def keys_stored(db: Any, queue: PriorityQueue) -> tuple[int, int]:
    return rows(db, queue, "unique_keys"), rows(db, queue, "unique_ends")


# Until claimed


def test_one_item_waits_while_another_is_claimed(db: Any, jobs: PriorityQueue) -> None:
    first = jobs.push(db, 1, **CLAIMED)
    assert jobs.push(db, 2, **CLAIMED) == first
    claim = jobs.claim(db)
    second = jobs.push(db, 2, **CLAIMED)
    assert second.is_new
    assert not jobs.push(db, 3, **CLAIMED).is_new
    jobs.ack(db, claim)  # leaves the key to the second item
    assert jobs.push(db, 3, **CLAIMED) == second
    assert [info.unique for info in jobs.items(db, state="ready")] == ["k"]
    jobs.ack(db, jobs.claim(db))
    assert keys_stored(db, jobs) == (0, 0)
    assert check(db, jobs).ok


def test_a_pop_frees_the_key(db: Any, jobs: PriorityQueue) -> None:
    jobs.push(db, 1, **CLAIMED)
    jobs.pop(db)
    assert jobs.push(db, 2, **CLAIMED).is_new
    assert check(db, jobs).ok


@pytest.mark.parametrize("end", ["release", "nack", "delayed nack", "lapse"])
@pytest.mark.parametrize("is_free", [True, False])
def test_an_item_that_returns_takes_the_key_again_if_it_is_free(
    db: Any, jobs: PriorityQueue, end: str, is_free: bool
) -> None:
    first = jobs.push(db, 1, **CLAIMED)
    claim = jobs.claim(db)
    info = jobs.get(db, first)
    assert info.unique == "k"
    second = None if is_free else jobs.push(db, 2, **CLAIMED)
    if end == "release":
        jobs.release(db, claim)
    elif end == "lapse":
        lapse(db, jobs)
    else:
        jobs.nack(db, claim, delay=60 if end == "delayed nack" else 0)
    again = jobs.claim(db, within=1) if end == "lapse" else None
    if again is not None:  # which found that the lease is over
        jobs.release(db, again)
    assert jobs.push(db, 3, **CLAIMED) == (first if is_free else second)
    assert check(db, jobs).ok
    come_due(db, jobs)
    assert len(jobs.pop_many(db, 9)) == (1 if is_free else 2)
    assert keys_stored(db, jobs) == (0, 0)


def test_the_first_of_several_items_that_return_gets_the_key(db: Any, jobs: PriorityQueue) -> None:
    items = []
    for number in range(3):
        items.append(jobs.push(db, number, **CLAIMED))
        assert jobs.claim(db) is not None
    lapse(db, jobs)
    claim = jobs.claim(db, within=1)  # sweeps all
    jobs.release(db, claim)
    found = jobs.push(db, 3, **CLAIMED)
    assert found in items
    assert check(db, jobs).ok
    jobs.remove(db, found)
    assert jobs.push(db, 4, **CLAIMED).is_new  # the others wait without the key
    assert check(db, jobs).ok


def test_a_dead_letter_comes_back_only_if_its_key_is_free(db: Any, jobs: PriorityQueue) -> None:
    dead = jobs.push(db, 1, **CLAIMED)
    jobs.nack(db, jobs.claim(db), dead=True)
    waiting = jobs.push(db, 2, **CLAIMED)
    assert waiting.is_new
    assert not jobs.retry(db, dead)
    jobs.claim(db)
    assert jobs.retry(db, dead)
    assert jobs.push(db, 3, **CLAIMED) == dead
    assert check(db, jobs).ok


def test_the_key_follows_an_item_that_is_moved(db: Any, jobs: PriorityQueue) -> None:
    item = jobs.push(db, 1, **CLAIMED)
    jobs.reprioritize(db, item, 7)
    assert jobs.push(db, 2, **CLAIMED).id == item.id
    jobs.release(db, jobs.claim(db))
    assert jobs.push(db, 2, **CLAIMED).id == item.id
    assert check(db, jobs).ok
    jobs.claim(db)
    assert jobs.cancel(db, item.id)
    assert jobs.push(db, 3, **CLAIMED).is_new
    lapse(db, jobs)
    assert [item.value for item in jobs.pop_many(db, 9)] == [3]
    assert check(db, jobs).ok


# For a period


def test_a_key_is_not_free_for_its_period_even_if_the_item_has_ended(
    db: Any, jobs: PriorityQueue, clock: Clock
) -> None:
    first = jobs.push(db, 1, 5, **HOUR)
    assert first.is_new
    assert jobs.push(db, 2, **HOUR) == first
    jobs.ack(db, jobs.claim(db))
    clock.advance(3590)
    again = jobs.push(db, 2, 1, **HOUR)
    assert (again.id, again.priority, again.value, again.is_new) == (first.id, 5, 2, False)
    assert jobs.is_empty(db)
    assert check(db, jobs).ok
    clock.advance(20)
    second = jobs.push(db, 3, **HOUR)
    assert second.is_new
    clock.advance(3590)  # the period begins with the second item
    assert jobs.push(db, 4, **HOUR) == second
    assert keys_stored(db, jobs) == (1, 1)
    assert check(db, jobs).ok


def test_a_period_ends_although_its_item_has_not(
    db: Any, jobs: PriorityQueue, clock: Clock
) -> None:
    first = jobs.push(db, 1, delay="3h", **HOUR)
    clock.advance(3601)
    second = jobs.push(db, 2, **HOUR)
    assert second.is_new
    assert jobs.remove(db, first)  # which leaves the key to the second item
    assert jobs.push(db, 3, **HOUR) == second
    infos = [*jobs.items(db, state="ready")]
    assert [info.unique for info in infos] == ["k"]
    assert check(db, jobs).ok


@pytest.mark.parametrize("end", ["dead", "done", "moved", "claimed", "released", "expired"])
def test_a_repeated_push_within_the_period_returns_the_first_item(
    db: Any, jobs: PriorityQueue, end: str
) -> None:
    if end == "done":
        jobs.push(db, "option")
        jobs.configure(db, keep=9)
        jobs.pop(db)
    first = jobs.push(db, 1, ttl=1000 if end == "expired" else None, **HOUR)
    if end == "moved":
        jobs.reprioritize(db, first, 3)
    elif end == "expired":
        expire(db, jobs)
    else:
        claim = jobs.claim(db)
        if end == "dead":
            jobs.nack(db, claim, dead=True)
        elif end == "done":
            jobs.ack(db, claim)
        elif end == "released":
            jobs.release(db, claim)
    again = jobs.push(db, 2, **HOUR)
    assert (again.id, again.is_new) == (first.id, False)
    assert again.value == (2 if end == "expired" else 1)
    assert check(db, jobs).ok
    if end == "dead":
        assert jobs.retry(db, first)
        assert check(db, jobs).ok


def test_periods_that_are_over_are_deleted_by_pushes(
    db: Any, jobs: PriorityQueue, clock: Clock
) -> None:
    jobs.push_many(db, [*range(250)], unique=[f"k{n}" for n in range(250)], unique_for=60)
    assert keys_stored(db, jobs) == (250, 250)
    clock.advance(61)
    for left in (151, 52, 2):  # a push deletes 100 of them
        jobs.push(db, 0, unique=f"new {left}", unique_for=3600)
        assert keys_stored(db, jobs) in [(left, left), (3, 3)]
    assert check(db, jobs).ok


@pytest.mark.parametrize("full", ["queue", "group"])
@pytest.mark.parametrize("in_callers", [False, True])
def test_a_refused_push_deletes_a_key_whose_period_is_over(
    db: Any, jobs: PriorityQueue, clock: Clock, full: str, in_callers: bool
) -> None:
    jobs.push(db, 1, **HOUR)
    jobs.pop(db)
    jobs.push(db, 2, group="g")
    if full == "queue":
        jobs.configure(db, max_size=1)
    else:
        jobs.set_group(db, "g", max_size=1)
    clock.advance("1h")
    tr = db.create_transaction() if in_callers else db
    assert unless_full(jobs.push, tr, 3, group="g", **HOUR) is None
    if in_callers:
        tr.commit().wait()
    assert keys_stored(db, jobs) == (0, 0)
    assert check(db, jobs).problems == ()
    jobs.pop(db)
    assert jobs.push(db, 4, group="g", **HOUR).is_new
    assert keys_stored(db, jobs) == (1, 1)
    assert check(db, jobs).problems == ()


@pytest.mark.parametrize("take", ["claim", "pop"])
def test_periods_that_are_over_are_deleted_by_clients_that_take_items(
    db: Any, jobs: PriorityQueue, clock: Clock, take: str
) -> None:
    jobs.push_many(db, [1, 2], unique=["a", "b"], unique_for=30)
    jobs.push(db, 3, unique="c", unique_until="ended")
    getattr(jobs, take)(db)
    assert rows(db, jobs, "unique_ends") == 2
    clock.advance(61)
    getattr(jobs, take)(db)
    assert rows(db, jobs, "unique_ends") == 0
    assert [row.key for row in rows_in(db, jobs, "unique_keys")] == [
        layout_of(jobs).unique_key("c")
    ]
    assert check(db, jobs).ok


def test_a_key_that_is_taken_again_outlives_its_earlier_period(
    db: Any, jobs: PriorityQueue, clock: Clock
) -> None:
    """A client that has read the end of the earlier period deletes it after the second push."""
    jobs.push(db, 1, unique="k", unique_for=10)
    clock.advance(11)
    late = db.create_transaction()
    jobs.push(late, 0, unique="other", unique_for=3600)
    second = jobs.push(db, 2, **HOUR)
    late.commit().wait()
    assert jobs.push(db, 3, **HOUR) == second
    assert check(db, jobs).ok


def test_a_client_whose_clock_is_ahead_ends_a_period_early(db: Any, space: Subspace) -> None:
    jobs = PriorityQueue(space["jobs"])
    jobs.push(db, 1, **HOUR)
    with Clock() as ahead:
        ahead.advance(3601)
        assert jobs.push(db, 2, **HOUR).is_new
    # The period of an item pushed in the future is longer by the difference.
    assert not jobs.push(db, 3, **HOUR).is_new


# All scopes


def test_a_key_has_the_scope_of_the_push_that_stored_the_item(
    db: Any, jobs: PriorityQueue, clock: Clock
) -> None:
    first = jobs.push(db, 1, unique="k")
    assert jobs.push(db, 2, **CLAIMED) == jobs.push(db, 2, **HOUR) == first
    jobs.claim(db)
    assert jobs.push(db, 3, **CLAIMED) == first
    lapse(db, jobs)
    jobs.pop(db)
    second = jobs.push(db, 4, **HOUR)
    assert jobs.push(db, 5, unique="k") == second
    clock.advance(3601)
    third = jobs.push(db, 6, unique="k")
    assert third.is_new
    assert keys_stored(db, jobs) == (1, 0)
    assert check(db, jobs).ok


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"unique": "k", "unique_until": "done"}, "unique_until is one of 'claimed', 'ended', not"),
        ({"unique": "k", "unique_until": "claimed", "unique_for": 1}, "not both"),
        ({"unique_until": "claimed"}, "unique_until needs a key"),
        ({"unique_for": "1h"}, "unique_for needs a key"),
        ({"unique": "k", "unique_for": 0}, "unique_for is a number of seconds over 0"),
        ({"unique": "k", "unique_for": "soon"}, "unique_for is a number of seconds, or a text"),
    ],
)
@pytest.mark.parametrize("kind", [PriorityQueue, Queue, TaskQueue])
def test_a_wrong_combination_is_refused_and_stores_nothing(
    db: Any, space: Subspace, kind: Any, wrong: dict[str, Any], error: str
) -> None:
    queue = kind(space["q"])
    value = () if kind is TaskQueue else (1,)
    with pytest.raises(ValueError, match=error):
        queue.push(db, *value, **wrong)
    many: dict[str, Any] = {**wrong, "unique": ["k"] if "unique" in wrong else None}
    arguments, options = ([wrong], {}) if kind is TaskQueue else ([1], many)
    with pytest.raises(ValueError, match=error):
        queue.push_many(db, arguments, **options)
    assert not [*db[space.range()]]


def test_push_many_needs_a_key_for_each_value(db: Any, jobs: PriorityQueue) -> None:
    with pytest.raises(ValueError, match="there are 2 values and 1 unique keys"):
        jobs.push_many(db, [1, 2], unique=["k"])
    with pytest.raises(TypeError, match="a key for each value"):
        jobs.push_many(db, [1, 2], unique="ab")
    with pytest.raises(ValueError, match="unique is text"):
        jobs.push_many(db, [1], unique=[""])


@pytest.mark.parametrize("scope", [{}, {"unique_until": "claimed"}, {"unique_for": 60}])
def test_push_many_returns_the_item_of_each_key(db: Any, jobs: PriorityQueue, scope: Any) -> None:
    known = jobs.push(db, "known", unique="a", **scope)
    items = jobs.push_many(db, [1, 2, 3, 4], unique=["a", "b", "b", None], **scope)
    assert [item.is_new for item in items] == [False, True, False, True]
    assert [item.value for item in items] == ["known", 2, 2, 4]
    assert items[0] == known
    assert items[1] == items[2]
    assert jobs.size(db) == 3
    assert check(db, jobs).ok


def test_push_many_to_a_bounded_queue_needs_room_for_new_items_only(
    db: Any, space: Subspace
) -> None:
    jobs = PriorityQueue(space["jobs"], max_size=3)
    known = jobs.push(db, "known", unique="a")
    assert len(jobs.push_many(db, [1, 2, 2, 1], unique=["a", "b", "b", "a"])) == 4
    with pytest.raises(QueueFull):
        jobs.push_many(db, [1, 2], unique=["c", "d"])
    assert unless_full(jobs.push_many, db, [1, 2], unique=["c", "d"]) is None
    fitting = jobs.push_many(
        db, [1, 2, 3, 4], unique=["a", "c", "d", "a"], unique_for=60, as_many_as_fit=True
    )
    assert [item.value for item in fitting] == ["known", 2]
    assert jobs.push(db, 0, unique="a") == known  # which needs no room
    assert jobs.size(db) == 3
    assert check(db, jobs).ok


@pytest.mark.parametrize("scope", [{}, {"unique_until": "claimed"}, {"unique_for": 60}])
def test_of_pushes_that_race_exactly_one_is_new(
    db: Any, space: Subspace, scope: Any, rng: Any
) -> None:
    """Answers of commits get lost, too."""
    seed = rng.randrange(2**32)
    faulty: Any = FaultyDatabase(db, before=0.2, after=0.2, seed=seed)
    handles = [PriorityQueue(space["jobs"]) for _ in range(4)]
    for key in range(10):
        begin = threading.Barrier(4, timeout=60)

        def push(queue: PriorityQueue, key: int = key, begin: Any = begin) -> Any:
            begin.wait()
            return queue.push(faulty, 0, unique=f"{key}", **scope)

        with ThreadPoolExecutor(4) as threads:
            items = [*threads.map(push, handles)]
        assert sum(item.is_new for item in items) == 1
        assert len({item.id for item in items}) == 1
    assert handles[0].size(db) == 10
    assert check(db, handles[0]).ok


def test_of_a_claim_and_a_push_that_race_one_sees_the_other(
    db: Any, jobs: PriorityQueue, fdb_error: Any
) -> None:
    """Pushes that read before the claim, and commit after it, begin again."""
    first = jobs.push(db, 1, **CLAIMED)
    push, claim = db.create_transaction(), db.create_transaction()
    assert not jobs.push(push, 2, **CLAIMED).is_new
    push[jobs.subspace["other"]] = b"written because the job waits"
    assert jobs.claim(claim) is not None
    claim.commit().wait()
    with fdb_error(1020):
        push.commit().wait()
    del db[jobs.subspace["other"]]
    second = jobs.push(db, 2, **CLAIMED)
    assert second.is_new
    # The same for an item that returns while another one is pushed.
    jobs.remove(db, second)
    push, release = db.create_transaction(), db.create_transaction()
    assert jobs.push(push, 3, **CLAIMED).is_new
    jobs.release(release, first.id)
    push.commit().wait()
    with fdb_error(1020):
        release.commit().wait()
    jobs.release(db, first.id)
    assert check(db, jobs).ok


def test_other_pushes_and_claims_pay_nothing_for_the_scopes(
    db: Any, jobs: PriorityQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns()  # the history of the queue costs more when a minute begins
    monkeypatch.setattr(
        "fdbqueue.database.clock.time",
        SimpleNamespace(time_ns=lambda: now, monotonic=time.monotonic),
    )
    monkeypatch.setattr("fdbqueue.coordination.sweeper._SWEEP_IN_CLAIM", 0.0)  # each claim sweeps
    counting: Any = CountingDatabase(db)
    jobs.push(db, 0)
    jobs.push(db, 0, unique="first")
    jobs.claim(db, n=2)

    def cost(**options: Any) -> tuple[int, int]:
        counting.clear()
        jobs.push(counting, 0, **options)
        return counting.reads, len(counting.mutations)

    cost()  # the first one of a client deletes old receipts
    reads, mutations = cost()
    assert (reads, mutations) == (2, 4)  # with the receipt of the commit
    assert cost(unique="a")[1] == mutations + 1
    assert cost(unique="b", unique_until="claimed")[1] == mutations + 1
    assert cost(unique="c", unique_for=60)[1] == mutations + 2
    unique_reads = cost(unique="d")[0]
    assert cost(unique="e", unique_until="claimed")[0] == unique_reads
    assert cost(unique="f", unique_for=60)[0] == unique_reads + 1  # for the periods that are over

    def claim(**options: Any) -> tuple[int, int]:
        jobs.clear(db)
        jobs.push(db, 0, **options)
        counting.clear()
        jobs.claim(counting)
        return counting.reads, len(counting.mutations)

    plain = claim()
    assert claim(unique="k") == claim(unique="k", unique_for=60) == plain
    assert claim(**CLAIMED) == (plain[0], plain[1] + 1)


def test_check_finds_and_repairs_the_ends_of_periods(db: Any, jobs: PriorityQueue) -> None:
    jobs.push(db, 1, **HOUR)
    jobs.pop(db)
    (end,) = rows_in(db, jobs, "unique_ends")
    del db[end.key]
    assert "not found by its index" in check(db, jobs).problems[0]
    assert check(db, jobs, repair=True).repaired
    del db[layout_of(jobs).unique_key("k")]
    assert "leads to no item" in check(db, jobs).problems[0]
    assert check(db, jobs, repair=True).repaired
    assert keys_stored(db, jobs) == (0, 0)


def test_a_caller_may_push_in_a_transaction(db: Any, jobs: PriorityQueue) -> None:
    @fdbqueue.transactional
    def push(tr: fdbqueue.Transaction) -> list[bool]:
        items = [jobs.push(tr, 1, **CLAIMED), jobs.push(tr, 2, **CLAIMED)]
        claim = jobs.claim(tr)
        items.append(jobs.push(tr, 3, **CLAIMED))
        jobs.release(tr, claim)
        items += jobs.push_many(tr, [4, 5], unique=["k", "p"], unique_for=9)
        return [item.is_new for item in items]

    assert push(db) == [True, False, True, False, True]
    assert jobs.size(db) == 3
    assert check(db, jobs).ok
