"""One simulation: a server in a directory of its own, and what came of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from tests.long.simulation.cluster.building import Tools
from tests.long.simulation.cluster.scenario import SHIM, Scenario, toml_file

_ROOT = Path(__file__).parents[4]
_LONGEST = 1_800
"""Real seconds after which a simulation is ended."""


@dataclass(frozen=True)
class Result:
    """What came of a simulation.

    Attributes:
        operations: How many operations were checked.
        digest: A digest of all operations, and of the simulator's random numbers.
        problems: What is wrong.
    """

    operations: int
    digest: str
    problems: tuple[str, ...]


def run(scenario: Scenario, tools: Tools, directory: Path) -> Result:
    """Run a simulation in an empty directory."""
    (directory / "scenario.json").write_text(json.dumps(asdict(scenario)))
    (directory / "test.toml").write_text(toml_file(scenario))
    (directory / f"lib{SHIM}.so").symlink_to(tools.shim)
    command = [*_fixed_addresses(), str(tools.server), "-r", "simulation", "-f", "test.toml"]
    command += ["-s", str(scenario.seed), "-b", "on" if scenario.buggify else "off"]
    with (directory / "output.txt").open("w") as output:
        try:
            subprocess.run(
                command,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "PYTHONHASHSEED": "0",
                    "FDBQ_SIMULATION_PYTHON": sys.executable,
                    "FDBQ_SIMULATION_FOLDER": str(_ROOT),  # from which Python imports the tests
                },
                timeout=_LONGEST,
            )
        except subprocess.TimeoutExpired:
            output.write(f"\nended after {_LONGEST} real seconds\n")
    return _result(directory)


@cache
def _fixed_addresses() -> list[str]:
    """Return the command that gives a program the same addresses in each run, if there is one."""
    command = ["setarch", "-R"]
    is_there = shutil.which("setarch") and not subprocess.run([*command, "true"]).returncode
    return command if is_there else []


def _result(directory: Path) -> Result:
    output = (directory / "output.txt").read_text(errors="replace")
    report = directory / "report.jsonl"
    lines = [*map(json.loads, report.read_text().splitlines())] if report.exists() else []
    problems = [line["problem"] for line in lines if "problem" in line]
    checked = [line for line in lines if "digest" in line]
    if not checked and not problems:
        hanging = re.search(r"timed out after \d+ seconds|ended after \d+ real seconds", output)
        problems.append(f"the workload was not checked{f': {hanging[0]}' if hanging else ''}")
    # The exit code of the server is 0 even if a test has failed.
    if "1 tests passed; 0 tests failed" not in output and not problems:
        problems.append("the server does not say that the test has passed; see output.txt")
    unseed = re.search(r"Unseed: (\d+)", output)
    digest = checked[-1]["digest"] if checked else ""
    return Result(
        sum(line["operations"] for line in checked),
        f"{digest[:10]}-{unseed[1] if unseed else '?'}",
        tuple(problems),
    )
