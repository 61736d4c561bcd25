"""The clients of a simulation and their phases, which the shim begins.

Each simulated tester has one client, and a client runs one workload. A phase is one process of the
client: when its function returns, the process ends like one that exits.
"""

from __future__ import annotations

import gc
import importlib
import json
import random
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import _fdbsim

from tests.simulation.cluster.inside import binding, environment, simulator
from tests.simulation.cluster.inside.greenlets import Process
from tests.simulation.cluster.mutations import MUTATIONS

__all__ = ["Client", "create"]

_WORKLOADS = "tests.simulation.cluster.workloads"
_REPORT = Path("report.jsonl").absolute()  # read by `runs`
_LOG = Path("log.txt").absolute()
_scenario: dict[str, Any] = {}


class Client:
    """One client of a simulation.

    Attributes:
        id: Its number, from 0.
        count: The number of clients.
        random: Random choices of this client.
        scenario: What the seed has chosen for all clients.
    """

    def __init__(self, context: int, workload: str) -> None:
        self._context = context
        self.id = _fdbsim.client_id(context)
        self.count = _fdbsim.client_count(context)
        self.random = random.Random(f"{_scenario['seed']} {self.id}")
        self.scenario = _scenario
        self.process: Process | None = None
        self._problems = 0
        module = importlib.import_module(f"{_WORKLOADS}.{workload}")
        self._workload = getattr(module, workload.capitalize())(self)

    def begin(self, phase: str, pointer: int, promise: int) -> None:
        """Begin a phase with a database; keep the promise when it has ended."""
        gc.collect()  # only here: elsewhere it would depend on what was compiled or cached
        self.process = process = Process(_fdbsim.process(self._context))
        process.db = db = binding.open_database(pointer)

        def body() -> None:
            try:
                getattr(self._workload, phase)(db)
            except Exception:
                self.problem(f"{phase} failed: {traceback.format_exc()}")
            process.exit(lambda: _fdbsim.finish(promise, not self._problems))

        process.start(body)

    def close(self) -> None:
        """End with the workload of the simulator."""
        if self.process is not None:
            self.process.kill()
        simulator.forget(self._context)

    def problem(self, text: str) -> None:
        """Report that something is wrong, and fail."""
        self._problems += 1
        self.report(problem=text)
        _fdbsim.trace(self._context, True, "PythonProblem", {"Text": text[-400:]})

    def report(self, **facts: object) -> None:
        """Add facts to the report of the simulation."""
        with _REPORT.open("a") as file:
            json.dump({"client": self.id, "time": simulator.now(), **facts}, file)
            file.write("\n")

    def keep_log(self, operations: Iterable[object]) -> None:
        """Keep a line for each operation, for the reader of a problem."""
        _LOG.write_text("".join(f"{operation}\n" for operation in operations))


def create(context: int, workload: str) -> Client:
    """Return a new client; called by the shim."""
    simulator.know(context)
    if not _scenario:
        _prepare()
    return Client(context, workload)


def _prepare() -> None:
    gc.disable()
    environment.replace_surroundings()
    binding.prepare()
    _scenario.update(json.loads(Path("scenario.json").read_text()))
    if _scenario["mutation"] is not None:
        MUTATIONS[_scenario["mutation"]].plant()
