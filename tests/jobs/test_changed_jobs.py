"""A job that waits gets other arguments, by its handle or by the next push with its key."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue.errors import WrongState
from fdbqueue.jobs import App, Context, InvalidArguments
from fdbqueue.testing import Clock


def test_a_handle_replaces_the_arguments_of_a_job_that_has_not_begun(app: App, name: str) -> None:
    ran: list[tuple[int, str]] = []

    @app.job(queue=name)
    def send(number: int, subject: str = "hi") -> None:
        ran.append((number, subject))
        if number == 1:
            with pytest.raises(WrongState, match="is claimed"):
                handle.update(2, subject="while it runs")

    handle = send.using(delay=60).push(0)
    handle.update(1)
    assert handle.state() == "delayed"
    app.queue(name).update(app.db, handle.id, delay=0)
    app.work(name, drain=True)
    assert ran == [(1, "hi")]
    with pytest.raises(WrongState, match="is done"):
        handle.update(3)
    later = send.push(4)
    with pytest.raises(InvalidArguments):
        later.update("four", sujet="a typing error")
    later.update(5, subject="new")
    app.work(name, drain=True)
    assert ran[-1] == (5, "new")


def test_a_failed_job_starts_again_with_new_arguments(app: App, name: str, clock: Clock) -> None:
    sent: list[str] = []

    @app.job(queue=name)
    def send(address: str) -> None:
        assert "@" in address
        sent.append(address)

    handle = send.push("ada.example.com")
    app.work(name, drain=True)
    handle.update("ada@example.com")
    info = handle.info()
    assert (info.state, len(info.failed_attempts)) == ("delayed", 1)
    clock.advance(3600)
    app.work(name, drain=True)
    assert sent == ["ada@example.com"]


def test_the_arguments_and_the_time_of_a_job_with_steps_stay(app: App, name: str) -> None:
    @app.job(queue=name)
    def order(context: Context, number: int) -> None:
        context.step("charge", lambda: number)
        context.sleep("wait", "1h")

    handle = order.using(unique="k", replace=True).push(1)
    app.work(name, drain=True)
    queue: Any = app.queue(name)
    for new in ({"value": 1}, {"delay": 0}):
        with pytest.raises(WrongState, match="has begun"):
            queue.update(app.db, handle.id, **new)
    assert queue.update(app.db, handle.id, priority=7, group="late").priority == 7
    second = order.using(unique="k", replace=True).push(2)
    assert second.is_new
    assert not order.using(unique="k", replace=True).push(3).is_new
    numbers = [each.info().item.value["args"] for each in (handle, second)]
    assert numbers == [[1], [3]]


def test_a_job_that_follows_another_gets_new_arguments_and_no_time(app: App, name: str) -> None:
    ran: list[int] = []

    @app.job(queue=name)
    def step(number: int) -> None:
        ran.append(number)

    first = step.using(delay=60).push(1)
    second = step.using(after=first, unique="k").push(2)
    with pytest.raises(WrongState, match="waits for other jobs"):
        app.queue(name).update(app.db, second.id, delay=0)
    assert not step.using(unique="k", replace=True).push(3).is_new
    app.queue(name).update(app.db, first.id, delay=0)
    app.work(name, drain=True)
    assert ran == [1, 3]
    with pytest.raises(ValueError, match="not both"):
        step.using(after=first, unique="k", replace=True)


def test_debounced_pushes_run_once_and_those_after_the_claim_once_more(
    app: App, name: str, clock: Clock
) -> None:
    ran: list[int] = []

    @app.job(queue=name, unique=lambda cart, number: f"cart {cart}", replace=True, delay=30)
    def remind(cart: int, number: int) -> None:
        ran.append(number)
        if number == 9:
            assert remind.push(cart, 10).is_new
            assert not remind.push(cart, 11).is_new

    handles = [remind.push(7, number) for number in range(10)]
    assert [handle.is_new for handle in handles] == [True] + 9 * [False]
    app.work(name, drain=True)
    assert ran == []
    for _ in range(3):
        clock.advance(31)
        app.work(name, drain=True)
    assert ran == [9, 11]
