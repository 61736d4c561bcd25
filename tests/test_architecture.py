"""The structure of the code: rooms, downward imports and small modules."""

from __future__ import annotations

import ast
import graphlib
import importlib.metadata
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.benchmarks.code import lines_of_code, longest_chain

ROOT = Path(__file__).parent.parent
LIBRARY = ROOT / "fdbqueue"

_OPERATIONS = {
    "operations",
    "operations.jobs",
    "operations.limits",
    "operations.maintainers",
    "operations.views",
}

# The rooms that each room may import from. Every room may import `errors`, `options` and
# `types`. The rooms within a room may import the modules beside them that `BESIDE` names.
ROOMS = {
    "cli": {"admin", "aio", "embedded", "http", "jobs", "queue", "worker"},
    "http": {"aio", "http.v1", "queue"},
    "http.v1": {"aio", "queue", "worker"},
    "aio": {"admin", "queue", "worker"},
    "contrib": {"database", "jobs", "layout", "operations", "queue", "worker"},
    "contrib.django": {"admin", "contrib", "jobs", "queue", "worker"},
    "contrib.django.management": set[str](),
    "contrib.django.management.commands": set[str](),
    "contrib.django.migrations": set[str](),
    "jobs": {"database", "queue", "worker", "worker.functions"},
    "admin": {"layout", "queue", "worker"},
    "worker": {"worker.functions", "queue", "database", "layout"},
    "worker.functions": {"queue", "database", "layout"},
    "queue": {"coordination", "database", *_OPERATIONS, "layout"},
    "coordination": {"database", *_OPERATIONS, "layout"},
    "operations": {"operations.jobs", "operations.limits", "operations.maintainers", "layout"},
    "operations.jobs": {"layout", "operations.limits", "operations.maintainers"},
    "operations.limits": {"layout"},
    "operations.maintainers": {"layout", "operations.limits"},
    "operations.views": {"layout", "operations.limits", "operations.maintainers"},
    "layout": set[str](),
    "database": {"layout"},
    "embedded": {"embedded.transaction", "embedded.storage"},
    "embedded.transaction": {"embedded.storage"},
    "embedded.storage": set[str](),
    "testing": {"coordination", "database", "jobs", "operations", "queue", "worker"},
}
ANYBODYS = {"errors", "options", "types"}
BESIDE = {
    "embedded": {
        "embedded.arguments",
        "embedded.mutations",
        "embedded.directory",
        "embedded.ranges",
    },
    "operations": {
        "operations.changes",
        "operations.claims",
        "operations.failures",
        "operations.items",
        "operations.names",
        "operations.options",
        "operations.parallel",
        "operations.payloads",
        "operations.push",
        "operations.timers",
        "operations.transitions",
        "operations.waking",
    },
    "worker": {"worker.outcomes", "worker.telemetry"},
    "http": {"http.fields", "http.parameters", "http.responses", "http.security", "http.served"},
}

# Exceptions from the table. This list may only shrink.
EXCEPTIONS = {
    # The only place that opens embedded databases.
    "database.opening": {"embedded.database"},
    # aio runs the operations of the queues.
    "aio": {"coordination.event_loop", "coordination.sans_io"},
}

# The modules that code inside a transaction must not be able to name.
NOT_IN_A_TRANSACTION = {"datetime", "os", "random", "secrets", "threading", "time", "uuid"}

MODULES = sorted(LIBRARY.rglob("*.py"))  # the first module has the public names
COMMANDS = sorted((ROOT / "cli").glob("*.py"))
RECIPES = sorted((ROOT / "recipes").glob("*.py"))
USES = ("invoices", "booking_reminders", "debt_collection", "orders")
"""Recipes that show uses of queues and jobs instead of how a queue is built."""


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> list[ast.AST]:
    return [*ast.walk(parsed(path))]


def dotted(path: Path) -> str:
    """Return the name of a module, within the library without the name of the library."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return name.removeprefix("fdbqueue.")


def room_of(module: str) -> str:
    parts = module.split(".")
    longest = next((n for n in (2, 1) if ".".join(parts[:n]) in ROOMS), 1)
    return ".".join(parts[:longest])


def is_module(name: str) -> bool:
    path = LIBRARY / name.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the library modules that code imports, without the name of the library."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fdbqueue":
            package = (node.module or "").removeprefix("fdbqueue").removeprefix(".")
            for alias in node.names:
                name = f"{package}.{alias.name}".removeprefix(".")
                yield name if is_module(name) else package
        elif isinstance(node, ast.Import):
            yield from (
                alias.name.removeprefix("fdbqueue").removeprefix(".")
                for alias in node.names
                if alias.name.split(".")[0] == "fdbqueue"
            )


def test_imports_point_down() -> None:
    found: dict[str, set[str]] = {}
    for path in [*MODULES[1:], *COMMANDS]:
        room = room_of(dotted(path))
        allowed = {room, *ROOMS.get(room, ()), *ANYBODYS}
        if room == "cli":
            allowed.add("")  # the public names
        outside = {
            name
            for name in imported(parsed(path))
            if room_of(name) not in allowed and name not in BESIDE.get(room.partition(".")[0], ())
        }
        if outside:
            found[dotted(path)] = outside
    assert found == EXCEPTIONS
    assert len(EXCEPTIONS) <= 2


def test_imports_have_no_cycles() -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for path in MODULES:
        tree = parsed(path)
        at_once = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        graph[dotted(path)] = {
            name or "fdbqueue" for name in imported(ast.Module(body=list(at_once), type_ignores=[]))
        }
    assert list(graphlib.TopologicalSorter(graph).static_order())


def test_the_longest_chain_of_imports_is_limited() -> None:
    assert len(longest_chain()) <= 20


def test_code_inside_a_transaction_cannot_use_clocks_or_randomness() -> None:
    for path in (LIBRARY / "operations").rglob("*.py"):
        names = set[str]()
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom):
                names.add((node.module or "").split(".")[0])
            elif isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
        assert not names & NOT_IN_A_TRANSACTION, path


def packs(path: Path) -> bool:
    """Return whether a module uses the tuple layer or creates a subspace from a prefix."""
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and (node.module, node.names[0].name) == (
            "fdb",
            "tuple",
        ):
            return True
        if isinstance(node, ast.Attribute) and node.attr in ("pack", "unpack"):
            return True
        if isinstance(node, ast.keyword) and node.arg == "rawPrefix":
            return True
    return False


def assigned(path: Path, is_own: bool) -> Iterator[ast.Attribute]:
    """Yield the attributes that a module assigns: those of `self`, or those of other objects."""
    for node in nodes(path):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            of_self = isinstance(node.value, ast.Name) and node.value.id == "self"
            if of_self == is_own:
                yield node


def test_nothing_outside_assigns_to_the_objects_of_operations() -> None:
    """So the time, the options and all else that an operation depends on are arguments."""
    inside = {*(LIBRARY / "operations").rglob("*.py")}
    names = {node.attr for path in inside for node in assigned(path, is_own=True)}
    assert "_known_until" in names
    outside = [
        f"{relative(path)}:{node.lineno}"
        for path in MODULES
        if path not in inside
        for node in assigned(path, is_own=False)
        if node.attr in names
    ]
    assert not outside


def test_only_the_layout_packs_keys() -> None:
    outside = {
        dotted(path)
        for path in MODULES
        if room_of(dotted(path)).split(".")[0] not in ("layout", "embedded") and packs(path)
    }
    assert not outside


def test_a_room_holds_a_limited_number_of_modules() -> None:
    top = [path.name for path in LIBRARY.iterdir() if path.suffix == ".py" or path.is_dir()]
    assert len({*top} - {"__pycache__"}) <= 17
    folders = {path.parent for path in MODULES} - {LIBRARY}
    sizes = {dotted(folder / "__init__.py"): len([*folder.glob("[!_]*.py")]) for folder in folders}
    assert not {room: size for room, size in sizes.items() if size > 14}
    assert {*sizes, "admin", "aio", "cli"} == set(ROOMS)


def test_tests_are_in_the_rooms_of_the_code_they_test() -> None:
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    assert {path.name for path in LIBRARY.iterdir() if path.is_dir()} <= folders | {"__pycache__"}


def test_no_test_imports_from_another_test_module() -> None:
    pattern = re.compile(r"^from [\w.]*\b(test_\w+|conftest) import", re.M)
    tests = (ROOT / "tests").rglob("*.py")
    assert not [path for path in tests if pattern.search(path.read_text())]


def test_no_module_has_more_than_500_lines_of_code() -> None:
    lengths = {relative(path): lines_of_code(path) for path in [*MODULES, *COMMANDS]}
    assert not {path: n for path, n in lengths.items() if n > 500}


def test_a_recipe_needs_only_open_and_transactional() -> None:
    for path in [each for each in RECIPES if each.stem not in USES]:
        names = set[str]()
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fdbqueue"):
                names |= {alias.name for alias in node.names}
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "fdbqueue":
                names.add(node.attr)
        assert names <= {"open", "transactional"}, path


def test_recipes_run_as_programs() -> None:
    for path in sorted((ROOT / "recipes").glob("[!_]*.py")):
        command = [sys.executable, "-m", f"recipes.{path.stem}"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
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
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_a_push_imports_only_the_modules_it_needs(tmp_path: Path) -> None:
    unneeded = {"asyncio", "http", "importlib.metadata", "msgspec", "prometheus_client", "rich"}
    program = (
        "import sys, fdbqueue; from fdbq.main import cli;"
        f"cli(['push', 'jobs', '1', '--db', {str(tmp_path / 'db')!r}], standalone_mode=False);"
        f"assert not {unneeded} & {{*sys.modules}};"
        "rooms = ('fdbqueue.jobs', 'fdbqueue.worker');"
        "assert not [name for name in sys.modules if name.startswith(rooms)];"
        "assert fdbqueue.aio.PriorityQueue is sys.modules['fdbqueue.aio'].PriorityQueue;"
        "assert fdbqueue.Worker.__module__ in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
