"""The options that `configure` changes: their names, their ranges, and how they are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias, TypedDict

from fdbqueue.operations.failures import MAX_KEPT_ATTEMPTS, MAX_TRACEBACK
from fdbqueue.operations.slots import MAX_SLOTS
from fdbqueue.queue.arguments import (
    kept_options,
    validate_bound,
    validate_flag,
    validate_range,
)
from fdbqueue.types import Keep


class Settings(TypedDict, total=False):
    """The options that `configure` changes, which describes them."""

    max_size: int | None
    max_attempts: int | None
    concurrency: int | None
    agent_concurrency: int | None
    paused: bool
    keep: Keep | None
    keep_seconds: int | None
    keep_number: int | None
    kept_attempts: int
    traceback_bytes: int


_Validate: TypeAlias = Callable[[object], object]

_VALIDATE: dict[str, _Validate] = {
    "max_size": partial(validate_bound, "max_size"),
    "max_attempts": partial(validate_bound, "max_attempts"),
    "concurrency": partial(validate_bound, "concurrency", highest=MAX_SLOTS),
    "agent_concurrency": partial(validate_bound, "agent_concurrency", highest=MAX_SLOTS),
    "paused": partial(validate_flag, "paused"),
    "keep_seconds": partial(validate_bound, "keep_seconds"),
    "keep_number": partial(validate_bound, "keep_number"),
    "kept_attempts": partial(validate_range, "kept_attempts", lowest=1, highest=MAX_KEPT_ATTEMPTS),
    "traceback_bytes": partial(validate_range, "traceback_bytes", lowest=0, highest=MAX_TRACEBACK),
}
"""By the name of each option that can be changed, a function that returns what to store."""


def settings_to_store(settings: Mapping[str, Any], *, has_agents: bool) -> dict[str, Any]:
    """Return the stored options that the arguments of `configure` change.

    Args:
        settings: The arguments.
        has_agents: Whether the queue is a task queue.

    Raises:
        TypeError: There is no such option.
        ValueError: A value is out of its range, or the queue has no such option.

    Example:
        >>> from datetime import timedelta
        >>> settings_to_store({"max_size": 10, "keep": timedelta(days=1)}, has_agents=False)
        {'keep_seconds': 86400, 'keep_number': None, 'max_size': 10}
    """
    changes = dict(settings)
    stored: dict[str, Any] = {}
    if "keep" in changes:
        stored = kept_options(changes.pop("keep"))
        if not stored.keys().isdisjoint(changes):
            raise ValueError("keep stands for keep_seconds and keep_number: give it without them")
    for name, value in changes.items():
        if name not in _VALIDATE:
            raise TypeError(f"there is no option {name!r}: {', '.join(['keep', *_VALIDATE])}")
        if name == "agent_concurrency" and not has_agents:
            if value is None:
                continue
            raise ValueError("agent_concurrency: only a task queue has agents")
        stored[name] = _VALIDATE[name](value)
    return stored
