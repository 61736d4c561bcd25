"""Stop workers by SIGTERM under load, and account for every job and every attempt.

    python -m tests.long.hostile.shutdowns DATABASE [--stops 1000] [--grace 1] [--seed N]

Some jobs are quick, some end once they are told to, with an error, and some hang for ever. After
each shutdown no attempt has failed or counts, no job is claimed, and each is in the queue or done.
Each job that is done adds one to a counter in the transaction that ends it.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue import PriorityQueue
from tests.support.scan import assert_adds_up, assert_views_agree
from tests.support.waiting import wait_until

_LEASE = "600"  # seconds: no job returns because its lease ends
_AT_ONCE = 4  # workers that are stopped at the same time
_HANGING = 4  # of each kind of the jobs that do not end by themselves
_BACKLOG = 200

PROGRAM = """
import asyncio, fdbqueue, random, time
from fdbqueue.jobs import App, Context
from fdbqueue.worker import pool

# A transaction that hangs waits for the signal, however long the other workers take to start.
pool.TRANSACTION = 3600

app = App()

def add(tr):
    tr.add({counter!r}, (1).to_bytes(8, "little"))

def handler(context: Context):
    run(context, context.item.value["args"][0])

async def coroutine(context: Context):
    kind = context.item.value["args"][0]
    if kind == "quick":
        await asyncio.sleep(random.random() / 50)
        context.at_end(add)
    elif kind == "told":
        await context.cancelled
        raise InterruptedError(context.cancelled.reason)
    else:
        await asyncio.sleep(3600)

def transaction(tr, item):
    time.sleep(random.random() / 50 if item.value["args"][0] == "quick" else 3600)
    add(tr)

@app.job(name="job", queue={queue!r})
def run(context: Context, kind: str):
    if kind == "quick":
        time.sleep(random.random() / 50)
        context.at_end(add)
    elif kind == "told":
        context.cancelled.wait()
        raise InterruptedError(context.cancelled.reason)
    else:
        time.sleep(3600)
"""

COMMAND = """
read value
case $value in
    *quick*) exec {python} -S -c pass ;;
    *told*) exec sleep 3600 ;;
    *) trap '' TERM; sleep 3600; sleep 3600 ;;
esac
"""

KINDS: dict[str, tuple[str, ...]] = {
    "function": ("{queue}", "stopped:handler"),
    "coroutine": ("{queue}", "stopped:coroutine"),
    "transaction": ("{queue}", "stopped:transaction"),
    "command": ("{queue}", "--exec", COMMAND.format(python=shlex.quote(sys.executable))),
    "app": ("--app", "stopped:app"),
    "processes": ("--app", "stopped:app", "--processes", "2"),
}
"""The workers that are stopped: the arguments of `fdbq work`."""


class Shutdowns:
    """Rounds in which some workers are started and stopped."""

    def __init__(self, url: str, grace: float, seed: int, directory: Path) -> None:
        self._rng = random.Random(seed)
        self._db: Any = fdbqueue.open(url)
        self._name = f"shutdowns-{seed}"
        self._counter = f"{self._name}-done".encode()
        self._queue = PriorityQueue.named(self._db, self._name, max_attempts=2)
        self._grace = grace
        self._directory = directory
        self._environment = {**os.environ, "FDBQ_DB": url}
        program = PROGRAM.format(counter=self._counter, queue=self._name)
        (directory / "stopped.py").write_text(program)
        self._pushed = self._done_by_commands = 0
        self.stopped = 0

    def push(self, kind: str, n: int) -> None:
        """Push jobs of a kind."""
        value = {"job": "job", "args": [kind], "kwargs": {}}
        self._queue.push_many(self._db, [value] * n, self._rng.randrange(4))
        self._pushed += n

    def round(self, kind: str) -> float:
        """Stop some workers at the same time while all of them are busy; return the seconds."""
        if not self._pushed:
            self.push("told", _HANGING)
            self.push("deaf", _HANGING)
        before = self._queue.stats(self._db).total_completed
        options = ("--concurrency", "4", "--grace", str(self._grace), "--lease", _LEASE, "-q")
        given = [argument.replace("{queue}", self._name) for argument in KINDS[kind]]
        workers = [
            subprocess.Popen(
                [sys.executable, "-m", "fdbq", "work", *given, *options],
                env=self._environment,
                cwd=self._directory,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for _ in range(_AT_ONCE)
        ]
        try:
            n = _AT_ONCE * (2 if kind == "processes" else 1)
            wait_until(lambda: self._busy() >= n)
            time.sleep(self._rng.random() / 5)
            stopped_at = time.monotonic()
            for worker in workers:
                worker.send_signal(signal.SIGTERM)
            codes = [worker.wait() for worker in workers]
            seconds = time.monotonic() - stopped_at
        finally:
            for worker in workers:
                worker.kill()
        self.stopped += len(workers)
        # A worker that had not begun when the signal came ends by it.
        assert set(codes) <= {0, 128 + signal.SIGTERM, -signal.SIGTERM}, codes
        stats = assert_views_agree(self._db, self._queue)
        if kind == "command":
            self._done_by_commands += stats.total_completed - before
        self.account()
        return seconds

    def _busy(self) -> int:
        """Return the number of workers that hold jobs, and push others for them."""
        self.push("quick", max(0, _BACKLOG - self._queue.size(self._db)))
        claimed = self._queue.items(self._db, state="claimed", limit=1_000)
        return len({info.claimed_by for info in claimed})

    def account(self) -> None:
        """Assert that nothing is lost or claimed, and that no attempt has failed or counts."""
        stats = self._queue.stats(self._db)
        assert_adds_up(stats)
        counted = int.from_bytes(bytes(self._db[self._counter] or b""), "little")
        assert (stats.claimed, stats.dead, stats.delayed, stats.total_failed) == (0, 0, 0, 0), stats
        assert stats.total_completed == counted + self._done_by_commands, (stats, counted)
        assert stats.ready + stats.total_completed == self._pushed, (stats, self._pushed)
        waiting = self._queue.items(self._db, state="ready", limit=1_000)
        assert {info.attempts for info in waiting} <= {0}

    def end(self) -> None:
        """Drop the queue."""
        fdbqueue.admin.drop(self._db, self._name)
        del self._db[self._counter]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database")
    parser.add_argument("--stops", type=int, default=1000)
    parser.add_argument("--grace", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    given = parser.parse_args()
    print(f"--seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        shutdowns = Shutdowns(given.database, given.grace, given.seed, Path(directory))
        times: list[float] = []
        while shutdowns.stopped < given.stops:
            kind = [*KINDS][len(times) % len(KINDS)]
            times.append(shutdowns.round(kind))
            print(f"{shutdowns.stopped} {kind}: {times[-1]:.2f} s", flush=True)
        shutdowns.end()
    n_late = sum(seconds > given.grace + 2 for seconds in times)
    print(f"{shutdowns.stopped} shutdowns, the longest of {max(times):.2f} s, {n_late} rounds late")
    sys.exit(n_late > 0)


if __name__ == "__main__":
    main()
