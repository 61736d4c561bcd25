"""A long storm, by hand.

python -m tests.hostile [--engine embedded|cluster] [--kills 1000] [--stops 1000]
    [--cancelled 10000] [--vanished 10000] [--seed N] [--directory PATH]
        [--kinds threads aio http]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from ..cluster import a_cluster
from .clients import KINDS
from .storm import Amount, Storm


def main() -> int:
    parser = argparse.ArgumentParser(description="A long storm over all operations.")
    parser.add_argument("--engine", choices=["embedded", "cluster"], default="embedded")
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--stops", type=int, default=1_000)
    parser.add_argument("--cancelled", type=int, default=10_000)
    parser.add_argument("--vanished", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--directory", type=Path, help="where the ledgers stay")
    given = parser.parse_args()
    amount = Amount(given.kills, given.stops, given.cancelled, given.vanished)
    print(f"--seed={given.seed}", flush=True)
    with ExitStack() as stack:
        directory = given.directory
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hostile-")))
        directory.mkdir(parents=True, exist_ok=True)
        url = f"embedded:{directory / 'db'}"
        if given.engine == "cluster":
            url = str(stack.enter_context(a_cluster(directory)).file)
        storm = Storm(url, f"storm-{given.seed}-", given.seed, directory, given.kinds)
        began = time.monotonic()
        verdict = storm.run(amount)
    print(
        f"{storm.so_far}, {storm.counts['operations']:,} operations, "
        f"{time.monotonic() - began:.0f} s"
    )
    print(verdict)
    print(*verdict.problems[:20], sep="\n")
    kinds = Counter(problem.partition(":")[0] for problem in verdict.problems)
    print(f"{len(verdict.problems)} problems: {dict(kinds)}")
    return 1 if verdict.problems else 0


if __name__ == "__main__":
    sys.exit(main())
