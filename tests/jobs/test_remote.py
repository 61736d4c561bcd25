"""An app that pushes to a server behaves as one that has the database."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from fdbqueue import PriorityQueue, aio
from fdbqueue.errors import InvalidItemId, InvalidValue, NoResult, PayloadTooLarge, QueueFull
from fdbqueue.jobs import App, Context, Handle, InvalidArguments, Retry, remote
from fdbqueue.jobs.errors import AppIsRemote, ServerRefused, ServerUnavailable
from fdbqueue.testing import Clock
from fdbqueue.types import DeadJob
from tests.support.lossy import LOSSES, Loss, lossy
from tests.support.server import serve
from tests.support.threads import later
from tests.support.waiting import MAX_WAIT

__all__ = ["serve"]

NEXT_YEAR = datetime.now(UTC).replace(microsecond=0) + timedelta(days=365)


class Shop:
    """The jobs of an app."""

    def __init__(self, app: App, name: str) -> None:
        self.app = app

        @app.job(queue=name, name="send")
        def send(to: str, *, on: date | None = None) -> str:
            if to == "nobody":
                raise LookupError(to)
            return f"{to} on {on}"

        @app.job(queue=name, name="order", retry=Retry(attempts=1))
        def order(context: Context, mail: Handle[str]) -> list[Any]:
            return [mail.id, context.wait("paid", key="order 7").value]

        @app.job(queue=name, name="report")
        def report(*, done: int, dead: int, cancelled: int) -> None: ...

        self.send, self.order, self.report = send, order, report


@pytest.fixture
def worker(db: Any, name: str) -> Shop:
    """Return the jobs where they run."""
    return Shop(App(db), name)


@pytest.fixture(params=["database", "server"])
def shop(request: pytest.FixtureRequest, serve: Any, db: Any, name: str) -> Iterator[Shop]:
    """Return the jobs where they are pushed, to the database or to its server."""
    if request.param == "database":
        yield Shop(App(db), name)
        return
    with serve(FDBQ_TOKEN="secret write") as (_, client):
        app = App()
        app.bind(str(client.base_url), token="secret")
        yield Shop(app, name)


@pytest.fixture
def far(serve: Any, name: str) -> Iterator[Shop]:
    """Return the jobs of an app that pushes to a server."""
    with serve() as (_, client):
        yield Shop(App(str(client.base_url)), name)


def work(worker: Shop) -> None:
    worker.app.work(drain=True)


def raised(call: Callable[[], object]) -> tuple[Any, ...]:
    """Return the class, the sentence and the fields of the error that a call raises."""
    with pytest.raises(Exception) as error:  # noqa: PT011
        call()
    fields = {k: v for k, v in vars(error.value).items() if not k.startswith("__")}
    return error.type, str(error.value), fields


def test_jobs_are_pushed_followed_and_return_results(shop: Shop, worker: Shop) -> None:
    first = shop.send.push("ada", on=date(2030, 1, 31))
    others = shop.send.push_many([shop.send.bind("bob"), shop.send.bind("nobody")])
    assert shop.send.push_many([]) == []
    handles = [first, *others]
    assert [handle.state() for handle in handles] == ["ready"] * 3
    assert all(handle.is_new for handle in handles)
    assert first.info().job.args == ["ada"]
    with pytest.raises(NoResult):
        first.result()
    with later(lambda: first.result(wait=MAX_WAIT)) as result:
        work(worker)
        assert result.result() == "ada on 2030-01-31"
    same = Handle(worker.send, first.queue, first.id, is_new=True)
    assert str(first.info()) == str(same.info())  # but for its key, which the server does not show
    assert others[1].info().failed_attempts[0].error == "LookupError: nobody"

    async def seen() -> list[Any]:
        handle = await aio.run(shop.send.push, "eve")
        with later(lambda: work(worker)):
            states = [info.state async for info in handle]
        return [states[-1], await aio.run(handle.result)]

    assert asyncio.run(seen()) == ["done", "eve on None"]


def test_the_first_push_creates_a_queue_that_keeps_results(
    shop: Shop, worker: Shop, name: str
) -> None:
    shop.send.push("ada")
    options = worker.app.queue(name).options(worker.app.db)
    assert (options.keep_seconds, options.keep_number) == (86_400, None)


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 7, "group": "blue", "cost": 2.5},
        {"group": lambda to, **_: f"group of {to}", "at": NEXT_YEAR},
        {"delay": timedelta(hours=1), "ttl": "2h"},
        {"unique": True, "unique_until": "claimed"},
        {"unique": lambda to, **_: to, "unique_for": timedelta(days=1)},
        {"unique": "key"},
    ],
)
def test_options_are_stored_as_on_the_database(far: Shop, worker: Shop, options: Any) -> None:
    stored: list[dict[str, Any]] = []
    for shop in (worker, far):
        handles = shop.send.using(**options).push_many([shop.send.using(**options).bind("a")] * 2)
        assert handles[1].is_new == ("unique" not in options)
        info = handles[0].info()
        times = [getattr(info, each) for each in ("due_at", "expires_at")]
        assert info.item.priority == options.get("priority", 0)
        stored.append(
            {
                **{each: getattr(info, each) for each in ("state", "group", "unique", "item")},
                "times": [
                    each and round((each - info.pushed_at).total_seconds()) for each in times
                ],
                "item": info.item.value,
            }
        )
        worker.app.queue(handles[0].queue).clear(worker.app.db)
    if "at" in options:
        assert abs(stored[0].pop("times")[0] - stored[1].pop("times")[0]) < MAX_WAIT
    assert stored[0] == stored[1]


def test_errors_are_the_same_as_on_the_database(far: Shop, worker: Shop, name: str) -> None:
    died, waits = worker.send.using(priority=1).push("nobody"), worker.send.push("ada")
    cancelled = worker.send.push("bob")
    cancelled.cancel()
    queue, db = worker.app.queue(name), worker.app.db
    queue.nack(db, queue.claim(db), error="no line", dead=True)
    queue.release(db, waits.id)
    queue.set_group(db, "full", max_size=1)

    def calls(shop: Shop) -> list[Callable[[], object]]:
        def at(handle: Handle[Any]) -> Handle[Any]:
            return Handle(shop.send, name, handle.id, is_new=True)

        unknown = Handle(shop.send, f"{name} unknown", died.id, is_new=True)
        bad: Any = shop.send
        send = shop.send
        return [
            *(at(each).result for each in (died, waits, cancelled)),
            unknown.result,
            Handle(send, name, "no id", is_new=True).info,
            lambda: send.using(group="full").push_many([send.using(group="full").bind("a")] * 2),
            lambda: bad.push(3),
            lambda: bad.using(delay=-1.5).push("a"),
            lambda: send.push("x" * 8_000_001),
            lambda: shop.app.signal(None, "paid", value={1, 2}),
            lambda: shop.app.signal(None, "paid", value=90_001 * "x"),
            lambda: shop.app.signal(None, ""),
        ]

    kinds = [NoResult] * 4 + [InvalidItemId, QueueFull, InvalidArguments, ValueError]
    kinds += [PayloadTooLarge, InvalidValue, PayloadTooLarge, ValueError]
    for here, there, kind in zip(calls(worker), calls(far), kinds):
        expected = raised(here)
        assert (expected[0], raised(there)) == (kind, expected)
    stats = queue.stats(db)
    assert (stats.ready, stats.dead) == (1, 1)
    assert Handle(far.send, f"{name} unknown", died.id, is_new=True).state() is None
    assert not Handle(far.send, f"{name} unknown", died.id, is_new=True).cancel()


def test_a_job_is_cancelled_once(shop: Shop, worker: Shop) -> None:
    handle = shop.send.using(delay="1h").push("ada")
    assert [handle.cancel(), handle.cancel()] == [True, False]
    assert handle.info().outcome == "cancelled"


def test_the_alert_of_a_job_is_pushed_when_it_dies(shop: Shop, worker: Shop, name: str) -> None:
    got: list[DeadJob] = []

    def with_alert(app: App) -> Any:
        @app.job(queue=name, name="alert")
        def alert(dead: DeadJob) -> None:
            got.append(dead)

        on_dead = alert.using(queue=f"{name} alerts", priority=3, group="pager")

        @app.job(queue=name, name="deliver", retry=Retry(attempts=1), on_dead=on_dead)
        def deliver(to: str) -> None:
            raise LookupError(to)

        return deliver

    with_alert(worker.app)
    deliver = with_alert(shop.app)
    many = [deliver.bind("ada"), deliver.bind("bob")]
    handles = deliver.using(group="mail", priority=2).push_many(many)
    work(worker)
    queue = worker.app.queue(f"{name} alerts")
    found = queue.search(worker.app.db, state="ready").items
    assert [(info.item.priority, info.group) for info in found] == [(3, "pager")] * 2
    worker.app.work(f"{name} alerts", drain=True)
    expected = {handle.id: ("deliver", [to]) for to, handle in zip(["ada", "bob"], handles)}
    assert {dead.id: (dead.job, dead.args) for dead in got} == expected


def test_a_signal_continues_a_job_that_got_a_handle(shop: Shop, worker: Shop) -> None:
    mail = shop.send.push("ada")
    order = shop.order.push(mail)
    work(worker)
    assert shop.app.signal(None, "paid", key="order 7", value=[9], keep=timedelta(hours=1)) == 1
    work(worker)
    assert order.result() == [mail.id, [9]]


def test_what_needs_the_database_says_where_it_runs(far: Shop, worker: Shop) -> None:
    app, handle = far.app, far.send.push("ada")
    url = str(app).rpartition(" ")[2].rstrip(">")
    for call in (
        app.work,
        lambda: app.db,
        lambda: app.queue("jobs"),
        lambda: far.send.using(worker.app.db).push("ada"),
        lambda: far.send.using(after=handle).push("ada"),
        lambda: app.signal(worker.app.db, "paid"),
        lambda: app.batch(then=far.report),
        lambda: app.existing_batch(handle.id),
        lambda: app.schedules.pause("x"),
    ):
        kind, message, fields = raised(call)
        assert (kind, fields) == (AppIsRemote, {"url": url})
        assert "fdbq work --app" in message
    assert worker.app.queue(handle.queue).size(worker.app.db) == 1


def test_a_server_refuses_a_wrong_token_and_another_server_is_noticed(
    serve: Any, db: Any, name: str
) -> None:
    with serve(FDBQ_TOKEN="reads read") as (_, client):
        url = str(client.base_url)
        for token, status in ((None, 401), ("wrong", 401), ("reads", 403)):
            with pytest.raises(ServerRefused, match=r"token|rights") as error:
                Shop(App(url, token=token), name).send.push("ada")
            assert (error.value.url, error.value.status) == (url, status)
        PriorityQueue.named(db, name, codec="bytes").push(db, b"1")
    with serve() as (_, client):
        url = str(client.base_url)
        with pytest.raises(ServerRefused, match="not JSON") as error:
            Shop(App(url), name).send.push("ada")
        assert error.value.status == 409
        with pytest.raises(ServerRefused, match="no server of fdbqueue"):
            Shop(App(f"{url}/dashboard"), name).send.push("ada")
    for wrong in ("http://", "https:///v1"):
        with pytest.raises(ValueError, match="a server is like"):
            App(wrong)
    with pytest.raises(ValueError, match="printable"):
        App("http://host", token="a\nb")
    with pytest.raises(ValueError, match="repeat_for"):
        App("http://host", repeat_for="2h")


def test_a_wait_may_be_longer_than_a_request(
    far: Shop, worker: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_LONGEST_WAIT", 0.01)
    handle = far.send.push("ada")
    with pytest.raises(NoResult, match="ready"):
        handle.result(wait=0.05)
    with later(lambda: handle.result(wait=MAX_WAIT)) as result:
        work(worker)
        assert result.result() == "ada on None"


def test_without_httpx_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[client\]'"):
        App("https://queues.example:8080")
    App("memory:")


# Lost connections


class Losing:
    """The losses of the next requests, and a shop that pushes through them."""

    def __init__(self) -> None:
        self.losses: list[Loss] = []

    def next(self) -> Loss | None:
        return self.losses.pop() if self.losses else None


@pytest.fixture
def losing() -> Losing:
    return Losing()


@pytest.fixture
def lossy_shop(
    serve: Any, name: str, losing: Losing, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shop]:
    monkeypatch.setattr(remote, "sleep", clock.advance)
    with serve() as (_, client), lossy(str(client.base_url), losing.next) as address:
        yield Shop(App(address), name)


@pytest.mark.parametrize("loss", LOSSES)
def test_each_call_takes_effect_once_although_connections_are_lost(
    lossy_shop: Shop, worker: Shop, losing: Losing, loss: Loss
) -> None:
    shop, send = lossy_shop, lossy_shop.send

    def losing_calls(call: Callable[[], Any]) -> Any:
        losing.losses = [loss] * 3
        result = call()
        assert not losing.losses
        return result

    mail = losing_calls(lambda: send.push("ada"))
    order = losing_calls(lambda: shop.order.push(mail))
    unique = send.using(unique="key", delay="1h")
    many = losing_calls(lambda: unique.push_many([send.bind("bob"), send.bind("bob")]))
    assert [handle.is_new for handle in many] == [True, False]
    stats = worker.app.queue(mail.queue).stats(worker.app.db)
    assert (stats.ready, stats.delayed) == (2, 1)
    assert losing_calls(many[0].cancel)
    work(worker)
    assert losing_calls(lambda: shop.app.signal(None, "paid", key="order 7", value=9)) == 1
    work(worker)
    assert losing_calls(order.result) == [mail.id, 9]
    assert losing_calls(mail.state) == "done"
    assert worker.app.queue(mail.queue).stats(worker.app.db).done == 3


@pytest.mark.parametrize("loss", LOSSES)
def test_a_push_that_gets_no_answer_says_that_it_may_be_stored(
    lossy_shop: Shop, worker: Shop, losing: Losing, loss: Loss
) -> None:
    losing.losses = [loss] * 1_000
    with pytest.raises(ServerUnavailable, match="may or may not have taken effect") as error:
        lossy_shop.send.push("ada")
    assert error.value.is_unknown
    assert error.value.seconds == 30
    stored = worker.app.queue(lossy_shop.send.queue).size(worker.app.db)
    assert stored == (loss != "before it arrives")


def test_a_push_to_an_address_without_a_server_says_that_nothing_was_changed(
    name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "sleep", clock.advance)
    shop = Shop(App("http://127.0.0.1:1", repeat_for="2m"), name)
    with pytest.raises(ServerUnavailable, match=r"for 120 s: .*nothing was changed") as error:
        shop.send.push("ada")
    assert not error.value.is_unknown
