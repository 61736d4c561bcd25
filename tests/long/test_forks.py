"""Processes that a program forks while it opens a database."""

from __future__ import annotations

from pathlib import Path

from tests.support.programs import python

RACE = """
import os, sys, threading, time
import fdbqueue

# A module that a thread imports during a fork cannot be imported in the child.
import opentelemetry.trace.propagation.tracecontext

for n in range(20):
    app = fdbqueue.App(f"embedded:{sys.argv[1]}/{n}")

    @app.job(name="add")
    def add(x: int) -> None: ...

    opening = threading.Thread(target=add.push, args=(1,))
    opening.start()
    time.sleep(n * 0.001)
    if os.fork() == 0:
        try:
            add.push(2)
        except fdbqueue.errors.StorageError as error:
            assert "open databases after the fork" in str(error)
        os._exit(0)
    opening.join()
    assert os.wait()[1] == 0
    assert app.work(drain=True).done >= 1
print("done")
"""


def test_a_child_forked_while_another_thread_opens_the_database_opens_it_or_is_told_to(
    tmp_path: Path,
) -> None:
    done = python(RACE, tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
