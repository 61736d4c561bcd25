"""Run a long storm by hand.

python -m tests.long.hostile [--engine embedded|cluster] [--kills 1000] [--stops 1000]
    [--cancelled 10000] [--vanished 10000] [--faults 300] [--cuts 30] [--minutes N]
        [--seed N] [--directory PATH]
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path

from tests.long.hostile.disk.shim import Disk
from tests.long.hostile.storm import Amount, Storm
from tests.support.cluster import start_or_find_cluster

LONG = Amount(
    operations=100_000,
    kills=1_000,
    stops=1_000,
    cancelled=10_000,
    vanished=10_000,
    faults=300,
    cuts=30,
)


def main() -> int:
    parser = argparse.ArgumentParser(description="A long storm over all operations.")
    parser.add_argument("--engine", choices=["embedded", "cluster"], default="embedded")
    for each in fields(Amount):
        parser.add_argument(f"--{each.name}", type=int, default=getattr(LONG, each.name))
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after this time")
    parser.add_argument("--directory", type=Path, help="where the ledgers stay")
    given = parser.parse_args()
    amount = Amount(*(getattr(given, each.name) for each in fields(Amount)))
    print(f"--seed={given.seed}", flush=True)
    with ExitStack() as stack:
        directory = given.directory
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hostile-")))
        directory.mkdir(parents=True, exist_ok=True)
        directory = directory.resolve()  # the clients have another working directory
        url = f"embedded:{directory / 'db'}"
        disk = None
        if given.engine == "cluster":
            url = str(stack.enter_context(start_or_find_cluster(directory)).file)
            amount = replace(amount, faults=0, cuts=0)
        elif amount.faults or amount.cuts:
            (directory / "db").mkdir()
            disk = Disk(directory / "db", directory)
        prefix, longest = f"storm-{given.seed}-", 60 * given.minutes
        storm = Storm(url, prefix, given.seed, directory, disk, longest)
        verdict = storm.run(amount)
    print(verdict)
    print(*verdict.problems[:20], sep="\n")
    kinds = Counter(problem.partition(":")[0].partition(" at ")[0] for problem in verdict.problems)
    print(dict(storm.counts), dict(kinds), sep="\n")
    return 1 if verdict.problems else 0


if __name__ == "__main__":
    sys.exit(main())
