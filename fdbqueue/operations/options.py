"""The comparison of a client's options of a queue with the stored ones."""

from __future__ import annotations

from fdbqueue.errors import OptionsMismatch
from fdbqueue.types import Options

__all__ = ["FLEXIBLE", "reconcile_options"]

FLEXIBLE = ("max_size", "max_attempts")
"""Options that a client may omit when it opens a queue, and may change later."""


def reconcile_options(given: Options, stored: Options) -> Options:
    """Return the stored options; raise `OptionsMismatch` if the given ones differ."""
    for option in ("kind", "codec", "priorities", "ageing", *FLEXIBLE):
        wanted, actual = getattr(given, option), getattr(stored, option)
        if wanted != actual and not (option in FLEXIBLE and wanted is None):
            raise OptionsMismatch(option, wanted, actual)
    return stored
