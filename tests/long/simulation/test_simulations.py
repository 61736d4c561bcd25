"""Seeded simulations with faults and kills find nothing, and find each planted bug.

A seed that fails is run again by `pytest tests/long/simulation -k SIMULATION --seed N`, which
prints the trace. `FDBQ_SEEDS` is the number of seeds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from tests.long.simulation.durable import simulation as durable
from tests.long.simulation.groups import simulation as groups
from tests.long.simulation.mutations import MUTATIONS, planted
from tests.long.simulation.queues import simulation as queues
from tests.long.simulation.scheduler import Endless

SEEDS = int(os.environ.get("FDBQ_SEEDS", "0"))
BUG_SEEDS = int(os.environ.get("FDBQ_BUG_SEEDS", "300"))
"""How many seeds may be needed to find a bug."""

SIMULATIONS: dict[str, Callable[[Any, Subspace, int], Any]] = {
    "queues": lambda db, space, seed: queues.QueueSimulation(db, seed),
    "durable": durable.DurableSimulation,
    "groups": groups.GroupSimulation,
}

ENOUGH = {"queues": 60, "durable": 12, "groups": 20}
"""With how many seeds each simulation meets what has to happen."""

EVENTS = {
    "queues": {"killed", "(a recovery)", "(a late commit takes place)"},
    "durable": durable.MET,
    "groups": {"as many as the limit", "as many as the rate", "refused", "compared shares"},
}
"""What has to happen in some of the seeds."""


def simulate(name: str, db: Any, space: Subspace, seed: int) -> Any:
    """Run a simulation, and return it; print its trace if it has a problem."""
    simulation = SIMULATIONS[name](db, space, seed)
    try:
        assert not (problems := simulation.run()), "\n".join(problems)
    except BaseException:
        print(f"--seed={seed}", *simulation.scheduler.trace, sep="\n")
        raise
    return simulation


@pytest.mark.parametrize("name", SIMULATIONS)
def test_simulations_find_nothing(
    memory: Any, space: Subspace, name: str, request: pytest.FixtureRequest
) -> None:
    given = request.config.getoption("--seed")
    met: set[str] = set()
    for seed in range(SEEDS or ENOUGH[name]) if given is None else [given]:
        simulation = simulate(name, memory, space, seed)
        met |= {line.partition(": ")[2] for line in simulation.scheduler.trace}
        met |= getattr(simulation, "events", {}).keys()
    assert given is not None or SEEDS or met >= EVENTS[name], EVENTS[name] - met


@pytest.mark.parametrize("name", ["durable", "groups"])
def test_simulations_find_nothing_on_any_engine(steady: Any, space: Subspace, name: str) -> None:
    """`simulate` asserts that a run has no problem."""
    for seed in range(1, 4):
        simulate(name, steady, space, seed)


@pytest.mark.parametrize("name", SIMULATIONS)
def test_a_seed_repeats_exactly(memory: Any, space: Subspace, name: str) -> None:
    for seed in (1, 3, 5):
        runs = [simulate(name, memory, space, seed) for _ in range(2)]
        assert runs[0].scheduler.trace == runs[1].scheduler.trace


@pytest.mark.parametrize(
    "name", [name for name, each in MUTATIONS.items() if each.workload in SIMULATIONS]
)
def test_each_planted_bug_is_found(memory: Any, space: Subspace, name: str) -> None:
    for seed in range(1, 1 + BUG_SEEDS):
        simulation = SIMULATIONS[MUTATIONS[name].workload](memory, space, seed)
        with planted(name):
            try:
                problems = simulation.run()
            except Endless:
                return
        if any(map(MUTATIONS[name].has_found, problems)):
            return
    pytest.fail(f"{name} is not found by {BUG_SEEDS} seeds")


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_planted_bug_changes_code_that_exists(name: str) -> None:
    """Otherwise it cannot be planted, which is an error."""
    with planted(name):
        pass
