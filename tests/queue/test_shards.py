"""A queue in several shards, which a cluster can serve from several servers."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fdbqueue import App, PriorityQueue, admin
from fdbqueue.errors import InvalidShards, error_classes
from fdbqueue.jobs import Context
from fdbqueue.layout.keys import shard_of
from fdbqueue.queue.overview import key_ranges
from fdbqueue.testing import Clock
from tests.support.keys import layout_of, waiting_clients
from tests.support.kinds import KINDS, push, value_of
from tests.support.leases import come_due, lapse
from tests.support.recording import RecordingDatabase
from tests.support.scan import assert_views_agree
from tests.support.threads import later
from tests.support.waiting import wait_until

SHARDS = 4
ALL = {b"", b"\x27\x15\x01", b"\x27\x15\x02", b"\x27\x15\x03"}


@pytest.fixture
def jobs(db: Any, name: str) -> PriorityQueue:
    return PriorityQueue.named(db, name, shards=SHARDS)


def shards_of(queue: Any, items: Any) -> list[bytes]:
    return [shard_of(layout_of(queue).position(item.key)) for item in items]


def claimed(db: Any, queue: Any, **options: Any) -> Any:
    """Claim and acknowledge all items; return them in order."""
    while claim := queue.claim(db, **options):
        queue.ack(db, claim)
        yield from claim.items


# Order


@pytest.mark.parametrize("kind", KINDS)
def test_items_lie_in_all_shards_and_views_show_one_queue(db: Any, name: str, kind: Any) -> None:
    queue = kind.named(db, name, shards=SHARDS)
    for number in range(60):
        push(db, queue, number)
    assert_views_agree(db, queue)
    items = queue.claim(db, n=60).items
    assert {*shards_of(queue, items)} == ALL
    assert sorted(map(value_of, items)) == [*range(60)]
    assert_views_agree(db, queue)


@pytest.mark.parametrize("n", [1, 5])
def test_a_better_priority_comes_first_whatever_its_shard(
    db: Any, jobs: PriorityQueue, rng: random.Random, n: int
) -> None:
    priorities = [rng.randrange(6) for _ in range(60)]
    jobs.push_many(db, range(60), priorities=priorities)
    taken = [item.priority for item in claimed(db, jobs, n=n)]
    assert taken == sorted(priorities)


def test_a_pop_takes_what_a_peek_shows_from_either_end(db: Any, jobs: PriorityQueue) -> None:
    jobs.push_many(db, range(40), priorities=[number % 3 for number in range(40)])
    first, last = jobs.peek_many(db, 5), jobs.peek_max(db)
    assert (jobs.pop_many(db, 5), jobs.pop_max(db)) == (first, last)
    assert last is not None
    assert (last.priority, {item.priority for item in first}) == (2, {0})
    assert [item.priority for item in jobs.pop_many(db, 40)] == [0] * 9 + [1] * 13 + [2] * 12
    assert_views_agree(db, jobs)


def test_first_in_first_out_holds_within_a_shard(db: Any, jobs: PriorityQueue) -> None:
    for number in range(40):
        jobs.push(db, number)
    items = [*claimed(db, jobs)]
    for shard in ALL:
        own = [
            each.value for each, lies_in in zip(items, shards_of(jobs, items)) if lies_in == shard
        ]
        assert own == sorted(own)


@pytest.mark.parametrize("state", ["ready", "done"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("wanted", [{}, {"priority": 1}, {"group": "ada"}, {"group": ""}])
def test_pages_list_the_items_of_all_shards_in_order(
    db: Any, name: str, state: Any, reverse: bool, wanted: Any
) -> None:
    jobs: Any = PriorityQueue.named(db, name, shards=SHARDS, keep=100)
    numbers = range(48)
    groups = [("ada", "bob", None)[number // 2 % 3] for number in numbers]
    jobs.push_many(db, numbers, priorities=[number % 2 for number in numbers], groups=groups)
    if state == "done":
        jobs.ack(db, jobs.claim(db, n=48))
    listed = [info.id for info in jobs.items(db, state=state, reverse=reverse, **wanted)]
    assert (
        len({*listed}) == len(listed) == (48 if not wanted else 24 if "priority" in wanted else 16)
    )
    if state == "ready":
        found = jobs.get(db, listed[0]), jobs.get(db, listed[-1])
        assert [info.item.priority for info in found] == (
            [1, 1] if "priority" in wanted else sorted([0, 1], reverse=reverse)
        )
    paged: list[str] = []
    after = None
    while not paged or after:
        page = jobs.search(db, state=state, reverse=reverse, limit=5, after=after, **wanted)
        paged += [info.id for info in page.items]
        after = page.next
    assert paged == listed


def test_the_position_counts_better_priorities_of_all_shards(db: Any, jobs: PriorityQueue) -> None:
    jobs.push_many(db, range(30), priority=1)
    behind = jobs.push(db, "behind", priority=2)
    assert jobs.position(db, behind) == 30


# Groups


def test_a_group_lies_in_one_shard_and_keeps_its_order(db: Any, jobs: PriorityQueue) -> None:
    groups = [f"group {number % 12}" for number in range(120)]
    items = jobs.push_many(db, range(120), groups=groups)
    homes = {*zip(groups, shards_of(jobs, items))}
    assert len(homes) == 12
    assert len({shard for _, shard in homes}) > 1
    taken = [item.value for item in claimed(db, jobs, n=7)]
    assert len(taken) == 120
    for number in range(12):
        assert [each for each in taken if each % 12 == number] == [*range(number, 120, 12)]
    assert_views_agree(db, jobs)


@pytest.mark.parametrize("n", [1, 3])
def test_claims_at_the_same_time_take_different_items_of_several_priorities(
    db: Any, jobs: PriorityQueue, n: int
) -> None:
    """They begin at any of the first `within` items, not all at the few of the best priority."""
    for priority in range(16):
        jobs.push_many(db, [priority] * 4, priority=priority)
    attempts = [db.create_transaction() for _ in range(120)]
    claims = [jobs.claim(tr, n=n, within=32) for tr in attempts]
    taken = [[item.value for item in claim.items] for claim in claims if claim]
    assert all(len(values) == n and values == sorted(values) for values in taken)
    assert {value for values in taken for value in values} == {*range(8)}


@pytest.mark.parametrize("n", [1, 16])
def test_claims_at_the_same_time_take_first_items_of_a_long_shard(
    db: Any, queue: PriorityQueue, n: int
) -> None:
    """All items of the first two priorities stay where they were before there were shards."""
    queue.push_many(db, range(100), priorities=[0, 0, *[1] * 98])
    queue.configure(db, shards=SHARDS)
    queue.push_many(db, range(100, 200), priority=2)
    claims = [queue.claim(db.create_transaction(), n=n, within=64) for _ in range(60)]
    taken = [[item.value for item in claim.items] for claim in claims if claim]
    assert len(taken) == 60
    assert all(len(values) == n and values[-1] < 64 for values in taken)


def test_claims_at_the_same_time_take_the_first_items_of_the_second_priority(
    db: Any, queue: PriorityQueue
) -> None:
    """Of the first 32 items, 30 have the best priority."""
    queue.push_many(db, [0] * 30, priority=0)
    queue.configure(db, shards=SHARDS)
    behind = queue.push_many(db, [1] * 200, priority=1)
    shards = shards_of(queue, behind)
    claims = [queue.claim(db.create_transaction(), within=32) for _ in range(200)]
    items = [claim.items[0] for claim in claims if claim]
    places = [
        shards[: behind.index(item)].count(shards[behind.index(item)])
        for item in items
        if item.value
    ]
    assert places
    assert max(places) < 2


def test_items_without_a_group_have_their_turns_beside_a_group_of_another_shard(
    db: Any, jobs: PriorityQueue
) -> None:
    jobs.push_many(db, ["ada"] * 60, group="ada")
    jobs.push_many(db, [None] * 8)
    taken = Counter[Any]()
    for _ in range(60):
        tr = db.create_transaction()
        claim = jobs.claim(tr)
        assert claim is not None
        tr.commit().wait()
        taken[claim.items[0].value] += 1
        if claim.items[0].value is None:
            jobs.push(db, None)
    assert taken[None] >= 20


@pytest.mark.parametrize("weight", [0.5, 1, 6])
def test_the_items_without_a_group_share_as_one_group_of_all_shards(
    db: Any, jobs: PriorityQueue, weight: float
) -> None:
    jobs.set_group(db, "", weight=weight)
    jobs.push_many(db, ["none"] * 160)
    for group in ("ada", "bob"):
        jobs.push_many(db, [group] * 80, group=group)
    taken = Counter[str]()
    for _ in range(130):
        claim = jobs.claim(db)
        assert claim is not None
        taken[claim.items[0].value] += 1
    assert taken["none"] == pytest.approx(130 * weight / (2 + weight), abs=6)


def test_the_concurrency_of_a_group_holds(db: Any, jobs: PriorityQueue) -> None:
    jobs.set_group(db, None, concurrency=2)
    for number in range(40):
        jobs.push(db, number, group=f"group {number % 8}")
    claim = jobs.claim(db, n=40)
    assert claim is not None
    assert {*Counter(item.value % 8 for item in claim.items).values()} == {2}
    jobs.ack(db, claim)
    assert len([*claimed(db, jobs, n=40)]) == 24


def test_groups_share_in_proportion_to_their_weights(db: Any, jobs: PriorityQueue) -> None:
    """The share of a group differs by the draws of shards only: 0.1 is four deviations."""
    jobs.set_group(db, "big", weight=3)
    groups = ["big", "one", "two", "three"]
    for group in groups:
        jobs.push_many(db, [group] * 400, group=group)
    taken = Counter(claim.item.value for claim in map(jobs.claim, [db] * 400) if claim)
    for group in groups:
        assert abs(taken[group] / 400 - (3 if group == "big" else 1) / 6) < 0.1


def test_an_item_follows_its_new_group(db: Any, jobs: PriorityQueue) -> None:
    groups = [f"group {number}" for number in range(20)]
    items = jobs.push_many(db, groups, groups=groups)
    homes = dict(zip(groups, shards_of(jobs, items)))
    moved = [jobs.update(db, item, group="group 0") for item in items]
    assert {*shards_of(jobs, moved)} == {homes["group 0"]}
    assert [item.id for item in moved] == [item.id for item in items]
    assert [jobs.get(db, item.id).item for item in items] == moved
    assert_views_agree(db, jobs)
    assert [item.value for item in claimed(db, jobs)] == groups


# What one transaction or sweep does in all shards


@pytest.mark.parametrize("shards", [SHARDS, 32])
def test_timers_are_found_in_all_shards(db: Any, name: str, shards: int) -> None:
    jobs = PriorityQueue.named(db, name, shards=shards)
    for number in range(24):
        jobs.push(db, number, delay=600)
    assert jobs.claim(db) is None
    come_due(db, jobs)
    claims = [jobs.claim(db) for _ in range(24)]
    assert all(claims)
    assert jobs.claim(db) is None
    lapse(db, jobs)
    assert jobs.size(db) == 24
    assert len([*claimed(db, jobs, n=5)]) == 24
    assert_views_agree(db, jobs)


def test_a_claim_that_finds_nothing_has_looked_at_the_timers_of_all_shards(
    db: Any, name: str
) -> None:
    jobs = PriorityQueue.named(db, name, shards=32)
    for number in range(8):
        jobs.push(db, number, delay=600)
        come_due(db, jobs)
        claim = PriorityQueue.named(db, name).claim(db)
        assert claim is not None
        jobs.ack(db, claim)


def test_items_expire_in_all_shards(db: Any, jobs: PriorityQueue, clock: Any) -> None:
    jobs.push_many(db, range(24), ttl=5)
    clock.advance(6)
    assert jobs.pop(db) is None
    assert jobs.stats(db).total_expired == 24
    assert_views_agree(db, jobs)


def test_a_claim_takes_no_expired_item_of_a_shard_that_it_does_not_sweep(
    db: Any, name: str
) -> None:
    jobs = PriorityQueue.named(db, name, shards=64)
    with Clock() as clock:
        for _ in range(30):
            jobs.push_many(db, ["expired"] * 60, ttl=60)
            jobs.push_many(db, ["ready"] * 200)
            clock.advance(61)
            claim = jobs.claim(db)
            assert claim is not None
            assert claim.items[0].value == "ready"
            jobs.clear(db)


def test_done_items_are_kept_and_trimmed_over_all_shards(db: Any, name: str, clock: Any) -> None:
    jobs = PriorityQueue.named(db, name, shards=SHARDS, keep=10)
    ended = list[str]()
    for number in range(24):
        jobs.push(db, number)
        claim = jobs.claim(db)
        assert claim is not None
        ended.append(claim.item.id)
        jobs.ack(db, claim)
        clock.advance(1)  # items that are done at the same time have no order
    PriorityQueue.named(db, name).pop(db)  # its first pop trims
    assert [info.id for info in jobs.items(db, state="done")] == ended[:-11:-1]
    assert_views_agree(db, jobs)


def test_a_unique_key_holds_for_all_shards(db: Any, jobs: PriorityQueue) -> None:
    first = jobs.push(db, "first", unique="k", group="ada")
    for number in range(10):
        assert jobs.push(db, "again", unique="k", group=f"group {number}").id == first.id
    assert jobs.size(db) == 1


def test_a_waiting_client_wakes_for_a_push_to_any_shard(db: Any, name: str) -> None:
    """Also if it began to wait before the queue had any option."""
    jobs = PriorityQueue.named(db, name, shards=SHARDS)
    for number in range(8):
        with later(lambda: PriorityQueue.named(db, name).claim(db, wait=60)) as waiting:
            wait_until(lambda: waiting_clients(db, jobs))
            jobs.push(db, number)
            claim = waiting.result()
        assert claim is not None
        assert claim.item.value == number
        jobs.ack(db, claim)


def test_jobs_with_steps_signals_and_batches_run(db: Any, name: str) -> None:
    app = App(db)
    app.queue(name, shards=SHARDS)
    told = list[Any]()

    @app.job(queue=name)
    def child(number: int) -> int:
        return number

    @app.job(queue=name)
    def parent(context: Context) -> None:
        ran = [context.run(f"child {number}", child, number) for number in range(6)]
        told.extend([ran, context.wait("told", key="it").value])

    @app.job(queue=name)
    def report(done: int, dead: int, cancelled: int) -> None:
        told.append(done)

    parent.push()
    with app.batch(then=report) as batch:
        batch.push_many(child, map(child.bind, range(20)))
    app.work(drain=True)
    assert told == [20]
    assert app.signal(db, "told", key="it", value=7, queue=name) == 1
    app.work(drain=True)
    assert told == [20, [*range(6)], 7]
    assert_views_agree(db, app.queue(name))


def test_backups_and_renames_keep_the_shards(
    db: Any, jobs: PriorityQueue, name: str, tmp_path: Path
) -> None:
    ids = {item.id for item in jobs.push_many(db, range(30))}
    with (tmp_path / "backup").open("wb") as file:
        admin.backup(db, file, [name])
    admin.rename(db, name, f"{name} 2")
    with (tmp_path / "backup").open("rb") as file:
        admin.restore(db, file, [name])
    for each in (name, f"{name} 2"):
        queue: Any = PriorityQueue.existing(db, each)
        assert queue.options(db).shards == SHARDS
        assert {item.id for item in queue.items(db)} == ids
        assert_views_agree(db, queue)
    admin.drop(db, f"{name} 2")


# More and fewer shards


def test_groups_keep_their_order_while_a_queue_gets_more_shards(
    db: Any, queue: PriorityQueue, rng: random.Random
) -> None:
    """Groups with items stay where they are; others may go to the new shards."""
    groups = [f"group {number}" for number in range(10)]
    pushed, taken = dict[str, list[int]](), dict[str, list[int]]()
    held: list[Any] = []
    for round, shards in enumerate((1, 4, 4, 9, 9)):
        queue.configure(db, shards=shards)
        for number in range(60):
            group = rng.choice(groups)
            queue.push(db, [group, round * 60 + number], group=group)
            pushed.setdefault(group, []).append(round * 60 + number)
        for _ in range(30):
            claim = queue.claim(db)
            assert claim is not None
            group, number = claim.item.value
            taken.setdefault(group, []).append(number)
            held.append(claim)
        assert admin.check(db, queue).problems == ()
    for claim in held:
        queue.ack(db, claim)
    for item in claimed(db, queue, n=3):
        taken[item.value[0]].append(item.value[1])
    assert taken == pushed
    items = [queue.push(db, group, group=group) for group in groups]
    later = [queue.push(db, number) for number in range(60)]
    assert len({*shards_of(queue, items)}) > 1
    assert len({*shards_of(queue, later)}) == 9


def test_a_group_stays_when_a_client_pushes_that_knows_an_earlier_number_of_shards(
    db: Any, queue: PriorityQueue
) -> None:
    queue.push(db, "so that groups may be somewhere")
    queue.configure(db, shards=2)
    other = PriorityQueue(queue.subspace)
    other.push(db, "of two")
    queue.configure(db, shards=16)
    groups = [f"group {number}" for number in range(10)]
    first = queue.push_many(db, groups, groups=groups)
    assert {*shards_of(queue, first)} - {b"", b"\x27\x15\x01"}
    second = other.push_many(db, groups, groups=groups)
    assert shards_of(queue, second) == shards_of(queue, first)


def test_a_group_whose_items_are_claimed_or_delayed_stays(db: Any, queue: PriorityQueue) -> None:
    queue.set_group(db, None, concurrency=1)
    first = [queue.push(db, number, group=f"group {number}") for number in range(10)]
    claims = [queue.claim(db) for _ in first]
    queue.configure(db, shards=8)
    second = [queue.push(db, number, group=f"group {number}") for number in range(10)]
    assert {*shards_of(queue, second)} == {b""}
    for claim in claims:
        assert claim is not None
        queue.nack(db, claim, delay=0)
    taken = [item.id for item in claimed(db, queue)]
    for before, after in zip(first, second):
        assert taken.index(before.id) < taken.index(after.id)


def test_a_group_whose_items_came_back_to_a_cleared_queue_stays(
    db: Any, queue: PriorityQueue
) -> None:
    groups = [f"group {number}" for number in range(10)]
    queue.push_many(db, groups, groups=groups)
    popped = queue.pop_many(db, 10)
    queue.clear(db)
    queue.put_back(db, popped)
    queue.configure(db, shards=8)
    items = queue.push_many(db, groups, groups=groups)
    assert {*shards_of(queue, items)} == {b""}


def test_a_group_that_has_no_items_any_more_leaves_no_row(db: Any, queue: PriorityQueue) -> None:
    queue.push(db, "so that groups may be somewhere")
    queue.configure(db, shards=8, keep=20)
    homes = layout_of(queue).range_of(layout_of(queue).group_homes)
    items = [queue.push(db, number, group=f"group {number}") for number in range(20)]
    assert len([*db.get_range(*homes)]) == 20
    PriorityQueue(queue.subspace).remove(db, items[7])
    PriorityQueue(queue.subspace).update(db, items[8], group="group 9")
    assert len([*db.get_range(*homes)]) == 18
    claims = [queue.claim(db, n=6) for _ in range(4)]
    for claim in claims:
        assert claim is not None
        queue.ack(db, claim)
    assert [*db.get_range(*homes)] == []
    for _ in range(2):
        queue.push(db, "ends beside another one", group="ada")
    last: list[Any] = [queue.claim(db) for _ in range(2)]
    trs = [db.create_transaction() for _ in last]
    for tr, claim in zip(trs, last):
        queue.ack(tr, claim)
    trs[0].commit().wait()
    with pytest.raises(error_classes()) as conflict:
        trs[1].commit().wait()
    assert conflict.value.code == 1020
    queue.ack(db, last[1])
    assert [*db.get_range(*homes)] == []
    assert_views_agree(db, queue)


def test_fewer_shards_are_refused_while_a_higher_one_holds_an_item(
    db: Any, jobs: PriorityQueue
) -> None:
    jobs.configure(db, keep=100)
    items = jobs.push_many(db, range(30))
    with pytest.raises(InvalidShards, match="a higher shard still holds items, such as ") as caught:
        jobs.configure(db, shards=2)
    assert caught.value.shards == 2
    assert jobs.options(db).shards == SHARDS
    for item, shard in zip(items, shards_of(jobs, items)):
        if shard not in (b"", b"\x27\x15\x01"):
            jobs.remove(db, item)
    jobs.configure(db, shards=2)
    assert {*shards_of(jobs, jobs.push_many(db, range(30)))} == {b"", b"\x27\x15\x01"}
    assert_views_agree(db, jobs)


def test_popped_items_of_a_shard_that_is_gone_return_to_another(
    db: Any, jobs: PriorityQueue
) -> None:
    groups = [None if number % 2 else f"group {number}" for number in range(40)]
    jobs.push_many(db, range(40), groups=groups)
    items = jobs.pop_many(db, 40)
    jobs.configure(db, shards=2)
    jobs.put_back(db, items)
    assert_views_agree(db, jobs)
    assert {info.id for info in jobs.items(db)} == {item.id for item in items}
    taken = [*claimed(db, jobs)]
    assert {*shards_of(jobs, taken)} == {b"", b"\x27\x15\x01"}
    assert sorted(item.value for item in taken) == [*range(40)]
    assert {item.id for item in taken} == {item.id for item in items}


def test_a_client_that_asks_for_shards_obeys_the_stored_number(db: Any, name: str) -> None:
    """Its first push finds out that the queue has another number."""
    first = PriorityQueue.named(db, name)
    first.push(db, "first", group="ada")
    items = [PriorityQueue.named(db, name, shards=8).push(db, n, delay=600) for n in range(8)]
    assert {*shards_of(first, items)} == {b""}
    first.configure(db, shards=8)
    other = PriorityQueue.named(db, name)
    other.push(db, "of eight")
    first.clear(db)
    first.configure(db, shards=1)
    assert {*shards_of(first, [other.push(db, n) for n in range(8)])} == {b""}


def test_a_group_is_in_one_shard_also_if_the_queue_had_one_in_between(db: Any, name: str) -> None:
    jobs = PriorityQueue.named(db, name, shards=2)
    jobs.push(db, "so that groups may be somewhere")
    jobs.clear(db)
    jobs.push(db, "again")
    jobs.pop(db)
    jobs.configure(db, shards=1)
    groups = [f"group {number}" for number in range(10)]
    first = [jobs.push(db, 1, group=group) for group in groups]
    jobs.configure(db, shards=4)
    second = [jobs.push(db, 2, group=group) for group in groups]
    assert {*shards_of(jobs, [*first, *second])} == {b""}
    assert [item.value for item in claimed(db, jobs)].count(2) == 10


def test_what_comes_back_joins_its_group_where_it_is_now(db: Any, name: str) -> None:
    """Dead letters, with their failed attempts, and popped items: at their places."""
    jobs = PriorityQueue.named(db, name, shards=2)
    groups = [f"group {number}" for number in range(12)]
    for group in groups:
        jobs.push(db, [group, "dead"], group=group)
        jobs.nack(db, jobs.claim(db), dead=True, error="broken")
    popped = []
    for group in groups:
        jobs.push(db, [group, "popped"], group=group)
        popped.append(jobs.pop(db))
    jobs.configure(db, shards=16)
    for group in groups:
        jobs.push(db, [group, "new"], group=group)
    jobs.put_back(db, popped)
    dead = [*jobs.items(db, state="dead")]
    for info in dead:
        assert jobs.retry(db, info.id)
    assert_views_agree(db, jobs)
    assert [len(jobs.get(db, info.id).failed_attempts) for info in dead] == [1] * 12
    taken = [tuple(item.value) for item in claimed(db, jobs)]
    for group in groups:
        assert [what for of, what in taken if of == group] == ["dead", "popped", "new"]


@pytest.mark.parametrize("verb", ["pop", "claim", "wait"])
@pytest.mark.parametrize("delay", [0, 0.2])
def test_a_client_that_waits_learns_that_a_queue_has_more_shards(
    db: Any, name: str, verb: str, delay: float
) -> None:
    jobs = PriorityQueue.named(db, name)
    jobs.push(db, "first")
    jobs.pop(db)
    waits = PriorityQueue.named(db, name)
    waits.pop(db)
    act: Any = {"pop": waits.pop, "claim": waits.claim, "wait": waits.wait}[verb]
    arguments = [20] if verb == "wait" else []
    options = {} if verb == "wait" else {"wait": 20}
    with later(lambda: act(db, *arguments, **options)) as waiting:
        time.sleep(0.3)
        jobs.configure(db, shards=32)
        time.sleep(0.3)
        jobs.push(db, "second", delay=delay)
        assert waiting.result()  # before it looks without a reason


def test_a_claim_takes_as_many_due_items_of_one_group_as_without_shards(db: Any, name: str) -> None:
    jobs = PriorityQueue.named(db, name, shards=32)
    jobs.push_many(db, range(200), group="ada", delay=600)
    come_due(db, jobs)
    assert len(jobs.pop_many(db, 200)) == 200


def test_a_group_with_only_delayed_items_stays(db: Any, queue: PriorityQueue) -> None:
    groups = [f"group {number}" for number in range(10)]
    for group in groups:
        queue.push(db, "first", group=group, delay=600)
    queue.configure(db, shards=8)
    items = [queue.push(db, "second", group=group) for group in groups]
    assert {*shards_of(queue, items)} == {b""}


@pytest.mark.parametrize(
    ("options", "name_of_option"),
    [
        ({"concurrency": 3}, "concurrency"),
        ({"rate": (3, 60)}, "rate"),
        ({"max_size": 3}, "max_size"),
    ],
)
def test_what_counts_over_the_whole_queue_is_refused(
    db: Any, jobs: PriorityQueue, queue: PriorityQueue, options: Any, name_of_option: str
) -> None:
    refused = f"shards=4: a queue with several shards has no {name_of_option}"
    with pytest.raises(InvalidShards, match=refused):
        jobs.configure(db, **options)
    with pytest.raises(InvalidShards, match=refused):
        App(db).queue("declared", shards=4, **options)
    queue.configure(db, **options)
    with pytest.raises(InvalidShards, match=refused):
        queue.configure(db, shards=4)
    queue.configure(db, shards=1)


@pytest.mark.parametrize("shards", [0, 65, 2.0, "2", True])
def test_a_wrong_number_of_shards_is_refused(db: Any, name: str, shards: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="shards"):
        PriorityQueue.named(db, name, shards=shards)


# What the shards have in common


def test_no_key_and_no_range_is_common_to_all_shards(db: Any, name: str) -> None:
    """Except for the options, the list of waiting clients, receipts, and now and then history."""
    recorded = RecordingDatabase(db)
    jobs = PriorityQueue.named(recorded, name, shards=SHARDS)
    for number in range(40):
        jobs.push(recorded, number, group=f"group {number % 20}" if number % 2 else None)
    layout = layout_of(jobs)
    common = layout.options, layout.waiters, layout.history, layout.receipts.key(), layout.scheduled
    of_groups = layout.group_settings  # of all groups: two rows that change seldom
    recorded.touched.clear()
    shards = set[bytes]()
    ranges = [(begin, end) for shard, begin, end in key_ranges(jobs, db) if shard]
    for number in range(20):
        jobs.push(recorded, number)
        claim = jobs.claim(recorded, n=2)
        assert claim is not None
        jobs.ack(recorded, claim)
    for begin, end in recorded.touched:
        if begin.startswith((*common, of_groups)):
            continue
        prefix = max((each for each in layout.known_prefixes() if begin.startswith(each)), key=len)
        shard = shard_of(begin[len(prefix) :])
        shards.add(shard)
        assert end <= prefix + (shard + b"\xff" if shard else b"\x27"), (begin, end)
        assert not shard or any(low <= begin < end <= high for low, high in ranges), begin
    assert shards == ALL


def test_each_key_of_a_later_shard_lies_in_a_range_that_moves(db: Any, name: str) -> None:
    jobs: Any = PriorityQueue.named(db, name, shards=SHARDS, keep=100)
    for number in range(40):
        group = f"group {number % 20}" if number % 2 else None
        jobs.push(db, number, priority=2, group=group, ttl=600)
        jobs.push(db, number, delay=600)
        jobs.update(db, jobs.push(db, number, priority=9), priority=1)
    for _ in range(12):
        jobs.ack(db, jobs.claim(db), result="done")
        jobs.nack(db, jobs.claim(db), error="failed", dead=True)
        jobs.nack(db, jobs.claim(db), error="failed", delay=600)
    layout = layout_of(jobs)
    ranges = [(begin, end) for shard, begin, end in key_ranges(jobs, db) if shard]
    kinds = set[bytes]()
    for row in db.get_range(*layout.range_of(layout.subspace.key())):
        prefix = max(filter(row.key.startswith, layout.known_prefixes()), key=len)
        if shard_of(row.key[len(prefix) :]):
            kinds.add(prefix)
            assert any(begin <= row.key < end for begin, end in ranges), row.key
    assert {layout.returned, layout.moved, layout.dead, layout.turns} < kinds
