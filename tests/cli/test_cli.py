"""`fdbq` as people and programs use it: a real process, its output and its exit code."""

from __future__ import annotations

import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import fdb
import pytest
from click.testing import CliRunner
from fdbq import __file__ as package
from fdbq.arguments import Duration
from fdbq.main import cli
from fdbq.output import show_table
from fdbq.top import screen

import fdbqueue
from fdbqueue import Queue
from fdbqueue.embedded import Database
from fdbqueue.layout.values import LAYOUT_VERSION
from tests.support.keys import layout_of, push_undecodable
from tests.support.many_queues import make_queues
from tests.support.shell import Shell, commands, error_of, has_handlers
from tests.support.waiting import wait_until


@pytest.fixture
def fdbq(db: Any, shared_url: str, name: str, tmp_path: Path) -> Shell:
    return Shell(tmp_path, shared_url, name)


@pytest.fixture
def filled(fdbq: Shell, name: str) -> Shell:
    fdbq.output("import", name, "--priority-field", "p", stdin='{"n":1,"p":5}\n{"n":2,"p":3}\n')
    return fdbq


def sizes(fdbq: Shell, name: str, *options: str) -> dict[str, int]:
    """Return the sizes of the queues whose names start with `name`."""
    rows = [json.loads(line) for line in fdbq.output("ls", "--json", *options).splitlines()]
    return {row["queue"]: row["ready"] for row in rows if row["queue"].startswith(name)}


def test_a_first_push_takes_two_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = []
    create = Database.create_transaction
    monkeypatch.setattr(
        Database, "create_transaction", lambda self: created.append(1) or create(self)
    )
    done = CliRunner().invoke(cli, ["push", "jobs", "1", "--db", str(tmp_path / "db")])
    assert (done.exit_code, len(created)) == (0, 2), done.output


def test_a_named_fifo_queue_works_like_other_queues(db: Any, fdbq: Shell, name: str) -> None:
    Queue.named(db, name).enqueue(db, "first")
    ids = [fdbq.output("push", name, value).strip() for value in ('"second"', "3", "4")]
    assert fdbq.output("peek", name, "-n", "2") == '"first"\n"second"\n'
    assert fdbq.output("items", name, "--limit", "1", "--after", ids[0]) == f"{ids[1]}     -  3\n"
    assert fdbq.output("rm", name, ids[1]) == "1 removed\n"
    assert json.loads(fdbq.output("counts", name, "--json")) == {"priority": None, "count": 3}
    assert fdbq.output("counts", name).split() == ["priority", "items", "-", "3"]
    exported = fdbq.output("export", name).splitlines()
    assert [json.loads(line)["value"] for line in exported] == ["first", "second", 4]
    assert fdbq.output("pop", name) == '"first"\n'
    worked = fdbq.output("work", name, "--exec", "cat", "--drain", "-q")
    assert worked == '"second"4' + "2 done, 0 failed\n"
    assert fdbq("pop", name).returncode == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("push", "$q", "1", "-p", "1"),
        ("pop", "$q", "--max"),
        ("peek", "$q", "--max"),
        ("items", "$q", "-p", "0"),
        ("import", "$q"),
    ],
    ids=" ".join,
)
def test_a_fifo_queue_rejects_options_that_it_does_not_support(
    db: Any, fdbq: Shell, name: str, arguments: tuple[str, ...]
) -> None:
    Queue.named(db, name).enqueue(db, "first")
    done = fdbq(*(name if each == "$q" else each for each in arguments), stdin="1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "is a FIFO queue" in done.stderr
    assert Queue.named(db, name).size(db) == 1


def test_push_and_pop_in_order(fdbq: Shell, name: str) -> None:
    first = fdbq.output("push", name, '{"to": "ada"}', "--priority", "5").strip()
    fdbq.output("push", name, '"urgent"', "-p", "-1")
    fdbq.output("push", name, "-", stdin="[1,\n2]")
    (fdbq.path / "value.json").write_text("null")
    fdbq.output("push", name, "--file", "value.json", "-p", "9")
    assert fdbq.output("peek", name, "--max") == "null\n"
    assert fdbq.output("items", name).split("\n")[2] == f'{first}     5  {{"to":"ada"}}'
    assert fdbq.output("pop", name) == '"urgent"\n'
    assert fdbq.output("pop", name, "-n", "2") == '[1,2]\n{"to":"ada"}\n'
    assert fdbq.output("pop", name) == "null\n"


def test_a_pop_of_an_empty_queue_exits_with_code_1_and_prints_nothing(
    fdbq: Shell, name: str
) -> None:
    fdbq.output("push", name, "1")
    fdbq.output("pop", name)
    for command in ("pop", "peek"):
        done = fdbq(command, name)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_an_unknown_queue_is_named_with_the_most_similar_one(filled: Shell, name: str) -> None:
    for command in ("pop", "peek"):
        done = filled(command, f"{name}x")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            f"fdbq {command}: there is no queue named '{name}x'; did you mean '{name}'?\n"
        )
    for arguments in (("drop", "-y"), ("limit", "--size", "3"), ("pause",), ("items",)):
        error = error_of(filled(arguments[0], f"{name}x", *arguments[1:]))
        assert f"did you mean '{name}'?" in error
    filled.output("limit", f"{name}x", "--size", "3", "--create")
    assert sizes(filled, name) == {name: 2, f"{name}x": 0}


def test_a_pop_waits_for_a_push(fdbq: Shell, name: str) -> None:
    done = fdbq.script(
        "(fdbq pop $q --create --wait 2> waits; fdbq pop $q --wait 1m) & "
        "until grep -q waiting waits 2> /dev/null; do sleep 0.05; done; "
        "fdbq push $q 1 > /dev/null; fdbq push $q 2 > /dev/null; wait; cat waits >&2; "
        "fdbq pop $q --wait 100ms"
    )
    assert (done.returncode, done.stdout) == (1, "1\n2\n")
    assert done.stderr.endswith("(waiting until there is one)\n")
    assert "'soon' is not a length of time" in error_of(fdbq("pop", name, "--wait", "soon"))


def test_an_interrupt_loses_no_item(fdbq: Shell, name: str, db: Any, rng: random.Random) -> None:
    """The signal arrives while the command waits, pops or prints."""
    queue = fdbqueue.PriorityQueue.named(db, name)
    for number in range(6):
        process = subprocess.Popen(
            [sys.executable, "-m", "fdbq", "pop", name, "--wait"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=fdbq.environment,
            text=True,
        )
        wait_until(partial(has_handlers, process))
        time.sleep(0.3)  # so that it waits, most likely: nothing shows that it does
        queue.push(db, number)
        time.sleep(rng.random() * 0.02)
        process.send_signal(rng.choice([signal.SIGINT, signal.SIGTERM]))
        printed = process.communicate()[0]
        left = queue.pop(db)
        assert (printed == f"{number}\n") is (left is None), f"round {number}"


def test_a_wait_can_be_interrupted(fdbq: Shell) -> None:
    fdbq.output("push", fdbq.environment["q"], "1")
    fdbq.output("pop", fdbq.environment["q"])
    process = fdbq.start("pop", fdbq.environment["q"], "--wait")
    wait_until(lambda: has_handlers(process))
    time.sleep(0.3)  # so that it waits, most likely: nothing shows that it does
    process.send_signal(signal.SIGINT)
    assert process.communicate()[1] == "fdbq: interrupted; committed changes are kept\n"
    assert process.returncode == 130


def test_the_loop_of_the_documentation(filled: Shell) -> None:
    done = filled.script('while item=$(fdbq pop $q); do echo "got $item"; done')
    assert done.stdout == 'got {"n":2,"p":3}\ngot {"n":1,"p":5}\n'
    assert done.stderr == ""


def test_json_lines_for_programs(filled: Shell, name: str) -> None:
    pushed = json.loads(filled.output("push", name, "7", "--json"))
    assert pushed == {"id": pushed["id"], "priority": 0, "value": 7}
    rows = [json.loads(line) for line in filled.output("items", name, "--json").splitlines()]
    assert [row["priority"] for row in rows] == [0, 3, 5]
    assert sizes(filled, name) == {name: 3}
    counts = [json.loads(line) for line in filled.output("counts", name, "--json").splitlines()]
    assert counts == [{"priority": p, "count": 1} for p in (0, 3, 5)]
    assert json.loads(filled.output("check", name, "--json"))["problems"] == []
    assert json.loads(filled.output("info", "--json"))["layout"] == LAYOUT_VERSION
    assert json.loads(filled.output("peek", name, "--json")) == rows[0]
    assert json.loads(filled.output("pop", name, "--json")) == rows[0]
    removed = filled.output("rm", name, rows[1]["id"], "--json")
    assert json.loads(removed) == {"id": rows[1]["id"], "removed": True}
    cleared = json.loads(filled.output("clear", name, "-y", "--json"))
    assert (cleared["cleared"], cleared["ready"], cleared["dead"]) == (True, 1, 0)


def test_tables_for_people(filled: Shell, name: str, shared_url: str) -> None:
    table = [line.split() for line in filled.output("ls").splitlines()]
    assert table[0] == ["queue", "ready", "delayed", "claimed", "dead", "done", "oldest"]
    assert [name, "2", "0", "0", "0", "0"] in [row[:-1] for row in table]
    assert [line.split() for line in filled.output("counts", name).splitlines()] == [
        ["priority", "items"],
        ["3", "1"],
        ["5", "1"],
    ]
    assert f"{name}: 2 ready, ok\n" in filled.output("check")
    assert shared_url.removeprefix("embedded:") in filled.output("info")


def test_a_name_that_the_terminal_cannot_show_is_an_error(fdbq: Shell, name: str) -> None:
    fdbq.output("push", f"{name}ü", "1")
    fdbq.environment |= {"PYTHONIOENCODING": "ascii"}
    assert "cannot be printed in the encoding ascii" in error_of(fdbq("ls"))


def test_ls_prints_many_queues_page_by_page(db: Any, fdbq: Shell, name: str) -> None:
    expected = make_queues(db, name, 2_100, busy={5, 2_000})
    assert sizes(fdbq, name) == expected
    lines = fdbq.output("ls").splitlines()
    assert [line.split()[:2] for line in lines if line.startswith(name)] == [
        [queue, str(size)] for queue, size in expected.items()
    ]
    assert lines.count(lines[0]) == 1
    assert len({len(line) for line in lines if line.startswith(name)}) == 1


def test_a_table_is_printed_as_soon_as_a_page_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []

    def pages() -> Iterator[list[tuple[str, str]]]:
        for page in ([], [("a", "1"), ("寿司", "10,000")], [("x" * 70, "2")], [("abcdef", "3")]):
            printed.append(capsys.readouterr().out)
            yield page
        printed.append(capsys.readouterr().out)

    with click.Context(cli):
        show_table(("queue", "items"), pages(), list, list)
    assert printed == [
        "",
        "",
        "queue   items\na           1\n寿司   10,000\n",
        f"{'x' * 70}       2\n",
        f"abcdef{' ' * 54}       3\n",
    ]


def test_top_shows_the_busy_queues_first_if_there_is_no_room_for_all() -> None:
    def row(number: int, **values: Any) -> dict[str, Any]:
        idle: dict[str, Any] = {
            **dict.fromkeys(("ready", "delayed", "claimed", "dead", "done"), 0),
            **{
                "in": 0.0,
                "out": None,
                "age": None,
                "paused": False,
                "unknown_jobs": 0,
            },
        }
        return {"queue": f"q{number}", **idle, **values}

    rows = [row(0), row(1, dead=3), row(2), row(3, out=0.5), row(4, **{"in": 0.1})]

    def shown(room: int) -> list[str]:
        return re.findall(r"q\d|\d+ more", "\n".join(screen(rows, 80, room + 3)))

    assert shown(5) == ["q0", "q1", "q2", "q3", "q4"]
    assert shown(4) == ["q1", "q3", "q4", "q0", "1 more"]
    assert shown(2) == ["q1", "q3", "3 more"]


def test_rm_reports_items_that_it_did_not_remove(filled: Shell, name: str, db: Any) -> None:
    item_id = json.loads(filled.output("peek", name, "--json"))["id"]
    assert filled.output("rm", name, item_id) == "1 removed\n"
    done = filled("rm", name, item_id)
    assert (done.returncode, done.stdout) == (1, "0 removed\n")
    assert "the queue has no such item" in done.stderr
    queue = fdbqueue.PriorityQueue.existing(db, name)
    claim = queue.claim(db)
    done = filled("rm", name, claim.item.id)
    assert (done.returncode, done.stdout) == (1, "0 removed\n")
    assert f"it is claimed; `fdbq cancel {name} {claim.item.id}` ends it" in done.stderr
    queue.release(db, claim)
    other = json.loads(filled.output("peek", name, "--json"))["id"]
    assert "is not the id of an item" in error_of(filled("rm", name, other, "nonsense"))
    assert json.loads(filled.output("peek", name, "--json"))["id"] == other


def test_done_items_are_kept_by_number_and_time(fdbq: Shell, name: str) -> None:
    limits = json.loads(fdbq.output("limit", name, "--keep-for", "7d", "--create", "--json"))
    assert (limits["keep_seconds"], limits["keep_number"]) == (604_800, None)
    limits = json.loads(fdbq.output("limit", name, "--keep-last", "10", "--json"))
    assert (limits["keep_seconds"], limits["keep_number"]) == (604_800, 10)
    assert "7d" in fdbq.output("limit", name)
    assert "at most 10,000,000,000" in error_of(fdbq("limit", name, "--keep-for", "99999999999d"))
    assert "shorter than a second" in error_of(fdbq("limit", name, "--keep-for", "10ms"))
    for _ in range(2):
        limits = json.loads(fdbq.output("limit", name, "--keep-for", "none", "--json"))
    assert (limits["keep_seconds"], limits["keep_number"]) == (None, 10)
    limits = json.loads(fdbq.output("limit", name, "--keep-last", "none", "--json"))
    assert (limits["keep_seconds"], limits["keep_number"]) == (None, 0)


def test_a_queue_has_a_rate(fdbq: Shell, name: str) -> None:
    limits = json.loads(fdbq.output("limit", name, "--rate", "100/1m", "--create", "--json"))
    assert limits["rate"] == [100, 60]
    assert fdbq.output("limit", name).split()[-4:-2] == ["rate", "100/1m"]
    assert "'5' is not a number and a time" in error_of(fdbq("limit", name, "--rate", "5"))
    assert "from 1 to 10,000" in error_of(fdbq("limit", name, "--rate", "0/1m"))
    shown = dict(line.split(maxsplit=1) for line in fdbq.output("stats", name).splitlines())
    assert shown["rate"] == "100/1m"
    assert json.loads(fdbq.output("stats", name, "--json"))["rate"] == [100, 60.0]
    fdbq.output("limit", name, "--rate", "1/1h")
    _, second = (fdbq.output("push", name, "1").strip() for _ in range(2))
    fdbq.output("pop", name)
    assert fdbq("pop", name).returncode == 1
    assert "its rate allows" in fdbq.output("show", name, second)
    assert json.loads(fdbq.output("limit", name, "--rate", "none", "--json"))["rate"] is None


def test_the_history_of_attempts_is_bounded_as_wanted(fdbq: Shell, name: str) -> None:
    first = json.loads(fdbq.output("limit", name, "--keep-attempts", "3", "--create", "--json"))
    assert (first["kept_attempts"], first["traceback_bytes"]) == (3, 8_000)
    second = json.loads(fdbq.output("limit", name, "--keep-traceback", "0", "--json"))
    assert (second["kept_attempts"], second["traceback_bytes"]) == (3, 0)
    assert "from 1 to 1,000" in error_of(fdbq("limit", name, "--keep-attempts", "0"))
    assert "from 0 to 30,000" in error_of(fdbq("limit", name, "--keep-traceback", "30001"))


def test_all_items_in_a_state_are_removed(fdbq: Shell, name: str) -> None:
    for value in range(4):
        fdbq.output("push", name, str(value), "-p", str(value % 2))
    fdbq.output("push", name, "4", "--delay", "600")
    assert fdbq.output("rm", name, "--state", "ready", "-p", "1") == "2 removed\n"
    assert fdbq.output("rm", name, "--state", "delayed") == "1 removed\n"
    assert fdbq.output("rm", name, "--state", "dead") == "0 removed\n"
    assert [fdbq.output("pop", name) for _ in range(2)] == ["0\n", "2\n"]
    assert "give either the ids of items, or --state" in error_of(fdbq("rm", name))
    assert "--priority needs --state" in error_of(fdbq("rm", name, "x", "-p", "1"))
    assert "'--state'" in error_of(fdbq("rm", name, "--state", "claimed"))


def test_an_item_is_moved_to_another_priority(fdbq: Shell, name: str) -> None:
    item_id = fdbq.output("push", name, "1", "-p", "5").strip()
    assert fdbq.output("reprioritize", name, item_id, "2") == "1 moved\n"
    moved = json.loads(fdbq.output("reprioritize", "--json", "--", name, item_id, "-3"))
    assert moved == {"id": item_id, "moved": True}
    assert json.loads(fdbq.output("show", name, item_id, "--json"))["priority"] == -3
    assert "must be a 64-bit integer" in error_of(fdbq("reprioritize", name, item_id, "[1]"))
    assert "is not the id of an item" in error_of(fdbq("reprioritize", name, item_id, "x", "1"))
    fdbq.output("pop", name)
    done = fdbq("reprioritize", name, item_id, "1")
    assert (done.returncode, done.stdout) == (1, "0 moved\n")
    assert "the queue has no such item" in done.stderr


def test_all_items_in_a_state_are_moved_to_another_priority(fdbq: Shell, name: str) -> None:
    for priority in ("5", "1", "3"):
        fdbq.output("push", name, priority, "-p", priority)
    fdbq.output("push", name, "9", "-p", "9", "--delay", "600")
    done = fdbq("reprioritize", name, "--state", "ready", "3")
    assert (done.returncode, done.stdout) == (1, "2 moved\n")
    assert "it has this priority already" in done.stderr
    assert fdbq.output("reprioritize", name, "--state", "ready", "-p", "3", "2") == "3 moved\n"
    assert fdbq.output("reprioritize", name, "--state", "delayed", "-p", "9", "2") == "1 moved\n"
    assert fdbq.output("pop", name, "-n", "9") == "3\n1\n5\n"
    assert "give either the ids of items, or" in error_of(fdbq("reprioritize", name, "1"))
    fdbq.output("task", "push", f"{name}tasks", "1", "-p", "low")
    assert fdbq.output("reprioritize", f"{name}tasks", "--state", "ready", "high") == "1 moved\n"
    for wrong in ("7", "urgent"):
        error = error_of(fdbq("reprioritize", f"{name}tasks", "--state", "ready", wrong))
        assert "CRITICAL" in error


def test_a_worker_is_listed_while_it_runs(fdbq: Shell, name: str) -> None:
    fdbq.output("push", name, "1")
    fdbq.script(
        "fdbq work $q --name mailer --drain --exec '"
        "until fdbq workers --json | tee json | grep -q mailer; do sleep 0.1; done; "
        "fdbq workers > table'"
    )
    listed = map(json.loads, (fdbq.path / "json").read_text().splitlines())
    (worker,) = [each for each in listed if name in each["queues"]]
    facts = "name", "queues", "concurrency"
    assert [worker[each] for each in facts] == ["mailer", {name: 1}, 1]
    lines = (fdbq.path / "table").read_text().splitlines()
    assert lines[0].split() == ["queues", "jobs", "concurrency", "runs", "for", "name"]
    (line,) = [line for line in lines if line.startswith(name)]
    assert line.endswith("  mailer")
    assert name not in fdbq.output("workers")


def test_clear_asks_for_confirmation(filled: Shell, name: str) -> None:
    for answer in ("n\n", ""):
        errors = filled("clear", name, stdin=answer).stderr
        assert errors.endswith("\nfdbq: aborted; nothing was changed\n")
    assert sizes(filled, name)[name] == 2
    assert filled("clear", name, stdin="y\n").stdout == f"cleared {name}: 2 ready\n"
    assert sizes(filled, name)[name] == 0
    assert f"no queue named '{name}jbos'" in error_of(filled("clear", f"{name}jbos", "--yes"))


def test_import_and_export_round_trip(filled: Shell, name: str) -> None:
    exported = filled.output("export", name)
    filled.output("export", name, "out.jsonl")
    assert (filled.path / "out.jsonl").read_text() == exported
    nowhere = filled("export", name, "no/such/out.jsonl")
    assert error_of(nowhere).endswith("/no/such\n")
    assert (
        filled.output(
            "import",
            f"{name}copy",
            "out.jsonl",
            "--priority-field",
            "priority",
            "--value-field",
            "value",
        )
        == "stored 2 lines\n"
    )
    strip = lambda text: [{**json.loads(line), "id": ""} for line in text.splitlines()]  # noqa: E731
    assert strip(filled.output("export", f"{name}copy")) == strip(exported)
    first = json.loads(exported.splitlines()[0])["id"]
    assert filled.output("export", name, "--after", first) == exported.splitlines()[1] + "\n"


def test_groups_are_exported_and_imported(fdbq: Shell, name: str) -> None:
    fdbq.output("push", name, "1")
    fdbq.output("push", name, "2", "-p", "7", "--group", "customer 7")
    exported = fdbq.output("export", name)
    plain, grouped = map(json.loads, exported.splitlines())
    assert (plain["value"], "group" in plain) == (1, False)
    assert (grouped["value"], grouped["group"]) == (2, "customer 7")
    fields = ("--priority-field", "priority", "--value-field", "value", "--group-field", "group")
    copy = f"{name}copy"
    fdbq.output("import", copy, *fields, stdin=exported)
    again = map(json.loads, fdbq.output("export", copy).splitlines())
    assert [{**line, "id": ""} for line in again] == [{**plain, "id": ""}, {**grouped, "id": ""}]
    fdbq.output("group", "set", copy, "ada", "--size", "1")
    full = fdbq("import", copy, "--group", "ada", stdin="3\n4\n")
    assert full.returncode == 1
    told = "stored 1 line; the queue, or a group of it, is full and lines remain\n"
    assert full.stdout == told
    assert "ada  1 ready" in fdbq.output("group", "ls", copy)
    refused = error_of(fdbq("import", copy, "--group", "", stdin="5\n"))
    assert "a group is text of 1 to 255 bytes" in refused


def in_all_states(db: Any, name: str) -> fdbqueue.PriorityQueue:
    queue = fdbqueue.PriorityQueue.named(db, name, max_attempts=1)
    queue.push(db, "dead")
    claim = queue.claim(db)
    queue.nack(db, claim, error="broken")
    queue.push(db, "claimed")
    queue.claim(db, lease=10_000)
    queue.push(db, "delayed", delay=10_000)
    queue.push_many(db, ["a", "b"], priorities=[1, 2])
    return queue


STATES_OF_ALL = "2 ready, 1 delayed, 1 claimed, 1 dead"


def test_backup_and_restore_round_trip(fdbq: Shell, db: Any, name: str) -> None:
    in_all_states(db, name)
    before = fdbq.output("stats", name, "--json")
    assert fdbq.output("backup", "q.jsonl", name) == f"backed up {name}: {STATES_OF_ALL}\n"
    piped = fdbq.script("fdbq backup - $q | tee copy.jsonl | fdbq restore - $q --as ${q}piped")
    assert piped.stdout == f"restored {name}piped: {STATES_OF_ALL}\n"
    assert piped.stderr == f"backed up {name}: {STATES_OF_ALL}\n"
    assert (fdbq.path / "copy.jsonl").read_bytes() == (fdbq.path / "q.jsonl").read_bytes()
    assert "already exists" in error_of(fdbq("restore", "q.jsonl"))
    fdbq.output("drop", name, "--yes")
    restored = json.loads(fdbq.output("restore", "q.jsonl", "--json"))
    assert (restored["queue"], restored["dead"], len(restored["digest"])) == (name, 1, 64)
    assert fdbq.output("stats", name, "--json") == before
    fdbq.output("pop", f"{name}piped")
    assert "already exists" in error_of(fdbq("restore", "q.jsonl", name, "--as", f"{name}piped"))
    assert f"did you mean '{name}'" in error_of(fdbq("restore", "q.jsonl", f"{name}x"))
    assert "--as" in error_of(fdbq("restore", "q.jsonl", "--as", "x"))
    (fdbq.path / "q.jsonl").write_text("no backup\n")
    assert "line 1:" in error_of(fdbq("restore", "q.jsonl"))
    assert f"no queue named '{name}nope'" in error_of(fdbq("backup", "n.jsonl", f"{name}nope"))
    assert not (fdbq.path / "n.jsonl").exists()


def test_own_keys_are_backed_up_and_restored(fdbq: Shell, db: Any, name: str) -> None:
    own = {f"{name}/sold/{number}".encode(): b"\xff" for number in range(3)}
    own[name.encode() + b"/\x01\\"] = b""
    for key, value in own.items():
        db[key] = value
    fdbq.output("push", name, "1")
    prefixes = ("--prefix", f"{name}/sold/", "--prefix", f"{name}/\\x01\\\\")
    saved = fdbq.output("backup", "keys", name, *prefixes)
    written = f"{name}/\\x01\\\\: 1 key", f"{name}/sold/: 3 keys"
    assert saved.splitlines() == [f"backed up {line}" for line in (f"{name}: 1 ready", *written)]
    db.clear_range_startswith(name.encode())
    fdbq.output("drop", name, "--yes")
    restored = fdbq.output("restore", "keys")
    assert restored == saved.replace("backed up", "restored")
    assert {row.key: row.value for row in db.get_range_startswith(name.encode())} == own
    db[f"{name}/sold/1".encode()] = b"other"
    refused = error_of(fdbq("restore", "keys", "--prefix", f"{name}/sold/"))
    assert f"b'{name}/sold/1'" in refused
    assert "another value" in refused
    assert fdbq.output("restore", "keys", "--prefix", f"{name}/sold/2", "--json") == (
        f'{{"prefix":"{name}/sold/2","keys":0}}\n'
    )
    assert "\\xNN" in error_of(fdbq("backup", "other", "--prefix", "a\\b"))
    assert "belong to queues" in error_of(fdbq("backup", "other", "--prefix", "\\x02fdbqueue\\x00"))
    assert "omit QUEUE" in error_of(fdbq("backup", "other", name, "--all"))


def test_a_whole_database_is_backed_up_and_restored(tmp_path: Path, name: str) -> None:
    here, there = (Shell(tmp_path, f"embedded:{tmp_path / side}", name) for side in "ab")
    with fdbqueue.open(f"embedded:{tmp_path / 'a'}") as db:
        db[b""] = db[b"\xfe"] = b"value"
    here.output("push", name, "1")
    assert here.output("backup", "--all", "all") == (
        f"backed up {name}: 1 ready\nbacked up keys outside queues: 2 keys\n"
    )
    assert there.output("restore", "all") == (
        f"restored {name}: 1 ready\nrestored keys outside queues: 2 keys\n"
    )
    assert there.output("pop", name) == "1\n"
    with fdbqueue.open(f"embedded:{tmp_path / 'b'}") as db:
        assert (db[b""], db[b"\xfe"]) == (b"value", b"value")


def test_copy_to_another_database_and_back(fdbq: Shell, db: Any, name: str, url: str) -> None:
    in_all_states(db, name)
    before = fdbq.output("items", name, "--state", "claimed", "--json")
    there = ("--from", url, "--to", "other")
    assert fdbq.output("copy", name, *there) == f"copied {name}: {STATES_OF_ALL}\n"
    back = json.loads(
        fdbq.output("copy", name, "--db", "other", "--to", url, "--as", f"{name}2", "--json")
    )
    assert (back["queue"], back["ready"]) == (f"{name}2", 2)
    assert fdbq.output("items", f"{name}2", "--state", "claimed", "--json") == before
    fdbq.output("pop", name)
    assert "already exists" in error_of(fdbq("copy", name, *there))
    assert "'--to'" in error_of(fdbq("copy", name))
    onto_itself = error_of(fdbq("copy", name, "--from", url, "--to", url))
    assert f"a queue named '{name}' already exists" in onto_itself
    assert "no queue named" in error_of(fdbq("copy", f"{name}nope", *there))
    fdbq.output("push", f"{name}3", "1")
    two = ("copy", f"{name}2", f"{name}3", "--from", url, "--to", "third")
    assert fdbq.output(*two).count("copied") == 2
    assert "--as gives a name to one QUEUE" in error_of(fdbq(*two, "--as", "one"))


def test_an_import_is_stored_once_for_each_source(fdbq: Shell, name: str) -> None:
    (fdbq.path / "f.jsonl").write_text("1\n2\n")
    assert fdbq.output("import", name, "f.jsonl") == "stored 2 lines\n"
    second = fdbq.output("import", name, "f.jsonl")
    hint = "(another --source stores them again)"
    assert second == f"stored 0 lines, skipped 2 that were stored before {hint}\n"
    assert fdbq.output("import", name, "f.jsonl", "--source", "again") == "stored 2 lines\n"
    for _ in range(2):
        assert fdbq.output("import", name, "-", stdin="1\n2\n") == "stored 2 lines\n"
    named = ("import", name, "--source", "nightly")
    assert fdbq.output(*named, stdin="3\n") == "stored 1 line\n"
    assert (
        fdbq.output(*named, stdin="3\n4\n") == "stored 1 line, skipped 1 that were stored before\n"
    )
    assert sizes(fdbq, name)[name] == 10
    assert "line 2:" in error_of(fdbq("import", name, stdin="4\nfour\n"))
    (fdbq.path / "f.jsonl").write_text("1\n7\n")
    changed = fdbq.output("import", name, "f.jsonl")
    assert changed == "stored 1 line, skipped 1 that were stored before\n"


def test_three_processes_pop_everything_once_and_each_in_order(fdbq: Shell, name: str) -> None:
    """The guide to imports does this with Debian's packages."""
    lines = [json.dumps({"n": n, "level": n * 7 % 4}) + "\n" for n in range(1200)]
    (fdbq.path / "all.jsonl").write_text("".join(lines))
    fdbq.output("import", name, "all.jsonl", "--priority-field", "level")
    done = fdbq.script(
        "for n in 1 2 3; do (while fdbq pop $q -n 100; do :; done > popped.$n) & done; wait"
    )
    assert done.stderr == ""
    popped = []
    for number in (1, 2, 3):
        text = (fdbq.path / f"popped.{number}").read_text()
        rows = [json.loads(line) for line in text.splitlines()]
        assert rows == sorted(rows, key=lambda row: (row["level"], row["n"]))
        popped += rows
    assert sorted(row["n"] for row in popped) == list(range(1200))


def test_check_repairs(filled: Shell, name: str) -> None:
    program = (
        "import os, fdbqueue; from fdbqueue.layout.keys import Layout; db = fdbqueue.open();"
        "q = fdbqueue.PriorityQueue.named(db, os.environ['q']);"
        "db[Layout(q.subspace).total_in] = bytes([9]) + bytes(7)"
    )
    subprocess.run([sys.executable, "-c", program], env=filled.environment, check=True)
    done = filled("check", name)
    assert done.returncode == 1
    assert "the total is 9, not 2" in done.stdout
    assert "repaired" in filled.output("check", name, "--repair")
    assert filled.output("check", name) == f"{name}: 2 ready, ok\n"


def test_a_queue_of_tuples_as_priorities(fdbq: Shell, name: str, db: Any) -> None:
    queue = fdbqueue.PriorityQueue.named(db, name, priorities=(int, float))
    queue.push(db, "last", (1, math.inf))
    fdbq.output("push", name, '"first"', "-p", "[1, -3]")
    assert [row.split() for row in fdbq.output("counts", name).splitlines()[1:]] == [
        ["[1,-3.0]", "1"],
        ['[1,"Infinity"]', "1"],
    ]
    assert '[1,"Infinity"]' in fdbq.output("items", name, "-p", '[1, "Infinity"]')
    fields = ("--priority-field", "priority", "--value-field", "value")
    fdbq.output("import", name, *fields, stdin=fdbq.output("export", name))
    values = [fdbq.output("pop", name, "--json") for _ in range(4)]
    assert [json.loads(value)["value"] for value in values] == ["first"] * 2 + ["last"] * 2
    assert "must be a tuple (int, float)" in error_of(fdbq("push", name, "1", "-p", "1"))


class Capitals:
    """A codec that `fdbq` does not know."""

    def encode(self, value: str, /) -> bytes:
        return value.upper().encode()

    def decode(self, payload: bytes, /) -> str:
        return payload.decode()


@pytest.mark.parametrize("codec", ["bytes", "tuple", Capitals()])
def test_a_queue_whose_values_are_not_json_is_counted_and_not_read(
    fdbq: Shell, name: str, db: Any, codec: Any
) -> None:
    value: Any = {"bytes": b"x", "tuple": (1,)}.get(codec, "x") if isinstance(codec, str) else "x"
    fdbqueue.PriorityQueue.named(db, name, codec=codec).push(db, value)
    (fdbq.path / "lines").write_text("1\n")
    for command in ("push", "pop", "peek", "items", "export", "import"):
        more = {"push": ["1"], "import": ["lines"]}.get(command, [])
        assert "but fdbq needs JSON values" in error_of(fdbq(command, name, *more))
    assert sizes(fdbq, name) == {name: 1}
    assert fdbq.output("check", name) == f"{name}: 1 ready, ok\n"
    assert fdbq.output("counts", name).split() == ["priority", "items", "0", "1"]
    assert fdbq.output("limit", name, "--size", "5").split()[:2] == ["size", "5"]
    fdbq.output("clear", name, "-y")
    fdbq.output("drop", name, "-y")
    assert sizes(fdbq, name) == {}


def test_a_paused_queue_hands_out_nothing(fdbq: Shell, name: str) -> None:
    fdbq.output("push", name, "1")
    assert fdbq.output("pause", name) == f"paused {name}\n"
    assert fdbq("pop", name).returncode == 1
    assert fdbq.output("work", name, "--exec", "false", "--drain", "-q") == "0 done, 0 failed\n"
    assert json.loads(fdbq.output("limit", name, "--concurrency", "3", "--json")) == {
        "queue": name,
        "max_size": None,
        "max_attempts": None,
        "concurrency": 3,
        "keep_number": None,
        "keep_seconds": None,
        "kept_attempts": 10,
        "traceback_bytes": 8_000,
        "rate": None,
        "paused": True,
    }
    assert fdbq.output("limit", name, "--concurrency", "none").split()[-2:] == ["paused", "yes"]
    assert fdbq.output("resume", name) == f"resumed {name}\n"
    assert fdbq.output("pop", name) == "1\n"


def test_a_push_may_be_unique_and_expire(fdbq: Shell, name: str, db: Any) -> None:
    first = fdbq.output("push", name, "1", "--unique", "k")
    again = fdbq("push", name, "2", "--unique", "k")
    assert (again.returncode, again.stdout) == (0, first)
    assert again.stderr == f"fdbq push: nothing was stored; item {first.strip()} has this key\n"
    stored = json.loads(fdbq("push", name, "2", "--unique", "k", "--json").stdout)
    assert (stored["stored"], stored["id"]) == (False, first.strip())
    assert json.loads(fdbq.output("push", name, "3", "--unique", "l", "--json"))["stored"] is True
    fdbq.output("push", name, "4", "--ttl", "0.001")
    wait_until(lambda: fdbqueue.existing_queue(db, name).size(db) == 2)
    assert fdbq.output("pop", name, "-n", "9") == "1\n3\n"
    assert "--ttl is a number of seconds over 0" in error_of(fdbq("push", name, "1", "--ttl", "0"))
    assert "unique is text of 1 to 255" in error_of(fdbq("push", name, "1", "--unique", ""))


def test_a_push_may_be_unique_until_a_claim_or_for_a_time(fdbq: Shell, name: str, db: Any) -> None:
    claimed = ("--unique", "k", "--unique-until", "claimed")
    first = fdbq.output("push", name, "1", *claimed)
    assert fdbq("push", name, "2", *claimed).stdout == first
    fdbq.output("pop", name)
    assert fdbq("push", name, "2", *claimed).stdout != first
    period = ("--unique", "p", "--unique-for", "1h")
    tasks = [fdbq.output("task", "push", f"{name}t", "1", *period)]
    fdbq.output("task", "pop", f"{name}t")
    tasks.append(fdbq.output("task", "push", f"{name}t", "1", *period))
    assert tasks[0] == tasks[1]
    assert "needs a key" in error_of(fdbq("push", name, "1", "--unique-for", "1h"))
    assert "not both" in error_of(fdbq("push", name, "1", *claimed, "--unique-for", "1h"))
    assert fdbq.output("show", name, fdbq.output("push", name, "1", *period).strip()).count("p\n")


def test_tasks_from_the_shell(fdbq: Shell, name: str) -> None:
    late, soon = "2030-01-02T00:00+00:00", "2030-01-01T00:00+00:00"
    push = ("task", "push", name)
    second = fdbq.output(*push, '{"n": 2}', "--deadline", late, "--agent", "ada").strip()
    fdbq.output(*push, '{"n": 1}', "--deadline", soon, "--cost", "3", "--client", "7")
    third = fdbq.output(*push, "-", "-p", "low", "--group", "acme", stdin='{"n": 3}').strip()
    tasks = [json.loads(line) for line in fdbq.output("task", "ls", name).splitlines()]
    assert [task["payload"]["n"] for task in tasks] == [1, 2, 3]
    assert (tasks[0]["deadline"], tasks[0]["cost"]) == ("2030-01-01T00:00:00+00:00", 3.0)
    assert fdbq.output("task", "ls", name, "--agent", "ada").count("\n") == 1
    assert fdbq.output("items", name, "--group", "acme").count("\n") == 1
    assert fdbq.output("task", "ls", name, "--client", "7").count("\n") == 1
    assert fdbq.output("task", "ls", name, "--limit", "1").count("\n") == 1
    shown = json.loads(fdbq.output("show", name, third, "--json"))
    assert (shown["priority"], shown["state"], shown["value"]) == (4, "ready", {"n": 3})
    assert json.loads(fdbq.output("task", "pop", name, "--json"))["client_id"] == "7"
    assert fdbq.output("task", "pop", name) == '{"n":2}\n'
    assert fdbq("show", name, second).returncode == 1
    assert fdbq.output("rm", name, third) == "1 removed\n"
    assert fdbq("task", "pop", name).returncode == 1
    stats = json.loads(fdbq.output("task", "stats", name, "--json"))
    assert (stats["total_pushed"], stats["total_popped"], stats["total_removed"]) == (3, 2, 1)
    assert fdbq.output("check", name) == f"{name}: no items, ok\n"
    assert "use `fdbq task`" in error_of(fdbq("pop", name))
    assert "cost" in error_of(fdbq(*push, "1", "--cost", "-1"))
    assert "deadline" in error_of(fdbq(*push, "1", "--deadline", "tomorrow")).lower()
    fdbq.output("push", f"{name}other", "1")
    assert "is not a task queue" in error_of(fdbq("task", "pop", f"{name}other"))


def test_a_task_that_cannot_be_printed_stays(fdbq: Shell, name: str) -> None:
    fdbq.output("task", "push", name, "1")
    done = fdbq.script("fdbq task pop $q > /dev/full")
    assert done.returncode == 2
    assert "1 item was not printed but put back" in done.stderr
    assert fdbq.output("task", "pop", name) == "1\n"


def test_a_full_queue_imports_what_fits(fdbq: Shell, name: str) -> None:
    fdbq.output("limit", name, "--size", "3", "--create")
    (fdbq.path / "f.jsonl").write_text("1\n2\n3\n4\n5\n")
    done = fdbq("import", name, "f.jsonl")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == "stored 3 lines; the queue is full and lines remain\n"
    fdbq.output("pop", name, "-n", "3")
    assert (
        fdbq.output("import", name, "f.jsonl")
        == "stored 2 lines, skipped 3 that were stored before\n"
    )


def test_a_change_is_reported_as_done_if_its_output_cannot_be_printed(
    fdbq: Shell, name: str
) -> None:
    done = fdbq.script("fdbq push $q 1 > /dev/full")
    assert done.returncode == 2
    assert done.stderr.startswith("fdbq: done, but cannot write to standard output: No space")
    assert done.stderr.count("\n") == 1
    (item_id,) = (json.loads(line)["id"] for line in fdbq.output("items", name, "--json").split())
    assert item_id in done.stderr


def test_only_commands_that_store_something_create_a_database(fdbq: Shell, name: str) -> None:
    looking = ("ls", "counts", "items", "check", "info", "export", "peek", "pop", "limit")
    for command in (*looking, "rm", "clear", "drop"):
        arguments = {"ls": [], "info": [], "rm": ["q", "x"]}.get(command, ["q"])
        done = fdbq(command, *arguments, "--db", "nowhere")
        assert "there is no database here" in error_of(done)
    fdbq.environment |= {"FDBQ_DB": "", "XDG_DATA_HOME": str(fdbq.path / "data")}
    assert "name yours by --db or $FDBQ_DB" in error_of(fdbq("ls"))
    (fdbq.path / "here").mkdir()
    (fdbq.path / "here" / "letter.txt").write_text("mine")
    done = fdbq("push", name, "1", "--db", "here")
    assert "this directory holds other files" in error_of(done)
    assert [*(fdbq.path / "here").iterdir()] == [fdbq.path / "here" / "letter.txt"]
    assert not (fdbq.path / "nowhere").exists()
    assert fdbq("pop", name, "--db", "nowhere", "--create").returncode == 1


ERRORS = [
    (("push", "jobs", "1", "-p", "[" * 100_000), "is not an integer"),
    (
        ("limit", "jobs", "--create", "--size", str(10**30)),
        "--size is a number from 1, or None, not 1000000",
    ),
    (("limit", "jobs", "--create", "--size", "0"), "--size is a number from 1, or None, not 0"),
    (
        ("limit", "jobs", "--create", "--concurrency", "20000"),
        "--concurrency is a number from 1 to 10,000, or None, not 20000",
    ),
    (("top", "-n", "2", "--interval", "nan"), "is not a length of time"),
    (("top", "-n", "2", "--interval", "inf"), "at most 1,000,000 seconds, not inf"),
    (("pop", "jobs", "--wait", "-1"), "to an option as --option=VALUE"),
    (("serve", "--token-file", sys.executable), "is not UTF-8 text"),
    (("serve", "--host", "no.such.host.invalid", "--token-file", "/etc/hostname"), "cannot listen"),
    (("push", "jobs", "-5"), "as `-- VALUE`"),
    (("push", "jobs", "1", "-p", "null"), "priority None (NoneType) must be a 64-bit integer"),
    (("push", "jobs", "hello"), "is not JSON"),
    (("push", "jobs", "{"), "is not JSON"),
    (("push", "jobs"), "give the value"),
    (("push", "jobs", "1", "--priority", "high"), "'high' is not an integer or a list"),
    (("push", "jobs", "1", "--priority", "1.5"), "priority 1.5 (float) must be a 64-bit integer"),
    (("push", "jobs", "1", "--priority", str(2**63)), "must be a 64-bit integer"),
    (("push", "", "1"), "cannot be the name of a queue"),
    (("push", "jobs", "NaN"), "cannot be stored"),
    (("push", "jobs", "--file", "missing.json"), "missing.json"),
    (("pop",), "Missing argument 'QUEUE'"),
    (("pop", "jobs", "-n", "0"), "0 is not in the range"),
    (("rm", "nope", "x"), "no queue named 'nope'"),
    (("counts", "nope"), "no queue named 'nope'"),
    (("check", "nope"), "no queue named 'nope'"),
    (("export", "nope"), "no queue named 'nope'"),
    (("items", "nope"), "no queue named 'nope'"),
    (("ls", "--db", ""), "an empty text does not name a database"),
    (("ls", "--db", "/etc/hostname"), "/etc/hostname is not a cluster file"),
    (("frobnicate",), "No such command 'frobnicate'"),
    (("ls", "--db", "embedded:"), "needs a path"),
    (("ls", "--db", "postgres://host"), "does not name a database"),
    (("ls", "--db", "nowhere.cluster"), "no cluster file"),
    (("ls", "--db", "/dev/null/db"), "/dev/null"),
    (("ls", "--timeout", "-1"), "at least 0 and at most 1,000,000 seconds, not -1"),
    (("ls", "--timeout", "nan"), "'nan' is not a length of time"),
    (("pop", "--wait", "mail"), "'mail' is not a length of time"),
]


@pytest.mark.parametrize(("arguments", "words"), ERRORS, ids=[" ".join(e[0])[:40] for e in ERRORS])
def test_an_error_is_one_line_and_exit_code_2(
    fdbq: Shell, name: str, arguments: tuple[str, ...], words: str
) -> None:
    assert words in error_of(fdbq(*arguments))
    assert sizes(fdbq, name) == {}


def test_input_that_is_not_text_is_an_error(fdbq: Shell, name: str) -> None:
    assert "is not JSON" in error_of(fdbq("push", name, "-", stdin=b"\xff\xfe\x00"))


def test_the_database_is_an_option_of_every_command(fdbq: Shell, name: str) -> None:
    for url in ("embedded:other", "./other"):
        assert fdbq.output("push", name, "1", "--db", url)
    assert sizes(fdbq, name, "--db", "other")[name] == 2
    before = fdbq.output("--db", "other", "ls", "--json")
    assert before == fdbq.output("ls", "--json", "--db", "other")
    assert fdbq.output("--db", "nowhere", "ls", "--json", "--db", "other") == before
    assert sizes(fdbq, name) == {}
    for command_name, command in commands().items():
        options = {option for each in command.params for option in each.opts}
        needs_one = command_name not in ("completion", "jobs")
        assert not needs_one or {"--db", "--timeout", "--json"} <= options


def test_the_help_groups_all_commands_and_cuts_no_summary(fdbq: Shell) -> None:
    text = fdbq.output("--help")
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert text.count(f"\n  {name} ") == 1
        summary = " ".join(str(command.help).split("\n\n")[0].split()).removesuffix(".")
        assert summary in " ".join(text.split())


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("1.5", 1.5), ("500ms", 0.5), ("90s", 90), ("1h30m", 5400), ("1w2d", 777_600)],
)
def test_a_length_of_time_may_have_units(text: str, seconds: float) -> None:
    assert Duration(0).convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "m", "5x", "5m3", "1 h", "-5m", "5M", "1h-30m", "1e3s"])
def test_other_text_is_not_a_length_of_time(text: str) -> None:
    with pytest.raises(click.UsageError, match="not a length of time"):
        Duration(0).convert(text, None, None)


def test_a_handler_module_that_fails_to_import_is_reported_with_the_place(filled: Shell) -> None:
    broken = filled.path / "broken.py"
    for source, words in (
        ("import os\nos.environ['NOT_SET']", f"KeyError: 'NOT_SET' ({broken}, line 2)"),
        ("def f(:", "SyntaxError: invalid syntax (broken.py, line 1)"),
        ("import nothing_of_this_name", f"'nothing_of_this_name' ({broken}, line 1)"),
        ("def another(item): ...", "AttributeError: module 'broken' has no attribute 'f'"),
        ("f = 1", "'broken:f' is not a function"),
    ):
        broken.write_text(source)
        error = error_of(filled("work", filled.environment["q"], "broken:f"))
        assert words in error


def test_the_default_database_is_in_the_users_data_directory(tmp_path: Path) -> None:
    fdbq = Shell(tmp_path, "")
    fdbq.environment.pop("XDG_DATA_HOME", None)
    fdbq.output("push", "jobs", "1")
    assert str(fdbq.path) in fdbq.output("info")
    assert list(fdbq.path.rglob("fdbqueue.sqlite"))


def test_a_closed_pipe_causes_no_traceback(filled: Shell) -> None:
    filled.script("seq 20000 | fdbq import $q")
    done = filled.script("fdbq items $q | head -1")
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_items_that_cannot_be_printed_are_put_back(filled: Shell, name: str) -> None:
    before = filled.output("items", name)
    done = filled.script("fdbq pop $q -n 2 > /dev/full")
    assert done.returncode == 2, done
    assert "2 items were not printed but put back" in done.stderr
    assert filled.output("items", name) == before
    assert filled.output("check", name) == f"{name}: 2 ready, ok\n"


def test_thousands_of_items_that_cannot_be_printed_are_put_back(fdbq: Shell, name: str) -> None:
    fdbq.script("seq 20000 | fdbq import $q")
    done = fdbq.script("fdbq pop $q -n 20000 > /dev/full")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert sizes(fdbq, name) == {name: 20_000}
    assert fdbq.output("pop", name, "-n", "3") == "1\n2\n3\n"


@pytest.mark.parametrize(
    "command", ["push $q 1", "pop $q", "ls", "import $q /dev/null", "clear $q"]
)
def test_nothing_is_done_if_standard_output_is_closed(
    filled: Shell, name: str, command: str
) -> None:
    before = filled.output("export", name)
    done = filled.script(f"fdbq {command} >&-")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "fdbq: standard output is closed; nothing was done\n"
    assert filled.output("export", name) == before


def test_items_are_listed_by_text_within_their_error_id_or_client(
    fdbq: Shell, name: str, db: Any
) -> None:
    queue = fdbqueue.PriorityQueue.named(db, name, max_attempts=1)
    ids = [item.id for item in queue.push_many(db, range(4))]
    for number in range(3):
        claim = queue.claim(db, lease=600)
        queue.nack(db, claim, error="KeyError: 'email'" if number % 2 else "TimeoutError")
    queue.claim(db, lease=600, client="mail-1")

    def listed(*arguments: str) -> list[str]:
        return [line.split()[0] for line in fdbq.output("items", name, *arguments).splitlines()]

    assert listed("--state", "dead", "--error", "timeout") == [ids[0], ids[2]]
    assert listed("--state", "dead", "--error", "timeout", "--limit", "1") == [ids[0]]
    assert listed("--state", "dead", "--id", ids[1][-16:]) == [ids[1]]
    assert listed("--state", "claimed", "--client", "mail") == [ids[3]]
    assert listed("--state", "claimed", "--client", "other") == []
    assert listed("--id", ids[3]) == []  # of the ready items
    for arguments, reason in [
        (("--client", "mail"), "client: only claimed items have a client, not ready ones"),
        (("--state", "dead", "--agent", "ada"), "agent: only the items of a task queue"),
    ]:
        done = fdbq("items", name, *arguments)
        assert (done.returncode, reason in done.stderr) == (2, True), done.stderr


def test_jobs_are_listed_as_calls_with_their_run_time(fdbq: Shell, name: str, db: Any) -> None:
    queue = fdbqueue.PriorityQueue.named(db, name, max_attempts=1, keep=10)
    done, dead, ready = queue.push_many(
        db, [{"job": f"shop.{each}", "args": ["ada\n"]} for each in ("send", "send", "resend")]
    )
    queue.ack(db, queue.claim(db))
    claim = queue.claim(db)
    queue.nack(db, claim, error="busy")
    assert fdbq.output("items", name) == f"{ready.id}     0  shop.resend('ada\\n')\n"
    assert fdbq.output("items", name, "--job", "send") == ""
    (line,) = fdbq.output("items", name, "--state", "done", "--job", "send").splitlines()
    assert re.search(rf"^{done.id} .*, ran [0-9ms]+  shop.send\('ada\\n'\)$", line)
    (line,) = fdbq.output("items", name, "--state", "dead", "--job", "shop.send").splitlines()
    assert re.search(r", ran [0-9ms]+, busy  shop.send", line)
    fields = json.loads(fdbq.output("items", name, "--state", "dead", "--json"))
    assert fields["value"] == {"job": "shop.send", "args": ["ada\n"]}
    assert fields["run_time"] >= 0
    shown = fdbq.output("show", name, dead.id)
    assert re.search(r"^job +shop.send\('ada\\n'\)$", shown, re.M)
    assert re.search(r"^attempt 1, \S+ after [0-9ms]+, ", shown, re.M)


def test_show_leaves_out_the_frames_of_the_library(fdbq: Shell, name: str, db: Any) -> None:
    queue = fdbqueue.PriorityQueue.named(db, name, max_attempts=1)
    item = queue.push(db, 7)

    def handler(item: Any) -> None:
        queue.push(db, {"not": "JSON", "to": {1}})

    fdbqueue.Worker(db, queue, handler).run(drain=True)
    shown = fdbq.output("show", name, item.id)
    before, after = shown.split(f'  File "{__file__}", line ')
    assert before.endswith("  Traceback (most recent call last):\n    ...\n  ")
    assert "\n    ...\n" in after
    assert "fdbqueue/" not in after
    assert "worker/running.py" in fdbq.output("show", name, item.id, "--json")


def test_items_that_are_not_ready_are_listed_shown_retried_and_released(
    fdbq: Shell, name: str, db: Any
) -> None:
    ids = [
        fdbq.output("push", name, "1", "--delay", "1h").strip(),
        fdbq.output("push", name, "2", "--delay", "1h").strip(),
    ]
    listed = fdbq.output("items", name, "--state", "delayed").splitlines()
    assert [line.split()[0] for line in listed] == ids
    assert "due" in listed[0]
    assert fdbq.output("retry", name, ids[0]) == "1 retried\n"
    assert sizes(fdbq, name)[name] == 1
    done = fdbq("retry", name, ids[0])
    assert (done.returncode, done.stdout) == (1, "0 retried\n")
    assert "was not retried: it is ready" in done.stderr
    assert fdbq.output("retry", name, "--state", "delayed") == "1 retried\n"
    assert fdbqueue.PriorityQueue.named(db, name).claim(db, n=2) is not None
    shown = json.loads(fdbq.output("show", name, ids[1], "--json"))
    assert (shown["state"], shown["claimed_by"].endswith(f":{os.getpid()}")) == ("claimed", True)
    assert f"claimed by {shown['claimed_by']} at " in fdbq.output(
        "items", name, "--state", "claimed"
    )
    assert fdbq.output("release", name, "--state", "claimed") == "2 released\n"
    assert "it is ready" in fdbq("release", name, ids[0]).stderr
    assert "give either the ids of items, or --state" in error_of(fdbq("release", name))
    assert fdbq("show", name, ids[0] + "A").returncode == 2
    fdbq.output("rm", name, *ids)
    assert f"has no item {ids[0]}" in fdbq("show", name, ids[0]).stderr
    assert "the queue has no such item" in fdbq("retry", name, ids[0]).stderr


def test_show_prints_the_standard_error_of_a_command_that_failed(fdbq: Shell, name: str) -> None:
    item_id = fdbq.output("push", name, "1").strip()
    fdbq.output("limit", name, "--attempts", "1")
    command = "yes no | head -c 9000 >&2; echo the last line >&2; exit 3"
    done = fdbq("work", name, "--exec", command, "--drain")
    assert done.returncode == 1
    assert "the last line" in done.stderr
    shown = json.loads(fdbq.output("show", name, item_id, "--json"))
    assert (shown["state"], shown["error"]) == ("dead", "CommandError: exit code 3")
    (attempt,) = shown["failed_attempts"]
    assert attempt["traceback"].endswith("no\nthe last line\n")
    assert len(attempt["traceback"]) <= 8_000
    assert "the last line" in fdbq.output("show", name, item_id)


def test_a_command_prints_its_standard_error_while_it_runs(fdbq: Shell, name: str) -> None:
    fdbq.output("push", name, "1")
    process = fdbq.start("work", name, "--exec", "echo begun >&2; sleep 60", "-q")
    assert process.stderr is not None
    try:
        assert process.stderr.readline() == "begun\n"
    finally:
        process.kill()
        process.wait()


def test_closed_standard_input_counts_as_empty(filled: Shell, name: str) -> None:
    assert "is not JSON" in error_of(filled.script("fdbq push $q - <&-"))
    assert filled.script("fdbq import $q <&-").stdout == "stored 0 lines\n"
    assert "aborted" in filled.script("fdbq drop $q <&-").stderr
    assert sizes(filled, name) == {name: 2}


def test_an_interrupt_during_the_start_causes_no_traceback(filled: Shell) -> None:
    """A traceback from the start of Python itself, before `main` runs, is allowed.

    Python's module `site` has a function `main`, too.
    """
    for hundredths in range(5, 40, 5):
        interrupted = f"timeout --preserve-status -s INT 0.{hundredths:02} fdbq"
        done = filled.script(f"{interrupted} pop never-pushed --wait 5")
        assert not passes_through_main(done.stderr), (hundredths, done.stderr)


def passes_through_main(traceback: str) -> bool:
    """Return whether a traceback has a frame of `main` in a module of `fdbq`."""
    directory = re.escape(str(Path(package).parent))
    return re.search(rf'File "{directory}/.*", line \d+, in main$', traceback, re.M) is not None


def test_a_traceback_through_main_differs_from_one_of_pythons_own_start() -> None:
    broken = "import fdbq.__main__ as program; program.time = None; program.main()"
    done = subprocess.run([sys.executable, "-c", broken], capture_output=True, text=True)
    assert passes_through_main(done.stderr)
    own = 'Fatal Python error: init_import_site\n  File "<frozen site>", line 599, in main\n'
    assert not passes_through_main(own)


def test_a_file_whose_path_is_not_utf_8_is_imported_once(fdbq: Shell, name: str) -> None:
    fdbq.script("printf '1\\n2\\n' > $'f\\xff'")
    assert fdbq.script("fdbq import $q $'f\\xff'").stdout == "stored 2 lines\n"
    assert fdbq.script("fdbq import $q $'f\\xff'").stdout.startswith("stored 0 lines")
    assert "printable text" in error_of(fdbq.script("fdbq import $q --source $'\\xff'"))


def test_dead_letters_are_listed_shown_retried_and_removed(fdbq: Shell, name: str, db: Any) -> None:
    queue = fdbqueue.PriorityQueue.named(db, name, max_attempts=1)
    ids = [item.id for item in queue.push_many(db, [{"n": 1}, {"n": 2}, {"n": 3}])]
    queue.nack(db, queue.claim(db, n=3), error="no such address")
    dead = ("items", name, "--state", "dead")
    listed = fdbq.output(*dead).splitlines()
    assert [line.split()[:3] for line in listed] == [[each, "0", "1"] for each in ids]
    assert listed[0].endswith(', no such address  {"n":1}')
    assert json.loads(fdbq.output(*dead, "--json").splitlines()[2])["id"] == ids[2]
    assert json.loads(fdbq.output("show", name, ids[1], "--json"))["attempts"] == 1
    assert fdbq.output("retry", name, ids[1]) == "1 retried\n"
    assert fdbq("retry", name, ids[1]).returncode == 1
    assert fdbq.output("pop", name) == '{"n":2}\n'
    assert "not the id of an item" in error_of(fdbq("rm", name, ids[0], "nonsense"))
    assert fdbq.output("rm", name, "--state", "dead") == "2 removed\n"
    assert fdbq.output(*dead) == ""
    assert "no queue named" in error_of(fdbq("items", f"{name}nope"))


def test_dead_letters_that_do_not_fit_into_a_full_queue_are_reported(
    fdbq: Shell, name: str, db: Any
) -> None:
    queue = fdbqueue.PriorityQueue.named(db, name, max_attempts=1, max_size=2)
    ids = [item.id for item in queue.push_many(db, [1, 2])]
    queue.nack(db, queue.claim(db, n=2))
    queue.push(db, 3)
    done = fdbq("retry", name, "--state", "dead")
    assert (done.returncode, done.stdout) == (1, "1 retried\n")
    assert f"{ids[1]} was not retried: the queue is full, or another" in done.stderr
    assert [letter.id for letter in queue.items(db, state="dead")] == [ids[1]]


def test_history_shows_what_happened(fdbq: Shell, name: str) -> None:
    for number in range(3):
        fdbq.output("push", name, str(number))
    fdbq.output("pop", name)
    title, *windows = fdbq.output("history", name).splitlines()
    assert title.split()[:6] == ["last", "pushed", "taken", "completed", "failed", "died"]
    assert [line.split()[-11:-6] for line in windows] == [["3", "1", "1", "0", "0"]] * 3
    assert all(line.split()[-3:] == ["s", "-", "-"] for line in windows)
    lines = [json.loads(line) for line in fdbq.output("history", name, "--json").splitlines()]
    assert [(line["seconds"], line["pushed"]) for line in lines] == [
        (300, 3),
        (3600, 3),
        (86400, 3),
    ]


def test_an_item_is_delayed(fdbq: Shell, name: str) -> None:
    fdbq.output("push", name, "1", "--delay", "0.5")
    fdbq.output("push", name, "2", "--at", "2100-01-01T00:00:00+01:00")
    stats = json.loads(fdbq.output("stats", name, "--json"))
    assert stats["ready"] + stats["delayed"] == 2
    assert stats["next_due"] is not None
    assert fdbq.output("pop", name, "--wait", "30") == "1\n"
    assert fdbq("pop", name).returncode == 1
    assert "a time zone" in error_of(fdbq("push", name, "3", "--at", "2100-01-01T00:00:00"))
    assert "is not an ISO 8601 time" in error_of(fdbq("push", name, "3", "--at", "tomorrow"))


def test_an_export_of_an_empty_queue_is_an_empty_file(filled: Shell, name: str) -> None:
    filled.output("export", name, "out.jsonl")
    filled.output("pop", name, "-n", "2")
    filled.output("export", name, "out.jsonl")
    assert (filled.path / "out.jsonl").read_text() == ""


def test_an_export_that_fails_leaves_the_file_as_it_was(filled: Shell, name: str, db: Any) -> None:
    filled.output("export", name, "out.jsonl")
    before = (filled.path / "out.jsonl").read_text()
    os.chmod(filled.path / "out.jsonl", 0o640)
    queue = fdbqueue.PriorityQueue.named(db, name)
    broken = queue.push(db, "broken", 9)
    db[broken.key] = b"no JSON"
    assert "cannot be decoded" in error_of(filled("export", name, "out.jsonl"))
    assert (filled.path / "out.jsonl").read_text() == before
    queue.remove(db, broken)
    queue.push(db, "last", 9)
    filled.output("export", name, "out.jsonl")
    assert (filled.path / "out.jsonl").read_text().startswith(before)
    assert (filled.path / "out.jsonl").stat().st_mode & 0o777 == 0o640
    assert not list(filled.path.glob(".out.jsonl*"))


# Runs `fdbq` in Python, and writes the order of its syncs and renames to the file `calls`. $FAILING
# is what cannot be synced: the new file, or the name of it in its directory.
_RECORDER = """
import errno, glob, json, os
fsync, replace = os.fsync, os.replace
def record(call, status):
    with open("calls", "a") as calls:
        print(json.dumps([call, status.st_ino, status.st_size]), file=calls)
def recorded_fsync(descriptor):
    status = os.fstat(descriptor)
    failing = {"file": glob.glob(".out.*"), "name": ["."]}.get(os.environ.get("FAILING"), [])
    if status.st_ino in [os.stat(path).st_ino for path in failing]:
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    fsync(descriptor)
    record("fsync", status)
def recorded_replace(source, target):
    replace(source, target)
    record("replace", os.stat(target))
os.fsync, os.replace = recorded_fsync, recorded_replace
from fdbq.__main__ import main
main()
"""

_WRITING = (("backup", "out"), ("export", "{}", "out"))


@pytest.mark.parametrize("command", _WRITING, ids=" ".join)
def test_a_file_is_on_disk_when_the_command_that_writes_it_ends(
    filled: Shell, name: str, command: tuple[str, ...]
) -> None:
    arguments = [argument.format(name) for argument in command]
    done = filled.start(*arguments, program=("-c", _RECORDER))
    assert (done.communicate()[1], done.returncode) == ("", 0)
    file, directory = (filled.path / "out").stat(), filled.path.stat()
    calls = [json.loads(line) for line in (filled.path / "calls").read_text().splitlines()]
    assert [call for call in calls if call[1] == file.st_ino] == [
        ["fsync", file.st_ino, file.st_size],
        ["replace", file.st_ino, file.st_size],
    ]
    named = calls.index(["replace", file.st_ino, file.st_size])
    assert ["fsync", directory.st_ino] in [call[:2] for call in calls[named + 1 :]]


@pytest.mark.parametrize("failing", ["file", "name"])
def test_a_backup_whose_sync_fails_is_an_error(filled: Shell, name: str, failing: str) -> None:
    filled.output("backup", "out", name)
    before = (filled.path / "out").read_text()
    filled.output("push", name, "3")
    filled.environment["FAILING"] = failing
    failed = filled.start("backup", "out", name, program=("-c", _RECORDER))
    output, errors = failed.communicate()
    assert (output, failed.returncode) == ("", 2)
    assert errors.endswith("fdbq: cannot write to out: Input/output error\n")
    assert ((filled.path / "out").read_text() == before) is (failing == "file")
    assert not list(filled.path.glob(".out*"))


def test_an_interrupted_import_does_not_say_that_nothing_happened(
    filled: Shell, name: str, db: Any
) -> None:
    filled.script("seq 2000000 > many.jsonl")
    process = filled.start("import", name, "many.jsonl")
    wait_until(lambda: fdbqueue.PriorityQueue.named(db, name).size(db) > 2)
    process.send_signal(signal.SIGINT)
    errors = process.communicate()[1]
    assert process.returncode == 130
    assert "committed changes are kept" in errors
    assert "Traceback" not in errors


def test_completion_knows_commands_and_queues(
    filled: Shell, name: str, shared_url: str, tmp_path: Path
) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_FDBQ_COMPLETE" in filled.output("completion", shell)
    words = "COMP_WORDS='{}' COMP_CWORD={} _FDBQ_COMPLETE=bash_complete fdbq"
    assert "plain,peek" in filled.script(words.format("fdbq pe", 1)).stdout
    assert f"plain,{name}" in filled.script(words.format(f"fdbq pop {name[:-1]}", 2)).stdout
    filled.environment["FDBQ_DB"] = str(tmp_path / "another")
    named = words.format(f"fdbq pop --db {shared_url} {name[:-1]}", 4)
    assert f"plain,{name}" in filled.script(named).stdout


def test_top_shows_queues_and_their_rates(filled: Shell, name: str) -> None:
    looks = [
        json.loads(line)
        for line in filled.output("top", "--json", "-n", "2", "--interval", "0.1").splitlines()
        if json.loads(line)["queue"] == name
    ]
    assert [look["in"] for look in looks] == [None, 0.0]
    assert looks[1]["ready"] == sum(looks[1]["by_priority"].values()) == 2
    assert looks[1]["total_pushed"] == 2
    assert looks[1]["age"].startswith("0:0")
    assert name in filled.output("top", "-n", "1")


def test_verbose_logs_a_pop(filled: Shell, name: str) -> None:
    done = filled("pop", name, "-v")
    assert f"popped from {name}, priority" in done.stderr
    assert filled("pop", name).stderr == ""


def test_an_export_reports_the_items_that_it_left_out(filled: Shell, name: str, db: Any) -> None:
    queue = fdbqueue.PriorityQueue.named(db, name)
    queue.configure(db, max_attempts=1)
    queue.push_many(db, ["claimed", "dead", "dead"])
    queue.claim(db, n=1, lease=600)
    queue.nack(db, queue.claim(db, n=2))
    queue.push(db, "delayed", delay=600)
    whole = filled("export", name)
    assert whole.stdout.count("\n") == 2
    assert whole.stderr == (
        "fdbq export: left out 1 delayed, 1 claimed, 2 dead; only ready items are exported\n"
    )
    numbers = {"exported": 2, "left_out": {"delayed": 1, "claimed": 1, "dead": 2}}
    assert json.loads(filled.output("export", name, "out.jsonl", "--json")) == numbers
    assert json.loads(filled("export", name, "--json").stderr) == numbers


def test_an_export_counts_thousands_of_items_that_it_left_out(
    fdbq: Shell, name: str, db: Any
) -> None:
    queue = fdbqueue.PriorityQueue.named(db, name)
    queue.push_many(db, [*range(2345)], delay=600)
    assert "left out 2,345 delayed" in fdbq("export", name).stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_the_error_for_a_full_device_says_which_file_cannot_be_written(
    filled: Shell, unbuffered: str
) -> None:
    filled.environment["PYTHONUNBUFFERED"] = unbuffered
    full = "No space left on device"
    assert error_of(filled.script("fdbq export $q /dev/full")) == (
        f"fdbq: cannot write to /dev/full: {full}\n"
    )
    for command in ("export", "items", "counts"):
        assert full in error_of(filled.script(f"fdbq {command} $q > /dev/full"))
    assert "cannot write to standard output" in filled.script("fdbq export $q > /dev/full").stderr


def test_an_endless_line_or_value_is_read_only_up_to_its_limit(fdbq: Shell, name: str) -> None:
    endless = "tr '\\0' 1 < /dev/zero"
    error = error_of(fdbq.script(f"(echo 7; {endless}) | fdbq import $q"))
    assert "line 2: it is longer than 50,000,000 bytes; the lines before it are stored" in error
    assert fdbq.output("pop", name) == "7\n"
    for command in ("push", "task push"):
        error = error_of(fdbq.script(f"{endless} | fdbq {command} $q -"))
        assert "longer than 50,000,000 bytes" in error


@pytest.mark.parametrize(
    "clock", ["-1", "exec('raise OverflowError')"], ids=["before 1970", "after 2262"]
)
def test_an_impossible_clock_is_an_error(fdbq: Shell, name: str, clock: str) -> None:
    program = (
        f"import time; time.time = time.time_ns = lambda: {clock}\n"
        "import sys; from fdbq.__main__ import main; main()"
    )
    for command in (["push", name, "1"], ["task", "push", name, "1"]):
        done = subprocess.run(
            [sys.executable, "-c", program, *command],
            capture_output=True,
            text=True,
            env=fdbq.environment,
        )
        assert "this machine's clock is" in error_of(done)
    assert sizes(fdbq, name) == {}


def test_a_time_out_of_range_is_reported_with_the_range(fdbq: Shell, name: str) -> None:
    for option, lowest in (("--delay", "from 0"), ("--ttl", "over 0")):
        error = error_of(fdbq("push", name, "1", option, "1e10"))
        assert f"is a number of seconds {lowest}, below 10,000,000,000, not 1" in error
    for deadline in ("0001-01-01T00:00+14:00", "9999-12-31T23:00-14:00"):
        error = error_of(fdbq("task", "push", name, "1", "--deadline", deadline))
        assert "must be in the years 1 to 9999 of UTC" in error


def test_a_queue_that_cannot_be_decoded_is_listed_with_what_to_do(
    fdbq: Shell, db: Any, name: str
) -> None:
    push_undecodable(db, f"{name}old")
    fdbqueue.PriorityQueue.named(db, f"{name}young").push(db, 1)
    todo = "another program has written to it. `fdbq drop` removes it"
    lines = fdbq.output("ls").splitlines()
    (old,) = (line for line in lines if line.startswith(f"{name}old"))
    assert re.search(r"-(old) +-( +-){5}  the queue holds bytes .*" + todo + "$", old)
    for command in (("ls", "--json"), ("top", "--json", "-n", "1")):
        rows = [json.loads(line) for line in fdbq.output(*command).splitlines()]
        numbers = {row["queue"]: row.get("ready", row.get("error")) for row in rows}
        assert numbers[f"{name}young"] == 1
        assert numbers[f"{name}old"].endswith(todo)
    shown = fdbq.output("top", "-n", "1")
    assert re.search(rf"{name}old .*-( +-){{4}}", shown)
    assert "(unknown)" in shown


def test_a_queue_whose_options_cannot_be_read_is_dropped(fdbq: Shell, db: Any, name: str) -> None:
    for options in (b"\xff", fdb.tuple.pack((99,)), fdb.tuple.pack((LAYOUT_VERSION, "stack"))):
        queue = fdbqueue.PriorityQueue.named(db, name)
        queue.push(db, 1, delay=600)
        db[layout_of(queue).options] = options
        assert "the queue" in error_of(fdbq("stats", name))
        assert fdbq.output("drop", name, "--yes") == f"dropped {name}: 1 delayed\n"
        assert name not in fdbqueue.admin.queue_names(db)
