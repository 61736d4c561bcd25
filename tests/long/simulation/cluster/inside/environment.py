"""The surroundings of simulated code: time, randomness, locks and threads are the simulator's."""

from __future__ import annotations

import _thread
import os
import queue
import random
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.long.simulation.cluster.inside import greenlets, simulator
from tests.long.simulation.cluster.inside.greenlets import Gate
from tests.long.simulation.cluster.inside.timers import Timer

EPOCH = 1_700_000_000.0
"""The time since 1970 at which a simulation begins, by a clock that is not skewed."""


# Time


def _clock() -> float:
    """Return the time since 1970 by the clock of the process that runs."""
    thread = greenlets.current()
    if thread is None:
        return EPOCH + simulator.now()
    if thread.stopped_clock is not None:
        return thread.stopped_clock
    return EPOCH + simulator.now() + thread.process.skew


@contextmanager
def stopped_clock() -> Iterator[None]:
    """Stop the clock of this thread, so that several reads see the same items as due."""
    thread = greenlets.current()
    assert thread is not None
    thread.stopped_clock = _clock()
    try:
        yield
    finally:
        thread.stopped_clock = None


def _sleep(seconds: float) -> None:
    gate = Gate()
    Timer(seconds, gate.open)
    gate.wait()


# Randomness


class _Random(random.Random):
    """A generator that is seeded by the simulator unless it is given a seed."""

    def seed(self, a: Any = None, version: int = 2) -> None:
        super().seed(simulator.random_bytes(16) if a is None else a, version)


# Locks and threads


class _Waiter(Gate):
    has_lock = False


class _Lock:
    """`threading.Lock`: the thread that waits longest gets it next."""

    def __init__(self) -> None:
        self._is_locked = False
        self._waiters: deque[_Waiter] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._is_locked:
            self._is_locked = True
            return True
        if not blocking or timeout == 0:
            return False
        waiter = _Waiter()
        self._waiters.append(waiter)
        timer = Timer(timeout, waiter.open) if 0 < timeout < threading.TIMEOUT_MAX else None
        waiter.wait()
        if timer is not None:
            timer.cancel()
        if not waiter.has_lock and waiter in self._waiters:
            self._waiters.remove(waiter)
        return waiter.has_lock

    def release(self) -> None:
        if not self._is_locked:
            raise RuntimeError("release unlocked lock")
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.is_open:  # else its time is over
                waiter.has_lock = True
                waiter.open()
                return
        self._is_locked = False

    def locked(self) -> bool:
        return self._is_locked

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:  # `threading` names it to the system; nothing forks
        raise NotImplementedError


class _Thread(threading.Thread):
    """`threading.Thread`."""

    _ended: threading.Event
    _greenlet: greenlets.Thread | None = None

    def start(self) -> None:
        self._ended = threading.Event()
        self._started.set()  # what `daemon` and others look at
        self._greenlet = _process().start(self._run)
        self._greenlet.face = self

    def _run(self) -> None:
        try:
            self.run()
        except Exception:
            threading.excepthook(threading.ExceptHookArgs([*sys.exc_info(), self]))
        finally:
            self._ended.set()

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)

    def is_alive(self) -> bool:
        return self._greenlet is not None and not self._ended.is_set()

    @property
    def ident(self) -> int | None:
        return None if self._greenlet is None else self._greenlet.ident


def _process() -> greenlets.Process:
    thread = greenlets.current()
    assert thread is not None, "the hub starts no threads"
    return thread.process


def _start_new_thread(
    function: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
) -> int:
    return _process().start(lambda: function(*args, **(kwargs or {}))).ident


def _get_ident() -> int:
    thread = greenlets.current()
    return _HUB if thread is None else thread.ident


def _current_thread() -> threading.Thread:
    thread = greenlets.current()
    if thread is None:
        return threading.main_thread()
    if thread.face is None:
        thread.face = _Thread(name=f"thread {thread.ident}", daemon=True)
        thread.face._greenlet = thread
    found: threading.Thread = thread.face
    return found


# Processes


class _OfProcess:
    """A global of a module, of which each process has its own."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def _own(self) -> Any:
        return _process().globals.setdefault(self, self._kind())

    def __contains__(self, each: object) -> bool:
        return each in self._own()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own(), name)


def separate_globals() -> None:
    """Let each process have its own of those globals that say what it has done."""
    from fdbqueue.coordination import waiting
    from fdbqueue.database import exactly_once

    for module, name in ((waiting, "_have_waited"), (exactly_once, "_free_clients")):
        setattr(module, name, _OfProcess(type(getattr(module, name))))


_HUB = threading.get_ident()


def replace_surroundings() -> None:
    """Replace the clock, randomness, locks and threads of this interpreter.

    Call it before any code is imported that is to be simulated: such code keeps what it has found.
    """
    now = simulator.now
    names: dict[Any, dict[str, Any]] = {
        time: {
            "time": _clock,
            "time_ns": lambda: int(_clock() * 1e9),
            "monotonic": now,
            "monotonic_ns": lambda: int(now() * 1e9),
            "perf_counter": now,
            "perf_counter_ns": lambda: int(now() * 1e9),
            "sleep": _sleep,
        },
        os: {
            "urandom": simulator.random_bytes,
            "getpid": lambda: _process().pid if greenlets.current() else 0,
        },
        random: {"Random": _Random},
        queue: {"time": now, "SimpleQueue": getattr(queue, "_PySimpleQueue")},  # noqa: B009
        socket: {"gethostname": lambda: "simulated"},
        threading: {
            "_time": now,
            "Lock": _Lock,
            "_allocate_lock": _Lock,
            "RLock": getattr(threading, "_PyRLock"),  # noqa: B009  # the one made of locks
            "get_ident": _get_ident,
            "current_thread": _current_thread,
            "Thread": _Thread,
            "_start_new_thread": _start_new_thread,
        },
        _thread: {"start_new_thread": _start_new_thread},
    }
    for module, changes in names.items():
        for name, value in changes.items():
            setattr(module, name, value)
    random.seed(simulator.random_bytes(16))
    greenlets.seed(int.from_bytes(simulator.random_bytes(8), "big"))
