"""Access control: tokens, cross-site requests, sizes of bodies, and where a browser is led to."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.http import Tokens, create_app
from tests.support.leases import come_due

OPEN = ("/health", "/ready")


@pytest.fixture
def made(db: Any) -> Callable[..., TestClient]:
    def make(base_url: str = "http://127.0.0.1", **options: Any) -> TestClient:
        app = create_app(db, **options)
        return TestClient(app, base_url, raise_server_exceptions=False)

    return make


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def push(client: TestClient, name: str, **options: Any) -> Any:
    return client.post(f"/queue/{name}/push", json={"item": {}}, **options)


def test_requests_without_a_token_are_rejected(made: Any, db: Any, name: str) -> None:
    client = made("http://any.example", tokens=Tokens(["full", "read read"]))
    for headers in ({}, bearer("wrong"), bearer(""), {"authorization": "Basic full"}):
        for answer in (
            push(client, name, headers=headers),
            client.get("/v1/queues", headers=headers),
            client.get("/metrics", headers=headers),
            client.get("/openapi.json", headers=headers),
            client.get("/nowhere", headers=headers),
        ):
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
    assert [client.get(path).status_code for path in OPEN] == [200, 200]
    assert name not in fdbqueue.admin.queue_names(db)


LOOKS = [
    *("", "/stats", "/history", "/jobs", "/scale", "/groups", "/schedules", "/workers"),
    *("/items?state=delayed", "/count?state=dead", "/items/ITEM", "/items/ITEM/position"),
    *("/items/ITEM/steps", "/items/ITEM/batches"),
]
"""The requests that only look at a queue, by what follows its name."""


@pytest.mark.parametrize("path", LOOKS)
def test_a_request_with_a_read_only_token_writes_nothing(
    made: Any, db: Any, name: str, path: str
) -> None:
    """It shows what is stored; one with another token sweeps first."""
    queue = PriorityQueue.named(db, name)
    item = queue.push(db, "job", delay=600)
    queue.push(db, "another")
    come_due(db, queue)
    client = made("http://any.example", tokens=Tokens(["full", "read read"]))
    path = f"/v1/queues/{name}{path.replace('ITEM', item.id)}"
    answer = client.get(path, headers=bearer("read"))
    assert answer.status_code == 200
    if path.endswith("/scale"):  # an item that is due needs a worker all the same
        assert answer.json()["backlog"] == 2
    assert queue.stats(db.create_transaction()).delayed == 1
    client.get(f"/v1/queues/{name}/stats", headers=bearer("full"))
    assert queue.stats(db.create_transaction()).delayed == 0


def test_a_cross_site_request_changes_nothing(made: Any, db: Any, name: str) -> None:
    client = made()
    assert push(client, name, headers={"origin": "http://evil.example"}).status_code == 403
    assert push(client, name, headers={"origin": "null"}).status_code == 403
    assert push(client, name, headers={"origin": "http://["}).status_code == 403
    assert name not in fdbqueue.admin.queue_names(db)
    assert push(client, name, headers={"origin": "http://127.0.0.1"}).status_code == 201


def test_only_pages_of_allowed_origins_use_the_api(made: Any, db: Any, name: str) -> None:
    origin, other = "https://app.example.com", "https://evil.example"
    client = made(origins=[origin])
    wanted = {"access-control-request-method": "POST", "origin": origin}
    allowed = client.options(f"/v1/queues/{name}/push", headers=wanted)
    assert allowed.headers["access-control-allow-origin"] == origin
    assert push(client, name, headers={"origin": origin}).status_code == 201
    assert push(client, name, headers={"origin": other}).status_code == 403
    refused = client.options(f"/v1/queues/{name}/push", headers={**wanted, "origin": other})
    assert "access-control-allow-origin" not in refused.headers
    answer = made().get("/v1/queues", headers={"origin": origin})
    assert "access-control-allow-origin" not in answer.headers
    for bad in ("*", "app.example.com", "https://app.example.com/", "ftp://x"):
        with pytest.raises(ValueError, match="an origin is like"):
            made(origins=[bad])


FOREIGN = ["evil.example", "127.0.0.1.evil.example", "10.0.0.1:80"]
FOREIGN += ["", "[", "[::1", "[127.0.0.1]", "::1"]


@pytest.mark.parametrize("host", FOREIGN)
def test_a_server_without_tokens_rejects_foreign_host_names(made: Any, host: str) -> None:
    answer = made().get("/v1/queues", headers={"host": host})
    assert answer.status_code == 403
    assert "serves only this machine" in answer.json()["detail"]


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:1", "[::1]:8080", "127.0.0.2"])
def test_a_server_without_tokens_accepts_local_host_names(made: Any, host: str) -> None:
    assert made().get("/v1/queues", headers={"host": host}).status_code == 200


def test_a_body_over_the_limit_is_rejected(made: Any, db: Any, name: str) -> None:
    client = made(max_body=100)
    path, headers = f"/queue/{name}/push", {"content-type": "application/json"}
    large = b'{"item": {"x": "%b"}}' % (b"x" * 100)
    assert client.post(path, content=large, headers=headers).status_code == 413
    # In chunks, without a content length.
    assert (
        client.post(path, content=iter([large[:60], large[60:]]), headers=headers).status_code
        == 413
    )
    assert name not in fdbqueue.admin.queue_names(db)
    assert push(client, name).status_code == 201


def test_an_item_over_the_size_limit_is_rejected(made: Any, db: Any, name: str) -> None:
    answer = made().post(f"/queue/{name}/push", json={"item": {"x": "x" * 8_000_000}})
    assert answer.status_code == 400
    assert "at most 8,000,000" in answer.json()["detail"]
    assert name not in fdbqueue.admin.queue_names(db)


def test_a_server_error_reveals_no_details(db: Any) -> None:
    class Broken:
        """A database whose calls fail."""

        def create_transaction(self) -> Any:
            raise RuntimeError("secret")

    with TestClient(
        create_app(Broken()), "http://127.0.0.1", raise_server_exceptions=False
    ) as client:
        answer = client.get("/v1/queues")
    assert (answer.status_code, answer.json()["detail"]) == (
        500,
        "the server failed; see its log",
    )


# What a browser is led to


PATHS = ("/", "/docs", "/redoc", "/docs/oauth2-redirect", "/openapi.json", "/health")


@pytest.mark.parametrize("path", [*PATHS, "/v1/queues", "/queue/a/pop", "/v1/queues/a/stats"])
def test_no_answer_leads_to_the_host_that_a_client_named(path: str) -> None:
    app = create_app(fdbqueue.open("memory:"), tokens=Tokens(["token"]))
    client = TestClient(app, "http://evil.example", follow_redirects=False)
    headers = {"authorization": "Bearer token", "host": "evil.example"}
    for each in (path, f"{path}/", path.rstrip("/")):
        answer = client.get(each or "/", headers=headers)
        assert "evil.example" not in f"{answer.headers}{answer.text}"


def test_no_page_loads_anything_from_another_host() -> None:
    app = create_app(fdbqueue.open("memory:"))
    paths = {each.path for each in app.routes if isinstance(each, Route) and "{" not in each.path}
    client = TestClient(app, "http://127.0.0.1")
    pages = 0
    for path in {*PATHS, *paths}:
        answer = client.get(path)
        if "html" in answer.headers["content-type"]:
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert not re.search(r"https?:|\*|unsafe|blob:", policy)
            assert not re.search(r"""(?:src|href)=["'](?:https?:)?//""", answer.text)
            pages += 1
    assert pages == 1  # the dashboard
