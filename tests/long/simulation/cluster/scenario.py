"""What a seed stands for: a workload, a cluster, and the faults that it meets.

A seed chooses everything here, and the simulator makes all further choices with it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

SHIM = "shim"
"""The name of the shim, in the directory of a simulation."""

_REDUNDANCY = ("single", "double", "triple")
_ENGINES = (0, 1, 2, 3)  # ssd, memory, memory-radixtree, redwood
"""The storage engines by the simulator's numbers, without those that have threads."""

_FAULTY = 0.7
"""The part of the time in which faults occur."""

_CALM = 0.07
"""The part of the seeds in which the cluster has no faults."""

_PATIENCE = 2_100
"""Simulated seconds after which the simulator calls a test hanging."""


@dataclass(frozen=True)
class Scenario:
    """One simulation.

    Attributes:
        workload: The name of the workload.
        seed: The seed.
        buggify: Whether the server and its client take unlikely paths more often.
        seconds: How long the clients work, in simulated time. Faults occur at first.
        redundancy: The redundancy mode of the cluster.
        engine: The number of its storage engine.
        machines: The number of its machines.
        processes: The number of processes of each machine. The simulator would choose up to five of
            them: a seed then takes three times as long, and gets less done.
        faults: The workloads of the simulator that cause faults, with their options.
        skew: How many seconds the clocks of the clients differ at most.
        lost_answers: The probability that a client does not learn the result of a commit, in
            addition to those that the faults cause.
        mutation: The bug that is planted, one of `MUTATIONS`.
    """

    workload: str
    seed: int
    buggify: bool
    seconds: float
    redundancy: str
    engine: int
    machines: int
    processes: int
    faults: tuple[dict[str, Any], ...]
    skew: float = 0.0
    lost_answers: float = 0.0
    mutation: str | None = None


def choose(workload: str, seed: int) -> Scenario:
    """Return the scenario of a seed."""
    chance = random.Random(f"{workload} {seed}")
    seconds = float(chance.choice([30, 60, 60, 120]))
    redundancy, engine = chance.choice(_REDUNDANCY), chance.choice(_ENGINES)
    machines = chance.randint(5, 9)
    faults = [] if chance.random() < _CALM else _faults(chance, redundancy, _FAULTY * seconds)
    buggify = chance.random() < 0.75
    processes = chance.choice([1, 1, 1, 2])
    cluster = redundancy, engine, machines, processes
    skew = float(chance.choice([0, 0, 60, 3_600]))
    lost = chance.choice([0.0, 0.02, 0.1])
    return Scenario(workload, seed, buggify, seconds, *cluster, tuple(faults), skew, lost)


def _faults(chance: random.Random, redundancy: str, seconds: float) -> list[dict[str, Any]]:
    """Return faults as the server's own tests combine them."""
    faults: list[dict[str, Any]] = []
    if chance.random() < 0.8:
        swizzle = int(chance.random() < 0.3)
        clogging = {"scale": chance.uniform(0.1, 1.0), "clogginess": chance.uniform(0.1, 1.0)}
        faults.append({"testName": "RandomClogging", "swizzle": swizzle, **clogging})
    if chance.random() < 0.2:  # many short pauses
        faults.append({"testName": "RandomClogging", "scale": 0.1, "clogginess": 2.0})
    if chance.random() < 0.7:
        faults.append({"testName": "Rollback", "meanDelay": chance.choice([10.0, 30.0])})
    for _ in range(chance.choice([0, 1, 1, 2])):
        # Without `reboot`, machines die, also with their disks, as far as the redundancy allows.
        # With `killDc` all machines reboot at once.
        reboot = chance.random() < 0.7
        kills = {"machinesToKill": 10, "machinesToLeave": 3, "reboot": reboot}
        kill_dc = reboot and chance.random() < 0.25
        faults.append({"testName": "Attrition", **kills, "killDc": kill_dc})
    faults = [{**fault, "testDuration": seconds} for fault in faults]
    stronger = _REDUNDANCY[_REDUNDANCY.index(redundancy) + 1 :]
    changes = [{"coordinators": "auto"}, *({"configMode": mode} for mode in stronger)]
    if chance.random() < 0.2:
        change = chance.choice(changes)
        faults.append({"testName": "ChangeConfig", "maxDelayBeforeChange": seconds, **change})
    return faults


def toml_file(scenario: Scenario) -> str:
    """Return the file in TOML that tells the server what to run.

    It names the same paths everywhere, because their lengths would change the run.
    """
    configuration = {
        "config": scenario.redundancy,
        "storageEngineType": scenario.engine,
        "machineCount": scenario.machines,
        "processesPerMachine": scenario.processes,
        "datacenters": 1,
        "generateFearless": False,
        "allowDefaultTenant": False,
        "tenantModes": ["disabled"],
        "encryptModes": ["disabled"],
        "simHTTPServerEnabled": False,
        "disableTss": True,
    }
    test = {
        "testTitle": scenario.workload,
        "clearAfterTest": False,
        "runConsistencyCheck": False,  # of the servers, which their own tests check
        "waitForQuiescence": False,  # most of the time of a seed, and no client waits for it
        "timeout": _PATIENCE,
    }
    clients = {
        "testName": "External",
        "libraryName": SHIM,
        "libraryPath": ".",
        "workloadName": scenario.workload,
    }
    tables = [("[configuration]", configuration), ("[[test]]", test)]
    tables += [("[[test.workload]]", each) for each in (clients, *scenario.faults)]
    return "\n".join(
        "\n".join([title, *(f"{key} = {_toml(value)}" for key, value in table.items()), ""])
        for title, table in tables
    )


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value)  # numbers, and texts as literal ones
