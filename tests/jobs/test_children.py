"""Jobs that run other jobs: a step that waits for their ends, and gets their results."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue.admin import check
from fdbqueue.jobs import App, ChildFailed, Context, Dead, Discard, Retry
from fdbqueue.testing import Clock
from fdbqueue.types import ItemInfo, State
from tests.support.keys import rows_in


def items(app: App, name: str, state: State) -> list[ItemInfo]:
    return [*app.queue(name).items(app.db, state=state)]


def rows_of_batches(app: App, name: str) -> int:
    """Return how many rows of batches a queue has."""
    return len(rows_in(app.db, app.queue(name), "batches", "batch_counts"))


def test_the_last_of_many_that_end_at_the_same_time_wakes_the_job(app: App, name: str) -> None:
    got: list[list[int]] = []

    @app.job(queue=name)
    def double(number: int) -> int:
        return 2 * number

    @app.job(queue=name)
    async def parent(context: Context) -> None:
        one = await context.aio.run("one", double, 0)
        got.append([one, *await context.aio.gather("more", map(double.bind, range(1, 10)))])

    for _ in range(3):
        parent.push()
    app.work(drain=True, concurrency=8)
    assert got == [[*range(0, 20, 2)]] * 3
    assert rows_of_batches(app, name) == 0


@pytest.mark.parametrize("error", [Dead("no disk"), Discard("no need"), OSError("odd")])
def test_the_failure_of_another_job_makes_a_dead_letter_that_can_run_it_again(
    app: App, name: str, error: Exception
) -> None:
    ran: list[str] = []
    app.queue(name).configure(app.db, keep=10)

    @app.job(queue=name)
    def sound() -> str:
        return "sound"

    @app.job(queue=name, retry=Retry(attempts=1))
    def broken() -> None:
        ran.append("ran")
        if len(ran) == 1:
            raise error

    @app.job(queue=name)
    def parent(context: Context) -> str:
        found: list[Any] = context.gather("child", [sound.bind(), broken.bind()])
        return f"{found}"

    handle = parent.push()
    app.work(drain=True)
    info = handle.info()
    assert info.state == "dead"
    assert "the step 'child 1' has failed: " in str(info.error)
    assert str(info.error).endswith(str(error))
    assert app.queue(name).steps.retry_from(app.db, handle.id, "child 1")
    app.work(drain=True)
    assert (handle.result(), ran) == ("['sound', None]", ["ran", "ran"])


def test_errors_are_returned_with_results_on_demand(app: App, name: str) -> None:
    got: list[Any] = []

    @app.job(queue=name, retry=Retry(attempts=1))
    def divide(number: int) -> float:
        return 1 / number

    @app.job(queue=name)
    def parent(context: Context) -> None:
        got.append(context.gather("ratio", map(divide.bind, [1, 0]), return_errors=True))

    parent.push()
    app.work(drain=True, concurrency=1)  # one slot suffices
    ((one, failed),) = got
    assert (one, failed.name) == (1.0, "ratio 1")
    assert isinstance(failed, ChildFailed)
    assert "ZeroDivisionError" in str(failed)
    (dead,) = items(app, name, "dead")
    assert failed.id == dead.item.id


@pytest.mark.parametrize(
    ("end", "text"),
    [("cancel", "the job was cancelled"), ("expire", "the job has expired"), ("pop", "popped")],
)
def test_a_job_that_does_not_run_fails_the_step(
    app: App, name: str, clock: Clock, end: str, text: str
) -> None:
    @app.job(queue=f"{name}-later")
    def later() -> None: ...

    @app.job(queue=name)
    def parent(context: Context) -> str:
        try:
            context.run("later", later.using(ttl="1h"))
        except ChildFailed as error:
            return str(error.error)
        return "done"

    app.queue(name).configure(app.db, keep=1)
    handle = parent.push()
    app.work(name, drain=True)
    queue = app.queue(f"{name}-later")
    if end == "expire":
        clock.advance("2h")
        assert queue.claim(app.db) is None
    elif end == "pop":
        queue.pop(app.db)
    else:
        queue.cancel(app.db, items(app, f"{name}-later", "ready")[0].item)
    app.work(name, drain=True)
    assert text in handle.result()


def test_the_jobs_of_a_cancelled_job_run_and_its_steps_show_it(app: App, name: str) -> None:
    @app.job(queue=f"{name}-later")
    def later() -> None: ...

    @app.job(queue=name)
    def parent(context: Context) -> None:
        context.gather("later", [later.bind(), later.bind()])

    handle = parent.push()
    app.work(name, drain=True)
    assert handle.cancel()
    app.work(name, drain=True)
    report = app.work(f"{name}-later", drain=True)
    assert (report.done, rows_of_batches(app, name)) == (2, 0)
    queue = app.queue(name)
    assert handle.state() == "done"
    assert [step.state for step in queue.steps.all(app.db, handle.id)] == ["done", "done"]
    assert check(app.db, queue).problems == ()
    assert queue.remove(app.db, handle.id)


def test_what_cannot_be_run_is_an_error(app: App, name: str) -> None:
    errors: list[Exception] = []

    @app.job(queue=f"{name}-children", unique="key")
    def child() -> None: ...

    @app.job(queue=name)
    def parent(context: Context, kind: str) -> None:
        context.step("build", str)
        try:
            if kind == "unique":
                context.run("child", child)
            elif kind == "twice":
                context.run("build", child)
            elif kind == "many":
                context.gather("child", [child.bind()] * 1001)
            else:
                context.gather("child", [])
                context.run("again", child.using(unique=False))
                context.step("again", str)
        except Exception as error:
            errors.append(error)
            raise Discard from error

    child.push()
    for kind in ("unique", "twice", "many", "again"):
        parent.push(kind)
        app.work(name, drain=True)
    app.work(drain=True)
    texts = [str(error).partition(";")[0] for error in errors]
    assert "its unique key is that of the job" in texts[0]
    assert texts[1:] == [
        "the job has a step named 'build' already",
        "gather runs up to 1,000 jobs, not 1,001",
        "the job has a step named 'again' already",
    ]
