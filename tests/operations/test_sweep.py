"""A sweep does to each item what the views have shown, and nothing else."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue, TaskQueue
from fdbqueue.database.binding import first_greater_or_equal
from fdbqueue.database.clock import milliseconds
from fdbqueue.errors import LeaseLost
from fdbqueue.operations.timers import VERSIONS, Fate
from fdbqueue.queue.base import store_of
from fdbqueue.testing import Clock
from fdbqueue.types import Options
from tests.support.keys import layout_of
from tests.support.kinds import KINDS
from tests.support.leases import come_due, expire, lapse, shift_leases

NO_OPTIONS = Options("", "", None, None)  # a queue that was pushed to has its own
STATES = ("ready", "delayed", "claimed", "dead", "done")


class Program:
    """A random program: it pushes items, claims and ends some, and lets timers run out."""

    def __init__(self, db: Any, queue: Any, clock: Clock, rng: random.Random) -> None:
        self._db = db
        self._queue = queue
        self._clock = clock
        self._rng = rng
        self._held: list[Any] = []

    def step(self) -> None:
        """Do one thing at random."""
        steps = [self._push, self._push, self._claim, self._end, self._let_pass]
        self._rng.choice(steps)()

    def _push(self) -> None:
        rng, queue = self._rng, self._queue
        for number in range(rng.choice([1, 5, 40])):
            options: dict[str, Any] = {
                "delay": rng.choice([None, 5, 50]),
                "ttl": rng.choice([None, 10, 60, 500]),
            }
            if isinstance(queue, TaskQueue):
                queue.push(self._db, payload=number, agent_name=rng.choice("ab"), **options)
            elif isinstance(queue, Queue):
                queue.push(self._db, number, **options)
            else:
                queue.push(self._db, number, rng.randrange(3), **options)

    def _claim(self) -> None:
        n = self._rng.choice([1, 3, 40])
        claim = self._queue.claim(self._db, n=n, lease=self._rng.choice([5, 600]))
        if claim is not None:
            self._held.append(claim)

    def _end(self) -> None:
        if self._held:
            claim = self._held.pop(self._rng.randrange(len(self._held)))
            end = self._rng.choice([self._queue.ack, self._queue.nack, self._queue.release])
            with suppress(LeaseLost):
                end(self._db, claim)

    def _let_pass(self) -> None:
        """Let time pass, by the clock, by the versions, or by both."""
        db, queue = self._db, self._queue
        match self._rng.randrange(6):
            case 0:
                come_due(db, queue)
            case 1:
                expire(db, queue)
            case 2:
                lapse(db, queue, self._rng.choice([10, 1000]))
            case 3:
                # As a recovery. Views do not show what the sweep does to leases of another
                # cluster, whose versions are higher: it looks for them every ten seconds only.
                shift_leases(db, queue, -100 * VERSIONS)
            case _:
                self._clock.advance(self._rng.choice([6, 20, 70]))


def stored(tr: Any, queue: Any) -> dict[bytes, str]:
    """Return the state in which each item is stored, by position, without the views."""
    layout = layout_of(queue)
    found: dict[bytes, str] = {}
    for state, prefix in layout.prefix_of.items():
        for row in tr[slice(*layout.range_of(prefix))]:
            found[row.key[len(prefix) :]] = state
    return found


def shown(tr: Any, queue: Any, now: int) -> dict[str, set[tuple[bytes, int, str | None]]]:
    """Return what views list in each state: keys, numbers of attempts and errors."""
    views, layout = store_of(queue).reads.views, layout_of(queue)
    return {
        state: {
            (item.key, item.attempts, item.error)
            for item in views.listed(tr, state, *layout.all_items, now)
        }
        for state in STATES
    }


def sweep_and_compare(db: Any, queue: Any) -> Counter[Fate]:
    """Sweep until nothing is due, and compare it with the views before; return what was due."""
    store = store_of(queue)
    views, numbers, sweep = store.reads.views, store.reads.numbers, store._sweep

    @fdbqueue.transactional
    def body(tr: Any) -> Counter[Fate]:
        now = milliseconds()
        overdue = views.overdue(tr.snapshot, now)
        expected = stored(tr, queue)
        for position, fate in overdue.fates.items():
            assert expected.pop(position) == fate.before
            if fate.after is not None:
                expected[position] = fate.after
        # Not `queue.stats`, which looks at the clock: an item may be due by then.
        lists = shown(tr.snapshot, queue, now)
        before = numbers.stats(tr.snapshot, now, NO_OPTIONS)
        while not sweep.sweep(tr, now).all:
            pass
        assert stored(tr, queue) == expected
        assert not views.overdue(tr.snapshot, now).fates
        assert shown(tr.snapshot, queue, now) == lists
        after = numbers.stats(tr.snapshot, now, NO_OPTIONS)
        for name in (*STATES, "by_priority", "total_pushed", "total_completed", "total_expired"):
            assert getattr(after, name) == getattr(before, name), name
        return Counter(overdue.fates.values())

    fates: Counter[Fate] = body(db)
    return fates


def compare_single_items(db: Any, queue: Any, rng: random.Random) -> None:
    """Compare what views show of some overdue items with what an operation on each finds."""
    store, layout = store_of(queue), layout_of(queue)
    views, sweep = store.reads.views, store._sweep
    tr = db.create_transaction()  # never committed
    now = milliseconds()
    overdue = sorted(views.overdue(tr.snapshot, now).fates)
    for position in rng.sample(overdue, min(5, len(overdue))):
        reference = position
        if isinstance(queue, TaskQueue):
            reference = layout.unpack_item_key(layout.items + position)[-1]
        seen = views.locate(tr, reference, now)
        found = sweep.find(tr, now, reference)
        assert (seen is None) == (found is None)
        if seen is not None and found is not None:
            assert (seen.state, seen.key, seen.attempts) == (found.state, found.key, found.attempts)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sweep_does_what_the_views_have_shown(
    db: Any, name: str, kind: Any, clock: Clock, rng: random.Random
) -> None:
    queue = kind.named(db, name, max_attempts=2, keep=rng.choice([None, 1000]))
    program = Program(db, queue, clock, rng)
    program._push()
    for _ in range(15):
        for _ in range(rng.randrange(1, 8)):
            program.step()
        compare_single_items(db, queue, rng)
        sweep_and_compare(db, queue)
    assert fdbqueue.admin.check(db, queue).ok


@pytest.mark.parametrize("kind", KINDS)
def test_a_sweep_carries_out_every_fate(db: Any, name: str, kind: Any, clock: Clock) -> None:
    queue = kind.named(db, name, max_attempts=2)

    def push(**options: Any) -> None:
        if isinstance(queue, TaskQueue):
            queue.push(db, payload=1, **options)
        else:
            queue.push(db, 1, **options)

    push()
    queue.nack(db, queue.claim(db), delay=0)
    queue.claim(db, lease=60)  # dies
    push()
    push(ttl=60)
    queue.claim(db, n=2, lease=60)  # one returns, the other ends
    push(ttl=60)  # expires
    push(delay=60)
    push(delay=60, ttl=61)
    lapse(db, queue)
    clock.advance(100)
    compare_single_items(db, queue, random.Random(1))
    assert sweep_and_compare(db, queue) == Counter(dict.fromkeys(Fate, 1))
    assert fdbqueue.admin.check(db, queue).ok


@pytest.mark.parametrize("kind", KINDS)
def test_a_sweep_of_many_items_moves_them_all(db: Any, name: str, kind: Any, clock: Clock) -> None:
    queue = kind.named(db, name)
    if isinstance(queue, TaskQueue):
        for number in range(600):
            queue.push(db, payload=number, delay=5, ttl=[6, 500][number % 2])
    else:
        for ttl in (6, 500):
            queue.push_many(db, range(300), delay=5, ttl=ttl)
    clock.advance(60)
    expected = {Fate.LAPSED: 300, Fate.AVAILABLE: 300}
    assert sweep_and_compare(db, queue) == Counter(expected)
    assert queue.stats(db).total_expired == 300


def test_a_sweep_that_begins_further_on_does_not_say_that_all_expired_items_are_deleted(
    db: Any, name: str, clock: Clock
) -> None:
    """Else a client would take an expired item after it."""
    queue = Queue.named(db, name)
    queue.push_many(db, range(10), ttl=5)
    clock.advance(60)
    tr = db.create_transaction()
    begin = partial(first_greater_or_equal, offset=8)
    swept = store_of(queue)._sweep.sweep(tr, milliseconds(), begin)
    assert (swept.all, swept.expired, swept.wrote) == (False, False, True)
    tr.commit().wait()
    assert [item.value for item in queue.pop_many(db, 20)] == []
    assert queue.stats(db).total_expired == 10
