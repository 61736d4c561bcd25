"""The documentation builds and is complete, and its examples run."""

from __future__ import annotations

import html
import inspect
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import django
import pytest
from fdbq.main import cli

import fdbqueue
from fdbqueue import admin, errors, jobs
from fdbqueue.embedded.storage.files import FORMAT_VERSION
from fdbqueue.http import create_app
from fdbqueue.layout.values import LAYOUT_VERSION
from tests.support.cluster import Cluster
from tests.support.pages import DOCS, PAGES, ROOT, TUTORIAL, blocks, matches, program
from tests.support.server import serving
from tests.support.shell import Shell, commands

README = (ROOT / "README.md").read_text()
REFERENCE = "\n".join(path.read_text() for path in sorted((DOCS / "reference").glob("*.md")))

# Languages that are executed, that are checked for `fdbq` commands, and that are not code.
RUN = {"python", "console"}
READ = {"sh", "ini", "dockerfile", "yaml"}
NO_CODE = {"text", "{eval-rst}", "{toctree}", "{glossary}"}


def pages_with(*languages: str) -> list[Any]:
    """Return the pages with code in these languages as test parameters."""
    return [
        pytest.param(path, id=str(path.relative_to(ROOT)))
        for path in PAGES
        if blocks(path.read_text(), *languages) and not (path == TUTORIAL and RUN & {*languages})
    ]


@pytest.mark.long
def test_the_documentation_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", DOCS, tmp_path / "html"),
            "-Dhtml_theme=basic",  # the navigation of the real one takes a fifth of the time
        ],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    listed = (tmp_path / "html" / "llms.txt").read_text()
    for path in DOCS.rglob("*.md"):
        source = f"_sources/{path.relative_to(DOCS)}.txt"
        assert f"(/{source})" in listed
        assert (tmp_path / "html" / source).exists()
    page = (tmp_path / "html" / "reference" / "cli.html").read_text()
    for name in commands():
        assert f'id="fdbq-{name.replace(" ", "-")}"' in page
    assert """fdbq push jobs '"hello"' --priority 1""" in html.unescape(page)


@pytest.mark.parametrize(("name", "command"), commands().items())
def test_every_command_has_help_with_an_example(name: str, command: click.Command) -> None:
    text = command.help or ""
    assert "Example:" in text
    assert f"fdbq {name}" in text.split("Example:")[1]
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name not in ("help",):
            assert parameter.help, f"fdbq {name} {parameter.opts[0]} has no help"


@pytest.mark.parametrize("name", commands())
def test_a_guide_shows_every_command(name: str) -> None:
    guides = [path.read_text() for path in PAGES if path.parent != DOCS / "reference"]
    assert any(re.search(rf"\bfdbq {name}\b", guide) for guide in guides)


@pytest.mark.parametrize(
    "name", [*fdbqueue.__all__, *admin.__all__, *errors.__all__, *jobs.__all__]
)
def test_the_reference_lists_every_public_name(name: str) -> None:
    assert re.search(rf"\b{name}\b", REFERENCE)


def test_the_reference_names_the_versions_of_stored_bytes() -> None:
    assert f"writes layout **{LAYOUT_VERSION}**" in REFERENCE
    assert f"files have format **{FORMAT_VERSION}**" in REFERENCE


def test_the_reference_has_every_route() -> None:
    rows = re.findall(r"^\| `(/\S*)` \| (.*) \|$", REFERENCE, re.M)
    documented = {
        (method.lower(), path + end)
        for path, requests in rows
        for method, end in re.findall(r"`(GET|PUT|PATCH|POST|DELETE) ?(/[\w-]+)?`", requests)
    }
    paths = create_app(fdbqueue.open("memory:")).openapi()["paths"]
    assert documented == {(method, path) for path, methods in paths.items() for method in methods}


HANDLES = (fdbqueue.PriorityQueue, fdbqueue.Queue, fdbqueue.TaskQueue)


def public_names(handle: type) -> set[str]:
    queue = handle(fdbqueue.Subspace(("any",)))
    return {name for name in dir(queue) if not name.startswith("_")}


def listed(title: str) -> set[str]:
    """Return the names in the first column of the reference table with this title."""
    (rows,) = re.findall(
        rf"^\| {re.escape(title)} \| \|\n\| --- \| --- \|\n((?:\|.*\n)+)", REFERENCE, re.M
    )
    first_cells = [row.split(" | ")[0] for row in rows.splitlines()]
    return {name for cell in first_cells for name in re.findall(r"`(\w+)", cell)}


@pytest.mark.parametrize("handle", HANDLES)
def test_the_public_names_of_a_queue_match_the_reference(handle: type) -> None:
    assert public_names(handle) == listed("every queue") | listed(f"`{handle.__name__}`")


def test_names_listed_for_every_queue_exist_on_all_queues() -> None:
    assert listed("every queue") == set.intersection(*map(public_names, HANDLES))


def public_methods() -> list[tuple[str, Any]]:
    found = []
    for owner in HANDLES:
        for name, member in inspect.getmembers(owner, inspect.isroutine):
            if not name.startswith("_"):
                found.append((f"{owner.__name__}.{name}", member))
    for name in ("open", "transactional", "existing_queue"):
        found.append((name, getattr(fdbqueue, name)))
    for name, member in inspect.getmembers(admin, inspect.isfunction):
        found.append((f"admin.{name}", member))
    return found


@pytest.mark.parametrize(
    ("name", "member"), public_methods(), ids=[name for name, _ in public_methods()]
)
def test_public_docstrings_have_a_summary_and_an_example(name: str, member: Any) -> None:
    text = inspect.getdoc(member) or ""
    assert text.split("\n")[0].endswith(".")
    assert ">>>" in text


@pytest.fixture
def example_url(request: pytest.FixtureRequest, url: str, engine: str) -> Iterator[str]:
    """Return the URL of an empty database for an example, which uses names as a reader would."""
    if engine != "cluster":
        yield url
        return
    cluster: Cluster = request.getfixturevalue("cluster")
    if not cluster.is_own:
        pytest.skip("examples use fixed names and keys, which a shared cluster may contain")
    yield url
    fdbqueue.open(url).clear_range(b"", b"\xff")


@pytest.fixture
def shared_example_url(shared_url: str, example_url: str) -> str:
    """Return the same URL on the engines that processes can share."""
    return example_url


@pytest.mark.parametrize("path", pages_with("python"))
def test_the_python_examples_of_a_page_print_the_output_shown(
    path: Path, example_url: str, tmp_path: Path
) -> None:
    """The blocks form one program; the comment behind each `print` is its output."""
    text = re.sub(r'"embedded:\w+"', repr(example_url), program(path))
    if django.VERSION < (6,):
        text = text.replace("django.tasks", "django_tasks")
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    expected = re.findall(r"^ *print\(.*\)  # (.*)$", text, re.M)
    assert len(expected) == len(re.findall(r"^ *print\(", text, re.M))
    assert matches(done.stdout, "".join(line + "\n" for line in expected)), done.stdout


@pytest.mark.parametrize("path", pages_with("console"))
def test_the_shell_examples_of_a_page_print_the_output_shown(
    path: Path, shared_example_url: str, tmp_path: Path
) -> None:
    """The blocks run in order; requests go to a server started for the test.

    `run_commands` asserts what each of them prints.
    """
    shell = Shell(tmp_path, shared_example_url)
    text = "".join(blocks(path.read_text(), "console"))
    if "curl " not in text:
        run_commands(shell, text)
        return
    with serving(shared_example_url) as (_, address):
        run_commands(shell, text.replace("127.0.0.1:8080", address.split("//")[1]))


@pytest.mark.parametrize("path", pages_with(*READ))
def test_commands_in_a_page_use_existing_options(path: Path) -> None:
    """The parser raises an error for any other."""
    for block in blocks(path.read_text(), *READ):
        for line in re.findall(r"\bfdbq ((?!run)[a-z].*)", block.replace("\\\n", " ")):
            words = shlex.split(re.split(r"[|;&>]|\)|\(", line)[0], comments=True)
            command: click.Command | None = cli
            while isinstance(command, click.Group):
                _, command, words = command.resolve_command(click.Context(command), words)
            command.make_parser(click.Context(command)).parse_args(words)


def test_recipes_read_the_variables_that_a_page_sets_for_them() -> None:
    text = "\n".join(path.read_text() for path in PAGES)
    found = re.findall(r"^((?:FDBQ_\w+=\S+ )+)(recipes/\S+)", text, re.M)
    assert found
    for variables, recipe in found:
        for name in re.findall(r"(\w+)=", variables):
            assert name in (ROOT / recipe).read_text(), (name, recipe)


def test_every_code_block_is_executed_or_checked() -> None:
    for path in PAGES:
        languages = set(re.findall(r"^```(\S+)$", path.read_text(), re.M))
        assert languages <= RUN | READ | NO_CODE, path


@pytest.mark.parametrize(
    ("suffix", "command"),
    [("go", ("gofmt", "-l")), ("rs", ("rustfmt", "--check", "--edition=2021"))],
)
def test_recipes_in_other_languages_parse_and_are_formatted(
    suffix: str, command: tuple[str, ...]
) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    recipe = (ROOT / "recipes" / "consumer").with_suffix(f".{suffix}").read_text()
    done = subprocess.run(command, input=recipe, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def run_commands(shell: Shell, block: str) -> None:
    """Run the commands of a block and compare their output."""
    commands = re.findall(r"^\$ (.*(?:\n> .*)*)\n((?:(?!\$ ).*\n)*)", block, re.M)
    assert commands
    for command, expected in commands:
        done = shell.script("set -o pipefail; " + command.replace("\n> ", "\n"))
        assert done.stderr == "", (command, done.stderr)
        assert matches(done.stdout.rstrip("\n"), expected.rstrip("\n")), (command, done.stdout)


def test_the_first_screen_shows_how_to_install_run_and_test() -> None:
    first, second = blocks(README, "sh")[:2]
    assert "pip install" in first
    assert "fdbq" in first
    assert "pytest" in second
    assert second.strip() in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_into_the_repository_resolve(name: str) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", (ROOT / name).read_text()):
        assert (ROOT / target).exists(), target


def test_no_page_installs_the_package_from_pypi() -> None:
    """The package is not on PyPI."""
    files = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT).stdout
    for name in files.split():
        text = (ROOT / name).read_bytes()
        assert not re.search(rb"pip install (-\S+ )*['\"]?fdbqueue", text), name


def test_the_changelog_has_a_section_of_this_version() -> None:
    (version,) = re.findall(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M)
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## {re.escape(version)} (- |\(unreleased\)$)", text, re.M)
