"""What `fdbq` answers to a mistake, what it creates, and what a terminal shows."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.support.shell import Shell, commands, error_of

MISTAKES = [
    (("oush",), "No such command 'oush'; did you mean 'push'? (see fdbq --help)"),
    (("group", "list"), "fdbq group: No such command 'list'; did you mean 'ls'?"),
    (("frobnicate",), "No such command 'frobnicate' (see fdbq --help)"),
    (("retry", "jobs"), "give either the ids of items, or --state"),
    (("retry", "jobs", "x", "--error", "Timeout"), "--error needs --state"),
    (("work", "jobs", "os"), "'os' does not name a function; write os:FUNCTION"),
    (("push", "jobs", "1", "--delay", "-5"), "the time must be at least 0 seconds, not -5"),
    (
        ("top", "--interval", "20d"),
        "the time must be at least 0.1 and at most 1,000,000 seconds, not 20d",
    ),
    (("pop", "--wait", "jobs"), "5m or 1h30m (QUEUE comes before --wait)"),
    (
        ("ls", "--db", "redis://host"),
        "write the path of a directory or of a cluster file, 'embedded:/path' or 'memory:'",
    ),
    (("push", "jobs", "1", "-p", "[" * 100_000), "is not an integer"),
    (("limit", "jobs", "--create", "--size", "0"), "--size is a number from 1, or None, not 0"),
    (("pop", "jobs", "--wait", "-1"), "to an option as --option=VALUE"),
    (("serve", "--token-file", sys.executable), "is not UTF-8 text"),
    (("serve", "--host", "no.such.host.invalid", "--token-file", "/etc/hostname"), "cannot listen"),
    (("push", "jobs", "-5"), "as `-- VALUE`"),
    (("push", "jobs", "hello"), "is not JSON"),
    (("push", "jobs"), "give the value"),
    (("push", "jobs", "1", "--priority", "high"), "'high' is not an integer or a list"),
    (("push", "", "1"), "cannot be the name of a queue"),
    (("push", "jobs", "--file", "missing.json"), "missing.json"),
    (("pop",), "Missing argument 'QUEUE'"),
    (("pop", "jobs", "-n", "0"), "0 is not in the range"),
    (("ls", "--db", ""), "an empty text does not name a database"),
    (("ls", "--db", "/etc/hostname"), "/etc/hostname is not a cluster file"),
    (("ls", "--db", "embedded:"), "needs a path"),
    (("ls", "--db", "nowhere.cluster"), "no cluster file"),
    (("rm", "jobs", "--state", "claimed"), "'--state'"),
    (("update", "jobs", "x", "--priority", "1"), "is not the id of an item"),
    (("update", "jobs", "x"), "give what changes"),
    (("update", "jobs", "--state", "ready", "--delay=1", "--at=2100-01-01T00:00Z"), "not both"),
    (("ranges", "jobs"), "only a cluster has ranges to move"),
    (("limit", "jobs", "--keep-for", "10ms"), "at least 1 and at most 10,000,000,000 seconds"),
    (("push", "jobs", "1", "--at", "tomorrow"), "is not an ISO 8601 time"),
    (("group", "pause", "jobs", "x" * 256), "a group is text of 0 to 255 bytes"),
    (("work", "jobs", "m:f", "--max-memory", "much"), "number of bytes, such as 500M or 2G"),
    (("work", "--app", "shop"), "'shop' does not name an app"),
    (("work", "--app", "shop:app", "--exec", "x"), "--exec is for the items"),
    (("work",), "give QUEUE with MODULE:FUNCTION"),
    (("work", "shop:app"), "or --app MODULE:APP for"),
    (("work", "jobs", "m:f", "--at-most", "a=1"), "--at-most is for the queues of --app"),
    (("work", "jobs", "m:f", "--at-most", "5"), "'5' does not name a queue"),
    (("work", "jobs", "m:f", "--health-port", "localhost"), "an address is PORT or HOST:PORT"),
    (("work", "jobs", "m:f", "--metrics-port", "localhost"), "an address is PORT or HOST:PORT"),
    (("work", "jbos", "--exec", "true", "--drain"), "named 'jbos'; did you mean 'jobs'?"),
]


@pytest.fixture
def fdbq(local: Shell) -> Shell:
    """Return `fdbq` on an embedded database with one item in the queue `jobs`."""
    local.output("push", "jobs", "1")
    return local


@pytest.mark.parametrize(
    ("arguments", "answer"), MISTAKES, ids=[" ".join(each[0])[:40] for each in MISTAKES]
)
def test_a_mistake_is_answered_in_one_line_and_changes_nothing(
    fdbq: Shell, arguments: tuple[str, ...], answer: str
) -> None:
    assert answer in error_of(fdbq(*arguments))
    assert fdbq.output("check") == "jobs: 1 ready, ok\n"


def test_a_pop_of_an_unknown_queue_names_the_most_similar_one(fdbq: Shell) -> None:
    for command in ("pop", "peek"):
        done = fdbq(command, "jbos")
        said = f"fdbq {command}: there is no queue named 'jbos'; did you mean 'jobs'?\n"
        assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


def test_text_that_is_not_json_is_quoted_for_the_shell_and_other_text_is_not(fdbq: Shell) -> None:
    for command in (["push"], ["task", "push"]):
        text = error_of(fdbq(*command, "mails", "it's"))
        (suggested,) = re.findall(r"\(write a string in quotes, such as (.*)\) \(see", text)
        assert fdbq.script(f"fdbq {' '.join(command)} mails {suggested}").returncode == 0
        for value in ('{"a": 1', "[1", '"text'):
            error = error_of(fdbq(*command, "mails", value))
            assert "is not JSON" in error
            assert "quotes, such as" not in error
        fdbq.output("drop", "mails", "--yes")


def test_a_list_without_entries_says_so(fdbq: Shell) -> None:
    assert fdbq.output("workers") == "no workers\n"
    assert fdbq.output("workers", "--json") == ""
    fdbq.output("drop", "jobs", "--yes")
    assert fdbq.output("ls") == "no queues\n"
    assert fdbq.output("ls", "--json") == ""


@pytest.mark.parametrize("named", ["option", "variable"])
def test_a_push_creates_no_directories_above_a_mistyped_one(fdbq: Shell, named: str) -> None:
    mistyped = fdbq.path / "nowhere" / "data" / "jobs"
    options = ["--db", str(mistyped)] if named == "option" else []
    if named == "variable":
        fdbq.environment["FDBQ_DB"] = str(mistyped)
    error = error_of(fdbq("push", "jobs", "1", *options))
    assert f"{mistyped}: there is no directory {mistyped.parent}; create it" in error
    assert not (fdbq.path / "nowhere").exists()
    mistyped.parent.mkdir(parents=True)
    fdbq.output("push", "jobs", "1", *options)
    assert mistyped.is_dir()


def test_only_commands_that_store_something_create_a_database(fdbq: Shell) -> None:
    for command in ("ls", "items", "check", "info", "export", "pop", "limit", "rm", "drop"):
        arguments = {"ls": [], "info": [], "rm": ["q", "x"]}.get(command, ["q"])
        done = fdbq(command, *arguments, "--db", "nowhere")
        assert "there is no database here" in error_of(done)
    fdbq.environment |= {"FDBQ_DB": "", "XDG_DATA_HOME": str(fdbq.path / "data")}
    assert "name yours by --db or $FDBQ_DB" in error_of(fdbq("ls"))
    (fdbq.path / "here").mkdir()
    (fdbq.path / "here" / "letter.txt").write_text("mine")
    done = fdbq("push", "jobs", "1", "--db", "here")
    assert "this directory holds other files" in error_of(done)
    assert [*(fdbq.path / "here").iterdir()] == [fdbq.path / "here" / "letter.txt"]
    assert not (fdbq.path / "nowhere").exists()
    assert fdbq("pop", "jobs", "--db", "nowhere", "--create").returncode == 1


def test_the_database_is_an_option_of_every_command(fdbq: Shell) -> None:
    for url in ("embedded:other", "./other"):
        assert fdbq.output("push", "more", "1", "--db", url)
    other = fdbq.output("--db", "other", "ls", "--json")
    assert '"ready":2' in other
    assert other == fdbq.output("--db", "nowhere", "ls", "--json", "--db", "other")
    for name, command in commands().items():
        options = {option for each in command.params for option in each.opts}
        needs_one = name not in ("completion", "jobs")
        assert not needs_one or {"--db", "--timeout", "--json"} <= options


def test_completion_knows_commands_and_queues(fdbq: Shell) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_FDBQ_COMPLETE" in fdbq.output("completion", shell)
    database = fdbq.environment["FDBQ_DB"]
    for words, completed in (
        ("fdbq pe", "plain,peek"),
        ("fdbq pop job", "plain,jobs"),
        ("fdbq oush mail", ""),
        (f"fdbq pop --db {database} job", "plain,jobs"),
    ):
        number = str(len(words.split()) - 1)
        given = {"_FDBQ_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": number}
        fdbq.environment |= given | ({"FDBQ_DB": "another"} if "--db" in words else {})
        done = fdbq()
        assert (done.returncode, done.stdout.strip(), done.stderr) == (0, completed, "")


@contextmanager
def in_terminal(fdbq: Shell, columns: int, script: str) -> Iterator[tuple[int, int]]:
    """Run a script in a terminal; yield the process and the other end of the terminal."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(fdbq.path)
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = {k: v for k, v in fdbq.environment.items() if k not in ("COLUMNS", "LINES")}
        os.execve("/bin/bash", ["bash", "-c", script], {**environment, "TERM": "xterm"})
    try:
        yield process, terminal
    finally:
        os.close(terminal)  # ends a process that still runs


def read_until(terminal: int, end: bytes) -> str:
    output = b""
    with suppress(OSError):  # the process has closed its end
        while end not in output:
            output += os.read(terminal, 10_000)
    return re.sub(r"\x1b\[[?;\d]*[A-Za-z]", "", output.decode())


@pytest.mark.parametrize(
    ("columns", "more"), [(40, set[str]()), (80, {"in/s", "out/s", "oldest", "done"})]
)
def test_top_cuts_no_title_and_leaves_the_terminal_as_it_was(
    fdbq: Shell, columns: int, more: set[str]
) -> None:
    top = "stty -a > before; fdbq top --interval 1000; echo $? > code; stty -a > after"
    with in_terminal(fdbq, columns, f"trap : INT; {top}") as (process, terminal):
        titles = set(read_until(terminal, b"jobs").split("jobs")[0].split())
        assert titles == {"queue", "ready", "delayed", "claimed", "dead"} | more
        os.write(terminal, b"\x03")
        read_until(terminal, b"\0")  # to the end
        os.waitpid(process, 0)
    before, code, after = ((fdbq.path / each).read_text() for each in ("before", "code", "after"))
    assert (code, before) == ("130\n", after)
