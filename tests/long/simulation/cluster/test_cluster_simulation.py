"""A few seeds of the simulation find nothing, and find a bug that is there."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.long.simulation.cluster.building import Missing, Tools, find_tools
from tests.long.simulation.cluster.runs import run
from tests.long.simulation.cluster.scenario import choose
from tests.long.simulation.cluster.workloads import WORKLOADS
from tests.long.simulation.mutations import MUTATIONS, planted

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
    assert any(MUTATIONS[_EASY].has_found(problem) for problem in result.problems)


def test_each_planted_bug_is_found_by_a_workload() -> None:
    assert {mutation.workload for mutation in MUTATIONS.values()} <= {*WORKLOADS}
    assert all(mutation.finds for mutation in MUTATIONS.values())


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_planted_bug_changes_code_that_exists(name: str) -> None:
    with planted(name):
        pass


def test_the_same_seed_gives_the_same_run(tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "another directory").mkdir()
    scenario = choose("queues", 2)
    results = [run(scenario, tools, directory) for directory in tmp_path.iterdir()]
    assert results[0] == results[1]


@pytest.mark.parametrize("given", [{}, {"FDB_SIMULATION_SERVER": sys.executable}])
def test_the_command_says_in_one_line_what_is_missing(given: dict[str, str]) -> None:
    names = ("FDB_SIMULATION_SERVER", "FDB_SOURCE")
    rest = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-m", "tests.long.simulation.cluster", "--seeds", "1"],
        cwd=Path(__file__).parents[4],
        env=rest | given,
        capture_output=True,
        text=True,
    )
    (missing,) = set(names) - given.keys() if given else names[:1]
    assert done.returncode == 2
    assert done.stderr.startswith(f"{missing} is not set to ")
    assert done.stderr.endswith("docs/design/simulation.md says what the simulation needs\n")
    assert done.stderr.count("\n") == 1


def test_a_seed_always_stands_for_the_same_scenario() -> None:
    assert choose("queues", 7) == choose("queues", 7)
    assert choose("queues", 7) != replace(choose("queues", 8), seed=7)
    with_buggify = replace(choose("queues", 7), buggify=True)
    assert choose("queues", 7, buggify=True) == with_buggify
