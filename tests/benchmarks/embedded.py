"""Measure the embedded engine beside bare SQLite and other queues on one machine.

    python -m tests.benchmarks.embedded                everything, more than an hour
    python -m tests.benchmarks.embedded --quick        everything but long queues, under two minutes
    python -m tests.benchmarks.embedded --processes    one part; name several for several parts
    python -m tests.benchmarks.embedded --calls        counts of calls, which are free of noise

Each round does every run once. A figure is the median of the rounds, except for `worst second` and
`max`, which are the worst of all rounds. Percentiles of latencies count operations, so a process
that gets few of them hardly shows there: look at `slowest/fastest` and `max` as well. Compare only
figures of one call of this program. Peers are measured if they are installed:
`pip install huey persist-queue diskcache`.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from tests.benchmarks.one_process import (
    compare_lengths,
    compare_operations,
    compare_threads,
    count_calls,
)
from tests.benchmarks.processes import compare_queues, compare_transactions
from tests.benchmarks.report import print_machine
from tests.benchmarks.workers import compare_workers

PARTS = {
    "calls": "count the Python functions that an operation calls",
    "one-thread": "the time of an operation",
    "threads": "1 and 16 threads of one process",
    "lengths": "pops from short and long queues; not part of --quick",
    "processes": "pushes, pops and both by many processes",
    "transactions": "transactions that the program runs itself, by many processes",
    "workers": "`fdbq work` and huey's consumer with many processes",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.embedded", description=__doc__.split("\n")[0]
    )
    for part, text in PARTS.items():
        parser.add_argument(f"--{part}", help=text, action="append_const", const=part, dest="parts")
    parser.add_argument("--quick", action="store_true", help="short runs, to see that all works")
    parser.add_argument("--rounds", type=int, help="default: 5; 1 with --quick")
    parser.add_argument("--seconds", type=float, help="of a run; default: 3; 0.3 with --quick")
    parser.add_argument(
        "--counts", type=int, nargs="+", help="of processes; default: 1 2 4 8; 1 4 with --quick"
    )
    parser.add_argument(
        "--durability", choices=["os", "full"], help="without (os) or with fsync; default: both"
    )
    parser.add_argument("--no-peers", action="store_true", help="measure fdbqueue only")
    parser.add_argument("--directory", help="where databases are made; a real disk, not tmpfs")
    given = parser.parse_args()
    quick = given.quick
    parts = given.parts or [part for part in PARTS if not (quick and part == "lengths")]
    rounds = given.rounds or (1 if quick else 5)
    seconds = given.seconds or (0.3 if quick else 3)
    counts = sorted(given.counts or ((1, 4) if quick else (1, 2, 4, 8)))
    durabilities = {"os": [False], "full": [True], None: [False, True]}[given.durability]
    with_peers = not given.no_peers
    root = Path(tempfile.mkdtemp(prefix="fdbqueue-benchmark-", dir=given.directory))
    try:
        if "calls" in parts:
            count_calls(root)
        if parts == ["calls"]:
            return
        print_machine(root)
        for durable in durabilities:
            if "one-thread" in parts:
                count = 100 if durable or quick else 1000
                compare_operations(root, rounds, count, durable, with_peers)
            if "processes" in parts:
                compare_queues(root, counts, rounds, seconds, durable, with_peers)
            if "transactions" in parts:
                compare_transactions(root, counts, rounds, seconds, durable)
        if "threads" in parts:
            compare_threads(root, rounds)
        if "lengths" in parts:
            compare_lengths(root, rounds)
        if "workers" in parts:
            compare_workers(root, counts, rounds, seconds, with_peers)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
