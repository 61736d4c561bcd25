"""The tasks that the modules of this process declare. Nothing is imported by a stored name."""

from __future__ import annotations

import sys
from typing import Any, TypeGuard

from fdbqueue.contrib.django.api import Task


def declared_task(path: str) -> Task[..., Any] | None:
    """Return the task that a module which is imported has under this path, or `None`.

    A name in the database chooses only among such tasks: who can write to the database can call
    each of them with any arguments, but can import no module and call no other function.

    Args:
        path: The path, `module.name`.
    """
    module, _, name = path.rpartition(".")
    found = _names(sys.modules.get(module)).get(name)
    return found if _is_task(found) and found.module_path == path else None


def declared_tasks() -> dict[str, Task[..., Any]]:
    """Return the tasks of all modules that are imported, by their paths."""
    modules = [*sys.modules.values()]
    values = [value for module in modules for value in [*_names(module).values()]]
    paths = {value.module_path for value in values if _is_task(value)}
    found = {path: declared_task(path) for path in sorted(paths)}
    return {path: task for path, task in found.items() if task is not None}


def _names(module: object) -> dict[str, Any]:
    # An entry of a module that must not be imported is `None`.
    return getattr(module, "__dict__", {})


def _is_task(value: object) -> TypeGuard[Task[..., Any]]:
    # By its type: `isinstance` would evaluate Django's lazy objects.
    return issubclass(type(value), Task)
