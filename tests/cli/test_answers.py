"""What `fdbq` answers to a mistake, and where a program would look for the reason."""

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
from pathlib import Path

import pytest

import fdbqueue
from tests.support.shell import Shell, error_of


@pytest.fixture
def fdbq(tmp_path: Path) -> Shell:
    """`fdbq` on an embedded database with one item in the queue `jobs`."""
    shell = Shell(tmp_path, f"embedded:{tmp_path / 'db'}")
    shell.output("push", "jobs", "1")
    return shell


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (("oush",), "No such command 'oush'; did you mean 'push'? (see fdbq --help)"),
        (("list",), "No such command 'list'; did you mean 'ls'? (see fdbq --help)"),
        (("worker",), "No such command 'worker'; did you mean 'workers' or 'work'?"),
        (("group", "lss"), "fdbq group: No such command 'lss'; did you mean 'ls'?"),
        (("group", "list"), "fdbq group: No such command 'list'; did you mean 'ls'?"),
        (("frobnicate",), "No such command 'frobnicate' (see fdbq --help)"),
        (("retry", "jobs"), "give either the ids of items, or --state"),
        (("release", "jobs"), "give either the ids of items, or --state"),
        (("retry", "jobs", "x", "--error", "Timeout"), "--error needs --state"),
        (("work", "jobs", "os"), "'os' does not name a function; write os:FUNCTION"),
        (("work", "jobs", "os:"), "'os:' does not name a function; write os:FUNCTION"),
        (("work", "jobs", ":f"), "':f' does not name a module; write MODULE:f"),
        (("push", "jobs", "1", "--delay", "-5"), "the time must be at least 0 seconds, not -5"),
        (("push", "jobs", "1", "--ttl", "0"), "--ttl is a number of seconds over 0, below"),
        (
            ("top", "--interval", "20d"),
            "the time must be at least 0.1 and at most 1,000,000 seconds, not 20d",
        ),
        (("pop", "--wait", "jobs"), "5m or 1h30m (QUEUE comes before --wait)"),
        (
            ("ls", "--db", "redis://host"),
            "write the path of a directory or of a cluster file, 'embedded:/path' or 'memory:'",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_mistake_is_answered_with_what_to_write(
    fdbq: Shell, arguments: tuple[str, ...], answer: str
) -> None:
    assert answer in error_of(fdbq(*arguments))


def test_a_queue_without_priorities_says_what_it_does_not_support(fdbq: Shell) -> None:
    db = fdbqueue.open(fdbq.environment["FDBQ_DB"])
    fdbqueue.Queue.named(db, "line").enqueue(db, 1)
    fdbq.output("task", "push", "todo", "1")
    for arguments, answer in (
        (
            ("push", "line", "1", "-p", "2"),
            "is a FIFO queue and does not support --priority",
        ),
        (("peek", "line", "--max"), "'line' is a FIFO queue and does not support --max"),
        (("reprioritize", "line", "x", "1"), "a FIFO queue and does not support `fdbq repr"),
        (("rm", "todo", "--state", "ready", "-p", "1"), "is a task queue and does not support --p"),
        (("export", "todo"), "a task queue; use `fdbq task`, or write it with `fdbq backup`"),
        (("import", "line", "-"), "'line' is a FIFO queue and does not support `fdbq import`"),
    ):
        assert answer in error_of(fdbq(*arguments))
    fdbq.output("push", "line", "2", "--delay", "600", "--unique", "k")
    assert fdbq.output("items", "line", "--state", "delayed").count("2") >= 1


def test_a_mistyped_command_completes_to_nothing(fdbq: Shell) -> None:
    words = "COMP_WORDS='fdbq oush jobs' COMP_CWORD=2 _FDBQ_COMPLETE=bash_complete fdbq"
    done = fdbq.script(words)
    assert (done.returncode, done.stderr) == (0, "")


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


def test_a_drain_of_a_mistyped_queue_is_an_error(fdbq: Shell) -> None:
    error = error_of(fdbq("work", "jbos", "--exec", "true", "--drain"))
    assert "there is no queue named 'jbos'; did you mean 'jobs'?" in error


def test_a_copy_onto_itself_is_an_error_and_changes_nothing(fdbq: Shell) -> None:
    before = fdbq.output("stats", "jobs", "--json"), fdbq.output("items", "jobs", "--json")
    (fdbq.path / "link").symlink_to(fdbq.path / "db")
    for same in ("db", "embedded:db", "./link", str(fdbq.path / "db")):
        error = error_of(fdbq("copy", "jobs", "--from", "db", "--to", same))
        assert "a queue named 'jobs' already exists; choose another name" in error
    after = fdbq.output("stats", "jobs", "--json"), fdbq.output("items", "jobs", "--json")
    assert (before, fdbq.output("check")) == (after, "jobs: 1 ready, ok\n")


def test_a_copy_of_a_mistyped_queue_creates_no_database(fdbq: Shell) -> None:
    error = error_of(fdbq("copy", "jbos", "--to", "other"))
    assert "no queue named 'jbos'; did you mean 'jobs'?" in error
    assert not (fdbq.path / "other").exists()


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


def test_dead_letters_are_retried_by_their_error(fdbq: Shell) -> None:
    db = fdbqueue.open(fdbq.environment["FDBQ_DB"])
    queue = fdbqueue.PriorityQueue.named(db, "mails", max_attempts=1)
    for error in ("TimeoutError: smtp", "KeyError: 'email'"):
        queue.push(db, error)
        claim = queue.claim(db)
        queue.nack(db, claim, error=error)
    assert fdbq.output("retry", "mails", "--state", "dead", "--error", "timeout") == "1 retried\n"
    assert [item.value for item in queue.items(db)] == ["TimeoutError: smtp"]
    assert [letter.error for letter in queue.items(db, state="dead")] == ["KeyError: 'email'"]


def test_a_done_item_shows_no_error_of_an_earlier_attempt(fdbq: Shell) -> None:
    fdbq.output("limit", "jobs", "--keep-last", "1")
    db = fdbqueue.open(fdbq.environment["FDBQ_DB"])
    queue = fdbqueue.PriorityQueue.named(db, "jobs")
    claim = queue.claim(db)
    queue.nack(db, claim, error="a time-out", delay=0)
    claim = queue.claim(db)
    queue.ack(db, claim)
    lines = fdbq.output("show", "jobs", claim.item.id).splitlines()
    assert ["state", "done"] in [line.split() for line in lines]
    assert [line.split()[0] for line in lines if "a time-out" in line] == ["attempt"]


@contextmanager
def in_terminal(fdbq: Shell, columns: int, *arguments: str) -> Iterator[tuple[int, int]]:
    """Run `fdbq` in a terminal; yield the process and the other end of the terminal."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(fdbq.path)
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = {k: v for k, v in fdbq.environment.items() if k not in ("COLUMNS", "LINES")}
        program = [sys.executable, "-m", "fdbq", *arguments]
        os.execve(sys.executable, program, {**environment, "TERM": "xterm"})
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
    ("columns", "more"),
    [
        (40, set[str]()),
        (60, {"in/s", "out/s", "oldest"}),
        (80, {"in/s", "out/s", "oldest", "done"}),
        (120, {"in/s", "out/s", "oldest", "done"}),
    ],
)
def test_top_cuts_no_title(fdbq: Shell, columns: int, more: set[str]) -> None:
    with in_terminal(fdbq, columns, "top", "--interval", "1000") as (process, terminal):
        shown = read_until(terminal, b"jobs")
        titles = set(shown.split("jobs")[0].split())
        assert titles == {"queue", "ready", "delayed", "claimed", "dead"} | more
        os.write(terminal, b"\x03")
        read_until(terminal, b"\0")  # to the end
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 130


def test_top_leaves_the_terminal_as_it_was_after_a_signal(fdbq: Shell) -> None:
    script = "stty -a > before; fdbq top --interval 1000; stty -a > after"
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(fdbq.path)
        os.execve("/bin/bash", ["bash", "-c", script], fdbq.environment)
    try:
        read_until(terminal, b"jobs")
        os.write(terminal, b"\x03")
        read_until(terminal, b"\0")
        os.waitpid(process, 0)
    finally:
        os.close(terminal)
    assert (fdbq.path / "before").read_text() == (fdbq.path / "after").read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("retry", "jobs", "--state", "dead"), "0 retried"),
        (("rm", "jobs", "--state", "dead"), "0 removed"),
        (("release", "jobs", "--state", "claimed"), "0 released"),
        (("group", "retry", "jobs", "ada"), "0 retried"),
        (("group", "cancel", "jobs", "ada"), "0 cancelled"),
        (("group", "clear", "jobs", "ada", "--yes"), "0 removed"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_choice_of_items_that_finds_none_is_no_failure(
    fdbq: Shell, arguments: tuple[str, ...], told: str
) -> None:
    assert fdbq.output(*arguments) == f"{told}\n"
