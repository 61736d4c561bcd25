"""Who may do what: tokens, pages of other sites, sizes and rates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

import fdbqueue
from fdbqueue.http import Limits, Tokens, create_app

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


def test_without_a_token_nothing_is_shown_or_done(made: Any, db: Any, name: str) -> None:
    client = made("http://any.example", tokens=Tokens(["full"], ["read"]))
    for headers in ({}, bearer("wrong"), bearer(""), {"authorization": "Basic full"}):
        for answer in (
            push(client, name, headers=headers),
            client.get("/queues", headers=headers),
            client.get("/metrics", headers=headers),
            client.get("/openapi.json", headers=headers),
            client.get("/nowhere", headers=headers),
        ):
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
    assert [client.get(path).status_code for path in OPEN] == [200, 200]
    assert name not in fdbqueue.queue_names(db)


def test_a_full_token_does_everything_and_a_read_only_one_reads(made: Any, name: str) -> None:
    client = made("http://any.example", tokens=Tokens(["full"], ["read"]))
    assert push(client, name, headers=bearer("full")).status_code == 201
    assert client.get(f"/queue/{name}/peek", headers=bearer("read")).status_code == 200
    for method, path in [("POST", "/pop"), ("POST", "/push"), ("DELETE", "")]:
        answer = client.request(method, f"/queue/{name}{path}", headers=bearer("read"))
        assert answer.status_code == 403
        assert "only reads" in answer.json()["detail"]
    assert client.get("/queues", headers=bearer("full")).json()["queues"]


def test_a_page_of_another_site_changes_nothing(made: Any, db: Any, name: str) -> None:
    client = made()
    assert push(client, name, headers={"origin": "http://evil.example"}).status_code == 403
    assert push(client, name, headers={"origin": "null"}).status_code == 403
    assert push(client, name, headers={"origin": "http://["}).status_code == 403
    assert name not in fdbqueue.queue_names(db)
    assert push(client, name, headers={"origin": "http://127.0.0.1"}).status_code == 201


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "",
        "10.0.0.1:80",
        "[",
        "[::1",
        "[127.0.0.1]",
        "::1",
    ],
)
def test_without_tokens_it_answers_to_names_of_this_machine_alone(made: Any, host: str) -> None:
    answer = made().get("/queues", headers={"host": host})
    assert answer.status_code == 403
    assert "serves only this machine" in answer.json()["detail"]


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:1", "[::1]:8080", "127.0.0.2"])
def test_names_of_this_machine(made: Any, host: str) -> None:
    assert made().get("/queues", headers={"host": host}).status_code == 200


def test_a_body_over_the_limit_is_refused(made: Any, db: Any, name: str) -> None:
    client = made(limits=Limits(body=100))
    path, headers = f"/queue/{name}/push", {"content-type": "application/json"}
    large = b'{"item": {"x": "%b"}}' % (b"x" * 100)
    assert client.post(path, content=large, headers=headers).status_code == 413
    # Without a length, in pieces.
    assert (
        client.post(path, content=iter([large[:60], large[60:]]), headers=headers).status_code
        == 413
    )
    assert name not in fdbqueue.queue_names(db)
    assert push(client, name).status_code == 201


def test_an_item_over_the_limit_of_an_item_is_refused(made: Any, db: Any, name: str) -> None:
    answer = made().post(f"/queue/{name}/push", json={"item": {"x": "x" * 8_000_000}})
    assert answer.status_code == 422
    assert "at most 8,000,000" in answer.json()["detail"]
    assert name not in fdbqueue.queue_names(db)


def test_more_requests_than_the_rate_have_to_wait(made: Any) -> None:
    client = made(limits=Limits(rate="3/minute"))
    assert [client.get("/health").status_code for _ in range(4)] == [200, 200, 200, 429]
    answer = client.get("/health")
    assert 0 < int(answer.headers["retry-after"]) <= 60
    for bad in ("many", "0/second", "-1/second", ""):
        with pytest.raises(ValueError, match="rate must be like"):
            Limits(rate=bad)


def test_an_error_of_the_server_shows_nothing_of_it(db: Any) -> None:
    class Broken:
        """A database that is none."""

        def create_transaction(self) -> Any:
            raise RuntimeError("secret")

    with TestClient(
        create_app(Broken()), "http://127.0.0.1", raise_server_exceptions=False
    ) as client:
        answer = client.get("/queues")
    assert (answer.status_code, answer.json()) == (
        500,
        {"detail": "the server failed; see its log"},
    )
