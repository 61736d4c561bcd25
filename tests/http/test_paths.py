"""The guard and the routes read the path of a request alike: a token reaches only its queue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from starlette.routing import Mount, Router
from starlette.testclient import TestClient

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.http import Tokens, create_app
from fdbqueue.http.security import Grant

TOKEN = {"authorization": "Bearer token"}

PARTS = ["items", "peek", "push", "queues", "a", "b"]
PARTS += ["/", "/", "..", ".", "%", "%2F", "2F", "\ufffd"]
"""Parts of names that look like parts of paths."""

NAMES = st.lists(st.sampled_from(PARTS), min_size=1, max_size=5).map("".join)
WAYS: st.SearchStrategy[tuple[str, str, Any]] = st.sampled_from(
    [
        *(("GET", end, None) for end in ("/stats", "/items", "/items/", "")),
        *(("POST", end, {}) for end in ("/pop", "/claim", "/clear", "/pause")),
        *(("DELETE", end, None) for end in ("", "/", "/items", "/items/", "/items/x", "//")),
        *(("PUT", "", {}), ("PATCH", "", {}), ("POST", "/rename", {"name": "stolen"})),
        *(("POST", "/push", {"item": {}}), ("POST", "/batch", {"items": [{"item": {}}]})),
    ]
)
"""Methods, ends of paths, and the bodies that their routes take."""


class Granted(Tokens):
    """One token, whose grant a test sets."""

    granted = Grant("admin")

    def __bool__(self) -> bool:
        return True

    def find(self, authorization: bytes) -> Grant | None:
        return self.granted if authorization == b"Bearer token" else None


class Answer(NamedTuple):
    status: int
    text: str


class Server:
    """A server of a database in memory."""

    def __init__(self) -> None:
        self.db: Any = fdbqueue.open("memory:")
        self.tokens = Granted()
        self.app = create_app(self.db, tokens=self.tokens)
        self.client = TestClient(self.app, "http://any.example")

    def allow(self, queue: str) -> None:
        self.tokens.granted = Grant("admin", queue)

    def send(self, method: str, path: str, body: Any = None) -> Answer:
        """Send a request with exactly this path, which a client would normalize."""
        return self.client.portal.call(self._send, method, path, json.dumps(body).encode())

    async def _send(self, method: str, path: str, body: bytes) -> Answer:
        headers = {**TOKEN, "content-type": "application/json", "content-length": str(len(body))}
        scope = {
            **{"type": "http", "method": method, "path": unquote(path), "raw_path": path.encode()},
            **{"query_string": b"", "scheme": "http", "server": ("any.example", 80)},
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        text = b"".join(message.get("body", b"") for message in sent)
        return Answer(sent[0]["status"], text.decode())

    def queues(self) -> dict[str, Any]:
        """Return what each queue holds."""
        return {
            name: [
                (item.id, item.value) for item in PriorityQueue.named(self.db, name).items(self.db)
            ]
            for name in fdbqueue.admin.queue_names(self.db)
        }


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    with server.client:
        yield server
    server.db.close()


def encoded(name: str, safe: str) -> str:
    return quote(name, safe=safe)


@pytest.mark.long
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    granted=NAMES,
    others=st.lists(NAMES, max_size=3),
    named=NAMES,
    way=WAYS,
    safe=st.sampled_from(["", "/", "/%"]),
)
@example(granted="a", others=[], named="a/items/", way=("DELETE", "", None), safe="/")
@example(granted="a", others=[], named="a/items/", way=("DELETE", "", None), safe="")
@example(granted="a", others=["a/"], named="a", way=("DELETE", "/", None), safe="/")
def test_a_token_reaches_no_other_queue_whatever_the_path(
    server: Server,
    granted: str,
    others: list[str],
    named: str,
    way: tuple[str, str, Any],
    safe: str,
) -> None:
    method, end, body = way
    for name in {granted, named, *others}:
        PriorityQueue.named(server.db, name).push(server.db, {"queue": f"<{name}>"})
    server.allow(granted)
    before = server.queues()
    try:
        for prefix in ("/queue/", "/v1/queues/"):
            answer = server.send(method, prefix + encoded(named, safe) + end, body)
            for name in {named, *others} - {granted}:
                assert f"<{name}>" not in answer.text
        after = server.queues()
        assert {**before, granted: None} == {**after, granted: None}
    finally:
        for name in fdbqueue.admin.queue_names(server.db):
            fdbqueue.admin.drop(server.db, name)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=NAMES)
def test_a_token_reaches_its_queue_whatever_the_name(server: Server, name: str) -> None:
    server.allow(name)
    path = f"/v1/queues/{encoded(name, '')}"
    refused = 422 if "\ufffd" in name else 201  # as bytes that are no UTF-8
    assert server.send("POST", f"{path}/push", {"item": 1}).status == refused
    if refused == 201:
        assert server.send("POST", f"/queue/{encoded(name, '')}/push", {"item": {}}).status == 201
        assert server.send("DELETE", path, None).status == 200
    assert fdbqueue.admin.queue_names(server.db) == []


@pytest.mark.parametrize("prefix", ["/v1", "/health"])
def test_no_place_of_the_application_opens_what_needs_a_token(server: Server, prefix: str) -> None:
    """Another application may have mounted this one below any path."""
    server.allow("a")
    PriorityQueue.named(server.db, "b").push(server.db, {"queue": "<b>"})
    outer = Router([Mount(prefix, server.app)])
    with TestClient(outer, "http://any.example") as client:
        for headers, status in (({}, 401), (TOKEN, 403)):
            for method, path in (("GET", "/metrics"), ("POST", "/queue/b/pop")):
                answer = client.request(method, prefix + path, headers=headers)
                assert answer.status_code == status, path
    fdbqueue.admin.drop(server.db, "b")


def test_a_path_without_a_queue_needs_a_token_for_all_queues(server: Server) -> None:
    server.allow("a")
    for path in ("/nowhere", "/queues", "/openapi.json", "/queue", "/metrics", "/events"):
        assert server.send("GET", path).status == 403
    server.allow("*")
    assert server.send("GET", "/nowhere").status == 404
