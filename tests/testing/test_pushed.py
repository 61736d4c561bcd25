"""Assertions about the jobs that a program has pushed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Any
from unittest.mock import ANY

import pytest

from fdbqueue.admin import queue_names
from fdbqueue.jobs import App, Retry
from fdbqueue.testing import Clock, assert_pushed, bound_app, drain, pushed, refute_pushed


@pytest.fixture
def app(db: Any) -> Iterator[App]:
    """Return an app on the database of the test."""
    with bound_app(App(), db) as app:
        yield app


def test_waiting_jobs_are_found_by_their_arguments(app: App, name: str) -> None:
    @app.job(queue=name)
    def send(to: str, /, *rest: int, on: date = date(2030, 1, 1), **more: str) -> None: ...

    send.push("ada", 1, 2, on=date(2030, 1, 31), subject="hi")
    send.using(delay="1h", queue=f"{name}-b", priority=-3).push("bob")
    first, second = pushed(send)
    assert first.arguments == {
        "to": "ada",
        "rest": (1, 2),
        "on": date(2030, 1, 31),
        "more": {"subject": "hi"},
    }
    assert (second.job, second.queue, second.info.item.priority) == (send.name, f"{name}-b", -3)
    assert second.info.due_at is not None
    assert assert_pushed(send) == first
    assert assert_pushed(send, to="ada", on=date(2030, 1, 31)) == first
    assert assert_pushed(send, on=date(2030, 1, 1), rest=()) == second  # as the function gets it
    assert [each.arguments["to"] for each in pushed(send, more=ANY)] == ["ada", "bob"]
    refute_pushed(send, to="eve")
    refute_pushed(send, to="ada", on=date(2030, 1, 1))


def test_a_failure_shows_what_was_pushed_instead(app: App, name: str) -> None:
    @app.job(queue=name, name="send")
    def send(to: str, subject: str = "hi") -> None: ...

    @app.job(queue=name, name="report")
    def report(month: date) -> None: ...

    with pytest.raises(AssertionError, match=r"^no job send\(\) waits; these do:\n  none$"):
        assert_pushed(send)
    send.push("ada", subject="hello")
    report.using(delay="1h").push(date(2030, 1, 31))
    with pytest.raises(AssertionError) as other:
        assert_pushed(send, to="bob", subject="hi")
    first, second, third = str(other.value).split("\n")
    assert first == "no job send(to='bob', subject='hi') waits; these do:"
    assert second == f"  send('ada', subject='hello'), ready in {name!r}"
    assert third.startswith("  report('2030-01-31'), due at 20")
    with pytest.raises(AssertionError) as some:
        refute_pushed(send, subject="hello")
    assert str(some.value) == f"these jobs wait:\n{second}"
    send.push_many([send.bind(str(n)) for n in range(30)])
    with pytest.raises(AssertionError, match=r"\n  and 12 more$"):
        assert_pushed(send, to="bob")


def test_a_job_waits_until_it_has_ended(app: App, name: str, clock: Clock) -> None:
    @app.job(queue=name, retry=Retry(first="1h"))
    def work(fails: bool) -> None:
        if fails:
            raise OSError

    work.push(True)
    work.push(False)
    drain(app)
    assert [each.arguments for each in pushed(work)] == [{"fails": True}]
    assert assert_pushed(work).info.attempts == 1
    clock.advance("1h")
    app.queue(name).claim(app.db)
    refute_pushed(work)


def test_a_misspelled_parameter_is_an_error(app: App, name: str) -> None:
    @app.job(queue=name, name="send")
    def send(job: str) -> None: ...

    send.push("x")
    assert_pushed(send, job="x")
    for function in (assert_pushed, refute_pushed, pushed):
        with pytest.raises(TypeError, match="send has no parameter 'jbo'"):
            function(send, jbo="x")


def test_what_is_no_job_of_the_app_is_left_out(app: App, name: str) -> None:
    @app.job(queue=name)
    def work() -> None: ...

    refute_pushed(work)
    assert name not in queue_names(app.db)  # to look creates no queue
    app.queue(name).push_many(app.db, ["no job", {"job": "elsewhere", "args": [1]}])
    assert pushed(work) == []
    with pytest.raises(AssertionError, match=r"elsewhere\(1\), ready"):
        assert_pushed(work)
