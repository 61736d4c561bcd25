"""Runs of contenders with several numbers of processes, and their tables."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from rich.progress import track
from rich.table import Table

from tests.benchmarks.report import console, new_table

PERCENTILES = (50, 99, 99.9)
MAX_LENGTH = 1024  # times the usual length of a queue


@dataclass(frozen=True)
class Run:
    """The measurements of one run.

    Attributes:
        rate: Operations a second of all processes.
        fairness: Operations of the slowest process divided by those of the fastest.
        worst_fairness: The same within the worst second.
        latencies: The `PERCENTILES` and the maximum, in seconds; empty if not measured.
    """

    rate: float
    fairness: float
    worst_fairness: float
    latencies: Sequence[float]


def evaluate(
    ends: Sequence[Iterable[float]], seconds: float, latencies: Iterable[float] = ()
) -> Run:
    """Evaluate a run.

    Args:
        ends: For each process, when its operations ended, in seconds from the start of the run.
            Those outside of the run do not count.
        seconds: The length of the run.
        latencies: Seconds of all operations.
    """
    windows = max(1, int(seconds))
    tallies = [Counter(int(end * windows // seconds) for end in each) for each in ends]
    counts = [[tally[window] for window in range(windows)] for tally in tallies]
    ascending = sorted(latencies)
    return Run(
        sum(map(sum, counts)) / seconds,
        _fairness([sum(each) for each in counts]),
        min(map(_fairness, zip(*counts))),
        [*(percentile(ascending, each) for each in PERCENTILES), ascending[-1]]
        if ascending
        else [],
    )


def _fairness(counts: Sequence[int]) -> float:
    return min(counts) / max(counts) if any(counts) else 0


def percentile(ascending: Sequence[float], percent: float) -> float:
    return ascending[min(len(ascending) - 1, int(len(ascending) * percent / 100))]


def account(pushed: Iterable[Iterable[Any]], found: Iterable[Iterable[Any]]) -> None:
    """Compare the items that were pushed with those that were popped or left.

    Raises:
        RuntimeError: Items were lost or popped twice.
    """
    expected, actual = (Counter(chain.from_iterable(parts)) for parts in (pushed, found))
    if expected != actual:
        lost, doubled = (sorted(each.elements()) for each in (expected - actual, actual - expected))
        raise RuntimeError(
            f"{len(lost)} items were lost, such as {lost[:5]}; "
            f"{len(doubled)} were popped twice, such as {doubled[:5]}"
        )


Runner = Callable[[int, int], Run | None]
"""Do one run with a number of processes on a queue of this many times the usual length.

Return `None` if the queue ran empty.
"""


class Comparison:
    """Several kinds of runs, each with several numbers of processes."""

    def __init__(self, title: str, runners: Mapping[str, Runner], counts: Sequence[int]) -> None:
        """Begin a comparison.

        Args:
            title: The title of its tables.
            runners: A function for each row.
            counts: Numbers of processes, in ascending order. Ratios are those to the first.
        """
        self._title = title
        self._runners = runners
        self._counts = counts
        self._runs: dict[tuple[str, int], list[Run]] = {
            (name, count): [] for name in runners for count in counts
        }

    def measure(self, rounds: int) -> None:
        """Do all runs of each round in random order."""
        cases = list(self._runs)
        order = [case for _ in range(rounds) for case in random.sample(cases, len(cases))]
        lengths = dict.fromkeys(cases, 1)
        for case in track(order, self._title, console=console, transient=True):
            name, count = case
            while (run := self._runners[name](count, lengths[case])) is None:
                lengths[case] *= 4
                if lengths[case] > MAX_LENGTH:
                    raise RuntimeError(f"{name} found no item in a very long queue")
            self._runs[case].append(run)

    def _rate(self, name: str, count: int) -> str:
        return f"{statistics.median(run.rate for run in self._runs[name, count]):,.0f}"

    def _ratio(self, name: str, count: int) -> str:
        """Return the median of the ratios within each round."""
        pairs = zip(self._runs[name, count], self._runs[name, self._counts[0]])
        return f"{statistics.median(run.rate / base.rate for run, base in pairs):.2f}"

    def details(self) -> Table:
        """Return a table of all that was measured."""
        columns = ["processes", "ops/s", f"/ {self._counts[0]}", "slowest/fastest", "worst second"]
        if any(run.latencies for runs in self._runs.values() for run in runs):
            columns += [*(f"{each} % ms" for each in PERCENTILES), "max ms"]
        table = new_table(self._title, *columns)
        for (name, count), runs in self._runs.items():
            cells = [str(count), self._rate(name, count), self._ratio(name, count)]
            if count > 1:
                cells.append(f"{statistics.median(run.fairness for run in runs):.2f}")
                cells.append(f"{min(run.worst_fairness for run in runs):.2f}")
            else:
                cells += ["", ""]
            if columns[-1] == "max ms":
                *percentiles, maxima = zip(*(run.latencies for run in runs))
                cells += [f"{statistics.median(each) * 1e3:.3f}" for each in percentiles]
                cells.append(f"{max(maxima) * 1e3:.1f}")
            table.add_row(name, *cells)
        return table

    def add_to(self, summary: Table, suffix: str = "") -> None:
        """Add the rates of each row to the table of `new_summary`, with their ratios."""
        first, *others = self._counts
        for name in self._runners:
            ratios = [f"{self._rate(name, n)} ({self._ratio(name, n)})" for n in others]
            summary.add_row(name + suffix, self._rate(name, first), *ratios)


def new_summary(title: str, counts: Sequence[int]) -> Table:
    """Return an empty table for the rates of several comparisons."""
    headings = [f"{count} process{'es' if count > 1 else ''}" for count in counts]
    return new_table(f"{title} (ratio to {headings[0]})", *headings)
