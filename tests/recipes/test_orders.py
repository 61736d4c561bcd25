"""The order of `recipes/orders.py`, whose process is killed at each of its lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fdbqueue
from recipes import orders

_KILLED = """
import os, sys
from recipes import orders

left = int(sys.argv[2])

def trace(frame, event, _):
    global left
    if frame.f_code.co_filename != orders.__file__:
        return None
    if event == "line":
        if left == 0:
            os._exit(9)
        left -= 1
    return trace

import threading
threading.settrace(trace)
orders.app.bind(sys.argv[1])
while orders.app.queue("orders").stats(orders.app.db).done == 0:
    orders.app.work("orders", drain=True, lease=1)
print("ended")
"""
LINES = 13


def run(url: str, line: int) -> subprocess.CompletedProcess[str]:
    """Work until the order is fulfilled, or die before this line of the recipe is run."""
    command = [sys.executable, "-c", _KILLED, url, str(line)]
    root = Path(orders.__file__).parents[1]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("line", range(LINES))
def test_an_order_is_fulfilled_once_wherever_its_process_is_killed(
    tmp_path: Path, line: int
) -> None:
    url = f"embedded:{tmp_path / 'db'}"
    orders.app.bind(url)
    handle = orders.fulfil.push("order 7")
    killed = run(url, line)
    assert killed.returncode == 9, killed.stderr
    ended = run(url, 1_000)
    assert ended.stdout.endswith("ended\n"), ended.stderr
    db = fdbqueue.open(url)
    assert int.from_bytes(db[b"booked order 7"] or b"", "little") == 1
    assert handle.result() == "1Z of charge of order 7"
    charges = (killed.stdout + ended.stdout).count("charge order 7")
    assert charges in ((1, 2) if line < 3 else (1,))
    names = [step.name for step in orders.app.queue("orders").steps.all(db, handle.id)]
    assert names == ["charge", "book", "cool off", "shipped"]
