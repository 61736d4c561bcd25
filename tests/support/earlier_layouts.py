"""Queues as earlier releases stored them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.layout.names import default_subspace, name_key

LAYOUTS = [4, 5]

_ROWS = Path(__file__).parents[1] / "layout"


def rows_of(layout: int) -> dict[str, dict[str, str]]:
    """Return the rows of a queue of each kind: keys without prefix, and values."""
    path = _ROWS / f"layout{layout}.json"
    found: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))
    return found


def restore(db: Any, space: Subspace, rows: dict[str, str]) -> None:
    """Store rows in the subspace of a queue."""
    for key, value in rows.items():
        db[space.key() + bytes.fromhex(key)] = bytes.fromhex(value)


def restore_named(db: Any, name: str, layout: int, kind: str = "priority") -> None:
    """Store a queue of an earlier layout under a name."""
    space = default_subspace(name, 0)
    restore(db, space, rows_of(layout)[kind])
    db[name_key(name)] = space.key()
