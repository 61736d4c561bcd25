"""`app.work(processes=...)` runs jobs in processes that find the app by its name."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fdbqueue import PriorityQueue
from fdbqueue.jobs import App
from fdbqueue.jobs.errors import AppNotFound
from fdbqueue.worker.processes import Supervisor
from tests.support.waiting import MAX_WAIT, wait_until

PROGRAM = """
import os, sys, fdbqueue
from fdbqueue.jobs import Context

app = fdbqueue.App()

@app.lifespan
def process():
    yield os.getpid()

@app.job(queue={queue!r})
def add(context: Context, x: int) -> list[int]:
    return [context.state, os.getpid()]

if __name__ == "__main__":
    app.bind({url!r})
    add.push_many([add.bind(n) for n in range(20)])
    print(app.work(processes=2, drain=True, max_jobs=3, concurrency=1, grace="5s"))
"""


def test_the_processes_of_an_app_find_it(
    db: Any, shared_url: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "shop.py"
    path.write_text(PROGRAM.format(url=shared_url, queue=name))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, cwd="/")
    assert done.stdout == "WorkerReport(done=20, failed=0, lost=0)\n", done.stderr
    infos = list(PriorityQueue.existing(db, name).items(db, state="done"))
    assert {info.item.value["job"] for info in infos} == {"shop.add"}
    assert all(info.result[0] == info.result[1] for info in infos)
    assert len({info.result[0] for info in infos}) >= 2


def test_an_app_that_other_processes_cannot_use_is_refused(shared_url: str) -> None:
    app = App("memory:")
    app.job()(print_nothing)
    with pytest.raises(AppNotFound, match="a database in memory belongs to one process"):
        app.work(processes=2)
    app.bind(shared_url)
    with pytest.raises(AppNotFound, match="not a variable of a module"):
        app.work(processes=2)


def print_nothing() -> None:
    pass


@pytest.mark.parametrize("option", ["processes", "max_jobs", "max_memory"])
@pytest.mark.parametrize("number", [0, 1.5, "2"])
def test_a_wrong_number_is_refused(option: str, number: Any) -> None:
    app = App("memory:")
    with pytest.raises(ValueError, match=f"{option} is a number of"):
        app.work("jobs", drain=True, **{option: number})


def test_a_program_that_keeps_dying_is_started_again_however_often_it_has_died(
    caplog: pytest.LogCaptureFixture,
) -> None:
    supervisor = Supervisor([sys.executable, "-c", "raise SystemExit(3)"], 1, grace=1)
    supervisor._slots[0].deaths = 5_000
    thread = threading.Thread(target=supervisor.run, daemon=True)
    thread.start()
    wait_until(lambda: "exit code 3; another one starts in 60 s" in caplog.text)
    supervisor.stop()
    thread.join(MAX_WAIT)
    assert not thread.is_alive()
