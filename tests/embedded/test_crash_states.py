"""Power cuts lose nothing that was told; `python -m tests.long.hostile.disk` opens more states."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fdbqueue.embedded import Database
from tests.long.hostile.disk.crash_model import WORST, Directory
from tests.long.hostile.disk.crash_states import (
    Known,
    Pick,
    Process,
    choose,
    examine_all,
    examine_some,
    in_memory,
    record_run,
)
from tests.long.hostile.disk.power_cut import PowerCut, states_after
from tests.long.hostile.disk.shim import Disk, need_shim, read_record
from tests.long.hostile.ledger import DISK_FAILED, HALF_CLOSED, Operation, account

LOG = "fdbqueue.sqlite-wal"
SYNC = "import os, sys; os.fsync(os.open(sys.argv[1], os.O_RDONLY))"
STATES = int(os.environ.get("FDBQ_CRASH_STATES", "300"))


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


def replayed(disk: Disk) -> tuple[Directory, Known]:
    """Return what may be on disk at the end of a run, and what was told."""
    directory, known = Directory(), Known()
    for entry in read_record(disk.record):
        directory.apply(entry)
        known.apply(entry)
    return directory, known


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Directory, Known]:
    """Return the same after a process was killed."""
    need_shim()
    path = tmp_path_factory.mktemp("killed")
    (path / "db").mkdir()
    disk = Disk(path / "db", path)
    killed(disk)
    return replayed(disk)


def test_commits_that_were_acknowledged_without_a_sync_are_found(
    disk: Disk, rng: random.Random
) -> None:
    disk.false_syncs("-wal")
    killed(disk)
    report = examine_some(disk.record, choose(disk.record, 30, rng))
    assert report.count("lost") > 0, report


def fail_a_sync(disk: Disk, *commands: str) -> None:
    """Let a process commit, and die when a sync of the log has failed, before it notes that."""
    process = Process(disk, 0)
    try:
        process.do(*commands)
        with disk.hanging_syncs("-wal", times=1) as fault:
            process.begin("push 1")
            fault.wait_until_met()
            process.kill()
    finally:
        process.kill()
    disk.fail_syncs("-wal", times=1)
    command = [sys.executable, "-c", SYNC, str(disk.root / LOG)]
    failed = subprocess.run(command, env=disk.environment, capture_output=True)
    assert b"Errno 5" in failed.stderr


def check_since_the_failure(disk: Disk, rng: random.Random) -> None:
    """Examine the worst state after each call since a sync has failed, and some others."""
    errors = [each.kind == "E" and each.at != 0 for each in read_record(disk.record)]
    picks = []
    for cut in range(errors.index(True), len(errors) + 1):
        others = [f"posix/random:{number}" for number in rng.sample(range(100), 6)]
        picks += [Pick(cut, name, "push") for name in sorted([WORST, *others])]
    report = examine_all(disk.record, picks)
    assert not report.problems, report.problems


def test_a_failed_sync_that_nobody_has_noted_takes_nothing_back(
    disk: Disk, rng: random.Random
) -> None:
    """Those that had opened the log learn of the failure from the system."""
    witness, other = Process(disk, 1), Process(disk, 2)
    try:
        witness.do("open 1000", "push 1")
        other.do("open 1000", "push 1")
        fail_a_sync(disk, "open 1000", "push 2")
        other.do("push 1", "read")
    finally:
        other.kill()
        witness.kill()
    check_since_the_failure(disk, rng)


def test_the_worst_state_after_a_power_cut_has_what_was_told(disk: Disk, tmp_path: Path) -> None:
    process = Process(disk, 0)
    cuts: list[PowerCut] = []
    try:
        process.do("open 1000")
        for _ in range(3):
            process.do("push 1")
            cuts.append(PowerCut.now(disk))
    finally:
        process.kill()
    found = []
    for number, (_, state) in enumerate(states_after(disk.record, reversed(cuts))):
        state.write(tmp_path / f"{number}")
        with Database(tmp_path / f"{number}") as db:
            found.append(int.from_bytes(db[b"sum"], "little"))
    assert found == [2, 4, 6]


def test_the_worst_states_of_a_run_do_not_depend_on_what_else_is_kept(disk: Disk) -> None:
    record_run(disk, random.Random(1))
    whole, small = Directory(), Directory(is_for_worst=True)
    for number, entry in enumerate(read_record(disk.record)):
        whole.apply(entry)
        small.apply(entry)
        if number % 50 == 0:
            assert whole.state(WORST) == small.state(WORST)


def test_an_answer_that_a_power_cut_takes_back_is_a_loss() -> None:
    push = Operation("client", 1, "push", "jobs", ["a"], began=1.0, ended=2.0, outcome="done")
    pop = Operation("client", 2, "pop", "jobs", ["a"], began=4.0, ended=6.0, outcome="done")
    before, between, within = (PowerCut(at, 0, at) for at in (0.5, 3.0, 5.0))
    assert before.known([push, pop]) == []
    assert between.known([push, pop]) == [push]
    assert [each.ended for each in within.known([push, pop])] == [2.0, math.inf]
    assert account(between.known([push, pop]), {}).problems
    assert not account(between.known([push, pop]), {"jobs": ["a"]}).problems
    undone = replace(pop, outcome="nothing", why="cancelled")  # it may have had an effect before
    assert [each.outcome for each in within.known([push, undone])] == ["done", "unknown"]
    gone = replace(pop, ended=4.5, outcome="nothing", why=HALF_CLOSED)  # it may be undone later
    assert [each.outcome for each in within.known([push, gone])] == ["done", "unknown"]
    refused = replace(pop, outcome="nothing", why=DISK_FAILED)
    assert within.known([push, refused]) == [push, refused]
    for left in ([], ["a"]):
        assert not account(within.known([push, pop]), {"jobs": left}).problems


def test_a_state_is_selected_again_by_its_name(ended: tuple[Directory, Known]) -> None:
    directory, _ = ended
    names = [*directory.names()]
    assert WORST in names
    assert len({repr(directory.state(name).identity) for name in names}) > 5
    for name in names:
        assert directory.state(name) == directory.state(name)


def test_after_a_power_cut_a_database_opens_with_everything_that_was_told(
    tmp_path: Path, rng: random.Random
) -> None:
    need_shim()
    with in_memory() as directory:
        disk = Disk(directory, tmp_path)
        record_run(disk, rng)
    report = examine_all(disk.record, choose(disk.record, STATES, rng))
    print(report)
    assert not report.problems, "\n".join(
        f"{problem}\n    {report.command(pick)}" for pick, problem in report.problems.items()
    )
