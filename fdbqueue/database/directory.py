"""FoundationDB's directory layer, on either engine.

    jobs = fdbqueue.directory.create_or_open(db, ("app", "jobs"))
    queue = fdbqueue.PriorityQueue.named(db, jobs)

This is the binding's own code (`fdb.directory`), decorated with `fdbqueue.transactional`.
"""

from __future__ import annotations

import builtins
import importlib.util
from types import ModuleType, SimpleNamespace
from typing import Any

from fdbqueue.database.binding import loaded_binding
from fdbqueue.database.decorator import transactional


def _strinc(prefix: bytes) -> bytes:
    end: bytes = loaded_binding().strinc(prefix)
    return end


_BINDING = SimpleNamespace(impl=SimpleNamespace(transactional=transactional, strinc=_strinc))


def _import(
    name: str, variables: Any = None, local: Any = None, names: Any = (), level: int = 0
) -> Any:
    """Import a module; this library stands for `fdb.impl`, which needs the C library."""
    if name == "fdb" and names == ("impl",):
        return _BINDING
    return __import__(name, variables, local, names, level)


def _load() -> ModuleType:
    """Return a copy of the binding's module that imports by `_import`."""
    spec = importlib.util.find_spec("fdb.directory_impl")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
    spec.loader.exec_module(module)
    return module


_module = _load()
directory: Any = _module.directory
DirectoryLayer: Any = _module.DirectoryLayer
