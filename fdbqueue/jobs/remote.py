"""Apps of other machines: pushes and handles over HTTP, to a server that has the database."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cache
from importlib import import_module
from time import sleep
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import uuid4

import msgspec

from fdbqueue.database.clock import Since, retry_delay
from fdbqueue.errors import FdbqueueError, NoResult, QueueNotFound, restored
from fdbqueue.jobs.errors import AppIsRemote, ServerRefused, ServerUnavailable
from fdbqueue.queue.arguments import kept_options, validate_result, validate_seconds
from fdbqueue.queue.batches import decode_alert
from fdbqueue.types import ENDED, Duration, Item, ItemInfo, Keep, State

_ATTEMPT = 10.0  # seconds for each step of an attempt: connecting, sending and each read
_LONGEST_WAIT = 50.0  # seconds of one request, less than the time-outs of common proxies
_FIRST_PAUSE, _LAST_PAUSE = 0.1, 5.0  # seconds between attempts
_LONGEST = 3600  # seconds for which a call is repeated, much less than a server remembers a key
_MISSING = (
    "an app that pushes to a server needs httpx: run pip install '.[client]' in a clone of fdbqueue"
)
_REPEATED = (500, 502, 503, 504)
_MEMBERS = frozenset({"type", "title", "status", "detail", "request_id"})
"""The members of a problem that are not fields of its error."""


class _NotChanged(ServerRefused):
    """The queue has no such item, or it is not in the state that this needs."""


class Server:
    """A server to which an app pushes, instead of a database.

    A changing request is repeated with the same idempotency key while the server cannot be reached
    or answers that it failed, and so takes effect once. The arguments are as for `App`.
    """

    def __init__(
        self, url: str, token: str | None, repeat_for: Duration, keep: Keep | None
    ) -> None:
        if not urlsplit(url).hostname:
            raise ValueError(f"a server is like https://queues.example:8080, not {url!r}")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise ValueError("a token is printable ASCII")
        try:
            self._httpx: Any = import_module("httpx")
        except ImportError as error:
            raise ImportError(_MISSING) from error
        self.url = url.rstrip("/")
        seconds, number = kept_options(keep).values()
        age = seconds and f"{seconds}s"
        self.keep = [age, number] if age and number else age or number
        self._seconds = validate_seconds("repeat_for", repeat_for, below=_LONGEST + 1)
        options = {
            "headers": {} if token is None else {"Authorization": f"Bearer {token}"},
            "limits": self._httpx.Limits(max_connections=None, max_keepalive_connections=20),
        }

        @cache
        def client(process: int) -> Any:
            """Return the client of a process: a fork shares sockets."""
            return self._httpx.Client(**options)

        self._client = client

    def call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, wait: float = 0
    ) -> Any:
        """Send a request until it is answered; return the content, or raise the error."""
        httpx, request = self._httpx, dict[str, Any](timeout=_ATTEMPT + wait)
        if method != "GET":
            headers = {"Idempotency-Key": uuid4().hex, "Content-Type": "application/json"}
            content = None if body is None else json.dumps(body, default=_as_json).encode()
            request |= {"headers": headers, "content": content}
        url = f"{self.url}/v1{path}" + (f"?wait={wait}" if wait else "")
        began, attempts, is_unknown = Since(), 0, False
        while True:
            try:
                answer = self._client(os.getpid()).request(method, url, **request)
                if answer.status_code not in _REPEATED:
                    return self._content(answer)
                reason, is_sent = f"it answered {answer.status_code}", True
            except httpx.RequestError as error:
                reason = str(error) or type(error).__name__
                is_sent = not isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
            attempts, is_unknown = attempts + 1, is_unknown or (is_sent and method != "GET")
            pause = retry_delay(attempts, first=_FIRST_PAUSE, longest=_LAST_PAUSE)
            if began.seconds() + pause > self._seconds:
                raise ServerUnavailable(self.url, reason, self._seconds, is_unknown)
            sleep(pause)

    def _content(self, answer: Any) -> Any:
        """Return the content of an answer, or raise the error that the database would raise."""
        status = answer.status_code
        try:
            content: Any = answer.json() if answer.content else {}
            if answer.is_success:
                return content
            detail, name = content["detail"], content["type"].removeprefix("urn:fdbqueue:")
        except (KeyError, TypeError, ValueError):
            raise ServerRefused(self.url, status, "this is no server of fdbqueue") from None
        if (kind := _class_of(name)) is not None:
            fields = {each: content[each] for each in content.keys() - _MEMBERS}
            raise restored(kind, (detail,), fields)
        if status == 422:
            raise ValueError(detail)
        refused = _NotChanged if status in (404, 409) else ServerRefused
        raise refused(self.url, status, detail)


def _class_of(name: str) -> type[FdbqueueError] | None:
    kinds = [FdbqueueError]
    for kind in kinds:  # which grows
        kinds += kind.__subclasses__()
    return next((kind for kind in kinds if kind.__name__ == name), None)


def _as_json(value: datetime | timedelta) -> float | str:
    return value.total_seconds() if isinstance(value, timedelta) else value.isoformat()


class RemoteQueue:
    """A queue of a server, with the methods of `PriorityQueue` that jobs and handles call.

    `tr` is the server: a transaction cannot reach it.
    """

    def __init__(self, server: Server, name: str) -> None:
        self._server = server
        self._path = f"/queues/{quote(name, safe='')}"
        self.steps = self

    def _call(self, tr: object, method: str, path: str, *body: Any, wait: float = 0) -> Any:
        if tr is not self._server:
            raise AppIsRemote(self._server.url)
        return self._server.call(method, self._path + path, *body, wait=wait)

    def _item(
        self, tr: object, method: str, id: str, rest: str = "", *body: Any, **options: Any
    ) -> Any:
        return self._call(tr, method, f"/items/{quote(id, safe='')}{rest}", *body, **options)

    def push_many(
        self,
        tr: object,
        values: Sequence[Any],
        *,
        unique: Any = None,
        groups: Any = None,
        alert: bytes = b"",
        **options: Any,
    ) -> list[Item[Any]]:
        """Push several values, as `PriorityQueue.push_many` does, with the alert of `Members`."""
        if not values:
            return []
        given = {name: option for name, option in options.items() if option is not None}
        items = [{"item": value, **given} for value in values]
        for name, each in {"unique": unique or (), "group": groups or ()}.items():
            for item, option in zip(items, each):
                item[name] = option
        body: dict[str, Any] = {"items": items, "keep": self._server.keep}
        if alert:
            on_dead = decode_alert(alert)
            body["on_dead"] = {**on_dead._asdict(), "queue": on_dead.queue or None}
        answer = self._call(tr, "POST", "/batch", body)
        found = zip(values, answer["ids"], answer["is_new"])
        return [Item(value, given["priority"], id, b"", is_new=new) for value, id, new in found]

    def signal(self, tr: object, name: str, *, key: str, value: Any, keep: Duration) -> int:
        """Send a signal, as `JobSteps.signal` does; none to a queue that does not exist."""
        validate_result(value, "a signal")
        body = {"name": name, "key": key, "value": value, "keep": keep}
        with suppress(QueueNotFound):
            return int(self._call(tr, "POST", "/signals", body)["signalled"])
        return 0

    def result(self, tr: object, id: str, *, wait: Duration = 0) -> Any:
        """Return the result of a done job, as `PriorityQueue.result` does."""
        began, seconds = Since(), validate_seconds("wait", wait)
        while True:
            left = max(0.0, seconds - began.seconds())
            part = min(left, _LONGEST_WAIT)
            try:
                return self._item(tr, "GET", id, "/result", wait=part)["result"]
            except QueueNotFound:
                raise NoResult(id, None) from None
            except NoResult as error:
                if left <= part or error.state in (None, *ENDED):
                    raise

    def get(self, tr: object, id: str) -> ItemInfo | None:
        """Return everything about a job; `None` if it has left the queue."""
        with suppress(QueueNotFound, _NotChanged):
            found = self._item(tr, "GET", id)
            item = Item(found.pop("item"), found.pop("priority"), found["id"], b"")
            return msgspec.convert({**found, "item": item}, ItemInfo)
        return None

    def state(self, tr: object, id: str) -> State | None:
        """Return the state of a job; `None` if it has left the queue."""
        info = self.get(tr, id)
        return None if info is None else info.state

    def update(self, tr: object, id: str, *, value: Any) -> None:
        """Replace the value of a job that has not begun."""
        self._item(tr, "PATCH", id, "", {"item": value})

    def cancel(self, tr: object, id: str, **options: bool) -> bool:
        """Cancel a job; return false if it has ended."""
        with suppress(QueueNotFound, _NotChanged):
            self._item(tr, "POST", id, "/cancel", options)
            return True
        return False
