"""Tokens with roles and queues, and files of tokens that change while the server runs."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.http import Tokens, create_app, security
from tests.support.api import Api

READS = {"get"}
WRITES = {
    *("/push", "/batch", "/pop", "/claim", "/ack", "/nack", "/extend", "/release"),
    *("/items/{item_id}", "/items/{item_id}/retry", "/items/{item_id}/run-now"),
    *("/items/{item_id}/release", "/items/{item_id}/cancel", "/items/{item_id}/close-batch"),
    "/signals",
}
"""The routes of a queue that change single items, or let jobs go on."""


def operations() -> list[tuple[str, str]]:
    """Return the method and the path of each route of queues."""
    schema = create_app(fdbqueue.open("memory:")).openapi()
    return [
        (method, path)
        for path, methods in schema["paths"].items()
        for method in methods
        if path.startswith(("/v1/", "/queue/"))
    ]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(
        "# comment\n\nroot\nreader read\nwriter write\nmailer write mail/*\nboss admin mail/out\n"
    )
    return path


@pytest.fixture
def server(db: Any, file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setattr(security, "_LOOK", 0.0)
    app = create_app(db, tokens=Tokens(file=file))
    with TestClient(app, "http://any.example", raise_server_exceptions=False) as client:
        yield client


def allowed(server: TestClient, token: str, method: str, path: str, queue: str) -> bool:
    """Return whether a token allows a request; the request is too wrong to do anything."""
    url = path.replace("{name}", queue.replace("/", "%2F")).replace("{item_id}", "x")
    headers = {"authorization": f"Bearer {token}"}
    answer = server.request(method, url, json={"queue": 1}, headers=headers)
    assert answer.status_code not in (401, 500)
    return bool(answer.status_code != 403)


def test_every_route_needs_its_role_and_its_queue(server: TestClient, name: str) -> None:
    checked = 0
    for method, path in operations():
        role = "admin"
        below = path.partition("{name}")[2]
        if method in READS:
            role = "read"
        elif below in WRITES:
            role = "write"
        expected = {"root": True, "reader": role == "read", "writer": role != "admin"}
        for token, is_allowed in expected.items():
            assert allowed(server, token, method, path, f"{name}/none") == is_allowed, (token, path)
        if "{name}" in path:
            assert allowed(server, "mailer", method, path, "mail/none") == (role != "admin"), path
            assert not allowed(server, "mailer", method, path, f"{name}/none"), path
            assert not allowed(server, "boss", method, path, "mail/outer"), path
            assert allowed(server, "boss", method, path, "mail/out"), path
        checked += 1
    assert checked > 25


def test_a_token_sees_only_its_queues(server: TestClient, db: Any) -> None:
    names = ["mail/in", "mail/out", "mailing", "work"]
    for each in names:
        PriorityQueue.named(db, each).push(db, 1)
    seen = {"root": names, "reader": names, "mailer": names[:2], "boss": ["mail/out"]}
    for (token, shown), prefix in itertools.product(seen.items(), ("", "mail", "work")):
        answer = server.get(
            "/v1/queues", params={"prefix": prefix}, headers={"authorization": f"Bearer {token}"}
        )
        listed = [each["name"] for each in answer.json()["queues"] if each["name"] in names]
        assert listed == [each for each in shown if each.startswith(prefix)]
    for each in names:
        fdbqueue.admin.drop(db, each)


def test_follow_ups_and_alerts_need_the_right_to_push_to_their_queue(
    server: TestClient, db: Any, name: str
) -> None:
    api = Api(server, "mail/out", authorization="Bearer mailer")
    api.push("job")
    (claim,) = api.claim()
    for queue, status in ((name, 403), ("mail/next", 200)):
        body = {"token": claim["token"], "then": [{"queue": queue, "item": 1}]}
        assert api.send("POST", "/ack", body).status_code == status
        alert = {"items": [{"item": 1}], "on_dead": {"job": "alert", "queue": queue}}
        assert api.send("POST", "/batch", alert).is_success == (status == 200)
    assert name not in fdbqueue.admin.queue_names(db)
    for each in ("mail/out", "mail/next"):
        fdbqueue.admin.drop(db, each)


def test_tokens_change_without_a_restart(
    server: TestClient, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def status(token: str) -> int:
        headers = {"authorization": f"Bearer {token}"}
        return int(server.get("/v1/queues", headers=headers).status_code)

    assert (status("root"), status("rotated")) == (200, 401)
    file.write_text("rotated read\n")
    assert (status("root"), status("rotated")) == (401, 200)
    with caplog.at_level(logging.ERROR, "fdbqueue.http"):
        file.write_text("rotated chief\n")
        assert status("rotated") == 200
    assert "line 1: a token is printable ASCII" in caplog.text
    assert "chief" not in caplog.text
    file.unlink()
    assert status("rotated") == 200
    file.write_text("last\n")
    assert (status("last"), status("rotated")) == (200, 401)


def test_a_limited_token_does_not_learn_the_names_of_other_queues(
    server: TestClient, db: Any, name: str
) -> None:
    PriorityQueue.named(db, name).push(db, 1)
    api = Api(server, "mail/none", authorization="Bearer mailer")
    problem = api.problem("POST", "/claim", {})
    assert problem["status"] == 404
    assert name not in problem["detail"]


@pytest.mark.parametrize(
    ("token", "role", "queues"), [("mailer", "write", "mail/*"), ("root", "admin", "*")]
)
def test_the_api_says_what_a_token_allows(
    server: TestClient, db: Any, token: str, role: str, queues: str
) -> None:
    assert server.get("/v1/me").status_code == 401
    headers = {"authorization": f"Bearer {token}"}
    assert server.get("/v1/me", headers=headers).json() == {"role": role, "queues": queues}
    with TestClient(create_app(db), "http://127.0.0.1") as client:
        assert client.get("/v1/me").json() == {"role": "admin", "queues": "*"}


def test_a_token_file_may_contain_a_byte_order_mark_and_comments(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_bytes(b"\xef\xbb\xbfone\r\n# of ada\r\n  #two\r\n\ttwo \r\n")
    tokens = Tokens(["three read\n"], file=file)
    found = {each: tokens.find(b"Bearer " + each) for each in (b"one", b"two", b"three")}
    assert all(found.values())
    for wrong in (b"\xef\xbb\xbfone", b"\xef\xbb\xbf", b"# of ada", b"#", b"#two"):
        assert tokens.find(b"Bearer " + wrong) is None


@pytest.mark.parametrize(
    "line", ["two words", "one # comment", "schlüssel", "\ufeffone", "a\x00b", "a\x7fb"]
)
def test_an_invalid_line_in_a_token_file_is_rejected(tmp_path: Path, line: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"good\n{line}\n", "utf-8")
    with pytest.raises(ValueError, match="printable ASCII without spaces") as error:
        Tokens(file=file)
    assert line not in str(error.value)  # it may be a secret
