"""The wait loop: look, sleep until a watched key changes, and look again."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

from fdbqueue.coordination.sans_io import Call, SansIO, Sleep, Stop
from fdbqueue.database.binding import is_database
from fdbqueue.database.clock import uuids
from fdbqueue.database.retrying import run
from fdbqueue.errors import FdbqueueError, error_classes
from fdbqueue.operations.waking import Waiters
from fdbqueue.types import Database, Transaction, Transactor

_T = TypeVar("_T")

# Seconds after which a client looks whether items are ready, although nothing woke it. A client of
# another kind may have pushed, which knows only the recipe and changes no watched key.
MAX_SLEEP = 25.0

# Seconds that a client gives others which were woken, before it looks itself; and that a client
# gives its own wake-up, if no other one waits.
_MOMENT, _MOMENT_ALONE = 0.1, 0.01
_LEAVE_TIMEOUT = 2_000  # milliseconds

_have_waited: set[bytes] = set()
"""The prefixes of this process's waiters."""

os.register_at_fork(after_in_child=_have_waited.clear)


def _event_loop() -> Hashable:
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()


@dataclass
class Line:
    """The operations that wait for the same items, in order.

    `turns` are their places, each set once it is first; `waiter` their key, until seen cleared.
    """

    turns: dict[Stop, None] = field(default_factory=dict[Stop, None])
    waiter: bytes | None = None


class Lines:
    """The operations of this process that wait for items of one queue.

    Only the first of a line watches the database. When it leaves, the next looks and then watches.
    See `docs/design/wakeups.md`.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._guard = threading.RLock()  # a finalizer may run, and leave, while its thread has it
        self._lines: dict[Hashable, Line] = {}
        self._process = os.getpid()

    @contextmanager
    def turn(self, db: Database, wanted: Wanted) -> Generator[tuple[Line, Stop]]:
        """Stand in the line for the wanted items."""
        if self._process != os.getpid():
            self._begin()  # a forked child has none of the waiting threads
        name = db, wanted.name, _event_loop()
        turn = Stop()
        with self._guard:
            line = self._lines.setdefault(name, Line())
            line.turns[turn] = None
            is_first = len(line.turns) == 1
        if is_first:
            turn.set()
        try:
            yield line, turn
        finally:
            with self._guard:
                line.turns.pop(turn, None)
                following = next(iter(line.turns), None)
                if not line.turns and self._lines.get(name) is line:
                    del self._lines[name]
            if following is not None:
                following.set()
            elif wanted.waiters is not None and line.waiter is not None:
                _leave_later(db, wanted.waiters, line)  # the operation was cancelled


def _never(_: Transaction) -> float:
    return math.inf


class Wanted(NamedTuple):
    """The items that an operation waits for, with a `name` for all that wait for the same.

    `keys` returns the keys to watch, none to look at once; `seconds_left` the seconds until a look
    without a change. If `waiters` is `None`, every change wakes the operation.
    """

    name: Hashable
    keys: Callable[[Transaction], list[bytes]]
    seconds_left: Callable[[Transaction], float] = _never
    waiters: Waiters | None = None


def until_found(
    lines: Lines,
    tr: Transactor,
    seconds: float,
    look: Callable[[], SansIO[_T]],
    wanted: Wanted,
) -> SansIO[_T]:
    """Call `look` until it finds something or the time is over, and return what it found.

    In between, sleep until another transaction wakes this client, an item is due, or it is this
    operation's turn. In a transaction, or with 0 seconds, look once. A false result means that
    nothing was found.
    """
    deadline = time.monotonic() + seconds
    found = yield from look()
    if found or seconds == 0 or not is_database(tr):
        return found
    with lines.turn(tr, wanted) as (line, turn):
        while not found and time.monotonic() < deadline:
            if not (yield from _sleep(tr, wanted, line, turn, deadline)):
                break
            found = yield from look()
        if wanted.waiters is not None and line.waiter is not None and len(line.turns) == 1:
            if found:  # a call could be cancelled, and lose what was found
                _leave_later(tr, wanted.waiters, line, has_found=True)
            else:
                yield Call(partial(_leave, tr, wanted.waiters, line.waiter))
                line.waiter = None
    return found


def until_worth_looking(lines: Lines, db: Database, wanted: Wanted) -> SansIO[bool]:
    """Sleep as `until_found` does, until it is worth looking."""

    def may_find(tr: Transaction) -> bool:
        return not wanted.keys(tr) or wanted.seconds_left(tr) <= 0

    return until_found(lines, db, math.inf, Call(partial(run, db, may_find)).alone, wanted)


def _sleep(db: Database, wanted: Wanted, line: Line, turn: Stop, deadline: float) -> SansIO[bool]:
    """Sleep until it is worth looking, or return false to stop."""
    while (left := deadline - time.monotonic()) > 0:
        is_first = turn.is_set
        if is_first:
            left = min(left, MAX_SLEEP)
            sleep: Sleep = yield Call(partial(begin_sleep, db, wanted, left, line), Sleep.cancel)
        else:
            sleep = Sleep([turn], left)
        if not sleep.watches:
            return True
        if not (yield sleep):
            return False
        if is_first and sleep.has_fired:
            line.waiter = None
            return True
        if sleep.ended_by is None and sleep.seconds < left:
            return True
        # The beginning of the next sleep finds out whether it is worth looking.
    return True


def begin_sleep(db: Database, wanted: Wanted, seconds: float, line: Line) -> Sleep:
    """Watch what is wanted until an item is due, for at most `seconds`.

    If it is worth looking at once, the sleep has no watches. The transaction that reads the queue
    sets the watches.

    Source: FoundationDB documentation, Developer Guide, "Watches".
    """
    (name,) = uuids(1)

    def body(tr: Transaction) -> Sleep:
        keys = wanted.keys(tr)
        left = min(seconds, wanted.seconds_left(tr))
        if left <= 0:
            return Sleep([], 0)
        if wanted.waiters is None or not keys:
            return Sleep([tr.watch(key) for key in keys], left)
        is_first = wanted.waiters.prefix not in _have_waited
        waiter = wanted.waiters.wait(tr, line.waiter, name, is_first=is_first)
        line.waiter = waiter.key  # the next try finds it if this one has committed
        suspects = waiter.neighbours + (keys if waiter.is_sentinel else [])
        watch = tr.watch(waiter.key)  # before the alarms, which a push sets off, too
        alarms = [tr.watch(key) for key in suspects]
        moment = _MOMENT_ALONE if waiter.is_alone else _MOMENT
        return Sleep([watch], left, alarms, moment)

    sleep = run(db, body)
    if wanted.waiters is not None and line.waiter is not None:
        _have_waited.add(wanted.waiters.prefix)
    return sleep


def _leave(db: Database, waiters: Waiters, waiter: bytes, has_found: bool = False) -> None:
    def body(tr: Transaction) -> None:
        tr.options.set_timeout(_LEAVE_TIMEOUT)
        waiters.leave(tr, waiter, has_found=has_found)

    # After an error the key stays behind, as that of a client that was killed.
    with suppress(FdbqueueError, *error_classes()):
        run(db, body)


def _leave_later(db: Database, waiters: Waiters, line: Line, has_found: bool = False) -> None:
    """Leave in another thread."""
    waiter, line.waiter = line.waiter, None
    with suppress(RuntimeError):  # the interpreter exits
        threading.Thread(target=_leave, args=(db, waiters, waiter, has_found)).start()
