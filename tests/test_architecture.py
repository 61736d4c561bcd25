"""The tree keeps its shape: imports point down, modules stay small, the CLI stays outside."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Each module may import from those below it, never from those above or beside it.
LAYERS = [
    ["__init__"],
    ["http"],
    ["testing", "transfer", "idempotency", "aio", "existing", "worker"],
    ["invariants"],
    ["task_queue"],
    ["task_store"],
    ["priority_queue", "fifo"],
    ["claimable"],
    ["item_store"],
    ["contention", "claims", "pushes", "logs"],
    ["leases", "task_index"],
    ["limits"],
    ["schedule"],
    ["overview"],
    ["task_rows", "bounds"],
    ["directory"],
    ["rows", "states", "priorities"],
    ["layout", "waiting", "combining", "task"],
    ["codec", "database"],
    ["embedded"],
    ["uuids"],
    ["errors", "types", "telemetry", "handlers", "handover"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imports(path: Path) -> set[str]:
    """The modules of fdbqueue that a file imports, by their first name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if node.module.startswith("fdbqueue."):
                found.add(node.module.split(".")[1])
            elif node.module == "fdbqueue":
                found |= {alias.name if alias.name in LEVEL else "__init__" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {"__init__" for alias in node.names if alias.name == "fdbqueue"}
    return found


RECIPES = sorted((ROOT / "recipes").glob("*.py"))
USES = ("invoices", "booking_reminders", "debt_collection")
"""Of the recipes, those that show what the task queue is for, instead of how a queue is made."""

MODULES = sorted((ROOT / "fdbqueue").rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    parts = path.relative_to(ROOT / "fdbqueue").parts
    name = parts[0].removesuffix(".py")
    allowed = {other for other in LEVEL if LEVEL[other] > LEVEL[name]}
    if len(parts) > 1:
        allowed.add(name)
    assert imports(path) <= allowed


@pytest.mark.parametrize(
    "path", [*MODULES, *(ROOT / "cli").glob("*.py")], ids=lambda path: path.name
)
def test_no_module_is_longer_than_500_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 500


@pytest.mark.parametrize(
    "path", [each for each in RECIPES if each.stem not in USES], ids=lambda path: path.name
)
def test_a_recipe_needs_only_open_and_transactional(path: Path) -> None:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fdbqueue"):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "fdbqueue":
            names.add(node.attr)
    assert names <= {"open", "transactional"}


def test_recipes_run_as_they_are() -> None:
    for path in sorted((ROOT / "recipes").glob("[!_]*.py")):
        done = subprocess.run([sys.executable, path], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), path
        assert done.stdout.count("\n") >= 4


def test_no_installed_module_is_named_cli() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import cli"], capture_output=True, text=True, cwd="/"
    )
    assert "No module named 'cli'" in done.stderr
    scripts = importlib.metadata.entry_points(group="console_scripts", name="fdbq")
    assert [script.value for script in scripts] == ["fdbq.__main__:main"]


def test_importing_the_library_loads_no_client_library_and_selects_no_api_version() -> None:
    program = (
        "import sys, fdb, fdbqueue, fdbq.main; fdbqueue.open('memory:');"
        "assert 'fdb.impl' not in sys.modules and not fdb.is_api_version_selected()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_top_level_holds_nothing_else() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=True
    ).stdout.split()
    assert {name.split("/")[0] for name in listed if not name.startswith(".")} <= {
        "fdbqueue",
        "cli",
        "tests",
        "recipes",
        "docker",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
    }
