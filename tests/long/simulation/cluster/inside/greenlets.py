"""The threads of simulated clients: greenlets, all on the simulator's network thread.

The hub is the main greenlet. It runs only within calls of the shim: when a phase begins, and in the
callbacks of futures. A thread that waits switches to the hub, which returns to the simulator.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import greenlet

from tests.long.simulation.cluster.inside import simulator

_hub = greenlet.getcurrent()
_ready: list[Thread] = []
_is_running = False
_numbers = itertools.count(1_000)
_choices = random.Random()


class Process:
    """A simulated process: its threads, its clock and its id.

    A killed process never runs again, not even the `finally` blocks of its threads. What the client
    library has begun for it goes on: a commit that is under way may still take effect.

    Args:
        place: The simulator's number of the process that it runs as.
        skew: How many seconds its clock is ahead.
    """

    def __init__(self, place: int, skew: float = 0.0) -> None:
        self.place = place
        self.skew = skew
        self.pid = next(_numbers)
        self.awaits_left = math.inf
        """How many times its threads go on after a wait, until it is killed."""
        self.globals: dict[object, Any] = {}
        """Its own values of globals that all processes would share."""
        self.db: Any = None
        """The database that its timers use."""
        self.is_killed = False
        self._is_stopped = False
        self._stopped: list[Thread] = []  # those that would run
        self._at_exit: Callable[[], object] | None = None
        self._threads: list[Thread] = []  # of killed processes too: nothing finalizes them

    def start(self, function: Callable[[], object]) -> Thread:
        """Start a thread. It runs once the current one waits."""
        thread = Thread(self, function)
        self._threads.append(thread)
        wake(thread)
        return thread

    def kill(self) -> None:
        """End all threads where they are."""
        self.is_killed = True

    def exit(self, then: Callable[[], object] = bool) -> None:
        """End all threads, and call a function as soon as this one has returned or waits."""
        self.kill()
        self._at_exit = then

    def stop(self) -> None:
        """Let no thread run until `resume`, as SIGSTOP does."""
        self._is_stopped = True

    def resume(self) -> None:
        """Let the threads go on."""
        self._is_stopped = False
        stopped, self._stopped = self._stopped, []
        for thread in stopped:
            wake(thread)

    def may_run(self, thread: Thread) -> bool:
        """Return whether a thread that is ready runs; a stopped process keeps it for later."""
        if self._is_stopped:
            self._stopped.append(thread)
            return False
        self.awaits_left -= 1
        if self.awaits_left < 0:
            self.kill()
        return not self.is_killed

    def finish(self) -> None:
        """Call what `exit` was given."""
        then, self._at_exit = self._at_exit, None
        if then is not None:
            then()


class Thread(greenlet.greenlet):
    """One thread of a process."""

    def __init__(self, process: Process, function: Callable[[], object]) -> None:
        super().__init__(function, _hub)
        self.process = process
        self.ident = next(_numbers)
        self.face: Any = None
        """The `threading.Thread` that the code of the thread knows."""
        self.stopped_clock: float | None = None
        """The time that the thread reads from its clock instead of the real one."""


def current() -> Thread | None:
    """Return the thread that runs; `None` in the hub."""
    thread = greenlet.getcurrent()
    return thread if isinstance(thread, Thread) else None


def seed(number: int) -> None:
    """Set the order in which threads run that are ready at the same time."""
    _choices.seed(number)


def wake(thread: Thread) -> None:
    """Let a thread run; at once if the hub calls."""
    _ready.append(thread)
    run_ready()


def run_ready() -> None:
    """Run all threads that are ready, in random order; nothing if a thread calls."""
    global _is_running
    if _is_running:
        return
    _is_running = True
    try:
        while _ready:
            thread = _ready.pop(_choices.randrange(len(_ready)))
            if not thread.dead and thread.process.may_run(thread):
                with simulator.as_process(thread.process.place):
                    thread.switch()
                    thread.process.finish()
    finally:
        _is_running = False


class Gate:
    """Something that one thread waits for, once: a future, a timer, a lock."""

    def __init__(self) -> None:
        self.is_open = False
        self._thread: Thread | None = None

    def open(self) -> None:
        """Let the thread go on; later calls do nothing."""
        if not self.is_open:
            self.is_open = True
            if self._thread is not None:
                wake(self._thread)

    def wait(self) -> None:
        """Return once the gate is open."""
        if not self.is_open:
            self._thread = current()
            if self._thread is None:
                raise RuntimeError("the hub of the simulation cannot wait")
            _hub.switch()
