"""Seeded simulation of claims with faults and kills: one holder per item, no item lost.

A seed that fails is run again by `pytest tests/simulation/test_claim_simulation.py --seed N`,
which prints the trace. `FDBQ_CLAIM_SEEDS` is the number of seeds per engine.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Claim, PriorityQueue
from fdbqueue.errors import LeaseLost
from fdbqueue.layout.values import ONE, decode_count
from fdbqueue.queue.base import store_of
from fdbqueue.types import ItemInfo
from tests.simulation.ledger import Act, Ledger
from tests.simulation.scheduler import Commit, SimulatedTransaction
from tests.simulation.simulated import Simulated

SEEDS = int(os.environ.get("FDBQ_CLAIM_SEEDS", "50"))

KINDS = {
    **{"push": 7, "claim at once": 3, "claim inside": 2, "pop at once": 1, "pop inside": 1},
    **{"ack": 5, "nack": 3, "release": 2, "extend": 3, "pause": 3, "forget": 1},
}
# Each call of a transaction takes a millisecond.
LEASES = [0.001, 0.03, 0.1, 0.3, 1.0, 30.0]  # seconds
DELAYS = [0.0, 0.0, 0.02, 0.2]  # seconds
PAUSES = [5, 50, 200, 1_500]  # milliseconds


class ClaimSimulation(Simulated):
    """A few clients on one queue; `acts` records their calls and results."""

    def __init__(self, db: Any, space: Subspace, seed: int) -> None:
        self.is_quiet = seed % 5 == 0
        super().__init__(db, space, seed, self.is_quiet)
        self._space = space
        self._max_attempts = self.random.choice([None, None, 2, 4])
        self._concurrency = None if self.is_quiet else self.random.choice([None, None, 2, 4])
        self._acked, self._popped = space["acked"], space["popped"]
        self.acts: list[Act] = []
        self.dead: list[ItemInfo] = []
        self._pops_inside = self.random.random() < 0.5
        self._values = 0
        self._doing: dict[int | None, Act] = {}
        self.db.created = self._note_transaction
        self.queue = self._open()

    def _open(self) -> PriorityQueue:
        """Return the queue as a new process opens it."""
        return PriorityQueue(self._space["queue"], max_attempts=self._max_attempts)

    def _note_transaction(self, transaction: SimulatedTransaction) -> None:
        """Record the first transaction of an act, which does all of its work.

        Later transactions only ensure that it has ended. (A concurrent pop may need several.)
        """
        act = self._doing.pop(self.scheduler.client, None)
        if act is not None and act.kind != "pop at once":
            act.transaction = transaction
            transaction.committed = act.commits.append

    def run(self) -> None:
        """Run the clients; after all leases expired, claim and acknowledge the remaining items."""
        clients = 1 if self.is_quiet else self.random.randint(2, 4)
        if self._concurrency is not None:
            self.queue.configure(self._raw, concurrency=self._concurrency)
        with self.patched():
            self.scheduler.run([self._client() for _ in range(clients)])
            self.scheduler.time += 10**9
            queue = self._open()
            self.end(queue)
            assert store_of(queue).is_idle(self.db) == self._drain(queue)
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

    def _drain(self, queue: PriorityQueue) -> bool:
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

    def _client(self) -> Callable[[], None]:
        kinds = self.random.choices([*KINDS], [*KINDS.values()], k=self.random.randint(5, 25))
        if self._pops_inside:
            kinds = [kind.replace("pop at once", "pop inside") for kind in kinds]

        def body() -> None:
            # Each process has its own queue object.
            queue, held = self._open(), list[Claim]()
            self._perform(queue, self._drawn("push", held))
            for kind in kinds:
                if kind == "forget":  # the process dies, and a new one starts
                    queue, held = self._open(), []
                elif kind == "pause":
                    self.scheduler.time += self.random.choice(PAUSES)
                    self.scheduler.step(kind)
                else:
                    act = self._drawn(kind, held)
                    self._perform(queue, act)
                    if act.kind.startswith("claim") and act.result is not None:
                        held.append(act.result)

        return body

    def _drawn(self, kind: str, held: list[Claim]) -> Act:
        """Return a random call of this kind, or a claim if the call needs one and none is held."""
        draw = self.random
        if not held and not kind.startswith(("push", "claim", "pop")):
            kind = "claim at once"
        act = Act(kind, n=draw.choice([1, 1, 2, 3]), lease=draw.choice(LEASES))
        act.within = act.n if self.is_quiet else draw.choice([act.n, 8, 256])
        act.delay = draw.choice(DELAYS)
        if kind == "push":
            self._values += act.n
            for value in range(self._values - act.n, self._values):
                act.pushed[f"item {value}"] = draw.randrange(3)
        elif not kind.startswith(("claim", "pop")):
            act.claim = draw.choice(held)
            # Some claims are used again after their end; some are used only in part.
            if kind != "extend" and draw.random() < 0.7:
                held.remove(act.claim)
            if draw.random() < 0.3:
                act.claim = draw.choice(list(act.claim))
        return act

    def _perform(self, queue: PriorityQueue, act: Act) -> None:
        """Perform an act and record its outcome."""
        client = self.scheduler.client
        act.client = -1 if client is None else client
        act.begun, act.skew = self.scheduler.time, self.scheduler.skew
        self.acts.append(act)
        self._doing[client] = act
        try:
            act.result = self._result(queue, act, len(self.acts) - 1)
        except LeaseLost as error:
            act.lost = error.item_id
        except fdbqueue.error_classes() as error:
            if error.code not in (1021, 1031):
                raise
            act.failed = error.code == 1031  # 1031 guarantees that nothing took effect
        else:
            act.returned = True
            if act.kind == "pop at once":
                version = self.db.new_version()
                act.commits.append(Commit(version, version))
        self.scheduler.note(str(act))

    def met(self) -> set[str]:
        """Return which of the interesting events occurred."""
        met = {f"{act.kind} lost" for act in self.acts if act.lost is not None}
        for act in self.acts:
            if act.kind.startswith("claim") and act.result and max(act.result.attempts) > 1:
                met.add("claimed again")
        for line in self.scheduler.trace:
            met |= {each for each in ("killed", "late commit takes place") if each in line}
        return met | ({"dead"} if self.dead else set())

    def _result(self, queue: PriorityQueue, act: Act, number: int) -> Any:
        db, claim = self.db, act.claim
        if act.kind == "push":
            priorities = act.pushed.values()
            items = queue.push_many(db, act.pushed, priorities=priorities, delay=act.delay)
            return [(item.value, item.key) for item in items]
        if act.kind == "claim at once":
            return queue.claim(db, lease=act.lease, n=act.n, within=act.within)
        if act.kind == "pop at once":
            return [(item.value, item.key) for item in queue.pop_many(db, act.n)]
        if act.kind == "nack":
            return queue.nack(db, claim, delay=act.delay)
        if act.kind == "extend":
            return queue.extend(db, claim, act.lease)
        if act.kind == "release":
            return queue.release(db, claim)

        @fdbqueue.transactional(receipts=self._space["receipts"])
        def inside(tr: Any) -> Any:
            if act.kind == "claim inside":
                return queue.claim(tr, lease=act.lease, n=act.n, within=act.within)
            if act.kind == "ack":
                for item in claim.items:
                    tr.add(self._acked.pack((item.value,)), ONE)
                return queue.ack(tr, claim)
            items = queue.pop_many(tr, act.n)
            for item in items:
                tr[self._popped.pack((number, item.value))] = item.key
            return [(item.value, item.key) for item in items]

        return inside(db)


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
