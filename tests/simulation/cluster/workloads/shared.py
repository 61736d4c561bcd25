"""What workloads share: the threads of a client, and what must not be left at the end."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Container
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue.layout import Layout
from tests.simulation.cluster.inside.clients import Client

__all__ = ["look_for_leftovers", "run_threads", "wait_for_ends"]

_LONGEST = 300
"""Seconds after which every lease and every delay must be over."""


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


def wait_for_ends(client: Client, db: Any, queue: fdbqueue.PriorityQueue) -> None:
    """Wait until every lease and every delay is over.

    While the cluster recovers its versions stand still, and so do leases.
    """
    end = time.monotonic() + _LONGEST
    while (stats := queue.stats(db)).claimed or stats.delayed:
        if time.monotonic() > end:
            client.problem(f"a lease or a delay does not end: {stats}")
            return
        time.sleep(1)


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
