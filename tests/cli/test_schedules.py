"""`fdbq schedule`: add, list, pause, resume, run and remove schedules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.shell import Shell, error_of


@pytest.fixture
def fdbq(tmp_path: Path) -> Shell:
    return Shell(tmp_path, f"embedded:{tmp_path / 'db'}")


def test_a_schedule_is_added_listed_run_and_removed(fdbq: Shell) -> None:
    added = fdbq.output("schedule", "add", "jobs", "hourly", '{"of": 1}', "--every", "1h")
    assert added.startswith("hourly: next tick 20")
    lisbon = (
        "--cron",
        "0 3 * * *",
        "--tz",
        "Europe/Lisbon",
        "--overlap",
        "skip",
        "-p",
        "5",
        "--group",
        "ada",
    )
    fdbq.output("schedule", "add", "jobs", "nightly", "2", *lisbon)
    hourly, nightly = fdbq.output("schedule", "ls").splitlines()
    assert hourly.startswith("jobs  hourly  every 1h  20")
    assert hourly.endswith('+00:00  {"of":1}')
    assert nightly.startswith("jobs  nightly  0 3 * * * Europe/Lisbon  20")
    first, second = map(json.loads, fdbq.output("schedule", "ls", "jobs", "--json").splitlines())
    assert (first["every"], first["cron"], first["priority"]) == (3600, None, 0)
    assert (second["overlap"], second["missed"], second["priority"]) == ("skip", "latest", 5)
    assert (first["group"], second["group"]) == (None, "ada")

    item_id = fdbq.output("schedule", "run", "jobs", "nightly").strip()
    assert item_id in fdbq.output("items", "jobs")
    done = fdbq("schedule", "run", "jobs", "nightly")
    assert (done.returncode, done.stdout) == (1, "")
    assert "its last item has not ended" in done.stderr

    assert fdbq.output("schedule", "pause", "jobs", "hourly") == "paused hourly\n"
    assert "  paused  " in fdbq.output("schedule", "ls")
    assert fdbq.output("schedule", "resume", "jobs", "hourly") == "resumed hourly\n"
    assert fdbq.output("schedule", "rm", "jobs", "hourly") == "removed hourly\n"
    done = fdbq("schedule", "rm", "jobs", "hourly")
    assert done.returncode == 1
    assert done.stderr == "fdbq schedule rm: there is no schedule 'hourly'\n"


def test_a_run_into_a_full_queue_pushes_nothing(fdbq: Shell) -> None:
    fdbq.output("schedule", "add", "jobs", "hourly", "1", "--every", "1h")
    fdbq.output("push", "jobs", "2")
    fdbq.output("limit", "jobs", "--size", "1")
    done = fdbq("schedule", "run", "jobs", "hourly")
    assert (done.returncode, done.stdout) == (1, "")
    assert "has no room" in done.stderr


def test_a_task_queue_has_no_schedules(fdbq: Shell) -> None:
    fdbq.output("task", "push", "todo", "1")
    assert "task" in error_of(fdbq("schedule", "add", "todo", "bills", "1", "--every", "1h"))
    assert "task" in error_of(fdbq("schedule", "pause", "todo", "bills"))
    assert fdbq.output("schedule", "ls") == ""


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (("1",), "give one of cron and every"),
        (("1", "--every", "1ms"), "every is at least 1 second, not 0.001"),
        (("1", "--cron", "61 * * * *"), "Bad minute"),
        (("1", "--cron", "* * * * *", "--tz", "Mars"), "there is no time zone 'Mars'"),
        (("1", "--every", "1h", "--group", ""), "a group is text of 1 to 255 bytes"),
        (("x", "--every", "1h"), "the value is not JSON"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_mistake_adds_nothing(fdbq: Shell, arguments: tuple[str, ...], answer: str) -> None:
    fdbq.output("push", "jobs", "1")
    assert answer in error_of(fdbq("schedule", "add", "jobs", "bad", *arguments))
    assert fdbq.output("schedule", "ls") == ""
