"""The doors to a queue: Python, asyncio, `fdbq` and HTTP, which answer a verb alike.

A door has a method for each verb, with the parameters of the library, and returns plain values. A
refusal is a `Refused` with the name of the library's error.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import operator
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

import fdbqueue
from fdbqueue import aio
from fdbqueue.errors import FdbqueueError, QueueFull, WrongState
from fdbqueue.http import create_app
from fdbqueue.layout.values import as_json
from fdbqueue.queue.arguments import json_bytes
from fdbqueue.queue.batches import Batches, batch_as_json, batches_of
from fdbqueue.queue.overview import info_as_json, stats_as_json
from fdbqueue.queue.schedules import schedule_as_json
from tests.support.shell import Inside

Json = Any
DOORS = ("python", "aio", "fdbq", "http")
_OPTIONS = ("max_size", "max_attempts", "concurrency", "keep_number", "keep_seconds", "rate")


def _options_of(found: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a queue in JSON as the library has them."""
    rate = found["rate"] and tuple(found["rate"])
    return {each: found[each] for each in (*_OPTIONS, "paused")} | {"rate": rate}


class Refused(Exception):
    """A door has refused a call, and has changed nothing."""


class Library:
    """The library, blocking or for asyncio: the names and parameters are the same."""

    def __init__(self, module: Any, db: Any, name: str) -> None:
        self.module, self.db, self.name = module, db, name
        self.admin = aio if module is aio else fdbqueue.admin

    def _done(self, answer: Any) -> Any:
        async def awaited() -> Any:
            return await answer

        if inspect.isawaitable(answer):
            answer = asyncio.run(awaited())
        return list(answer) if isinstance(answer, Iterator) else answer

    def _call(self, verb: str, *args: Any, must_exist: bool = True, **options: Any) -> Any:
        kind = self.module.PriorityQueue
        try:
            found = self.module.existing_queue if must_exist else kind.named
            queue = self._done(found(self.db, self.name))
            return self._done(operator.attrgetter(verb)(queue)(self.db, *args, **options))
        except (FdbqueueError, ValueError) as error:
            names = {type(error).__name__} & {"QueueFull", "QueueNotFound", "NoResult"}
            raise Refused(*names or {"ValueError"}) from error

    def push(self, value: Json, **options: Any) -> str:
        if "at" in options:
            options["at"] = datetime.fromisoformat(options["at"])
        return str(self._call("push", value, must_exist=False, **options).id)

    def pop(self, n: int = 1) -> list[Json]:
        return [item.value for item in self._call("pop_many", n)]

    def items(self, state: str, **which: Any) -> list[str]:
        return [info.item.id for info in self._call("items", state=state, **which)]

    def find(self, id: str) -> dict[str, Any] | None:
        info = self._call("get", id)
        return info and {**info_as_json(info), "priority": info.item.priority}

    def change(self, verb: str, id: str, **options: Any) -> bool:
        try:
            if "at" in options:
                options["at"] = datetime.fromisoformat(options["at"])
            return bool(self._call(verb, id, **options))
        except Refused as refused:
            if isinstance(refused.__cause__, (WrongState, QueueFull)):
                return False
            raise

    def change_all(self, verb: str, state: str, **filters: Any) -> int:
        return sum(self._call("change_all", verb, state=state, **filters).values())

    def result(self, id: str) -> Json:
        return self._call("result", id)

    def stats(self) -> dict[str, Any]:
        return stats_as_json(self._call("stats"))

    def counts(self) -> dict[int, int]:
        return dict(self._call("counts"))

    def history(self) -> list[tuple[int, int, int]]:
        return [(each.seconds, each.pushed, each.taken) for each in self._call("history")]

    def configure(self, **options: Any) -> dict[str, Any]:
        self._call("configure", **options)
        stored = self._call("options")
        return {each: getattr(stored, each) for each in (*_OPTIONS, "paused")}

    def clear(self) -> None:
        self._call("clear")

    def rename(self, name: str) -> None:
        self._done(self.admin.rename(self.db, self.name, name))

    def drop(self) -> None:
        self._done(self.admin.drop(self.db, self.name))

    def check(self) -> list[str]:
        queue = self._done(self.module.existing_queue(self.db, self.name))
        return list(self._done(self.admin.check(self.db, queue)).problems)

    def set_group(self, group: str | None, **settings: Any) -> None:
        self._call("set_group", group, **settings)

    def groups(self) -> list[dict[str, Any]]:
        return [json.loads(json_bytes(as_json(each))) for each in self._call("groups")]

    def change_group(self, verb: str, group: str) -> int:
        state = {"state": "dead"} if verb == "retry" else {}
        return sum(self._call("change_all", verb, group=group, **state).values())

    def add_schedule(self, schedule: str, value: Json, **options: Any) -> None:
        self._call("schedules.add", schedule, value, must_exist=False, **options)

    def schedules(self) -> list[dict[str, Any]]:
        return [schedule_as_json(each) for each in self._call("schedules.all")]

    def run_schedule(self, schedule: str) -> str | None:
        id: str | None = self._call("schedules.run_now", schedule)
        return id

    def change_schedule(self, verb: str, schedule: str) -> bool:
        return bool(self._call(f"schedules.{verb}", schedule))

    def batches(self, id: str) -> list[dict[str, Any]]:
        queue = fdbqueue.existing_queue(self.db, self.name)
        return [batch_as_json(each) for each in batches_of(self.db, queue, id)]

    def finish_batch(self, id: str) -> None:
        Batches(fdbqueue.existing_queue(self.db, self.name)).finish(self.db, id)

    def steps(self, id: str) -> list[dict[str, Any]]:
        return [as_json(each) for each in self._call("steps.all", id)]

    def signal(self, signal: str, value: Json, key: str) -> int:
        return int(self._call("steps.signal", signal, value=value, key=key))

    def retry_from(self, id: str, step: str) -> bool:
        try:
            return bool(self._call("steps.retry_from", id, step=step))
        except Refused:
            return False


_FLAGS = {"keep_number": "keep-last", "keep_seconds": "keep-for", "max_attempts": "attempts"}
_COMMANDS = {"remove": "rm"}


class CommandLine:
    """`fdbq`, in this process."""

    def __init__(self, fdbq: Inside, name: str) -> None:
        self.fdbq, self.name = fdbq, name

    def _lines(self, *words: str, queue: bool = True, code: Iterable[int] = (0,)) -> list[Any]:
        """Run a command with `--json`; the name of the queue follows the name of the command."""
        count = 2 if words[0] in ("group", "schedule") else 1
        name = [self.name] if queue else []
        done = self.fdbq(*words[:count], *name, *words[count:], "--json")
        known = {"no queue named": "QueueNotFound", "is full;": "QueueFull", "no room": "QueueFull"}
        names = {name for text, name in known.items() if text in done.stderr}
        names |= {"NoResult"} if done.returncode == 1 and words[0] == "result" else set()
        if names or done.returncode not in code:
            raise Refused(*names or {"ValueError"}, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    @staticmethod
    def _flags(options: dict[str, Any]) -> list[str]:
        words = []
        for name, value in options.items():
            flag = "--" + _FLAGS.get(name, name.removeprefix("max_")).replace("_", "-")
            if name == "rate" and value is not None:
                value = "{}/{}s".format(*value)
            words.append(flag if value is True else f"{flag}={'none' if value is None else value}")
        return words

    def push(self, value: Json, **options: Any) -> str:
        (pushed,) = self._lines("push", json.dumps(value), *self._flags(options))
        return str(pushed["id"])

    def pop(self, n: int = 1) -> list[Json]:
        known = self._lines("stats") and (0, 1)  # 1 stands for an empty queue and an unknown one
        return [each["value"] for each in self._lines("pop", f"-n{n}", code=known)]

    def items(self, state: str, **which: Any) -> list[str]:
        flags = self._flags({"state": state, **which})
        return [each["id"] for each in self._lines("items", *flags)]

    def find(self, id: str) -> dict[str, Any] | None:
        found = self._lines("show", id, code=(0, 1))
        return found[0] if found else None

    def change(self, verb: str, id: str, **options: Any) -> bool:
        if "value" in options:
            options["value"] = json.dumps(options["value"])
        (answer,) = self._lines(_COMMANDS.get(verb, verb), id, *self._flags(options), code=(0, 1))
        return any(value is True for value in answer.values())

    def change_all(self, verb: str, state: str, *, to: Any = (), **filters: Any) -> int:
        flags = self._flags({"state": state, **filters, **dict(to)})
        answers = self._lines(_COMMANDS.get(verb, verb), *flags, code=(0, 1))
        return sum(True in answer.values() for answer in answers)

    def result(self, id: str) -> Json:
        return self._lines("result", id)[0]["result"]

    def stats(self) -> dict[str, Any]:
        (found,) = self._lines("stats")
        assert found.pop("queue") == self.name
        return dict(found)

    def counts(self) -> dict[int, int]:
        return {each["priority"]: each["count"] for each in self._lines("counts")}

    def history(self) -> list[tuple[int, int, int]]:
        lines = self._lines("history")
        return [(each["seconds"], each["pushed"], each["taken"]) for each in lines]

    def configure(self, *, paused: bool | None = None, **options: Any) -> dict[str, Any]:
        if paused is not None:
            self._lines("pause" if paused else "resume")
        (found,) = self._lines("limit", *self._flags(options))
        return _options_of(found)

    def clear(self) -> None:
        self._lines("clear", "--yes")

    def rename(self, name: str) -> None:
        self._lines("rename", name)

    def drop(self) -> None:
        self._lines("drop", "--yes")

    def check(self) -> list[str]:
        (report,) = self._lines("check", code=(0, 1))
        return list(report["problems"])

    def set_group(self, group: str | None, **settings: Any) -> None:
        name = [] if group is None else [group]
        paused = settings.pop("paused", None)
        if paused is not None:
            self._lines("group", "pause" if paused else "resume", *name)
        if settings:
            self._lines("group", "set", *name, *self._flags(settings))

    def groups(self) -> list[dict[str, Any]]:
        return [each for each in self._lines("group", "ls") if each["name"]]  # others are defaults

    def change_group(self, verb: str, group: str) -> int:
        yes = ["--yes"] if verb == "clear" else []
        return len(self._lines("group", verb, group, *yes))

    def add_schedule(self, schedule: str, value: Json, **options: Any) -> None:
        flags = self._flags(options)
        self._lines("schedule", "add", schedule, json.dumps(value), *flags)

    def schedules(self) -> list[dict[str, Any]]:
        lines = self._lines("schedule", "ls")
        return [{k: v for k, v in each.items() if k != "queue"} for each in lines]

    def run_schedule(self, schedule: str) -> str | None:
        answers = self._lines("schedule", "run", schedule, code=(0, 1))
        return answers[0]["id"] if answers else None

    def change_schedule(self, verb: str, schedule: str) -> bool:
        command = _COMMANDS.get(verb, verb)
        return bool(self._lines("schedule", command, schedule, code=(0, 1)))

    def batches(self, id: str) -> list[dict[str, Any]]:
        return self._lines("batch", id, code=(0, 1))

    def finish_batch(self, id: str) -> None:
        self._lines("batch", id, "--close")

    def steps(self, id: str) -> list[dict[str, Any]]:
        return list(self._lines("show", id)[0]["steps"])

    def signal(self, signal: str, value: Json, key: str) -> int:
        (answer,) = self._lines("signal", signal, json.dumps(value), f"--key={key}")
        return int(answer["signalled"])

    def retry_from(self, id: str, step: str) -> bool:
        (answer,) = self._lines("retry", id, f"--step={step}", code=(0, 1))
        return bool(answer["retried"])


class Http:
    """The routes below `/v1`."""

    def __init__(self, client: TestClient, name: str) -> None:
        self.client, self.path = client, f"/v1/queues/{quote(name, safe='')}"

    def _send(
        self, method: str, path: str = "", body: Any = None, refusals: Any = (), **query: Any
    ) -> Any:
        """Send a request; return the content of the answer, or `None` for some refusals."""
        answer = self.client.request(method, self.path + path, json=body, params=query)
        if not answer.is_success:
            kind = answer.json()["type"].removeprefix("urn:fdbqueue:")
            if answer.status_code in refusals and kind != "QueueNotFound":
                return None
            known = kind in ("QueueFull", "QueueNotFound", "NoResult")
            assert known or answer.status_code == 422, answer.text
            raise Refused(kind if known else "ValueError")
        return answer.json() if answer.content else {}

    def push(self, value: Json, **options: Any) -> str:
        return str(self._send("POST", "/push", {"item": value, **options})["id"])

    def pop(self, n: int = 1) -> list[Json]:
        return [each["item"] for each in self._send("POST", "/pop", {"n": n})["items"]]

    def items(self, state: str, **which: Any) -> list[str]:
        found = self._send("GET", "/items", state=state, **which)
        return [each["id"] for each in found["items"]]

    def find(self, id: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self._send("GET", f"/items/{id}", refusals=(404,))
        return found

    def change(self, verb: str, id: str, **options: Any) -> bool:
        path, refusals = f"/items/{id}", (404, 409, 429)
        if verb == "remove":
            return self._send("DELETE", path, refusals=refusals) is not None
        if verb == "update":
            options = {"item" if name == "value" else name: options[name] for name in options}
            return self._send("PATCH", path, options, refusals=refusals) is not None
        return self._send("POST", f"{path}/{verb}", options or None, refusals) is not None

    def change_all(self, verb: str, state: str, **filters: Any) -> int:
        body = {"change": verb, "state": state, **filters}
        return int(self._send("POST", "/change", body)["changed"])

    def result(self, id: str) -> Json:
        return self._send("GET", f"/items/{id}/result")["result"]

    def stats(self) -> dict[str, Any]:
        return dict(self._send("GET", "/stats"))

    def counts(self) -> dict[int, int]:
        by_priority = self._send("GET", "/stats")["by_priority"]
        return {int(priority): count for priority, count in by_priority.items()}

    def history(self) -> list[tuple[int, int, int]]:
        windows = self._send("GET", "/history")["windows"]
        return [(each["seconds"], each["pushed"], each["taken"]) for each in windows]

    def configure(self, **options: Any) -> dict[str, Any]:
        found = self._send("PATCH", "", options)["options"]
        return _options_of(found)

    def clear(self) -> None:
        self._send("POST", "/clear")

    def rename(self, name: str) -> None:
        self._send("POST", "/rename", {"name": name})

    def drop(self) -> None:
        self._send("DELETE")

    def check(self) -> list[str]:
        return list(self._send("POST", "/check", {})["problems"])

    def set_group(self, group: str | None, **settings: Any) -> None:
        names = {None: "/groups", "": "/ungrouped"}
        path = names.get(group) or f"/groups/{quote(group or '', safe='')}"
        self._send("PATCH", path, settings)

    def groups(self) -> list[dict[str, Any]]:
        return list(self._send("GET", "/groups")["groups"])

    def change_group(self, verb: str, group: str) -> int:
        path = f"/groups/{quote(group, safe='')}/{verb}"
        return int(self._send("POST", path)["changed"])

    def add_schedule(self, schedule: str, value: Json, **options: Any) -> None:
        self._send("PUT", f"/schedules/{quote(schedule, safe='')}", {"item": value, **options})

    def schedules(self) -> list[dict[str, Any]]:
        return list(self._send("GET", "/schedules")["schedules"])

    def run_schedule(self, schedule: str) -> str | None:
        path = f"/schedules/{quote(schedule, safe='')}/run"
        answer = self._send("POST", path, refusals=(404, 409))
        return None if answer is None else str(answer["id"])

    def change_schedule(self, verb: str, schedule: str) -> bool:
        path = f"/schedules/{quote(schedule, safe='')}"
        method, path = ("DELETE", path) if verb == "remove" else ("POST", f"{path}/{verb}")
        return self._send(method, path, refusals=(404,)) is not None

    def batches(self, id: str) -> list[dict[str, Any]]:
        return list(self._send("GET", f"/items/{id}/batches")["batches"])

    def finish_batch(self, id: str) -> None:
        self._send("POST", f"/items/{id}/close-batch")

    def steps(self, id: str) -> list[dict[str, Any]]:
        return list(self._send("GET", f"/items/{id}/steps")["steps"])

    def signal(self, signal: str, value: Json, key: str) -> int:
        body = {"name": signal, "value": value, "key": key}
        return int(self._send("POST", "/signals", body)["signalled"])

    def retry_from(self, id: str, step: str) -> bool:
        body = {"step": step}
        return self._send("POST", f"/items/{id}/retry", body, (404, 409, 422)) is not None


Door: TypeAlias = Library | CommandLine | Http
"""A door to the queue of a name, which need not exist."""


def open_door(kind: str, db: Any, name: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> Door:
    """Return a door of a kind."""
    if kind == "fdbq":
        return CommandLine(Inside(path, db, name, monkeypatch), name)
    if kind == "http":
        return Http(TestClient(create_app(db), "http://127.0.0.1"), name)
    return Library(aio if kind == "aio" else fdbqueue, db, name)
