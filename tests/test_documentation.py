"""README, help texts and docstrings tell what is there, and their examples run."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

import fdbqueue
from tests.support.server import serving
from tests.support.shell import Shell, commands

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """The code blocks of README in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S)


@pytest.mark.parametrize(("name", "command"), commands().items())
def test_every_command_has_help_with_an_example(name: str, command: click.Command) -> None:
    text = command.help or ""
    assert "Example:" in text
    assert f"fdbq {name}" in text.split("Example:")[1]
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name not in ("help",):
            assert parameter.help, f"fdbq {name} {parameter.opts[0]} has no help"


@pytest.mark.parametrize(("name", "command"), commands().items())
def test_readme_shows_every_command(name: str, command: click.Command) -> None:
    assert re.search(rf"\bfdbq {name}\b", README), f"README does not show `fdbq {name}`"


@pytest.mark.parametrize("name", fdbqueue.__all__)
def test_readme_names_what_the_library_offers(name: str) -> None:
    assert re.search(rf"\b{name}\b", README)


HANDLES = (fdbqueue.PriorityQueue, fdbqueue.Queue, fdbqueue.TaskQueue)


def public_names(handle: type) -> set[str]:
    queue = handle(fdbqueue.Subspace(("any",)))
    return {name for name in dir(queue) if not name.startswith("_")}


def listed(title: str) -> set[str]:
    """The names in the first column of the table of README with this title."""
    (rows,) = re.findall(
        rf"^\| {re.escape(title)} \| \|\n\| --- \| --- \|\n((?:\|.*\n)+)", README, re.M
    )
    first_cells = [row.split(" | ")[0] for row in rows.splitlines()]
    return {name for cell in first_cells for name in re.findall(r"`(\w+)", cell)}


@pytest.mark.parametrize("handle", HANDLES)
def test_a_queue_shows_exactly_what_readme_lists(handle: type) -> None:
    assert public_names(handle) == listed("every queue") | listed(f"`{handle.__name__}`")


def test_what_readme_lists_for_every_queue_is_what_all_have() -> None:
    assert listed("every queue") == set.intersection(*map(public_names, HANDLES))


def public_methods() -> list[tuple[str, Any]]:
    found = []
    for owner in HANDLES:
        for name, member in inspect.getmembers(owner, inspect.isroutine):
            if not name.startswith("_"):
                found.append((f"{owner.__name__}.{name}", member))
    for name in (
        "open",
        "transactional",
        "check",
        "queue_names",
        "queues",
        "rename_queue",
        "drop_queue",
    ):
        found.append((name, getattr(fdbqueue, name)))
    return found


@pytest.mark.parametrize(
    ("name", "member"), public_methods(), ids=[name for name, _ in public_methods()]
)
def test_public_docstrings_have_a_line_and_an_example(name: str, member: Any) -> None:
    text = inspect.getdoc(member) or ""
    assert text.split("\n")[0].endswith(".")
    assert ">>>" in text


def test_readmes_python_examples_run(tmp_path: Path) -> None:
    for block in blocks("python"):
        done = subprocess.run(
            [sys.executable, "-c", block], capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == 0, (block, done.stderr)


def console_blocks(over_http: bool) -> list[str]:
    return [block for block in blocks("console") if ("curl " in block) is over_http]


def test_the_commands_of_readme_print_what_it_shows(tmp_path: Path) -> None:
    """Every `console` block: its commands, one after the other, with the output that it shows."""
    shell = Shell(tmp_path, str(tmp_path / "db"))
    assert console_blocks(over_http=False)
    for block in console_blocks(over_http=False):
        run_commands(shell, block)


def test_the_requests_of_readme_are_answered_as_it_shows(
    db: Any, shared_url: str, name: str, tmp_path: Path
) -> None:
    (block,) = console_blocks(over_http=True)
    with serving(shared_url) as (_, address):
        block = block.replace("127.0.0.1:8080", address.split("//")[1]).replace("mail", name)
        # On a cluster others may have queues.
        block = re.sub(r'(?m)^({"queues":\[)(.*)(\]})$', r"\1...\2...\3", block)
        run_commands(Shell(tmp_path, shared_url), block)


def run_commands(shell: Shell, block: str) -> None:
    """Run what a block shows, and compare what it prints."""
    commands = re.findall(r"^\$ (.*(?:\n> .*)*)\n((?:(?!\$ ).*\n)*)", block, re.M)
    assert commands
    for command, expected in commands:
        done = shell.script("set -o pipefail; " + command.replace("\n> ", "\n"))
        assert done.stderr == "", (command, done.stderr)
        assert matches(done.stdout.rstrip("\n"), expected.rstrip("\n")), (command, done.stdout)


def matches(output: str, expected: str) -> bool:
    """Whether the output is what is shown, where `...` stands for anything."""
    pattern = ".*".join(re.escape(part) for part in expected.split("..."))
    return re.fullmatch(pattern, output, re.S) is not None


def test_the_first_screen_installs_runs_and_tests() -> None:
    first, second = blocks("sh")[:2]
    assert "pip install" in first
    assert "fdbq" in first
    assert "pytest" in second
    assert second.strip() in (ROOT / ".ci" / "run").read_text()
