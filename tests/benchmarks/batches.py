"""Conflicts between the ends of the jobs of one batch.

`python -m tests.benchmarks.batches` lets 64 clients, each a thread with a database object of its
own, end the jobs of one closed batch, each in a transaction of its own that reads, waits for the
others to read as well, and commits. It prints how many commits failed, by the code of the error, of
which 1020 is a conflict. With `--without` the jobs are in no batch.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections import Counter
from typing import Any

import fdbqueue
from fdbqueue.queue.batches import Batches, Members


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--without", action="store_true", help="end jobs that are in no batch")
    parser.add_argument("--database", help="the name of a database; by default a new one on disk")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(
            options.database or f"embedded:{folder}/db",
            options.jobs,
            options.workers,
            options.without,
        )


def measure(name: str, jobs: int, workers: int, without: bool) -> None:
    db = fdbqueue.open(name)
    queue = fdbqueue.PriorityQueue[Any].named(db, "benchmark of batches")
    queue.clear(db)
    batches = Batches(queue)
    id = batches.open(db, {"job": "report"}, -1, "continue").id
    for begin in range(0, jobs, 500):
        values = range(begin, min(begin + 500, jobs))
        if without:
            queue.push_many(db, values)
            continue
        batches.add(db, id, "continue", [Members(queue, {"values": values, "priority": 0})])
    # Before the close, so that the job that follows is not among those of the benchmark.
    claims = list(iter(lambda: queue.claim(db, lease=3600), None))
    batches.close(db, id)
    failed = Counter[int]()
    guard = threading.Lock()

    def work() -> None:
        while True:
            with guard:
                if not claims:
                    return
                claim = claims.pop()
            tr: Any = db.create_transaction()
            while True:
                try:
                    queue.ack(tr, claim)
                    time.sleep(0.001)  # so that all clients read before the first of them commits
                    tr.commit().wait()
                    break
                except fdbqueue.FDBError as error:
                    with guard:
                        failed[error.code] += 1
                    tr.on_error(error).wait()

    began = time.perf_counter()
    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    info = queue.get(db, id)
    assert info is not None
    assert info.due_at is not None or info.state == "ready"
    print(
        f"{jobs} jobs, {workers} workers: errors {dict(failed)}, conflicts of "
        f"{failed[1020] / jobs:.2%} of the ends; {jobs / seconds:.0f} ends a second"
    )


if __name__ == "__main__":
    main()
