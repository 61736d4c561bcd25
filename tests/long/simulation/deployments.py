"""Deployments of several versions of an app, and changes by hand, with faults and kills."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue.jobs import App
from fdbqueue.queue.base import change_once
from fdbqueue.queue.deployment import Deployment
from tests.long.simulation.log import Entry, Log
from tests.long.simulation.simulated import Simulated

MET = {"changed", "kept", "forced", "by hand"}
"""What has to happen in some of the seeds."""

_QUEUES = ("deployed", "deployed too")
_SETTINGS = ("max_size", "concurrency", "groups.weight")


class DeploymentSimulation(Simulated):
    """Clients that deploy two queues, and others that change them by hand."""

    def __init__(self, db: Any, space: Subspace, seed: int) -> None:
        super().__init__(db, space, seed)
        self.events = Counter[str]()
        self._log = Log(space)
        self._ids = count()
        self._stored: dict[str, dict[str, Any]] = {name: {} for name in _QUEUES}
        self._deployed: dict[str, dict[str, Any]] = {name: {} for name in _QUEUES}
        self._drop()

    def run(self) -> list[str]:
        """Run the clients, and replay the log; return what must not be."""
        store = Deployment.store_settings

        def noted(self_: Deployment, tr: Any, name: str, queue: Any) -> Any:
            found = store(self_, tr, name, queue)
            told = sorted([each.setting, each.stored, each.reason is not None] for each in found)
            to, force = self_.settings[name], self_.force
            self._log.note(tr, "deployed", queue=name, to=to, force=force, told=told)
            return found

        with self.patched(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(Deployment, "store_settings", noted)
            self.scheduler.run([self._body() for _ in range(self.kills + 3)])
        self.db.deliver_late(1.0)
        entries = self._log.read(self._raw)
        calls = Counter(entry.facts["call"] for entry in entries if entry.verb == "called")
        problems = [f"{call} took effect twice" for call, n in calls.items() if n > 1]
        for entry in entries:
            problems += getattr(self, f"_replay_{entry.verb}")(entry)
        for name in {*_QUEUES} & {*fdbqueue.admin.queue_names(self._raw)}:
            queue: Any = fdbqueue.existing_queue(self._raw, name)
            options, groups = queue.options(self._raw), queue.group_settings(self._raw)
            found = options.max_size, options.concurrency, groups.get("weight")
            wanted = tuple(map(self._stored[name].get, _SETTINGS))
            if found != wanted:
                problems.append(f"{name} has {found} instead of {wanted}")
        self._drop()
        return problems

    def _drop(self) -> None:
        for name in {*_QUEUES} & {*fdbqueue.admin.queue_names(self._raw)}:
            fdbqueue.admin.drop(self._raw, name)

    def _replay_called(self, _: Entry) -> list[str]:
        return []

    def _replay_set(self, entry: Entry) -> list[str]:
        self.events["by hand"] += 1
        self._stored[entry.facts["queue"]][entry.facts["setting"]] = entry.facts["to"]
        return []

    def _replay_deployed(self, entry: Entry) -> list[str]:
        name, to, force = (entry.facts[each] for each in ("queue", "to", "force"))
        stored, before, told = self._stored[name], self._deployed[name], list[Any]()
        for setting in {**before, **to}:
            value = stored.get(setting)
            if value != to.get(setting):
                by_hand = value != before.get(setting)
                told.append([setting, value, by_hand and not force])
                self.events["changed" if not by_hand else "forced" if force else "kept"] += 1
                if force or not by_hand:
                    stored[setting] = to.get(setting)
        self._deployed[name] = to
        return [] if sorted(told) == entry.facts["told"] else [f"{entry}: instead of {told}"]

    def _body(self) -> Callable[[], None]:
        def body() -> None:
            for _ in range(8):
                try:
                    self._set() if self.random.random() < 0.5 else self._deploy()
                except fdbqueue.error_classes() as error:
                    self.scheduler.note(f"failed: {error.code}")

        return body

    def _set(self) -> None:
        name, setting, to = (self.random.choice(each) for each in (_QUEUES, _SETTINGS, (1, 2, 3)))
        queue, call = fdbqueue.PriorityQueue.named(self.db, name), next(self._ids)

        def change(tr: Any) -> None:
            if setting.startswith("groups."):
                queue.set_group(tr, None, weight=float(to))
            else:
                options: Any = {setting: to}
                queue.configure(tr, **options)
            self._log.note(tr, "called", call=call)
            self._log.note(tr, "set", queue=name, setting=setting, to=to)

        change_once(queue, self.db, change)

    def _deploy(self) -> None:
        app, names = App(self.db, keep=None), self.random.sample(_QUEUES, 2)
        for name in names:
            options: Any = {
                each: self.random.choice([None, 1, 2, 3])
                for each in ("max_size", "concurrency")
                if self.random.random() < 0.7
            }
            groups: Any = {"weight": self.random.choice([None, 1.0, 2.0])}
            app.queue(name, groups=groups, **options)
        app.deploy(force=self.random.random() < 0.2)
