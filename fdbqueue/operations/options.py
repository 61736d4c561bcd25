"""Agreement between the options a client asks for and the stored ones."""

from __future__ import annotations

from fdbqueue.errors import OptionsMismatch
from fdbqueue.types import Options

__all__ = ["FLEXIBLE", "reconcile_options"]

FLEXIBLE = ("max_size", "max_attempts")
"""Options that a client may omit when it opens a queue, and that can be changed later."""


def reconcile_options(given: Options, stored: Options) -> Options:
    """Return the options of a queue; raise `OptionsMismatch` if the given ones differ."""
    for option in ("kind", "codec", "priorities", "ageing", *FLEXIBLE):
        ours, theirs = getattr(given, option), getattr(stored, option)
        if ours != theirs and not (option in FLEXIBLE and ours is None):
            raise OptionsMismatch(option, ours, theirs)
    return stored
