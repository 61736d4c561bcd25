"""Take the screenshots of `docs/howto/dashboard/`: `python -m docs.screenshots`.

A database with the queues of a small shop, a server, and workers of which one has a broken handler.
"""

from __future__ import annotations

import argparse
import linecache
import logging
import random
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from playwright.sync_api import Browser, Page, Route, sync_playwright

import fdbqueue
from fdbqueue import PriorityQueue, Queue, TaskQueue, Worker
from fdbqueue.database import clock
from fdbqueue.jobs import Context, Dead
from tests.support.server import served

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "howto" / "dashboard"
SHOWN = {
    *(f"{name}-1280-light" for name in ("overview", "queue", "item", "steps", "schedules", "jobs")),
    "workers-1280-dark",
}
"""The pages that the guide shows, with their widths and colour schemes."""

BROKEN = """\
from mail import deliver, render


def send(item):
    order = item.value
    text = render(order["template"], order["customer"])
    deliver(to=order["customer"]["email"], text=text)
"""

NAMES = ("Ada", "Grace", "Edsger", "Barbara", "Donald", "Frances", "Tony", "Radia")

_random = random.Random(7)


def broken_handler() -> Callable[[Any], None]:
    """Return a handler that fails for the orders of some customers."""
    # As if it were deployed there, so that tracebacks have its lines.
    path = "/srv/shop/mailer.py"
    linecache.cache[path] = (len(BROKEN), None, BROKEN.splitlines(keepends=True), path)
    space: dict[str, Any] = {
        "render": lambda *words: time.sleep(0.3),
        "deliver": lambda **words: None,
    }
    source = BROKEN.replace("from mail import deliver, render", "")
    exec(compile(source, path, "exec"), space)  # noqa: S102
    send: Callable[[Any], None] = space["send"]
    return send


def order(number: int, *, is_bad: bool = False) -> dict[str, Any]:
    """Return an order; a bad one has a customer without an address."""
    name = NAMES[number % len(NAMES)]
    customer = {"id": 4000 + number, "name": name, "email": f"{name.lower()}@example.com"}
    if is_bad:
        customer["mail"] = customer.pop("email")
    lines = [{"article": "INK-7", "pieces": 1 + number % 3, "price": 12.5}]
    return {
        "template": "order-shipped",
        "order": 81000 + number,
        "customer": customer,
        "lines": lines,
        "express": number % 4 == 0,
    }


def job(name: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return a call of a job."""
    return {"job": name, "args": [*args], "kwargs": kwargs}


def sleep(seconds: float) -> Callable[[Any], Any]:
    """Return a handler that takes some time."""

    def work(item: Any) -> None:
        time.sleep(_random.uniform(0.5, 1.5) * seconds)

    return work


def schedule(db: Any) -> None:
    """Make the schedules of a queue: three go on, one is paused, and one has stopped."""
    app = fdbqueue.App(db)

    @app.cron("0 3 * * *", tz="Europe/Lisbon", args=["sales"])
    @app.job(queue="reports", name="reports.nightly")
    def nightly(of: str) -> None: ...

    @app.cron("0 6 * * MON", tz="Europe/Lisbon", overlap="skip")
    @app.job(queue="reports", name="reports.weekly")
    def weekly() -> None: ...

    old = fdbqueue.App(db)

    @old.every("6h")
    @old.job(queue="reports", name="reports.stock")
    def stock() -> None: ...

    yesterday = time.time_ns() - 30 * 3600 * 10**9
    with mock.patch.object(clock, "time_ns", return_value=yesterday):
        old.deploy()
        app.deploy()
        old.schedules.run_now("reports.stock")
        app.schedules.run_now("reports.weekly")
    app.deploy()
    schedules = PriorityQueue.named(db, "reports").schedules
    schedules.add(db, "currency rates", job("reports.rates", "EUR"), every="10m", missed="skip")
    schedules.add(db, "Ada's invoices", job("reports.invoice", "ada"), cron="30 9 1 * *")
    schedules.pause(db, "Ada's invoices")


def fill(db: Any) -> None:
    """Make the queues that have no traffic."""
    schedule(db)
    PriorityQueue.named(db, "backups").push(db, {"volume": "db-1"}, delay=3600)
    exports = PriorityQueue.named(db, "exports/monthly")
    exports.push_many(db, [{"month": month} for month in range(1, 13)], priorities=[1, 2, 3] * 4)
    exports.configure(db, paused=True)
    imports = PriorityQueue.named(db, "imports/suppliers")
    imports.configure(db, concurrency=2)
    imports.push_many(db, [{"file": f"s3://suppliers/{n}.csv"} for n in range(34)])
    Queue.named(db, "audit-log").enqueue(db, "started")
    PriorityQueue.named(db, "search-index").push_many(db, [{"page": n} for n in range(2400)])
    agents = TaskQueue.named(db, "support-tickets")
    for n in range(26):
        agents.push(
            db, priority=1 + n % 4, agent_name=("ada", "grace")[n % 2], payload={"ticket": n}
        )


def run_steps(url: str) -> str:
    """Run jobs with steps, and a batch of them; return the id of one that has died."""
    app = fdbqueue.App(url)

    @app.job(queue="orders", name="shop.label")
    def label(parcel: str) -> str:
        time.sleep(0.4)
        if parcel == "7-b":
            raise Dead("the printer is out of paper")
        return f"labels/{parcel}.pdf"

    def charge() -> dict[str, Any]:
        time.sleep(0.3)
        return {"charge": "ch_3Oq8", "cents": 4990}

    @app.job(queue="orders", name="shop.fulfil")
    def fulfil(context: Context, order: str) -> None:
        context.step("charge", charge)
        context.commit("book", lambda tr: None)
        context.gather("label", [label.bind(f"7-{part}") for part in "ab"], return_errors=True)
        context.sleep("cool off", "1s")
        context.wait("shipped", key=order, timeout="3d")
        raise Dead("the carrier answered 404 Not Found")

    @app.job(queue="reports", name="reports.orders")
    def report(*, done: int, dead: int, cancelled: int) -> None: ...

    with app.batch(then=report) as batch:
        for n in range(7, 20):
            batch.push(fulfil, f"order {n}")
    orders = app.queue("orders")
    first = next(iter(orders.items(app.db))).id
    app.work("orders", drain=True)
    time.sleep(1.5)
    app.work("orders", drain=True)
    orders.steps.signal(app.db, "shipped", key="order 7", value={"tracking": "1Z999"})
    app.work("orders", drain=True)
    return first


@contextmanager
def traffic(db: Any) -> Iterator[None]:
    """Push to the busy queues, and run their workers."""
    mails = PriorityQueue.named(db, "mails", max_attempts=3, keep=500)
    thumbnails = PriorityQueue.named(db, "thumbnails", keep=100)
    webhooks = PriorityQueue.named(db, "webhooks", max_attempts=8)
    index = PriorityQueue.named(db, "search-index")
    for n in range(42):
        mails.push(db, order(n, is_bad=True), _random.choice((0, 5)), delay=0)
    for n in range(9):
        webhooks.push(db, job("hooks.call", n, event="paid"), delay=200 + n)

    def refuse(item: Any) -> None:
        time.sleep(1)
        if item.value["kwargs"]["event"] == "paid":
            raise ConnectionError("https://example.com/hook answered 503 Service Unavailable")

    workers = [
        Worker(db, mails, broken_handler(), concurrency=4, name="mail-1"),
        Worker(db, thumbnails, sleep(1.2), concurrency=8, name="images-1"),
        Worker(db, thumbnails, sleep(1.2), concurrency=8, name="images-2"),
        Worker(db, webhooks, refuse, concurrency=2, name="hooks-1"),
        Worker(db, index, sleep(0.3), concurrency=3, name="index-1"),
        Worker(db, PriorityQueue.named(db, "reports"), sleep(1), name="reports-1"),
    ]
    stopping = threading.Event()

    def push() -> None:
        n = 100
        while not stopping.wait(0.1):
            n += 1
            wave = 1 + n // 60 % 3
            if n % 3 == 0:
                mails.push(db, order(n), _random.choice((0, 5)))
            thumbnails.push_many(
                db,
                [
                    job(
                        f"images.{'crop' if n % 5 == 0 else 'thumbnail'}",
                        f"p/{n}-{k}.jpg",
                        width=480,
                    )
                    for k in range(wave)
                ],
            )
            if n % 20 == 0:
                webhooks.push(db, job("hooks.call", 7, event=_random.choice(("paid", "sent"))))

    threads = [threading.Thread(target=worker.run) for worker in workers]
    threads.append(threading.Thread(target=push))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join()


def hasten(db: Any) -> None:
    """Make failed jobs ready at once, so that their attempts are used up without their delays."""
    mails = PriorityQueue.named(db, "mails")
    end = time.monotonic() + 60
    while mails.stats(db).dead < 42 and time.monotonic() < end:
        mails.change_all(db, "retry", state="delayed")
        time.sleep(0.5)


def pages_of(db: Any, dead_job: str) -> dict[str, str]:
    """Return the address of each page by its name."""
    dead = next(iter(PriorityQueue.named(db, "mails").items(db, state="dead", limit=1)))
    return {
        "overview": "#/",
        "queue": "#/queues/mails?state=dead",
        "item": f"#/queues/mails/items/{dead.id}",
        "steps": f"#/queues/orders/items/{dead_job}",
        "schedules": "#/queues/reports/schedules",
        "jobs": "#/jobs",
        "workers": "#/workers",
    }


def shoot(page: Page, name: str) -> None:
    """Store what a page shows, with few colours."""
    path = TARGET / f"{name}.png"
    page.screenshot(path=path)
    if shutil.which("pngquant"):
        subprocess.run(
            ["pngquant", "--force", "--output", path, "--speed", "1", "128", path], check=True
        )


def neutral(route: Route) -> None:
    """Pass on a response without the paths and the name of this machine."""
    response = route.fetch()
    text = (
        response.text().replace(str(ROOT), "/srv/shop/lib").replace(socket.gethostname(), "shop-1")
    )
    route.fulfill(response=response, body=text)


def open_pages(browser: Browser, address: str, pages: dict[str, str], seconds: float) -> None:
    """Open each page that is shown, wait for lines in its charts, and store it."""
    opened: list[tuple[str, Page]] = []
    scheme: Any  # a literal, and the size below a TypedDict
    for scheme in ("light", "dark"):
        for width, height in ((1280, 860), (360, 900)):
            for name, hash in pages.items():
                if f"{name}-{width}-{scheme}" not in SHOWN:
                    continue
                more = 420 if name in ("item", "steps") else 0
                size: Any = {"width": width, "height": height + more}
                page = browser.new_page(viewport=size, color_scheme=scheme)
                page.route("**/v1/workers", neutral)
                page.route("**/v1/queues/*/items/*", neutral)
                page.goto(f"{address}/{hash}")
                opened.append((f"{name}-{width}-{scheme}", page))
    # Pages in the background do not draw, but their requests go on.
    opened[0][1].wait_for_timeout(1000 * seconds)
    for name, page in opened:
        shoot(page, name)
        if name == "queue-1280-light":
            page.get_by_role("button", name="Retry all").click()
            shoot(page, "retry-1280-light")
            page.keyboard.press("Escape")
        page.unroute_all(behavior="ignoreErrors")
        page.close()


def main() -> None:
    """Take the screenshots."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=210, help="for which the charts are drawn")
    seconds: float = parser.parse_args().seconds
    logging.disable(logging.CRITICAL)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    TARGET.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        url = f"embedded:{directory}/shop"
        db = fdbqueue.open(url)
        fill(db)
        dead_job = run_steps(url)
        with served(url) as (_, client), traffic(db), sync_playwright() as playwright:
            hasten(db)
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            open_pages(browser, str(client.base_url).rstrip("/"), pages_of(db, dead_job), seconds)
            browser.close()


if __name__ == "__main__":
    main()
