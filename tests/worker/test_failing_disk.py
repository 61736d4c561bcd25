"""Workers on a failing disk: no job is lost, dead or done twice."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import fdbqueue
from tests.support.failing_disk import Disk
from tests.support.waiting import wait_until
from tests.support.workers import running

JOBS = 10


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_worker_claims_nothing_while_the_disk_is_broken(
    tmp_path: Path,
    disk: Disk,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    in_transaction: bool,
) -> None:
    monkeypatch.setattr("fdbqueue.worker.claiming._PAUSE", 0.01)
    with fdbqueue.open(tmp_path / "db") as db, caplog.at_level(logging.ERROR, "fdbqueue"):
        jobs = fdbqueue.PriorityQueue.named(db, "jobs", max_attempts=2)
        jobs.push_many(db, range(JOBS))
        done: list[int] = []

        def handle(item: fdbqueue.Item) -> None:
            done.append(item.value)

        def handle_in_transaction(tr: fdbqueue.Transaction, item: fdbqueue.Item) -> None:
            tr.add(b"done", b"\1")

        handler = handle_in_transaction if in_transaction else handle
        worker = fdbqueue.Worker(db, jobs, handler, lease=1)
        disk.breaks()
        with running(worker):
            wait_until(lambda: caplog.text.count("cannot claim jobs") >= 3)
            disk.is_repaired()
        assert worker.report == fdbqueue.WorkerReport(0, 0, 0)
        assert done == []
    with fdbqueue.open(tmp_path / "db") as db:
        worker = fdbqueue.Worker(db, jobs, handler, lease=1)
        with running(worker):  # also what an answer that was lost may have claimed
            wait_until(lambda: worker.report.done == JOBS)
        assert worker.report == fdbqueue.WorkerReport(JOBS, 0, 0)
        assert sorted(done) == ([] if in_transaction else list(range(JOBS)))
        assert db[b"done"] == (bytes([JOBS]) if in_transaction else None)
        assert jobs.stats(db).dead == 0
        assert fdbqueue.admin.check(db, jobs).ok


@pytest.mark.parametrize("breaks", [False, True])
def test_a_thread_goes_on_while_a_commit_reaches_the_disk(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, breaks: bool
) -> None:
    # However quick the jobs are, it claims both.
    monkeypatch.setattr("fdbqueue.worker.claiming.Pace.room", lambda _, held: 2 - held)
    with fdbqueue.open(tmp_path / "db") as db:
        jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        jobs.push_many(db, range(2))
        began: list[int] = []

        def handle(tr: fdbqueue.Transaction, item: fdbqueue.Item) -> None:
            disk.flows.clear()
            began.append(item.value)

        worker = fdbqueue.Worker(db, jobs, handle, concurrency=1)
        with running(worker):
            wait_until(lambda: len(began) == 2)
            assert worker.report == fdbqueue.WorkerReport(0, 0, 0)  # not before it is there
            if breaks:
                disk.breaks()
            disk.flows.set()
            ended = "failed" if breaks else "done"
            wait_until(lambda: getattr(worker.report, ended) == 2)
