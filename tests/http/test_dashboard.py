"""The dashboard in a real browser: what one can do on each page, accessibility, phones."""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect
from starlette.testclient import TestClient

import fdbqueue
from fdbqueue import PriorityQueue, TaskQueue, Worker
from fdbqueue.http import Tokens, create_app
from fdbqueue.jobs import Context, Dead
from fdbqueue.types import STATES, Progress
from tests.support.chromium import in_chromium
from tests.support.keys import push_undecodable
from tests.support.many_queues import make_queues

ROOT = Path(__file__).parents[2]
AXE = Path(os.environ.get("AXE_PATH") or ROOT / "node_modules" / "axe-core" / "axe.min.js")

with_axe = pytest.mark.skipif(
    not AXE.exists(), reason=f"there is no axe-core at {AXE}; run `npm install --no-save axe-core`"
)

HOUR = 3600 * 10**9  # nanoseconds

pytestmark = in_chromium


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


class Site:
    """The pages of one server, as the user sees them."""

    def __init__(self, page: Page, client: Any) -> None:
        self.page, self.client = page, client
        self.main = page.get_by_role("main")
        self.dialog = page.get_by_role("dialog")
        self.toasts = page.locator("#toasts")
        self.status = page.locator("#status")
        self.items = page.locator(".items tbody tr")
        self.schedules = page.locator(".schedules tbody tr")

    def address(self, *parts: str, query: str = "") -> str:
        """Return the address of a page: a queue's begins with its name, others with `/`."""
        base = f"{str(self.client.base_url).rstrip('/')}/#/"
        if not parts or parts[0].startswith("/"):
            return base + "".join(parts).lstrip("/")
        return f"{base}queues/{'/'.join(quote(part, safe='') for part in parts)}{query}"

    def open(self, *parts: str, query: str = "") -> None:
        self.page.goto(self.address(*parts, query=query))

    def queue(self, name: str) -> Any:
        """Return the row of a queue in the overview."""
        link = self.page.get_by_role("link", name=name, exact=True)
        return self.page.get_by_role("table", name="Queues").get_by_role("row").filter(has=link)

    def region(self, name: str, exact: bool = False) -> Any:
        return self.page.get_by_role("region", name=name, exact=exact)

    def tab(self, state: str) -> Any:
        states = self.page.get_by_role("navigation", name="States")
        return states.locator(f"[data-state={state}]")

    def button(self, name: str) -> Any:
        return self.main.get_by_role("button", name=name, exact=True)

    def click(self, name: str, confirm: str | None = None) -> None:
        """Press a button, and then perhaps one of the dialog that it opens."""
        self.button(name).click()
        if confirm is not None:
            self.confirm(confirm)

    def confirm(self, name: str) -> None:
        self.dialog.get_by_role("button", name=name, exact=True).click()

    def fill(self, label: str, text: str) -> None:
        self.page.get_by_label(label, exact=True).fill(text)

    def shows(self, text: str) -> None:
        """Wait until the page shows a text."""
        expect(self.page.get_by_text(text).first).to_be_visible()

    def is_at(self, heading: str) -> None:
        """Wait for the page with this heading, which has the focus."""
        expect(self.page.get_by_role("heading", name=heading)).to_be_focused()


@pytest.fixture
def site(page: Page, serve: Any) -> Iterator[Site]:
    with serve() as (_, client):
        yield Site(page, client)


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
    queue.push_many(db, range(14))
    for claim in queue.claim(db, n=5):
        queue.ack(db, claim)
    for claim in queue.claim(db, n=4):
        queue.nack(db, claim, error="ValueError: broken")
    for claim in queue.claim(db, n=2):
        queue.release(db, claim, delay=600)
    queue.claim(db, n=3, lease=600, client="ada")
    queue.push(db, {"state": "ready"})
    return queue


# The files


def test_the_files_are_open_and_the_browser_keeps_them(db: Any) -> None:
    with TestClient(create_app(db, tokens=Tokens(["secret"])), "http://any.example") as client:
        names = re.findall(r'(?:src|href)="dashboard/([^"]+)"', client.get("/").text)
        assert {"app.js", "dashboard.css", "icon.svg", "theme.js"} == set(names)
        script = client.get("/dashboard/app.js")
        assert script.headers["content-type"] == "text/javascript; charset=utf-8"
        again = {"if-none-match": script.headers["etag"]}
        assert client.get("/dashboard/app.js", headers=again).status_code == 304
        for each in ("nothing.js", "..%2Fapp.py", "%2e%2e/app.py"):
            assert client.get(f"/dashboard/{each}").status_code in (401, 404)
    for path in (ROOT / "fdbqueue" / "http" / "static").glob("*.js"):
        unsafe = r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\("
        assert not re.search(unsafe, path.read_text())


# The overview


def test_queues_appear_change_and_disappear_without_a_reload(site: Site, name: str) -> None:
    def post(route: str, **body: Any) -> None:
        site.client.post(f"/v1/queues/{name}/{route}", json=body).raise_for_status()

    site.open()
    expect(site.status).to_have_text("Live")
    site.shows("There are no queues yet.")
    site.shows("fdbq push")
    post("batch", items=[{"item": {}, "priority": priority} for priority in (0, 0, 1000)])
    shown = site.queue(name)
    expect(shown).to_contain_text("3 ready")
    post("pop", n=2)
    expect(shown).to_contain_text("1 ready")
    expect(shown).to_contain_text(re.compile(r"[1-9.]+/s out"))
    site.page.context.set_offline(True)
    expect(site.status).to_contain_text("Not connected")
    expect(shown).to_be_visible()
    site.page.context.set_offline(False)
    expect(site.status).to_have_text("Live")
    post("pause")
    expect(shown).to_contain_text("paused")
    site.client.delete(f"/v1/queues/{name}")
    expect(shown).to_have_count(0)


@pytest.mark.damaged
def test_the_overview_alerts(site: Site, db: Any, name: str) -> None:
    dead_letters(db, f"{name}dead", "ada", "bob")
    PriorityQueue.named(db, f"{name}alone").push(db, 1)
    PriorityQueue.named(db, f"{name}quiet").push(db, 1, delay=600)
    PriorityQueue.named(db, f"{name}odd").push(db, {"job": "shop.send"})
    fdbqueue.App(db).work(f"{name}odd", drain=True)
    push_undecodable(db, f"{name}old")
    site.open()
    alerts = site.region("Alerts")
    for text in (
        "deadhas 2 dead letters",
        "alonehas 1 ready item and no worker",
        "oddhas 1 job that no worker knows",
        "oldhas no numbers: the queue holds bytes",
    ):
        expect(alerts).to_contain_text(name + text)
    expect(alerts).not_to_contain_text(f"{name}quiet")
    site.page.get_by_label("Show", exact=True).select_option("With alerts")
    expect(site.queue(f"{name}quiet")).to_have_count(0)
    expect(site.queue(f"{name}alone")).to_have_count(1)
    alerts.get_by_role("link", name=f"{name}dead").click()
    site.is_at(f"{name}dead")
    expect(site.items).to_have_count(2)


def test_a_thousand_queues_can_be_searched_and_paged(site: Site, db: Any, name: str) -> None:
    make_queues(db, name, 1100, busy={1040})
    site.open()
    pager = site.page.get_by_role("navigation", name="Pages")
    rows = site.page.locator(".queues tbody tr")
    site.fill("Search queues", name)
    expect(pager).to_contain_text("of 1,100 queues")
    expect(rows).to_have_count(50)
    pager.get_by_role("button", name="Next").click()
    expect(site.queue(f"{name}000050")).to_have_count(1)
    site.page.get_by_label("Sort by").select_option("Most ready")
    expect(rows.first).to_contain_text("2 ready")
    site.page.get_by_label("Show", exact=True).select_option("With items")
    expect(rows).to_have_count(1)
    site.fill("Search queues", "no such queue")
    site.shows("No queue matches.")


def test_an_item_is_pushed(site: Site, db: Any, name: str) -> None:
    site.open()
    site.click("Push an item")
    site.fill("Queue", name)
    for label, text, answer in (
        ("Item, as JSON", '{"to": ', "the item is not JSON"),
        ("Item, as JSON", '{"to": "ada"}', f"There is no queue named {name}."),
        ("Priority", "1.5", "integer"),
    ):
        site.page.get_by_label(label).fill(text)
        site.confirm("Push")
        expect(site.dialog).to_contain_text(answer)
    site.page.get_by_label("Priority").fill("7")
    site.confirm("Push")
    expect(site.queue(name)).to_contain_text("1 ready")
    assert PriorityQueue.named(db, name).stats(db).by_priority == {7: 1}


# A queue


def test_a_queue_shows_its_items_in_all_states(site: Site, db: Any, name: str) -> None:
    one_in_each_state(db, name)
    site.open(name)
    for count, state in enumerate(STATES, 1):
        expect(site.tab(state)).to_have_text(f"{state}{count}")
        site.tab(state).click()
        expect(site.items).to_have_count(count)
        expect(site.page.get_by_role("table", name=f"Items that are {state}")).to_be_visible()
        assert site.page.url.endswith(f"state={state}")
    site.tab("claimed").click()
    expect(site.items.first).to_contain_text("ada")
    site.page.reload()  # the address has the state
    expect(site.items).to_have_count(3)
    expect(site.region("Totals")).to_contain_text("pushed15")
    card = site.region("Items in and out")
    expect(card).to_contain_text("Died4")
    card.get_by_text("As a table").click()
    rows = card.locator("tbody tr")
    expect(rows.first).to_be_visible()
    # The 30 seconds may have ended between the calls above.
    cells = [row.locator("td").all_text_contents() for row in rows.all()]
    assert [sum(map(int, column)) for column in zip(*cells, strict=True)] == [15, 14, 4]


def test_items_are_filtered(site: Site, db: Any, name: str) -> None:
    queue = dead_letters(db, name, "ada", "bob")
    queue.push_many(db, ["low", "high", "high"], priorities=[1, 9, 9])
    tasks = TaskQueue.named(db, f"{name}tasks")
    tasks.push_many(db, [{"agent_name": agent} for agent in ("ada", "bob", "bob")])
    site.open(name, query="?state=dead")
    errors = site.page.get_by_role("list", name="Errors")
    errors.get_by_role("button", name="ada").click()
    expect(site.items).to_have_count(1)
    site.page.get_by_label("Error contains").fill("reach BOB")
    expect(site.items).to_have_count(1)
    site.page.wait_for_url("**error=reach+BOB**")
    site.open(name, query="?state=ready")
    for priority, count in (("9", 2), ("1", 1)):
        site.fill("Priority", priority)
        expect(site.items).to_have_count(count)
    site.fill("Priority", "x")
    site.shows("The filter is invalid.")
    site.open(f"{name}tasks")
    site.page.get_by_label("Agent").fill("bob")
    expect(site.items).to_have_count(2)
    id = next(iter(tasks.items(db, state="ready"))).id
    site.fill("Id", id)
    site.page.keyboard.press("Enter")
    site.is_at(id)


def test_a_search_goes_on_behind_the_items_that_were_looked_at(
    site: Site, db: Any, name: str
) -> None:
    queue = TaskQueue.named(db, name)
    queue.push_many(db, [{"agent_name": "ada"}] * 210)
    queue.push_many(db, [{"agent_name": "bob"}] * 3)

    def look_at_fewer(route: Any) -> None:
        """Pages of many rows are slow."""
        url = route.request.url.replace("limit=500", "limit=100")
        route.continue_(url=f"{url}&scan=200")

    site.page.route("**/items?*", look_at_fewer)
    site.open(name)
    foot = site.region("Items").get_by_role("status")
    expect(foot).to_have_text("The first 100 of 213 are shown.")
    for _ in range(2):
        site.click("Load more")
    expect(site.items).to_have_count(213)
    site.page.get_by_label("Agent").fill("bob")
    site.shows("No item matches so far.")
    site.click("Keep searching")
    expect(site.items).to_have_count(3)
    site.click("Remove matches")
    expect(site.dialog).to_contain_text("This affects 3 ready items")
    # Another client pushes an item that the question does not count.
    queue.push(db, agent_name="bob")
    site.confirm("Remove 3")
    expect(site.toasts).to_contain_text("3 items were removed.")
    assert queue.count(db, state="ready", agent="bob").count == 1


def test_items_are_changed_one_by_one_by_filters_by_selection_and_all(
    site: Site, db: Any, name: str
) -> None:
    queue = dead_letters(db, name, "ada", "bob", "cyd", "dan", "eve", "fay")
    site.open(name, query="?state=dead")
    expect(site.items).to_have_count(6)
    site.items.first.get_by_role("button", name="Retry").click()
    expect(site.toasts).to_contain_text("The item was retried.")
    expect(site.items).to_have_count(5)
    site.page.get_by_label("Error contains").fill("cyd")
    site.click("Retry matches", confirm="Retry 1")
    site.shows("No item matches")
    site.page.get_by_label("Error contains").fill("")
    expect(site.items).to_have_count(4)
    for n in (1, 3):
        site.items.get_by_role("checkbox").nth(n).check()
    site.click("Retry 2 selected")
    expect(site.dialog).to_contain_text(f"2 dead letters of {name}, which you selected.")
    site.confirm("Retry 2")
    expect(site.items).to_have_count(2)
    site.click("Retry all")
    expect(site.dialog).to_contain_text("This affects 2 dead letters")
    site.confirm("Cancel")
    assert queue.stats(db).dead == 2
    site.click("Retry all", confirm="Retry 2")
    site.shows("There are no dead letters.")
    for client in ("mail-1", "mail-2", "images"):
        queue.claim(db, lease=600, client=client)
    site.tab("claimed").click()
    site.page.get_by_label("Held by").fill("MAIL")
    site.click("Release matches", confirm="Release 2")
    site.shows("No item matches the filters.")
    assert (queue.stats(db).ready, queue.stats(db).claimed) == (5, 1)


def test_a_running_job_is_cancelled_and_shows_its_progress(site: Site, db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name)
    queue.push(db, {"job": "shop.report", "args": [0]})
    claim = queue.claim(db, lease=600, client="ada")
    assert claim is not None
    said = Progress(0.4, "page 4")
    queue.extend(db, claim, 600, progress=said, log="10:00:00.000 page 3 is done\n")
    site.open(name, query="?state=claimed")
    first = site.items.first
    expect(first).to_contain_text("shop.report(0)")
    expect(first).to_contain_text("40 %, page 4")
    expect(first.get_by_role("progressbar")).to_have_attribute("value", "0.4")
    first.get_by_role("button", name="Cancel").click()
    expect(site.dialog).to_contain_text("does not run again")
    site.confirm("Cancel")
    expect(first).to_contain_text("cancelled")
    site.open(name, "items", claim.item.id)
    expect(site.main).to_contain_text("It was cancelled")
    expect(site.region("Call")).to_have_text("shop.report(0)")
    expect(site.region("Log", exact=True)).to_contain_text("page 3 is done")
    assert all(info.cancelling for info in queue.items(db, state="claimed"))


def test_jobs_are_listed_by_name(site: Site, db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name, keep=100, max_attempts=1)
    jobs = [{"job": "shop.send", "args": [each]} for each in ("ada", "eve", "bob")]
    queue.push_many(db, [*jobs, {"job": "shop.sweep"}, "no job"])
    for _ in range(2):
        queue.ack(db, queue.claim(db))
    queue.nack(db, queue.claim(db), error="busy")
    site.open("/jobs")
    rows = site.page.get_by_role("table", name="Jobs").get_by_role("row").filter(has_text=name)
    expect(rows).to_have_count(2)
    sent = rows.filter(has_text="shop.send").get_by_role("cell")
    for column, text in ((2, "^2$"), (3, r"^[<\d.,]+/(s|min|h)$"), (4, "ms$"), (6, "1")):
        expect(sent.nth(column)).to_have_text(re.compile(text))
    sent.nth(10).get_by_role("link", name="1").click()
    site.is_at(name)
    expect(site.items).to_have_text([re.compile(r'shop\.send\("bob"\)')])
    site.page.get_by_label("Job").fill("sweep")
    expect(site.items).to_have_count(0)


def test_a_queue_is_paused_renamed_cleared_and_dropped(site: Site, db: Any, name: str) -> None:
    queue = one_in_each_state(db, name)
    PriorityQueue.named(db, f"{name}taken").push(db, 1)
    everything = "1 ready, 2 delayed, 3 claimed, 4 dead, 5 done"
    site.open(name)
    for label, other, paused in (("Pause", "Resume", True), ("Resume", "Pause", False)):
        site.click(label)
        expect(site.button(other)).to_be_visible()
        assert queue.stats(db).paused is paused
    site.click("Rename")
    expect(site.dialog).to_contain_text(everything)
    site.page.get_by_label("New name").fill(f"{name}taken")
    site.confirm("Rename")
    expect(site.dialog.get_by_role("alert")).to_contain_text("taken")
    site.page.get_by_label("New name").fill(f"{name}/new")
    site.confirm("Rename")
    expect(site.page.get_by_role("heading", level=1)).to_have_text(f"{name}/new")
    site.click("Clear")
    expect(site.dialog).to_contain_text(everything)
    site.page.get_by_label("Type the name").fill(name)
    site.confirm("Clear")
    expect(site.dialog.get_by_role("alert")).to_contain_text("not the name")
    site.page.get_by_label("Type the name").fill(f"{name}/new")
    site.confirm("Clear")
    expect(site.tab("dead")).to_have_text("dead0")
    assert PriorityQueue.existing(db, f"{name}/new").stats(db).is_empty
    site.click("Drop")
    site.page.get_by_label("Type the name").fill(f"{name}/new")
    site.confirm("Drop")
    site.is_at("Overview")
    assert set(fdbqueue.admin.overview(db, prefix=name)) == {f"{name}taken"}


def test_a_limit_is_changed_and_never_overwritten_silently(site: Site, db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name, max_attempts=3)
    queue.push(db, 1)
    site.open(name)
    site.click("Options")
    site.page.get_by_label("Keep done items for").fill("7 days")
    site.confirm("Save")
    expect(site.page.get_by_role("alert")).to_contain_text("Keep done items for is a length of")
    site.page.get_by_label("Keep done items for").fill("7d")
    site.confirm("Save")
    expect(site.region("Limits")).to_contain_text("Keep done items for7d")
    site.click("Options")
    site.page.get_by_label("Maximum size").fill("60")
    site.page.get_by_label("Maximum attempts").fill("9")
    queue.configure(db, max_attempts=5)
    site.confirm("Save")
    expect(site.dialog.get_by_role("alert")).to_contain_text(
        "Maximum attempts: was 3, is now 5; you entered 9"
    )
    assert (queue.options(db).max_size, queue.options(db).max_attempts) == (None, 5)
    site.confirm("Save")
    expect(site.dialog).to_have_count(0)
    options = queue.options(db)
    assert (options.max_size, options.max_attempts, options.keep_seconds) == (60, 5, 604_800)


def test_what_does_not_exist_is_explained(site: Site, db: Any, name: str) -> None:
    PriorityQueue.named(db, name).push(db, 1)
    PriorityQueue.named(db, f"{name}bytes", codec="bytes").push(db, b"x")
    for parts, text in (
        ((name, "items", "nothing"), "The item "),
        (("/nowhere/at/all",), "There is no such page"),
        ((f"{name}bytes", "schedules"), "the items of this queue are not JSON"),
        ((f"{name}gone", "schedules"), "There is no such queue."),
        (("/workers",), "No worker is running."),
        ((f"{name}gone",), "There is no such queue."),
    ):
        site.open(*parts)
        site.shows(text)
    site.client.post(f"/v1/queues/{name}gone/push", json={"item": 1})
    expect(site.items).to_have_count(1)


# An item


def test_an_item_shows_its_attempts_and_is_changed(site: Site, db: Any, name: str) -> None:
    queue = dead_letters(db, name, "ada")
    queue.configure(db, keep=10)
    (info,) = queue.items(db, state="dead")
    site.open(name, query="?state=dead")
    site.items.get_by_role("link").click()
    site.is_at(info.id)
    expect(site.region("Payload")).to_contain_text('to: "ada"')
    attempts = site.region("2 failed attempts")
    expect(attempts.get_by_role("listitem")).to_have_count(2)
    expect(attempts).to_contain_text("mailer")
    trace = site.region("Traceback of attempt 2")
    expect(trace).to_contain_text("ConnectionError: cannot reach ada")
    expect(trace.get_by_text(f'File "{__file__}"')).to_be_visible()
    expect(trace.get_by_text("worker/running.py").first).to_be_hidden()
    trace.get_by_text(re.compile(r"^\d+ frames of fdbqueue$")).click()
    expect(trace.get_by_text("worker/running.py").first).to_be_visible()
    timeline = site.region("Timeline").get_by_role("listitem")
    said = ["Pushed", "Attempt 1 failed", "Attempt 2 failed", "dead letter"]
    expect(timeline).to_contain_text(said)
    site.click("Retry")
    expect(site.main).to_contain_text("Ahead of it0 items")
    site.click("Change priority")
    site.fill("Priority", "8")
    site.confirm("Change")
    expect(site.region("Facts")).to_contain_text("Priority8")
    claim = queue.claim(db, lease=600, client="eve")
    expect(site.main).to_contain_text("Held by eve")
    expect(site.button("Remove")).to_have_count(0)
    queue.release(db, claim, delay=600)
    site.click("Run now")
    expect(site.main).to_contain_text("Ahead of it0 items")
    queue.claim(db, lease=600)
    site.click("Release")
    expect(site.main).to_contain_text("Ahead of it0 items")
    queue.ack(db, queue.claim(db), result={"sum": 3})
    expect(site.region("Result")).to_contain_text("sum: 3")
    site.click("Remove", confirm="Remove")
    site.shows("The item is gone.")


# Steps and batches


def test_the_steps_of_a_job_are_a_timeline(site: Site, db: Any, name: str) -> None:
    """A job that waits for a signal is never due: no button makes it ready."""
    app = fdbqueue.App(db)

    @app.job(queue=name, name="shop.fulfil")
    def fulfil(context: Context, order: str) -> None:
        context.step("charge", order.upper)
        context.wait("shipped", key=order)
        context.step("pack", str)
        raise Dead("no disk")

    handle = fulfil.push("order 7")
    app.work(drain=True)
    site.open(name, query="?state=delayed")
    expect(site.items.first).to_contain_text("waits")
    expect(site.page.get_by_role("button", name="Run now item")).to_have_count(0)
    site.open(name, "items", handle.id)
    steps = site.region("Steps").get_by_role("listitem")

    def expect_steps(*texts: str) -> None:
        expect(steps).to_have_text([re.compile(f"^{text}$") for text in texts])

    charge = "charge.*Done 20.*ORDER 7.*"
    expect_steps(charge, "shippedwaitWaits.*Key order 7")
    expect(site.button("Run now")).to_have_count(0)
    app.signal(db, "shipped", key="order 7", value="1Z999")
    app.work(drain=True)
    expect_steps(charge, "shippedwait.*Done 20.*1Z999.*", "pack.*Done 20.*")
    site.page.get_by_role("button", name="Retry from here: shipped").click()
    expect(site.dialog).to_contain_text("this step and 1 step after it")
    site.confirm("Retry")
    expect_steps(charge)
    assert handle.state() == "ready"


def test_the_progress_of_a_batch_is_shown_from_each_of_its_jobs(
    site: Site, db: Any, name: str
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
    last = [*app.queue(name).items(db)][-1]
    app.work(name, drain=True, concurrency=1, max_jobs=1)
    site.open(name, "items", last.id)
    card = site.region("Batch", exact=True)
    expect(card).to_contain_text("1 of 3 jobs ended: 1 dead")
    expect(site.button("Close the batch")).to_have_count(0)
    card.get_by_role("link").click()
    site.is_at(batch.id)
    expect(site.button("Run now")).to_have_count(0)
    site.click("Close the batch", confirm="Close")
    expect(card).to_contain_text("closed")
    app.work(name, drain=True)
    expect(card).to_contain_text("3 of 3 jobs ended: 2 done, 1 deadended")
    expect(site.page.locator(".title")).to_contain_text("ready")


def test_groups_are_shown_with_what_holds_them_back_and_changed(
    site: Site, db: Any, name: str
) -> None:
    jobs = PriorityQueue.named(db, name)
    jobs.set_group(db, None, rate=(5, "1m30s"), max_size=9)
    jobs.set_group(db, "ada", concurrency=1, weight=2.5)
    jobs.push_many(db, [1, 2, 3, 4], groups=["ada", "ada", "b/b", "b/b"])
    jobs.claim(db)
    jobs.push(db, 5)
    site.open(name, "groups")
    rows = site.page.locator(".groups tbody tr")

    def expect_row(number: int, *texts: str) -> None:
        expect(rows.nth(number).get_by_role("cell")).to_have_text([*texts, re.compile("Limits")])

    expect_row(0, "ada", "1", "1", "1", "5 in 1m30s", "9", "2.5", "at its concurrency")
    expect_row(1, "b/b", "2", "0", "no limit", "5 in 1m30s", "9", "1", "waits for its turn")
    site.click("Pause b/b")
    site.shows("2 groups on this page, 1 paused, 1 held back by limits.")
    rows.nth(1).get_by_role("link").click()
    expect(site.items).to_have_count(2)
    site.items.first.get_by_role("link").click()
    site.shows("It does not run now. Its group is paused.")
    site.open(name, "groups")
    site.click("Limits b/b")
    site.fill("Weight", "0")
    site.confirm("Save")
    expect(site.dialog.get_by_role("alert")).to_contain_text("weight is a number from 0.001")
    for label, text in (("Weight", "4"), ("Rate", "7/1m30s"), ("Size", "7")):
        site.fill(label, text)
    site.confirm("Save")
    site.click("Resume b/b")
    expect_row(1, "b/b", "2", "0", "no limit", "7 in 1m30s", "7", "4", "waits for its turn")
    site.click("Limits of all groups")
    site.fill("Rate", "")
    site.confirm("Save")
    site.shows("All groups: size 9")
    site.click("Clear b/b")
    expect(site.dialog).to_contain_text("The settings of the group stay.")
    site.confirm("Clear")
    expect(site.toasts.last).to_contain_text("2 items were removed.")
    assert jobs.group_settings(db) == {"max_size": 9}
    settings = {"weight": 4, "rate": (7, 90), "max_size": 7}
    assert {k: v for k, v in jobs.group_settings(db, "b/b").items() if v} == settings
    assert [item.value for item in jobs.items(db)] == [2, 5]


# Schedules


def test_schedules_are_listed_run_paused_and_removed(
    site: Site, db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, app = PriorityQueue.named(db, name), fdbqueue.App(db)

    @app.every("1h")
    @app.job(queue=name, name="shop.sweep")
    def sweep() -> None: ...

    lisbon: Any = {"cron": "0 3 * * *", "tz": "Europe/Lisbon", "overlap": "skip"}
    queue.schedules.add(db, "nightly", {"of": "sales"}, **lisbon)
    with monkeypatch.context() as patch:  # a worker has declared the job, a day ago
        patch.setattr("fdbqueue.database.clock.time_ns", lambda: time.time_ns() - 25 * HOUR)
        app.deploy()
    nightly = queue.schedules.get(db, "nightly")
    assert nightly is not None
    ticks = [f"{each.astimezone():%Y-%m-%d %H:%M:%S}" for each in nightly.next_ticks(5)]
    site.open(name)
    site.page.get_by_role("link", name="Schedules").click()
    site.is_at("Schedules")
    first, second = (site.schedules.nth(n).get_by_role("cell") for n in range(2))
    expect(first.nth(0)).to_have_text('nightly{"of":"sales"}')
    expect(first.nth(1)).to_have_text("0 3 * * *Europe/Lisbonoverlap: skip")
    expect(first.nth(3).get_by_role("listitem")).to_have_text(ticks)
    expect(second.nth(0)).to_have_text("shop.sweepstoppedshop.sweep()")
    app.deploy()  # a worker starts
    expect(second.nth(0)).not_to_contain_text("stopped")
    site.button("Pause nightly").press("Enter")
    expect(site.schedules.first).to_contain_text("none while it is paused")
    expect(site.button("Resume nightly")).to_be_focused()
    site.button("Resume nightly").press("Enter")
    expect(first.nth(3).get_by_role("listitem")).to_have_count(5)
    site.click("Remove shop.sweep")
    expect(site.dialog).to_contain_text("A worker adds it again when it starts")
    site.confirm("Remove")
    expect(site.button("Pause nightly")).to_be_focused()
    site.click("Run now nightly")
    expect(site.toasts).to_contain_text("nightly has pushed the item")
    site.click("Run now nightly")
    expect(site.toasts.last).to_contain_text("the last item of the schedule")
    first.nth(2).get_by_role("link").click()
    site.is_at(next(iter(queue.items(db))).id)
    site.open(name, "schedules")
    site.click("Remove nightly", confirm="Remove")
    site.shows(f"{name} has no schedules.")


# Workers


def test_workers_are_listed_with_what_they_hold(site: Site, db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name)
    item = queue.push(db, "held")
    may_end = threading.Event()
    worker = Worker(db, queue, lambda item: may_end.wait(60), name="mailer", concurrency=3)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        site.open("/workers")
        card = site.region("Worker mailer")
        for text in ("Holds1 item", "Concurrency3", name):
            expect(card).to_contain_text(text)
        expect(card.get_by_role("link", name=item.id[-12:])).to_be_visible()
        expect(card.get_by_role("button", name="Release")).to_be_visible()
    finally:
        may_end.set()
        worker.stop()
        thread.join()
    expect(card).to_have_count(0)


# Tokens


def test_the_page_asks_for_a_token_once(page: Page, serve: Any, name: str) -> None:
    with serve(FDBQ_TOKEN="secret") as (_, client):
        site = Site(page, client)
        headers = {"authorization": "Bearer secret"}
        client.post(f"/v1/queues/{name}/push", json={"item": {}}, headers=headers)
        site.open()
        for token in ("wrong", "secret"):
            site.fill("Token", token)
            page.keyboard.press("Enter")
            if token == "wrong":
                expect(site.dialog).to_contain_text("does not accept this token")
        expect(site.queue(name)).to_contain_text("1 ready")
        page.reload()
        expect(site.queue(name)).to_contain_text("1 ready")
        # The token is withdrawn, and the user has no other: the page does not ask again.
        page.evaluate("sessionStorage.setItem('token', 'withdrawn')")
        site.confirm("Cancel")
        expect(site.status).to_contain_text("Not connected: a token is required")
        with page.expect_response("**/v1/**"):  # of the next look
            pass
        expect(site.dialog).to_have_count(0)
        page.get_by_role("button", name="Forget the token").click()
        site.confirm("Cancel")
        expect(site.button("Try again")).to_be_visible()


@pytest.mark.parametrize("role", ["read", "write"])
def test_each_role_sees_the_buttons_that_it_may_use(
    page: Page, serve: Any, db: Any, name: str, role: str, tmp_path: Path
) -> None:
    queue = dead_letters(db, name, "ada")
    (info,) = queue.items(db, state="dead")
    queue.schedules.add(db, "nightly", 1, cron="0 3 * * *")
    file = tmp_path / "tokens"
    file.write_text(f"secret {role} {name}*\n")

    def expect_buttons(of_role: str, *labels: str) -> None:
        for label in labels:
            expect(site.button(label)).to_have_count(int(role == of_role))

    with serve("--token-file", str(file)) as (_, client):
        site = Site(page, client)
        site.open()
        page.evaluate("sessionStorage.setItem('token', 'secret')")
        page.reload()
        expect(site.queue(name)).to_contain_text("1 dead")
        expect_buttons("write", "Push an item")
        site.open(name, query="?state=dead")
        expect(site.items).to_have_count(1)
        expect_buttons("write", f"Retry item {info.id}")
        expect_buttons("admin", "Retry all", "Remove all", "Pause", "Options", "Rename", "Drop")
        site.open(name, "schedules")
        expect(site.schedules).to_have_count(1)
        expect_buttons("admin", "Pause nightly", "Run now nightly", "Remove nightly")
        site.open(name, "items", info.id)
        expect(site.region("Timeline")).to_be_visible()
        expect_buttons("write", "Retry", "Remove")


# What users stored is text


def test_stored_markup_is_displayed_as_text(site: Site, db: Any, name: str) -> None:
    evil = f"{name}<img src=x onerror=alert(1)>/%2F?#&\"'"
    queue = PriorityQueue.named(db, evil, max_attempts=1)
    queue.push(db, {evil: [evil, {"__proto__": evil}]}, unique=evil)
    queue.nack(db, queue.claim(db, client=evil), error=evil)
    (info,) = queue.items(db, state="dead")
    queue.push(db, evil)
    queue.claim(db, lease=600, client=evil)
    queue.schedules.add(db, evil, evil, every="1h")
    site.open()
    site.region("Alerts").get_by_role("link", name=evil).click()
    expect(site.page.get_by_role("heading", level=1)).to_have_text(evil)
    expect(site.items).to_contain_text("onerror")
    site.click("Retry all")
    expect(site.dialog).to_contain_text(evil)
    site.page.keyboard.press("Escape")
    site.items.get_by_role("link").click()
    site.is_at(info.id)
    expect(site.region("Payload")).to_contain_text("__proto__")
    expect(site.region("Facts")).to_contain_text(evil)
    site.open("/workers")
    expect(site.region("Other clients")).to_contain_text(evil)
    site.open(evil, "schedules")
    site.click(f"Pause {evil}")
    expect(site.schedules).to_contain_text(f"{evil}paused{evil}")
    assert site.page.locator("img").count() == 0


# Keyboard, phones, colours, accessibility


def test_the_keyboard_suffices(site: Site, db: Any, name: str) -> None:
    queue = dead_letters(db, name, "ada")
    keyboard = site.page.keyboard
    site.open()
    expect(site.queue(name)).to_be_visible()
    keyboard.press("Tab")
    expect(site.page.get_by_role("link", name="Skip to the content")).to_be_focused()
    keyboard.press("Enter")
    expect(site.main).to_be_focused()
    keyboard.press("?")
    expect(site.dialog).to_contain_text("Go to the workers")
    keyboard.press("Escape")
    for key, heading in (("j", "Jobs"), ("w", "Workers"), ("o", "Overview")):
        keyboard.type(f"g{key}")
        site.is_at(heading)
    keyboard.press("/")
    keyboard.type(name)
    expect(site.page.get_by_label("Search queues")).to_have_value(name)
    site.queue(name).get_by_role("link").press("Enter")
    site.is_at(name)
    site.tab("dead").press("Enter")
    site.button("Retry all").press("Enter")
    expect(site.dialog.get_by_role("button", name="Cancel")).to_be_focused()
    keyboard.press("Tab")
    keyboard.press("Enter")
    site.shows("There are no dead letters.")
    expect(site.tab("dead")).to_be_focused()
    assert queue.stats(db).ready == 1


def stepping(db: Any, name: str) -> str:
    """Return the id of a dead letter with a step of a long name."""
    app = fdbqueue.App(db)

    @app.job(queue=name, name="stepping")
    def work(context: Context) -> None:
        context.step("p" * 200, lambda: "o" * 300)
        raise Dead("q" * 300)

    handle = work.push()
    app.work(name, drain=True)
    return handle.id


def pages(site: Site, db: Any, name: str) -> list[tuple[str, str]]:
    """Return the address of each page, and a text that is shown when it has loaded."""
    queue = dead_letters(db, name, "x" * 300)
    (info,) = queue.items(db, state="dead")
    queue.push_many(db, [{"y" * 60: "z" * 300}, {"job": "v" * 80, "args": ["u" * 300]}])
    queue.claim(db, lease=600, client="w" * 80)
    queue.schedules.add(db, "s" * 80, ["t" * 300], cron="0 3 * * *", tz="Europe/Lisbon")
    queue.schedules.run_now(db, "s" * 80)
    queue.set_group(db, None, concurrency=3, rate=(10, 60), max_size=1000)
    queue.push(db, 1, group="g" * 80)
    steps = f"{name}-steps"
    return [
        (site.address(), "1 dead"),
        (site.address(name, query="?state=dead"), "cannot reach"),
        (site.address(name, "items", info.id), "Traceback"),
        (site.address(steps, "items", stepping(db, steps)), "Retry from here"),
        (site.address("/jobs"), "From a sample"),
        (site.address(name, "schedules"), "Europe/Lisbon"),
        (site.address("/workers"), "Other clients"),
        (site.address(name, "groups"), "All groups"),
        (site.address(f"{name}gone"), "There is no such queue."),
    ]


def test_the_pages_fit_on_a_phone_in_the_chosen_colours(site: Site, db: Any, name: str) -> None:
    page = site.page
    page.set_viewport_size({"width": 360, "height": 640})
    for number, (path, text) in enumerate(pages(site, db, f"{name}{'x' * 120}")):
        page.goto(path)
        site.shows(text)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
        if number == 0:
            page.get_by_role("button", name="Use dark colours").click()
            page.reload()
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    page.get_by_role("button", name="Use light colours").click()
    page.reload()
    expect(page.get_by_role("button", name="Use dark colours")).to_be_visible()


def violations(page: Page) -> list[str]:
    """Return what axe finds, with the elements, on narrow and wide screens in both colours."""
    found: list[str] = []
    for width, colours in itertools.product((360, 1280), ("dark", "light")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=colours)
        page.evaluate(AXE.read_text())  # in a world of its own, beyond the policy of the page
        for each in page.evaluate("axe.run()")["violations"]:
            found += [f"{each['id']}: {node['html']}" for node in each["nodes"]]
    return found


@with_axe
def test_the_pages_have_no_violation_of_accessibility(site: Site, db: Any, name: str) -> None:
    for path, text in pages(site, db, name):
        site.page.goto(path)
        site.shows(text)
        assert violations(site.page) == []
        long = ("Remove " + "s" * 80, "Retry from here: " + "p" * 200)
        for label in ("Retry all", "Options", "Push an item", "Rename", "Clear", *long):
            if site.button(label).count():
                site.click(label)
                expect(site.dialog).to_be_visible()
                assert violations(site.page) == []
                site.page.keyboard.press("Escape")
