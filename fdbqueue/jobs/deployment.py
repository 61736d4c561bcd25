"""What the code of an app declares for its queues, and how a deployment stores it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fdbqueue.database.retrying import read
from fdbqueue.jobs.errors import DuplicateQueue
from fdbqueue.options import GroupOptions, QueueLimits
from fdbqueue.queue.base import change_once
from fdbqueue.queue.deployment import Difference, compare, declared_settings, store_settings
from fdbqueue.queue.schedules import declare, differences
from fdbqueue.types import Keep, Transaction

if TYPE_CHECKING:
    from fdbqueue.jobs.app import App


class Deployment:
    """The queues that an app declares, and their schedules."""

    def __init__(self, app: App, keep: Keep | None) -> None:
        self._app = app
        self._keep = keep
        self._declared: dict[str, dict[str, Any]] = {}

    def declare(self, name: str, options: QueueLimits, groups: GroupOptions) -> None:
        """Declare the settings of a queue."""
        settings = declared_settings(options, groups)
        if self._declared.setdefault(name, settings) != settings:
            raise DuplicateQueue(name)

    def store(
        self, names: Iterable[str] = (), *, force: bool = False, check: bool = False
    ) -> list[Difference]:
        """Store what is declared for some queues, or for all, as `App.deploy` does."""
        schedules = self._app.schedules.declared
        chosen = dict.fromkeys(names or [*self._declared, *schedules])
        queues = {
            name: self._app.queue(name)
            for name in chosen
            if name in self._declared or name in schedules
        }

        def body(tr: Transaction) -> list[Difference]:
            found: list[Difference] = []
            for name, queue in queues.items():
                if (settings := self._declared.get(name)) is not None:
                    found += (differing := compare(queue, tr, name, settings, self._keep, force))
                    if not check:
                        store_settings(queue, tr, settings, differing)
                of_queue = schedules.get(name, {}).values()
                for each, stored, declared in differences(queue.schedules, tr, of_queue):
                    found.append(Difference(name, f"schedules.{each}", stored, declared))
                if of_queue and not check:
                    declare(queue.schedules, tr, of_queue, replaces=True)
            return found

        if not queues:
            return []
        db = self._app.db
        return read(db, body) if check else change_once(next(iter(queues.values())), db, body)
