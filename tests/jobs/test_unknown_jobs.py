"""A job that no worker knows waits for longer and longer, says so, and holds up no other."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from fdbqueue import WorkerReport
from fdbqueue.admin import check, overview
from fdbqueue.database.clock import milliseconds
from fdbqueue.jobs import App
from fdbqueue.testing import Clock
from tests.support.counting import CountingDatabase

HOUR, WEEK = 3600, 7 * 86_400


@pytest.fixture
def works(db: Any, name: str) -> App:
    """Return an app that knows one job."""
    app = App(db)

    @app.job(queue=name, name="known")
    def known(number: int) -> int:
        return number

    return app


def now() -> float:
    return milliseconds() / 1000


def seconds_left(info: Any) -> float:
    return float(info.due_at.timestamp() - now())


def push_unknown(app: App, name: str, n: int = 1, **fields: Any) -> list[str]:
    values = [{"job": "shop.send", "args": [number], **fields} for number in range(n)]
    return [item.id for item in app.queue(name).push_many(app.db, values)]


def work(app: App, name: str) -> WorkerReport:
    return app.work(name, drain=True, concurrency=1)


def shown(app: App, name: str, id: str) -> Any:
    return app.queue(name).get(app.db, id)


def test_the_delay_grows_to_an_hour_until_it_is_a_dead_letter_after_a_week(
    works: App, name: str, clock: Clock
) -> None:
    (id,) = push_unknown(works, name, version=3)
    began, delays = now(), list[float]()
    for _ in range(30):
        assert work(works, name) == WorkerReport()
        info = shown(works, name, id)
        assert (info.state, info.attempts) == ("delayed", 0)
        delays.append(seconds_left(info))
        clock.advance(delays[-1] + 0.001)
    assert 0 < delays[0] <= 10
    assert max(delays) <= HOUR
    assert min(delays[-10:]) > HOUR / 3
    clock.advance(began + WEEK - 2 * HOUR - now())
    work(works, name)
    clock.advance(seconds_left(shown(works, name, id)) + 0.001)
    work(works, name)
    assert shown(works, name, id).state == "delayed"
    clock.advance(2 * HOUR)
    work(works, name)
    info = shown(works, name, id)
    assert (info.state, info.attempts, info.failed_attempts) == ("dead", 0, ())
    assert info.error == "no worker knows the job 'shop.send' in version 3"
    stats = works.queue(name).stats(works.db)
    assert (stats.dead, stats.total_died, stats.total_failed) == (1, 1, 0)


@pytest.mark.parametrize(("keep", "state"), [(60, "dead"), ("90s", "delayed"), (None, "delayed")])
def test_the_time_is_set_by_the_app(
    db: Any, name: str, clock: Clock, keep: Any, state: str
) -> None:
    app = App(db, keep_unknown=keep)
    app.job(queue=name)(push_unknown)
    (id,) = push_unknown(app, name)
    work(app, name)
    clock.advance(61)
    work(app, name)
    assert shown(app, name, id).state == state


@pytest.mark.parametrize("how", ["run", "delayed", "dead"])
def test_the_time_begins_again_once_a_worker_knows_it_or_it_is_retried(
    works: App, name: str, clock: Clock, how: Any
) -> None:
    (id,) = push_unknown(works, name)
    queue: Any = works.queue(name)
    for _ in range(4):
        work(works, name)
        clock.advance(HOUR)
    if how == "run":
        queue.nack(works.db, queue.claim(works.db), delay=0)
    else:
        clock.advance(WEEK if how == "dead" else 0)
        work(works, name)
        assert queue.retry(works.db, id, state=how)
    work(works, name)
    assert seconds_left(shown(works, name, id)) <= 10.1


def test_many_unknown_jobs_do_not_hold_up_a_known_one(
    db: Any, works: App, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Counted in transactions: each claim looks at many of them, and they go back together."""
    n = 400
    push_unknown(works, name, n)
    known = works.queue(name).push(db, {"job": "known", "args": [1]})
    counting = CountingDatabase(db)
    works.bind(counting)
    assert work(works, name) == WorkerReport(done=1)
    assert caplog.text.count("does not know the job 'shop.send'") == 1
    works.bind(db)
    assert shown(works, name, known.id).state == "done"
    # Some claims of up to 100, and as many releases. On a slow machine, claims find fewer.
    assert 2 * n / 100 <= counting.transactions <= n / 2
    assert works.queue(name).stats(db).unknown_jobs == n


CHANGES: dict[str, tuple[float, int, Any]] = {
    "due again": (15, 2, lambda queue, db, item: queue.retry(db, item, state="dead")),
    "claimed": (15, 1, lambda queue, db, item: queue.claim(db)),
    "released": (15, 1, lambda queue, db, item: queue.release(db, queue.claim(db))),
    "popped": (15, 1, lambda queue, db, item: queue.pop(db)),
    "put back": (15, 2, lambda queue, db, item: queue.put_back(db, [queue.pop(db)])),
    "expired": (2 * HOUR, 1, lambda queue, db, item: None),
    "expired and swept": (2 * HOUR, 1, lambda queue, db, item: queue.remove(db, item)),
    "retried": (0, 1, lambda queue, db, item: queue.retry(db, item)),
    "cancelled": (0, 1, lambda queue, db, item: queue.cancel(db, item)),
    "moved": (0, 2, lambda queue, db, item: queue.update(db, item, priority=3)),
    "cleared": (0, 0, lambda queue, db, item: queue.clear(db)),
    "dead": (WEEK + 2 * HOUR, 0, lambda queue, db, item: None),
}
"""What happens to the first of two items after some seconds, and how many then are unknown."""


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("group", [None, "a"])
def test_they_are_counted_until_a_worker_knows_them_or_they_end(
    works: App, name: str, clock: Clock, how: str, group: str | None
) -> None:
    db, queue, (seconds, left, change) = works.db, works.queue(name), CHANGES[how]
    first = queue.push(db, {"job": "shop.send", "args": [0]}, ttl=HOUR, group=group)
    queue.push(db, {"job": "shop.send", "args": [1]}, group=group)
    queue.push(db, {"job": "known", "args": [1]}, delay=10**7, group=group)
    assert queue.stats(db).unknown_jobs == 0
    work(works, name)
    stats = queue.stats(db)
    assert (stats.unknown_jobs, stats.delayed, stats.ready) == (2, 3, 0)
    assert check(db, queue).problems == ()
    clock.advance(seconds)
    change(queue, db, first)
    if how == "dead":
        work(works, name)
    assert queue.stats(db).unknown_jobs == left
    assert overview(db)[name].unknown_jobs == left


@pytest.mark.parametrize("group", [None, "a"])
def test_they_use_up_no_start_of_a_rate(
    works: App, name: str, clock: Clock, group: str | None
) -> None:
    db, queue = works.db, works.queue(name)
    queue.set_group(db, "a", rate=(2, HOUR))
    queue.configure(db, rate=None if group else (2, HOUR))
    for number in range(3):
        queue.push(db, {"job": "shop.send", "args": [number]}, group=group)
    for number in range(3):
        queue.push(db, {"job": "known", "args": [number]}, group=group)
    assert work(works, name) == WorkerReport(done=2)
    stats = queue.stats(db)
    assert (stats.unknown_jobs, stats.ready) == (3, 1)
    clock.advance(HOUR / 2)
    assert work(works, name) == WorkerReport()  # the starts of the known ones are in the hour
    clock.advance(HOUR / 2 + 1)
    assert work(works, name) == WorkerReport(done=1)


def test_an_unknown_job_of_a_cancelled_batch_ends_as_cancelled(works: App, name: str) -> None:
    @works.job(queue=name)
    def report(*, done: int, dead: int, cancelled: int) -> list[int]:
        return [done, dead, cancelled]

    @works.job(queue=name, name="gone")
    def gone() -> None: ...

    with suppress(OSError), works.batch(then=report, on_dead="cancel") as batch:
        batch.push(gone)
        batch.flush()
        raise OSError
    works._jobs.pop("gone")
    work(works, name)
    outcomes = {info.outcome for info in works.queue(name).items(works.db, state="done")}
    assert outcomes == {"cancelled"}
    assert works.queue(name).stats(works.db).delayed == 0
