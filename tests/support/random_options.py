"""The options of items, queues, groups and schedules, from which tests choose at random.

Random databases and simulations share them. `tests/queue/test_options.py` fails if an option of
the library is missing here.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from typing import Any

GROUPS = ["ada", "bob", "eve", "kim", None]
COSTS = [1.0, 1.0, 0.5, 3.0]
IF_FULL: list[dict[str, Any]] = [{}, {"as_many_as_fit": True}]
"""What a push of several items may do if the queue or their group is full."""

WEIGHTS: list[dict[str, Any]] = [{"weight": weight} for weight in (None, 0.5, 1, 2, 3)]
BOUNDS: list[dict[str, Any]] = [
    *({"max_size": bound} for bound in (None, 1, 2, 2, 4)),
]
IN_ORDER: dict[str, Any] = {"concurrency": 1, "in_order": False}


def limits(rates: Iterable[tuple[int, float]]) -> list[dict[str, Any]]:
    """Return changes of the settings of a group that does not lack room."""
    return [
        *WEIGHTS,
        *({"concurrency": limit} for limit in (None, 1, 1, 2, 3)),
        *({"paused": paused} for paused in (True, False, False)),
        *({"rate": rate} for rate in (None, *rates)),
        {"weight": 2, "concurrency": 2, "paused": False},
    ]


SETTINGS: list[dict[str, Any]] = [
    *({"keep": keep} for keep in (100, "1d")),
    *({"keep_seconds": 86_400}, {"keep_number": 50}),
    *({"max_attempts": 1}, {"max_size": 40}, {"concurrency": 30}, {"rate": (100, 60)}),
    *({"kept_attempts": 2}, {"traceback_bytes": 500}, {"paused": True}),
]
"""Changes of the options of a queue."""

GROUP_SETTINGS = [*limits([(50, 3600)]), *BOUNDS, IN_ORDER]

TIMINGS: list[dict[str, Any]] = [{"cron": "*/5 * * * *", "tz": "Europe/Lisbon"}, {"every": "1h"}]
LATE: list[dict[str, Any]] = [
    *({"missed": missed} for missed in ("all", "latest", "skip")),
    *({"overlap": overlap} for overlap in ("allow", "skip", "queue")),
]


def item_options(chance: random.Random, key: str) -> dict[str, Any]:
    """Return options of a push, some of them unusual; `key` is a unique key."""
    options: dict[str, Any] = {"group": chance.choice(GROUPS), "cost": chance.choice(COSTS)}
    if chance.random() < 0.2:
        options["delay"] = chance.choice([0.05, 3600])
    elif chance.random() < 0.1:
        options["at"] = datetime.now(timezone.utc) + timedelta(days=1)
    if chance.random() < 0.2:
        options["ttl"] = 3600
    if chance.random() < 0.3:
        until: list[dict[str, Any]] = [{}, {"unique_until": "claimed"}, {"unique_for": "1h"}]
        options |= {"unique": key, **chance.choice(until)}
    return options
