"""Batches of jobs: what programs push, and the job that runs once all others have ended."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from fdbqueue.admin import check
from fdbqueue.errors import QueueFull
from fdbqueue.jobs import App, InvalidArguments, Retry
from fdbqueue.layout.jobs import BatchClosed, BatchNotFound
from fdbqueue.testing import Clock, drain


@pytest.fixture
def report(app: App, name: str) -> Any:
    """Return a job that returns the numbers of ends."""

    @app.job(name="report", queue=f"{name}reports")
    def report(*, done: int, dead: int, cancelled: int) -> list[int]:
        return [done, dead, cancelled]

    return report


@pytest.fixture
def work(app: App, name: str) -> Any:
    """Return a job that fails for numbers below zero."""

    @app.job(name="work", queue=name, retry=Retry(attempts=1))
    def work(number: int) -> int:
        if number < 0:
            raise ValueError(number)
        return number

    return work


def test_a_drain_does_not_wait_for_a_batch_that_is_open(app: App, report: Any, work: Any) -> None:
    with Clock() as clock, app.batch(then=report) as batch:
        began = clock.now()
        batch.push(work.using(delay="1h"), 1)
        batch.flush()
        assert len(drain(app, advance=clock)) == 1
        assert (clock.now() - began).total_seconds() < 2 * 3600


def test_a_batch_takes_more_jobs_than_a_transaction(app: App, report: Any, work: Any) -> None:
    with app.batch(then=report) as batch:
        batch.push_many(work, map(work.bind, range(1200)))
        assert batch.progress().pushed == 1000
        batch.push_many(work.using(priority=7), [work.bind(1)])
    assert batch.progress().pushed == 1201


def test_jobs_add_others_to_their_own_batch(app: App, name: str, report: Any) -> None:
    @app.job(name="split", queue=name)
    def split(batch_id: str, depth: int) -> None:
        if depth:
            with app.existing_batch(batch_id) as batch:
                batch.push(split, batch_id, depth - 1)
                batch.push(split, batch_id, depth - 1)

    with app.batch(then=report) as batch:
        batch.push(split, batch.id, 3)
        batch.flush()
        drain(app)
        assert (batch.progress().done, batch.progress().is_open) == (15, True)
    drain(app)
    assert batch.handle.result() == [15, 0, 0]


def test_a_death_cancels_the_jobs_that_have_not_begun(
    app: App, name: str, report: Any, work: Any
) -> None:
    with app.batch(then=report, on_dead="cancel") as batch:
        for number in (1, -1, 2, 3):
            batch.push(work, number)
    drain(app)
    assert batch.handle.result() == [1, 1, 2]
    assert batch.progress().is_cancelled
    ended = app.queue(name).items(app.db, state="done")
    assert sorted(info.outcome or "" for info in ended) == ["cancelled", "cancelled", "done"]


@pytest.mark.parametrize("on_dead", ["continue", "cancel"])
def test_an_exception_within_the_block_cancels_the_batch(
    app: App, name: str, report: Any, work: Any, on_dead: Any
) -> None:
    """And the jobs that have not begun, if a death would."""
    with suppress(OSError), app.batch(then=report, on_dead=on_dead) as batch:
        batch.push(work, 1)
        batch.flush()
        batch.push(work, 2)
        raise OSError
    info = batch.handle.info()
    assert (info.state, info.outcome, info.in_batch) == ("done", "cancelled", False)
    drain(app)
    (info,) = app.queue(name).items(app.db, state="done")
    assert info.outcome == ("cancelled" if on_dead == "cancel" else "done")


def test_a_batch_whose_process_died_is_closed_by_its_id(app: App, report: Any, work: Any) -> None:
    batch = app.batch(then=report)
    batch.push(work, 1)
    batch.flush()
    found = app.existing_batch(batch.id)
    with found:
        found.push(work, 2)
    assert found.progress().is_open
    found.close()
    found.close()
    batch.push(work, 3)
    with pytest.raises(BatchClosed):
        batch.flush()
    drain(app)
    assert found.handle.result() == [2, 0, 0]


def test_the_job_that_follows_has_its_own_arguments_and_group(app: App, name: str) -> None:
    @app.job(name="summary", queue=name, group=lambda month, **ends: month)
    def summary(month: str, **ends: int) -> str:
        return f"{month} {ends}"

    queue = app.queue(name)
    queue.set_group(app.db, "May", max_size=1)
    with app.batch(then=summary, args=["May"]) as batch:
        assert [info.group for info in queue.items(app.db, state="delayed")] == ["May"]
        with pytest.raises(QueueFull, match="May"):
            app.batch(then=summary, args=["May"])
    assert check(app.db, queue).problems == ()
    drain(app)
    assert batch.handle.result() == "May {'done': 0, 'dead': 0, 'cancelled': 0}"


def test_a_batch_is_begun_or_looked_up(app: App, report: Any, work: Any) -> None:
    batch = app.batch(then=report)
    wrong: Any = app.batch
    for arguments, options in (((), {}), ((batch.id,), {"then": report})):
        with pytest.raises(TypeError):
            wrong(*arguments, **options)
    with pytest.raises(ValueError, match="on_dead"):
        wrong(then=report, on_dead="stop")
    with pytest.raises(InvalidArguments):  # it must take the numbers of ends
        app.batch(then=work, args=[1])
    assert batch.handle.cancel()
    for id in (batch.id, "no id"):
        with pytest.raises(BatchNotFound):
            app.existing_batch(id)
