"""`fdbq` as people and programs use it: a real process, its output and its exit code."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from fdbq import __file__ as package
from fdbq.arguments import Duration
from fdbq.main import cli

from fdbqueue.embedded import Database
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


def test_a_wait_can_be_interrupted(fdbq: Shell) -> None:
    fdbq.output("push", fdbq.environment["q"], "1")
    fdbq.output("pop", fdbq.environment["q"])
    process = fdbq.start("pop", fdbq.environment["q"], "--wait")
    wait_until(lambda: has_handlers(process))
    time.sleep(0.3)  # so that it waits, most likely: nothing shows that it does
    process.send_signal(signal.SIGINT)
    assert process.communicate()[1] == "fdbq: interrupted; committed changes are kept\n"
    assert process.returncode == 130


def test_a_name_that_the_terminal_cannot_show_is_an_error(fdbq: Shell, name: str) -> None:
    fdbq.output("push", f"{name}ü", "1")
    fdbq.environment |= {"PYTHONIOENCODING": "ascii"}
    assert "cannot be printed in the encoding ascii" in error_of(fdbq("ls"))


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


def test_items_that_cannot_be_printed_are_put_back(filled: Shell, name: str) -> None:
    before = filled.output("items", name)
    done = filled.script("fdbq pop $q -n 2 > /dev/full")
    assert done.returncode == 2, done
    assert "2 items were not printed but put back" in done.stderr
    assert filled.output("items", name) == before
    assert filled.output("check", name) == f"{name}: 2 ready, ok\n"


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
