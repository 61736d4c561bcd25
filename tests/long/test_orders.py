"""The order of `recipes/orders.py`, whose process is killed at each of its lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fdbqueue
from recipes import orders

LINES = 13

PROGRAM = """
import os, sys, threading, time
from recipes import orders

def work(url, left):
    \"\"\"Work until the order is fulfilled, or die before this line of the recipe is run.\"\"\"

    def trace(frame, event, _):
        nonlocal left
        if frame.f_code.co_filename != orders.__file__:
            return None
        if event == "line":
            if left == 0:
                os._exit(9)
            left -= 1
        return trace

    threading.settrace(trace)
    orders.app.bind(url)
    while orders.app.queue("orders").stats(orders.app.db).done == 0:
        orders.app.work("orders", drain=True, lease=1)
        time.sleep(0.05)

def run_twice(path, line):
    for left, code in (line, 9), (1_000, 0):
        if os.fork() == 0:
            os.dup2(os.open(f"{path}.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT), 1)
            work(f"embedded:{path}", left)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == code, (line, left)

lines = sys.argv[2:]  # which run at the same time, because each waits for the end of a lease
for line in lines:
    if os.fork() == 0:
        run_twice(f"{sys.argv[1]}/{line}", int(line))
        os._exit(0)
assert [os.wait()[1] for _ in lines] == [0] * len(lines)
"""


def test_an_order_is_fulfilled_once_wherever_its_process_is_killed(tmp_path: Path) -> None:
    handles = {}
    for line in range(LINES):
        orders.app.bind(f"embedded:{tmp_path / str(line)}")
        handles[line] = orders.app.db, orders.fulfil.push("order 7").id
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), *map(str, range(LINES))]
    root = Path(orders.__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    queue = fdbqueue.PriorityQueue.existing(orders.app.db, "orders")
    for line, (db, id) in handles.items():
        assert int.from_bytes(db[b"booked order 7"] or b"", "little") == 1
        assert queue.result(db, id) == "1Z of charge of order 7"
        charges = (tmp_path / f"{line}.txt").read_text().count("charge order 7")
        assert charges in ((1, 2) if line < 3 else (1,))
        names = [step.name for step in queue.steps.all(db, id)]
        assert names == ["charge", "book", "cool off", "shipped"]
