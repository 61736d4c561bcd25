"""Seeded simulation of groups with faults and kills: shares, limits, order, and none is stuck.

A seed that fails is run again by `pytest tests/long/simulation -k group --seed N`, which prints the
trace. `FDBQ_GROUP_SEEDS` is the number of seeds per engine; from 100 on, each planted
bug has to be found, too.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Claim, PriorityQueue
from tests.long.simulation.clients import DELAYS, Clients
from tests.long.simulation.groups.ledger import Act, Ledger
from tests.long.simulation.groups.mutations import MUTATIONS
from tests.long.simulation.groups.state import read_state
from tests.long.simulation.scheduler import Commit
from tests.support.keys import layout_of
from tests.support.random_options import BOUNDS, COSTS, GROUPS, IF_FULL, limits

SEEDS = int(os.environ.get("FDBQ_GROUP_SEEDS", "10"))

_ENOUGH = 100
"""How many seeds meet everything that has to happen; with as many, planted bugs are looked for."""

_TRIED = 2_000
"""How many seeds may be needed to find a planted bug."""

_MET = {
    *(
        "as many as the limit",
        "as many as the rate",
        "as many as the rate of the queue",
        "as many as the bound",
        "refused",
        "replaced",
        "held back",
        "released",
        "cleared",
        "compared shares",
    ),
    *("lost", "cancel", "move", "retry", "recovery", "killed", "late commit takes place"),
}
"""What has to happen in some of the seeds."""

SETTINGS = limits([(1, 0.05), (2, 0.2), (3, 1.0)])
QUEUE_RATES = [(1, 0.1), (2, 0.2), (3, 0.2), (4, 1.0)]
LONGEST = 2_000  # milliseconds, after which each rate allows more


class GroupSimulation(Clients[Act]):
    """A few clients on one queue."""

    _kinds = {
        **{"push": 9, "claim at once": 4, "claim inside": 4, "pop at once": 1, "pop inside": 2},
        **{"ack": 7, "nack": 3, "release": 2, "extend": 1, "set": 4, "configure": 1},
        **{"cancel": 1, "move": 1, "retry": 2, "clear": 0.6, "pause": 4, "forget": 1},
    }
    _leases = [0.03, 0.1, 0.3, 30.0, 30.0]

    def __init__(self, db: Any, space: Subspace, seed: int) -> None:
        super().__init__(db, space, seed)
        draw = self.random
        self._is_exact = self.is_quiet or draw.random() < 0.3
        self._limits = draw.random() < 0.8
        self._groups = GROUPS
        self._settings = SETTINGS
        self._is_full = draw.random() < 0.4
        if self._is_full:
            self._groups = [*draw.sample(GROUPS[:-1], 2), None]
            self._settings = SETTINGS[-9:] + 2 * BOUNDS
            self._kinds = self._kinds | {"set": 8}
        self._rates = draw.choice([[], QUEUE_RATES, [*QUEUE_RATES, None, None]])
        self.ledger = Ledger(is_exact=self.is_quiet)
        self.queue = self._open()

    def _note_commit(self, act: Act, commit: Commit) -> None:
        now = self.scheduler.time + max(self.scheduler.skews, default=0)
        self.ledger.note(act, commit, read_state(self._raw, self.queue), now)

    def run(self) -> None:
        """Run the clients; after all leases are over, let every group go on, and end all items."""
        with self.patched():
            self._perform(self._open(), self._new("configure"))
            for group in self._groups if self._is_full else ():
                self._perform(
                    self._open(), Act("set", group=group, settings=self.random.choice(BOUNDS))
                )
            self._run_clients(10, 40)
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
            act = Act(self.random.choice(["claim inside", "pop inside"]))
            self._perform(queue, act)
            in_vain = 0 if act.result else in_vain + 1
            if act.result is None:
                self.scheduler.time += LONGEST
            elif act.verb == "claim":
                self._perform(queue, Act("ack", claim=act.result))
        if left := [place for place in self.ledger.state.places.values() if place.state != "dead"]:
            self.ledger.problems.append(f"they are stuck: {left}")

    def _new(self, kind: str) -> Act:
        draw = self.random
        act = Act(kind, n=draw.choice([1, 1, 1, 2, 3]))
        act.within = act.n if self._is_exact else draw.choice([act.n, 2 * act.n, 256])
        act.priority = draw.choice([0, 0, 0, 1, 200])
        act.group = draw.choice(self._groups)
        if kind == "push":
            act.n = draw.choice([1, 1, 2, 4])
            act.cost = draw.choice(COSTS)
            act.values = self._new_values(act.n)
            act.options = draw.choice(IF_FULL)
        elif kind == "configure":
            act.settings = {"rate": draw.choice(self._rates)} if self._rates else {}
        elif kind == "set":
            act.group = draw.choice([*self._groups, ""])
            act.settings = draw.choice(self._settings)
            if not self._limits or act.group == "":
                act.settings = {"weight": act.settings.get("weight")}
            elif act.group is None:
                act.settings = {k: v for k, v in act.settings.items() if k != "paused"}
        elif kind == "nack":
            act.dead = draw.random() < (0.5 if self._is_full else 0.1)
        return act

    def _drawn(self, kind: str, held: list[Claim[Any]]) -> Act:
        act = super()._drawn(kind, held)
        if kind == "push":
            act.delay = self.random.choice([0, 0, 0, self.random.choice(DELAYS)])
        return act

    def _perform(self, queue: PriorityQueue[Any], act: Act) -> None:
        begun = self.ledger.version
        super()._perform(queue, act)
        self.ledger.note_outcome(act, begun)

    def _result(self, queue: PriorityQueue[Any], act: Act) -> Any:
        db = self.db
        if act.kind == "push":
            options = {"priority": act.priority, "delay": act.delay, "group": act.group}
            items = queue.push_many(db, act.values, cost=act.cost, **options, **act.options)
            return [item.value for item in items]
        if act.kind == "set":
            return queue.set_group(db, act.group, **act.settings)
        if act.kind == "configure":
            return queue.configure(db, **act.settings)
        if act.kind == "pop at once":
            return [item.value for item in queue.pop_many(db, act.n)] or None
        if act.kind in ("cancel", "move", "retry"):
            return self._change(queue, act)
        if act.kind == "clear":
            return queue.clear(db)
        return super()._result(queue, act)

    def _inside(self, queue: PriorityQueue[Any], tr: Any, act: Act) -> Any:
        if act.kind == "claim inside":
            return queue.claim(tr, lease=act.lease, n=act.n, within=act.within)
        if act.claim is not None:
            return queue.ack(tr, act.claim)
        return [item.value for item in queue.pop_many(tr, act.n)] or None

    def _change(self, queue: PriorityQueue[Any], act: Act) -> Any:
        """Cancel, move or retry any item."""
        places = self.ledger.state.places
        if act.kind == "retry":
            places = {at: each for at, each in places.items() if each.state in ("dead", "delayed")}
        position = self.random.choice([*places] or [b""])
        if position not in places:
            return None
        layout = layout_of(queue)
        id = layout.item_id(layout.items + position)
        act.values, act.group = [id], places[position].line.group
        if act.kind == "cancel":
            return queue.cancel(self.db, id) or None
        if act.kind == "retry":
            return queue.retry(self.db, id) or None
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
