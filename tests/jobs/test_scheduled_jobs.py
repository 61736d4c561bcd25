"""Schedules that an app declares: they run at their ticks, and code and database agree."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from fdbqueue.admin import check
from fdbqueue.coordination import waiting
from fdbqueue.database import clock as machine
from fdbqueue.errors import InvalidSchedule
from fdbqueue.jobs import App, Context, InvalidArguments
from fdbqueue.jobs.errors import DuplicateSchedule
from fdbqueue.testing import Clock
from fdbqueue.types import Database
from tests.support.waiting import wait_until

HOUR = timedelta(hours=1)


def only(app: App) -> Any:
    (schedule,) = app.schedules.all()
    return schedule


def hourly(app: App, name: str, missed: Any = "latest") -> list[Any]:
    """Declare a job that runs each hour; return a list to which it adds its ticks."""
    ran: list[Any] = []

    @app.every("1h", missed=missed)
    @app.job(queue=name, name="report")
    def report(context: Context) -> None:
        ran.append(context.tick)

    return ran


def test_a_job_may_have_several_schedules(app: App, name: str) -> None:
    @app.cron("0 3 * * *", name="nightly", kwargs={"full": True})
    @app.cron("*/5 * * * *", tz="Europe/Lisbon", missed="skip", overlap="queue")
    @app.job(queue=name, name="report")
    def report(full: bool = False) -> None: ...

    app.deploy()
    nightly, often = app.schedules.all()
    assert (nightly.name, nightly.cron, nightly.value["kwargs"]) == (
        *("nightly", "0 3 * * *"),
        {"full": True},
    )
    options = often.name, often.tz, often.missed, often.overlap
    assert options == ("report", "Europe/Lisbon", "skip", "queue")


def test_mistakes_are_errors_at_import(app: App, name: str) -> None:
    @app.job(queue=name)
    def report(of: str) -> None: ...

    with pytest.raises(InvalidSchedule, match="Bad hour"):
        app.cron("0 25 * * *", args=["a"])(report)
    with pytest.raises(InvalidSchedule, match="at least 1 second"):
        app.every(0.1, args=["a"])(report)
    with pytest.raises(InvalidArguments):
        app.every("1h")(report)
    with pytest.raises(TypeError, match=r"write @app.job\(\) below it"):
        app.every("1h")(lambda: None)  # type: ignore[type-var]
    app.every("1h", args=["a"])(report)
    with pytest.raises(DuplicateSchedule):
        app.every("2h", args=["b"])(report)


def test_a_changed_declaration_replaces_the_stored_one(
    db: Database, name: str, clock: Clock
) -> None:
    def app_with(*args: int, expression: str) -> App:
        app = App(db)

        @app.cron(expression, args=args)
        @app.job(queue=name, name="report")
        def report(*pages: int) -> None: ...

        return app

    old, new = app_with(1, expression="0 3 * * *"), app_with(2, 3, expression="30 4 * * *")
    old.deploy()
    before = only(old)
    new.deploy()
    after = only(old)
    assert (before.value["args"], after.value["args"]) == ([1], [2, 3])
    assert (before.next_tick.hour, after.next_tick.hour) == (3, 4)
    renew = old.schedules.renewing([name])
    clock.advance("2h")
    renew()  # an old worker that still runs
    assert only(old).value == after.value


def test_a_schedule_that_nobody_declares_any_more_stops_after_a_day(
    app: App, name: str, clock: Clock
) -> None:
    ran = hourly(app, name)
    app.work(drain=True)
    later = App(app.db)
    later.job(queue=name, name="report")(app.jobs["report"].function)
    clock.advance("23h")
    later.work(drain=True)
    assert len(ran) == 1
    clock.advance("2h")
    assert only(app).next_tick is None  # although no client has found it yet
    later.work(drain=True)
    assert (len(ran), only(app).next_tick) == (1, None)
    assert check(app.db, app.queue(name)).problems == ()
    app.work(drain=True)  # somebody declares it again, and finds the last tick that was missed
    assert len(ran) == 2
    clock.advance("1h")
    app.work(drain=True)
    assert len(ran) == 3


@pytest.mark.parametrize(
    ("hours", "missed", "expected"),
    [(30, "skip", []), (30, "all", [*range(1, 31)]), (2000, "latest", [2000]), (-30, "latest", [])],
)
def test_a_schedule_goes_on_after_its_machine_has_slept_or_its_clock_was_set(
    app: App, name: str, hours: int, missed: Any, expected: list[int], monkeypatch: Any
) -> None:
    """The monotonic clock, which stands still meanwhile, is not moved."""
    begin = Clock().now().replace(minute=0, second=0, microsecond=0)
    now = begin + HOUR / 2
    monkeypatch.setattr(machine, "time_ns", lambda: round(now.timestamp()) * 10**9)
    monkeypatch.setattr(waiting, "MAX_SLEEP", 0.02)  # in which a worker would not see a move
    ran = hourly(app, name, missed)
    kwargs = {"max_jobs": len(expected) + 1}
    worker = threading.Thread(target=app.work, kwargs=kwargs, daemon=True)
    worker.start()
    wait_until(app.schedules.all)
    now += hours * HOUR
    following = begin + (hours + 1) * HOUR
    wait_until(lambda: only(app).next_tick == following and len(ran) == len(expected))
    now = following
    worker.join(60)
    assert [(tick - begin) / HOUR for tick in sorted(ran)] == [*expected, hours + 1]


def test_a_paused_schedule_stays_paused_when_a_worker_declares_it(app: App, name: str) -> None:
    hourly(app, name)
    app.deploy()
    assert app.schedules.pause("report")
    app.deploy()
    assert only(app).paused
    assert app.schedules.resume("report")
    assert only(app).next_tick is not None


def test_schedules_come_and_go_at_run_time(app: App, name: str, clock: Clock) -> None:
    ran: list[str] = []

    @app.job(queue=name, name="report", priority=7)
    def report(customer: str) -> None:
        ran.append(customer)

    app.schedules.add("ada", report.bind("ada"), every="1h")
    app.schedules.add("bob", report.bind("bob"), cron="0 * * * *", overlap="skip")
    assert [each.name for each in app.schedules.all()] == ["ada", "bob"]
    assert app.schedules.all()[0].priority == 7
    clock.advance("1h")
    app.work(drain=True)
    assert sorted(ran) == ["ada", "bob"]
    clock.advance("2d")  # those of a call do not stop
    app.work(drain=True)
    assert sorted(ran) == ["ada", "ada", "bob", "bob"]
    assert app.schedules.run_now("ada") is not None
    app.work(drain=True)
    assert ran[4:] == ["ada"]
    assert app.schedules.remove("ada")
    assert app.schedules.get("ada") is None
    assert not app.schedules.remove("ada")
    assert app.schedules.run_now("ada") is None
    with pytest.raises(InvalidSchedule):
        app.schedules.add("bad", report.bind("eve"))


def test_a_worker_of_another_queue_declares_nothing(app: App, name: str) -> None:
    hourly(app, name)

    @app.job(queue=f"{name} 2")
    def other() -> None: ...

    app.work(f"{name} 2", drain=True)
    assert app.schedules.all() == []
    app.work(drain=True)
    assert len(app.schedules.all()) == 1
