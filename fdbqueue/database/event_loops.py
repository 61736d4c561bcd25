"""A warning for coroutines whose event loop waits for a transaction."""

from __future__ import annotations

import sys
import warnings
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE
from types import FrameType
from typing import Any

_PASSED = ("fdbqueue", "cli", "contextlib")
_IS_COROUTINE = CO_COROUTINE | CO_ASYNC_GENERATOR


def warn_in_event_loop() -> None:
    """Warn if this thread runs an event loop, once for each place that calls the library.

    >>> warn_in_event_loop()
    """
    asyncio: Any = sys.modules.get("asyncio")  # most programs do not import it
    running = getattr(asyncio, "_get_running_loop", None)
    if running is not None and running() is not None:
        _warn()


def _warn() -> None:
    """Warn of the innermost call from outside of the library, if a coroutine or callback made it.

    Code in a cell of a notebook also runs in an event loop, but is not a coroutine.
    """
    frame: FrameType | None = sys._getframe(2)
    level, place = 3, None
    while frame is not None:
        root = frame.f_globals.get("__name__", "").partition(".")[0]
        is_own, is_loop = root in _PASSED, root == "asyncio"
        is_coroutine = bool(frame.f_code.co_flags & _IS_COROUTINE)
        if place is None and ((is_own and is_coroutine) or is_loop):
            return  # the library does so on purpose
        if place is None and not is_own:
            place = level
        if place is not None and (is_coroutine or is_loop):
            warnings.warn(
                "a coroutine makes a blocking call, which holds up its event loop; use "
                "fdbqueue.aio, or await aio.run(function, ...)",
                RuntimeWarning,
                stacklevel=place,
            )
            return
        if place is not None and frame.f_code.co_name == "<module>":
            return
        frame, level = frame.f_back, level + 1
