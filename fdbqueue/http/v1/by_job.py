"""The jobs of a queue by name, from a sample of its items."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime
from statistics import median, quantiles
from typing import Any

from fdbqueue.types import ItemInfo

SAMPLE = 500
"""How many items in each state are looked at."""


def by_job(
    items: Iterable[ItemInfo], since: datetime | None, now: datetime
) -> list[dict[str, Any]]:
    """Return the numbers of each job in a sample, in order of their names.

    Args:
        items: The sample; items that are no jobs are left out.
        since: When the first of its done items ended.
        now: The end of the time for which rates are calculated.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    times: dict[str, list[float]] = defaultdict(list)
    first = Counter[str]()
    for info in items:
        if info.job is None:
            continue
        name = info.job.name
        # The last attempt of a done item has not failed, and that of a claimed one not yet.
        failed = info.attempts - (info.state in ("claimed", "done"))
        counts[name].update({info.state: 1, "failed_attempts": failed})
        first[name] += info.state == "done" and info.finished_at == since
        if info.state == "done" and info.run_time is not None:
            times[name].append(info.run_time.total_seconds())
    # The first one began the time, so it is not among those that ended within it.
    seconds = 0.0 if since is None else (now - since).total_seconds()
    numbers = ("ready", "delayed", "claimed", "dead", "done", "failed_attempts")
    return [
        {
            "name": name,
            **{number: found[number] for number in numbers},
            "rate": (found["done"] - first[name]) / seconds if seconds > 0 else None,
            "run_time_median": median(times[name]) if times[name] else None,
            "run_time_p95": _p95(times[name]),
        }
        for name, found in sorted(counts.items())
    ]


def _p95(times: list[float]) -> float | None:
    if len(times) < 2:
        return times[0] if times else None
    return quantiles(times, n=20, method="inclusive")[-1]
