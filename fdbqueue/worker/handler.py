"""Handlers of workers: functions or coroutine functions, inside or outside of a transaction."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent import futures
from typing import Any

_LOOK = 1.0  # seconds from one look at whether the loop still runs to the next


class Handler:
    """A function that several threads call, once per job.

    A function whose first parameter is named `tr` is the body of a transaction. Coroutines of all
    jobs run in `loop`, or else in one event loop of the handler, which lives until `close`.

    >>> handler = Handler(lambda item: item + 1)
    >>> handler.in_transaction, handler(1)
    (False, 2)
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise TypeError(f"a handler must be a function, not {function!r}")
        self._function = function
        self._guard = threading.Lock()
        self._own_loop: _EventLoop | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the program that awaits the worker, if one does."""
        try:
            signature = inspect.signature(function)
        except ValueError:  # some functions that are not written in Python have no signature
            self.in_transaction = False
            return
        self.in_transaction = next(iter(signature.parameters), None) == "tr"
        if self.in_transaction and inspect.iscoroutinefunction(function):
            raise TypeError("a handler that takes a transaction must be a plain function")
        arguments = ("tr", "item") if self.in_transaction else ("item",)
        try:
            signature.bind(*arguments)
        except TypeError as error:
            called = f"({', '.join(arguments)})"
            raise TypeError(
                f"a handler is called as {called}, which {function!r} does not accept: {error}"
            ) from error

    def __call__(self, *arguments: Any) -> Any:
        """Call the function, await its result if necessary, and return it; raise its exception."""
        result = self._function(*arguments)
        if inspect.isgenerator(result) or inspect.isasyncgen(result):
            raise TypeError("the handler returned a generator, whose code has not run")
        if not inspect.isawaitable(result):
            return result
        if self.in_transaction:
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError("a handler that takes a transaction must be a plain function")
        return self._awaited(result)

    def _awaited(self, awaitable: Awaitable[Any]) -> Any:
        async def settled() -> tuple[Any, BaseException | None]:
            # An exit or interrupt would end the loop, and with it all other running coroutines.
            try:
                return await awaitable, None
            except (SystemExit, KeyboardInterrupt) as error:
                return None, error

        loop = self.loop or self._begin_loop()
        future = asyncio.run_coroutine_threadsafe(settled(), loop)
        while not futures.wait([future], _LOOK).done:
            if self.is_orphan:
                raise RuntimeError("the event loop was closed while a handler was awaited in it")
        result, error = future.result()
        if error is not None:
            raise error
        return result

    @property
    def is_orphan(self) -> bool:
        """Tell whether the program's event loop, which awaited the worker, is closed."""
        return self.loop is not None and self.loop.is_closed()

    def _begin_loop(self) -> asyncio.AbstractEventLoop:
        with self._guard:
            if self._own_loop is None:
                self._own_loop = _EventLoop()
            return self._own_loop.loop

    def close(self) -> None:
        """Stop the event loop, if there is one. The next call may start another one."""
        with self._guard:
            if self._own_loop is not None:
                self._own_loop.close()
                self._own_loop = None


class _EventLoop:
    """An event loop in its own thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fdbqueue-handlers", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_closed.is_set():  # a handler may have stopped the loop
            self.loop.run_forever()

    def close(self) -> None:
        """Stop the loop and its thread."""
        self._is_closed.set()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
