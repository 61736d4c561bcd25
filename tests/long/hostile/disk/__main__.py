"""Open the states that power cuts may leave of a database, and compare them with what was told.

python -m tests.long.hostile.disk [--states 10000] [--rounds 4] [--seed N] [--directory PATH]
python -m tests.long.hostile.disk --record PATH --state STATE [--directory PATH]

The first form records a run and prints a table. A seed determines what the processes of the run do
and which states are picked, but not the interleaving of the processes: a failure names the record
and the state, which the second form opens again.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.long.hostile.disk.crash_model import Directory
from tests.long.hostile.disk.crash_states import (
    Known,
    choose,
    examine,
    examine_all,
    in_memory,
    record_run,
)
from tests.long.hostile.disk.shim import Disk, read_record


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--states", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=4, help="the length of the run")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--directory", type=Path, help="where the record or the state stays")
    parser.add_argument("--record", type=Path, help="the record of an earlier run")
    parser.add_argument("--state", help="a state to open, as a failure names it")
    given = parser.parse_args()
    if given.state is not None:
        return repeat(given.record, given.state, given.directory)
    print(f"--seed={given.seed}", flush=True)
    began = time.monotonic()
    rng = random.Random(given.seed)
    record = given.record
    if record is None:
        kept = given.directory or Path(tempfile.mkdtemp(prefix="crash-states-"))
        kept.mkdir(parents=True, exist_ok=True)
        with in_memory() as directory:
            (directory / "db").mkdir()
            disk = Disk(directory / "db", directory)
            record_run(disk, rng, given.rounds)
            record = Path(shutil.copy(disk.record, kept / f"{given.seed}.record"))
    report = examine_all(record, choose(record, given.states, rng))
    print(report)
    print(f"{time.monotonic() - began:.0f} s")
    problems = Counter(re.sub(r"\d+", "N", problem) for problem in report.problems.values())
    examples = {re.sub(r"\d+", "N", problem): pick for pick, problem in report.problems.items()}
    for problem, count in problems.most_common():
        print(f"{count:,} times {problem}\n    {report.command(examples[problem])}")
    return 1 if problems else 0


def repeat(record: Path, state: str, directory: Path | None) -> int:
    """Open a single state."""
    cut, _, name = state.partition("/")
    replayed, known = Directory(), Known()
    for _, entry in zip(range(int(cut)), read_record(record)):
        replayed.apply(entry)
        known.apply(entry)
    if directory is not None:
        replayed.state(name).write(directory)
    with in_memory() as scratch:
        replayed.state(name).write(scratch / "db")
        problem = examine(scratch / "db", known)
    print(known, problem, sep="\n")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
