"""Random operations on unique items, and on a model of who has which key, must agree."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import Any

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.layout.values import encode_holder
from fdbqueue.queue.base import store_of
from fdbqueue.testing import Clock, FaultyDatabase
from tests.support.keys import layout_of, rows_in
from tests.support.leases import lapse

STEPS = int(os.environ.get("FDBQ_UNIQUE_STEPS", "300"))
# In seconds. The clock moves by thousands, so that it does not matter how long the test takes.
PERIOD, TTL, DELAY = 50_500, 30_500, 20_500
SCOPES: dict[str, Any] = {
    "ended": {},
    "claimed": {"unique_until": "claimed"},
    "period": {"unique_for": PERIOD},
}
WAITING = ("ready", "delayed")


@dataclass
class Known:
    """An item as the model knows it; `holds` is whether it has its key."""

    key: str
    state: str = "ready"
    holds: bool = True
    due: float = 0
    expires: float = float("inf")

    @property
    def scope(self) -> str:
        return self.key.rstrip("0123456789")


class Model:
    """What users expect: the items by id, and the first item of the present period of each key."""

    def __init__(self) -> None:
        self.now = 0.0
        self.items: dict[str, Known] = {}
        self.periods: dict[str, tuple[str, float]] = {}

    def settle(self) -> None:
        """Let items expire that wait, and are due."""
        for id, item in [*self.items.items()]:
            if item.state in WAITING and max(item.due, item.expires) <= self.now:
                del self.items[id]

    def holder(self, key: str) -> str | None:
        """Return the id of the item that a push with this key returns."""
        id, ends = self.periods.get(key, ("", -1.0))
        if ends > self.now:
            return id
        found = [id for id, item in self.items.items() if item.key == key and item.holds]
        assert len(found) <= 1
        return found[0] if found else None

    def push(self, key: str, id: str, ttl: float | None, delay: float) -> tuple[str, bool]:
        """Return the id that a push returns, and whether it is new; `id` is that of a new item."""
        self.settle()
        found = self.holder(key)
        if found is not None:
            return found, False
        item = Known(key, due=self.now + delay, state="delayed" if delay else "ready")
        if ttl is not None:
            item.expires = self.now + ttl
        self.items[id] = item
        if item.scope == "period":
            item.holds = False
            self.periods[key] = id, self.now + PERIOD
        return id, True

    def claimed(self, id: str) -> None:
        item = self.items[id]
        item.state = "claimed"
        item.holds = item.holds and item.scope == "ended"

    def returned(self, id: str, delay: float = 0) -> None:
        """An item waits again, and has its key if that is free."""
        item = self.items[id]
        item.state, item.due = "delayed" if delay else "ready", self.now + delay
        if item.scope == "claimed":
            item.holds = self.holder(item.key) is None


class Machine:
    """The operations on a queue and on the model."""

    def __init__(self, db: Any, queue: PriorityQueue, rng: random.Random, clock: Clock) -> None:
        self.db, self.queue, self.rng, self.clock = db, queue, rng, clock
        self.model = Model()
        self.faulty: Any = FaultyDatabase(db, before=0.1, after=0.1, seed=rng.randrange(2**32))
        self.claims: dict[str, fdbqueue.Claim[Any]] = {}
        self.keys: dict[str, str] = {}

    def _key(self) -> tuple[str, Any]:
        scope = self.rng.choice([*SCOPES])
        return f"{scope}{self.rng.randrange(2)}", SCOPES[scope]

    def _one(self, *states: str) -> str | None:
        self.model.settle()
        ids = [id for id, item in self.model.items.items() if item.state in states]
        return self.rng.choice(ids) if ids else None

    def push(self) -> None:
        key, scope = self._key()
        ttl = self.rng.choice([None, None, TTL])
        delay = self.rng.choice([0, 0, DELAY])
        value = len(self.keys)
        item = self.queue.push(self.faulty, value, unique=key, ttl=ttl, delay=delay, **scope)
        assert (item.id, item.is_new) == self.model.push(key, item.id, ttl, delay)
        self.keys.setdefault(item.id, key)
        assert self.keys[item.id] == key

    def push_many(self) -> None:
        scope = self.rng.choice([*SCOPES])
        keys = [f"{scope}{self.rng.randrange(2)}" for _ in range(3)]
        items = self.queue.push_many(self.faulty, keys, unique=keys, **SCOPES[scope])
        for key, item in zip(keys, items, strict=True):
            assert (item.id, item.is_new) == self.model.push(key, item.id, None, 0)
            self.keys.setdefault(item.id, key)

    def claim(self) -> None:
        claim = self.queue.claim(self.faulty, lease=10**8)
        self.model.settle()
        if claim is None:
            assert all(
                item.state not in WAITING or item.due > self.model.now
                for item in self.model.items.values()
            )
        else:
            self.model.claimed(claim.item.id)
            self.claims[claim.item.id] = claim

    def _sweep(self) -> None:
        """Delete what has expired: until then it may have a key."""
        sweeper = store_of(self.queue).sweeper
        sweeper.invalidate()
        sweeper.sweep(self.db)

    def end(self) -> None:
        id = self._one("claimed")
        if id is None:
            return
        self._sweep()
        how = self.rng.choice(["release", "later", "fail", "die", "ack"])
        if how == "release":
            assert self.queue.release(self.faulty, id)
            self.model.returned(id)
            return
        claim = self.claims[id]
        if how == "later":
            self.queue.release(self.faulty, claim, delay=DELAY)
            self.model.returned(id, DELAY)
        elif how == "fail":
            self.queue.nack(self.faulty, claim, delay=DELAY)
            self.model.returned(id, DELAY)
        elif how == "die":
            self.queue.nack(self.faulty, claim, dead=True)
            self.model.items[id].state = "dead"
            self.model.items[id].holds = False
        else:
            self.queue.ack(self.faulty, claim)
            del self.model.items[id]

    def lapse(self) -> None:
        """Let all leases end. Of several items that come back with one key, any may get it."""
        returned = [id for id, item in self.model.items.items() if item.state == "claimed"]
        lapse(self.db, self.queue)
        self._sweep()

        def has_no_key(id: str) -> bool:
            holder = self.db[layout_of(self.queue).unique_key(self.model.items[id].key)]
            found = self.queue.get(self.db, id)
            if found is None:
                return True
            position = layout_of(self.queue).position(found.item.key)
            return bool(holder != encode_holder(position, None))

        for id in sorted(returned, key=has_no_key):
            self.model.returned(id)

    def pop(self) -> None:
        item = self.queue.pop(self.faulty)
        self.model.settle()
        if item is not None:
            del self.model.items[item.id]

    def remove(self) -> None:
        id = self._one("ready", "delayed", "dead")
        if id is not None:
            assert self.queue.remove(self.faulty, id)
            del self.model.items[id]

    def move(self) -> None:
        id = self._one("ready", "delayed", "dead")
        if id is not None:
            moved = self.queue.reprioritize(self.faulty, id, self.rng.randrange(3))
            assert moved.id == id

    def retry(self) -> None:
        id = self._one("dead")
        if id is None:
            return
        item = self.model.items[id]
        is_free = item.scope == "period" or self.model.holder(item.key) is None
        assert self.queue.retry(self.faulty, id) is is_free
        if is_free:
            item.expires = float("inf")
            self.model.returned(id)
            item.holds = item.scope != "period"

    def wait(self) -> None:
        seconds = self.rng.choice([1_000, 15_000, 40_000])
        self.clock.advance(seconds)
        self.model.now += seconds

    def step(self) -> None:
        often = [self.push, self.push, self.claim, self.end]
        seldom = [self.lapse, self.pop, self.remove, self.move, self.retry, self.wait, self.wait]
        operation = self.rng.choice([*3 * often, *seldom, self.push_many, self.push_many])
        operation()
        self.model.settle()
        report = fdbqueue.admin.check(self.db, self.queue)
        assert report.ok, (operation.__name__, report.problems)
        self._sweep()  # a look sweeps, too, but not twice within 50 ms
        stats = self.queue.stats(self.db)
        states = [item.state for item in self.model.items.values()]
        assert (stats.claimed, stats.dead) == (states.count("claimed"), states.count("dead"))
        assert stats.ready + stats.delayed == sum(state in WAITING for state in states)


def test_unique_items_agree_with_a_model(db: Any, name: str, rng: Any, clock: Clock) -> None:
    machine = Machine(db, PriorityQueue.named(db, name), rng, clock)
    for _ in range(STEPS):
        machine.step()
    clock.advance(200_000)  # no key outlives its item and its period
    queue = machine.queue
    for id in [id for id, item in machine.model.items.items() if item.state == "claimed"]:
        queue.release(db, id)
    for info in [*queue.items(db, state="dead")]:
        queue.remove(db, info.id)
    while queue.pop_many(db, 100):
        pass
    store_of(queue).sweeper.trim(db)
    assert not rows_in(db, queue, "unique_keys", "unique_ends")
    assert fdbqueue.admin.check(db, queue).ok
