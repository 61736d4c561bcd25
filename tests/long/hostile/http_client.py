"""An HTTP client that disconnects before, during and after the response.

What it knows afterwards depends on how it leaves:

- `stay`: it reads the response.
- `half`: it closes its own side and reads the rest. A server that cannot send the whole response
  knows that its client has left, so a client without a whole response has taken nothing.
- `close` and `reset`: it closes both sides. What its socket holds at that moment was sent to a
  client that did not read it: these values are known, and the operation's outcome is not. What the
  server sends later is rejected by the socket and stays unknown.
- `cut`: it sends only part of its request, which has no effect.
"""

from __future__ import annotations

import errno
import http.client
import json
import random
import select
import socket
import struct
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.long.hostile.ledger import (
    DISK_FAILED,
    DISK_UNCERTAIN,
    HALF_CLOSED,
    HUNG_UP,
    Gone,
    Ledger,
)

JOBS = ("handled", "transacted", "stepped")
"""The queues of workers: handlers without a transaction, with one, and with durable steps."""

LEAVES = {"stay": 30, "half": 35, "close": 15, "reset": 15, "cut": 5}
CERTAIN = ("stay", "half", "cut")
TIMEOUT = 60  # seconds, for a server that is stopped meanwhile
TRIES = 1_000  # maximum for one push
RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Answer:
    """A complete response."""

    status: int
    body: Any


@dataclass(frozen=True)
class Request:
    """A request."""

    method: str
    path: str
    body: Any = None
    key: str | None = None
    """Its idempotency key."""
    is_pop: bool = False
    """Whether it must have no effect if the server knows that its client has left."""
    base: str = "/v1/queues/"

    def encoded(self, prefix: str) -> bytes:
        """Return the bytes of the request, for a queue whose name has a prefix."""
        content = b"" if self.body is None else json.dumps(self.body).encode()
        lines = [
            f"{self.method} {self.base}{prefix}{self.path} HTTP/1.1",
            "host: 127.0.0.1",
            "connection: close",
            "content-type: application/json",
            f"content-length: {len(content)}",
            *([] if self.key is None else [f"idempotency-key: {self.key}"]),
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


class HttpClient:
    """The operations of one client, each on its own connection."""

    def __init__(
        self, server: Path, prefix: str, world: str, ledger: Ledger, values: Iterator[str]
    ) -> None:
        self._server = server
        self._prefix = prefix
        self._world = world
        self._ledger = ledger
        self._values = values

    def step(self, rng: random.Random) -> None:
        """Perform one random operation."""
        queue = f"{self._world}-{rng.choice(['jobs', 'jobs', 'left'])}"
        steps = [self.push, self.push_until_answered, self.push_job, self.pop, self.remove]
        (step,) = rng.choices(steps, [4, 2, 1, 8, 1])
        step(queue, rng)

    def push(self, queue: str, rng: random.Random) -> None:
        names = [next(self._values) for _ in range(rng.choice([1, 1, 3]))]
        items = [{"item": {"id": name}, "priority": rng.randrange(4)} for name in names]
        path, body = ("push", items[0]) if len(items) == 1 else ("batch", {"items": items})
        with self._ledger.operation("push", queue, names) as operation:
            self._ask(Request("POST", f"{queue}/{path}", body), rng)
            operation.done()

    def push_until_answered(self, queue: str, rng: random.Random) -> None:
        """Repeat a push with the same idempotency key until the client gets a response."""
        name, key = next(self._values), uuid.UUID(int=rng.getrandbits(128)).hex
        body = {"item": {"id": name}, "priority": rng.randrange(4)}
        with self._ledger.operation("push", queue, [name]) as operation:
            for _ in range(TRIES):
                with suppress(Gone):
                    self._ask(Request("POST", f"{queue}/push", body, key), rng)
                    return operation.done()
            raise Gone("unknown", "gave up")

    def push_job(self, _: str, rng: random.Random) -> None:
        """Push a job for a worker."""
        self.push(f"{self._world}-{rng.choice(JOBS)}", rng)

    def pop(self, queue: str, rng: random.Random) -> None:
        depth, wait = rng.choice([1, 1, 1, 4]), rng.choice([0, 0.1, 1])
        leaves = LEAVES if queue.endswith("left") else CERTAIN
        with self._ledger.operation("pop", queue, at_most=depth) as operation:
            path = f"{queue}/pop?depth={depth}&wait={wait}"
            request = Request("POST", path, is_pop=True, base="/queue/")
            answer = self._ask(request, rng, leaves)
            operation.done(found(answer))
            ranks = [item["priority"] for item in items_of(answer)]
            assert ranks == sorted(ranks), f"not in order: {ranks}"

    def remove(self, queue: str, rng: random.Random) -> None:
        items: list[Any] = []
        with self._ledger.operation("peek", queue) as operation:
            answer = self._ask(Request("GET", f"{queue}/items?limit=5"), rng, ["stay"])
            items = items_of(answer)
            operation.done(found(answer))
        for item in rng.sample(items, min(1, len(items))):
            with self._ledger.operation("remove", queue, [item["item"]["id"]]) as operation:
                self._ask(Request("DELETE", f"{queue}/items/{item['id']}"), rng)
                operation.done()

    # Requests

    def _ask(
        self, request: Request, rng: random.Random, leaves: Iterable[str] = tuple(LEAVES)
    ) -> Answer:
        """Return the response; raise `Gone` if there is none or if the operation failed."""
        (leave,) = rng.choices([*leaves], [LEAVES[each] for each in leaves])
        moment = rng.choice([0.0, rng.uniform(0, 0.1), TIMEOUT])
        answer = self._exchange(request, leave, moment)
        if answer.status == 404:
            raise Gone("nothing", "404")
        if answer.status == 409 and request.method == "DELETE":
            raise Gone("nothing", "claimed meanwhile")
        if answer.status == 503:
            if "unknown" in str(answer.body):
                raise Gone("unknown", DISK_UNCERTAIN)
            raise Gone("nothing", DISK_FAILED)
        if answer.status >= 300:
            raise RuntimeError(f"{request}: {answer}")
        return answer

    def _exchange(self, request: Request, leave: str = "stay", moment: float = 0.0) -> Answer:
        """Send a request, and leave after `moment` seconds or when the response begins."""
        content = request.encoded(self._prefix)
        with self._connect() as connection:
            if leave == "cut":
                connection.sendall(content[: len(content) // 2])
                raise Gone("nothing", "cut")
            try:
                connection.sendall(content)
            except OSError:
                raise Gone("unknown", HUNG_UP) from None
            if leave in ("close", "reset"):
                return self._vanish(connection, leave, moment)
            if leave == "half":
                select.select([connection], [], [], moment)
                shut(connection, socket.SHUT_WR)
            answer = received(connection)
        if answer is None and leave == "half":
            raise Gone("nothing" if request.is_pop else "unknown", HALF_CLOSED)
        if answer is None:
            raise Gone("unknown", HUNG_UP)
        return answer

    @staticmethod
    def _vanish(connection: socket.socket, leave: str, moment: float) -> Answer:
        select.select([connection], [], [], moment)
        if leave == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        shut(connection, socket.SHUT_RDWR)
        answer = received(connection)
        if answer is None:
            raise Gone("unknown", "vanished before the end of the answer")
        if answer.body == {"items": []}:
            raise Gone("nothing", "vanished with an empty answer")
        if answer.status < 300:
            raise Gone("unknown", "vanished with the answer", found(answer))
        return answer

    def _connect(self) -> socket.socket:
        try:
            host, port = self._server.read_text().split()
            return socket.create_connection((host, int(port)), TIMEOUT)
        except (OSError, ValueError):
            threading.Event().wait(0.05)
            raise Gone("nothing", "no server") from None


def items_of(answer: Answer) -> list[Any]:
    """Return the items of a response."""
    return list(answer.body.get("items", [])) if isinstance(answer.body, dict) else []


def found(answer: Answer) -> list[str]:
    """Return the values in the response to a pop."""
    return [item["item"]["id"] for item in items_of(answer)]


def shut(connection: socket.socket, how: int) -> None:
    """Shut a connection down unless the other side has done so."""
    try:
        connection.shutdown(how)
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise


def received(connection: socket.socket) -> Answer | None:
    """Return the response, or `None` if it is incomplete when the connection ends in any way."""
    answer = http.client.HTTPResponse(connection)
    try:
        answer.begin()
        content = answer.read()
    except (http.client.HTTPException, ConnectionError):
        return None
    finally:
        answer.close()
    return Answer(answer.status, json.loads(content) if content else None)
