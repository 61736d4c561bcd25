"""Operations without I/O: generators, driven by a thread or an event loop."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeAlias, TypeVar

from fdbqueue.coordination.combiner import Combiner
from fdbqueue.database.binding import is_database
from fdbqueue.errors import error_classes
from fdbqueue.types import Database, Future

if TYPE_CHECKING:
    from queue import SimpleQueue

# Seconds after which a sleeping main thread runs the handlers of signals. A signal interrupts its
# sleep at once, except one that arrives in the microseconds in which the thread falls asleep.
_SIGNALS = 1.0

# Errors of a watch after which it is worth looking and watching again: a server lags behind, or is
# being replaced.
_PASSING = frozenset({1007, 1009, 1037, 1039})

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Request = TypeVar("_Request")
_Result = TypeVar("_Result")


@dataclass(slots=True, eq=False)
class Call(Generic[_T]):
    """A call that reads or writes a database.

    After a cancellation, the operation waits for its end and calls `undo(result)`.
    """

    run: Callable[[], _T]
    undo: Callable[[_T], object] | None = None

    def alone(self) -> SansIO[_T]:
        """Return an operation with only this call."""
        result: _T = yield self
        return result


@dataclass(slots=True, eq=False)
class Submit(Generic[_Request, _Result]):
    """A request that shares a transaction; `undo` is as for `Call`."""

    combiner: Combiner[_Request, _Result]
    db: Database
    request: _Request
    undo: Callable[[_Result], object] | None = None


@dataclass(slots=True, eq=False)
class Sleep:
    """A sleep until a watch fires or the time is over. Its result is whether to continue.

    The end of the sleep cancels its watches. An alarm is a watch that ends it `moment` seconds
    after firing. `ended_by` is the watch or alarm that ended it.
    """

    watches: list[Any]
    seconds: float
    alarms: Sequence[Future] = ()
    moment: float = 0.0
    ended_by: Any = None

    @property
    def has_fired(self) -> bool:
        """True if a watch ended the sleep."""
        return any(self.ended_by is watch for watch in self.watches)

    def cancel(self) -> None:
        """Cancel the watches and alarms."""
        _cancel_all(self.watches)
        _cancel_all(self.alarms)

    def run(self, stop: Stop) -> bool:
        """Sleep in the calling thread."""
        self.ended_by = sleep_on(self.watches, self.seconds, stop, self.alarms, self.moment)
        self.raise_error()
        return not stop.is_set

    def raise_error(self) -> None:
        """Raise the ending watch's error, unless it is temporary."""
        if self.ended_by is not None:
            try:
                self.ended_by.wait()
            except error_classes() as error:
                if error.code not in _PASSING:
                    raise


class Stop:
    """A request to end sleeps, for good. A sleep treats it as a watch.

    `set` takes no lock: any thread and any signal handler may call it.

    >>> stop = Stop()
    >>> stop.set()
    >>> sleep_on([], 60, stop) is None
    True
    """

    def __init__(self) -> None:
        self.is_set = False
        self._callbacks: dict[Callable[[Stop], object], bool] = {}  # called in this order

    def set(self, _: object = None) -> None:
        """End all sleeps, also later ones."""
        self.is_set = True
        for callback in list(self._callbacks):
            if self._callbacks.pop(callback, False):
                callback(self)

    def is_ready(self) -> bool:
        """Return `is_set`."""
        return self.is_set

    def on_ready(self, callback: Callable[[Stop], object]) -> None:
        """Call `callback(stop)` once set."""
        # `set` sets the flag and then reads the callbacks; this adds one and then reads the flag.
        # So at least one of them sees both.
        self._callbacks[callback] = True
        if self.is_set:
            self.set()

    def discard(self, callback: Callable[[Stop], object]) -> None:
        """Forget a callback."""
        self._callbacks.pop(callback, False)

    def wait(self) -> None:
        """Sleep until set."""
        sleep_on([], threading.TIMEOUT_MAX, self)

    block_until_ready = wait

    def cancel(self) -> None:
        """Do nothing: a sleep's end does not end the request."""


_NEVER = Stop()


def _cancel_all(watches: Sequence[Future]) -> None:
    for watch in watches:
        if not watch.is_ready():
            watch.cancel()


def sleep_on(
    watches: list[Future],
    seconds: float,
    stop: Stop = _NEVER,
    alarms: Sequence[Future] = (),
    moment: float = 0.0,
) -> Future | None:
    """Sleep until a watch fires or fails, or a moment after an alarm; return it.

    Return `None` after the timeout, or once `stop` is set. Cancel all other watches.
    """
    # Imported late, because a program may have a module of this name, as `recipes/` does.
    from queue import Empty, SimpleQueue

    deadline = time.monotonic() + seconds
    is_main = threading.current_thread() is threading.main_thread()
    fired: SimpleQueue[Future] = SimpleQueue()
    alarm: Future | None = None
    try:
        for watch in chain([stop], watches, alarms):
            watch.on_ready(fired.put)
        while (left := deadline - time.monotonic()) > 0:
            with suppress(Empty):
                first = fired.get(timeout=min(left, _SIGNALS) if is_main else left)
                if first is stop:
                    return None
                if not any(first is other for other in alarms):
                    return first
                if alarm is None:
                    alarm, deadline = first, min(deadline, time.monotonic() + moment)
        return alarm
    finally:
        stop.discard(fired.put)
        _cancel_all(watches)
        _cancel_all(alarms)


SansIO: TypeAlias = Generator[Call[Any] | Submit[Any, Any] | Sleep, Any, _T]
"""A generator that yields calls, requests and sleeps, and receives their results.

In between, it neither blocks nor can be cancelled.
"""


def drive(operation: SansIO[_T], stop: Stop = _NEVER) -> _T:
    """Perform an operation in the calling thread.

    Once `stop` is set, it does not sleep or look again.
    """
    result: Any = None
    try:
        while True:
            try:
                yielded = operation.send(result)
            except StopIteration as end:
                done: _T = end.value
                return done
            if isinstance(yielded, Submit):
                result = yielded.combiner(yielded.db, yielded.request)
            elif isinstance(yielded, Call):
                result = yielded.run()
            else:
                result = yielded.run(stop)
    finally:
        operation.close()  # an operation that waits leaves its line


def check_first(args: Sequence[Any]) -> None:
    """Raise `TypeError` unless the first argument is a database or a transaction."""
    for given in args[:1]:
        is_database(given)


def driven(operation: Callable[_P, SansIO[_T]]) -> Callable[_P, _T]:
    """Make a method that performs an operation in the calling thread."""

    @functools.wraps(operation)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return drive(operation(*args, **kwargs))
        except Exception:
            check_first(args[1:])
            raise

    # Documentation and editors show the type that the caller gets.
    returns: str = operation.__annotations__["return"]
    operation.__annotations__["return"] = returns.removeprefix("SansIO[").removesuffix("]")
    call.__dict__["operation"] = operation
    return call


def sans_io_of(function: Callable[_P, _T]) -> Callable[_P, SansIO[_T]] | None:
    """Return the operation of a driven function."""
    return getattr(function, "operation", None)
