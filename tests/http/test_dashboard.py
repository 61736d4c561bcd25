"""The dashboard in a real browser: live updates, keyboard, phone layout, escaping."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.support.many_queues import make_queues

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the PATH")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # The sandbox needs rights that containers lack; the pages are trusted.
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Return a page; its console must show no errors except a lost server."""
    page = browser.new_page(viewport={"width": 1000, "height": 800})
    said: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(str(error)))
    yield page
    page.close()
    ignored = ("error: Failed to load resource", "debug: ", "verbose: ")
    assert [text for text in said if not text.startswith(ignored)] == []


def card(page: Page, name: str) -> Any:
    return page.get_by_role("region", name=f"Queue {name}", exact=True)


def test_queues_appear_change_and_disappear_without_a_reload(
    page: Page, serve: Any, name: str
) -> None:
    with serve() as (_, client):
        page.goto(str(client.base_url))
        expect(page.get_by_role("status")).to_have_text("Live")
        for priority in (0, 0, 1000):
            client.post(f"/queue/{name}/push", json={"item": {}, "priority": priority})
        shown = card(page, name)
        expect(shown).to_contain_text("3 items, the oldest")
        expect(shown.get_by_role("row")).to_have_text(["02", "10001"])
        client.post(f"/queue/{name}/pop", params={"depth": 3})
        expect(shown).to_contain_text("0 items")
        expect(shown).to_contain_text("out 3")
        client.delete(f"/queue/{name}")
        expect(shown).to_have_count(0)


def test_items_are_pushed_and_popped_and_queues_dropped_by_keyboard(
    page: Page, serve: Any, name: str
) -> None:
    with serve() as (_, client):
        page.goto(str(client.base_url))
        page.get_by_role("button", name="Push to another queue").focus()
        page.keyboard.press("Enter")
        for text in (name, '{"to": "ada"}', "7"):
            page.keyboard.press("Control+A")
            page.keyboard.type(text)
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        shown = card(page, name)
        expect(shown.get_by_role("row")).to_have_text(["71"])
        shown.get_by_text("Next items").press("Enter")
        expect(shown.locator("pre")).to_have_text('7  {"to":"ada"}')
        shown.get_by_role("button", name="Pop").press("Enter")
        page.keyboard.press("Escape")
        expect(shown).to_contain_text("1 items")
        shown.get_by_role("button", name="Pop").press("Enter")
        page.keyboard.press("Enter")
        expect(page.get_by_role("status")).to_have_text('Popped: {"to":"ada"}')
        shown.get_by_role("button", name="Drop").press("Enter")
        page.keyboard.press("Enter")
        expect(shown).to_have_count(0)
        assert name not in client.get("/queues").text


def test_the_page_reports_an_invalid_push(page: Page, serve: Any, name: str) -> None:
    with serve() as (_, client):
        client.post(f"/queue/{name}/push", json={"item": {}})
        page.goto(str(client.base_url))
        card(page, name).get_by_role("button", name="Push").click()
        page.get_by_label("Priority").fill("-1")
        page.get_by_role("dialog").get_by_role("button", name="Push").click()
        expect(page.get_by_role("status")).to_contain_text("push: priority: ")


def test_stored_markup_is_displayed_as_text(page: Page, serve: Any, name: str) -> None:
    evil = f"{name}<img src=x onerror=alert(1)>"
    with serve() as (_, client):
        client.post(
            "/queue/" + evil.replace("<", "%3C").replace(" ", "%20") + "/push",
            json={"item": {"x": evil}},
        )
        page.goto(str(client.base_url))
        shown = card(page, evil)
        expect(shown.get_by_role("heading")).to_have_text(evil)
        shown.get_by_text("Next items").click()
        expect(shown.locator("pre")).to_contain_text("onerror")
        assert page.locator("img[src]").count() == 0
        policy = client.get("/").headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy


def test_the_page_asks_for_a_token_once(page: Page, serve: Any, name: str) -> None:
    with serve(FDBQ_TOKEN="secret") as (_, client):
        headers = {"authorization": "Bearer secret"}
        client.post(f"/queue/{name}/push", json={"item": {}}, headers=headers)
        page.goto(str(client.base_url))
        page.get_by_role("textbox", name="Token").fill("secret")
        page.keyboard.press("Enter")
        expect(card(page, name)).to_contain_text("1 items")
        page.reload()
        expect(card(page, name)).to_contain_text("1 items")


def test_links_lead_to_the_next_and_the_first_queues(
    page: Page, serve: Any, db: Any, name: str
) -> None:
    make_queues(db, name, 130, busy={100})
    with serve() as (_, client):
        page.goto(f"{client.base_url}/?after={name}!")
        expect(card(page, f"{name}000099")).to_contain_text("0 items")
        expect(card(page, f"{name}000100")).to_have_count(0)
        page.get_by_role("link", name="Next queues").click()
        expect(card(page, f"{name}000100")).to_contain_text("2 items")
        expect(card(page, f"{name}000099")).to_have_count(0)
        page.get_by_role("link", name="First queues").click()
        expect(page.get_by_role("link", name="Next queues")).to_be_visible()
        expect(page.get_by_role("link", name="First queues")).to_be_hidden()
        client.delete(f"/queue/{name}000000")
        expect(card(page, f"{name}000000")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_on_a_phone(
    browser: Browser, serve: Any, name: str, scheme: Any, tmp_path: Path
) -> None:
    with serve() as (_, client):
        client.post(f"/queue/{name}{'x' * 120}/push", json={"item": {"text": "y" * 300}})
        page = browser.new_page(viewport={"width": 360, "height": 640}, color_scheme=scheme)
        page.goto(str(client.base_url))
        page.get_by_text("Next items").first.click()
        expect(page.locator("pre").first).to_contain_text("yyy")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.screenshot(path=tmp_path / f"{scheme}.png")
        page.close()


def test_the_page_recovers_after_the_server_was_unreachable(
    page: Page, serve: Any, name: str
) -> None:
    with serve() as (process, client):
        page.goto(str(client.base_url))
        expect(page.get_by_role("status")).to_have_text("Live")
        process.terminate()
        expect(page.get_by_role("status")).to_contain_text("Not connected")
        page.goto("about:blank")
