"""Commands that a signal interrupts at any moment end soon, with one line, and lose no item."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from tests.support.shell import Shell, has_handlers
from tests.support.waiting import MAX_WAIT, wait_until

INTERRUPTED = "fdbq: interrupted; committed changes are kept\n"
TRIES = int(os.environ.get("FDBQ_INTERRUPTS", "100"))
"""The number of commands that are interrupted; run more by hand."""

NOTICES = (
    *("serving on", "stopping;", "waiting until there is one"),
    *(" working on ", " done, attempt "),  # a worker may have drained its queue
)


@pytest.fixture
def fdbq(db: Any, shared_url: str, name: str, tmp_path: Path) -> Iterator[Shell]:
    with Shell(tmp_path, shared_url, name) as shell:
        yield shell


def commands(name: str) -> list[tuple[str, ...]]:
    """Return a command of each kind, on queues whose names begin with `name`."""
    items, many, tasks, work = (f"{name}{each}" for each in ("items", "many", "tasks", "work"))
    return [
        ("pop", items, "-n", "3"),
        ("pop", items, "--wait", "5"),
        ("pop", f"{name}never-pushed", "--wait", "5"),
        ("push", work, "1"),
        ("import", f"{name}copy", "lines.jsonl"),
        ("export", many, "out.jsonl"),
        ("items", many),
        ("ls",),
        ("check", many),
        ("limit", many),
        ("info",),
        ("task", "pop", tasks),
        ("task", "push", f"{name}other", "1"),
        ("work", work, "--exec", "true"),
        ("work", work, "--exec", "true", "--drain"),
        ("top", "--json", "--interval", "0.1"),
        ("serve", "--port", "0"),
        ("--help",),
    ]


def is_expected(code: int | None, errors: str) -> bool:
    """Return whether a command whose handlers were there has ended as it has to."""
    lines = [
        line for line in errors.splitlines(True) if not any(notice in line for notice in NOTICES)
    ]
    if code == 130 and lines == [INTERRUPTED]:
        return True
    # The signal ends a process by a worker's second one, or as Python exits.
    return code in (0, 1, -signal.SIGINT) and not lines


def test_commands_end_soon_at_any_moment(
    fdbq: Shell, name: str, db: Any, rng: random.Random
) -> None:
    items = fdbqueue.PriorityQueue.named(db, f"{name}items")
    tasks = fdbqueue.TaskQueue.named(db, f"{name}tasks")
    printed: dict[str, list[Any]] = {"pop": [], "task": []}
    (fdbq.path / "lines.jsonl").write_text("".join(f"{n}\n" for n in range(3000)))
    began = time.monotonic()
    fdbq.output("import", f"{name}many", "lines.jsonl")
    span = time.monotonic() - began  # signals are sent within the time that a command takes
    for number in range(TRIES):
        items.push_many(db, range(3 * number, 3 * number + 3))
        tasks.push(db, payload=number)
        command = rng.choice(commands(name))
        process = fdbq.start(*command)
        if sys.platform == "linux" and rng.random() < 0.8:
            wait_until(partial(has_handlers, process))
        time.sleep(span * rng.random() ** 2)
        is_handled = sys.platform != "linux" or has_handlers(process)
        process.send_signal(signal.SIGINT)
        if rng.random() < 0.6:
            time.sleep(rng.choice([0.02, 0.5]) * rng.random())
            process.send_signal(signal.SIGINT)
        print(*command)
        output, errors = process.communicate(timeout=MAX_WAIT)
        if "pop" in command[:2]:
            lines = [line for line in output.splitlines(True) if line.endswith("\n")]
            printed[command[0]] += map(json.loads, lines)
        # Before its handlers are there, the process ends as Python does.
        assert not is_handled or is_expected(process.returncode, errors), (command, errors)
    left = [item.value for item in items.items(db)]
    assert sorted(printed["pop"] + left) == list(range(3 * TRIES))
    left = [task.payload for task in tasks.get_all_tasks(db)]
    assert sorted(printed["task"] + left) == list(range(TRIES))
    assert not list(fdbq.path.glob(".out.jsonl*"))
    assert fdbq("check").returncode == 0
