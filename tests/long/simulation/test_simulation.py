"""Seeded simulation with interleaved calls, faults and kills: each history is linearizable.

A seed that fails is run again, exactly so, by `pytest tests/long/simulation -k linearizable
--seed N`, which prints the trace.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.database import clock
from fdbqueue.operations.items import NewItem, Tail
from fdbqueue.queue.base import store_of
from tests.long.simulation.history import Operation, is_linearizable
from tests.long.simulation.simulated import Simulated

SEEDS = int(os.environ.get("FDBQ_SEEDS", "250"))  # run more by hand
PARTS = 5
SPACE = Subspace(("simulation",))


class Simulation(Simulated):
    """A few clients on one queue; `history` records their calls and results."""

    def __init__(self, db: Any, seed: int) -> None:
        super().__init__(db, SPACE, seed)
        self.queue = PriorityQueue(SPACE)
        self.history: list[Operation] = []
        self._values = 0
        self._moving: dict[int, dict[str, None]] = {}
        """The values that each client tried to move in its last call."""

    def run(self) -> None:
        """Run the clients, then pop the remaining items."""
        clients = self.random.randint(2, 4)
        with self.patched():
            self.scheduler.run([self._client(number) for number in range(clients)])
        self.end(self.queue)
        left = Operation(-1, "pop_min", 1_000, self.scheduler.time + 1)
        left.result = [item.value for item in self.queue.pop_many(self._raw, 1_000)]
        left.end = left.begin
        self.history.append(left)

    def _client(self, number: int) -> Callable[[], None]:
        kinds = ["push", "push", "pop_min", "pop_min", "pop_max"]
        if not self.kills:  # the values moved by a killed client would be unknown
            kinds.append("move")
        calls = [self.random.choice(kinds) for _ in range(self.random.randint(2, 7))]
        arguments = [self._arguments(kind) for kind in calls]

        # Each process has its own queue object; threads that share one wait for each other.
        queue = PriorityQueue(SPACE)

        def body() -> None:
            for kind, argument in zip(calls, arguments):
                self._call(number, queue, kind, argument)

        return body

    def _arguments(self, kind: str) -> Any:
        count = self.random.choice([1, 1, 1, 2, 3])
        if kind == "push":
            self._values += count
            values = range(self._values - count, self._values)
            return [(self.random.randrange(3), f"item {value}") for value in values]
        return self.random.randrange(3) if kind == "move" else count

    def _call(self, client: int, queue: PriorityQueue, kind: str, argument: Any) -> None:
        """Perform a call of a client and record it with its times."""
        begin = self.scheduler.time
        if kind == "push":
            last: dict[
                int, Operation
            ] = {}  # by priority, because items are only ordered within a priority
            entries = []
            for priority, value in argument:
                entry = Operation(client, kind, (priority, value), begin, after=last.get(priority))
                last[priority] = entry
                entries.append(entry)
        else:
            popping = "pop_min" if kind == "move" else kind
            entries = [Operation(client, popping, 1 if kind == "move" else argument, begin)]
        self.history += entries
        self._moving[client] = {}
        try:
            result = self._performed(client, queue, kind, argument)
        except fdbqueue.FDBError as error:
            # After a definite failure, the client relies on nothing having happened. After an
            # unknown result, the call counts like one of a killed client.
            self.scheduler.note(f"{kind} {argument!r} failed: {error.code}")
            if error.code == 1031:
                if kind in ("push", "move"):
                    self.history = [entry for entry in self.history if entry not in entries]
                for entry in entries:
                    entry.failed = True
            elif error.code != 1021:
                raise
            else:
                for value in self._moving[client]:
                    self.history.append(Operation(client, "push", (argument, f"{value}'"), begin))
            return
        if kind == "move":
            entries += [
                Operation(client, "push", (argument, f"{value}'"), begin) for value in result
            ]
            self.history += entries[1:]
        self.scheduler.time += 1
        for entry in entries:
            entry.end = self.scheduler.time
            entry.result = None if entry.kind == "push" else result
            self.scheduler.note(str(entry))

    def _performed(
        self, client: int, queue: PriorityQueue, kind: str, argument: Any
    ) -> list[str] | None:
        if kind == "push" and len(argument) == 1:
            queue.push(self.db, argument[0][1], argument[0][0])
            return None
        if kind == "push":
            priorities, values = zip(*argument)
            queue.push_many(self.db, values, priorities=priorities)
            return None
        if kind == "move":
            return self._move(client, queue, argument)
        popped = queue.pop_many(self.db, argument, max=kind == "pop_max")
        return [item.value for item in popped]

    def _move(self, client: int, queue: PriorityQueue, priority: int) -> list[str]:
        """Run a user's transaction that pops an item and pushes it again."""
        (random_part,) = clock.uuids(1)

        @fdbqueue.transactional(receipts=SPACE[4])
        def body(tr: Any) -> list[str]:
            item = queue.pop(tr)
            if item is None:
                return []
            self._moving[client][item.value] = None
            behind = store_of(queue)
            level = behind.levels.level(priority)
            new = NewItem(level, behind.codec.encode(f"{item.value}'"), random_part)
            behind.items.append(
                tr, clock.milliseconds(), [new], {level.prefix: Tail(tr.snapshot, level)}
            )
            return [item.value]

        moved: list[str] = body(self.db)
        return moved


def simulate(db: Any, seed: int) -> Simulation:
    simulation = Simulation(db, seed)
    try:
        simulation.run()
        assert is_linearizable(simulation.history), (
            "no order of the operations explains the results"
        )
        report = fdbqueue.admin.check(db, simulation.queue)
        assert report.ok, report.problems
    except BaseException:
        print(f"--seed={seed}", *simulation.scheduler.trace, sep="\n")
        print("history:", *simulation.history, sep="\n")
        raise
    return simulation


@pytest.mark.parametrize("part", range(PARTS))
def test_every_history_is_linearizable(
    memory: Any, part: int, request: pytest.FixtureRequest
) -> None:
    given = request.config.getoption("--seed")
    if given is not None and part:
        pytest.skip("one seed is one run")
    seeds = range(part, SEEDS, PARTS) if given is None else [given]
    kinds = set()
    for seed in seeds:
        simulation = simulate(memory, seed)
        kinds |= {line.split("(a ")[-1] for line in simulation.scheduler.trace if "(a " in line}
        kinds |= {"killed" for line in simulation.scheduler.trace if line.endswith("killed")}
    if given is None:
        assert {"late commit takes place)", "killed"} <= kinds


def test_a_seed_repeats_exactly(memory: Any) -> None:
    for seed in (1, 5, 42):
        assert simulate(memory, seed).scheduler.trace == simulate(memory, seed).scheduler.trace


# Histories that the checker must accept or reject

PUSH_A = Operation(0, "push", (1, "a"), 0, 1)
PUSH_B = Operation(0, "push", (1, "b"), 2, 3)
URGENT = Operation(0, "push", (0, "u"), 4, 5)


def pops(*results: list[str], kind: str = "pop_min", begin: int = 10) -> list[Operation]:
    """Return consecutive pops; the last one pops everything."""
    return [
        Operation(1, kind, max(1, len(result)), begin + 2 * n, begin + 2 * n + 1, result)
        for n, result in enumerate(results)
    ]


@pytest.mark.parametrize(
    ("history", "verdict"),
    [
        ([PUSH_A, PUSH_B, URGENT, *pops(["u"], ["a", "b"], [])], True),
        ([PUSH_A, PUSH_B, URGENT, *pops(["a"], ["u", "b"], [])], False),  # the wrong order
        ([PUSH_A, PUSH_B, *pops(["b"], ["a"], [])], False),  # not first in first out
        (
            [PUSH_A, PUSH_B, URGENT, *pops(["a"], kind="pop_max"), *pops(["u"], ["b"], begin=20)],
            True,
        ),
        ([PUSH_A, PUSH_B, *pops(["b"], kind="pop_max"), *pops(["a"], begin=20)], False),
        ([PUSH_A, *pops(["a"], ["a"], [])], False),  # twice
        ([PUSH_A, PUSH_B, *pops(["a"], [])], False),  # lost
        ([PUSH_A, *pops([], ["a"])], False),  # nothing, when there was something
        ([Operation(0, "push", (1, "a"), 0, 20), *pops([], ["a"], [])], True),  # not yet
        ([PUSH_A, Operation(2, "push", (1, "c"), 0, 5), *pops(["c"], ["a"], [])], True),
        ([Operation(0, "push", (1, "a"), 0), *pops([], [])], True),  # killed before
        ([Operation(0, "push", (1, "a"), 0), *pops([], ["a"], [])], True),  # killed, and late
        ([PUSH_A, Operation(2, "pop_min", 1, 4), *pops([])], True),  # killed, with the item
        ([PUSH_A, Operation(2, "pop_min", 1, 4), *pops(["a"], [])], True),  # killed before
        ([PUSH_A, PUSH_B, Operation(2, "pop_min", 1, 4), *pops([])], False),  # it took only one
    ],
)
def test_the_checker_accepts_linearizable_histories_only(
    history: list[Operation], verdict: bool
) -> None:
    assert is_linearizable(history) is verdict
