"""The simulations find each planted bug, as far as the embedded engine can show it."""

from __future__ import annotations

import os
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from tests.long.simulation.mutations import MUTATIONS, planted
from tests.long.simulation.scheduler import Endless
from tests.long.simulation.simulated import simulate
from tests.long.simulation.test_durable_simulation import DurableSimulation
from tests.long.simulation.test_group_simulation import GroupSimulation
from tests.long.simulation.test_queue_simulation import QueueSimulation
from tests.long.simulation.test_waiting_simulation import WaitingSimulation

TRIED = int(os.environ.get("FDBQ_BUG_SEEDS", "300"))
"""How many seeds may be needed to find a bug."""

SIMULATIONS: dict[str, Any] = {
    "queues": lambda db, space, seed: QueueSimulation(db, seed),
    "durable": DurableSimulation,
    "groups": GroupSimulation,
    "waiting": lambda db, space, seed: WaitingSimulation(db, seed),
}


@pytest.mark.parametrize(
    "name", [name for name, each in MUTATIONS.items() if each.workload in SIMULATIONS]
)
def test_each_planted_bug_is_found(memory: Any, space: Subspace, name: str) -> None:
    for seed in range(1, 1 + TRIED):
        simulation = SIMULATIONS[MUTATIONS[name].workload](memory, space, seed)
        with planted(name):
            try:
                problems = simulation.run()
            except Endless:
                return
        if any(map(MUTATIONS[name].has_found, problems)):
            return
    pytest.fail(f"{name} is not found by {TRIED} seeds")


@pytest.mark.parametrize("name", SIMULATIONS)
def test_a_seed_repeats_exactly(memory: Any, space: Subspace, name: str) -> None:
    for seed in (1, 3, 5):
        runs = [simulate(SIMULATIONS[name](memory, space, seed), seed) for _ in range(2)]
        assert runs[0].scheduler.trace == runs[1].scheduler.trace


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_planted_bug_changes_code_that_exists(name: str) -> None:
    with planted(name):
        pass
