"""The types of the package, of the documentation's examples and of the engines are correct."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import admin, aio, errors, jobs, options, testing, types
from fdbqueue.database.binding import first_greater_or_equal
from tests.support.pages import PAGES, ROOT, program


def settings(tool: str, name: str) -> list[str]:
    """Return a list from the settings of a tool."""
    text = (ROOT / "pyproject.toml").read_text().partition(f"[tool.{tool}]\n")[2]
    (listed,) = re.findall(rf"^{name} = \[(.*)\]", text.partition("\n[")[0], re.M)
    return re.findall(r'"(.*?)"', listed)


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        ["mypy", *settings("mypy", "files")],
        ["pyright", "--pythonpath", sys.executable, *settings("pyright", "include")],
    ],
    ids=["mypy", "pyright"],
)
def test_the_code_and_the_examples_of_the_documentation_pass_the_strict_checks(
    command: list[Any], tmp_path: Path
) -> None:
    # The fields of Django's models have types only for a plugin of mypy.
    programs = {path.relative_to(ROOT): program(path) for path in PAGES}
    pages = {path: text for path, text in programs.items() if "import django" not in text}
    files = []
    for path, text in pages.items():
        if text:
            name = "_".join(path.with_suffix("").parts).replace("-", "_")
            files.append(tmp_path / f"{name}.py")
            files[-1].write_text(text)
    assert len(files) >= 10
    done = subprocess.run(
        [sys.executable, "-m", *command, *files],
        capture_output=True,
        text=True,
        cwd=ROOT,
        # It does not ask for new releases.
        env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_public_names_are_few() -> None:
    modules = (fdbqueue, admin, aio, errors, jobs, options, testing, types)
    assert len(fdbqueue.__all__) <= 22
    assert sum(len(module.__all__) for module in modules) <= 139
    for module in modules:
        assert all(hasattr(module, name) for name in module.__all__)


SPECIAL = {
    "__getitem__",
    "__setitem__",
    "__delitem__",
    "__iter__",
    "__len__",
    "__bytes__",
    "__add__",
}


def interface(protocol: type) -> dict[str, Any]:
    """Return the members of a protocol, including those of the protocols it extends."""
    return {
        name: member
        for base in reversed(protocol.__mro__)
        if base.__module__ == types.__name__
        for name, member in vars(base).items()
        if not name.startswith("_") or name in SPECIAL
    }


def accepts(method: Any, call: Any) -> bool:
    """Return whether a method accepts the arguments of a protocol's method, also by name."""
    given = inspect.signature(method)
    _, *parameters = inspect.signature(call).parameters.values()
    named = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    required = [each for each in parameters if each.default is each.empty]
    try:
        given.bind(*required)
        given.bind(*parameters)
        if len(named) == len(parameters):
            given.bind(**dict.fromkeys(named))
    except TypeError:
        return False
    return True


def differences(found: object, protocol: type) -> list[str]:
    """Return the protocol members that an object lacks or whose arguments it rejects."""
    return [
        name
        for name, member in interface(protocol).items()
        if not (
            iter(found)  # type: ignore[call-overload]  # it may have `__getitem__` instead
            if name == "__iter__"
            else hasattr(found, name)
            and (not inspect.isfunction(member) or accepts(getattr(found, name), member))
        )
    ]


def test_an_engine_implements_the_protocols(db: Any, space: fdbqueue.Subspace) -> None:
    tr = db.create_transaction()
    key = space.pack(("k",))
    tr[key] = b"v"
    selector = first_greater_or_equal(key, 0)
    engine = {
        types.Database: db,
        types.Transaction: tr,
        types.ReadTransaction: tr.snapshot,
        types.Future: tr.get_read_version(),
        types.KeySelector: selector,
        types.Key: tr.get_key(selector),
        types.Value: tr[key],
        types.RangeResult: tr[space.range()],
        types.KeyValue: next(iter(tr[space.range()])),
    }
    found = {protocol.__name__: differences(each, protocol) for protocol, each in engine.items()}
    assert not any(found.values()), found
