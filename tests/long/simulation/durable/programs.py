"""The programs of jobs: random sequences of steps, which a client performs with a `Context`.

A program is a list of instructions, each of them a list: the kind of the step, its name, and its
arguments. So it is the value of an item, and the job that has the item is the interpreter.
"""

from __future__ import annotations

import random
from typing import Any

from fdbqueue.jobs import Context, Dead, JobCancelled, RetryIn
from fdbqueue.queue.batches import Members
from fdbqueue.types import Transaction
from fdbqueue.worker.outcomes import ChildFailed, StepFailed, WaitTimedOut

KINDS = {"step": 4, "commit": 4, "sleep": 2, "wait": 4, "run": 2, "gather": 1, "fail": 2, "die": 2}
SIGNAL = "signal"
SHARED_KEYS = ("here", "there")
"""Keys for which several jobs may wait."""
FAILED, TIMED_OUT = "failed", "timed out"
"""The results of steps whose job has failed, or whose signal has not come."""

_FAILURES = 0.2
"""The part of the runs of a step, and of the attempts of a job, that fail."""
_DEATHS = 0.3
_DEPTH = 2
"""How deep jobs run jobs."""


def program(chance: random.Random, scale: float, depth: int = 0) -> list[list[Any]]:
    """Return a random program.

    Args:
        chance: The source of randomness.
        scale: The length of a short sleep in seconds.
        depth: How many jobs wait for it, one in the other.
    """
    kinds = chance.choices([*KINDS], [*KINDS.values()], k=chance.randint(1, 5))
    instructions: list[list[Any]] = []
    for number, kind in enumerate(kinds):
        instruction: list[Any] = [kind, f"{kind} {number}"]
        if kind == "sleep":
            instruction.append(scale * chance.choice([1, 10]))
        elif kind == "wait":
            key = chance.choice([*SHARED_KEYS, None, None, None])
            timeout = chance.choice([scale, 10 * scale, 100 * scale, None])
            instruction += [key, timeout]
        elif kind in ("run", "gather"):
            if depth == _DEPTH:
                continue
            n = 1 if kind == "run" else chance.randint(1, 3)
            instruction.append([program(chance, scale, depth + 1) for _ in range(n)])
        instructions.append(instruction)
    return instructions


def undo(chance: random.Random, scale: float) -> list[list[Any]]:
    """Return what a job does after it was cancelled: a random program, with steps of its own."""
    return [[kind, f"undo {name}", *rest] for kind, name, *rest in program(chance, scale, 1)]


class _Again:
    """A policy: try a step three times, after short delays."""

    def __init__(self, after: float) -> None:
        self._after = after

    def decide(self, error: Exception, attempt: int) -> RetryIn | Dead:
        """Return when to try again."""
        return RetryIn(self._after) if attempt < 3 else Dead(str(error))


class Child:
    """A job that another one runs.

    Args:
        members: The item to push.
    """

    def __init__(self, members: Members) -> None:
        self.members = members

    def decode_result(self, stored: Any) -> Any:
        """Return the result."""
        return stored


class ChildJob:
    """What makes a child of a payload.

    Args:
        queue: The queue to push it to.
    """

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def bind(self, payload: dict[str, Any]) -> Child:
        """Return the child with this payload."""
        return Child(Members(self._queue, {"values": [payload], "priority": 0}))


class Interpreter:
    """One run of a job.

    Args:
        context: What the job knows.
        jobs: Makes a child of a payload.
        witness: Is told of its steps: `begin` when a function begins, `effect` to make the effect
            of a commit, `saw` with each result.
        chance: The source of randomness.
        scale: The length of a short sleep in seconds.
        is_calm: Whether nothing fails.
    """

    def __init__(
        self,
        context: Context,
        jobs: Any,
        witness: Any,
        chance: random.Random,
        scale: float,
        is_calm: bool,
    ) -> None:
        self._context = context
        self._jobs = jobs
        self._witness = witness
        self._chance = chance
        self._is_calm = is_calm
        self._again = _Again(scale)

    def perform(self, instructions: list[list[Any]], undo: list[list[Any]]) -> None:
        """Perform a program, and another one once it learns that it is cancelled."""
        try:
            self._perform(instructions)
        except JobCancelled:
            self._perform(undo)

    def _perform(self, instructions: list[list[Any]]) -> None:
        for kind, name, *arguments in instructions:
            try:
                results = getattr(self, f"_{kind}")(name, *arguments)
            except ChildFailed:
                results = {name: FAILED}
            except StepFailed:
                continue  # the failure is stored with the next step, if there is one
            for step, result in results.items():
                self._witness.saw(step, result)

    def _raise(self, error: Exception, probability: float) -> None:
        if not self._is_calm and self._chance.random() < probability:
            raise error

    def _new_run(self) -> str:
        return f"{self._chance.getrandbits(48):012x}"

    # The instructions: each returns the results of its steps, by name

    def _fail(self, name: str) -> dict[str, Any]:
        self._raise(ValueError(name), _FAILURES)
        return {}

    def _die(self, name: str) -> dict[str, Any]:
        self._raise(Dead(name), _DEATHS)
        return {}

    def _step(self, name: str) -> dict[str, Any]:
        def function() -> str:
            run = self._new_run()
            self._witness.begin(name, run)
            self._raise(ValueError(name), _FAILURES)
            return run

        return {name: self._context.using(retry=self._again).step(name, function)}

    def _commit(self, name: str) -> dict[str, Any]:
        run = self._new_run()

        def function(tr: Transaction) -> str:
            self._witness.effect(tr, name, run)
            self._raise(ValueError(name), _FAILURES)
            return run

        return {name: self._context.using(retry=self._again).commit(name, function)}

    def _sleep(self, name: str, seconds: float) -> dict[str, Any]:
        self._context.sleep(name, seconds)
        return {}

    def _wait(self, name: str, key: str | None, timeout: float | None) -> dict[str, Any]:
        try:
            return {name: self._context.wait(name, signal=SIGNAL, key=key, timeout=timeout).value}
        except WaitTimedOut:
            return {name: TIMED_OUT}

    def _run(self, name: str, programs: list[Any]) -> dict[str, Any]:
        return {name: self._context.run(name, self._jobs, self._payload(name, programs[0]))}

    def _gather(self, name: str, programs: list[Any]) -> dict[str, Any]:
        payloads = [self._payload(f"{name} {n}", each) for n, each in enumerate(programs)]
        results = self._context.gather(name, map(self._jobs.bind, payloads), return_errors=True)
        return {
            f"{name} {n}": FAILED if isinstance(each, ChildFailed) else each
            for n, each in enumerate(results)
        }

    def _payload(self, step: str, instructions: list[list[Any]]) -> dict[str, Any]:
        parent = [self._context.item.id, step]
        return {"job": " ".join(parent), "program": instructions, "parent": parent}
