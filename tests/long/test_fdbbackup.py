"""A backup that FoundationDB's tools make while jobs run, restored into another cluster."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue.admin import check
from fdbqueue.types import State
from tests.long.clients import CHECK, PUSHER, WORKER, started
from tests.support.cluster import Server, find_programs
from tests.support.waiting import wait_until

HELD = 20
LEASE = 30.0  # seconds
LOAD = 60.0  # seconds, longer than a backup takes
STATES: list[State] = ["ready", "delayed", "claimed", "dead"]


@pytest.fixture
def programs() -> tuple[str, str]:
    programs = find_programs()
    tools = map(shutil.which, ("fdbbackup", "backup_agent", "fdbrestore"))
    if programs is None or not all(tools):
        pytest.skip("no fdbserver and fdbcli, or no fdbbackup, backup_agent and fdbrestore on PATH")
    return programs


def run(*command: object) -> None:
    subprocess.run([*map(str, command)], check=True, capture_output=True)


def test_each_job_of_a_backup_is_restored_once_and_runs_once(
    programs: tuple[str, str], tmp_path: Path
) -> None:
    clusters = []
    for name in ("source", "target"):
        (tmp_path / name).mkdir()
        clusters.append(Server(tmp_path / name, *programs, "ssd"))
    with clusters[0] as source, clusters[1] as target:
        files = [source.cluster_file, target.cluster_file]
        agents = [
            subprocess.Popen(["backup_agent", "-C", str(file), "--logdir", str(tmp_path)])
            for file in files
        ]
        clients = [started(PUSHER, files[0], LOAD), *(started(WORKER, files[0]) for _ in range(2))]
        db: Any = fdbqueue.open(files[0])
        queue = fdbqueue.PriorityQueue[int].named(db, "jobs", max_size=2_000)
        wait_until(lambda: queue.size(db) > HELD)
        held = queue.claim(db, n=HELD, lease=LEASE)
        assert held is not None
        url = f"file://{tmp_path}/backup"
        run("fdbbackup", "start", "-C", files[0], "-d", url, "-w", "-s", "1")
        (made,) = (tmp_path / "backup").iterdir()
        run("fdbrestore", "start", "-r", f"file://{made}", "--dest-cluster-file", files[1], "-w")
        for process in [*clients, *agents]:
            process.kill()
            process.wait()

        db = fdbqueue.open(files[1])
        queue = fdbqueue.PriorityQueue[int].existing(db, "jobs")
        assert check(db, queue).ok
        claimed = {info.id for info in queue.items(db, state="claimed")}
        waiting = [info.item.value for state in STATES for info in queue.items(db, state=state)]
        runs = fdbqueue.Subspace(("runs",))
        done = [runs.unpack(row.key)[0] for row in db[runs.range()]]
        pushed = len(waiting) + len(done)
        assert sorted([*waiting, *done]) == [*range(pushed)]
        worker = started(WORKER, files[1])
        check_runs = started(CHECK, files[1], pushed)
        assert check_runs.wait() == 0
        worker.terminate()
        assert worker.wait(60) == 0
        n_held = len(claimed & {item.id for item in held.items})
        print(f"{len(done):,} jobs done, {len(waiting):,} restored; {n_held} were claimed")
