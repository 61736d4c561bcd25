"""Run fdbqueue in FoundationDB's simulator.

python -m tests.long.simulation.cluster --seeds N [--workload NAME] [--seed N] [--buggify on|off]
    [--jobs 2] [--minutes M] [--mutation NAME|all]
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tests.long.simulation.cluster.building import Missing, Tools, find_tools
from tests.long.simulation.cluster.runs import Result, run
from tests.long.simulation.cluster.scenario import Scenario, choose
from tests.long.simulation.cluster.workloads import WORKLOADS
from tests.long.simulation.mutations import MUTATIONS


def main() -> int:
    given = _arguments()
    try:
        tools = find_tools()
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 2
    if given.mutation == "all":
        return 0 if _find_all(tools, given.seeds or _SEEDS) else 1
    first = random.randrange(10**6) if given.seed is None else given.seed
    workloads = [given.workload] if given.workload else WORKLOADS
    buggify = None if given.buggify is None else given.buggify == "on"
    scenarios = [
        replace(choose(workloads[seed % len(workloads)], seed, buggify), mutation=given.mutation)
        for seed in range(first, first + (given.seeds or (_MANY if given.minutes else 1)))
    ]
    began = time.monotonic()
    end = began + 60 * (given.minutes or math.inf)
    results: list[Result] = []

    def run_one(scenario: Scenario) -> Result | None:
        return _run(scenario, tools) if time.monotonic() < end else None

    with ThreadPoolExecutor(given.jobs) as pool:
        for result in pool.map(run_one, scenarios):
            if result is not None:
                results.append(result)
    failed = sum(bool(result.problems) for result in results)
    hours = sum(result.simulated for result in results) / 3600
    operations = sum(result.operations for result in results)
    print(
        f"{len(results)} seeds, {failed} failed: {hours:.1f} simulated hours, {operations:,} "
        f"operations, {60 * len(results) / (time.monotonic() - began):.1f} seeds a minute"
    )
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.long.simulation.cluster",
        description="Run fdbqueue in FoundationDB's simulator.",
    )
    parser.add_argument("--seeds", type=int, help="how many simulations to run, by default one")
    parser.add_argument("--minutes", type=float, help="begin none after this time")
    parser.add_argument("--seed", type=int, help="the first seed; by default a random one")
    parser.add_argument("--workload", choices=WORKLOADS, help="by default all in turns")
    parser.add_argument("--buggify", choices=["on", "off"], help="by default the seed chooses")
    parser.add_argument("--jobs", type=int, default=1, help="how many simulations run at a time")
    parser.add_argument("--mutation", choices=[*MUTATIONS, "all"], help="a bug to plant")
    return parser.parse_args()


_SEEDS = 200
"""The number of seeds in which each mutation has to be found."""
_MANY = 10_000


def _find_all(tools: Tools, seeds: int) -> bool:
    """Plant each bug, print after how many seeds it is found, and return whether all are."""
    are_found = True
    for name, mutation in MUTATIONS.items():
        if mutation.workload not in WORKLOADS:  # of one that needs no cluster
            continue
        found = None
        for seed in range(1, 1 + seeds):
            with tempfile.TemporaryDirectory(prefix="simulation-") as directory:
                scenario = replace(choose(mutation.workload, seed), mutation=name)
                problems = run(scenario, tools, Path(directory)).problems
            if any(map(mutation.has_found, problems)):
                found = seed
                break
            if problems:
                print(f"{name}, seed {seed}, something else: {problems[0].strip()[-300:]}")
        are_found = are_found and found is not None
        print(f"{name:25}{mutation.workload:12}{found or f'not in {seeds}'}", flush=True)
    return are_found


def _run(scenario: Scenario, tools: Tools) -> Result:
    """Run a scenario and print its line; keep the directory if it fails."""
    directory = Path(tempfile.mkdtemp(prefix="simulation-"))
    result = run(scenario, tools, directory)
    lines = [str(result)]
    if result.problems:
        buggify = "on" if scenario.buggify else "off"
        options = f"--workload {scenario.workload} --seed {scenario.seed} --buggify {buggify}"
        lines += [f"    repeat it with {options}", f"    its directory is {directory}"]
    else:
        shutil.rmtree(directory)
    print("\n".join(lines), flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main())
