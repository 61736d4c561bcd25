"""The size and the shape of the code, in counts.

python -m tests.benchmarks.code
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import fdbqueue

_ROOT = Path(__file__).parents[2]
_LIBRARY = _ROOT / "fdbqueue"
_CORE = ("queue", "coordination", "operations", "layout", "database")


def main() -> None:
    _show_lines()
    chain = longest_chain()
    print(f"longest chain of imports: {len(chain)}: {' > '.join(chain)}")
    print(f"public names: {len(fdbqueue.__all__)}")


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


if __name__ == "__main__":
    main()
