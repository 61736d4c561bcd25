"""Imports that are killed at random store each line once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue import PriorityQueue
from tests.support.waiting import wait_until


def import_and_kill(db: Any, queue: PriorityQueue, command: list[str], enough: int) -> None:
    """Start an import, and kill it once the queue has enough items."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    wait_until(lambda: queue.size(db) >= enough or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_an_import_killed_at_random_stores_each_line_once(
    db: Any, shared_url: str, name: str, tmp_path: Path, rng: random.Random
) -> None:
    source = tmp_path / "lines.jsonl"
    source.write_bytes(b"".join(json.dumps({"n": n}).encode() + b"\n" for n in range(5_000)))
    command = [sys.executable, "-m", "fdbq", "import", name, str(source), "--db", shared_url]
    queue = PriorityQueue.named(db, name)
    while (stored := queue.size(db)) < 3_000:
        import_and_kill(db, queue, command, stored + rng.randrange(1, 1_200))
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert [item.value["n"] for item in queue.items(db)] == list(range(5_000))
    assert fdbqueue.admin.check(db, queue).ok
