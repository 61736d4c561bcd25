"""A job keeps its earlier names as aliases, and `rename_job` gives stored calls another name."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import PriorityQueue
from fdbqueue.admin import check, rename_job
from fdbqueue.jobs import App, Context, Dead
from fdbqueue.jobs.errors import DuplicateJob
from fdbqueue.testing import Clock
from fdbqueue.types import STATES, DeadJob
from tests.support.interrupted import Cut

OLD, NEW, DAY = "shop.old", "shop.new", 86_400


def declared(db: Any, name: str, job: str, **options: Any) -> tuple[App, Any]:
    """Return an app with a job in one queue, and the job."""
    app = App(db)

    @app.job(queue=name, name=job, **options)
    def double(number: int) -> int:
        if number < 0:
            raise Dead("negative")
        return 2 * number

    return app, double


def names(queue: PriorityQueue[Any], db: Any) -> dict[str, list[str]]:
    """Return the names of the stored jobs in each state."""
    return {
        state: [info.job.name for info in queue.items(db, state=state) if info.job]
        for state in STATES
    }


# Aliases


def test_a_stored_item_with_an_alias_runs_the_job(db: Any, name: str) -> None:
    old, double = declared(db, name, OLD)
    handle = double.push(4)
    app, _ = declared(db, name, NEW, aliases=["shop.older", OLD])
    assert app.work(drain=True).done == 1
    assert handle.result() == 8
    assert names(old.queue(name), db)["done"] == [OLD]
    assert [*app.jobs] == [NEW, "shop.older", OLD]


def test_a_handle_and_a_batch_find_the_job_by_an_alias(db: Any, name: str) -> None:
    old = App(db)

    @old.job(queue=name, name=OLD)
    def report(*, done: int, dead: int, cancelled: int) -> int:
        return done

    id = old.batch(then=report).id
    app = App(db)
    app.job(queue=name, name=NEW, aliases=[OLD])(report.function)
    batch = app.existing_batch(id)
    batch.close()
    app.work(drain=True)
    assert batch.handle.result() == 0


@pytest.mark.parametrize("with_alias", [True, False])
def test_a_schedule_of_the_old_name_goes_on_under_the_new_one(
    db: Any, name: str, clock: Clock, with_alias: bool
) -> None:
    """Its state stays: the next tick comes once, under one name."""
    old, double = declared(db, name, OLD)
    old.every("1d", args=(3,))(double)
    old.work(drain=True)
    clock.advance(DAY)
    old.work(drain=True)
    before, renew = old.schedules.get(OLD), old.schedules.renewing([name])
    app, double = declared(db, name, NEW, aliases=[OLD] if with_alias else [])
    app.every("1d", args=(5,))(double)
    if not with_alias:
        assert rename_job(db, name, OLD, NEW)["schedules"] == 1
    app.work(drain=True)
    (after,) = app.schedules.all()
    assert before is not None
    assert (after.name, after.value["job"], after.value["args"]) == (NEW, NEW, [5])
    assert (after.pushed, after.next_tick) == (before.pushed, before.next_tick)
    clock.advance(DAY)
    renew()  # by an old worker that still runs
    assert app.work(drain=True).done == 1
    app.work(drain=True)
    (after,) = app.schedules.all()
    assert (after.name, after.pushed) == (NEW, before.pushed + 1)


def test_two_jobs_that_claim_a_name_are_refused(db: Any, name: str) -> None:
    app, double = declared(db, name, NEW, aliases=[OLD])
    for options in ({"name": OLD}, {"name": "x", "aliases": [OLD]}, {"aliases": [NEW]}):
        with pytest.raises(DuplicateJob):
            app.job(**options)(double.function)
    assert {*app.jobs} == {NEW, OLD}
    for wrong in (OLD, [1]):
        with pytest.raises(TypeError, match="a list of names"):
            app.job(aliases=wrong)


# Stored names


def test_calls_in_every_state_get_the_new_name(db: Any, name: str) -> None:
    queue = App(db).queue(name)
    queue.push_many(db, [{"job": f"other.{OLD}"}, "no job", {"job": [OLD]}], priority=9)

    def push(number: int, **options: Any) -> Any:
        return queue.push(db, {"job": OLD, "args": [number]}, **options)

    ends = [lambda claim: queue.ack(db, claim), lambda claim: queue.nack(db, claim, dead=True)]
    for end in ends:
        push(1)
        end(queue.claim(db))
    push(2, delay=60)
    push(3)
    claim = queue.claim(db)
    push(4, group="a", unique="k", ttl=60)
    large = queue.push(db, {"job": OLD, "args": ["x" * 200_000]}, group="b")
    expected = {"ready": 2, "delayed": 1, "claimed": 1, "dead": 1, "done": 1, "schedules": 0}
    assert rename_job(db, name, OLD, NEW) == expected
    found = names(queue, db)
    assert [found["ready"].count(each) for each in (NEW, f"other.{OLD}", OLD)] == [2, 1, 0]
    assert {state: found[state] for state in ("delayed", "claimed", "dead", "done")} == {
        state: [NEW] for state in ("delayed", "claimed", "dead", "done")
    }
    assert check(db, queue).ok
    queue.nack(db, claim, delay=0)
    assert names(queue, db)["ready"].count(NEW) == 3
    assert [item.value["args"] for item in queue.items(db) if item.id == large.id] == [
        ["x" * 200_000]
    ]
    queue.remove(db, large)
    assert not any(rename_job(db, name, OLD, NEW).values())


def test_a_running_attempt_goes_on(db: Any, name: str) -> None:
    app = App(db)

    @app.job(queue=name, name=OLD)
    def rename(context: Context) -> str:
        assert rename_job(db, name, OLD, NEW)["claimed"] == 1
        return "done"

    handle = rename.push()
    app.work(drain=True)
    assert handle.result() == "done"
    assert names(app.queue(name), db)["done"] == [NEW]


def test_an_interrupted_rename_is_repeated(db: Any, name: str) -> None:
    app, double = declared(db, name, OLD)
    double.push_many([double.bind(number) for number in range(250)])
    with pytest.raises(KeyboardInterrupt):
        rename_job(Cut(db, commits=1), name, OLD, NEW)
    left = names(app.queue(name), db)["ready"].count(OLD)
    assert left == 150
    assert rename_job(db, name, OLD, NEW)["ready"] == left
    new, _ = declared(db, name, NEW)
    assert new.work(drain=True).done == 250


def test_an_alert_tells_the_new_name(db: Any, name: str) -> None:
    got = list[DeadJob]()
    app = App(db)

    @app.job(queue=name)
    def alert(dead: DeadJob) -> None:
        got.append(dead)

    @app.job(queue=name, name=NEW, aliases=[OLD], on_dead=alert)
    def die() -> None:
        raise Dead("no")

    die.push()
    rename_job(db, name, NEW, OLD)
    app.work(drain=True)
    assert [dead.job for dead in got] == [OLD]
