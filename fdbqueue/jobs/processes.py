"""How the processes of an app find it: by the names of its module and variable, never by pickle."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdbqueue.database.binding import database_name
from fdbqueue.jobs.errors import AppNotFound
from fdbqueue.worker.processes import exit_after_work

if TYPE_CHECKING:
    from fdbqueue.jobs.app import App

_PROGRAM = "from fdbqueue.jobs.processes import main; main()"


def importable(module: str) -> str:
    """Return the name under which other programs import a module."""
    if not _is_main(module):
        return module
    main = sys.modules.get(module)
    spec = getattr(main, "__spec__", None)  # of `python -m MODULE`
    file = getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name)
    return "__main__" if file is None else Path(file).stem


def _is_main(module: str) -> bool:
    return module in ("__main__", "__mp_main__")  # the second one in a spawned process


def is_same(one: Callable[..., object], two: Callable[..., object]) -> bool:
    """Return whether both functions are the same one of a file that runs and is also imported."""
    names = [(importable(each.__module__), each.__qualname__) for each in (one, two)]
    return (
        names[0] == names[1]
        and _is_main(one.__module__) != _is_main(two.__module__)
        and _file_of(one) == _file_of(two)
    )


def _file_of(function: Callable[..., object]) -> str:
    return os.path.realpath(getattr(sys.modules.get(function.__module__), "__file__", None) or "")


def shared_database(app: App) -> str:
    """Return the name of an app's database; raise `AppNotFound` if other processes lack it."""
    database = database_name(app.db)
    if database == "memory:":
        raise AppNotFound("a database in memory belongs to one process")
    return database


def command_of(app: App, queues: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """Return the command of a process that calls `app.work(*queues, **options)`."""
    database = shared_database(app)
    module, variable = _place_of(app)
    given = {
        "path": sys.path,
        "modules": [importable(job.function.__module__) for job in app.jobs.values()],
        "app": [module, variable],
        "database": database,
        "queues": queues,
        "options": options,
    }
    return [sys.executable, "-c", _PROGRAM, json.dumps(given)]


def main() -> None:
    """Work for the app in the first argument of this process, from `command_of`."""
    given = json.loads(sys.argv[1])
    sys.path[:] = given["path"]
    for module in given["modules"]:
        import_module(module)
    module, variable = given["app"]
    app: App = getattr(import_module(module), variable)
    app.bind(given["database"])
    app.work(*given["queues"], **given["options"])
    exit_after_work(0)


def _place_of(app: App) -> tuple[str, str]:
    """Return the names of an importable module, and of its variable that is the app."""
    for name, module in list(sys.modules.items()):
        for variable, value in list(getattr(module, "__dict__", {}).items()):
            if value is app and importable(name) != "__main__":
                return importable(name), variable
    raise AppNotFound("the app is not a variable of a module that can be imported")
