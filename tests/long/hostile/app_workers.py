"""Processes of `fdbq work --app` that a program kills, stops and ends, and the ledgers of jobs.

A job writes a line for what it does. A line is one `write`, so it outlives the process.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue.jobs import App
from fdbqueue.testing import FaultyDatabase

ROOT = Path(__file__).parents[3]
_DATABASE, _LEDGER = "HOSTILE_DATABASE", "HOSTILE_LEDGER"
_END = 60.0  # seconds that a process may take to end
_INTERRUPTED = (128 + signal.SIGTERM, -signal.SIGTERM)  # the codes before the workers work

# What the jobs call


def bind_worker(app: App) -> None:
    """In a process of workers, bind an app to its database, whose commits lose their answers."""
    if _DATABASE in os.environ:
        faults = {"before": 0.02, "after": 0.02, "conflict": 0.02}
        db = fdbqueue.open(os.environ[_DATABASE])
        app.bind(FaultyDatabase(db, **faults, lost_as=(1021, 1039), seed=os.getpid()))


_ledger = -1


def write_line(*fields: object) -> None:
    """Write a line to the ledger of this process."""
    global _ledger
    if _ledger < 0:
        _ledger = os.open(os.environ[_LEDGER], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(_ledger, json.dumps(fields).encode() + b"\n")


# What the program calls


@dataclass(frozen=True)
class Command:
    """How to start processes: `fdbq work --app` with queues and other options."""

    app: str
    url: str
    queues: Sequence[str]
    directory: Path
    options: Sequence[str]


class Process:
    """A process of `fdbq work --app`, with its ledger and its output."""

    def __init__(self, name: str, command: Command) -> None:
        self.name = name
        self.ledger = command.directory / f"{name}.ledger"
        self.output = command.directory / f"{name}.stderr"
        self.killed_at = float("inf")
        arguments = [sys.executable, "-X", "faulthandler", "-m", "fdbq", "work"]
        arguments += ["--app", command.app, *command.queues, "--name", name, *command.options]
        environment = os.environ | {_DATABASE: command.url, _LEDGER: str(self.ledger)}
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(arguments, cwd=ROOT, stderr=output, env=environment)
        self._read = 0
        self._is_ending = False
        self._stopped: threading.Timer | None = None

    @property
    def is_running(self) -> bool:
        """Return whether it works; raise its output if it ended in a way that nothing explains."""
        code = self._process.poll()
        if code == -signal.SIGKILL:
            self.killed_at = min(self.killed_at, time.time())
        elif code is not None:
            is_early = code in _INTERRUPTED and not self.ledger.exists()
            is_expected = self._is_ending and (code == 0 or is_early)
            assert is_expected, f"{self.name}: {code}\n{self.output.read_text()}"
        return code is None and not self._is_ending

    def lines(self) -> Iterator[Any]:
        """Yield the new lines of the ledger."""
        if not self.ledger.exists() or self.ledger.stat().st_size == self._read:
            return
        with self.ledger.open("rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")
        self._read += len(whole[0]) + len(whole[1])
        yield from map(json.loads, whole[0].splitlines())

    def stop_for(self, seconds: float) -> None:
        """Stop it for a time, and return at once: it may hold the lock of an embedded database."""
        self._process.send_signal(signal.SIGSTOP)
        self._stopped = threading.Timer(seconds, self._process.send_signal, [signal.SIGCONT])
        self._stopped.start()

    @property
    def is_stopped(self) -> bool:
        """Return whether it will be continued."""
        return self._stopped is not None and self._stopped.is_alive()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.is_running

    def end(self) -> None:
        """Ask it to end, as an operator does."""
        self._is_ending = True
        self._process.terminate()

    def wait(self) -> None:
        """Wait until it has ended, whatever hangs in it."""
        if self._stopped is not None:
            self._stopped.join()
        try:
            self._process.wait(_END)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)  # prints the stacks of all threads
            self._process.wait()
        self.is_running


class Processes:
    """Some processes, which are killed, stopped and ended; others are started instead of them.

    Args:
        n: How many there are.
        command: How to start them.
        lease: The leases of their jobs, in seconds.
        rng: What decides.
        counts: How often each happened.

    Attributes:
        all: All processes, also those that have ended.
        stops: When processes were stopped, which may hold up all others, and when they went on.
    """

    _PAUSES = {"killed": 1.0, "ended": 5.0, "stopped past a lease": 15.0}  # seconds, on average
    _BETWEEN = 20  # jobs that end between two of them, however slow the machine is

    def __init__(
        self, n: int, command: Command, lease: float, rng: random.Random, counts: Counter[str]
    ) -> None:
        self._n, self._command = n, command
        self._lease, self._rng, self._counts = lease, rng, counts
        self._next = dict.fromkeys(self._PAUSES, 0.0)
        self._ended = -self._BETWEEN
        self.all: list[Process] = []
        self.stops: list[tuple[float, float]] = []

    def running(self) -> list[Process]:
        """Return the processes that run; start others instead of those that have ended."""
        running = [each for each in self.all if each.is_running]
        while len(running) < self._n:
            self.all.append(Process(f"worker-{len(self.all)}", self._command))
            running.append(self.all[-1])
        return running

    def disturb(self, ended: int) -> None:
        """Do what is due to a process that has begun jobs, given how many jobs have ended."""
        begun = [each for each in self.running() if each.ledger.exists() and not each.is_stopped]
        for what in self._rng.sample([*self._next], len(self._next)):
            due = self._next[what]
            is_enough = what == "stopped past a lease" or ended >= self._ended + self._BETWEEN
            if not begun or time.monotonic() < due or not is_enough:
                continue
            victim = begun.pop(self._rng.randrange(len(begun)))
            if what == "killed":
                victim.kill()
            elif what == "ended":
                victim.end()
            else:
                seconds = self._lease * self._rng.uniform(1.1, 2)
                self.stops.append((time.time(), time.time() + seconds))
                victim.stop_for(seconds)
            if what != "stopped past a lease":
                self._ended = ended
            self._counts[what] += 1
            self._next[what] = time.monotonic() + self._PAUSES[what] * self._rng.uniform(0.5, 1.5)

    def end(self) -> None:
        """Let all end."""
        for process in self.running():
            process.end()
        for process in self.all:
            process.wait()

    def kill(self) -> None:
        """Kill all that are left."""
        for process in self.all:
            process.kill()
