"""What workloads share: the threads of a client, and what must not be left at the end."""

from __future__ import annotations

import hashlib
import itertools
import random
import threading
import time
import traceback
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue.layout.keys import Layout, receipts_before
from fdbqueue.layout.names import workers_range
from fdbqueue.queue.base import store_of
from tests.long.simulation.cluster.inside.clients import Client

_LONGEST = 300
"""Seconds after which every lease and every delay must be over."""
_UNTIL_LISTED = 2.0
"""Seconds after which a worker has begun to list itself."""


def run_threads(client: Client, work: Callable[[str], object], n: int = 2) -> None:
    """Call `work(name)` in each of `n` threads; an error in one of them is a problem."""

    def guarded(name: str) -> None:
        try:
            work(name)
        except Exception:
            client.problem(f"{name} failed: {traceback.format_exc()}")

    names = [f"{client.id}{letter}" for letter in "abcdef"[:n]]
    threads = [threading.Thread(target=guarded, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def act_for(client: Any, name: str, life: float, pause: float) -> None:
    """Do random things for some seconds, with pauses of a random length."""
    end, chance = time.monotonic() + life, random.Random(name)
    while time.monotonic() < end:
        client.act()
        time.sleep(2 * pause * chance.random())


def seconds_of_commits(db: Any, n: int) -> float:
    """Return how long `n` commits take at the moment, seconds each in a slow cluster."""
    began = time.monotonic()
    db[b"a commit"] = b""
    del db[b"a commit"]
    return n * (time.monotonic() - began) / 2


def keep_running(
    client: Client,
    name: str,
    end: float,
    body: Callable[[str, float, Any], object],
    stop: float,
    killed: Callable[[str], object] = bool,
) -> None:
    """Run processes one after the other. Many are killed anywhere, and some stop for a while.

    Args:
        client: The client.
        name: The beginning of their names.
        end: The time at which the last one ends.
        body: `body(name, life, db)` works for about `life` seconds.
        stop: About how long a process stops, in seconds.
        killed: `killed(name)` is called after a process was killed.
    """
    chance = random.Random(f"{client.scenario['seed']} {name}")
    for number in itertools.count():
        if time.monotonic() >= end:
            return
        full, life = f"{name}{number}", min(chance.uniform(2, 20), end - time.monotonic())
        process = client.start_process(partial(body, full, life))
        fate = chance.choice(["killed", "killed", "stopped", "exits"])
        if fate == "killed":
            process.awaits_left = int(10 ** chance.uniform(0, 4))
        elif fate == "stopped":
            time.sleep(life * chance.random())
            process.stop()
            time.sleep(stop * chance.uniform(0.5, 3))
            process.resume()
        while not process.is_killed:
            time.sleep(0.25)
        if process.awaits_left < 0:
            killed(full)


def wait_until(client: Client, is_true: Callable[[], bool], seconds: float, problem: str) -> None:
    """Wait until something is true; note a problem if it takes longer."""
    end = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > end:
            client.problem(f"{problem}, after {seconds} seconds")
            return
        time.sleep(0.5)


def wait_for_ends(client: Client, db: Any, queue: fdbqueue.PriorityQueue) -> None:
    """Wait until every lease and every delay is over.

    While the cluster recovers its versions stand still, and so do leases. Each look ends some,
    and a trim returns the items that are staged for the pops of dead processes.
    """

    def are_over() -> bool:
        store_of(queue).sweeper.trim(db)
        stats = queue.stats(db)
        return not (stats.claimed or stats.delayed)

    wait_until(client, are_over, _LONGEST, "a lease or a delay does not end")


def conclude(
    client: Client,
    db: Any,
    queue: fdbqueue.PriorityQueue[Any],
    problems: Iterable[str],
    operations: Sequence[object],
    **facts: object,
) -> None:
    """Check a queue, and report what a workload has found and how many operations it has made."""
    for problem in [*problems][:10]:
        client.problem(problem)
    report = fdbqueue.admin.check(db, queue)
    if not report.ok:
        client.problem(f"fdbqueue.admin.check: {report.problems}")
    digest = hashlib.sha256("\n".join(map(str, operations)).encode()).hexdigest()
    client.report(operations=len(operations), digest=digest, **facts)


def look_for_leftovers(
    client: Client, db: Any, space: Subspace, expected: Container[str] = ()
) -> None:
    """Note a problem for each kind of key that must be gone when nothing runs."""
    layout = Layout(space)
    prefixes = {
        "a waiter": layout.waiters,
        "a request": layout.requests,
        "a result": layout.results,
        "a lease": layout.leases,
        "a claim": layout.claims,
        "a delay": layout.dues,
        "a receipt": layout.receipts.key(),
    }
    for what, prefix in prefixes.items():
        rows = [] if what in expected else [*db.get_range(*layout.range_of(prefix), limit=3)]
        if rows:
            client.problem(f"{what} is left: {rows}")


def take_dead_waiters(db: Any, queue: fdbqueue.PriorityQueue) -> None:
    """Push into an empty queue until no client counts as one that waits, and empty it again.

    The key of a client that waited when it was killed stays until a push takes it. So as many items
    as there are keys leave none.
    """
    layout = Layout(queue.subspace)
    if waiting := [*db.get_range(*layout.range_of(layout.waiters))]:
        queue.push_many(db, [f"for waiter {i}" for i in range(len(waiting))])
        while queue.pop_many(db, 100):
            pass


def look_a_day_later(client: Client, queue: fdbqueue.PriorityQueue) -> None:
    """Note a problem if a new process, a day later, leaves what processes before it have left.

    Receipts are kept for a day, and the row of a killed worker until another worker is listed,
    which it is a second after its start.
    """
    receipts = Layout(queue.subspace).receipts

    def work(db: Any) -> None:
        queue.push(db, "a day later")
        fdbqueue.Worker(db, queue, lambda item: time.sleep(_UNTIL_LISTED)).run(drain=True)
        prefixes = {
            "a receipt": receipts_before(receipts, int(time.time() // 3600)),
            "the row of a worker": workers_range(),
        }
        for what, prefix in prefixes.items():
            if rows := [*db.get_range(*prefix, limit=3)]:
                client.problem(f"{what} is left a day later: {rows}")

    process = client.start_process(work, skew=26 * 3_600)
    wait_until(client, lambda: process.is_killed, 60, "a process does not end a day later")
