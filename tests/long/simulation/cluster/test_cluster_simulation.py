"""Seeds of the simulation find nothing, and find bugs that are there.

`--seed N` runs one seed again. With `FDBQ_SIMULATION_SEEDS`, each workload gets so many, from a
random one on. With `FDBQ_BUG_SEEDS`, each planted bug has to be found by so many.
"""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.long.simulation.cluster.building import Missing, Tools, find_tools
from tests.long.simulation.cluster.runs import run
from tests.long.simulation.cluster.scenario import choose
from tests.long.simulation.cluster.workloads import WORKLOADS
from tests.long.simulation.mutations import MUTATIONS

SEEDS = int(os.environ.get("FDBQ_SIMULATION_SEEDS", "0"))
FEW = 3
BUG_SEEDS = int(os.environ.get("FDBQ_BUG_SEEDS", "0"))
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
def test_seeds_find_nothing(
    tools: Tools, workload: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    given = request.config.getoption("--seed")
    first = given or (random.randrange(10**6) if SEEDS else 1)
    operations, n = 0, 1 if given else SEEDS or FEW
    for seed in range(first, first + n):
        (directory := tmp_path / str(seed)).mkdir()
        print(f"--seed={seed}")
        result = run(choose(workload, seed), tools, directory)
        assert not result.problems, directory
        operations += result.operations
        shutil.rmtree(directory)
    assert operations > 20 * n  # a faulty cluster allows few; another build of it, others


@pytest.mark.parametrize("name", MUTATIONS if BUG_SEEDS else [_EASY])
def test_a_seed_finds_a_planted_bug(tools: Tools, name: str, tmp_path: Path) -> None:
    for seed in range(1, 1 + (BUG_SEEDS or FEW)):
        (directory := tmp_path / str(seed)).mkdir()
        scenario = choose(MUTATIONS[name].workload, seed)
        result = run(replace(scenario, mutation=name), tools, directory)
        if any(map(MUTATIONS[name].has_found, result.problems)):
            return
        shutil.rmtree(directory)
    pytest.fail(f"{name} is not found")


def test_the_same_seed_gives_the_same_run(tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "another directory").mkdir()
    scenario = choose("queues", 2)
    results = [run(scenario, tools, directory) for directory in tmp_path.iterdir()]
    assert results[0] == results[1]
