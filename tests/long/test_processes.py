"""Real processes on one queue pop each item once, in order, and each process gets some."""

from __future__ import annotations

import os
import signal
from collections import Counter
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.coordination.pops import REQUEST_TIMEOUT
from tests.support.leases import let_versions_pass
from tests.support.separate import separate_processes
from tests.support.threads import in_threads

PROCESSES = THREADS = 4
PUSHES = 100  # of each thread that pushes
ITEMS = int(os.environ.get("FDBQ_ITEMS", "4000"))  # run more by hand
TIMEOUT = 120.0  # seconds after which a test fails instead of waiting

# What a thread does until the queue is empty.
CALLS = {
    "pop_min": lambda queue, db: queue.pop_min(db),
    "pop_max": lambda queue, db: queue.pop_max(db),
    "claim": lambda queue, db: (claim := queue.claim(db, lease=1000)) and claim.item,
}


def process(url: str, space: bytes, kinds: list[str], journal: str, barrier: Any) -> None:
    """Run a thread for each kind of call; each logs an item as soon as it has taken it."""
    db = fdbqueue.open(url)
    queue = PriorityQueue(Subspace(rawPrefix=space))
    queue.size(db)  # a client connects
    barrier.wait(TIMEOUT)

    def work(number: int, kind: str) -> None:
        with Path(f"{journal}.{number}").open("w", buffering=1) as lines:
            if kind == "push":
                for n in range(PUSHES):
                    queue.push(db, f"{journal} {number} {n}", n % 3)
                return
            while (item := CALLS[kind](queue, db)) is not None:
                lines.write(f"{item.value}\n")

    in_threads(partial(work, *each) for each in enumerate(kinds))


class Crew:
    """Processes that start at the same moment."""

    def __init__(self, url: str, queue: PriorityQueue, kinds: list[str], folder: Path) -> None:
        context = separate_processes()
        barrier = context.Barrier(PROCESSES + 1)
        self._journals = [folder / str(number) for number in range(PROCESSES)]
        self.processes = []
        for journal in self._journals:
            arguments = (url, queue.subspace.key(), kinds, str(journal), barrier)
            self.processes.append(context.Process(target=process, args=arguments, daemon=True))
            self.processes[-1].start()
        barrier.wait(TIMEOUT)

    def join(self) -> None:
        for each in self.processes:
            each.join(TIMEOUT)
            assert not each.is_alive()

    def taken(self) -> list[list[list[str]]]:
        """Return the values that each thread of each process has taken so far."""
        return [
            [path.read_text().splitlines() for path in journal.parent.glob(f"{journal.name}.*")]
            for journal in self._journals
        ]


def test_every_process_gets_a_share_of_the_items_in_order(
    db: Any, shared_url: str, queue: PriorityQueue, tmp_path: Path
) -> None:
    """Nothing is pushed meanwhile, so each thread sees the items in queue order."""
    for begin in range(0, ITEMS, 1_000):
        queue.push_many(db, range(begin, begin + 1_000))
    crew = Crew(shared_url, queue, ["pop_min"] * THREADS, tmp_path)
    crew.join()
    taken = crew.taken()
    for values in chain.from_iterable(taken):
        assert [int(value) for value in values] == sorted(int(value) for value in values)
    shares = [sum(map(len, threads)) for threads in taken]
    assert sorted(int(value) for value in chain(*chain(*taken))) == list(range(ITEMS))
    assert min(shares) >= ITEMS / PROCESSES / 10, shares
    assert fdbqueue.admin.check(db, queue).ok


def test_concurrent_pushes_pops_and_claims_return_each_item_once(
    db: Any, shared_url: str, queue: PriorityQueue, tmp_path: Path
) -> None:
    first = [f"first {n}" for n in range(2_000)]
    queue.push_many(db, first, priorities=[n % 3 for n in range(2_000)])
    crew = Crew(shared_url, queue, ["push", "pop_min", "pop_max", "claim"], tmp_path)
    crew.join()
    left = [item.value for item in iter(lambda: queue.pop(db), None)]
    pushed = [f"{tmp_path / str(p)} 0 {n}" for p in range(PROCESSES) for n in range(PUSHES)]
    popped = Counter(chain(left, *chain(*crew.taken())))
    assert popped == Counter(first + pushed)
    assert fdbqueue.admin.check(db, queue).ok


def test_the_remaining_processes_continue_after_others_are_killed(
    db: Any, shared_url: str, queue: PriorityQueue, tmp_path: Path
) -> None:
    """A killed process loses at most the item that each of its threads had just taken."""
    for begin in range(0, ITEMS, 1_000):
        queue.push_many(db, range(begin, begin + 1_000))
    crew = Crew(shared_url, queue, ["pop_min"] * THREADS, tmp_path)
    killed = crew.processes[:2]
    while queue.size(db) > ITEMS * 3 / 4:
        pass
    for each in killed:
        assert each.pid is not None
        os.kill(each.pid, signal.SIGKILL)
    size = queue.size(db)
    crew.join()
    assert size > 0
    let_versions_pass(db, REQUEST_TIMEOUT + 1)
    left = [item.value for item in iter(lambda: queue.pop(db), None)]
    popped = Counter(map(int, chain(map(str, left), *chain(*crew.taken()))))
    assert not popped - Counter(range(ITEMS))
    assert (Counter(range(ITEMS)) - popped).total() <= len(killed) * THREADS
    assert fdbqueue.admin.check(db, queue).ok
