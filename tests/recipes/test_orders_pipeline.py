"""The shops of `recipes/orders.py` and of `recipes/orders_pipeline/`, which kills its workers."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from fastapi.testclient import TestClient

from fdbqueue import App
from recipes import orders
from tests.support.fdbq_work import Workers, is_alive
from tests.support.pages import ROOT
from tests.support.shell import Shell
from tests.support.waiting import wait_until

ORDERS, CUSTOMERS = 300, 20
KILLS = 5  # while requests come, and again while the last orders end
TIMEOUT = 550.0

Request: TypeAlias = tuple[str, str, Any]  # a method, a path, and a body

SEED = int(os.environ.get("FDBQ_SEED", 0)) or random.randrange(1, 10**6)


@pytest.fixture
def fdbq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    fdbq = Shell(tmp_path, "embedded:queues")
    fdbq.environment["PYTHONPATH"] = str(ROOT)
    return fdbq


@pytest.fixture
def shop(fdbq: Shell) -> Iterator[TestClient]:
    """Return the web application on the databases of the test."""
    # SQLAlchemy makes the path of the tables absolute when the module is imported.
    from recipes.orders_pipeline.tables import engine
    from recipes.orders_pipeline.web import api, app

    app.bind(fdbq.environment["FDBQ_DB"])
    with TestClient(api) as client:
        yield client
    app.db.close()
    engine.dispose()


@pytest.fixture
def workers(fdbq: Shell, shop: TestClient) -> Iterator[Workers]:
    workers = Workers(fdbq)
    workers.start(
        *("--app", "recipes.orders_pipeline:app", "--processes", "2"),
        *("--concurrency", "10", "--lease", "3"),
    )
    yield workers
    workers.kill()


def kill_one(workers: Workers, chosen: random.Random) -> None:
    def alive() -> list[int]:
        return [*filter(is_alive, workers.pids)]

    wait_until(alive, TIMEOUT)
    pid = chosen.choice(alive())
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), TIMEOUT)


def requests(chosen: random.Random) -> list[Request]:
    """Return requests that place each order, repeat some, and then ship it, cancel it, or both."""
    timed: list[tuple[float, Request]] = []
    for number in range(ORDERS):
        order = f"/orders/{number}"
        body = {
            "customer": f"customer-{number % CUSTOMERS}@example.com",
            "cents": chosen.randrange(1, 60_000),  # the bank declines one in six
        }
        placed: Request = "put", order, body
        shipped: Request = "post", f"{order}/parcel", {"tracking": order}
        cancelled: Request = "delete", order, None
        later: list[Request] = chosen.choice(
            [[shipped], [shipped], [cancelled], [shipped, cancelled]]
        )
        timed.append((number, placed))
        for each in [*later, *chosen.choices([placed, *later], k=chosen.randrange(2))]:
            timed.append((number + chosen.uniform(0, ORDERS / 5), each))
    return [request for _, request in sorted(timed, key=lambda each: each[0])]


def rows(path: str, query: str) -> list[Any]:
    with closing(sqlite3.connect(path, timeout=60)) as db:
        return db.execute(query).fetchall()


def wait_for_end_of_all_but(n: int) -> None:
    """Wait until at most `n` orders are open."""
    query = "SELECT count(*) FROM orders WHERE state = 'placed'"
    wait_until(lambda: rows("shop.sqlite3", query)[0][0] <= n, TIMEOUT)


def have_ended(app: App, *queues: str) -> bool:
    """Return whether all jobs of these queues have ended, and the mails that they have pushed."""

    def is_empty(queue: str) -> bool:
        n = app.queue(queue).stats(app.db).by_state
        return not (n["ready"] or n["delayed"] or n["claimed"])

    # A row that becomes a job, and a job that stores a row, are seen in one place or the other.
    rest = "SELECT id FROM fdbqueue_outbox WHERE id > 0"
    if rows("shop.sqlite3", rest) or not all(map(is_empty, queues)):
        return False
    return not rows("shop.sqlite3", rest) and is_empty("mail")


def test_each_order_is_charged_once_or_refunded_however_often_workers_are_killed(
    shop: TestClient, workers: Workers, fdbq: Shell
) -> None:
    from recipes.orders_pipeline import app, statements
    from recipes.orders_pipeline.orders import booking_key, sales_key

    print(f"FDBQ_SEED={SEED}")
    chosen = random.Random(SEED)
    calls = requests(chosen)
    moments = {*chosen.sample(range(len(calls)), KILLS)}
    for number, (method, path, body) in enumerate(calls):
        assert shop.request(method, path, json=body).status_code == 202
        if number in moments:
            kill_one(workers, chosen)

    for left in sorted(chosen.sample(range(ORDERS // 4), KILLS), reverse=True):
        wait_for_end_of_all_but(left)
        kill_one(workers, chosen)
    wait_until(lambda: have_ended(app, "orders", "reports"), TIMEOUT)
    fdbq.output("schedule", "run", "reports", statements.statements.name)
    kill_one(workers, chosen)

    def summaries() -> set[Any]:
        done = app.queue("reports").items(app.db, state="done", job="summary")
        return {info.result.partition(": ")[2] for info in done}

    wait_until(lambda: f"{CUSTOMERS} statements, 0 failed" in summaries(), TIMEOUT)
    wait_until(lambda: have_ended(app, "orders"), TIMEOUT)

    # Each order has ended in one way, and had one job.
    orders = rows("shop.sqlite3", "SELECT id, customer, cents, state FROM orders")
    assert sorted(int(id) for id, *_ in orders) == [*range(ORDERS)]
    states = {id: state for id, _, _, state in orders}
    assert {*states.values()} == {"shipped", "cancelled", "failed"}
    queue = app.queue("orders")
    jobs = [
        (info.item.value["args"][0], info.outcome or info.state)
        for state in ("done", "dead")
        for info in queue.items(app.db, state=state, job="fulfil")
    ]
    assert len(jobs) == len({id for id, _ in jobs}) == ORDERS
    assert {(states[id], outcome) for id, outcome in jobs} <= {
        ("shipped", "done"),
        ("shipped", "cancelled"),  # too late
        ("cancelled", "cancelled"),
        ("cancelled", "dead"),
        ("failed", "dead"),
    }

    # The bank has the money for the orders that were shipped, and for no other.
    charges = rows("bank.sqlite3", "SELECT key, cents FROM charges WHERE NOT refunded")
    shipped = {id: (customer, cents) for id, customer, cents, state in orders if state == "shipped"}
    assert dict(charges) == {id: cents for id, (_, cents) in shipped.items()}

    # The books say so, too.
    sales: Counter[str] = Counter()
    for customer, cents in shipped.values():
        sales[customer] += cents
    for id, customer, _, _ in orders:
        assert (app.db[booking_key(id)] is not None) == (id in shipped)
        stored = app.db[sales_key(customer)] or b""
        assert int.from_bytes(stored, "little", signed=True) == sales[customer]

    # Each customer has got each mail.
    mails = {tuple(json.loads(line)) for line in Path("mails.jsonl").read_text().splitlines()}
    day = next(text for _, text in mails if "statement" in text).split()[3].rstrip(":")
    expected = {(customer, f"Your order {id} is {state}.") for id, customer, _, state in orders}
    for id, (customer, cents) in shipped.items():
        expected.add((customer, f"The receipt of your order {id}: {cents / 100:.2f}"))
    for customer in {customer for _, customer, _, _ in orders}:
        expected.add((customer, f"Your statement of {day}: {sales[customer] / 100:.2f}"))
    assert mails >= expected


def test_an_order_is_charged_booked_and_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    orders.app.bind("memory:")
    handle = orders.fulfil.push("order 7")
    while handle.state() != "done":
        orders.app.work(drain=True)
    assert handle.result() == "1Z of charge of order 7"
    assert capsys.readouterr().out == "charge order 7\n"
    assert int.from_bytes(orders.app.db[b"booked order 7"], "little") == 1
