"""How tests wait: until a condition holds, not for a length of time.

A length of time is too short on a slow machine and too long on every other one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

MAX_WAIT = 120.0  # seconds, after which a condition counts as one that never holds

_PAUSE = 0.001  # seconds between two looks


def wait_until(condition: Callable[[], object], timeout: float = MAX_WAIT) -> None:
    """Wait until a condition holds. Fail if it does not within `timeout` seconds."""
    for pause in _pauses(condition, timeout):
        time.sleep(pause)


async def until(condition: Callable[[], object], timeout: float = MAX_WAIT) -> None:
    """Do what `wait_until` does while the event loop runs."""
    for pause in _pauses(condition, timeout):
        await asyncio.sleep(pause)


async def run_what_is_ready() -> None:
    """Let the event loop run the callbacks that are ready, and those that these make ready."""
    for _ in range(10):
        await asyncio.sleep(0)


def _pauses(condition: Callable[[], object], timeout: float) -> Iterator[float]:
    """Yield pauses until the condition holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout:g} seconds"
        yield _PAUSE
