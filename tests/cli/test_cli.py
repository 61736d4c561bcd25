"""`fdbq` as a program: its start, its standard streams, and the commands that it runs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from fdbq.arguments import Duration
from fdbq.main import cli

from fdbqueue.embedded import Database
from tests.support.shell import Shell, error_of


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


def test_the_help_groups_all_commands_and_cuts_no_summary(local: Shell) -> None:
    text = local.output("--help")
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


@pytest.mark.parametrize("command", ["push jobs 1", "pop jobs", "ls", "clear jobs"])
def test_nothing_is_done_if_standard_output_is_closed(local: Shell, command: str) -> None:
    local.output("push", "jobs", "1")
    done = local.script(f"fdbq {command} >&-")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "fdbq: standard output is closed; nothing was done\n"
    assert local.output("check") == "jobs: 1 ready, ok\n"


def test_items_that_cannot_be_printed_are_put_back(shell: Shell) -> None:
    shell.script("seq 5000 | fdbq import $q; fdbq task push ${q}tasks 1")
    for command, many in (
        ("pop $q -n 5000", "5,000 items were"),
        ("task pop ${q}tasks", "1 item was"),
    ):
        done = shell.script(f"fdbq {command} > /dev/full")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert f"{many} not printed but put back" in done.stderr
    queue = shell.environment["q"]
    assert shell.output("check", queue) == f"{queue}: 5,000 ready, ok\n"
    assert shell.output("pop", queue, "-n", "3") == "1\n2\n3\n"
    assert shell.output("task", "pop", f"{queue}tasks") == "1\n"


def test_a_stream_that_fails_is_named(local: Shell) -> None:
    """A push that cannot print the id says it, and that it is done. A closed pipe is no error."""
    full = "No space left on device"
    done = local.script("fdbq push $q 1 > /dev/full")
    assert done.returncode == 2
    assert done.stderr.startswith("fdbq: done, but cannot write to standard output: No space")
    (pushed,) = map(json.loads, local.output("items", "jobs", "--json").splitlines())
    assert pushed["id"] in done.stderr
    for unbuffered in ("", "1"):
        local.environment["PYTHONUNBUFFERED"] = unbuffered
        error = error_of(local.script("fdbq export $q /dev/full"))
        assert error == f"fdbq: cannot write to /dev/full: {full}\n"
        error = error_of(local.script("fdbq items $q > /dev/full"))
        assert full in error
    local.script("seq 20000 | fdbq import $q")
    done = local.script("fdbq items $q | head -1")
    assert (done.stdout.count("\n"), done.stderr) == (1, "")
    local.output("push", "ü", "1")
    local.environment |= {"PYTHONIOENCODING": "ascii"}
    assert "cannot be printed in the encoding ascii" in error_of(local("ls"))


def test_an_endless_line_or_value_is_read_only_up_to_its_limit(local: Shell) -> None:
    endless = "tr '\\0' 1 < /dev/zero"
    error = error_of(local.script(f"(echo 7; {endless}) | fdbq import $q"))
    assert "line 2: it is longer than 50,000,000 bytes; the lines before it are stored" in error
    assert local.output("pop", "jobs") == "7\n"
    for command in ("push", "task push"):
        error = error_of(local.script(f"{endless} | fdbq {command} $q -"))
        assert "longer than 50,000,000 bytes" in error


def test_closed_standard_input_counts_as_empty(local: Shell) -> None:
    assert "is not JSON" in error_of(local.script("fdbq push $q - <&-"))
    assert local.script("fdbq import $q <&-").stdout == "stored 0 lines\n"
    local.output("push", "jobs", "1")
    assert "aborted" in local.script("fdbq drop $q <&-").stderr
    assert local.output("check") == "jobs: 1 ready, ok\n"


def test_a_pop_waits_for_a_push(local: Shell) -> None:
    done = local.script(
        "(fdbq pop $q --create --wait 2> waits; fdbq pop $q --wait 1m) & "
        "until grep -q waiting waits 2> /dev/null; do sleep 0.05; done; "
        "fdbq push $q 1 > /dev/null; fdbq push $q 2 > /dev/null; wait; cat waits >&2; "
        "fdbq pop $q --wait 100ms"
    )
    assert (done.returncode, done.stdout) == (1, "1\n2\n")
    assert done.stderr.endswith("(waiting until there is one)\n")
    assert "'soon' is not a length of time" in error_of(local("pop", "jobs", "--wait", "soon"))


def test_an_impossible_clock_is_an_error(local: Shell) -> None:
    program = (
        "import time; time.time = time.time_ns = lambda: -1\n"
        "import sys; from fdbq.__main__ import main; main()"
    )
    done = local.start("push", "jobs", "1", program=("-c", program))
    output, errors = done.communicate()
    assert (done.returncode, output, errors.count("\n")) == (2, "", 1)
    assert "this machine's clock is" in errors
    assert "jobs" not in local("ls").stdout


def test_a_defect_while_a_worker_runs_shows_where_it_is(local: Shell) -> None:
    """It is no mistake in the arguments."""
    local.output("push", "jobs", "1")
    (local.path / "defect.py").write_text(
        "import fdbqueue.coordination.store as store\n"
        "def run(item): pass\n"
        "def claim(*args): raise TypeError('a defect')\n"
        "store.Store.claim = claim\n"
    )
    done = local("work", "jobs", "defect:run", "--drain")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "TypeError: a defect")
    assert "Traceback" in done.stderr


def test_the_standard_error_of_a_command_is_printed_at_once_and_stored(local: Shell) -> None:
    id = local.output("push", "jobs", "1").strip()
    local.output("limit", "jobs", "--attempts", "1")
    command = "echo begun >&2; read go < go; yes no | head -c 9000 >&2; echo last >&2; exit 3"
    subprocess.run(["mkfifo", "go"], cwd=local.path, check=True)
    worker = local.start("work", "jobs", "--exec", command, "-q", "--drain")
    assert worker.stderr is not None
    assert worker.stderr.readline() == "begun\n"
    (local.path / "go").write_text("\n")
    assert "\nno\nlast\n" in worker.communicate()[1]
    assert worker.returncode == 1
    shown = json.loads(local.output("show", "jobs", id, "--json"))
    assert (shown["state"], shown["error"]) == ("dead", "CommandError: exit code 3")
    (attempt,) = shown["failed_attempts"]
    assert attempt["traceback"].endswith("no\nlast\n")
    assert len(attempt["traceback"]) <= 8_000
    assert "last" in local.output("show", "jobs", id)
