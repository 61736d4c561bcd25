"""A job is pushed once for each unique key, by its arguments, and for as long as it says."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from fdbqueue.errors import InvalidUniqueKey
from fdbqueue.jobs import App, Context, Retry
from fdbqueue.testing import Clock


def test_a_job_may_be_unique_by_its_arguments(app: App, name: str) -> None:
    @app.job(queue=name, name="report", unique=True)
    def report(month: date, *pages: int, user: str = "ada", **more: Any) -> None: ...

    @app.job(queue=name, name="other", unique=True)
    def other(month: date) -> None: ...

    @app.job(queue=name, name="report 2", unique=lambda month, **_: f"{month:%Y}")
    def yearly(month: date, note: str = "") -> None: ...

    month = date(2030, 1, 1)
    first = report.push(month, user="bob", b=1, a=2)
    assert not report.push(month=month, a=2, b=1, user="bob").is_new
    assert report.push(month, user="bob", b=1, a=2).id == first.id
    for different in (
        report.push(month),
        report.push(month, 1),
        report.push(month, 2),
        report.push(date(2030, 1, 2), user="bob", b=1, a=2),
        other.push(month),
        yearly.push(month),
        report.using(unique=False).push(month),
        report.using(unique="k").push(month),
        report.using(queue=f"{name} 2").push(month),
    ):
        assert different.is_new
    assert not yearly.push(date(2030, 5, 1), note="the same year").is_new
    assert not other.using(unique="k").push(month).is_new  # a key of one's own is shared by jobs
    info = first.info()
    assert str(info.unique).startswith("report ")


def test_a_function_of_the_arguments_may_return_no_key(app: App, name: str) -> None:
    @app.job(queue=name, unique=lambda user: f"{user}" if user else None)
    def greet(user: int) -> None: ...

    handles = greet.push_many([greet.bind(user) for user in (1, 0, 1, 0)])
    assert [handle.is_new for handle in handles] == [True, True, False, True]
    assert handles[2].id == handles[0].id


def test_one_job_waits_while_another_runs(app: App, name: str) -> None:
    """So no change is missed: whoever changes something pushes, and a run that begins sees it."""
    runs: list[int] = []

    @app.job(queue=name, unique=True, unique_until="claimed", retry=Retry(first=0, jitter=0))
    def index(context: Context) -> None:
        runs.append(context.attempt)
        if len(runs) == 1:
            # Together, because the worker may claim the first one ahead.
            pushed = index.push_many([index.bind(), index.bind()])
            assert [handle.is_new for handle in pushed] == [True, False]
            raise OSError("the attempt fails, while another job waits")

    assert [index.push().is_new, index.push().is_new] == [True, False]
    while app.queue(name).stats(app.db).unfinished:
        app.work(name, drain=True, concurrency=1)
    assert sorted(runs) == [1, 1, 2]
    assert index.push().is_new


def test_a_job_is_pushed_once_in_a_period(app: App, name: str, clock: Clock) -> None:
    @app.job(queue=name, unique=True, unique_for="1h")
    def remind(user: int) -> int:
        return user

    first = remind.push(3)
    assert app.work(name, drain=True).done == 1
    again = remind.push(3)
    assert (again.is_new, again.id, again.result()) == (False, first.id, 3)
    many = remind.push_many([remind.bind(user) for user in (3, 4, 4)])
    assert [handle.is_new for handle in many] == [False, True, False]
    clock.advance(3601)
    assert remind.push(3).is_new


def test_options_of_a_push_change_the_scope(app: App, name: str, clock: Clock) -> None:
    @app.job(queue=name)
    def job(n: int) -> None: ...

    assert job.using(unique=True, unique_for=60).push(1).is_new
    assert not job.using(unique=True).push(1).is_new
    assert job.using(unique="k", unique_until="claimed").push(2).is_new
    app.work(name, drain=True)
    assert not job.using(unique=True).push(1).is_new
    assert job.using(unique="k").push(2).is_new
    clock.advance(61)
    assert job.using(unique=True).push(1).is_new


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"unique_for": "1h"}, "unique_for needs a key"),
        ({"unique": True, "unique_for": "1h", "unique_until": "claimed"}, "not both"),
        ({"unique": True, "unique_until": "start"}, "'claimed' or 'ended', not 'start'"),
        ({"unique": ""}, "unique must be text"),
    ],
)
def test_a_wrong_scope_is_refused_where_it_is_given(app: App, wrong: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        app.job(**wrong)

    @app.job(queue="never created")
    def job() -> None: ...

    with pytest.raises(ValueError, match=error):
        job.using(**wrong)


def test_what_is_no_key_is_refused(app: App, name: str) -> None:
    wrong: Any = 7
    with pytest.raises(TypeError, match="unique is a key, True, or a function"):
        app.job(unique=wrong)

    @app.job(queue=name, unique=lambda n: n)
    def job(n: int) -> None: ...

    with pytest.raises(InvalidUniqueKey):
        job.push_many([job.bind(0)])
    assert app.queue(name).is_empty(app.db)
