"""Compare durable steps with those of DBOS and of Absurd.

    python -m tests.benchmarks.steps                   the embedded engine
    python -m tests.benchmarks.steps fdb.cluster       a cluster as well; use a fresh one
    python -m tests.benchmarks.steps --quick           small numbers, to see that it runs

Jobs have ten steps with empty functions, and the result of each is on disk before the next one
begins. In each round every contender, in random order, does steps for about two seconds. Figures
are medians of the rounds, and ratios are computed within a round. Each contender runs one or
several jobs at a time in a process; its better setting counts. Peers are measured if they are
installed: `pip install dbos absurd-sdk absurdctl 'psycopg[binary]'`, `apt-get install postgresql`.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from itertools import product
from pathlib import Path

from rich.table import Table

from tests.benchmarks.report import console, new_table, print_machine
from tests.benchmarks.step_contenders import Steps, peers
from tests.benchmarks.tasks import PROCESSES, Rates


def goals(rates: Rates) -> Table:
    """Compare what was measured with the goals."""
    table = new_table("goals", "goal", *(f"{n} processes" for n in PROCESSES))
    ours = [each.name for each in rates.contenders if isinstance(each, Steps)]
    theirs = [each.name for each in rates.contenders if each.name not in ours]
    for our, their in product(ours, theirs):
        ratios = [f"{rates.ratio(our, their, processes):.2f}" for processes in PROCESSES]
        table.add_row(f"steps a second: {our} / {their}", "> 1", *ratios)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.steps", description=__doc__.split("\n")[0]
    )
    parser.add_argument("cluster", nargs="?", help="cluster file, to measure a cluster as well")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10_000, help="the most steps in a round")
    parser.add_argument("--quick", action="store_true", help="small numbers")
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.steps = 2, 300
    with ExitStack() as stack:
        root = stack.enter_context(tempfile.TemporaryDirectory(prefix="fdbqueue-benchmark-"))
        print_machine(Path(root))
        urls = {"embedded": f"{root}/jobs"}
        if given.cluster:
            urls["cluster"] = given.cluster
        ours = [Steps(name, url, kind) for name, url in urls.items() for kind in (False, True)]
        rates = Rates([*ours, *peers(stack, Path(root), console.print)])
        rates.measure(given.rounds, given.steps)
        console.print(rates.table("steps a second"))
        console.print(goals(rates))


if __name__ == "__main__":
    main()
