"""Operations as steps, driven by a thread here and by an event loop in `event_loop`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar

from fdbqueue.coordination.combiner import Combiner
from fdbqueue.types import Database, Future

__all__ = [
    "Call",
    "Sleep",
    "Steps",
    "Submit",
    "cancel_all",
    "driven",
    "sleep_on",
    "steps_of",
]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Request = TypeVar("_Request")
_Result = TypeVar("_Result")


class Call(Generic[_T]):
    """A call that reads or writes a database. `run()` performs it in the calling thread.

    Args:
        function: The function to call.
        undo: Called with the result if the operation is cancelled before it has the result. A
            cancelled operation with `undo` waits until the call has ended and is undone; without
            `undo` it does not wait.
    """

    __slots__ = ("run", "undo")

    def __init__(
        self, function: Callable[[], _T], undo: Callable[[_T], object] | None = None
    ) -> None:
        self.run = function
        self.undo = undo


class Submit(Generic[_Request, _Result]):
    """A request that shares a transaction with the requests of other threads and tasks.

    Args:
        combiner: The combiner of requests of this kind.
        db: The database.
        request: The request.
        undo: As for `Call`.
    """

    __slots__ = ("combiner", "db", "request", "undo")

    def __init__(
        self,
        combiner: Combiner[_Request, _Result],
        db: Database,
        request: _Request,
        undo: Callable[[_Result], object] | None = None,
    ) -> None:
        self.combiner = combiner
        self.db = db
        self.request = request
        self.undo = undo


class Sleep:
    """A sleep until a watch fires or the time is over. Its result is whether to continue.

    Args:
        watches: The watches; the sleep cancels them at its end.
        seconds: The maximum time to sleep.
    """

    __slots__ = ("seconds", "watches")

    def __init__(self, watches: list[Any], seconds: float) -> None:
        self.watches = watches
        self.seconds = seconds

    def run(self) -> bool:
        """Perform this step in the calling thread."""
        fired = sleep_on(self.watches, self.seconds)
        if fired is not None:
            fired.wait()  # raises the watch's error, if it failed
        return True


def cancel_all(watches: list[Future]) -> None:
    """Cancel the watches that have not fired, because a client has a limited number of watches."""
    for watch in watches:
        if not watch.is_ready():
            watch.cancel()


def sleep_on(watches: list[Future], seconds: float) -> Future | None:
    """Sleep until a watch fires or fails, and return it; return `None` after the timeout.

    Cancel all other watches.
    """
    # Imported late, because a program may have a module of this name, as `recipes/` does.
    from queue import Empty, SimpleQueue

    fired: SimpleQueue[Future] = SimpleQueue()
    for watch in watches:
        watch.on_ready(fired.put)
    try:
        return fired.get(timeout=seconds)
    except Empty:
        return None
    finally:
        cancel_all(watches)


Steps: TypeAlias = Generator[Call[Any] | Submit[Any, Any] | Sleep, Any, _T]
"""An operation: a generator that yields steps, receives their results, and returns a result.

Only the steps take time. Between two steps, an operation neither blocks nor can be cancelled. So it
needs no `try` to keep the result of a step.
"""


def driven(operation: Callable[_P, Steps[_T]]) -> Callable[_P, _T]:
    """Return a function that performs an operation in the calling thread.

    Example:
        >>> @driven
        ... def double(number: int) -> Steps[int]:
        ...     return 2 * (yield Call(lambda: number))
        >>> double(21)
        42
    """

    @functools.wraps(operation)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        steps = operation(*args, **kwargs)
        result: Any = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as end:
                done: _T = end.value
                return done
            if isinstance(step, Submit):
                result = step.combiner(step.db, step.request)
            else:
                result = step.run()

    # Documentation and editors show the type that the caller gets.
    returns: str = operation.__annotations__["return"]
    operation.__annotations__["return"] = returns.removeprefix("Steps[").removesuffix("]")
    return call


def steps_of(function: Callable[_P, _T]) -> Callable[_P, Steps[_T]] | None:
    """Return the operation of a driven function; `None` for another function."""
    return getattr(function, "__wrapped__", None)
