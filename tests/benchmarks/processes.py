"""Many processes on one queue: rates, fairness and latencies.

Each process has one thread. The processes are started and warmed, begin at the same moment and work
for the same time. After every run all items are accounted for.
"""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, cycle
from pathlib import Path
from typing import Any

from tests.benchmarks.comparison import Comparison, Run, Runner, account, evaluate, new_summary
from tests.benchmarks.contenders import (
    Library,
    LibraryInTransactions,
    SharedContender,
    shared_contenders,
)
from tests.benchmarks.report import console

WARM_UPS = 30  # times that a process does its operations before it is ready
START_DELAY = 0.05  # seconds from the last process being ready until all start
MAX_WAIT = 300  # seconds for a process to become ready or to end
IDS = 10_000_000  # numbers reserved for the items of a process
MODES = {"push": ("push",), "pop": ("pop",), "push and pop in turns": ("push", "pop")}
TRANSACTIONS: dict[str, tuple[type[SharedContender], str]] = {
    "blind write of its own key": (LibraryInTransactions, "write"),
    "read and write of its own key": (LibraryInTransactions, "read_and_write"),
    "push(tr)": (LibraryInTransactions, "push"),
    "pop(tr)": (LibraryInTransactions, "pop"),
    "pop(db)": (Library, "pop"),
}


@dataclass(frozen=True)
class Work:
    """What each process does: these operations of a contender, in turns."""

    contender: type[SharedContender]
    operations: tuple[str, ...]
    durable: bool


class QueueEmpty(Exception):
    """A process found no item to pop."""


class Client:
    """A process's operations, with a record of the items that it pushed and popped."""

    def __init__(self, contender: SharedContender, process: int) -> None:
        self._contender = contender
        self._first = self._next = process * IDS
        self.popped = array("q")

    @property
    def pushed(self) -> range:
        return range(self._first, self._next)

    def operation(self, name: str) -> Callable[[], object]:
        own: dict[str, Callable[[], object]] = {"push": self._push, "pop": self._pop}
        return own.get(name) or getattr(self._contender, name)

    def _push(self) -> None:
        self._contender.push(self._next)
        self._next += 1

    def _pop(self) -> None:
        number = self._contender.pop()
        if number is None:
            raise QueueEmpty
        self.popped.append(number)


def run_client(work: Work, path: Path, process: int, seconds: float, pipe: Any) -> None:
    """Run one process; send its items and latencies, or `None` if the queue ran empty."""
    contender = work.contender(path, work.durable)
    client = Client(contender, process)
    operations = [client.operation(name) for name in work.operations]
    latencies = array("d")
    try:
        for operation in operations * WARM_UPS:
            operation()
        pipe.send("ready")
        start = pipe.recv()
        time.sleep(max(0, start - time.monotonic()))
        first = began = time.monotonic()
        for operation in cycle(operations):
            operation()
            ended = time.monotonic()
            latencies.append(ended - began)
            if ended >= start + seconds:
                break
            began = ended
    except QueueEmpty:
        pipe.send(None)
    else:
        pipe.send((client.pushed, client.popped, first - start, latencies))
    contender.close()


def received(pipe: Any) -> Any:
    if not pipe.poll(MAX_WAIT):
        raise RuntimeError(f"a process did not answer for {MAX_WAIT} seconds")
    return pipe.recv()


def run_once(work: Work, processes: int, seconds: float, root: Path, items: int) -> Run | None:
    """Run processes on a new queue of `items` items; return `None` if it ran empty.

    Raises:
        RuntimeError: Items were lost or popped twice.
    """
    path = Path(tempfile.mkdtemp(dir=root))
    filled = range(items)
    contender = work.contender(path, work.durable)
    contender.fill(filled)
    contender.close()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "huey.storage", "diskcache"])
    started, pipes = [], []
    try:
        for number in range(processes):
            pipe, theirs = context.Pipe()
            arguments = (work, path, number + 1, seconds, theirs)
            process = context.Process(target=run_client, args=arguments, daemon=True)
            process.start()
            theirs.close()  # the end of the process closes its pipe
            started.append(process)
            pipes.append(pipe)
        if None in [received(pipe) for pipe in pipes]:
            return None
        start = time.monotonic() + START_DELAY
        for pipe in pipes:
            pipe.send(start)
        results = [received(pipe) for pipe in pipes]
        for process in started:
            process.join(MAX_WAIT)
        if None in results:
            return None
        contender = work.contender(path, work.durable)
        left = contender.drain()
        contender.close()
    finally:
        for process in started:
            process.kill()
            process.join()
        shutil.rmtree(path)
    account([filled, *(pushed for pushed, *_ in results)], [left, *(each[1] for each in results)])
    ends = [list(accumulate(latencies, initial=delay))[1:] for *_, delay, latencies in results]
    return evaluate(ends, seconds, chain.from_iterable(latencies for *_, latencies in results))


def compare_works(
    title: str,
    works: dict[str, Work],
    counts: Sequence[int],
    rounds: int,
    seconds: float,
    root: Path,
) -> Comparison:
    """Measure several kinds of work, and print all that was measured."""

    def runner(work: Work) -> Runner:
        return lambda count, length: run_once(work, count, seconds, root, 1000 * length)

    comparison = Comparison(title, {name: runner(work) for name, work in works.items()}, counts)
    comparison.measure(rounds)
    console.print(comparison.details())
    return comparison


def compare_queues(
    root: Path,
    counts: Sequence[int],
    rounds: int,
    seconds: float,
    durable: bool,
    with_peers: bool,
) -> None:
    """Compare this library with its peers: pushes, pops, and both in turns."""
    kind = "durable" if durable else "no fsync"
    summary = new_summary(f"operations a second, {kind}", counts)
    for mode, operations in MODES.items():
        works = {
            contender.name: Work(contender, operations, durable)
            for contender in shared_contenders(with_peers)
        }
        comparison = compare_works(f"{mode}, {kind}", works, counts, rounds, seconds, root)
        comparison.add_to(summary, f", {mode}")
    console.print(summary)


def compare_transactions(
    root: Path, counts: Sequence[int], rounds: int, seconds: float, durable: bool
) -> None:
    """Compare transactions that the program runs itself with `pop(db)`."""
    kind = "durable" if durable else "no fsync"
    summary = new_summary(f"transactions a second, {kind}", counts)
    works = {
        name: Work(contender, (operation,), durable)
        for name, (contender, operation) in TRANSACTIONS.items()
    }
    title = f"transactions of the program, {kind}"
    compare_works(title, works, counts, rounds, seconds, root).add_to(summary)
    console.print(summary)
