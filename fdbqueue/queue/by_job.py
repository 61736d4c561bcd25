"""The jobs of a queue by name, from a sample of its items."""

from __future__ import annotations

from collections import Counter, defaultdict
from statistics import median, quantiles
from time import time
from typing import Any

from fdbqueue.layout.values import utc_time
from fdbqueue.queue.base import BaseQueue, store_of
from fdbqueue.queue.overview import time_as_json
from fdbqueue.types import Database, State

SAMPLE = 500
"""How many items in each state are looked at."""

_STATES: tuple[State, ...] = ("ready", "delayed", "claimed", "dead", "done")


def by_job(db: Database, queue: BaseQueue[Any]) -> dict[str, Any]:
    """Return the numbers of each job in a sample, in order of their names.

    Cost: a read for each state, and one for each done item.

    Args:
        db: The database.
        queue: The queue.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    times: dict[str, list[float]] = defaultdict(list)
    more: list[State] = []
    since, oldest = None, ""  # the first done item of the sample, whatever it is
    for state in _STATES:
        for n, (job, found) in enumerate(store_of(queue).reads.sample(db, state, SAMPLE + 1)):
            if n == SAMPLE:
                more.append(state)
                break
            name = "" if job is None else job.name
            if state == "done":
                since, oldest = found.finished_at, name
                if found.started_at is not None:
                    times[name].append(max(0, found.finished_at - found.started_at) / 1000)
            # The last attempt of a done item has not failed, and that of a claimed one not yet.
            failed = found.attempts - (state in ("claimed", "done"))
            counts[name].update({state: 1, "failed_attempts": failed})
    counts.pop("", None)
    # The first done item began the time, so it is not among those that ended within it.
    seconds = 0 if since is None else time() - since / 1000
    return {
        "jobs": [
            {
                "name": name,
                **{number: found[number] for number in (*_STATES, "failed_attempts")},
                "rate": (found["done"] - (name == oldest)) / seconds if seconds > 0 else None,
                "run_time_median": median(times[name]) if times[name] else None,
                "run_time_p95": _p95(times[name]),
            }
            for name, found in sorted(counts.items())
        ],
        "since": None if since is None else time_as_json(utc_time(since)),
        "more": more,
        "limit": SAMPLE,
    }


def _p95(times: list[float]) -> float | None:
    if len(times) < 2:
        return times[0] if times else None
    return quantiles(times, n=20, method="inclusive")[-1]
