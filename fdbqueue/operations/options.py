"""The options of a queue: what a client asks for, what is stored."""

from __future__ import annotations

from fdbqueue.errors import OptionsMismatch
from fdbqueue.types import Options

__all__ = ["FLEXIBLE", "agreed"]

FLEXIBLE = ("max_size", "max_attempts")
"""The options that who opens a queue can leave to it, or set anew."""


def agreed(given: Options, stored: Options) -> Options:
    """The options that a queue has; raises `OptionsMismatch` if others were given."""
    for option in ("kind", "codec", "priorities", "ageing", *FLEXIBLE):
        ours, theirs = getattr(given, option), getattr(stored, option)
        if ours != theirs and not (option in FLEXIBLE and ours is None):
            raise OptionsMismatch(option, ours, theirs)
    return stored
