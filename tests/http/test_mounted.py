"""The dashboard and `/v1` below a path of another application, behind its login."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from starlette.testclient import TestClient

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.http import Grant, Tokens, create_app
from tests.support.chromium import in_chromium
from tests.support.pages import DOCS, program

SERVE = """
import asyncio, json, sys
import uvicorn
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

call_command("migrate", verbosity=0)
ada = Client()
ada.force_login(User.objects.create_user("ada", is_staff=True))
cookies = {"sessionid": ada.cookies["sessionid"].value}

async def main():
    addresses = []
    for application in (api, site, shop):
        config = uvicorn.Config(application, port=0, log_level="critical", lifespan="off")
        server = uvicorn.Server(config)
        asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        addresses.append(f"http://127.0.0.1:{port}")
    print(json.dumps([addresses, cookies]), flush=True)
    await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@in_chromium
def test_a_browser_sees_the_dashboard_of_each_application_of_the_guide_after_the_login(
    browser: Browser, tmp_path: Path
) -> None:
    text = program(DOCS / "howto/mount.md").replace('"embedded:mount"', '"memory:"')
    process = subprocess.Popen(
        [sys.executable, "-c", text.partition("\nclient =")[0] + SERVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    with process as running:
        addresses, cookies = json.loads(running.stdout.readline())
        for address in addresses:
            context = browser.new_context()
            page = context.new_page()
            page.goto(f"{address}/queues/")
            expect(page.get_by_text("log in first")).to_be_visible()
            context.request.post(f"{address}/login")
            context.add_cookies(
                [{"name": name, "value": cookies[name], "url": address} for name in cookies]
            )
            page = context.new_page()
            page.goto(f"{address}/queues/#/queues/mail")
            expect(page.get_by_text("ada@example.com")).to_be_visible()
        running.stdin.close()


def mounted(db: Any, **options: Any) -> TestClient:
    """Return a client of an application that mounts ours below `/a/b`."""
    return TestClient(
        Starlette(routes=[Mount("/a/b", create_app(db, **options))]), "http://any.example"
    )


def test_the_rights_are_what_the_function_of_the_application_returns(db: Any, name: str) -> None:
    PriorityQueue.named(db, name).push(db, "job")
    of_user: dict[str, Any] = {
        "reader": Grant("read"),
        "writer": Grant("write", name),
        "other": Grant("admin", "other/*"),
    }

    def authorize(request: Request) -> Grant | None:
        return of_user.get(request.cookies.get("user", ""))

    async def authorize_async(request: Request) -> Grant | None:
        return authorize(request)

    for function in (authorize, authorize_async):
        client = mounted(db, authorize=function)

        def statuses(user: str, client: TestClient = client) -> list[int]:
            client.cookies = {"user": user} if user else {}
            push = f"/a/b/v1/queues/{name}/push"
            paths = ("/a/b/", "/a/b/metrics", f"/a/b/v1/queues/{name}/stats")
            return [
                *(client.get(path).status_code for path in paths),
                client.post(push, json={"item": 1}).status_code,
                client.get("/a/b/health").status_code,
            ]

        assert statuses("") == statuses("unknown") == [403, 403, 403, 403, 200]
        assert statuses("reader") == [200, 200, 200, 403, 200]
        assert statuses("writer") == [200, 403, 200, 201, 200]
        assert statuses("other") == [200, 403, 403, 403, 200]


def test_a_page_of_another_site_cannot_use_the_login(db: Any, name: str) -> None:
    client = mounted(db, authorize=lambda request: Grant("admin"))
    body, url = {"item": 1}, f"/a/b/v1/queues/{name}/push"
    foreign = client.post(url, json=body, headers={"origin": "https://evil.example"})
    assert foreign.status_code == 403
    own = client.post(url, json=body, headers={"origin": "http://any.example"})
    assert own.status_code == 201


def test_paths_and_problems_are_the_same_below_a_mount(db: Any, name: str) -> None:
    client = mounted(db, authorize=lambda request: Grant("admin"))
    queue = f"{name}100%25%2Fa"
    assert client.post(f"/a/b/v1/queues/{queue}/push", json={"item": 1}).status_code == 201
    assert f"{name}100%/a" in [
        each["name"] for each in client.get("/a/b/v1/queues").json()["queues"]
    ]
    missing = client.get("/a/b/v1/queues/missing/stats")
    assert missing.headers["content-type"] == "application/problem+json"
    assert missing.json()["request_id"] == missing.headers["x-request-id"]
    refused = client.delete(f"/a/b/v1/queues/{queue}/push")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")


def test_wrong_uses_are_refused() -> None:
    db = fdbqueue.open("memory:")
    wrong: Any = lambda request: "admin"  # noqa: E731
    with pytest.raises(ValueError, match="tokens or authorize, not both"):
        create_app(db, tokens=Tokens(["secret"]), authorize=wrong)
    with pytest.raises(TypeError, match="authorize returns a Grant or None, not 'admin'"):
        mounted(db, authorize=wrong).get("/a/b/v1/queues")
