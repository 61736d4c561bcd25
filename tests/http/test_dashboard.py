"""The dashboard in a real browser: what one can do on each page, accessibility, phones."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from starlette.testclient import TestClient

import fdbqueue
from fdbqueue import PriorityQueue, TaskQueue, Worker
from fdbqueue.http import Tokens, create_app
from fdbqueue.jobs import Context, Dead, Handle
from fdbqueue.types import Progress
from fdbqueue.worker.claiming import Source, Turns
from tests.support.chromium import CHROMIUM, in_chromium
from tests.support.keys import push_undecodable
from tests.support.many_queues import make_queues

ROOT = Path(__file__).parents[2]
AXE = Path(os.environ.get("AXE_PATH") or ROOT / "node_modules" / "axe-core" / "axe.min.js")

with_axe = pytest.mark.skipif(
    not AXE.exists(), reason=f"there is no axe-core at {AXE}; run `npm install --no-save axe-core`"
)

STATES = ("ready", "delayed", "claimed", "dead", "done")
HOUR = 3600 * 10**9  # nanoseconds

pytestmark = in_chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=60_000)  # milliseconds; the machine may be busy
    with sync_playwright() as playwright:
        # The sandbox needs rights that containers lack; the pages are trusted.
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Return a page; its console must show no errors except a lost server."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    said: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(str(error)))
    yield page
    page.close()
    ignored = ("error: Failed to load resource", "debug: ", "verbose: ")
    assert [text for text in said if not text.startswith(ignored)] == []


def address(client: Any, queue: str | None = None, *parts: str, query: str = "") -> str:
    """Return the address of a page."""
    path = "/".join(quote(part, safe="") for part in ("queues", queue, *parts)) if queue else ""
    return f"{str(client.base_url).rstrip('/')}/#/{path}{query}"


def queue_row(page: Page, name: str) -> Any:
    link = page.get_by_role("link", name=name, exact=True)
    return page.get_by_role("table", name="Queues").get_by_role("row").filter(has=link)


def item_rows(page: Page) -> Any:
    return page.locator(".items tbody tr")


def tab(page: Page, state: str) -> Any:
    return page.get_by_role("navigation", name="States").locator(f"[data-state={state}]")


def button(page: Page, name: str) -> Any:
    return page.get_by_role("main").get_by_role("button", name=name, exact=True)


def confirm(page: Page, name: str) -> None:
    page.get_by_role("dialog").get_by_role("button", name=name, exact=True).click()


def toast(page: Page) -> Any:
    return page.locator("#toasts")


def fail(item: Any) -> None:
    """Fail, as a handler of jobs."""
    raise ConnectionError(f"cannot reach {item.value['to']}")


def dead_letters(db: Any, name: str, *receivers: str) -> PriorityQueue:
    """Return a queue whose items have failed twice, and are dead."""
    queue = PriorityQueue.named(db, name, max_attempts=2)
    for receiver in receivers:
        queue.push(db, {"to": receiver, "lines": [{"article": "ink"}]}, 5)
    worker = Worker(db, queue, fail, name="mailer")
    worker.run(drain=True)
    queue.change_all(db, "retry", state="delayed")
    worker.run(drain=True)
    assert queue.stats(db).dead == len(receivers)
    return queue


def one_in_each_state(db: Any, name: str) -> PriorityQueue:
    """Return a queue with one ready item, two delayed ones, and so on to five done ones."""
    queue = PriorityQueue.named(db, name, keep=100, max_attempts=1)
    for _ in range(5):
        queue.push(db, "done")
    for _ in range(5):
        queue.ack(db, queue.claim(db))
    for _ in range(4):
        queue.push(db, "dead")
    for _ in range(4):
        queue.nack(db, queue.claim(db), error="ValueError: broken")
    for _ in range(3):
        queue.push(db, "claimed")
    for _ in range(3):
        queue.claim(db, lease=600, client="ada")
    for _ in range(2):
        queue.push(db, "delayed", delay=600)
    queue.push(db, {"state": "ready"})
    return queue


# The files


def test_the_files_are_open_and_the_browser_keeps_them(db: Any) -> None:
    with TestClient(create_app(db, tokens=Tokens(["secret"])), "http://any.example") as client:
        page = client.get("/")
        assert page.status_code == 200
        names = re.findall(r'(?:src|href)="dashboard/([^"]+)"', page.text)
        assert {"app.js", "dashboard.css", "icon.svg", "theme.js"} == set(names)
        script = client.get("/dashboard/app.js")
        assert script.headers["content-type"] == "text/javascript; charset=utf-8"
        again = {"if-none-match": script.headers["etag"]}
        assert client.get("/dashboard/app.js", headers=again).status_code == 304
        for each in ("nothing.js", "..%2Fapp.py", "%2e%2e/app.py"):
            assert client.get(f"/dashboard/{each}").status_code in (401, 404)


def test_the_policy_allows_only_files_of_the_server(db: Any) -> None:
    with TestClient(create_app(db), "http://127.0.0.1") as client:
        policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    for path in (ROOT / "fdbqueue" / "http" / "static").glob("*.js"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", path.read_text()
        )


# The overview


def test_queues_appear_change_and_disappear_without_a_reload(
    page: Page, serve: Any, name: str
) -> None:
    with serve() as (_, client):
        page.goto(address(client))
        expect(page.locator("#status")).to_have_text("Live")
        for priority in (0, 0, 1000):
            client.post(f"/v1/queues/{name}/push", json={"item": {}, "priority": priority})
        shown = queue_row(page, name)
        expect(shown).to_contain_text("3 ready")
        client.post(f"/v1/queues/{name}/pop", json={"n": 2})
        expect(shown).to_contain_text("1 ready")
        expect(shown).to_contain_text(re.compile(r"[1-9.]+/s out"))
        client.post(f"/v1/queues/{name}/pause")
        expect(shown).to_contain_text("paused")
        client.delete(f"/v1/queues/{name}")
        expect(shown).to_have_count(0)


def test_the_overview_alerts(page: Page, serve: Any, db: Any, name: str) -> None:
    dead_letters(db, f"{name}dead", "ada", "bob")
    PriorityQueue.named(db, f"{name}alone").push(db, 1)
    PriorityQueue.named(db, f"{name}quiet").push(db, 1, delay=600)
    PriorityQueue.named(db, f"{name}odd").push(db, {"job": "shop.send"})
    fdbqueue.App(db).work(f"{name}odd", drain=True)
    with serve() as (_, client):
        page.goto(address(client))
        alerts = page.get_by_role("region", name="Alerts")
        expect(alerts).to_contain_text(f"{name}deadhas 2 dead letters")
        expect(alerts).to_contain_text(f"{name}alonehas 1 ready item and no worker")
        expect(alerts).to_contain_text(f"{name}oddhas 1 job that no worker knows")
        expect(alerts).not_to_contain_text(f"{name}quiet")
        page.get_by_label("Show", exact=True).select_option("With alerts")
        expect(queue_row(page, f"{name}quiet")).to_have_count(0)
        expect(queue_row(page, f"{name}alone")).to_have_count(1)
        alerts.get_by_role("link", name=f"{name}dead").click()
        expect(page.get_by_role("heading", name=f"{name}dead")).to_be_focused()
        expect(item_rows(page)).to_have_count(2)
        page.goto(address(client, f"{name}odd"))
        expect(page.locator(".title")).to_contain_text("1 unknown job")


def test_a_long_wait_is_an_alert(page: Page, serve: Any, db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name)
    queue.push_many(db, [1, 2])
    queue.claim(db, lease=600)  # a client works on the queue
    with serve() as (_, client):
        page.clock.install()
        page.goto(address(client))
        expect(queue_row(page, name)).to_contain_text("1 claimed")
        expect(queue_row(page, name)).not_to_contain_text("long wait")
        page.evaluate("localStorage.setItem('longest-wait', '0.001')")
        page.reload()
        expect(queue_row(page, name)).to_contain_text("long wait")


def test_thousands_of_queues_can_be_searched_and_paged(
    page: Page, serve: Any, db: Any, name: str
) -> None:
    make_queues(db, name, 2500, busy={2400})
    with serve() as (_, client):
        page.goto(address(client))
        pager = page.get_by_role("navigation", name="Pages")
        search = page.get_by_label("Search queues")
        search.fill(name)
        expect(pager).to_contain_text("of 2,500 queues", timeout=30_000)
        rows = page.locator(".queues tbody tr")
        expect(rows).to_have_count(50)
        pager.get_by_role("button", name="Next").click()
        expect(queue_row(page, f"{name}000050")).to_have_count(1)
        search.fill(f"{name}0024")
        expect(pager).to_contain_text("of 100 queues")
        expect(queue_row(page, f"{name}002400")).to_contain_text("2 ready")
        page.get_by_label("Sort by").select_option("Most ready")
        page.get_by_label("Show", exact=True).select_option("With items")
        expect(rows).to_have_count(1)
        search.fill("no such queue")
        expect(page.get_by_text("No queue matches.")).to_be_visible()


def test_without_queues_the_overview_says_how_to_begin(
    page: Page, serve: Any, db: Any, engine: str
) -> None:
    if engine == "cluster":
        pytest.skip("the cluster may have queues of other tests")
    with serve() as (_, client):
        page.goto(address(client))
        expect(page.get_by_text("There are no queues yet.")).to_be_visible()
        expect(page.get_by_text("fdbq push")).to_be_visible()


def test_an_item_is_pushed(page: Page, serve: Any, db: Any, name: str) -> None:
    with serve() as (_, client):
        page.goto(address(client))
        button(page, "Push an item").click()
        page.get_by_label("Queue", exact=True).fill(name)
        page.get_by_label("Item, as JSON").fill('{"to": ')
        confirm(page, "Push")
        expect(page.get_by_role("dialog")).to_contain_text("the item is not JSON")
        page.get_by_label("Item, as JSON").fill('{"to": "ada"}')
        page.get_by_label("Priority", exact=True).fill("1.5")
        confirm(page, "Push")
        expect(page.get_by_role("dialog")).to_contain_text(f"There is no queue named {name}.")
        confirm(page, "Push")
        expect(page.get_by_role("dialog")).to_contain_text("integer")
        page.get_by_label("Priority", exact=True).fill("7")
        page.get_by_label("Delay").fill("soon")
        confirm(page, "Push")
        expect(page.get_by_role("dialog")).to_contain_text("the delay is a length of time")
        page.get_by_label("Delay").fill("0s")
        confirm(page, "Push")
        expect(queue_row(page, name)).to_contain_text("1 ready")
    assert PriorityQueue.named(db, name).stats(db).by_priority == {7: 1}


# A queue


def test_a_queue_shows_its_items_in_all_states(page: Page, serve: Any, db: Any, name: str) -> None:
    one_in_each_state(db, name)
    with serve() as (_, client):
        page.goto(address(client, name))
        for count, state in enumerate(STATES, 1):
            expect(tab(page, state)).to_have_text(f"{state}{count}")
            tab(page, state).click()
            expect(item_rows(page)).to_have_count(count)
            expect(page.get_by_role("table", name=f"Items that are {state}")).to_be_visible()
            assert page.url.endswith(f"state={state}")
        tab(page, "claimed").click()
        expect(item_rows(page).first).to_contain_text("ada")
        page.reload()  # the address has the state
        expect(item_rows(page)).to_have_count(3)
        expect(page.get_by_role("region", name="Totals")).to_contain_text("pushed15")


def test_items_are_filtered(page: Page, serve: Any, db: Any, name: str) -> None:
    queue = dead_letters(db, name, "ada", "bob")
    queue.push_many(db, ["low", "high", "high"], priorities=[1, 9, 9])
    tasks = TaskQueue.named(db, f"{name}tasks")
    for agent in ("ada", "bob", "bob"):
        tasks.push(db, agent_name=agent, payload=agent)
    with serve() as (_, client):
        page.goto(address(client, name, query="?state=dead"))
        expect(item_rows(page)).to_have_count(2)
        errors = page.get_by_role("list", name="Errors")
        expect(errors.get_by_role("listitem")).to_have_text(
            [
                "1 \u00d7ConnectionError: cannot reach bob",
                "1 \u00d7ConnectionError: cannot reach ada",
            ]
        )
        errors.get_by_role("button", name="ada").click()
        expect(item_rows(page)).to_have_count(1)
        page.get_by_label("Error contains").fill("")
        expect(item_rows(page)).to_have_count(2)
        page.get_by_role("heading", level=1).focus()
        page.keyboard.press("/")
        page.keyboard.type("reach BOB")
        expect(item_rows(page)).to_have_count(1)
        expect(page.get_by_text("1 item matches.")).to_be_visible()
        assert "error=reach+BOB" in page.url
        page.goto(address(client, name, query="?state=ready"))
        expect(item_rows(page)).to_have_count(3)
        page.get_by_label("Priority", exact=True).fill("9")
        expect(item_rows(page)).to_have_count(2)
        page.get_by_label("Priority", exact=True).fill("x")
        expect(page.get_by_text("The filter is invalid.")).to_be_visible()
        page.get_by_label("Priority", exact=True).fill("1")
        expect(item_rows(page)).to_have_count(1)
        page.goto(address(client, f"{name}tasks"))
        page.get_by_label("Agent").fill("bob")
        expect(item_rows(page)).to_have_count(2)
        id = next(iter(tasks.items(db, state="ready"))).id
        page.get_by_label("Id", exact=True).fill(id[-8:])
        expect(item_rows(page)).to_have_count(0)
        page.get_by_label("Agent").fill("")
        expect(item_rows(page)).to_have_count(1)
        page.keyboard.press("Escape")
        page.get_by_label("Id", exact=True).press("Enter")
        expect(toast(page)).to_contain_text("No item has exactly this id.")
        page.get_by_label("Id", exact=True).fill(id)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name=id)).to_be_focused()


def test_claimed_items_are_filtered_by_their_client(
    page: Page, serve: Any, db: Any, name: str
) -> None:
    queue = PriorityQueue.named(db, name)
    for client_name in ("mail-1", "mail-2", "images"):
        queue.push(db, client_name)
        queue.claim(db, lease=600, client=client_name)
    with serve() as (_, client):
        page.goto(address(client, name, query="?state=claimed"))
        page.get_by_label("Held by").fill("MAIL")
        expect(item_rows(page)).to_have_count(2)
        button(page, "Release matches").click()
        expect(page.get_by_role("dialog")).to_contain_text(
            f"This affects 2 claimed items of {name}: all that are held by a client"
        )
        confirm(page, "Release 2")
        expect(page.get_by_text("No item matches the filters.")).to_be_visible()
        tab(page, "ready").click()  # which has no such filter
        expect(item_rows(page)).to_have_count(2)
        expect(page.get_by_label("Held by")).to_be_hidden()
    assert queue.stats(db).claimed == 1


def test_a_search_goes_on_behind_the_items_that_were_looked_at(
    page: Page, serve: Any, db: Any, name: str
) -> None:
    queue = TaskQueue.named(db, name)
    queue.push_many(db, [{"agent_name": "ada"}] * 1010)
    queue.push_many(db, [{"agent_name": "bob"}] * 3)
    # Let a request look at 1,000 items instead of 10,000: a page with so many rows is slow.
    page.route("**/items?*", lambda route: route.continue_(url=f"{route.request.url}&scan=1000"))
    with serve() as (_, client):
        page.goto(address(client, name))
        foot = page.get_by_role("region", name="Items").get_by_role("status")
        expect(foot).to_have_text("The first 100 of 1,013 are shown.")
        button(page, "Load more").click()
        expect(item_rows(page)).to_have_count(600)
        expect(foot).to_contain_text("The first 600 of 1,013 are shown. As of ")
        button(page, "Refresh").click()
        expect(item_rows(page)).to_have_count(100)
        button(page, "Load more").click()
        expect(item_rows(page)).to_have_count(600)
        # The task is gone behind which the next page begins.
        last = item_rows(page).last.get_by_role("link").get_attribute("title")
        assert last is not None
        assert queue.remove(db, last)
        button(page, "Load more").click()
        expect(item_rows(page)).to_have_count(1013)
        page.get_by_label("Agent").fill("bob")
        expect(page.get_by_text("No item matches so far.")).to_be_visible()
        expect(foot).to_have_text("0 matches among the first 1,000 ready items.")
        button(page, "Remove matches").click()
        expect(page.get_by_role("dialog")).to_contain_text("This affects 3 ready items")
        confirm(page, "Cancel")
        button(page, "Keep searching").click()
        expect(item_rows(page)).to_have_count(3)
        expect(foot).to_contain_text("3 items match. As of ")
        item_rows(page).first.get_by_role("button", name="Remove").click()
        confirm(page, "Remove")
        expect(item_rows(page)).to_have_count(2)
        button(page, "Remove matches").click()
        expect(page.get_by_role("dialog")).to_contain_text("This affects 2 ready items")
        # Another client pushes an item that the question does not count.
        queue.push(db, agent_name="bob")
        confirm(page, "Remove 2")
        expect(toast(page)).to_contain_text("2 items were removed.")
        expect(tab(page, "ready")).to_have_text("ready1,010")
    assert queue.count(db, state="ready", agent="bob").count == 1


def test_one_dead_letter_and_then_all_are_retried(
    page: Page, serve: Any, db: Any, name: str
) -> None:
    queue = dead_letters(db, name, "ada", "bob", "cyd", "dan")
    with serve() as (_, client):
        page.goto(address(client, name, query="?state=dead"))
        expect(item_rows(page)).to_have_count(4)
        item_rows(page).first.get_by_role("button", name="Retry").click()
        expect(toast(page)).to_contain_text("The item was retried.")
        expect(item_rows(page)).to_have_count(3)
        expect(item_rows(page).first.get_by_role("link")).to_be_focused()
        page.get_by_label("Error contains").fill("cyd")
        button(page, "Retry matches").click()
        confirm(page, "Retry 1")
        expect(page.get_by_text("No item matches")).to_be_visible()
        assert queue.stats(db).dead == 2
        page.get_by_label("Error contains").fill("")
        button(page, "Retry all").click()
        expect(page.get_by_role("dialog")).to_contain_text("This affects 2 dead letters")
        confirm(page, "Cancel")
        assert queue.stats(db).dead == 2
        button(page, "Retry all").click()
        confirm(page, "Retry 2")
        expect(toast(page)).to_contain_text("2 items were retried.")
        expect(page.get_by_text("There are no dead letters.")).to_be_visible()
        expect(tab(page, "ready")).to_have_text("ready4")
    assert queue.stats(db).ready == 4


def test_dead_letters_are_listed_by_the_time_of_their_death(
    page: Page, serve: Any, db: Any, name: str
) -> None:
    queue = PriorityQueue.named(db, name, max_attempts=1)
    queue.push_many(db, ["first", "second", "third"], priorities=[1, 2, 3])
    claims = [queue.claim(db) for _ in range(3)]
    for place in (1, 0, 2):
        queue.nack(db, claims[place])
        time.sleep(0.005)  # times are stored in milliseconds
    with serve() as (_, client):
        page.goto(address(client, name, query="?state=dead"))
        payloads = page.locator(".items .payload")
        expect(payloads).to_have_text(["third", "first", "second"])
        page.get_by_label("Order").select_option("Next first")
        expect(payloads).to_have_text(["first", "second", "third"])
        page.get_by_label("Order").select_option("Last first")
        expect(payloads).to_have_text(["third", "second", "first"])


def test_more_dead_letters_than_a_response_has_are_sorted_together(
    page: Page, serve: Any, db: Any, name: str
) -> None:
    queue = PriorityQueue.named(db, name, max_attempts=1)
    queue.push_many(db, range(520))
    for _ in range(520):
        queue.nack(db, queue.claim(db))
    with serve() as (_, client):
        page.goto(address(client, name, query="?state=dead"))
        expect(page.locator(".items .payload").first).to_have_text("519")
        expect(page.locator(".items .payload")).to_have_count(520)


def test_selected_items_are_changed_together(page: Page, serve: Any, db: Any, name: str) -> None:
    queue = dead_letters(db, name, "ada", "bob", "cyd", "dan")
    with serve() as (_, client):
        page.goto(address(client, name, query="?state=dead"))
        boxes = item_rows(page).get_by_role("checkbox")
        for n in (0, 1):
            boxes.nth(n).check()
        button(page, "Select none").click()
        expect(button(page, "Retry all")).to_be_visible()
        expect(page.locator(".items input:checked")).to_have_count(0)
        for n in (1, 3):
            boxes.nth(n).check()
        button(page, "Retry 2 selected").click()
        expect(page.get_by_role("dialog")).to_contain_text(
            f"This affects 2 dead letters of {name}, which you selected."
        )
        confirm(page, "Retry 2")
        expect(toast(page)).to_contain_text("2 items were retried.")
        expect(item_rows(page)).to_have_count(2)
        boxes.nth(0).check()
        expect(button(page, "Remove 1 selected")).to_be_visible()
        tab(page, "ready").click()
        boxes.nth(0).check()
        button(page, "Remove 1 selected").click()
        confirm(page, "Remove 1")
        expect(item_rows(page)).to_have_count(1)
    assert [info.item.value["to"] for info in queue.items(db, state="dead")] == ["bob", "dan"]


def test_a_running_job_is_cancelled_and_shows_its_progress(
    page: Page, serve: Any, db: Any, name: str
) -> None:
    queue = PriorityQueue.named(db, name)
    queue.push_many(db, [{"job": "shop.report", "args": [n]} for n in range(3)])
    claims = [queue.claim(db, lease=600, client="ada") for _ in range(3)]
    said = Progress(0.4, "page 4")
    queue.extend(db, claims[0], 600, progress=said, log="10:00:00.000 page 3 is done\n")
    with serve() as (_, client):
        page.goto(address(client, name, query="?state=claimed"))
        first = item_rows(page).first
        expect(first).to_contain_text("shop.report(0)")
        expect(first).to_contain_text("40 %, page 4")
        expect(first.get_by_role("progressbar")).to_have_attribute("value", "0.4")
        expect(page.get_by_role("progressbar")).to_have_count(1)
        first.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("dialog")).to_contain_text("does not run again")
        confirm(page, "Go back")
        first.get_by_role("button", name="Cancel").click()
        confirm(page, "Cancel")
        expect(first).to_contain_text("cancelled")
        for n in (1, 2):
            item_rows(page).nth(n).get_by_role("checkbox").check()
        button(page, "Cancel 2 selected").click()
        confirm(page, "Cancel 2")
        expect(page.locator(".items .badge", has_text="cancelled")).to_have_count(3)
        assert claims[0] is not None
        page.goto(address(client, name, "items", claims[0].item.id))
        expect(page.get_by_role("main")).to_contain_text("It was cancelled")
        expect(page.get_by_role("progressbar")).to_have_count(1)
        expect(page.get_by_role("region", name="Call")).to_have_text("shop.report(0)")
        expect(page.get_by_role("region", name="Log", exact=True)).to_contain_text("page 3 is done")
    assert all(info.cancelling for info in queue.items(db, state="claimed"))


def jobs_in_all_states(db: Any, name: str) -> PriorityQueue:
    """Return a queue with done, dead and ready jobs of two names."""
    queue = PriorityQueue.named(db, name, keep=100, max_attempts=1)
    for n in range(4):
        queue.push(db, {"job": "shop.send", "args": [f"ada{n}"], "kwargs": {"subject": "hi"}})
        queue.ack(db, queue.claim(db))
    queue.push(db, {"job": "shop.send", "args": ["bob"]})
    queue.nack(db, queue.claim(db), error="busy")
    queue.push(db, {"job": "shop.sweep"})
    queue.push(db, "no job")
    return queue


def test_jobs_are_listed_by_name(page: Page, serve: Any, db: Any, name: str) -> None:
    jobs_in_all_states(db, name)
    with serve() as (_, client):
        page.goto(address(client).removesuffix("/") + "/jobs")
        rows = page.get_by_role("table", name="Jobs").get_by_role("row").filter(has_text=name)
        expect(rows).to_have_count(2)
        expect(page.get_by_text("up to 500 items in each state of each queue")).to_be_visible()
        sent = rows.filter(has_text="shop.send").get_by_role("cell")
        expect(sent.nth(2)).to_have_text("4")
        expect(sent.nth(3)).to_have_text(re.compile(r"^[<\d.,]+/(s|min|h)$"))
        expect(sent.nth(4)).to_have_text(re.compile(r"ms$"))
        expect(sent.nth(5)).to_have_text(re.compile(r"ms$"))
        expect(sent.nth(6)).to_have_text("1")
        expect(rows.filter(has_text="shop.sweep").get_by_role("cell").nth(4)).to_have_text("\u2013")
        sent.nth(10).get_by_role("link", name="1").click()
        expect(page.get_by_role("heading", name=name)).to_be_focused()
        expect(item_rows(page)).to_have_text([re.compile(r'shop\.send\("bob"\)')])
        expect(page.get_by_label("Job")).to_have_value("shop.send")
        page.get_by_label("Job").fill("sweep")
        expect(page.get_by_text("No item matches the filters.")).to_be_visible()
        tab(page, "done").click()
        page.get_by_label("Job").fill("send")
        expect(item_rows(page)).to_have_count(4)
        expect(item_rows(page).first).to_contain_text('shop.send("ada3", subject="hi")')
        expect(item_rows(page).first).to_contain_text(" ms")


def test_the_name_of_a_job_breaks_between_its_words(
    browser: Browser, serve: Any, db: Any, name: str
) -> None:
    job = "warehouse.orders.confirmations.send_confirmation_of_shipment"
    PriorityQueue.named(db, name).push(db, {"job": job, "args": []})
    with serve() as (_, client):
        page = browser.new_page(viewport={"width": 1100, "height": 640})
        page.goto(address(client).removesuffix("/") + "/jobs")
        cell = page.get_by_role("cell", name=job)
        expect(cell).to_be_visible()
        lines = cell.evaluate(
            """(cell) => [...cell.querySelector("strong").childNodes].filter(({ data }) => data)
            .map((text) => { const range = document.createRange(); range.selectNode(text);
              return [text.data, range.getClientRects().length]; })"""
        )
        page.close()
    words = ["warehouse.", "orders.", "confirmations.", "send_", "confirmation_", "of_", "shipment"]
    assert lines == [[word, 1] for word in words]


def test_charts_begin_with_what_the_server_remembers(
    page: Page, serve: Any, db: Any, name: str
) -> None:
    jobs_in_all_states(db, name)
    with serve() as (_, client):
        page.goto(address(client))
        chart = queue_row(page, name).locator(".sparkline")
        # Nothing has happened since the page was opened.
        expect(queue_row(page, name)).to_contain_text("idle")
        expect(chart).not_to_have_class(re.compile("is-idle"))
        expect(chart.locator(".line.in")).to_have_attribute("d", re.compile(r"^M0\.0 "))


def test_a_traceback_begins_with_the_function_of_the_user(
    page: Page, serve: Any, db: Any, name: str
) -> None:
    queue = dead_letters(db, name, "ada")
    (info,) = queue.items(db, state="dead")
    with serve() as (_, client):
        page.goto(address(client, name, "items", info.id))
        traceback = page.get_by_role("region", name="Traceback of attempt 2")
        expect(traceback.get_by_text("worker/running.py").first).to_be_hidden()
        expect(traceback.get_by_text(f'File "{__file__}"')).to_be_visible()
        traceback.get_by_text(re.compile(r"^\d+ frames of fdbqueue$")).click()
        expect(traceback.get_by_text("worker/running.py").first).to_be_visible()


def test_items_of_a_priority_are_removed_and_claimed_ones_released(
    page: Page, serve: Any, db: Any, name: str
) -> None:
    queue = PriorityQueue.named(db, name)
    queue.push_many(db, [1, 2, 3], priorities=[1, 9, 9])
    with serve() as (_, client):
        page.goto(address(client, name, query="?priority=9"))
        expect(item_rows(page)).to_have_count(2)
        button(page, "Remove matches").click()
        expect(page.get_by_role("dialog")).to_contain_text("2 ready items")
        expect(page.get_by_role("dialog")).to_contain_text("priority 9")
        confirm(page, "Remove 2")
        expect(toast(page)).to_contain_text("2 items were removed.")
        queue.claim(db, lease=600)
        page.goto(address(client, name, query="?state=claimed"))
        button(page, "Release all").click()
        confirm(page, "Release 1")
        expect(toast(page)).to_contain_text("1 item was released.")
    assert queue.stats(db).by_priority == {1: 1}


def test_a_queue_is_paused_resumed_and_dropped(page: Page, serve: Any, db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name)
    queue.push(db, 1)
    with serve() as (_, client):
        page.goto(address(client, name))
        button(page, "Pause").click()
        expect(button(page, "Resume")).to_be_visible()
        expect(page.get_by_role("main")).to_contain_text("paused")
        assert queue.stats(db).paused
        button(page, "Resume").click()
        expect(button(page, "Pause")).to_be_visible()
        assert not queue.stats(db).paused
        button(page, "Drop").click()
        expect(page.get_by_role("dialog")).to_contain_text("1 ready")
        page.get_by_label("Type the name").fill("another")
        confirm(page, "Drop")
        expect(page.get_by_role("dialog")).to_contain_text("not the name")
        page.get_by_label("Type the name").fill(name)
        confirm(page, "Drop")
        expect(page.get_by_role("heading", name="Overview")).to_be_focused()
    assert name not in fdbqueue.admin.queue_names(db)


def test_a_queue_is_renamed_and_cleared(page: Page, serve: Any, db: Any, name: str) -> None:
    one_in_each_state(db, name)
    PriorityQueue.named(db, f"{name}taken").push(db, 1)
    everything = "1 ready, 2 delayed, 3 claimed, 4 dead, 5 done"
    with serve() as (_, client):
        page.goto(address(client, name))
        dialog = page.get_by_role("dialog")
        button(page, "Rename").click()
        expect(dialog).to_contain_text(everything)
        expect(page.get_by_label("New name")).to_have_value(name)
        page.get_by_label("New name").fill(f"{name}taken")
        confirm(page, "Rename")
        expect(dialog.get_by_role("alert")).to_contain_text("taken")
        page.get_by_label("New name").fill(f"{name}/new")
        confirm(page, "Rename")
        expect(page.get_by_role("heading", level=1)).to_have_text(f"{name}/new")
        expect(tab(page, "dead")).to_have_text("dead4")
        button(page, "Clear").click()
        expect(dialog).to_contain_text(everything)
        expect(dialog).to_contain_text("The queue and its options stay.")
        page.get_by_label("Type the name").fill(name)
        confirm(page, "Clear")
        expect(dialog.get_by_role("alert")).to_contain_text("not the name")
        page.get_by_label("Type the name").fill(f"{name}/new")
        confirm(page, "Clear")
        expect(toast(page).last).to_contain_text("15 items were removed.")
        expect(tab(page, "dead")).to_have_text("dead0")
    stats = PriorityQueue.existing(db, f"{name}/new").stats(db)
    assert (stats.ready, stats.dead, stats.done) == (0, 0, 0)
    assert name not in fdbqueue.admin.queue_names(db)


def test_a_limit_is_changed_and_never_overwritten_silently(
    page: Page, serve: Any, db: Any, name: str
) -> None:
    queue = PriorityQueue.named(db, name, max_attempts=3)
    queue.push(db, 1)
    with serve() as (_, client):
        page.goto(address(client, name))
        button(page, "Options").click()
        page.get_by_label("Maximum size").fill("50")
        confirm(page, "Save")
        expect(page.get_by_role("region", name="Limits")).to_contain_text("Maximum size50")
        assert queue.options(db).max_size == 50
        button(page, "Options").click()
        page.get_by_label("Keep done items for").fill("7 days")
        confirm(page, "Save")
        expect(page.get_by_role("alert")).to_contain_text("Keep done items for is a length of time")
        page.get_by_label("Keep done items for").fill("7d")
        confirm(page, "Save")
        expect(page.get_by_role("region", name="Limits")).to_contain_text("Keep done items for7d")
        assert queue.options(db).keep_seconds == 604_800
        button(page, "Options").click()
        expect(page.get_by_label("Keep done items for")).to_have_value("7d")
        dialog = page.get_by_role("dialog")
        page.get_by_label("Maximum size").fill("60")
        page.get_by_label("Maximum attempts").fill("9")
        queue.configure(db, max_attempts=5)
        confirm(page, "Save")
        expect(dialog.get_by_role("alert")).to_contain_text(
            "Maximum attempts: was 3, is now 5; you entered 9"
        )
        expect(page.get_by_label("Maximum attempts")).to_have_value("5")
        expect(page.get_by_label("Maximum size")).to_have_value("60")
        assert (queue.options(db).max_size, queue.options(db).max_attempts) == (50, 5)
        confirm(page, "Save")
        expect(dialog).to_have_count(0)
    assert (queue.options(db).max_size, queue.options(db).max_attempts) == (60, 5)


def test_an_unknown_queue_item_or_page_is_explained(
    page: Page, serve: Any, db: Any, name: str
) -> None:
    PriorityQueue.named(db, name).push(db, 1)
    with serve() as (_, client):
        page.goto(address(client, f"{name}gone"))
        expect(page.get_by_text("There is no such queue.")).to_be_visible()
        client.post(f"/v1/queues/{name}gone/push", json={"item": 1})
        expect(item_rows(page)).to_have_count(1)
        page.goto(address(client, name, "items", "nothing"))
        expect(page.get_by_text("The item c").or_(page.get_by_text("The item is"))).to_be_visible()
        page.goto(f"{client.base_url}/#/nowhere/at/all")
        expect(page.get_by_role("heading", name="There is no such page")).to_be_visible()


# The history of a queue


def history_card(page: Page) -> Any:
    return page.get_by_role("region", name="Items in and out")


def history_rows(page: Page) -> list[list[str]]:
    """Return the cells of the table of the history, without the times."""
    rows = history_card(page).locator("tbody tr")
    return [row.locator("td").all_text_contents() for row in rows.all()]


def test_the_history_shows_what_came_in_went_out_and_failed(
    page: Page, serve: Any, db: Any, name: str
) -> None:
    queue = PriorityQueue.named(db, name, max_attempts=1)
    queue.push_many(db, range(1200))
    queue.pop_many(db, 700)
    queue.nack(db, queue.claim(db, n=3), error="broken")
    with serve() as (_, client):
        page.goto(address(client, name))
        card = history_card(page)
        expect(card.get_by_role("radio", name="5 min")).to_be_checked()
        expect(card).to_contain_text("Died3")
        expect(card).to_contain_text(re.compile(r"Median wait[\d.]+ (ms|s|min)"))
        drawing = card.get_by_role("img")
        expect(drawing).to_have_attribute(
            "aria-label", re.compile("in the last 5 minutes: in .*/s")
        )
        card.get_by_text("As a table").click()
        expect(card.locator("tbody tr").first).to_be_visible()
        # The 30 seconds may have ended between the calls above.
        columns = zip(*history_rows(page), strict=True)
        sums = [sum(int(text.replace(",", "")) for text in column) for column in columns]
        assert sums == [1200, 703, 3]
        card.get_by_role("radio", name="1 hour").check()
        expect(drawing).to_have_attribute("aria-label", re.compile("in the last hour: in .*/min"))
        page.reload()
        expect(card.get_by_role("radio", name="1 hour")).to_be_checked()
        expect(card).to_contain_text("Died3")


def made_history(seconds: int, since: datetime, **fields: Any) -> dict[str, Any]:
    """Return a window of a history as the server sends it, without the fields that are 0."""
    counts = dict.fromkeys(("pushed", "taken", "completed", "failed", "died"), 0)
    times = dict.fromkeys(("waiting_median", "waiting_p95", "running_median", "running_p95"))
    window = {**times, "buckets": [], **counts, **fields}
    for bucket in window["buckets"]:
        bucket |= {**counts, **bucket}
    return {"seconds": seconds, "since": since.isoformat(timespec="milliseconds"), **window}


def test_the_numbers_of_the_history_have_units_that_read_well(
    page: Page, serve: Any, db: Any, name: str
) -> None:
    PriorityQueue.named(db, name).push(db, 1)
    now = datetime.now(timezone.utc)
    begin = now.replace(minute=30 * (now.minute // 30), second=0, microsecond=0)
    times = [(begin - timedelta(minutes=minutes)).isoformat() for minutes in (20, 10)]
    hour = made_history(
        3600,
        now - timedelta(hours=1),
        pushed=43_200,
        taken=720,
        failed=12,
        waiting_median=0.08,
        waiting_p95=754.0,
        running_median=3.5,
        buckets=[
            {"begin": times[0], "pushed": 43_200, "taken": 20},
            {"begin": times[1], "taken": 700, "failed": 12},
        ],
    )
    windows = [made_history(300, now - timedelta(minutes=5)), hour]
    windows.append(made_history(86400, now - timedelta(days=1)))
    with serve() as (_, client):
        page.route("**/history", lambda route: route.fulfill(json={"windows": windows}))
        page.goto(address(client, name))
        card = history_card(page)
        card.get_by_role("radio", name="1 hour").check()
        for text in (
            "In 12/s",
            "Out 0.2/s",
            "Failed <0.1/s",
            "wait80 ms",
            "at most12 min",
            "time3.5 s",
        ):
            expect(card).to_contain_text(text)
        card.get_by_text("As a table").click()
        expect(card.locator("tbody tr")).to_have_count(2)
        assert history_rows(page) == [["0", "700", "12"], ["43,200", "20", "0"]]
        card.get_by_role("radio", name="1 hour").press("ArrowRight")
        expect(card).to_contain_text("Nothing came in or went out in the last day.")
        expect(card).to_contain_text("Median wait\u2013")


# An item


def test_an_item_shows_its_payload_attempts_and_tracebacks(
    page: Page, serve: Any, db: Any, name: str
) -> None:
    queue = dead_letters(db, name, "ada")
    (info,) = queue.items(db, state="dead")
    with serve() as (_, client):
        page.goto(address(client, name, query="?state=dead"))
        item_rows(page).get_by_role("link").click()
        expect(page.get_by_role("heading", name=info.id)).to_be_focused()
        payload = page.get_by_role("region", name="Payload")
        expect(payload).to_contain_text('to: "ada"')
        expect(payload).to_contain_text('article: "ink"')
        payload.get_by_text("lines: ").click()
        expect(payload.get_by_text("article")).to_be_hidden()
        attempts = page.get_by_role("region", name="2 failed attempts")
        expect(attempts.get_by_role("listitem")).to_have_count(2)
        expect(attempts).to_contain_text("Attempt 2")
        expect(attempts).to_contain_text("mailer")
        trace = page.get_by_role("region", name="Traceback of attempt 2")
        expect(trace).to_contain_text("ConnectionError: cannot reach ada")
        expect(trace).to_contain_text("in fail")
        timeline = page.get_by_role("region", name="Timeline").get_by_role("listitem")
        expect(timeline).to_contain_text(
            ["Pushed", "Attempt 1 failed", "Attempt 2 failed", "dead letter"]
        )
        button(page, "Retry").click()
        expect(page.get_by_role("main")).to_contain_text("Ahead of it0 items")
        button(page, "Change priority").click()
        page.get_by_label("Priority", exact=True).fill("8")
        confirm(page, "Change")
        expect(page.get_by_role("region", name="Facts")).to_contain_text("Priority8")
        button(page, "Remove").click()
        confirm(page, "Remove")
        expect(page.get_by_text("The item is gone.")).to_be_visible()
    assert queue.stats(db).is_empty


def test_an_item_shows_its_client_and_is_released(
    page: Page, serve: Any, db: Any, name: str
) -> None:
    queue = PriorityQueue.named(db, name, keep=10)
    item = queue.push(db, [1, 2])
    queue.claim(db, lease=600, client="ada")
    with serve() as (_, client):
        page.goto(address(client, name, "items", item.id))
        main = page.get_by_role("main")
        expect(main).to_contain_text("Held by ada")
        expect(main).to_contain_text("The lease ends in 9 min")
        expect(button(page, "Remove")).to_have_count(0)
        button(page, "Release").click()
        expect(button(page, "Remove")).to_be_visible()
        queue.ack(db, queue.claim(db), result={"sum": 3})
        expect(page.get_by_role("region", name="Result")).to_contain_text("sum: 3")
        expect(page.get_by_role("region", name="Timeline")).to_contain_text("Done")


def test_a_delayed_item_runs_now(page: Page, serve: Any, db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name)
    item = queue.push(db, "later", delay=600)
    with serve() as (_, client):
        page.goto(address(client, name, "items", item.id))
        expect(page.get_by_role("region", name="Facts")).to_contain_text("Duein 9 min")
        button(page, "Run now").click()
        expect(page.get_by_role("main")).to_contain_text("Ahead of it0 items")
    assert queue.stats(db).ready == 1


# Steps and batches


def waiting(db: Any, name: str) -> Handle[Any]:
    """Return a job that waits for a signal, with no time-out."""
    app = fdbqueue.App(db)

    @app.job(queue=name, name="shop.fulfil")
    def fulfil(context: Context, order: str) -> None:
        context.wait("shipped", key=order)

    handle = fulfil.push("order 7")
    app.work(drain=True)
    return handle


def test_a_job_that_waits_for_a_signal_cannot_be_run_now(
    page: Page, serve: Any, db: Any, name: str
) -> None:
    """It is never due: only the signal makes it ready."""
    handle = waiting(db, name)
    queue = PriorityQueue.named(db, name)
    with serve() as (_, client):
        page.goto(address(client, name, "items", handle.id))
        expect(button(page, "Remove")).to_be_visible()
        expect(button(page, "Run now")).to_have_count(0)
        page.goto(address(client, name, query="?state=delayed"))
        expect(item_rows(page)).to_contain_text("waits")
        expect(button(page, "Remove all")).to_be_visible()
        expect(page.get_by_role("button", name="Run now")).to_have_count(0)
        later = queue.push(db, "later", priority=9, delay=600)
        expect(item_rows(page)).to_have_count(2)
        expect(page.get_by_role("button", name="Run now item")).to_have_count(1)
        for n in (0, 1):
            item_rows(page).nth(n).get_by_role("checkbox").check()
        expect(button(page, "Remove 2 selected")).to_be_visible()
        button(page, "Run now 1 selected").click()
        confirm(page, "Run now 1")
        expect(toast(page)).to_contain_text("1 item was made ready.")
        expect(item_rows(page)).to_have_count(1)
    assert (queue.state(db, later), queue.state(db, handle.id)) == ("ready", "delayed")


def test_the_steps_of_a_job_are_a_timeline(page: Page, serve: Any, db: Any, name: str) -> None:
    app = fdbqueue.App(db)

    @app.job(queue=name, name="shop.crop")
    def crop(picture: str) -> str:
        raise Dead(f"no {picture}")

    @app.job(queue=name, name="shop.fulfil")
    def fulfil(context: Context, order: str) -> str:
        context.step("charge", order.upper)
        context.gather("crop", [crop.bind("cover")], return_errors=True)
        parcel = context.wait("shipped", key=order, timeout="3d").value
        context.sleep("cool off", "1h")
        return str(parcel)

    app.queue(name).configure(db, keep=10)
    handle = fulfil.push("order 7")
    app.work(drain=True)
    with serve() as (_, client):
        page.goto(address(client, name, "items", handle.id))
        steps = page.get_by_role("region", name="Steps").get_by_role("listitem")
        expect(steps).to_have_count(3)
        said = (
            "chargeDone 20.*ORDER 7",
            "crop 0runFailed 20.*Job.*Dead: no cover",
            "shippedwaitWaits until 20.* in 2 d 23 hKey order 7",
        )
        for n, text in enumerate(said):
            expect(steps.nth(n)).to_have_text(re.compile(f"^{text}$"))
        expect(page.get_by_role("region", name="Steps")).not_to_contain_text("failure")
        expect(page.get_by_role("button", name="Retry from")).to_have_count(0)
        app.signal(db, "shipped", key="order 7", value="1Z999")
        app.work(drain=True)
        expect(steps).to_have_count(4)
        expect(steps.nth(2)).to_have_text(re.compile("^shippedwaitDone 20.*1Z999$"))
        expect(steps.nth(3)).to_have_text(re.compile("^cool offsleepSleeps until 20.* in 59 min$"))


def test_a_dead_letter_is_retried_from_a_step(page: Page, serve: Any, db: Any, name: str) -> None:
    app = fdbqueue.App(db)

    @app.job(queue=name)
    def build(context: Context) -> None:
        for step in ("fetch", "compile", "link"):
            context.step(step, str)
        raise Dead("no disk")

    handle = build.push()
    app.work(drain=True)
    with serve() as (_, client):
        page.goto(address(client, name, "items", handle.id))
        page.get_by_role("button", name="Retry from here: compile").click()
        expect(page.get_by_role("dialog")).to_contain_text("this step and 1 step after it")
        confirm(page, "Retry")
        expect(toast(page)).to_contain_text("The item was retried.")
        expect(page.get_by_role("region", name="Steps").get_by_role("listitem")).to_have_count(1)
        expect(page.get_by_role("button", name="Retry from")).to_have_count(0)
    assert handle.state() == "ready"


def test_the_progress_of_a_batch_is_shown_from_each_of_its_jobs(
    page: Page, serve: Any, db: Any, name: str
) -> None:
    app = fdbqueue.App(db)

    @app.job(queue=name)
    def send(address: str) -> None:
        if address == "nobody":
            raise Dead("no such address")

    @app.job(queue=f"{name}-reports")
    def report(*, done: int, dead: int, cancelled: int) -> None: ...

    batch = app.batch(then=report)
    for each in ("nobody", "ada", "bob"):
        batch.push(send, each)
    batch.flush()
    queue = app.queue(name)
    last = [*queue.items(db)][-1]
    app.work(name, drain=True, concurrency=1, max_jobs=1)
    with serve() as (_, client):
        page.goto(address(client, name, "items", last.id))
        card = page.get_by_role("region", name="Batch", exact=True)
        expect(card).to_contain_text("1 of 3 jobs ended: 1 dead")
        expect(card).to_contain_text("open")
        expect(button(page, "Close the batch")).to_have_count(0)
        expect(card.get_by_role("progressbar")).to_have_attribute("value", "1")
        card.get_by_role("link").click()
        expect(page.get_by_role("heading", name=batch.id)).to_be_focused()
        expect(card).to_contain_text("This job runs once these have ended.")
        expect(button(page, "Run now")).to_have_count(0)
        button(page, "Close the batch").click()
        confirm(page, "Close")
        expect(card).to_contain_text("closed")
        expect(button(page, "Close the batch")).to_have_count(0)
        app.work(name, drain=True)
        expect(card).to_contain_text("3 of 3 jobs ended: 2 done, 1 deadended")
        expect(page.locator(".title")).to_contain_text("ready")


# Schedules


def schedule_rows(page: Page) -> Any:
    return page.locator(".schedules tbody tr")


def declare(db: Any, name: str) -> fdbqueue.App:
    """Declare an hourly job, as a worker does when it starts."""
    app = fdbqueue.App(db)

    @app.every("1h")
    @app.job(queue=name, name="shop.sweep")
    def sweep() -> None: ...

    app.schedules.store_declared([name])
    return app


def text_of(time: datetime) -> str:
    """Return a time as the pages show it."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def test_schedules_are_listed_with_their_timing_and_ticks(
    page: Page, serve: Any, db: Any, name: str
) -> None:
    declare(db, name)
    schedules = PriorityQueue.named(db, name).schedules
    lisbon: Any = {"cron": "0 3 * * *", "tz": "Europe/Lisbon", "overlap": "skip"}
    schedules.add(db, "nightly", {"of": "sales"}, **lisbon)
    schedules.add(db, "quick", 1, every=1.5)
    nightly = schedules.get(db, "nightly")
    expected = nightly.next_ticks(5)
    with serve() as (_, client):
        page.goto(address(client, name))
        page.get_by_role("link", name="Schedules").click()
        expect(page.get_by_role("heading", name="Schedules")).to_be_focused()
        expect(page.get_by_text("3 schedules. Times are those of this browser")).to_be_visible()
        first, second, third = (schedule_rows(page).nth(n).get_by_role("cell") for n in range(3))
        expect(first.nth(0)).to_have_text('nightly{"of":"sales"}')
        expect(first.nth(1)).to_have_text("0 3 * * *Europe/Lisbonoverlap: skip")
        expect(first.nth(2)).to_have_text("none yet")
        expect(first.nth(3).get_by_role("listitem")).to_have_text([*map(text_of, expected)])
        expect(first.nth(6)).to_have_text("added by a call")
        expect(second.nth(1)).to_have_text("every 1s500ms")
        expect(third.nth(0)).to_have_text("shop.sweepshop.sweep()")
        expect(third.nth(1)).to_have_text("every 1h")
        expect(third.nth(6)).to_have_text(re.compile("now|ago"))


def test_a_schedule_runs_now_and_shows_the_item(page: Page, serve: Any, db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name)
    queue.schedules.add(db, "nightly", {"of": "sales"}, cron="0 3 * * *", overlap="skip")
    with serve() as (_, client):
        page.goto(address(client, name, "schedules"))
        button(page, "Run now nightly").press("Enter")
        expect(toast(page)).to_contain_text("nightly has pushed the item")
        (info,) = queue.items(db, state="ready")
        last = schedule_rows(page).get_by_role("cell").nth(2)
        expect(last).to_contain_text(re.compile(f"(now|ago).*{info.id[-12:]}"))
        expect(schedule_rows(page).get_by_role("cell").nth(4)).to_have_text("1")
        expect(button(page, "Run now nightly")).to_be_focused()
        button(page, "Run now nightly").press("Enter")
        expect(toast(page).last).to_contain_text("the last item of the schedule")
        assert queue.stats(db).ready == 1
        last.get_by_role("link").click()
        expect(page.get_by_role("heading", name=info.id)).to_be_focused()
        expect(page.get_by_role("region", name="Payload")).to_contain_text('of: "sales"')


def test_a_schedule_is_paused_resumed_and_removed(
    page: Page, serve: Any, db: Any, name: str
) -> None:
    schedules = PriorityQueue.named(db, name).schedules
    for each in ("nightly", "weekly"):
        schedules.add(db, each, 1, cron="0 3 * * *")
    with serve() as (_, client):
        page.goto(address(client, name, "schedules"))
        nightly = schedule_rows(page).first
        button(page, "Pause nightly").press("Enter")
        expect(nightly).to_contain_text("nightlypaused")
        expect(nightly).to_contain_text("none while it is paused")
        expect(button(page, "Resume nightly")).to_be_focused()
        assert schedules.all(db)[0].paused
        button(page, "Resume nightly").press("Enter")
        expect(nightly.get_by_role("listitem")).to_have_count(5)
        assert not schedules.all(db)[0].paused
        button(page, "Remove nightly").click()
        expect(page.get_by_role("dialog")).to_contain_text("The items that it has pushed stay.")
        confirm(page, "Cancel")
        button(page, "Remove nightly").click()
        confirm(page, "Remove")
        expect(schedule_rows(page)).to_have_count(1)
        expect(button(page, "Pause weekly")).to_be_focused()
        button(page, "Remove weekly").press("Enter")
        confirm(page, "Remove")
        expect(page.get_by_text(f"{name} has no schedules.")).to_be_visible()
        expect(page.get_by_role("heading", name="Schedules")).to_be_focused()
        # Another client adds one.
        schedules.add(db, "hourly", 1, every="1h")
        expect(schedule_rows(page)).to_have_count(1)


def test_a_schedule_that_no_worker_declares_any_more_is_marked(
    page: Page, serve: Any, db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("fdbqueue.database.clock.time_ns", lambda: time.time_ns() - 25 * HOUR)
        app = declare(db, name)
    with serve() as (_, client):
        page.goto(address(client, name, "schedules"))
        expect(page.get_by_text("1 schedule, 1 stopped.")).to_be_visible()
        sweep = schedule_rows(page)
        expect(sweep).to_contain_text("shop.sweepstopped")
        expect(sweep).to_contain_text("none: no worker has declared it for a day")
        expect(sweep.get_by_role("cell").nth(6)).to_have_text("1 d 1 h ago")
        app.schedules.store_declared([name])  # a worker starts
        expect(sweep).not_to_contain_text("stopped")
        button(page, "Remove shop.sweep").click()
        expect(page.get_by_role("dialog")).to_contain_text("A worker adds it again when it starts")


def test_a_tick_that_no_client_finds_is_marked(
    page: Page, serve: Any, db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules = PriorityQueue.named(db, name).schedules
    with monkeypatch.context() as patch:
        patch.setattr("fdbqueue.database.clock.time_ns", lambda: time.time_ns() - 3 * HOUR)
        schedules.add(db, "hourly", 1, every="1h")
    with serve() as (_, client):
        page.goto(address(client, name, "schedules"))
        hourly = schedule_rows(page)
        expect(hourly).to_contain_text("hourlyoverdue")
        expect(hourly).to_contain_text(re.compile(r"due [23] h.* ago.*no client takes items"))
        assert PriorityQueue.named(db, name).pop(db) is not None
        expect(hourly.get_by_role("listitem")).to_have_count(5)


def test_queues_that_have_no_schedules_say_so(page: Page, serve: Any, db: Any, name: str) -> None:
    PriorityQueue.named(db, name, codec="bytes").push(db, b"x")
    with serve() as (_, client):
        page.goto(address(client, name))
        expect(item_rows(page)).to_have_count(1)
        expect(page.get_by_role("link", name="Schedules")).to_have_count(0)
        page.goto(address(client, name, "schedules"))
        expect(page.get_by_text("the items of this queue are not JSON")).to_be_visible()
        page.goto(address(client, f"{name}gone", "schedules"))
        expect(page.get_by_text("There is no such queue.")).to_be_visible()


# Workers


def test_workers_are_listed_with_what_they_hold(page: Page, serve: Any, db: Any, name: str) -> None:
    queue, other = PriorityQueue.named(db, name), PriorityQueue.named(db, f"{name}other")
    item = queue.push(db, "held")
    other.push(db, "claimed")
    other.claim(db, lease=600, client="script")
    may_end = threading.Event()
    worker = Worker(db, queue, lambda item: may_end.wait(60), name="mailer", concurrency=3)
    thread = threading.Thread(target=worker.run)
    with serve() as (_, client):
        thread.start()
        try:
            page.goto(address(client).removesuffix("/") + "/workers")
            card = page.get_by_role("region", name="Worker mailer")
            expect(card).to_contain_text(f"Queue{name}")
            expect(card).to_contain_text("Holds1 item")
            expect(card).to_contain_text("Concurrency3")
            expect(card.get_by_role("link", name=item.id[-12:])).to_be_visible()
            expect(card.get_by_role("button", name="Release")).to_be_visible()
            others = page.get_by_role("region", name="Other clients")
            expect(others).to_contain_text(f"script in {name}other")
        finally:
            may_end.set()
            worker.stop()
            thread.join()
        expect(card).to_have_count(0)


def test_a_process_with_several_queues_is_one_worker(
    page: Page, serve: Any, db: Any, name: str
) -> None:
    queues = [PriorityQueue.named(db, f"{name}{n}") for n in range(3)]
    worker = Worker(db, Turns([*map(Source, queues)]), str, name=f"{name}mailer")
    thread = threading.Thread(target=worker.run)
    with serve() as (_, client):
        thread.start()
        try:
            page.goto(address(client).removesuffix("/") + "/workers")
            card = page.get_by_role("region", name=f"Worker {name}mailer")
            for n in range(3):
                expect(card.get_by_role("link", name=f"{name}{n}")).to_be_visible(timeout=30_000)
            expect(card).to_have_count(1)
            if str(db).startswith("<fdbqueue.embedded"):  # a cluster may have other workers
                expect(page.get_by_text("1 worker on 3 queues, 0 busy.")).to_be_visible()
        finally:
            worker.stop()
            thread.join()


def test_without_workers_the_page_says_how_to_start_one(
    page: Page, serve: Any, db: Any, engine: str
) -> None:
    if engine == "cluster":
        pytest.skip("the cluster may have workers of other tests")
    with serve() as (_, client):
        page.goto(address(client).removesuffix("/") + "/workers")
        expect(page.get_by_text("No worker is running.")).to_be_visible()
        expect(page.get_by_text("fdbq work")).to_be_visible()


# Tokens


def test_the_page_asks_for_a_token_once(page: Page, serve: Any, name: str) -> None:
    with serve(FDBQ_TOKEN="secret") as (_, client):
        headers = {"authorization": "Bearer secret"}
        client.post(f"/v1/queues/{name}/push", json={"item": {}}, headers=headers)
        page.goto(address(client))
        page.get_by_label("Token", exact=True).fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_contain_text("does not accept this token")
        page.get_by_label("Token", exact=True).fill("secret")
        page.keyboard.press("Enter")
        expect(queue_row(page, name)).to_contain_text("1 ready")
        page.reload()
        expect(queue_row(page, name)).to_contain_text("1 ready")
        # The token is withdrawn, and the user has no other: the page does not ask again.
        page.evaluate("sessionStorage.setItem('token', 'withdrawn')")
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        expect(page.locator("#status")).to_contain_text("Not connected: a token is required")
        expect(page.get_by_role("dialog")).to_have_count(0)
        page.wait_for_timeout(2500)
        expect(page.get_by_role("dialog")).to_have_count(0)
        page.get_by_role("button", name="Forget the token").click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        expect(button(page, "Try again")).to_be_visible()


@pytest.mark.parametrize("role", ["read", "write", "admin"])
def test_each_role_sees_the_buttons_that_it_may_use(
    page: Page, serve: Any, db: Any, name: str, role: str, tmp_path: Path
) -> None:
    queue = dead_letters(db, name, "ada")
    (info,) = queue.items(db, state="dead")
    queue.schedules.add(db, "nightly", 1, cron="0 3 * * *")
    file = tmp_path / "tokens"
    file.write_text(f"secret {role} {name}*\n")
    with serve("--token-file", str(file)) as (_, client):
        page.goto(address(client))
        page.evaluate("sessionStorage.setItem('token', 'secret')")
        page.reload()
        expect(queue_row(page, name)).to_contain_text("1 dead")
        expect(button(page, "Push an item")).to_have_count(int(role != "read"))
        page.goto(address(client, name, query="?state=dead"))
        expect(item_rows(page)).to_have_count(1)
        expect(button(page, "Retry item " + info.id)).to_have_count(int(role != "read"))
        for label in ("Retry all", "Remove all", "Pause", "Options", "Rename", "Clear", "Drop"):
            expect(button(page, label)).to_have_count(int(role == "admin"))
        page.get_by_label("Error contains").fill("ada")
        expect(page.get_by_text("1 item matches.")).to_be_visible()
        expect(button(page, "Retry matches")).to_have_count(int(role == "admin"))
        expect(button(page, "Retry these")).to_have_count(int(role == "write"))
        page.goto(address(client, name, "schedules"))
        expect(schedule_rows(page)).to_have_count(1)
        for label in ("Pause nightly", "Run now nightly", "Remove nightly"):
            expect(button(page, label)).to_have_count(int(role == "admin"))
        page.goto(address(client, name, "items", info.id))
        expect(page.get_by_role("region", name="Timeline")).to_be_visible()
        for label in ("Retry", "Remove", "Change priority"):
            expect(button(page, label)).to_have_count(int(role != "read"))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("secret read mail/*", {"role": "read", "queues": "mail/*"}),
        ("secret", {"role": "admin", "queues": "*"}),
    ],
)
def test_the_api_says_what_a_token_allows(
    db: Any, line: str, expected: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "tokens").write_text(line)
    tokens = Tokens(file=tmp_path / "tokens")
    with TestClient(create_app(db, tokens=tokens), "http://any.example") as client:
        assert client.get("/v1/me").status_code == 401
        headers = {"authorization": "Bearer secret"}
        assert client.get("/v1/me", headers=headers).json() == expected
    with TestClient(create_app(db), "http://127.0.0.1") as client:
        assert client.get("/v1/me").json() == {"role": "admin", "queues": "*"}


# What users stored is text


def test_stored_markup_is_displayed_as_text(page: Page, serve: Any, db: Any, name: str) -> None:
    evil = f"{name}<img src=x onerror=alert(1)>/%2F?#&\"'"
    queue = PriorityQueue.named(db, evil, max_attempts=1)
    queue.push(db, {evil: [evil, {"__proto__": evil}]}, unique=evil)
    queue.nack(db, queue.claim(db, client=evil), error=evil)
    (info,) = queue.items(db, state="dead")
    queue.push(db, evil)
    queue.claim(db, lease=600, client=evil)
    queue.schedules.add(db, evil, evil, every="1h")
    with serve() as (_, client):
        page.goto(address(client))
        expect(queue_row(page, evil)).to_contain_text("1 dead")
        page.get_by_role("region", name="Alerts").get_by_role("link", name=evil).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(evil)
        expect(item_rows(page)).to_contain_text("onerror")
        button(page, "Retry all").click()
        expect(page.get_by_role("dialog")).to_contain_text(evil)
        page.keyboard.press("Escape")
        item_rows(page).get_by_role("link").click()
        expect(page.get_by_role("heading", name=info.id)).to_be_focused()
        expect(page.get_by_role("region", name="Payload")).to_contain_text("__proto__")
        expect(page.get_by_role("region", name="Facts")).to_contain_text(evil)
        page.goto(address(client).removesuffix("/") + "/workers")
        expect(page.get_by_role("region", name="Other clients")).to_contain_text(evil)
        page.goto(address(client, evil, "schedules"))
        button(page, f"Pause {evil}").click()
        expect(schedule_rows(page)).to_contain_text(f"{evil}paused{evil}")
        assert page.locator("img").count() == 0


# Keyboard, phones, colours, accessibility


def test_the_keyboard_suffices(page: Page, serve: Any, db: Any, name: str) -> None:
    queue = dead_letters(db, name, "ada")
    with serve() as (_, client):
        page.goto(address(client))
        expect(queue_row(page, name)).to_be_visible()
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_role("main")).to_be_focused()
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_contain_text("Go to the workers")
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        page.keyboard.press("g")
        page.keyboard.press("j")
        expect(page.get_by_role("heading", name="Jobs")).to_be_focused()
        page.keyboard.press("g")
        page.keyboard.press("w")
        expect(page.get_by_role("heading", name="Workers")).to_be_focused()
        page.keyboard.press("g")
        page.keyboard.press("o")
        expect(page.get_by_role("heading", name="Overview")).to_be_focused()
        page.keyboard.press("/")
        page.keyboard.type(name)
        expect(page.get_by_label("Search queues")).to_have_value(name)
        queue_row(page, name).get_by_role("link").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name=name)).to_be_focused()
        tab(page, "dead").press("Enter")
        expect(tab(page, "dead")).to_be_focused()
        button(page, "Retry all").press("Enter")
        expect(page.get_by_role("dialog").get_by_role("button", name="Cancel")).to_be_focused()
        page.keyboard.press("Tab")
        expect(page.get_by_role("dialog").get_by_role("button", name="Retry 1")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_text("There are no dead letters.")).to_be_visible()
        expect(tab(page, "dead")).to_be_focused()
    assert queue.stats(db).ready == 1


def stepping(db: Any, name: str) -> str:
    """Return the id of a dead letter of a batch, with steps of all kinds and long names."""
    app = fdbqueue.App(db)

    @app.job(queue=f"{name}-steps", name="child")
    def child() -> str:
        raise Dead("q" * 300)

    @app.job(queue=f"{name}-steps", name="parent")
    def parent(context: Context) -> None:
        context.step("p" * 200, lambda: "o" * 300)
        context.gather("run", [child.bind()], return_errors=True)
        raise Dead("no disk")

    @app.job(queue=f"{name}-{'r' * 100}")
    def report(*, done: int, dead: int, cancelled: int) -> None: ...

    with app.batch(then=report) as batch:
        batch.push(parent)
    app.work(f"{name}-steps", drain=True)
    dead = app.queue(f"{name}-steps").items(db, state="dead")
    return next(info.id for info in dead if info.stored_steps)


def pages(client: Any, db: Any, name: str) -> dict[str, tuple[str, str]]:
    """Return the address of each page, and a text that is shown when it has loaded."""
    queue = dead_letters(db, name, "x" * 300)
    (info,) = queue.items(db, state="dead")
    queue.push_many(db, [{"y" * 60: "z" * 300}, 1], priorities=[1, 2])
    queue.push(db, {"job": "v" * 80, "args": ["u" * 300]}, 3)
    queue.claim(db, lease=600, client="w" * 80)
    queue.schedules.add(db, "s" * 80, ["t" * 300], cron="0 3 * * *", tz="Europe/Lisbon")
    queue.schedules.run_now(db, "s" * 80)
    queue.set_group(db, None, concurrency=3, rate=(10, 60), max_size=1000)
    for group in ("g" * 80, "customer 7"):
        queue.push(db, 1, group=group)
    return {
        "overview": (address(client), "1 dead"),
        "queue": (address(client, name, query="?state=dead"), "cannot reach"),
        "item": (address(client, name, "items", info.id), "Traceback"),
        "steps": (address(client, f"{name}-steps", "items", stepping(db, name)), "Retry from here"),
        "jobs": (address(client).removesuffix("/") + "/jobs", "From a sample"),
        "schedules": (address(client, name, "schedules"), "Europe/Lisbon"),
        "workers": (address(client).removesuffix("/") + "/workers", "Other clients"),
        "groups": (address(client, name, "groups"), "All groups"),
        "nothing": (address(client, f"{name}gone"), "There is no such queue."),
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_fit_on_a_phone(
    browser: Browser, serve: Any, db: Any, name: str, scheme: Any
) -> None:
    with serve() as (_, client):
        for path, text in pages(client, db, f"{name}{'x' * 120}").values():
            page = browser.new_page(viewport={"width": 360, "height": 640}, color_scheme=scheme)
            page.goto(path)
            expect(page.get_by_text(text).first).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
            page.close()


def violations(page: Page) -> list[str]:
    """Return what axe finds, with the elements."""
    page.evaluate(AXE.read_text())  # in a world of its own, beyond the policy of the page
    found = page.evaluate("axe.run()")["violations"]
    return [
        f"{each['id']}: {node['html']} {node['failureSummary']}"
        for each in found
        for node in each["nodes"]
    ]


def violations_everywhere(page: Page) -> list[str]:
    """Return what violates accessibility on a page, on wide and narrow screens in both colours."""
    found: list[str] = []
    for width in (360, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme="dark")
        found += violations(page)
        page.emulate_media(color_scheme="light")
        found += violations(page)
    return found


@with_axe
@pytest.mark.parametrize("number", range(8))
def test_the_pages_have_no_violation_of_accessibility(
    page: Page, serve: Any, db: Any, name: str, number: int
) -> None:
    with serve() as (_, client):
        path, text = [*pages(client, db, name).values()][number]
        page.goto(path)
        expect(page.get_by_text(text).first).to_be_visible()
        table = page.get_by_text("As a table")
        if table.count():
            table.click()
        assert violations_everywhere(page) == []
        long = ("Remove " + "s" * 80, "Retry from here: " + "p" * 200)
        for label in ("Retry all", "Options", "Push an item", "Rename", "Clear", *long):
            if button(page, label).count():
                button(page, label).click()
                expect(page.get_by_role("dialog")).to_be_visible()
                assert violations_everywhere(page) == []
                page.keyboard.press("Escape")


def test_the_chosen_colours_are_remembered(page: Page, serve: Any) -> None:
    with serve() as (_, client):
        page.goto(address(client))
        page.get_by_role("button", name="Use dark colours").click()
        page.reload()
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
        page.get_by_role("button", name="Use light colours").click()
        page.reload()
        expect(page.get_by_role("button", name="Use dark colours")).to_be_visible()


def test_the_page_recovers_after_the_server_was_unreachable(
    page: Page, serve: Any, name: str
) -> None:
    with serve() as (_, client):
        client.post(f"/v1/queues/{name}/push", json={"item": {}})
        page.goto(address(client))
        expect(page.locator("#status")).to_have_text("Live")
        page.context.set_offline(True)
        expect(page.locator("#status")).to_contain_text("Not connected")
        expect(queue_row(page, name)).to_be_visible()
        page.context.set_offline(False)
        expect(page.locator("#status")).to_have_text("Live")


def test_a_queue_that_cannot_be_decoded_is_listed_with_what_to_do(
    page: Page, serve: Any, db: Any, name: str
) -> None:
    push_undecodable(db, f"{name}old")
    PriorityQueue.named(db, f"{name}young").push(db, 1)
    with serve() as (_, client):
        page.goto(address(client))
        expect(queue_row(page, f"{name}young")).to_contain_text("1 ready")
        expect(queue_row(page, f"{name}old")).to_contain_text("unknown")
        alerts = page.get_by_role("region", name="Alerts")
        expect(alerts).to_contain_text(f"{name}oldhas no numbers: the queue holds bytes")
        expect(alerts).to_contain_text("`fdbq drop` removes it")
        page.get_by_label("Sort by").select_option("Most dead")
        expect(queue_row(page, f"{name}young")).to_contain_text("1 ready")
