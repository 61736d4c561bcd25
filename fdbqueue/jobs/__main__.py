"""The program of a process that works for an app: its argument is that of `command_of`."""

from __future__ import annotations

import json
import sys
from importlib import import_module

from fdbqueue.jobs.app import App
from fdbqueue.worker.processes import exit_after_work


def main() -> None:
    """Work for the app that the first argument of this process names."""
    given = json.loads(sys.argv[1])
    sys.path[:] = given["path"]
    for module in given["modules"]:
        import_module(module)
    module, variable = given["app"]
    app: App = getattr(import_module(module), variable)
    app.bind(given["database"])
    app.work(*given["queues"], **given["options"])
    exit_after_work(0)


if __name__ == "__main__":
    main()
