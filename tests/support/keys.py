"""The keys of a queue, for tests of what is stored."""

from __future__ import annotations

from typing import Any

from fdbqueue.layout.keys import Layout


def layout_of(queue: Any) -> Layout:
    """Return the keys of a queue."""
    return Layout(queue.subspace)
