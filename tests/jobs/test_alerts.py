"""The transaction that makes a dead letter also pushes the job that `on_dead` names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import PriorityQueue, Queue
from fdbqueue.admin import queue_names, rename_job
from fdbqueue.jobs import App, Context, Dead, InvalidArguments, Retry
from fdbqueue.testing import FaultyDatabase
from fdbqueue.types import DeadJob
from tests.support.leases import lapse
from tests.support.waiting import MAX_WAIT, wait_until

ONCE = Retry(attempts=1)


class Shop:
    """An app whose job dies, and the alerts that its other job has got.

    Attributes:
        queue: The queue of the job that dies.
    """

    def __init__(self, db: Any, name: str) -> None:
        self.app, self.db, self.name = App(db), db, name
        self.got: list[DeadJob] = []

        @self.app.job(queue=f"{name}alerts", name="alert")
        def alert(dead: DeadJob) -> None:
            self.got.append(dead)

        @self.app.job(queue=name, name="send", retry=ONCE, on_dead=alert)
        def send(to: str = "ada", *, urgent: bool = False) -> None:
            raise OSError("no route")

        self.alert, self.send = alert, send

    @property
    def queue(self) -> PriorityQueue[Any]:
        return PriorityQueue.existing(self.db, self.name)

    def alerts(self) -> list[DeadJob]:
        """Return the alerts since the last call."""
        self.got.clear()
        if f"{self.name}alerts" in queue_names(self.db):
            self.app.work(f"{self.name}alerts", drain=True)
        return self.got


@pytest.fixture
def shop(db: Any, name: str) -> Shop:
    return Shop(db, name)


def work(shop: Shop) -> None:
    shop.app.work(shop.name, drain=True)


def time_out(shop: Shop) -> None:
    @shop.app.job(queue=shop.name, name="slow", retry=ONCE, timeout="10ms", on_dead=shop.alert)
    async def slow(to: str, *, urgent: bool) -> None:
        await asyncio.sleep(MAX_WAIT)

    shop.queue.pop(shop.db)
    slow.push("ada", urgent=True)
    work(shop)


def find_unknown(shop: Shop) -> None:
    other = App(shop.db, keep_unknown=0)
    other.job(queue=shop.name)(find_unknown)
    other.work(drain=True)


def end_lease(shop: Shop) -> None:
    """The lease ends in a process that knows no app."""
    shop.queue.configure(shop.db, max_attempts=1)
    shop.queue.claim(shop.db)
    lapse(shop.db, shop.queue)
    assert shop.queue.stats(shop.db).dead == 1


def end_lease_after_the_last_attempt(shop: Shop) -> None:
    shop.queue.claim(shop.db)
    lapse(shop.db, shop.queue)
    work(shop)


def refuse(shop: Shop) -> None:
    queue = shop.queue
    queue.nack(shop.db, queue.claim(shop.db), error="no", dead=True)


HOW: dict[str, tuple[Callable[[Shop], None], str, int]] = {
    "an exception": (work, "OSError: no route", 1),
    "a time-out": (time_out, "TimedOut: ", 1),
    "a lease": (end_lease, "its lease ran out", 1),
    "a lease of the last attempt": (end_lease_after_the_last_attempt, "its lease ran out", 1),
    "an unknown name": (find_unknown, "no worker knows the job 'send'", 0),
    "a client": (refuse, "no", 1),
}
"""What makes a dead letter, with its error and the number of failed attempts."""


@pytest.mark.parametrize("how", HOW)
def test_whatever_makes_the_dead_letter(shop: Shop, how: str) -> None:
    shop.send.push("ada", urgent=True)
    make, error, attempts = HOW[how]
    make(shop)
    (letter,) = shop.queue.items(shop.db, state="dead")
    (dead,) = shop.alerts()
    assert (dead.args, dead.kwargs) == (["ada"], {"urgent": True})
    assert (dead.job, dead.id, dead.queue) == (letter.job.name, letter.item.id, shop.name)
    assert (dead.error, dead.attempts) == (letter.error, attempts)
    assert error in str(dead.error)


def test_one_for_each_dead_letter_after_unknown_results(shop: Shop) -> None:
    shop.db.options.set_transaction_max_retry_delay(1)
    handles = shop.send.push_many([shop.send.bind(f"{n}") for n in range(30)])
    faulty: Any = FaultyDatabase(shop.db, before=0.2, after=0.3, seed=1)
    shop.app.bind(faulty)
    work(shop)
    assert faulty.lost
    shop.app.bind(shop.db)
    assert sorted(dead.id for dead in shop.alerts()) == sorted(handle.id for handle in handles)


def test_another_one_after_a_retry_by_hand(shop: Shop) -> None:
    handle = shop.send.push()
    for attempts in (1, 2):
        work(shop)
        assert [dead.attempts for dead in shop.alerts()] == [attempts]
        assert shop.queue.retry(shop.db, handle.id)
    shop.queue.update(shop.db, handle.id, priority=7)
    work(shop)
    assert [(dead.id, dead.attempts) for dead in shop.alerts()] == [(handle.id, 3)]
    assert rename_job(shop.db, shop.name, shop.send.name, "sent")["dead"] == 1
    assert shop.alerts() == []


def test_the_alert_is_gone_with_the_transaction(shop: Shop) -> None:
    shop.send.push()
    claim = shop.queue.claim(shop.db)
    tr = shop.db.create_transaction()
    shop.queue.nack(tr, claim, dead=True)
    assert shop.queue.state(shop.db, claim.item) == "claimed"
    assert shop.alerts() == []


def test_an_alert_that_dies_pushes_nothing(db: Any, name: str) -> None:
    app = App(db)

    @app.job(queue=name)
    def last(dead: DeadJob) -> None: ...

    @app.job(queue=name, on_dead=last)
    def alert(dead: DeadJob) -> None:
        raise Dead("no mail server")

    @app.job(queue=name, on_dead=alert)
    def send() -> None:
        raise Dead("no")

    send.push()
    app.work(drain=True)
    stats = app.queue(name).stats(db)
    assert (stats.dead, stats.done, stats.ready) == (2, 0, 0)


def _in_batch(shop: Shop) -> None:
    @shop.app.job(queue=shop.name)
    def report(*, done: int, dead: int, cancelled: int) -> None: ...

    with shop.app.batch(then=report) as batch:
        batch.push(shop.send)


def _after_batch(shop: Shop) -> None:
    @shop.app.job(queue=shop.name, retry=ONCE, name="send", on_dead=shop.alert)
    def report(*, done: int, dead: int, cancelled: int) -> None:
        raise OSError

    with shop.app.batch(then=report):
        pass


def _as_child(shop: Shop) -> None:
    @shop.app.job(queue=shop.name, retry=ONCE)
    def parent(context: Context) -> None:
        context.run("child", shop.send)

    parent.push()


def _scheduled(shop: Shop, is_declared: bool) -> None:
    if is_declared:
        shop.app.every("1h", name="hourly")(shop.send)
        shop.app.deploy(shop.name)
    else:
        shop.app.schedules.add("hourly", shop.send.bind(), every="1h")
    assert shop.app.schedules.run_now("hourly")


WAYS: dict[str, Callable[[Shop], object]] = {
    "with a unique key": lambda shop: shop.send.using(unique="a").push(),
    "in a transaction": lambda shop: shop.send.using(shop.db).push(),
    "in a group, later": lambda shop: shop.send.using(group="a", delay=0.001).push(),
    "after another": lambda shop: shop.send.using(
        after=shop.app.job(queue=shop.name)(print_nothing).push()
    ).push(),
    "in a batch": _in_batch,
    "after a batch": _after_batch,
    "as a child": _as_child,
    "by a schedule": lambda shop: _scheduled(shop, is_declared=False),
    "by a declared schedule": lambda shop: _scheduled(shop, is_declared=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_however_the_job_is_pushed(db: Any, name: str, way: str) -> None:
    shop = Shop(db, name)
    if way == "after a batch":
        shop.app._jobs.pop("send")
    WAYS[way](shop)
    got = list[DeadJob]()
    wait_until(lambda: work(shop) or got.extend(shop.alerts()) or got)
    assert [dead.job for dead in got] == ["send"]


def test_where_it_goes(db: Any, name: str) -> None:
    """Its queue may be new, and like an app's; it takes no place; its group is a text."""
    app = App(db, keep="3h")

    @app.job(queue=f"{name}new", priority=3, version=2, group="ops")
    def alert(dead: DeadJob) -> None: ...

    @app.job(queue=name, on_dead=alert.using(queue=name))
    def full() -> None: ...

    @app.job(queue=name, on_dead=alert)
    def send(text: str) -> None: ...

    app.queue(name).configure(db, max_size=1)
    for job in (full.bind(), send.bind("x" * 20_000)):
        (full if job.stored.name == full.name else send).push_many([job])
        claim = app.queue(name).claim(db)
        app.queue(name).nack(db, claim, dead=True)
        if job.stored.name == full.name:
            (info,) = app.queue(name).items(db, state="ready")
            assert info.item.value["job"] == alert.name
            app.queue(name).configure(db, max_size=2)
    new = PriorityQueue.existing(db, f"{name}new")
    (info,) = new.items(db, state="ready")
    assert (info.item.priority, info.group, info.job.version) == (3, "ops", 2)
    assert new.options(db).keep_seconds == 3 * 3600
    assert info.item.value["args"][0]["args"] is None  # the call is in pieces
    assert info.item.value["args"][0]["job"] == send.name


def test_if_its_queue_takes_no_jobs_it_goes_to_that_of_the_dead_job(shop: Shop) -> None:
    Queue.named(shop.db, f"{shop.name}alerts").push(shop.db, "other")
    shop.send.push()
    work(shop)
    assert [dead.job for dead in shop.got] == ["send"]


REFUSED: dict[str, tuple[Callable[[Shop], Any], type[Exception], str]] = {
    "a function": (lambda shop: print, TypeError, "a job of this app"),
    "of another app": (lambda shop: App().job()(print_one), TypeError, "a job of this app"),
    "with a transaction": (lambda shop: shop.alert.using(shop.db), TypeError, "without tr"),
    "of other arguments": (lambda shop: shop.send, InvalidArguments, "one argument, a DeadJob"),
}


def print_one(dead: DeadJob) -> None: ...


def print_nothing() -> None: ...


@pytest.mark.parametrize("which", REFUSED)
def test_what_is_no_alert_is_refused(shop: Shop, which: str) -> None:
    alert, kind, match = REFUSED[which]
    with pytest.raises(kind, match=match):
        shop.app.job(on_dead=alert(shop))(print_one)
    assert print_one.__qualname__ not in str(shop.app.jobs)
