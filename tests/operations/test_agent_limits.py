"""The agents of a task queue have limits of their own, which no client exceeds."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

import fdbqueue
from fdbqueue import TaskQueue
from fdbqueue.admin import check
from fdbqueue.errors import LeaseLost
from fdbqueue.layout.values import encode_options
from fdbqueue.testing import Clock
from tests.support.counting import CountingDatabase, writes
from tests.support.keys import layout_of
from tests.support.leases import lapse
from tests.support.waiting import MAX_WAIT


@pytest.fixture
def tasks(db: Any, name: str) -> Any:
    return TaskQueue.named(db, f"{name}tasks")


def push(db: Any, tasks: Any, **numbers: int) -> None:
    """Push tasks of agents, `none` for those without one; they have the same rank."""
    for agent, n in numbers.items():
        tasks.push_many(db, [{"group": None if agent == "none" else agent}] * n)


def agents_of(claim: Any) -> Counter[str | None]:
    return Counter(task.agent_name for task in claim.items) if claim else Counter()


# Concurrency


def test_an_agent_has_a_limit_of_its_own_or_that_of_all(db: Any, tasks: Any) -> None:
    push(db, tasks, ada=5, bob=5, none=2)
    tasks.set_group(db, None, concurrency=2)
    tasks.set_group(db, "bob", concurrency=3)
    assert tasks.options(db).agent_concurrency == 2
    claim = tasks.claim(db, n=20)
    assert agents_of(claim) == {"ada": 2, "bob": 3, None: 2}
    assert tasks.claim(db) is None
    assert tasks.claim(db, agent="bob") is None
    tasks.set_group(db, "ada", concurrency=4)
    assert agents_of(tasks.claim(db, n=20)) == {"ada": 2}
    tasks.set_group(db, "bob", concurrency=None)  # now that of all, which is lower
    (first, *_) = [each for each in claim if each.item.agent_name == "bob"]
    tasks.ack(db, first)
    assert tasks.claim(db) is None
    tasks.configure(db, agent_concurrency=None)
    assert agents_of(tasks.claim(db, n=20)) == {"bob": 2}
    assert check(db, tasks).ok


def test_only_one_agent_has_a_limit(db: Any, tasks: Any) -> None:
    push(db, tasks, ada=5, bob=5)
    tasks.set_group(db, "ada", concurrency=1)
    claim = tasks.claim(db, n=20)
    assert agents_of(claim) == {"ada": 1, "bob": 5}
    assert {each.name: each.claimed for each in tasks.groups(db)} == {"ada": 1, "bob": 5}
    tasks.ack(db, claim)
    assert agents_of(tasks.claim(db, n=20)) == {"ada": 1}
    assert check(db, tasks).ok


def test_a_queue_that_stored_the_limit_of_all_agents_keeps_it(db: Any, name: str) -> None:
    tasks = TaskQueue.named(db, f"{name}tasks")
    push(db, tasks, ada=3)
    # As earlier versions stored it: an option, and nothing else.
    options = fdbqueue.types.Options(
        "task", "task", tasks.options(db).priorities, None, agent_concurrency=1
    )
    db[layout_of(tasks).options] = encode_options(options)
    opened = TaskQueue.existing(db, f"{name}tasks")
    (info,) = opened.groups(db)
    assert (info.name, info.ready, info.claimed, info.concurrency) == ("ada", 3, 0, 1)
    claim = opened.claim(db, n=3)
    assert len(claim) == 1
    opened.set_group(db, "ada", concurrency=2)
    assert len(opened.claim(db, n=3)) == 1
    opened.ack(db, claim)
    assert check(db, opened).ok


def test_a_late_acknowledgement_frees_no_slot_twice(db: Any, tasks: Any) -> None:
    push(db, tasks, ada=3)
    tasks.set_group(db, "ada", concurrency=1)
    late = tasks.claim(db)
    lapse(db, tasks)
    assert tasks.claim(db) is not None  # which takes the task of the lease that is over
    with pytest.raises(LeaseLost):
        tasks.ack(db, late)
    assert tasks.claim(db) is None
    assert [each.claimed for each in tasks.groups(db)] == [1]
    assert check(db, tasks).ok


def work(db: Any, name: str, seed: int, done: list[int], left: threading.Event) -> None:
    """Claim tasks until all are done; acknowledge, return or forget each of them."""
    rng = random.Random(seed)
    tasks: Any = TaskQueue.named(db, name)
    while not left.is_set():
        agent = rng.choice([None, None, None, "a", "c"])
        claim = tasks.claim(
            db, n=rng.choice([1, 1, 3]), lease=rng.choice([0.05, 30]), wait=0.1, agent=agent
        )
        for each in claim or ():
            fate = rng.random()
            if fate < 0.1:
                time.sleep(0.06)  # past a short lease
            with suppress(LeaseLost):
                if fate < 0.7 or each.attempt > 4:
                    tasks.ack(db, each)
                    done.append(each.item.payload)
                elif fate < 0.85:
                    tasks.nack(db, each, delay=0)
                else:
                    tasks.release(db, each)


def test_no_agent_exceeds_its_limit_and_none_is_stuck(
    db: Any, name: str, rng: random.Random
) -> None:
    tasks = TaskQueue.named(db, f"{name}tasks")
    limits = {"a": 1, "b": 2, "c": 3, "d": 4}
    for agent in "abc":
        tasks.set_group(db, agent, concurrency=limits[agent])
    tasks.set_group(db, None, concurrency=limits["d"])
    agents = rng.choices(["a", "b", "c", "d", None], k=120)
    tasks.push_many(db, [{"group": each, "payload": n} for n, each in enumerate(agents)])
    done: list[int] = []
    is_over = threading.Event()
    threads = [
        threading.Thread(target=work, args=(db, f"{name}tasks", rng.random(), done, is_over))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + MAX_WAIT
    while tasks.stats(db).unfinished and time.monotonic() < deadline:
        claimed = Counter(info.group for info in tasks.items(db, state="claimed"))
        for agent, limit in limits.items():
            assert claimed[agent] <= limit
    is_over.set()
    for thread in threads:
        thread.join(60)
    assert sorted(done) == list(range(120))
    assert check(db, tasks).problems == ()
    assert all(each.claimed == 0 and each.held_by is None for each in tasks.groups(db))


def test_overlapping_claims_never_exceed_the_limit_of_an_agent(
    db: Any, name: str, rng: random.Random
) -> None:
    """Transactions overlap, claim different tasks, change the limit, and commit in any order."""
    refused = 0
    for number in range(5):
        tasks = TaskQueue.named(db, f"{name}{number}")
        push(db, tasks, ada=60)
        limit = rng.randrange(1, 5)
        tasks.set_group(db, "bob", concurrency=1)
        in_flight: list[Any] = []
        held = 0
        for step in range(40):
            if step == 10:
                tasks.set_group(db, "ada", concurrency=held + limit)  # which claims have not seen
                limit += held
            if rng.random() < 0.6 or not in_flight:
                tr = db.create_transaction()
                in_flight.append((tr, tasks.claim(tr, n=rng.randrange(1, 3), within=40)))
                continue
            tr, claim = in_flight.pop(rng.randrange(len(in_flight)))
            try:
                tr.commit().wait()
            except fdbqueue.error_classes() as error:
                refused += {1020: 1}[error.code]  # any error but a conflict is raised
            else:
                held += 0 if claim is None else len(claim)
            assert step < 10 or held <= limit
        assert check(db, tasks).ok
    assert refused > 0


def test_claims_of_an_agent_far_from_its_limit_do_not_conflict(db: Any, tasks: Any) -> None:
    push(db, tasks, ada=40)
    tasks.set_group(db, "ada", concurrency=10_000)
    transactions: list[Any] = []
    positions: set[bytes] = set()
    while len(transactions) < 4:
        tr = db.create_transaction()
        claim: Any = tasks.claim(tr, within=40)
        if positions.isdisjoint(claim.keys):
            positions.update(claim.keys)
            transactions.append(tr)
    for tr in transactions:
        tr.commit().wait()
    assert [each.claimed for each in tasks.groups(db)] == [4]


def test_a_claim_that_waits_at_a_full_agent_is_woken(
    db: Any, tasks: Any, asleep: threading.Event
) -> None:
    push(db, tasks, ada=4)
    tasks.set_group(db, "ada", concurrency=1)
    claim = tasks.claim(db)
    with ThreadPoolExecutor(2) as threads:
        for agent in (None, "ada"):
            asleep.clear()
            waits = threads.submit(tasks.claim, db, wait=120, agent=agent)
            assert asleep.wait(60)
            tasks.ack(db, claim)
            claim = waits.result(60)
            assert claim is not None
        asleep.clear()
        waits = threads.submit(tasks.claim, db, wait=120)
        assert asleep.wait(60)
        tasks.set_group(db, "ada", concurrency=2)
        assert waits.result(60) is not None


# Paused


def test_a_paused_agent_is_handed_out_to_nobody(db: Any, tasks: Any) -> None:
    push(db, tasks, ada=3, bob=2, none=1)
    tasks.set_group(db, "ada", paused=True)
    first = tasks.peek(db)
    assert first.agent_name == "ada"
    assert tasks.pop(db, agent="ada") is None
    assert tasks.claim(db, agent="ada") is None
    assert [task.agent_name for task in tasks.pop_many(db, 2)] == ["bob", "bob"]
    claim = tasks.claim(db, n=9)
    assert agents_of(claim) == {None: 1}
    assert tasks.pop(db) is None
    assert tasks.claim(db) is None
    assert fdbqueue.transactional(lambda tr: tasks.pop(tr))(db) is None
    assert tasks.size(db) == 3
    tasks.set_group(db, "ada", paused=False)
    assert [task.agent_name for task in tasks.pop_many(db, 9)] == ["ada"] * 3
    assert check(db, tasks).ok


def test_all_agents_but_the_paused_ones_are_taken_in_order(
    db: Any, tasks: Any, rng: random.Random
) -> None:
    for _ in range(60):
        agent = rng.choice(["ada", "bob", "eve", None])
        tasks.push(db, priority=rng.randint(1, 3), cost=rng.randint(0, 1), agent_name=agent)
    paused: set[str] = set()
    while left := [*tasks.get_all_tasks(db)]:
        agent = rng.choice(["ada", "bob", "eve"])
        tasks.set_group(db, agent, paused=agent not in paused)
        paused ^= {agent}
        n = rng.randint(1, 4)
        expected = [task for task in left if task.agent_name not in paused][:n]
        if rng.random() < 0.5:
            assert tasks.pop_many(db, n) == expected
        else:
            claim = tasks.claim(db, n=n, within=1)
            assert [*(claim.items if claim else ())] == expected
    assert check(db, tasks).ok


def test_a_pop_conflicts_with_a_pause_and_with_a_better_task(db: Any, tasks: Any) -> None:
    tasks.push_many(db, [{"priority": 1, "group": "ada"}, *[{"priority": 3, "group": "bob"}] * 2])
    tasks.set_group(db, "ada", paused=True)
    changes: Any = (
        lambda: tasks.set_group(db, "bob", paused=True),
        lambda: tasks.set_group(db, "bob", paused=False),
        lambda: tasks.push(db, priority=2, group="eve"),  # between ada and bob
    )
    for change, is_found in zip(changes, (True, False, True)):
        tr = db.create_transaction()
        assert (tasks.pop(tr) is not None) == is_found
        tr[layout_of(tasks).subspace["other"].key()] = b""
        change()
        with pytest.raises(fdbqueue.error_classes()) as raised:
            tr.commit().wait()
        assert raised.value.code == 1020


def test_pops_that_wait_for_a_paused_agent_are_woken(
    db: Any, tasks: Any, asleep: threading.Event
) -> None:
    push(db, tasks, ada=2)
    for wait in (tasks.pop, lambda db, wait: tasks.pop(db, agent="ada", wait=wait)):
        tasks.set_group(db, "ada", paused=True)
        asleep.clear()
        with ThreadPoolExecutor(1) as threads:
            waits = threads.submit(wait, db, wait=120)
            assert asleep.wait(60)
            tasks.set_group(db, "ada", paused=False)
            assert waits.result(60) is not None


def test_another_client_obeys_the_pause_of_an_agent(db: Any, name: str, tasks: Any) -> None:
    push(db, tasks, ada=1)
    other = TaskQueue.named(db, f"{name}tasks")
    tasks.set_group(db, "ada", paused=True)
    assert other.claim(db) is None
    assert other.pop(db) is None


def test_a_cleared_queue_keeps_its_agents_paused(db: Any, tasks: Any) -> None:
    push(db, tasks, ada=2)
    tasks.set_group(db, "ada", paused=True)
    tasks.clear(db)
    push(db, tasks, ada=1, bob=1)
    assert tasks.claim(db).item.agent_name == "bob"
    assert tasks.claim(db) is None


# Rate


@pytest.mark.parametrize("for_all", [False, True])
def test_claims_and_pops_count_in_every_window(db: Any, tasks: Any, for_all: bool) -> None:
    tasks.set_group(db, None if for_all else "ada", rate=(3, "10s"))
    push(db, tasks, ada=12)
    with Clock() as clock:
        assert tasks.pop(db)
        clock.advance("6s")
        assert len(tasks.claim(db, n=9)) == 2
        assert tasks.claim(db) is None
        assert tasks.claim(db, agent="ada") is None
        assert tasks.pop(db) is None
        push(db, tasks, none=1)
        assert tasks.pop(db).agent_name is None
        (info,) = tasks.groups(db)
        assert (info.held_by, info.rate) == ("rate", (3, 10))
        clock.advance("5s")
        assert tasks.pop(db, agent="ada")
        assert tasks.pop(db) is None  # the window has two starts of five seconds before
        clock.advance("6s")
        assert len(tasks.pop_many(db, 9)) == 2
        clock.advance("1h")
        assert len(tasks.claim(db, n=9)) == 3
    assert check(db, tasks).problems == ()


def test_the_rate_of_all_agents_may_be_lowered(db: Any, tasks: Any) -> None:
    tasks.set_group(db, None, rate=(5, 60))
    push(db, tasks, ada=9, bob=9)
    with Clock() as clock:
        assert len(tasks.pop_many(db, 3)) == 3  # of ada
        tasks.set_group(db, None, rate=(2, 60))
        assert agents_of(tasks.claim(db, n=9)) == {"bob": 2}
        assert tasks.pop(db) is None
        tasks.set_group(db, "ada", rate=(4, 60))
        assert agents_of(tasks.claim(db, n=9)) == {"ada": 1}
        clock.advance(61)
        assert agents_of(tasks.claim(db, n=9)) == {"ada": 4, "bob": 2}
    assert check(db, tasks).problems == ()


def test_a_claim_that_waits_for_a_rate_is_woken_by_a_sweep(
    db: Any, name: str, tasks: Any, asleep: threading.Event
) -> None:
    push(db, tasks, ada=2)
    tasks.set_group(db, "ada", rate=(1, 0.5))
    assert tasks.claim(db)
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(tasks.claim, db, wait=MAX_WAIT).result(MAX_WAIT) is not None


# Settings


@pytest.mark.parametrize(
    ("group", "settings", "words"),
    [
        ("ada", {"weight": 2}, "weight: an agent of a task queue has only concurrency, rate"),
        ("ada", {"max_size": 2}, "max_size: an agent of a task queue"),
        (None, {"latest": True}, "latest: an agent of a task queue"),
        ("ada", {"in_order": True}, "in_order: an agent of a task queue"),
        ("", {"concurrency": 2}, "concurrency: tasks without an agent have no settings"),
        ("", {"weight": 2}, "weight: tasks without an agent have no settings"),
        (None, {"paused": True}, "paused: give the name of a group"),
        ("ada", {"concurrency": 0}, "concurrency is a number from 1 to 10,000"),
    ],
)
def test_a_setting_that_an_agent_does_not_have_is_refused(
    db: Any, tasks: Any, group: Any, settings: Any, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        tasks.set_group(db, group, **settings)
    assert tasks.groups(db) == []


def test_all_settings_of_an_agent_are_forgotten_by_none(db: Any, tasks: Any) -> None:
    tasks.set_group(db, "ada", concurrency=1, rate=(1, 60), paused=True)
    tasks.set_group(db, "ada", weight=None, concurrency=None, rate=None, paused=False)
    assert tasks.groups(db) == []
    push(db, tasks, ada=2)
    assert len(tasks.pop_many(db, 2)) == 2


def test_agents_are_listed_with_their_numbers_and_limits(db: Any, tasks: Any) -> None:
    push(db, tasks, ada=3, bob=1, none=2)
    listed = tasks.groups(db)
    assert [(each.name, each.ready, each.claimed) for each in listed] == [
        *[("", 2, None), ("ada", 3, None), ("bob", 1, None)]
    ]
    tasks.set_group(db, "ada", concurrency=2, rate=(100, "1m"))
    tasks.set_group(db, "eve", paused=True)
    tasks.claim(db, n=9)
    ada, bob, eve = tasks.groups(db)
    assert (ada.ready, ada.claimed, ada.concurrency, ada.rate) == (1, 2, 2, (100, 60))
    assert (ada.held_by, ada.delayed, ada.weight, ada.in_order) == ("concurrency", None, 1, False)
    assert (eve.ready, eve.held_by, eve.paused) == (0, "paused", True)
    assert (bob.claimed, bob.held_by) == (1, None)
    assert [each.name for each in tasks.groups(db, after="ada", limit=1)] == ["bob"]


def test_a_task_says_what_holds_its_agent(db: Any, tasks: Any) -> None:
    push(db, tasks, ada=3)
    last: Any = [*tasks.get_all_tasks(db)][2]

    def held_by() -> str | None:
        held_by: str | None = tasks.get(db, last).held_by
        return held_by

    with Clock() as clock:
        tasks.set_group(db, "ada", rate=(2, 60))
        claim = tasks.claim(db, n=1)
        assert held_by() is None
        tasks.set_group(db, "ada", concurrency=1)
        assert held_by() == "group_concurrency"
        tasks.set_group(db, "ada", paused=True)
        assert held_by() == "group_paused"
        tasks.set_group(db, "ada", paused=False)
        tasks.ack(db, claim)
        assert held_by() is None
        tasks.pop(db)
        assert held_by() == "group_rate"
        clock.advance(61)
        assert held_by() is None  # although no client has noticed yet


# Cost


def test_a_queue_whose_agents_have_no_limits_pays_nothing_for_them(db: Any, tasks: Any) -> None:
    push(db, tasks, ada=40)

    def mutations(claims: bool) -> int:
        counting = CountingDatabase(db)
        tr = counting.create_transaction()
        if claims:
            tasks.ack(tr, tasks.claim(tr))
        else:
            tasks.pop(tr)
        tr.commit().wait()
        return writes(counting, tasks)

    mutations(claims=True)  # the first one stores that the queue has timers
    before = mutations(claims=True), mutations(claims=False)
    tasks.set_group(db, "ada", paused=False)  # which sets nothing
    assert (mutations(claims=True), mutations(claims=False)) == before
    tasks.set_group(db, "eve", concurrency=1)
    assert mutations(claims=True) > before[0]
    assert mutations(claims=False) == before[1]
