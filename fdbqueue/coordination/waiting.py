"""The wait loop: try, sleep until a watched key changes, and try again."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, TypeVar

from fdbqueue.coordination.steps import Call, Sleep, Steps
from fdbqueue.database.binding import is_database
from fdbqueue.database.retrying import run
from fdbqueue.types import Database, Transaction, Transactor

__all__ = ["Lines", "Turn", "Wanted", "begin_sleep", "until_found"]

_T = TypeVar("_T")

# Seconds after which a client looks although nothing woke it. A client of another kind may have
# pushed, which knows only the recipe and changes no watched key.
_MAX_SLEEP = 60.0


class Turn:
    """The place of an operation in a line; ready once the operation is the first one.

    A sleep takes it as it takes a watch.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._callbacks: list[Callable[[Turn], object]] | None = []

    def is_ready(self) -> bool:
        """Return whether the operation is the first one."""
        return self._callbacks is None

    def on_ready(self, callback: Callable[[Turn], object]) -> None:
        """Call `callback(turn)` once the operation is the first one."""
        with self._guard:
            if self._callbacks is not None:
                self._callbacks.append(callback)
                return
        callback(self)

    def begin(self) -> None:
        """Make the operation the first one."""
        with self._guard:
            callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback(self)

    def wait(self) -> None:
        """Return; a turn has no error."""

    def cancel(self) -> None:
        """Keep the place: an operation that stops waiting leaves the line."""


def _event_loop() -> Hashable:
    """Return the event loop that runs in this thread, or `None`."""
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()


class Lines:
    """The operations of this process that wait for items of one queue.

    Those that wait for the same things stand in one line, and only the first of them watches the
    database: a client has a limited number of watches, and a change would wake all of them at once.
    If the first one finds something or gives up, the next one looks and then watches. So if more is
    left, the next one finds it.

    Each event loop has lines of its own, because a loop that is blocked delays those behind it.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._guard = threading.RLock()  # a finalizer may run, and leave, while its thread has it
        self._lines: dict[Hashable, dict[Turn, None]] = {}
        self._process = os.getpid()

    @contextmanager
    def turn(self, db: Database, wanted: Hashable) -> Generator[Turn]:
        """Stand in the line of the operations that wait for the same things."""
        if self._process != os.getpid():
            self._begin()  # a forked child has none of the waiting threads
        name = db, wanted, _event_loop()
        turn = Turn()
        with self._guard:
            line = self._lines.setdefault(name, {})
            line[turn] = None
            is_first = len(line) == 1
        if is_first:
            turn.begin()
        try:
            yield turn
        finally:
            with self._guard:
                line.pop(turn, None)
                following = next(iter(line), None)
                if not line and self._lines.get(name) is line:
                    del self._lines[name]
            if following is not None:
                following.begin()


class Wanted(NamedTuple):
    """The items that an operation waits for, and how to wait for them.

    Attributes:
        name: Operations that wait for the same items have the same one.
        keys: Returns the keys to watch; none if it is worth looking again at once.
        seconds_left: Returns the seconds after which to look although no key has changed.
    """

    name: Hashable
    keys: Callable[[Transaction], list[bytes]]
    seconds_left: Callable[[Transaction], float]


def until_found(
    lines: Lines,
    tr: Transactor,
    seconds: float,
    look: Callable[[], Steps[_T]],
    wanted: Wanted,
) -> Steps[_T]:
    """Call `look` until it finds something or the time is over, and return what it found.

    After a `look` that found nothing, sleep until a watched key changes, until an item is due, and
    at most a minute. If other operations of this process wait for the same, sleep until it is this
    one's turn. Another client may take the item first; then sleep again. The last `look` is after
    the end of the time. Given a transaction, `look` is called once.

    Args:
        lines: The lines of the queue.
        tr: A transaction or a database.
        seconds: The time to wait; 0 for a single `look`.
        look: Makes one attempt; a result that is false means that nothing was found.
        wanted: What to wait for.
    """
    return look() if seconds == 0 else _until_found(lines, tr, seconds, look, wanted)


def _until_found(
    lines: Lines,
    tr: Transactor,
    seconds: float,
    look: Callable[[], Steps[_T]],
    wanted: Wanted,
) -> Steps[_T]:
    deadline = time.monotonic() + seconds
    found = yield from look()
    if found or not is_database(tr):
        return found
    with lines.turn(tr, wanted.name) as turn:
        while not found and (left := deadline - time.monotonic()) > 0:
            if turn.is_ready():
                begin = partial(begin_sleep, tr, wanted, min(left, _MAX_SLEEP))
                sleep: Sleep = yield Call(begin, Sleep.cancel)
            else:
                sleep = Sleep([turn], left)
            if sleep.watches and not (yield sleep):
                break
            found = yield from look()
    return found


def begin_sleep(db: Database, wanted: Wanted, seconds: float) -> Sleep:
    """Watch the keys of what is wanted, until an item is due but at most some seconds.

    The state of the queue is read in the same transaction. So the watches miss no later change,
    except for a value that changes and changes back.

    Source: FoundationDB documentation, Developer Guide, "Watches".
    """

    def body(tr: Transaction) -> Sleep:
        left = min(seconds, wanted.seconds_left(tr))
        return Sleep([tr.watch(key) for key in wanted.keys(tr)], left)

    return run(db, body)
