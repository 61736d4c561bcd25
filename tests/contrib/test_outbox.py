"""A job of an outbox is pushed once, after its transaction has committed, and never without it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connections, transaction
from django.test import override_settings
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

import fdbqueue
from fdbqueue.contrib import outbox as core
from fdbqueue.contrib.django import Outbox as DjangoOutbox
from fdbqueue.contrib.django.api import (
    BaseTaskBackend,
    InvalidTask,
    TaskResultStatus,
    task_backends,
)
from fdbqueue.contrib.outbox import Relay
from fdbqueue.contrib.sqlalchemy import Outbox
from fdbqueue.database import clock
from fdbqueue.errors import InvalidQueueName, PayloadTooLarge
from fdbqueue.jobs import App, Dead
from fdbqueue.testing import FaultyDatabase
from fdbqueue.types import DeadJob
from tests.contrib import tasks
from tests.support.outboxes import store_of
from tests.support.postgres import Postgres
from tests.support.waiting import wait_until

STORES = [
    "sqlalchemy on sqlite",
    "django on sqlite",
    "sqlalchemy on postgres",
    "django on postgres",
]


@pytest.fixture(scope="module")
def postgres_or_reason() -> Iterator[Postgres | str]:
    try:
        server = Postgres()
    except FileNotFoundError as error:
        yield str(error)
        return
    yield server
    server.stop()


@pytest.fixture
def app(db: Any) -> App:
    return App(db)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, app: App, tmp_path: Path) -> Iterator[Any]:
    kind, _, where = request.param.split()
    server = request.getfixturevalue("postgres_or_reason") if where == "postgres" else None
    if isinstance(server, str):
        pytest.skip(server)
    made = store_of(kind, app, server, tmp_path)
    yield made
    made.close()


@pytest.fixture
def send(app: App, name: str) -> Any:
    @app.job(name="send", queue=name)
    def send(n: int) -> None: ...

    return send


def pushed(app: App, queue: str) -> list[Any]:
    """Return the arguments of the jobs in a queue."""
    return [item.value["args"][0] for item in app.queue(queue).items(app.db)]


def has_pushed(app: App, queue: str, n: int) -> bool:
    return pushed(app, queue) == [*range(n)]


def test_a_job_is_pushed_once_its_transaction_has_committed(
    store: Any, app: App, send: Any, name: str
) -> None:
    with store.transaction() as push:
        push()
        push(send.bind(1), send.bind(2))
        push(send.bind(3))
    with suppress(ZeroDivisionError), store.transaction() as push:
        push(send.bind(4))
        raise ZeroDivisionError
    assert pushed(app, name) == []
    assert (store.outbox.relay(), store.ids) == (3, [])
    assert (store.outbox.relay(), store.another(app).relay()) == (0, 0)
    assert pushed(app, name) == [1, 2, 3]


def test_a_job_of_an_outbox_has_its_alert(store: Any, app: App, name: str) -> None:
    @app.job(name="alert", queue=name)
    def alert(dead: DeadJob) -> str:
        return f"{dead.job}{dead.args}"

    @app.job(name="die", queue=name, on_dead=alert)
    def die(n: int) -> None:
        raise Dead("as it should")

    with store.transaction() as push:
        push(die.bind(1))
    store.outbox.relay()
    app.work(name, drain=True)
    assert [info.result for info in app.queue(name).items(app.db, state="done")] == ["die[1]"]


def test_a_job_is_not_pushed_before_its_transaction_commits(
    store: Any, app: App, send: Any, name: str, tmp_path: Path
) -> None:
    """Ids are given before the commit: a lower one can appear after a higher one is pushed."""
    if not isinstance(store.outbox, Outbox):
        pytest.skip("Django has one transaction in a thread")
    store.outbox.relay()
    with store.transaction() as first:
        first(send.bind(1))
        assert store.outbox.relay() == 0
        if store.engine.dialect.name == "postgresql":  # SQLite has one writer
            with store.transaction() as second:
                second(send.bind(2))
            assert store.outbox.relay() == 1
    assert store.outbox.relay() == 1
    assert pushed(app, name) in ([1], [2, 1])


def test_a_row_has_all_options_of_a_push(
    store: Any, app: App, send: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"group": "a", "unique": "key", "cost": 2, "priority": 7}
    now = time.time()
    with store.transaction() as push, monkeypatch.context() as patch:
        patch.setattr(clock, "time_ns", lambda: int((now + 3600) * 1e9))  # it is set back later
        push(send.using(**options, ttl=timedelta(hours=9)).bind(1))
        push(send.using(unique=True, unique_for="1h").bind(2), send.bind(3), delay="5m")
    store.outbox.relay()
    queue = app.queue(name)
    (first,) = queue.items(app.db)
    info = queue.get(app.db, first)
    assert (first.priority, info.group, info.unique) == (7, "a", "key")
    assert info.expires_at.timestamp() >= now + 9 * 3600
    delayed = [*queue.items(app.db, state="delayed")]
    assert [each.item.value["args"] for each in delayed] == [[2], [3]]
    times = [each.due_at.timestamp() for each in delayed]
    assert times == pytest.approx([now + 3900] * 2, abs=0.01)
    assert delayed[0].unique is not None


def test_a_wrong_push_stores_nothing(store: Any, app: App, send: Any) -> None:
    @app.job()
    def write(text: str) -> None: ...

    handle = send.push(0)
    wrong: list[tuple[Callable[[], Any], dict[str, Any], type[Exception], str]] = [
        (lambda: send.using(after=handle).bind(1), {}, TypeError, "without tr and after"),
        (lambda: send.bind(1), {"delay": "soon"}, ValueError, "delay is a number of seconds"),
        (lambda: send.using(queue=" ").bind(1), {}, InvalidQueueName, "printable"),
        (lambda: send.using(unique="").bind(1), {}, ValueError, "unique"),
        (lambda: write.bind("x" * 8_000_001), {}, PayloadTooLarge, "8,000,000"),
    ]
    for call, options, kind, message in wrong:
        with store.transaction() as push, pytest.raises(kind, match=message):
            push(call(), **options)
    assert store.ids == []


def test_rows_that_cannot_be_pushed_hold_only_those_of_their_queue(
    store: Any, app: App, send: Any, name: str, db: Any
) -> None:
    fdbqueue.PriorityQueue.named(db, f"{name}full", max_size=2).configure(db, paused=False)
    fdbqueue.PriorityQueue.named(db, f"{name}other", codec="tuple").configure(db, paused=False)
    with store.transaction() as push:
        for n in range(4):
            push(*(send.using(queue=f"{name}{queue}").bind(n) for queue in ("full", "other", "")))
    assert store.outbox.relay() == 6
    assert (pushed(app, name), pushed(app, f"{name}full")) == ([0, 1, 2, 3], [0, 1])
    full = app.queue(f"{name}full")
    assert [full.pop(db).value["args"], full.pop(db).value["args"]] == [[0], [1]]
    assert (store.outbox.relay(), pushed(app, f"{name}full"), len(store.ids)) == (2, [2, 3], 4)


def test_a_table_that_begins_anew_loses_nothing(store: Any, app: App, send: Any, name: str) -> None:
    """The ids of rows come again, and the ledger has those of the rows that were pushed."""
    for n in (1, 2):
        with store.transaction() as push:
            push(send.bind(n))
        relay = Relay(store.outbox)
        relay.turn()  # and is killed before it deletes the row
        (row,) = store.ids
        assert pushed(app, name)[-1] == n
        store.clear()
        if isinstance(store.outbox, Outbox):
            with store.engine.begin() as connection:
                token = core.new_identity() | {"token": "same"}
                connection.execute(sa.insert(store.outbox.table), token)
                row_of = {**core.new_row(*send.bind(10 * n).push_many), "id": row}
                connection.execute(sa.insert(store.outbox.table), row_of)
            assert store.another(app).relay() == 1


class Crash(BaseException):
    """The process is killed."""


def crashing(call: Callable[..., Any], when: str) -> Callable[..., None]:
    """Return a call that crashes before or after the real one."""

    def crash(*args: Any) -> None:
        if when == "after":
            call(*args)
        raise Crash

    return crash


POINTS = [(name, when) for name in ("identity", "take", "run") for when in ("before", "after")]


def test_a_relay_that_is_killed_anywhere_leaves_each_row_to_the_next_one(
    store: Any, app: App, send: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n, (call, when) in enumerate([*POINTS, *POINTS]):
        owner = core if call == "run" else store.outbox
        with store.transaction() as push:
            push(send.bind(2 * n), send.using(queue=f"{name}other").bind(2 * n + 1))
        with monkeypatch.context() as patch:
            patch.setattr(owner, call, crashing(getattr(owner, call), when))
            with pytest.raises(Crash):
                store.outbox.relay()
        if n % 2:
            store.another(app).relay()
    assert pushed(app, name) == [*range(0, 4 * len(POINTS), 2)]
    assert pushed(app, f"{name}other") == [*range(1, 4 * len(POINTS), 2)]
    assert store.ids == []


@pytest.mark.parametrize("call", ["take", "push_members"])
def test_a_relay_that_was_suspended_pushes_nothing_again(
    store: Any, app: App, send: Any, name: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send.push(0)
    with store.transaction() as push:
        push(send.bind(1))
    slow, owner = Relay(store.outbox), store.outbox if call == "take" else core
    real = getattr(owner, call)

    def suspended(*args: Any) -> Any:
        result = real(*args)
        monkeypatch.setattr(owner, call, real)
        assert store.another(app).relay() == 1
        return result

    monkeypatch.setattr(owner, call, suspended)
    assert not slow.turn()
    assert (pushed(app, name), slow.pushed, slow.turn()) == ([0, 1], 0, False)


def test_a_relay_pushes_each_row_once_if_results_of_commits_are_lost(
    store: Any, app: App, send: Any, name: str
) -> None:
    faulty: Any = FaultyDatabase(app.db, before=0.3, after=0.3, seed=1)
    outbox = store.another(App(faulty))
    for n in range(20):
        with store.transaction() as push:
            push(send.bind(n))
        outbox.relay()
    assert (has_pushed(app, name, 20), store.ids) == (True, [])
    assert faulty.lost > 10


def test_a_relay_that_has_drained_deletes_no_row_again(app: App, send: Any, tmp_path: Path) -> None:
    """In SQLite, a needless write is an error in jobs that have read and are about to write."""
    store = store_of("sqlalchemy", app, None, tmp_path)
    statements: list[str] = []
    sa.event.listen(store.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    with store.transaction() as push:
        push(send.bind(0))
    with store.outbox.relaying(drain=True):
        drained = len(statements)
        wait_until(lambda: len(statements) > drained)
    assert sum(text.startswith("DELETE") for text in statements) == 1
    store.close()


def test_a_commit_wakes_the_relay_of_a_worker(
    store: Any, app: App, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "_FIRST", 3600.0)  # it never polls
    monkeypatch.setattr(core, "_LONGEST", 3600.0)
    done = list[int]()

    @app.job(queue=name)
    def send(n: int) -> None:
        done.append(n)

    with store.outbox.relaying():
        for n in range(3):
            with store.transaction() as push:
                push(send.bind(n))
            wait_until(partial(has_pushed, app, name, n + 1))
    with store.transaction() as push:
        push(send.bind(3))
    assert app.work(drain=True, concurrency=1).done == 4
    assert done == [0, 1, 2, 3]


@pytest.fixture
def server(postgres_or_reason: Postgres | str) -> Postgres:
    if isinstance(postgres_or_reason, str):
        pytest.skip(postgres_or_reason)
    return postgres_or_reason


@pytest.mark.parametrize("kind", ["sqlalchemy", "django"])
def test_postgres_tells_the_relays_of_other_processes(
    kind: str,
    app: App,
    send: Any,
    name: str,
    server: Postgres,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = store_of(kind, app, server, tmp_path)
    monkeypatch.setattr(core, "_FIRST", 3600.0)
    monkeypatch.setattr(core, "_LONGEST", 3600.0)
    monkeypatch.setattr(core.Outbox, "wake", lambda *_: None)
    listening = store.outbox.listen()
    with store.transaction() as push:
        push(send.bind(1))
    assert [each.channel for each in listening.notifies(stop_after=1)] == [core.TABLE]
    listening.close()
    relay = Relay(store.outbox)
    relay._connection = store.outbox.listen()
    with store.transaction() as push:
        push(send.bind(2))
    relay._wait(3600)
    assert (relay.turn(), pushed(app, name)) == (True, [1, 2])
    relay._connection.close()
    store.close()


@pytest.mark.parametrize("kind", ["sqlalchemy", "django"])
def test_a_relay_that_another_has_overtaken_survives_a_restart_of_postgres(
    kind: str, app: App, send: Any, name: str, server: Postgres, tmp_path: Path
) -> None:
    store = store_of(kind, app, server, tmp_path)
    relay = Relay(store.outbox)
    relay.drain()
    relay.is_current = False  # as after a turn in which another relay has pushed
    server.disconnect()
    with suppress(Exception):
        relay.turn()
    with store.transaction() as push:
        push(send.bind(1))
    assert (relay.drain(), pushed(app, name)) == (1, [1])
    store.close()


def test_a_relay_of_django_leaves_a_test_its_transaction_and_no_connection(
    app: App, send: Any, name: str, server: Postgres, tmp_path: Path
) -> None:
    """Otherwise the test goes on without its transaction, and its database cannot be dropped."""
    store = store_of("django", app, server, tmp_path)
    of_testcase: Any = transaction.atomic(store.alias)
    of_testcase._from_testcase = True
    with of_testcase:
        store.outbox.push(send.bind(0))
        assert (store.outbox.relay(), pushed(app, name)) == (1, [0])
    with store.outbox.relaying():
        store.outbox.push(send.bind(1))
        wait_until(partial(has_pushed, app, name, 2))
    store.close()
    wait_until(lambda: server.sessions(store.alias) == 0)


def test_a_relay_of_django_listens_outside_of_the_pool(
    app: App, server: Postgres, tmp_path: Path
) -> None:
    """Otherwise each new connection takes one from the tasks: it never comes back to the pool."""
    store = store_of("django", app, server, tmp_path)
    connections[store.alias].settings_dict["OPTIONS"]["pool"] = True
    listening = store.outbox.listen()  # without psycopg_pool, a pool is an error
    assert not hasattr(listening, "_pool")
    listening.close()
    connections[store.alias].settings_dict["OPTIONS"].clear()
    store.close()


def test_an_asynchronous_session_pushes_by_run_sync(
    app: App, send: Any, name: str, server: Postgres, tmp_path: Path
) -> None:
    store = store_of("sqlalchemy", app, server, tmp_path)

    async def push() -> None:
        engine = create_async_engine(store.engine.url)
        async with AsyncSession(engine) as session, session.begin():
            wrong: Any = session
            with pytest.raises(TypeError, match="run_sync"):
                store.outbox.push(wrong, send.bind(0))
            await session.run_sync(store.outbox.push, send.bind(1), delay=0)
        await engine.dispose()

    asyncio.run(push())
    assert (store.outbox.relay(), pushed(app, name)) == (1, [1])
    store.close()


PROGRAM = """
import sys, sqlalchemy as sa
from fdbqueue import App
from fdbqueue.contrib.sqlalchemy import Outbox

app, empty, metadata = App(), App(), sa.MetaData()
outbox = Outbox(app, sa.create_engine("sqlite:///rows.sqlite3"), metadata)

@app.job(queue={name!r})
def send(n: int) -> None: ...

if __name__ == "__main__":
    metadata.create_all(sa.create_engine("sqlite:///rows.sqlite3"))
    with sa.create_engine("sqlite:///rows.sqlite3").begin() as connection:
        outbox.push(connection, *map(send.bind, range(3)))
"""


def test_the_command_pushes_the_rows_of_an_app(
    db: Any, shared_url: str, name: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM.format(name=name))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    assert run("shop.py").returncode == 0
    relay = ("-m", "fdbq", "relay", "--drain", "--db", shared_url, "--app")
    done = run(*relay, "shop:app")
    assert (done.returncode, done.stderr) == (0, "")
    assert [item.value["args"] for item in fdbqueue.PriorityQueue.named(db, name).items(db)] == [
        [0],
        [1],
        [2],
    ]
    none = run(*relay, "shop:empty")
    assert (none.returncode, "shop:empty' has no outbox" in none.stderr) == (2, True)


def test_tasks_of_django_commit_with_rows(backend: Any, name: str) -> None:
    call_command("migrate", verbosity=0)
    outbox = DjangoOutbox()
    tasks.ran.clear()
    outbox.enqueue(tasks.note.using(queue_name=name), 1, two=2)
    outbox.enqueue(tasks.note.using(queue_name=name, priority=5), 3)
    with pytest.raises(InvalidTask, match="not a task of the backend"):
        DjangoOutbox(App("memory:")).enqueue(tasks.note, 1)
    call_command("fdbqueue_work", name, drain=True, concurrency=1, verbosity=0)
    assert tasks.ran == [((3,), {}), ((1,), {"two": 2})]
    queue = task_backends["default"].app.queue(name)
    (first, _) = queue.items(backend.app.db, state="done")
    assert backend.get_result(first.id).status == TaskResultStatus.SUCCESSFUL


def test_an_outbox_follows_the_settings_of_a_test(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdbqueue.contrib.django.backend._apps", {})
    monkeypatch.setattr("fdbqueue.contrib.django.backend._relays", {})
    call_command("migrate", verbosity=0)
    tasks.ran.clear()
    overridden = {**settings.TASKS["default"], "QUEUES": [name], "OPTIONS": {"database": db}}
    outbox = DjangoOutbox()
    with override_settings(TASKS={"default": overridden}):
        outbox.enqueue(tasks.note.using(queue_name=name), 1)
        call_command("fdbqueue_work", drain=True, verbosity=0)
    assert tasks.ran == [((1,), {})]
    dummy = {"BACKEND": BaseTaskBackend.__module__.replace("base", "dummy.DummyBackend")}
    with (
        override_settings(TASKS={"default": dummy}),
        pytest.raises(ImproperlyConfigured, match="not an FdbqueueBackend"),
    ):
        DjangoOutbox()


def test_the_migration_has_the_columns_of_the_model() -> None:
    """Otherwise the command exits with an error."""
    call_command("makemigrations", "fdbqueue", check=True, dry_run=True, verbosity=0)
