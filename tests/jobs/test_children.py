"""Jobs that run other jobs: a step that waits for their ends, and gets their results."""

from __future__ import annotations

import threading
from datetime import date
from typing import Any

import pytest

from fdbqueue.admin import check
from fdbqueue.jobs import App, ChildFailed, Context, Dead, Discard, Handle, Retry
from fdbqueue.layout.keys import Layout
from fdbqueue.testing import Clock, FaultyDatabase
from fdbqueue.types import ItemInfo, State
from fdbqueue.worker.outcomes import DuplicateStep


def items(app: App, name: str, state: State) -> list[ItemInfo]:
    return [*app.queue(name).search(app.db, state=state).items]


def rows_of_batches(app: App, name: str) -> int:
    """Return how many rows of batches a queue has."""
    layout = Layout(app.queue(name).subspace)
    rows = 0
    for prefix in (layout.batches, layout.batch_counts):
        rows += len([*app.db.get_range(*layout.range_of(prefix))])
    return rows


def test_a_job_gets_the_results_of_others_in_its_own_queue(app: App, name: str) -> None:
    """One slot suffices, although all of them are in one queue that keeps no results."""

    @app.job(queue=name)
    def following_day(day: date) -> date:
        return day.replace(day=day.day + 1)

    @app.job(queue=name)
    def square(number: int) -> int:
        return number * number

    @app.job(queue=name)
    def total(context: Context, numbers: list[int]) -> str:
        day = context.run("day", following_day, date(2030, 1, 1))
        squares = context.gather("squares", map(square.bind, numbers))
        return f"{day.year}-{day.day}: {squares}"

    app.queue(name).configure(app.db, keep=1)  # for the result of the last job, which is the total
    handle = total.push([1, 2, 3])
    app.work(drain=True, concurrency=1)
    assert handle.result() == "2030-2: [1, 4, 9]"
    steps = app.queue(name).steps.all(app.db, handle.id)
    assert [(step.name, step.kind, step.state) for step in steps] == [
        (each, "run", "done") for each in ("day", "squares 0", "squares 1", "squares 2")
    ]
    assert rows_of_batches(app, name) == 0


def test_the_last_of_many_that_end_at_the_same_time_wakes_the_job(app: App, name: str) -> None:
    got: list[list[int]] = []

    @app.job(queue=name)
    def double(number: int) -> int:
        return 2 * number

    @app.job(queue=name)
    def parent(context: Context) -> None:
        got.append(context.gather("doubles", map(double.bind, range(20))))

    for _ in range(5):
        parent.push()
    app.work(drain=True, concurrency=16)
    assert got == [[*range(0, 40, 2)]] * 5
    assert rows_of_batches(app, name) == 0


def test_a_coroutine_awaits_other_jobs(app: App, name: str) -> None:
    got: list[Any] = []

    @app.job(queue=name)
    async def double(number: int) -> int:
        return 2 * number

    @app.job(queue=name)
    async def total(context: Context) -> None:
        one = await context.aio.run("one", double, 1)
        got.append([one, *await context.aio.gather("more", [double.bind(2), double.bind(3)])])

    total.push()
    app.work(drain=True)
    assert got == [[2, 4, 6]]


def test_no_attempt_counts_and_no_worker_is_held_while_others_run(app: App, name: str) -> None:
    running = threading.Event()
    attempts: list[int] = []

    @app.job(queue=f"{name}-slow")
    def slow() -> None:
        running.set()

    @app.job(queue=name)
    def wait(context: Context) -> None:
        attempts.append(context.attempt)
        context.run("slow", slow)

    handle = wait.push()
    app.work(name, drain=True)
    assert (handle.state(), running.is_set()) == ("delayed", False)
    app.work(f"{name}-slow", drain=True)
    app.work(name, drain=True)
    assert (handle.state(), attempts) == ("done", [1, 1])


def parent_of(app: App, name: str, error: Exception, keys: list[str]) -> Handle[str]:
    """Push a job that runs one that is to be looked at, and one that fails."""

    @app.job(queue=name, name="sound")
    def sound() -> str:
        return "sound"

    @app.job(queue=name, name="broken", retry=Retry(attempts=1))
    def broken() -> None:
        keys.append("ran")
        if len(keys) == 1:
            raise error

    @app.job(queue=name, name="parent")
    def parent(context: Context) -> str:
        found: list[Any] = context.gather("child", [sound.bind(), broken.bind()])
        return f"{found}"

    return parent.push()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Dead("no disk"), "no disk"),
        (Discard("no need"), "no need"),
        (OSError("odd"), "odd"),
    ],
)
def test_the_failure_of_another_job_makes_a_dead_letter_that_can_run_it_again(
    app: App, name: str, error: Exception, text: str
) -> None:
    ran: list[str] = []
    app.queue(name).configure(app.db, keep=10)
    handle = parent_of(app, name, error, ran)
    app.work(drain=True)
    info = handle.info()
    assert info.state == "dead"
    assert "the step 'child 1' has failed: " in str(info.error)
    assert str(info.error).endswith(text)
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
    app.work(drain=True)
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
    (child,) = items(app, f"{name}-later", "ready")
    if end == "cancel":
        assert queue.cancel(app.db, child.item)
    elif end == "pop":
        queue.pop(app.db)
    else:
        clock.advance("2h")
        assert queue.claim(app.db) is None
    app.work(name, drain=True)
    assert text in handle.result()


def test_other_jobs_run_once_although_answers_of_commits_are_lost(
    app: App, name: str, rng: Any
) -> None:
    got: list[Any] = []
    ran: list[int] = []
    sound = app.db

    @app.job(queue=name)
    def square(number: int) -> int:
        ran.append(number)
        return number * number

    @app.job(queue=name)
    def parent(context: Context) -> None:
        got.append(context.gather("squares", map(square.bind, range(5))))

    parent.push()
    app.bind(FaultyDatabase(sound, before=0.1, after=0.2, seed=rng.randrange(2**32)))
    app.work(drain=True)
    app.bind(sound)
    assert got[-1] == [0, 1, 4, 9, 16]
    assert sorted(ran) == [0, 1, 2, 3, 4]
    assert rows_of_batches(app, name) == 0


def test_jobs_can_be_moved_while_one_waits_for_the_other(app: App, name: str) -> None:
    got: list[str] = []

    @app.job(queue=f"{name}-later")
    def later() -> str:
        return "result"

    @app.job(queue=name)
    def parent(context: Context) -> None:
        got.append(context.run("later", later))

    handle = parent.push()
    app.work(name, drain=True)
    assert not app.queue(name).retry(app.db, handle.id)
    assert app.queue(name).reprioritize(app.db, handle.id, 7)
    (child,) = items(app, f"{name}-later", "ready")
    assert app.queue(f"{name}-later").reprioritize(app.db, child.item, 7)
    app.work(name, drain=True)
    assert (handle.state(), got) == ("delayed", [])
    app.work(f"{name}-later", drain=True)
    app.work(name, drain=True)
    assert got == ["result"]


def test_the_jobs_of_a_cancelled_job_run_and_its_steps_show_it(app: App, name: str) -> None:
    @app.job(queue=f"{name}-later")
    def later() -> None: ...

    @app.job(queue=name)
    def parent(context: Context) -> None:
        context.gather("later", [later.bind(), later.bind()])

    handle = parent.push()
    app.work(name, drain=True)
    assert handle.cancel()
    report = app.work(f"{name}-later", drain=True)
    assert (report.done, rows_of_batches(app, name)) == (2, 0)
    info, queue = handle.info(), app.queue(name)
    assert info is not None
    assert (info.state, info.outcome) == ("done", "cancelled")
    assert [step.state for step in queue.steps.all(app.db, handle.id)] == ["done", "done"]
    assert check(app.db, queue).problems == ()
    assert queue.remove(app.db, handle.id)
    assert check(app.db, queue).problems == ()


def test_a_unique_key_that_another_job_has_is_an_error(app: App, name: str) -> None:
    @app.job(queue=f"{name}-sync", unique="sync")
    def sync() -> None: ...

    @app.job(queue=name)
    def parent(context: Context) -> None:
        if context.attempt == 1:
            context.run("sync", sync)
        context.run("sync now", sync.using(unique=False))

    sync.push()
    handle = parent.push()
    app.work(name, drain=True)
    info = handle.info()
    assert "its unique key is that of the job" in str(info.error)


def test_names_of_steps(app: App, name: str) -> None:
    errors: list[Exception] = []

    @app.job(queue=name)
    def child() -> None: ...

    @app.job(queue=name)
    def parent(context: Context, kind: str) -> None:
        context.step("build", str)
        try:
            if kind == "twice":
                context.run("build", child)
            elif kind == "many":
                context.gather("child", [child.bind()] * 1001)
            else:
                context.gather("child", [])
                context.run("again", child)
                context.step("again", str)
        except (DuplicateStep, ValueError) as error:
            errors.append(error)

    for kind in ("twice", "many", "again"):
        parent.push(kind)
        app.work(drain=True)
    assert [str(error).partition(";")[0] for error in errors] == [
        "the job has a step named 'build' already",
        "gather runs up to 1,000 jobs, not 1,001",
        "the job has a step named 'again' already",
    ]
