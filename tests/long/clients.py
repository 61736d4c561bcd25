"""Programs that push, run and account for jobs while something happens to their servers."""

from __future__ import annotations

import subprocess
import sys

PUSHER = """
import sys, time
import fdbqueue
from fdbqueue.errors import QueueFull

db = fdbqueue.open(sys.argv[1])
queue = fdbqueue.PriorityQueue.named(db, "jobs", max_size=2_000)
ends = time.monotonic() + float(sys.argv[2])
pushed, longest = 0, 0.0
while time.monotonic() < ends:
    began = time.monotonic()
    try:
        queue.push_many(db, range(pushed, pushed + 10), priorities=[n % 3 for n in range(10)])
        pushed += 10
    except QueueFull:
        time.sleep(0.05)
    longest = max(longest, time.monotonic() - began)
print(pushed, longest)
"""

WORKER = """
import sys
import fdbqueue

db = fdbqueue.open(sys.argv[1])
queue = fdbqueue.PriorityQueue.named(db, "jobs")
runs = fdbqueue.Subspace(("runs",))

def handle(tr, item):
    tr.add(runs.pack((item.value,)), (1).to_bytes(8, "little"))

fdbqueue.Worker(db, queue, handle, lease=5).run()
"""

CHECK = """
import sys, time
import fdbqueue

PAGE = 10_000  # jobs that one transaction checks

db, pushed = fdbqueue.open(sys.argv[1]), int(sys.argv[2])
queue = fdbqueue.PriorityQueue.existing(db, "jobs")
while (stats := queue.stats(db)).ready or stats.claimed or stats.delayed:
    time.sleep(0.1)
runs = fdbqueue.Subspace(("runs",))
for begin in range(0, pushed + 1, PAGE):
    rows = db[runs.pack((begin,)) : runs.pack((begin + PAGE,))]
    found = {runs.unpack(row.key)[0]: row.value[0] for row in rows}
    assert found == dict.fromkeys(range(begin, min(begin + PAGE, pushed)), 1), begin
assert stats.dead == 0
assert fdbqueue.admin.check(db, queue).ok
"""


def started(text: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a program."""
    given = map(str, arguments)
    return subprocess.Popen([sys.executable, "-c", text, *given], stdout=-1, text=True)
