"""Django's tasks run as jobs, and their results say what Django's tasks promise."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.management import CommandError, call_command
from django.test import override_settings

import fdbqueue
from cli.work import _OF_WORKERS
from cli.work import work as work_command
from fdbqueue import WorkerReport
from fdbqueue.contrib.django import FdbqueueBackend
from fdbqueue.contrib.django import options as task_options
from fdbqueue.contrib.django.api import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from fdbqueue.contrib.django.management.commands.fdbqueue_work import Command
from fdbqueue.contrib.django.running import worker_app
from fdbqueue.errors import PayloadTooLarge, TimedOut
from fdbqueue.jobs import App, Retry
from fdbqueue.testing import Clock
from tests.contrib import tasks
from tests.support.leases import lapse
from tests.support.waiting import wait_until

READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
FAILED, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL

renamed = tasks.note


@pytest.fixture(autouse=True)
def _nothing_noted() -> None:
    tasks.ran.clear()
    tasks.connections.clear()


def work(backend: Any, *queues: str, **settings: Any) -> WorkerReport:
    return worker_app(backend).work(*queues, drain=True, **settings)


def test_a_task_runs_and_its_result_comes_back(backend: Any, name: str) -> None:
    task = tasks.note.using(queue_name=name)
    result: Any = task.enqueue(1, two=(b"2", None))
    assert (result.status, result.args, result.kwargs) == (READY, [1], {"two": ["2", None]})
    assert (result.task, result.backend, result.attempts, result.errors) == (task, "default", 0, [])
    assert result.started_at is result.finished_at is result.last_attempted_at is None
    assert task.get_result(result.id) == result
    assert len(result.id) < 64  # as Django promises
    with pytest.raises(ValueError, match="not finished"):
        result.return_value
    assert work(backend, name, name="w1") == WorkerReport(done=1)
    result.refresh()
    assert (result.status, result.is_finished) == (SUCCESSFUL, True)
    assert result.return_value == [[1], {"two": ["2", None]}]
    assert (result.worker_ids, result.attempts) == (["w1"], 1)
    again: Any = task.get_result(result.id)
    assert again == result
    assert again.enqueued_at <= again.started_at <= again.finished_at
    assert again.last_attempted_at == again.started_at
    assert again.enqueued_at.tzinfo is not None


def test_coroutine_functions_and_the_asynchronous_methods(backend: Any, name: str) -> None:
    task = tasks.double.using(queue_name=name)

    async def enqueue() -> Any:
        result = await task.aenqueue(4)
        assert await backend.aget_result(result.id) == result
        return result

    result = async_to_sync(enqueue)()
    with_context: Any = tasks.describe.using(queue_name=name).enqueue(5)
    assert work(backend, name) == WorkerReport(done=2)
    for each in (result, with_context):
        async_to_sync(each.arefresh)()
    assert result.return_value == 8
    assert with_context.return_value == [1, with_context.id, "RUNNING", "RUNNING", 5]


@pytest.mark.parametrize(
    ("task", "kind", "end"),
    [
        (tasks.fail, tasks.Broken, "tests.contrib.tasks.Broken: broken"),
        (tasks.leave, SystemExit, "SystemExit: left"),
        (tasks.nested, ValueError, "lines: of text"),
        (tasks.unserializable, TypeError, "Unsupported type"),
        (tasks.too_large, PayloadTooLarge, "at most 90,000"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_task_that_fails_keeps_the_class_of_the_error_and_its_traceback(
    backend: Any, name: str, sent: list[Any], task: Any, kind: type, end: str
) -> None:
    result = task.using(queue_name=name).enqueue()
    assert work(backend, name) == WorkerReport(failed=1)
    result.refresh()
    assert (result.status, result.attempts) == (FAILED, 1)
    assert sent[-1] == ("finished", FdbqueueBackend, result.id, FAILED)
    (error,) = result.errors
    assert error.exception_class is kind
    assert error.traceback.startswith("Traceback")
    assert end in error.traceback.splitlines()[-1]
    assert result.enqueued_at <= result.started_at <= result.finished_at
    with pytest.raises(ValueError, match="failed"):
        result.return_value


def work_until_finished(backend: Any, *results: Any) -> None:
    while not all(result.is_finished for result in results):
        work(backend, *{result.task.queue_name for result in results})
        for result in results:
            result.refresh()


def test_a_policy_tries_a_task_again(backend: Any, name: str, sent: list[Any]) -> None:
    result: Any = tasks.third_time.using(queue_name=name).enqueue()
    work_until_finished(backend, result)
    assert (result.status, result.return_value, result.attempts) == (SUCCESSFUL, 3, 3)
    assert [error.exception_class for error in result.errors] == [OSError, OSError]
    assert result.last_attempted_at >= result.started_at
    assert [each[0] for each in sent] == ["enqueued", *["started"] * 3, "finished"]


def test_the_policy_of_the_settings_holds_for_tasks_without_one(
    options: dict[str, Any], backend: Any, name: str
) -> None:
    options["retry"] = Retry(attempts=2, first=0, jitter=0)
    result: Any = tasks.fail.using(queue_name=name).enqueue()
    work_until_finished(backend, result)
    assert (result.status, result.attempts, len(result.errors)) == (FAILED, 2, 2)


def test_a_task_chooses_its_end(backend: Any, name: str) -> None:
    given_up = tasks.gives_up.using(queue_name=name).enqueue()
    snoozed = tasks.snoozes.using(queue_name=name).enqueue()
    work_until_finished(backend, given_up, snoozed)
    assert (given_up.status, given_up.errors[0].traceback) == (FAILED, "the customer has left")
    assert given_up.errors[0].exception_class.__name__ == "Discard"
    assert (snoozed.status, snoozed.return_value) == (SUCCESSFUL, 1)


def test_a_task_waits_for_its_time(backend: Any, name: str, clock: Clock) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    later = tasks.note.using(queue_name=name, run_after=at).enqueue("later")
    past = tasks.note.using(queue_name=name, run_after=at - timedelta(days=1)).enqueue("past")
    assert work(backend, name).done == 1
    assert tasks.ran == [(("past",), {})]
    assert (later.status, past.status) == (READY, READY)
    assert abs(backend.get_result(later.id).task.run_after - at) < timedelta(seconds=1)
    clock.advance(3601)
    assert work(backend, name).done == 1
    later.refresh()
    assert later.status == SUCCESSFUL


def test_times_without_a_zone_if_django_uses_none(backend: Any, name: str) -> None:
    with override_settings(USE_TZ=False, TIME_ZONE="Asia/Tokyo"):
        at = datetime.now(timezone(timedelta(hours=9))).replace(tzinfo=None) + timedelta(hours=1)
        result: Any = tasks.note.using(queue_name=name, run_after=at).enqueue()
        assert result.enqueued_at.tzinfo is None
        assert abs(at - timedelta(hours=1) - result.enqueued_at) < timedelta(minutes=5)
        assert abs(backend.get_result(result.id).task.run_after - at) < timedelta(seconds=1)


def test_a_backend_without_queues_in_the_settings_takes_any(db: Any, name: str) -> None:
    entry = {"BACKEND": "fdbqueue.contrib.django.FdbqueueBackend", "QUEUES": []}
    with override_settings(TASKS={"default": {**entry, "OPTIONS": {"database": db}}}):
        result: Any = tasks.note.using(queue_name=name).enqueue(1)
        backend = task_backends["default"]
        assert work(backend, name).done == 1
        assert backend.get_result(result.id).status == SUCCESSFUL


def test_a_result_that_is_not_kept_does_not_exist(
    options: dict[str, Any], backend: Any, name: str
) -> None:
    options["keep"] = None
    result: Any = tasks.note.using(queue_name=name).enqueue()
    work(backend, name)
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


PATHS = [
    "os.system",
    "antigravity.fly",  # a module of Python that nothing imports
    "tests.contrib.tasks.not_a_task",
    "tests.contrib.tasks.note.func",
    "tests.contrib.test_django.renamed",
    "fdbqueue",
    "",
]


def test_a_name_in_the_database_imports_nothing_and_calls_tasks_only(
    db: Any, backend: Any, name: str
) -> None:
    queue = fdbqueue.PriorityQueue.named(db, name, max_attempts=1)
    strangers = queue.push_many(
        db, [{"job": path, "args": ["true"], "kwargs": {}} for path in PATHS]
    )
    no_job = queue.push(db, "no job")
    assert work(backend, name) == WorkerReport(failed=1)
    assert {queue.state(db, item) for item in strangers} == {"delayed"}
    assert tasks.ran == []
    assert "antigravity" not in sys.modules
    for item in strangers:
        with pytest.raises(TaskResultDoesNotExist, match="no imported module has"):
            backend.get_result(item.id)
    for id in (no_job.id, "123", "", "x/y", "E5sWD70BAaISJrorduCsN1YT17W63wA", "é"):
        with pytest.raises(TaskResultDoesNotExist):
            backend.get_result(id)


def test_any_client_can_push_a_task(
    db: Any, options: dict[str, Any], backend: Any, name: str, clock: Clock
) -> None:
    """One that no worker knows fails after the time of the settings."""
    options["keep_unknown"] = "1h"
    queue = fdbqueue.PriorityQueue.named(db, name, keep=10)
    item = queue.push(db, {"job": "tests.contrib.tasks.note", "args": [1]}, 10**6)
    unknown = queue.push(db, {"job": "shop.tasks.gone"})
    assert work(backend, name).done == 1
    result = backend.get_result(item.id)
    assert (result.args, result.kwargs, result.task.priority) == ([1], {}, -100)
    assert result.return_value == [[1], {}]
    assert queue.state(db, unknown) == "delayed"
    clock.advance("1h")
    work(backend, name)
    assert queue.state(db, unknown) == "dead"


def test_what_cannot_run_is_refused(backend: Any, name: str) -> None:
    task: Any = tasks.double.using(queue_name=name)
    result = task.enqueue(1, 2)
    assert work(backend, name).failed == 1
    result.refresh()
    assert result.errors[0].exception_class is TypeError
    with pytest.raises(TypeError, match="Unsupported type"):
        task.enqueue(object())
    with pytest.raises(InvalidTask, match=r"no worker can find .*tests\.contrib\.tasks\.<lambda>"):
        tasks.hidden.using(queue_name=name).enqueue()
    with pytest.raises(TypeError, match="below @task"):
        task_options(unique="x")(tasks.note)  # type: ignore[type-var]


def test_a_unique_task_is_stored_once_while_it_is_unfinished(backend: Any, name: str) -> None:
    task = tasks.mail.using(queue_name=name)
    first, second, other = task.enqueue(1), task.enqueue(order=1), task.enqueue(2)
    assert first.id == second.id != other.id
    assert work(backend, name).done == 2
    assert task.enqueue(1).id != first.id


@pytest.fixture
def sent() -> Iterator[list[Any]]:
    """Return the signals of the test: their names, senders, ids and statuses."""
    seen: list[Any] = []

    def receiver(signal: Any, sender: type, task_result: Any, **_: Any) -> None:
        seen.append((names[signal], sender, task_result.id, task_result.status))

    names = {task_enqueued: "enqueued", task_started: "started", task_finished: "finished"}
    for signal in names:
        signal.connect(receiver)
    yield seen
    for signal in names:
        signal.disconnect(receiver)


def test_signals_tell_of_the_steps_of_a_task(backend: Any, name: str, sent: list[Any]) -> None:
    done = tasks.mail.using(queue_name=name).enqueue(1)
    tasks.mail.using(queue_name=name).enqueue(1)  # stores nothing
    work(backend, name)
    assert sent == [
        ("enqueued", FdbqueueBackend, done.id, READY),
        ("started", FdbqueueBackend, done.id, RUNNING),
        ("finished", FdbqueueBackend, done.id, SUCCESSFUL),
    ]


def test_a_task_that_takes_too_long_has_failed(
    backend: Any, name: str, sent: list[Any], request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(tasks.release.set)
    tasks.release.clear()
    result = tasks.hang.using(queue_name=name).enqueue()
    assert work(backend, name, grace=0) == WorkerReport(failed=1)
    result.refresh()
    (error,) = result.errors
    assert (result.status, error.exception_class) == (FAILED, TimedOut)
    assert "release.wait()" in error.traceback  # where it hangs
    tasks.release.set()
    wait_until(lambda: not tasks.ran[0].is_alive())
    assert [each[0] for each in sent] == ["enqueued", "started"]


def test_a_task_that_was_cancelled_or_whose_worker_died_has_failed(
    db: Any, backend: Any, name: str
) -> None:
    cancelled: Any = tasks.note.using(queue_name=name).enqueue()
    queue = fdbqueue.PriorityQueue.existing(db, name)
    claim: Any = queue.claim(db)
    assert queue.cancel(db, cancelled.id)
    queue.ack(db, claim)
    cancelled.refresh()
    assert (cancelled.status, cancelled.is_finished) == (FAILED, True)
    result: Any = tasks.note.using(queue_name=name).enqueue()
    assert queue.claim(db, client="dead")
    result.refresh()
    assert (result.status, result.worker_ids) == (RUNNING, ["dead"])
    lapse(db, queue)
    assert work(backend, name).failed == 1
    result.refresh()
    assert (result.status, tasks.ran) == (FAILED, [])
    assert [error.traceback for error in result.errors] == ["its lease ran out"]


def test_connections_to_the_database_of_django_are_closed(backend: Any, name: str) -> None:
    tasks.use_database.using(queue_name=name).enqueue()
    work(backend, name)
    assert tasks.ran == [True]
    assert [connection.connection for connection in tasks.connections] == [None]


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({"database": "memory:"}, []),
        ({}, ["fdbqueue.E001"]),
        ({"database": "memory:", "kept": 1}, ["fdbqueue.E002"]),
        ({"database": "memory:", "keep_unknown": None}, []),
    ],
)
def test_system_checks(options: dict[str, Any], ids: list[str]) -> None:
    backend = FdbqueueBackend("default", {"OPTIONS": options})
    assert [message.id for message in backend.check()] == ids
    with override_settings(INSTALLED_APPS=["tests.contrib"]):
        assert "fdbqueue.W001" in [message.id for message in backend.check()]


def test_threads_share_the_database_in_memory() -> None:
    first, second = (FdbqueueBackend("a", {"OPTIONS": {"database": "memory:"}}) for _ in range(2))
    assert first.app.db is second.app.db


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "has no queue 'nowhere'"),
        (["--concurrency", "0"], "concurrency"),
        (["--health-port", "x"], "an address is PORT or HOST:PORT"),
        (["--health-port", "1.1.1.1:9"], "cannot listen"),
        (["--processes", "0"], "processes is a number of processes from 1, not 0"),
        (["--backend", "unknown"], "'unknown' is not an FdbqueueBackend"),
        ([], r"no cluster file .*no\.cluster"),
    ],
)
def test_wrong_arguments_of_the_command(
    options: dict[str, Any], backend: Any, arguments: list[str], message: str
) -> None:
    if not arguments:
        options["database"] = "no.cluster"
    with pytest.raises(CommandError, match=message):
        call_command("fdbqueue_work", *arguments, "--drain", "-v0")


def test_the_command_has_the_options_of_apps_and_of_fdbq_work() -> None:
    parser = Command().create_parser("manage.py", "fdbqueue_work")
    defaults = vars(parser.parse_args([]))
    others = {"self", "queues", "at_most", "weights"}
    of_apps = {str(each.name) for each in _OF_WORKERS} - others
    for name, parameter in inspect.signature(App.work).parameters.items():
        assert name in others or defaults[name] == parameter.default
        assert name in others | of_apps
    options: dict[Any, Any] = {each.name: each for each in work_command.params}
    for name in of_apps:
        value = [] if options[name].is_flag else ["7"]
        given = vars(parser.parse_args([options[name].opts[0], *value]))
        assert given[name] != defaults[name]


def test_the_command_passes_its_options_on(backend: Any, name: str) -> None:
    result: Any = tasks.note.using(queue_name=name).enqueue()
    lengths = ("--lease", "60", "--grace", "5s", "--prefetch", "0", "--max-memory", "1000000000000")
    call_command(
        "fdbqueue_work", name, "--drain", "-v0", *lengths, "--health-port", "0", "--name", "w7"
    )
    result.refresh()
    assert result.worker_ids == ["w7"]


PROJECT = """
import os, sys
sys.path[0] = os.getcwd()
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["fdbqueue.contrib.django"],
    USE_TZ=True,
    TASKS={"default": {
        "BACKEND": "fdbqueue.contrib.django.FdbqueueBackend",
        "QUEUES": [%(name)r, "default"],
        "OPTIONS": {"database": %(url)r},
    }},
)
import django
django.setup()
from tests.contrib import tasks
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""


def test_the_command_works_in_processes_until_sigterm(
    shared_url: str, backend: Any, name: str, tmp_path: Path
) -> None:
    results = [tasks.double.using(queue_name=name).enqueue(n) for n in range(3)]
    manage = tmp_path / "manage.py"
    manage.write_text(PROJECT % {"name": name, "url": shared_url})
    command = [sys.executable, manage, "fdbqueue_work", name, "--name", "w1", "--processes", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_until(lambda: all(backend.get_result(each.id).is_finished for each in results))
    finally:
        process.terminate()
        output = process.communicate()[0]
    assert process.returncode == 0, output
    assert output.splitlines()[-1] == "3 done, 0 failed"
    assert [backend.get_result(each.id).return_value for each in results] == [0, 2, 4]
    assert backend.get_result(results[0].id).worker_ids == ["w1"]
    assert output.count("done, attempt 1") == 3
