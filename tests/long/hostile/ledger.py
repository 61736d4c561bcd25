"""An external ledger of a storm: clients record their operations, which must add up.

A client writes one line before an operation begins (the intent, with its values) and one when it
knows the result. Each line is on the disk (fdatasync) before the client goes on. So an
operation ends in one of three ways, or in a fourth that indicates a bug:

- `done`: it was acknowledged. Its values are those actually put, taken or claimed.
- `nothing`: it was rejected (`LeaseLost`, 404), found nothing, or promises to have no effect: a pop
  that was cancelled, one of an HTTP client that closed its side and got no whole response, and
  any operation that a failing disk has ended with an error other than 1021.
- `unknown`: it was in flight when its process or its server was killed, when its call was cancelled
  (a push may take effect all the same), when its client vanished with the response in flight, or
  when the disk failed (1021).
- `failed`: it raised an error that no event of a storm explains.

`account` compares the ledgers of all clients with the values left in the queues. Every value is
unique, and belongs to one queue. For each value:

- Puts (push, put_back) and takes (pop, ack, remove, drop) alternate. A take that was `done` needs a
  put that began before it ended; so does being left in the queue. One too many is **doubled**, and
  one without any put **appeared**.
- A put that was `done` needs a take that was `done`, or the value is still there. Else an `unknown`
  operation has to explain it: one that named the value, or a pop in flight, which explains as many
  values as it asked for, all of them put before it ended. Else the value is **lost**.
  The pop of an HTTP client that has gone may be performed later: its server may have been stopped.
- An operation that has shown a value (a peek, a claim) proves that the value was put, although the
  put may be `unknown`.
- Of a claim, nothing succeeds any more once another claim of the same value was acknowledged, and
  no other claim or pop gets the value while the lease lasts.

Times are those of the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from asyncio import CancelledError
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from fdbqueue.errors import DiskFull, LeaseLost, StorageError, SyncFailed

PUTS = frozenset({"push", "put_back"})
TAKES = frozenset({"pop", "ack", "remove", "drop"})
ENDS_OF_CLAIMS = frozenset({"ack", "nack", "release", "extend"})
NO_EFFECT_IF_CANCELLED = frozenset({"pop", "claim", "peek"})

CANCELLED = "cancelled"
LEASE_LOST = "lease lost"
HALF_CLOSED = "half-closed"
DISK_UNCERTAIN = "the disk failed: unknown"
DISK_FAILED = "the disk failed: nothing"
DISK_ERRORS = frozenset({StorageError, DiskFull, SyncFailed})
"""The errors of a disk that fails; other storage errors, such as `CorruptDatabase`, are bugs."""
HUNG_UP = "the server hung up"
_CLEARING_UP = 3.0  # seconds until a server must have put back the items of a vanished client
RECOVERY = 60.0
"""Seconds after a fault of the disk until which errors may tell of it, and work may be late."""
_SURELY = 0.9  # share of a lease that is certain to last, however the database measures time


class Gone(Exception):
    """A client or its server has gone; the operation is `outcome` because of `why`."""

    def __init__(self, outcome: str, why: str, values: Sequence[str] = ()) -> None:
        super().__init__(why)
        self.outcome, self.why, self.values = outcome, why, list(values)


@dataclass
class Operation:
    """One operation of one client and its outcome."""

    client: str
    number: int
    kind: str
    queue: str
    values: list[str] = field(default_factory=list)
    """The intended values; once done, the values put, taken, claimed or seen."""
    at_most: int = 0
    """The maximum number of values of a pop."""
    claim: int | None = None
    """The number of the claim that the operation ends or extends."""
    lease: float = 0.0
    """The lease of a claim in seconds."""
    began: float = 0.0
    ended: float = math.inf
    outcome: str = "nothing"
    why: str = ""
    error: str = ""

    def done(self, values: Iterable[str] | None = None) -> None:
        """Record that it was acknowledged, with its values if the intent did not name them."""
        self.outcome = "done"
        if values is not None:
            self.values = list(values)

    @property
    def acts_until(self) -> float:
        """The time until which it may have taken effect, if its outcome is unknown.

        A server that was stopped performs the requests of clients that have gone when it goes on.
        """
        return self.ended + RECOVERY if "-http-" in self.client else self.ended

    def __str__(self) -> str:
        name = f"{self.kind} {self.queue} {self.values or self.at_most} by {self.client}"
        times = f"{self.began:.3f} to {self.ended:.3f}"
        return f"{name} [{times}]: {self.outcome} {self.why} {self.error}".strip()


_FIRST = ("number", "kind", "queue", "values", "at_most", "claim", "lease", "began")
_LAST = ("number", "values", "outcome", "why", "error", "ended")


class Ledger:
    """The ledger of one process; its threads may write concurrently."""

    def __init__(self, path: Path) -> None:
        self._client = path.stem
        self._numbers = itertools.count(1)
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    @contextmanager
    def operation(
        self,
        kind: str,
        queue: str,
        values: Iterable[str] = (),
        *,
        at_most: int = 0,
        claim: int | None = None,
        lease: float = 0.0,
    ) -> Iterator[Operation]:
        """Record the intent, run the block, which calls `done`, and record the outcome.

        Only a cancellation is raised again; other errors are recorded.
        """
        number = next(self._numbers)
        operation = Operation(
            self._client, number, kind, queue, list(values), at_most, claim, lease, time.monotonic()
        )
        self._write(operation, _FIRST)
        try:
            yield operation
        except LeaseLost:
            operation.outcome, operation.why = "nothing", LEASE_LOST
        except Gone as gone:
            operation.outcome, operation.why = gone.outcome, gone.why
            operation.values = gone.values or operation.values
        except CancelledError:
            operation.outcome = "nothing" if kind in NO_EFFECT_IF_CANCELLED else "unknown"
            operation.why = CANCELLED
            raise
        except Exception as error:
            operation.outcome, operation.why = _told_by(error)
            operation.error = repr(error)
        finally:
            operation.ended = time.monotonic()
            self._write(operation, _LAST)

    def _write(self, operation: Operation, names: tuple[str, ...]) -> None:
        facts = asdict(operation)
        line = json.dumps({name: facts[name] for name in names}) + "\n"
        os.write(self._file, line.encode())
        os.fdatasync(self._file)


def _told_by(error: Exception) -> tuple[str, str]:
    """Return the outcome of an operation that raised an error, and the reason."""
    code = getattr(error, "code", None)
    if code == 1021:
        return "unknown", DISK_UNCERTAIN
    if code == 1031 or type(error) in DISK_ERRORS:
        return "nothing", DISK_FAILED
    return "failed", repr(error)


def read_ledger(path: Path, killed_at: float = math.inf) -> list[Operation]:
    """Return the operations of one process; those without an end were in flight at its kill."""
    lines = path.read_text().split("\n")[:-1]  # the last line is empty or torn
    operations: dict[int, Operation] = {}
    for facts in map(json.loads, lines):
        number = facts["number"]
        if "kind" in facts:
            started = Operation(path.stem, **facts, ended=killed_at)
            operations[number] = replace(started, outcome="unknown", why="killed")
        else:
            operations[number] = replace(operations[number], **facts)
    return list(operations.values())


@dataclass
class Verdict:
    """The result of an accounting."""

    outcomes: Counter[str]
    """The number of operations by outcome and reason."""
    unknown: Counter[str]
    """The number of values explained only by unknown operations, by reason."""
    problems: list[str]

    def __str__(self) -> str:
        return f"{dict(self.outcomes)}; explained by unknown operations: {dict(self.unknown)}"


def account(
    operations: Iterable[Operation],
    left: Mapping[str, Sequence[str]],
    server_kills: Sequence[tuple[float, float]] = (),
    disk_faults: Sequence[tuple[float, float]] = (),
    handled: Collection[str] = (),
) -> Verdict:
    """Account for every value.

    Args:
        operations: The operations of all clients.
        left: The values in each queue at the end, including dead letters.
        server_kills: The times just before and just after each kill of an HTTP server.
        disk_faults: The times when each fault of the disk began and ended.
        handled: The queues of workers, whose values `account_effects` accounts for.
    """
    heeded = [
        _with_disk_faults(_with_server_kills(each, server_kills), disk_faults)
        for each in operations
    ]
    verdict = Verdict(Counter(), Counter(), [])
    for each in heeded:
        verdict.outcomes[f"{each.outcome} ({each.why})" if each.why else each.outcome] += 1
        if each.outcome == "failed":
            verdict.problems.append(f"failed: {each}")
    for queue in sorted({each.queue for each in heeded}.union(left).difference(handled)):
        own = [each for each in heeded if each.queue == queue]
        _Queue(own, left.get(queue, ()), verdict).account()
    return verdict


def _with_server_kills(each: Operation, kills: Sequence[tuple[float, float]]) -> Operation:
    """Set the outcome of an operation to unknown if its server was killed during it."""
    patience = _CLEARING_UP if each.why == HALF_CLOSED else 0.0
    if any(each.began < after and before < each.ended + patience for before, after in kills):
        if each.why == HALF_CLOSED:
            return replace(each, outcome="unknown", why="half-closed, and the server was killed")
    elif each.why == HUNG_UP:
        return replace(each, outcome="failed")
    return each


def _with_disk_faults(each: Operation, faults: Sequence[tuple[float, float]]) -> Operation:
    """Let an operation fail if its error tells of a disk that worked.

    A server may be unable to put back the items of a vanished client while the disk fails.
    """
    if each.why == HALF_CLOSED and any(
        began <= each.ended + RECOVERY and each.began < ended + RECOVERY for began, ended in faults
    ):
        return replace(each, outcome="unknown", why="half-closed, and the disk failed")
    if each.why not in (DISK_FAILED, DISK_UNCERTAIN) or any(
        began <= each.ended and each.began < ended + RECOVERY for began, ended in faults
    ):
        return each
    return replace(each, outcome="failed")


def account_effects(
    operations: Iterable[Operation],
    left: Sequence[str],
    effects: Mapping[str, int],
    exactly_once: bool,
    is_at_end: bool = True,
) -> list[str]:
    """Account for the jobs of a queue whose handlers count each value in the database.

    Args:
        operations: The operations on the queue.
        left: The values in the queue at the end, including dead letters.
        effects: How often each value was counted.
        exactly_once: Whether the handler counts at most once.
        is_at_end: Whether it then does so in the transaction that acknowledges the job.

    Returns:
        The problems.
    """
    problems = []
    values: dict[str, _Value] = defaultdict(_Value)
    for each in operations:
        if each.outcome != "nothing":
            for name in each.values:
                values[name].note(each)
    for name in {*values, *left, *effects}:
        value, times = values[name], effects.get(name, 0)
        about = "".join(f"\n    {each}" for each in [*value.puts, *value.takes])
        if times and not value.puts:
            problems.append(f"appeared: {name}, counted {times} times")
        if exactly_once and times + is_at_end * left.count(name) > 1:
            problems.append(
                f"doubled: {name}, counted {times} times and {left.count(name)} times left{about}"
            )
        if value.is_certain and not times and name not in left:
            problems.append(f"lost: {name}, whose handler had no effect{about}")
    return problems


class _Value:
    """The known operations on one value."""

    def __init__(self) -> None:
        self.puts: list[Operation] = []
        self.takes: list[Operation] = []
        """The operations that took effect or may have."""
        self.claims: list[Operation] = []
        self.seen = -math.inf
        """The beginning of the last operation which shows that the value was in the queue."""
        self.left = 0

    def note(self, each: Operation) -> None:
        if each.kind in PUTS:
            self.puts.append(each)
        elif each.kind in TAKES:
            self.takes.append(each)
        elif each.kind == "claim" and each.outcome == "done":
            self.claims.append(each)
        if each.outcome == "done" and each.kind not in TAKES:
            self.seen = max(self.seen, each.began)

    @property
    def is_certain(self) -> bool:
        """Whether the value was certainly put at some time."""
        return bool(self.puts) and self.seen > -math.inf

    @property
    def surely_left(self) -> int:
        """The number of copies known to be in the queue: 0 or 1, unless it was doubled."""
        puts, takes = (
            sum(each.outcome == "done" for each in some) for some in (self.puts, self.takes)
        )
        return max(puts, self.is_certain) - takes


class _Queue:
    """The accounting of one queue."""

    def __init__(self, operations: list[Operation], left: Sequence[str], verdict: Verdict) -> None:
        self._verdict = verdict
        self._operations = [each for each in operations if each.outcome != "nothing"]
        self._values: dict[str, _Value] = defaultdict(_Value)
        for each in self._operations:
            self._note(each)
        self._ends: dict[tuple[str, int | None, str], list[Operation]] = defaultdict(list)
        for each in operations:
            for name in each.values if each.kind in ENDS_OF_CLAIMS else ():
                self._ends[each.client, each.claim, name].append(each)
        for value in left:
            self._values[value].left += 1

    def _note(self, each: Operation) -> None:
        for name in each.values:
            self._values[name].note(each)

    def account(self) -> None:
        for name, value in self._values.items():
            self._check_doubles(name, value)
            self._check_claims(name, value)
        self._check_losses()

    def _problem(self, what: str, name: str, *operations: Operation) -> None:
        about = "".join(f"\n    {each}" for each in operations)
        self._verdict.problems.append(f"{what}: {name}{about}")

    def _check_doubles(self, name: str, value: _Value) -> None:
        puts = sorted(each.began for each in value.puts)
        takes = sorted(each.ended for each in value.takes if each.outcome == "done")
        takes += [math.inf] * value.left
        for number, ended in enumerate(takes):
            if number >= len(puts) or puts[number] >= ended:
                what = "doubled" if puts else "appeared"
                self._problem(what, name, *value.puts, *value.takes)
                return

    # Claims

    def _check_claims(self, name: str, value: _Value) -> None:
        for claim in value.claims:
            ends = self._ends[claim.client, claim.number, name]
            self._check_early_end(name, claim, ends)
            for other in value.claims:
                if other.began <= claim.ended:
                    continue
                for end in ends:
                    if end.outcome == "done" and end.began > other.ended:
                        self._problem("not fenced", name, claim, other, end)
                self._check_two_holders(name, claim, other, ends)
            for take in value.takes:
                is_pop = take.kind == "pop" and take.outcome == "done"
                if is_pop and take.began > claim.ended:
                    self._check_two_holders(name, claim, take, ends)

    def _check_early_end(self, name: str, claim: Operation, ends: list[Operation]) -> None:
        """Check that the first end or extension of a claim succeeds while its lease lasts."""
        first = min(ends, key=lambda end: end.began, default=claim)
        in_time = first.ended < claim.began + _SURELY * claim.lease
        if first.why == LEASE_LOST and in_time:
            self._problem("lost its lease too early", name, claim, first)

    def _check_two_holders(
        self, name: str, claim: Operation, other: Operation, ends: list[Operation]
    ) -> None:
        if other.ended < claim.began + _SURELY * claim.lease and not any(
            end.began < other.ended for end in ends
        ):
            self._problem("handed out twice", name, claim, other)

    # Losses

    def _check_losses(self) -> None:
        pops = [
            pop
            for pop in self._operations
            if pop.kind == "pop" and pop.outcome == "unknown" and not pop.values
        ]
        slots = sorted(
            (pop for pop in pops for _ in range(pop.at_most)), key=lambda pop: pop.acts_until
        )
        missing = [
            (value.seen, name)
            for name, value in self._values.items()
            if value.surely_left > value.left and not self._is_explained(value)
        ]
        # The latest first, as an operation that explains it also explains the earlier ones.
        for seen, name in sorted(missing, reverse=True):
            if slots and slots[-1].acts_until > seen:
                self._verdict.unknown[slots.pop().why] += 1
            else:
                value = self._values[name]
                self._problem("lost", name, *value.puts, *value.takes, *value.claims)

    def _is_explained(self, value: _Value) -> bool:
        """Return whether an operation that named the value explains its absence."""
        named = [take for take in value.takes if take.outcome == "unknown"]
        if named:
            self._verdict.unknown[named[0].why] += 1
        return bool(named)
