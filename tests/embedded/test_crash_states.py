"""Power cuts lose nothing that was told; `FDBQ_CRASH_STATES=10000` opens more states."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.long.hostile.disk.crash_model import WORST
from tests.long.hostile.disk.crash_states import (
    Pick,
    Process,
    choose,
    examine_all,
    in_memory,
    record_run,
)
from tests.long.hostile.disk.shim import Disk, need_shim, read_record

LOG = "fdbqueue.sqlite-wal"
SYNC = "import os, sys; os.fsync(os.open(sys.argv[1], os.O_RDONLY))"
STATES = int(os.environ.get("FDBQ_CRASH_STATES", "100"))


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    need_shim()
    (tmp_path / "db").mkdir()
    return Disk(tmp_path / "db", tmp_path)


def killed(disk: Disk) -> None:
    """Kill a process after some commits."""
    process = Process(disk, 0)
    try:
        process.do("open 1000", "push 3")
    finally:
        process.kill()


def test_commits_that_were_acknowledged_without_a_sync_are_found(
    disk: Disk, rng: random.Random
) -> None:
    disk.false_syncs("-wal")
    killed(disk)
    problems = examine_all(disk.record, choose(disk.record, 30, rng))
    assert any(problem.startswith("lost") for problem in problems.values())


def test_a_failed_sync_that_nobody_has_noted_takes_nothing_back(
    disk: Disk, rng: random.Random
) -> None:
    """A process dies when a sync has failed; the others learn of that from the system."""
    dying, witness, other = (Process(disk, number) for number in range(3))
    try:
        for process in (witness, other, dying):
            process.do("open 1000", "push 1")
        with disk.hanging_syncs("-wal", times=1) as fault:
            dying.begin("push 1")
            fault.wait_until_met()
            dying.kill()
        disk.fail_syncs("-wal", times=1)
        command = [sys.executable, "-c", SYNC, str(disk.root / LOG)]
        failed = subprocess.run(command, env=disk.environment, capture_output=True)
        assert b"Errno 5" in failed.stderr
        other.do("push 1", "read")
    finally:
        for process in (dying, witness, other):
            process.kill()
    errors = [each.kind == "E" and each.at != 0 for each in read_record(disk.record)]
    picks = []
    for cut in range(errors.index(True), len(errors) + 1):
        others = [f"posix/random:{number}" for number in rng.sample(range(100), 3)]
        picks += [Pick(cut, name) for name in sorted([WORST, *others])]
    assert not examine_all(disk.record, picks)


def test_after_a_power_cut_a_database_opens_with_everything_that_was_told(
    tmp_path: Path, rng: random.Random
) -> None:
    need_shim()
    with in_memory() as directory:
        disk = Disk(directory, tmp_path)
        record_run(disk, rng)
    assert not examine_all(disk.record, choose(disk.record, STATES, rng))
