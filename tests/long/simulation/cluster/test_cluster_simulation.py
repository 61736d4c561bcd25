"""A few seeds of the simulation find nothing, and find a bug that is there."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.long.simulation.cluster.building import Missing, Tools, find_tools
from tests.long.simulation.cluster.runs import run
from tests.long.simulation.cluster.scenario import choose
from tests.long.simulation.cluster.workloads import WORKLOADS
from tests.long.simulation.mutations import Mutation

SEEDS = int(os.environ.get("FDBQ_SIMULATION_SEEDS", "3"))
"""How many seeds each workload gets."""

_EASY = "order-by-chance"
"""A planted bug that any seed finds."""


@pytest.fixture(scope="module")
def tools() -> Tools:
    """Return what a simulation needs, or skip the test."""
    try:
        return find_tools()
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("workload", WORKLOADS)
def test_seeds_find_nothing(tools: Tools, workload: str, tmp_path: Path) -> None:
    operations = 0
    for seed in range(1, 1 + SEEDS):
        (tmp_path / str(seed)).mkdir()
        result = run(choose(workload, seed), tools, tmp_path / str(seed))
        assert not result.problems
        operations += result.operations
    assert operations > 20 * SEEDS  # a faulty cluster allows few; another build of it, others


def test_a_seed_finds_a_planted_bug(tools: Tools, tmp_path: Path) -> None:
    scenario = choose("queues", 3)
    result = run(replace(scenario, mutation=_EASY), tools, tmp_path)
    assert any(map(Mutation.has_found, result.problems))


def test_the_same_seed_gives_the_same_run(tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "another directory").mkdir()
    scenario = choose("queues", 2)
    results = [run(scenario, tools, directory) for directory in tmp_path.iterdir()]
    assert results[0] == results[1]
