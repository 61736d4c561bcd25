"""The simulator's time, randomness and current process, through any workload that is alive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import _fdbsim

_contexts: list[int] = []
_last = 0.0


def know(context: int) -> None:
    """Note the context of a new workload."""
    _contexts.append(context)


def forget(context: int) -> None:
    """Note that a workload ends. Its context must not be used any more."""
    now()
    _contexts.remove(context)


def now() -> float:
    """Return the simulated time in seconds; after the last workload, the time of its end."""
    global _last
    if _contexts:
        _last = _fdbsim.now(_contexts[-1])
    return _last


def random_bytes(size: int) -> bytes:
    """Return bytes that depend on the seed alone."""
    words = (_fdbsim.random32(_contexts[-1]).to_bytes(4, "big") for _ in range(-(-size // 4)))
    return b"".join(words)[:size]


@contextmanager
def as_process(process: int) -> Iterator[None]:
    """Let the simulator take what happens within the block for acts of a simulated process."""
    if not _contexts:
        yield
        return
    before = _fdbsim.process(_contexts[-1])
    _fdbsim.set_process(_contexts[-1], process)
    try:
        yield
    finally:
        if _contexts:
            _fdbsim.set_process(_contexts[-1], before)
