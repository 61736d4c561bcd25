"""What a browser is led to: no answer sends it to another host, and no page loads from one."""

from __future__ import annotations

import re

import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

import fdbqueue
from fdbqueue.http import Tokens, create_app

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
