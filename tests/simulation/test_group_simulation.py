"""Seeded simulation of groups with faults and kills: shares, limits, order, and none is stuck.

A seed that fails is run again by `pytest tests/simulation/test_group_simulation.py --seed N`, which
prints the trace. `FDBQ_GROUP_SEEDS` is the number of seeds per engine; from 100 on, each planted
bug has to be found, too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Claim, PriorityQueue
from fdbqueue.errors import LeaseLost, WrongState
from tests.simulation.groups.ledger import Act, Ledger
from tests.simulation.groups.mutations import MUTATIONS
from tests.simulation.groups.state import read_state
from tests.simulation.scheduler import Commit, SimulatedTransaction
from tests.simulation.simulated import Simulated
from tests.support.keys import layout_of

SEEDS = int(os.environ.get("FDBQ_GROUP_SEEDS", "10"))

_ENOUGH = 100
"""How many seeds meet everything that has to happen; with as many, planted bugs are looked for."""

_TRIED = 300
"""How many seeds may be needed to find a planted bug."""

_MET = {
    *(
        "as many as the limit",
        "as many as the rate",
        "held back",
        "released",
        "cleared",
        "compared shares",
    ),
    *("lost", "cancel", "move", "recovery", "killed", "late commit takes place"),
}
"""What has to happen in some of the seeds."""

KINDS = {
    **{"push": 9, "claim at once": 4, "claim inside": 4, "pop at once": 1, "pop inside": 2},
    **{"ack": 7, "nack": 3, "release": 2, "extend": 1, "set": 4},
    **{"cancel": 1, "move": 1, "clear": 0.3, "pause": 4, "forget": 1},
}
GROUPS = ["ada", "bob", "eve", "kim", None]
SETTINGS: list[dict[str, Any]] = [
    *({"weight": weight} for weight in (None, 0.5, 1, 2, 3)),
    *({"concurrency": limit} for limit in (None, 1, 1, 2, 3)),
    *({"paused": paused} for paused in (True, False, False)),
    *({"rate": rate} for rate in (None, (1, 0.05), (2, 0.2), (3, 1.0))),
    {"weight": 2, "concurrency": 2, "paused": False},
]
LONGEST = 2_000  # milliseconds, after which each rate allows more
COSTS = [1.0, 1.0, 0.5, 3.0]
# Each call of a transaction takes a millisecond.
LEASES = [0.03, 0.1, 0.3, 30.0, 30.0]  # seconds
DELAYS = [0.0, 0.0, 0.02, 0.2]  # seconds
PAUSES = [5, 50, 200, 1_500]  # milliseconds


class GroupSimulation(Simulated):
    """A few clients on one queue."""

    def __init__(self, db: Any, space: Subspace, seed: int) -> None:
        is_quiet = seed % 5 == 0
        super().__init__(db, space, seed, is_quiet)
        self._space = space
        self._clients = 1 if is_quiet else self.random.randint(2, 4)
        self._is_exact = is_quiet or self.random.random() < 0.3
        self._limits = self.random.random() < 0.8
        self._values = 0
        self._doing: dict[int | None, Act] = {}
        self.acts: list[Act] = []
        self.ledger = Ledger(is_exact=is_quiet)
        self.db.created = self._note_transaction
        self.queue = self._open()

    def _open(self) -> PriorityQueue[Any]:
        """Return the queue as a new process opens it."""
        return PriorityQueue(self._space["queue"])

    def _note_transaction(self, transaction: SimulatedTransaction) -> None:
        act = self._doing.get(self.scheduler.client)
        if act is not None:
            act.transaction = transaction
            transaction.committed = partial(self._note_commit, act)

    def _note_commit(self, act: Act, commit: Commit) -> None:
        self.ledger.note(act, commit, read_state(self._raw, self.queue))

    def run(self) -> None:
        """Run the clients; after all leases are over, let every group go on, and end all items."""
        with self.patched():
            self.scheduler.run([self._client() for _ in range(self._clients)])
            self.scheduler.time += 10**9
            queue = self._open()
            self._doing[None] = Act("pop, of a client that was killed")
            self.end(queue)
            self._drain(queue)
        self.ledger.look_at_results(self.acts)

    def _drain(self, queue: PriorityQueue[Any]) -> None:
        for group in GROUPS:
            if group is not None:
                self._perform(queue, Act("set", group=group, settings={"paused": False}))
        in_vain = 0
        while in_vain < 2:  # the timer of a rate may be set when the last one is over
            act = Act(self.random.choice(["claim inside", "pop inside"]), lease=30)
            self._perform(queue, act)
            in_vain = 0 if act.result else in_vain + 1
            if act.result is None:
                self.scheduler.time += LONGEST
            elif act.verb == "claim":
                self._perform(queue, Act("ack", claim=act.result))
        if left := self.ledger.state.places:
            self.ledger.problems.append(f"they are stuck: {left}")

    def _client(self) -> Callable[[], None]:
        kinds = self.random.choices([*KINDS], [*KINDS.values()], k=self.random.randint(10, 40))

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
                    if act.verb == "claim" and act.result is not None:
                        held.append(act.result)

        return body

    def _drawn(self, kind: str, held: list[Claim]) -> Act:
        """Return a random call of this kind, or a claim if the call needs one and none is held."""
        draw = self.random
        if not held and kind in ("ack", "nack", "release", "extend"):
            kind = "claim at once"
        act = Act(kind, n=draw.choice([1, 1, 1, 2, 3]), lease=draw.choice(LEASES))
        act.within = act.n if self._is_exact else draw.choice([act.n, 2 * act.n, 256])
        act.delay = draw.choice(DELAYS)
        act.priority = draw.choice([0, 0, 0, 1, 200])
        act.group = draw.choice(GROUPS)
        if kind == "push":
            act.n = draw.choice([1, 1, 2, 4])
            act.cost = draw.choice(COSTS)
            act.delay = draw.choice([0, 0, 0, act.delay])
            self._values += act.n
            act.values = [f"item {value}" for value in range(self._values - act.n, self._values)]
        elif kind == "set":
            act.group = draw.choice([*GROUPS, ""])
            act.settings = draw.choice(SETTINGS)
            if not self._limits or act.group == "":
                act.settings = {"weight": act.settings.get("weight")}
            elif act.group is None:
                act.settings = {k: v for k, v in act.settings.items() if k != "paused"}
        elif kind in ("ack", "nack", "release", "extend"):
            act.claim = draw.choice(held)
            # Some claims are used again after their end; some are used only in part.
            if kind != "extend" and draw.random() < 0.7:
                held.remove(act.claim)
            if draw.random() < 0.3:
                act.claim = draw.choice(list(act.claim))
        return act

    def _perform(self, queue: PriorityQueue[Any], act: Act) -> None:
        """Perform an act and record its outcome."""
        client = self.scheduler.client
        act.client = -1 if client is None else client
        self.acts.append(act)
        self._doing[client] = act
        try:
            act.result = self._result(queue, act)
        except LeaseLost:
            self.ledger.events["lost"] += 1
        except WrongState:
            pass
        except fdbqueue.error_classes() as error:
            if error.code not in (1021, 1031):
                raise
        else:
            act.returned = True
            self.ledger.events[act.verb] += act.result is not None
        self.scheduler.note(str(act))

    def _result(self, queue: PriorityQueue[Any], act: Act) -> Any:
        db, claim = self.db, act.claim
        if act.kind == "push":
            options = {"priority": act.priority, "delay": act.delay, "group": act.group}
            queue.push_many(db, act.values, cost=act.cost, **options)
        elif act.kind == "set":
            queue.set_group(db, act.group, **act.settings)
        elif act.kind == "claim at once":
            return queue.claim(db, lease=act.lease, n=act.n, within=act.within)
        elif act.kind == "pop at once":
            return [item.value for item in queue.pop_many(db, act.n)] or None
        elif act.kind in ("cancel", "move"):
            return self._change(queue, act)
        elif act.kind == "clear":
            queue.clear(db)
        elif act.kind == "nack":
            queue.nack(db, claim, delay=act.delay)
        elif act.kind == "extend":
            queue.extend(db, claim, act.lease)
        elif act.kind == "release":
            queue.release(db, claim)
        else:
            return self._inside(queue, act)
        return None

    def _inside(self, queue: PriorityQueue[Any], act: Act) -> Any:
        @fdbqueue.transactional(receipts=self._space["receipts"])
        def inside(tr: Any) -> Any:
            if act.kind == "claim inside":
                return queue.claim(tr, lease=act.lease, n=act.n, within=act.within)
            if act.kind == "ack":
                return queue.ack(tr, act.claim)
            return [item.value for item in queue.pop_many(tr, act.n)] or None

        return inside(self.db)

    def _change(self, queue: PriorityQueue[Any], act: Act) -> Any:
        """Cancel or move any item."""
        places = self.ledger.state.places
        position = self.random.choice([*places] or [b""])
        if position not in places:
            return None
        layout = layout_of(queue)
        id = layout.item_id(layout.items + position)
        act.values = [id]
        if act.kind == "cancel":
            return queue.cancel(self.db, id) or None
        moved = queue.reprioritize(self.db, id, act.priority)
        return moved and moved.priority

    def met(self) -> Counter[str]:
        """Return how often each interesting event occurred."""
        met = self.ledger.events.copy()
        for line in self.scheduler.trace:
            for each in ("killed", "late commit takes place", "recovery"):
                met[each] += each in line
        return met


def problems_of(db: Any, simulation: GroupSimulation) -> list[str]:
    """Run a simulation, and return what must not be."""
    simulation.run()
    report = fdbqueue.admin.check(db, simulation.queue)
    checked = [] if report.ok else [f"fdbqueue.admin.check: {report.problems}"]
    return simulation.ledger.problems + checked


def simulate(db: Any, space: Subspace, seed: int) -> GroupSimulation:
    simulation = GroupSimulation(db, space, seed)
    try:
        assert not (problems := problems_of(db, simulation)), "\n".join(problems)
    except BaseException:
        print(f"--seed={seed}", *simulation.scheduler.trace, sep="\n")
        raise
    return simulation


def test_groups_keep_their_shares_limits_and_order_and_none_is_stuck(
    steady: Any, space: Subspace, request: pytest.FixtureRequest
) -> None:
    given = request.config.getoption("--seed")
    met: Counter[str] = Counter()
    for seed in range(SEEDS) if given is None else [given]:
        met += simulate(steady, space, seed).met()
    if given is None and SEEDS >= _ENOUGH:
        assert met.keys() >= _MET, met


@pytest.mark.parametrize("name", MUTATIONS)
@pytest.mark.skipif(SEEDS < _ENOUGH, reason="takes minutes: set FDBQ_GROUP_SEEDS=100")
def test_each_planted_bug_is_found(
    memory: Any, space: Subspace, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation = MUTATIONS[name]
    mutation.plant(monkeypatch)
    for seed in range(_TRIED):
        simulation = GroupSimulation(memory, space, seed)
        if any(map(mutation.has_found, problems_of(memory, simulation))):
            return
    pytest.fail(f"{name} is not found by {_TRIED} seeds")


def test_a_seed_repeats_exactly(steady: Any, space: Subspace) -> None:
    traces = [simulate(steady, space, 3).scheduler.trace for _ in range(2)]
    assert traces[0] == traces[1]
