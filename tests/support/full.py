"""Pushes that may find no room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fdbqueue.errors import QueueFull


def unless_full(push: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return what a push returns; `None` if the queue or a group is full."""
    try:
        return push(*args, **options)
    except QueueFull:
        return None
