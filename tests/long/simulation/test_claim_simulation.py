"""Seeded simulation of claims with faults and kills: one holder per item, no item lost.

A seed that fails is run again by `pytest tests/long/simulation/test_claim_simulation.py --seed N`,
which prints the trace. `FDBQ_CLAIM_SEEDS` is the number of seeds per engine.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.database.retrying import read
from fdbqueue.layout.values import ONE, decode_count
from fdbqueue.queue.base import store_of
from fdbqueue.types import ItemInfo
from tests.long.simulation.clients import Clients
from tests.long.simulation.ledger import Act, Ledger
from tests.long.simulation.scheduler import Commit, SimulatedTransaction

SEEDS = int(os.environ.get("FDBQ_CLAIM_SEEDS", "50"))


class ClaimSimulation(Clients[Act]):
    """A few clients on one queue; `acts` records their calls and results."""

    _kinds = {
        **{"push": 7, "claim at once": 3, "claim inside": 2, "pop at once": 1, "pop inside": 1},
        **{"ack": 5, "nack": 3, "release": 2, "extend": 3, "pause": 3, "forget": 1},
    }
    _leases = [0.001, 0.03, 0.1, 0.3, 1.0, 30.0]

    def __init__(self, db: Any, space: Subspace, seed: int) -> None:
        super().__init__(db, space, seed)
        self._max_attempts = self.random.choice([None, None, 2, 4])
        self._concurrency = None if self.is_quiet else self.random.choice([None, None, 2, 4])
        self._acked, self._popped = space["acked"], space["popped"]
        self.dead: list[ItemInfo] = []
        self._pops_inside = self.random.random() < 0.5
        self.queue = self._open()

    def _open(self) -> PriorityQueue[Any]:
        return PriorityQueue(self._space["queue"], max_attempts=self._max_attempts)

    def _note_transaction(self, transaction: SimulatedTransaction) -> None:
        """Record the first transaction of an act, which does all of its work.

        Later transactions only ensure that it has ended. (A concurrent pop may need several.)
        """
        act = self._doing.get(self.scheduler.client)
        if act is not None and act.kind != "pop at once":
            super()._note_transaction(transaction)
        self._doing.pop(self.scheduler.client, None)

    def _note_commit(self, act: Act, commit: Commit) -> None:
        act.commits.append(commit)

    def run(self) -> None:
        """Run the clients; after all leases expired, claim and acknowledge the remaining items."""
        if self._concurrency is not None:
            self.queue.configure(self._raw, concurrency=self._concurrency)
        with self.patched():
            self._run_clients(5, 25)
            self.scheduler.time += 10**9
            queue = self._open()
            self.end(queue)
            store = store_of(queue)
            can_claim = store.sweeper.sweep(self.db) and not read(self.db, store.keys_to_watch)
            assert can_claim != self._drain(queue)
            self.dead = [*queue.items(self._raw, state="dead")]
        self._read_pops()
        rows = self._raw[self._acked.range()]
        effects = {self._acked.unpack(row.key)[0]: decode_count(row.value) for row in rows}
        ledger = Ledger(
            self.db.commits,
            self._max_attempts,
            self.is_quiet,
            self._concurrency,
            self.db.time_of,
            max(self.scheduler.skews, default=0),
        )
        ledger.note(self.acts)
        ledger.close(self.dead, Counter(effects))

    def _drain(self, queue: PriorityQueue[Any]) -> bool:
        """Claim and acknowledge items one by one in order; return true if there was none."""
        places = [b""]
        while True:
            act = Act("claim at once", n=1, within=1, lease=30)
            self._perform(queue, act)
            if act.result is None:
                return len(places) == 1
            places += act.result.keys
            assert places[-2] < places[-1], f"not in the order of places: {act}"
            self._perform(queue, Act("ack", act.result))

    def _read_pops(self) -> None:
        """Read the results of pops in transactions, also of killed clients."""
        popped: dict[int, list[tuple[str, bytes]]] = {}
        for row in self._raw[self._popped.range()]:
            number, value = self._popped.unpack(row.key)
            popped.setdefault(number, []).append((value, row.value))
        for number, act in enumerate(self.acts):
            if act.kind == "pop inside":
                got = sorted(popped.pop(number, []))
                assert not act.returned or sorted(act.result) == got
                act.result = got

    def _new(self, kind: str) -> Act:
        if self._pops_inside:
            kind = kind.replace("pop at once", "pop inside")
        draw = self.random
        act = Act(kind, n=draw.choice([1, 1, 2, 3]))
        act.within = act.n if self.is_quiet else draw.choice([act.n, 8, 256])
        if kind == "push":
            act.pushed = {value: draw.randrange(3) for value in self._new_values(act.n)}
        return act

    def _perform(self, queue: PriorityQueue[Any], act: Act) -> None:
        act.skew = self.scheduler.skew
        super()._perform(queue, act)
        if act.kind == "pop at once" and act.returned:
            version = self.db.new_version()
            act.commits.append(Commit(version, version))

    def met(self) -> set[str]:
        """Return which of the interesting events occurred."""
        met = {f"{act.kind} lost" for act in self.acts if act.lost is not None}
        for act in self.acts:
            if act.kind.startswith("claim") and act.result and max(act.result.attempts) > 1:
                met.add("claimed again")
        for line in self.scheduler.trace:
            met |= {each for each in ("killed", "late commit takes place") if each in line}
        return met | ({"dead"} if self.dead else set())

    def _result(self, queue: PriorityQueue[Any], act: Act) -> Any:
        if act.kind == "push":
            priorities = act.pushed.values()
            items = queue.push_many(self.db, act.pushed, priorities=priorities, delay=act.delay)
        elif act.kind == "pop at once":
            items = queue.pop_many(self.db, act.n)
        else:
            return super()._result(queue, act)
        return [(item.value, item.key) for item in items]

    def _inside(self, queue: PriorityQueue[Any], tr: Any, act: Act) -> Any:
        if act.kind == "claim inside":
            return queue.claim(tr, lease=act.lease, n=act.n, within=act.within)
        if act.claim is not None:
            for item in act.claim.items:
                tr.add(self._acked.pack((item.value,)), ONE)
            return queue.ack(tr, act.claim)
        items = queue.pop_many(tr, act.n)
        for item in items:
            tr[self._popped.pack((self.acts.index(act), item.value))] = item.key
        return [(item.value, item.key) for item in items]


def simulate(db: Any, space: Subspace, seed: int) -> ClaimSimulation:
    simulation = ClaimSimulation(db, space, seed)
    try:
        simulation.run()
        report = fdbqueue.admin.check(db, simulation.queue)
        assert report.ok, report.problems
        assert report.ready == 0
    except BaseException:
        print(f"--seed={seed}", *simulation.scheduler.trace, sep="\n")
        print("acts:", *simulation.acts, sep="\n")
        raise
    return simulation


def test_each_item_has_one_holder_at_a_time_and_none_is_lost(
    steady: Any, space: Subspace, request: pytest.FixtureRequest
) -> None:
    given = request.config.getoption("--seed")
    met: set[str] = set()
    for seed in range(SEEDS) if given is None else [given]:
        met |= simulate(steady, space, seed).met()
    if given is None and SEEDS >= 50:
        lost = {f"{kind} lost" for kind in ("ack", "nack", "extend", "release")}
        assert lost | {"claimed again", "dead", "killed", "late commit takes place"} <= met


def test_a_seed_repeats_exactly(steady: Any, space: Subspace) -> None:
    for seed in (1, 3, 5):
        traces = [simulate(steady, space, seed).scheduler.trace for _ in range(2)]
        assert traces[0] == traces[1]
