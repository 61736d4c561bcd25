"""The clients of a simulation and their phases, which the shim begins.

Each simulated tester has one client, and a client runs one workload. A phase is a process of the
client, which may start others: when its function returns, all of them end.
"""

from __future__ import annotations

import gc
import importlib
import json
import random
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import _fdbsim

from tests.long.simulation.cluster.inside import binding, environment, simulator
from tests.long.simulation.cluster.inside.greenlets import Process

_WORKLOADS = "tests.long.simulation.cluster.workloads"
_REPORT = Path("report.jsonl").absolute()  # read by `runs`
_LOG = Path("log.txt").absolute()
_scenario: dict[str, Any] = {}


class Client:
    """One client of a simulation.

    Attributes:
        id: Its number, from 0.
        random: Random choices of this client.
        skew: How many seconds the clock of its processes is ahead; not over 0.
        scenario: What the seed has chosen for all clients.
    """

    def __init__(self, context: int, workload: str) -> None:
        self._context = context
        self.id = _fdbsim.client_id(context)
        self.random = random.Random(f"{_scenario['seed']} {self.id}")
        self.skew = -self.random.uniform(0, _scenario["skew"])
        self.scenario = _scenario
        self._pointer = 0
        self._processes: list[Process] = []
        self._problems = 0
        module = importlib.import_module(f"{_WORKLOADS}.{workload}")
        self._workload = getattr(module, workload.capitalize())(self)

    def begin(self, phase: str, pointer: int, promise: int) -> None:
        """Begin a phase with a database; keep the promise when it has ended."""
        gc.collect()  # only here: elsewhere it would depend on what was compiled or cached
        self._pointer = pointer
        # The clock of a check is the fastest one, so that all times are over for it in time.
        skew = 0.0 if phase == "check" else self.skew

        def end() -> None:
            self._kill_all()
            _fdbsim.finish(promise, not self._problems)

        self.start_process(getattr(self._workload, phase), skew=skew, then=end)

    def start_process(
        self,
        function: Callable[[Any], object],
        *,
        skew: float | None = None,
        then: Callable[[], object] = bool,
    ) -> Process:
        """Start a process that calls `function(db)` and exits.

        Args:
            function: What its first thread does.
            skew: How many seconds its clock is ahead; by default as that of the client.
            then: Called by the hub after its end, unless it is killed.
        """
        place = _fdbsim.process(self._context)
        process = Process(place, self.skew if skew is None else skew)
        process.db = db = binding.open_database(self._pointer)
        self._processes.append(process)

        def body() -> None:
            try:
                function(db)
            except Exception:
                self.problem(f"{function} failed: {traceback.format_exc()}")
            process.exit(then)

        process.start(body)
        return process

    def _kill_all(self) -> None:
        for process in self._processes:
            process.kill()
        self._processes.clear()

    def close(self) -> None:
        """End with the workload of the simulator."""
        self._kill_all()
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
    _scenario.update(json.loads(Path("scenario.json").read_text()))
    binding.prepare(_scenario["lost_answers"])
    environment.separate_globals()
    if _scenario["mutation"] is not None:
        # Only now: it imports code that is to be simulated.
        from tests.long.simulation.mutations import MUTATIONS

        MUTATIONS[_scenario["mutation"]].plant()
