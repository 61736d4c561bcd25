"""Functions that are pushed run later, with their arguments, and their results come back."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Transaction, WorkerReport
from fdbqueue.coordination.store import Store
from fdbqueue.errors import NoResult
from fdbqueue.jobs import App, Context, Dead, Discard, Retry, RetryIn
from fdbqueue.jobs.errors import AppNotBound, DuplicateJob
from fdbqueue.testing import FaultyDatabase
from fdbqueue.worker.outcomes import Outcome
from tests.support.waiting import MAX_WAIT

AT_ONCE = Retry(first=0, jitter=0)


def run(app: App, name: str, **options: Any) -> WorkerReport:
    return app.work(name, drain=True, concurrency=2, **options)


def test_a_pushed_job_runs_and_returns_its_result(app: App, name: str) -> None:
    @app.job(queue=name)
    def add(x: int, *, y: int = 1) -> int:
        return x + y

    assert add(1, y=2) == 3
    first, second = add.push(1, y=2), add.push(5)
    assert first.state() == "ready"
    with pytest.raises(NoResult):
        first.result()
    assert run(app, name) == WorkerReport(done=2)
    assert (first.result(), second.result()) == (3, 6)
    assert first.is_new
    assert first.id != second.id


def test_a_job_with_a_transaction_commits_with_its_end(
    db: Any, name: str, space: fdbqueue.Subspace, rng: Any
) -> None:
    """Answers of commits get lost, and every job counts once and pushes one other job."""
    faulty: Any = FaultyDatabase(db, before=0.1, after=0.1, seed=rng.randrange(2**32))
    app = App(faulty)
    key = space.pack(("sum",))

    @app.job(queue=name)
    def count(tr: Transaction, n: int, again: bool) -> None:
        tr.add(key, n.to_bytes(8, "little"))
        if again:
            count.using(tr).push(n, False)

    count.push_many([count.bind(n, True) for n in range(50)])
    assert run(app, name).done == 100
    assert int.from_bytes(db[key], "little") == 2 * sum(range(50))


def test_what_a_job_gives_to_at_end_commits_with_its_end(
    db: Any, app: App, name: str, space: fdbqueue.Subspace
) -> None:
    key = space.pack(("sum",))

    def add(tr: Transaction, n: int) -> None:
        tr.add(key, n.to_bytes(8, "little"))

    @app.job(queue=name, retry=AT_ONCE)
    def count(context: Context, n: int) -> int:
        context.at_end(add, n)
        if context.attempt == 1:
            raise OSError("the first attempt fails")
        return context.attempt

    handle = count.push(3)
    while handle.state() != "done":
        run(app, name)
    assert handle.result() == 2
    assert int.from_bytes(db[key], "little") == 3


def test_at_end_does_nothing_once_the_lease_is_lost(
    db: Any, app: App, name: str, space: fdbqueue.Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, extended = space.pack(("written",)), threading.Event()
    extend = Store.extend_each

    def extend_and_note(*args: Any) -> Any:
        errors = extend(*args)
        if any(errors):
            extended.set()
        return errors

    monkeypatch.setattr(Store, "extend_each", extend_and_note)

    def write(tr: Transaction) -> None:
        tr[key] = b"x"

    @fdbqueue.transactional
    def take_away(tr: Transaction, item: Any) -> None:
        app.queue(name).release(tr, item)
        app.queue(name).remove(tr, item)

    @app.job(queue=name)
    def lose(context: Context) -> None:
        context.at_end(write)
        if context.attempt == 1:
            take_away(db, context.item)
            context.progress(0.5)  # which would be stored with the next extension
            assert extended.wait(MAX_WAIT)

    lose.push()
    assert run(app, name) == WorkerReport(lost=1)
    assert db[key] is None


# Failures


@pytest.mark.parametrize(
    ("policy", "attempts"),
    [
        (Retry(attempts=3, first=0, on=(OSError, ValueError)), 3),
        (Retry(attempts=3, first=0, on=ValueError), 1),
        (Retry(attempts=3, first=0, never_on=OSError), 1),
    ],
)
def test_a_job_is_tried_again_as_its_policy_says(
    app: App, name: str, policy: Retry, attempts: int
) -> None:
    @app.job(queue=name, retry=policy)
    def fail(context: Context) -> None:
        assert context.max_attempts == 3
        raise OSError("busy")

    handle = fail.push()
    while handle.state() != "dead":
        run(app, name)
    info = handle.info()
    assert info.error == "OSError: busy"
    assert [attempt.number for attempt in info.failed_attempts] == [*range(1, attempts + 1)]
    assert "fail" in str(info.failed_attempts[-1].traceback)


def test_a_job_may_choose_its_next_attempt_but_not_more_of_them(app: App, name: str) -> None:
    @app.job(queue=name, retry=Retry(attempts=2, first="1h"))
    def job() -> None:
        try:
            raise OSError("busy")
        except OSError as error:
            raise RetryIn(0) from error

    handle = job.push()
    run(app, name)
    while handle.state() != "dead":
        run(app, name)
    info = handle.info()
    assert info.attempts == 2
    assert info.error == "OSError: busy"


@pytest.mark.parametrize("by", ["policy", "job"])
@pytest.mark.parametrize(
    ("decision", "state", "text"),
    [
        (Dead("card declined"), "dead", "card declined: KeyError: 'no funds'"),
        (Dead("no funds"), "dead", "KeyError: 'no funds'"),
        (Dead(), "dead", "KeyError: 'no funds'"),
        (RetryIn(3600, "busy"), "delayed", "busy: KeyError: 'no funds'"),
        (Discard("gone"), "done", "gone: KeyError: 'no funds'"),
    ],
)
def test_a_policy_or_a_job_chooses_the_end_and_its_reason_is_kept_with_the_error(
    app: App, name: str, by: str, decision: Outcome, state: str, text: str
) -> None:
    @app.job(queue=name, retry=lambda error, context: decision)
    def charge() -> None:
        try:
            raise KeyError("no funds")
        except KeyError as error:
            raise (decision if by == "job" else error) from error

    handle = charge.push()
    run(app, name)
    info = handle.info()
    assert (info.state, info.error) == (state, text)
    if state != "done":
        assert 'raise KeyError("no funds")' in str(info.failed_attempts[-1].traceback)


# Names and versions


def test_mistakes_of_a_declaration_are_named(db: Any, app: App) -> None:
    @app.job(name="same")
    def first() -> None: ...

    for mistake, kind, message in [
        (lambda: app.job(print), TypeError, "@app.job(), with parentheses"),
        (lambda: app.job(name="other")(first), TypeError, "same is a job already"),
        (lambda: app.job(name=3), TypeError, "the name of a job is text, not 3"),
        (lambda: app.job(name="same")(print), DuplicateJob, "'same' already"),
        (lambda: app.job(version="2"), ValueError, "version is a number"),
        (lambda: app.job(timeout=0), ValueError, "timeout is a number"),
        (lambda: app.work(["mail"]), TypeError, "name the queues one by one"),
        (lambda: App(db.create_transaction()), TypeError, "an app needs a database"),
        (lambda: App(keep="soon"), ValueError, "keep is a timedelta or a text such as '7d'"),
        *[
            (lambda wrong=wrong: app.job(retry=wrong), TypeError, f"Retry(attempts=3), not {wrong}")
            for wrong in (3, Retry, OSError)
        ],
        *[
            (lambda each=each: Retry(**each), TypeError, " must be an exception class, or a tuple")
            for each in ({"on": [OSError]}, {"on": (OSError, "x")}, {"never_on": OSError()})
        ],
    ]:
        with pytest.raises(kind, match=re.escape(message)):
            mistake()
    assert app.jobs == {"same": first}


def test_a_file_that_runs_as_a_script_and_is_imported_declares_its_jobs_once(
    tmp_path: Path,
) -> None:
    """Also in a process that `multiprocessing` spawns, where the script has another name."""
    (tmp_path / "base.py").write_text("import fdbqueue\napp = fdbqueue.App('memory:')\n")
    (tmp_path / "shop.py").write_text(
        """
import multiprocessing
from base import app

@app.middleware
def around(context):
    print("around", context.job)
    yield

@app.every("1h", args=[1])
@app.job()
def send(number: int) -> int:
    return number

def child():
    print("child", sorted(app.jobs), flush=True)

if __name__ == "__main__":
    import shop
    print(send.name, sorted(app.jobs), len(app.schedules.declared["jobs"]))
    handles = [send.push(1), shop.send.push(2)]
    print(app.work(concurrency=1, drain=True).done, [h.result() for h in handles], flush=True)
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join()
"""
    )
    done = subprocess.run(
        [sys.executable, "-m", "shop"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [
        *("shop.send ['shop.send'] 1", "around shop.send", "around shop.send"),
        *("2 [1, 2]", "child ['shop.send']"),
    ], done.stderr


def test_an_app_without_a_database_says_so(db: Any) -> None:
    app = App()

    @app.job()
    def job() -> None: ...

    with pytest.raises(AppNotBound, match=re.escape("app.bind(")):
        job.push()
    app.bind(db)
    assert app.db is db
    app = App(db, keep="7d")
    assert app.queue("its own").options(db).keep_seconds == 604_800


def test_a_value_that_is_no_job_becomes_a_dead_letter(db: Any, app: App, name: str) -> None:
    @app.job(queue=name)
    def job() -> None: ...

    queue = app.queue(name)
    for value in ("text", {"job": 1}, {"job": "x", "args": {}}, {"job": "x", "version": "2"}):
        queue.push(db, value)
    assert run(app, name) == WorkerReport(failed=4)
    assert queue.stats(db).dead == 4


def test_a_signal_that_another_thread_receives_stops_the_workers(app: App, name: str) -> None:
    """Nor does it interrupt the wait of the main thread if it comes just before that begins."""

    @app.job(queue=name)
    def stop() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    stop.push()
    assert app.work(name).done == 1


def test_jobs_with_a_single_attempt_are_not_claimed_ahead(db: Any, app: App, name: str) -> None:
    """The death of the worker would cost such a job its only attempt before it began."""
    claimed = []

    @app.job(queue=name, retry=Retry(attempts=1))
    def count() -> None:
        claimed.append(app.queue(name).stats(db).claimed)

    count.push_many([count.bind() for _ in range(20)])
    app.work(name, drain=True, concurrency=1)
    assert claimed == [1] * 20


def test_a_job_that_was_discarded_or_cancelled_has_no_result(app: App, name: str) -> None:
    @app.job(queue=name)
    def work(context: Context, wanted: bool) -> int:
        if wanted:
            raise Discard("the customer has left")
        cancelled.cancel()
        raise ValueError("told to stop")

    discarded = work.push(True)
    cancelled = work.push(False)
    app.work(drain=True)
    with pytest.raises(NoResult, match=r"it was discarded: .*the customer has left$"):
        discarded.result()
    with pytest.raises(NoResult, match="it was cancelled"):
        cancelled.result()


def test_a_queue_without_declared_jobs_is_worked_on_with_a_warning(
    app: App, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job(queue=name)
    def work() -> int:
        return 1

    pushed = work.using(queue=f"{name}other").push()
    app.bind(app.db)  # as another process, which has pushed nothing
    app.work(name, drain=True)
    assert "no job is declared" not in caplog.text
    app.work(f"{name}other", drain=True)
    assert f"no job is declared for the queue {name}other" in caplog.text
    assert pushed.result() == 1


# Names of parameters


def test_a_job_may_have_parameters_with_the_names_of_ours(app: App, name: str) -> None:
    @app.job(queue=name, name="named", unique=lambda **given: f"key {sorted(given)}")
    def named(self: int, job: int, function: int, args: int, kwargs: int, tr: int) -> int:
        return self + job + function + args + kwargs + tr

    @app.job(queue=name, name="parent")
    def parent(context: Context, name: int, call: int) -> list[int]:
        child = named.using(unique=False)
        return [
            context.run("run", child, **given),
            context.step("step", named, **given),
            context.commit("commit", lambda tr, **given: sum(given.values()), name=1, function=2),
            name + call,
        ]

    given = dict.fromkeys(("self", "job", "function", "args", "kwargs", "tr"), 1)
    first = named.push(**given)
    many = named.using(unique=False).push_many([named.bind(**given)])
    handle = parent.push(name=1, call=2)
    while handle.state() != "done":
        run(app, name)
    assert [each.result() for each in (first, *many)] == [6] * 2
    assert handle.result() == [6, 6, 3, 3]
