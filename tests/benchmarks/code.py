"""The size and the shape of the code, in counts.

python -m tests.benchmarks.code
"""

from __future__ import annotations

import ast
import io
import sys
import threading
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import fdbqueue

_ROOT = Path(__file__).parents[2]
_LIBRARY = _ROOT / "fdbqueue"
_CORE = ("queue", "coordination", "operations", "layout", "database")
_WARM = 20
"""Rounds before one is counted."""


def main() -> None:
    _show_lines()
    chain = longest_chain()
    print(f"longest chain of imports: {len(chain)}: {' > '.join(chain)}")
    print(f"public names: {len(fdbqueue.__all__)}")
    _show_calls()


# Lines


def _modules(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def lines_of_code(path: Path) -> int:
    """Return the number of lines without docstrings, comments and blank lines."""
    text = path.read_text()
    docstrings = {
        number
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node.value.value, str)
        for number in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = {
        number
        for token in tokens
        if token.type not in _NO_CODE
        for number in range(token.start[0], token.end[0] + 1)
    }
    return len(code - docstrings)


_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def _show_lines() -> None:
    rooms = Counter[str]()
    for path in _modules(_LIBRARY):
        parts = path.relative_to(_LIBRARY).parts
        rooms[parts[0] if len(parts) > 1 else "top level"] += lines_of_code(path)
    print(f"lines of code in fdbqueue/: {rooms.total():,} ({_listed(rooms)})")
    print(f"    of it the core ({', '.join(_CORE)}): {sum(rooms[room] for room in _CORE):,}")
    print(f"lines of code in cli/: {sum(map(lines_of_code, _modules(_ROOT / 'cli'))):,}")


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {n:,}" for name, n in counts.most_common())


# Imports and names


def longest_chain() -> list[str]:
    """Return the longest chain of modules in which each imports the next one when it is loaded."""
    names = {
        ".".join(path.relative_to(_ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in _modules(_LIBRARY)
    }

    def imported(path: Path) -> Iterable[str]:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    yield name if name in names else node.module
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)

    @cache
    def chain(name: str) -> tuple[str, ...]:
        further = {each for each in imported(names[name]) if each in names and each != "fdbqueue"}
        return (name, *max(map(chain, sorted(further)), key=len, default=()))

    longest = max(map(chain, names.keys() - {"fdbqueue"}), key=len)
    return [name.removeprefix("fdbqueue.") for name in longest]


# Calls


class _Calls:
    """Counts the calls of functions of the library while it is entered."""

    def __init__(self) -> None:
        self.functions = Counter[tuple[str, str]]()

    def __enter__(self) -> _Calls:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(_LIBRARY):
            self.functions[str(path.relative_to(_LIBRARY)), frame.f_code.co_name] += 1

    @property
    def files(self) -> int:
        return len({path for path, _ in self.functions})


def _calls_of(function: Callable[[], object]) -> _Calls:
    with _Calls() as calls:
        function()
    return calls


def _show_calls() -> None:
    db = fdbqueue.open("memory:")
    popped = fdbqueue.PriorityQueue.named(db, "popped")
    claimed = fdbqueue.PriorityQueue.named(db, "claimed")
    counted: dict[str, _Calls] = {}
    claims: list[Any] = []
    for _ in range(_WARM):
        counted["push"] = _calls_of(lambda: popped.push(db, 1))
        counted["pop"] = _calls_of(lambda: popped.pop(db))
        claimed.push(db, 1)
        counted["claim"] = _calls_of(lambda: claims.append(claimed.claim(db, lease=60)))
        counted["ack"] = _calls_of(lambda: claimed.ack(db, claims.pop()))
    for name, calls in counted.items():
        engine = sum(n for (path, _), n in calls.functions.items() if path.startswith("embedded"))
        total = calls.functions.total()
        print(f"calls of a {name}: {total} in {calls.files} files, {engine} of them the engine's")


if __name__ == "__main__":
    main()
