"""The commands `fdbq check` and `fdbq info`."""

from __future__ import annotations

import dataclasses
import platform
import sqlite3
import sys
from importlib.metadata import version

from fdbqueue import embedded, existing_queue
from fdbqueue.admin import LAYOUT_VERSION, queue_names
from fdbqueue.admin import check as check_queue
from fdbqueue.types import Database

from .command import command
from .opening import check_integrity
from .options import argument
from .output import count_noun, show, show_fields, states_text


@command(argument("queue", required=False))
def check(db: Database, queue: str | None, *, repair: bool = False) -> None:
    """Check the counters and indexes of QUEUE, or of all queues with a name.

    On the embedded engine, the database file is checked first; if it is damaged, the command exits
    with code 2 and repairs nothing. A lost write can look like a wrong counter: compare with a
    backup before you use --repair.

    Exits with code 1 if there are problems that were not repaired.

    \b
    Example:
      fdbq check jobs --repair

    Options:
        repair: Correct counters and indexes.
    """
    check_integrity(db, seconds=None)
    failed = False
    for name in queue_names(db) if queue is None else [queue]:
        report = check_queue(db, existing_queue(db, name), repair=repair)
        failed = failed or not (report.ok or report.repaired)
        problems = count_noun(len(report.problems), "problem")
        verdict = "ok" if report.ok else "repaired" if report.repaired else problems
        lines = [f"{name}: {states_text(report)}, {verdict}", *report.problems]
        show({"queue": name, **dataclasses.asdict(report)}, "\n  ".join(lines))
    if failed:
        sys.exit(1)


@command()
def info(db: Database) -> None:
    """Show the engine, the database location and all versions.

    \b
    Example:
      fdbq info
    """
    tr = db.create_transaction()
    fields: dict[str, object] = {"read version": tr.get_read_version().wait()}
    if isinstance(db, embedded.Database):
        fields |= {"engine": "embedded", "where": str(db.path), "durability": db.durability}
    else:
        cluster_file = bytes(tr[b"\xff\xff/cluster_file_path"])
        fields |= {"engine": "foundationdb", "where": cluster_file.decode(errors="replace")}
    fields |= {
        "layout": LAYOUT_VERSION,
        "fdbqueue": version("fdbqueue"),
        "foundationdb binding": version("foundationdb"),
        "sqlite": sqlite3.sqlite_version,
        "python": platform.python_version(),
    }
    show_fields(fields)
