"""A wrong option or argument is refused with its name, and nothing is stored."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import PriorityQueue, Queue, TaskQueue
from fdbqueue.errors import InvalidItemId

NAN = math.nan
KEEPS: list[Any] = [0, -1, True, 1.5, timedelta(0), (1, 2), (timedelta(1), "1d"), (), "7", "0.5s"]
OPTIONS: dict[str, tuple[str, list[Any]]] = {
    "keep": ("keep is a timedelta", [*KEEPS, "99999999999999w"]),
    "max_size": ("max_size is a number from 1, or None", [0, -1, True, 1.5, "2"]),
    "concurrency": ("concurrency is a number from 1 to 10,000", [0, 10_001, 1.5, True, "3"]),
    "kept_attempts": ("is a number from", [0, 1001]),
    "traceback_bytes": ("is a number from", [-1]),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_a_wrong_option_of_a_queue(db: Any, queue: PriorityQueue, option: str) -> None:
    queue.push(db, 1)
    before = queue.options(db)
    error, wrong = OPTIONS[option]
    for value in wrong:
        with pytest.raises(ValueError, match=error):
            queue.configure(db, **{option: value})
        if option in ("keep", "max_size"):
            with pytest.raises(ValueError, match=error):
                PriorityQueue(queue.subspace, **{option: value})
    assert queue.options(db) == before


SECONDS: list[Any] = [-1, NAN, math.inf, "1", "soon", "5 m", "-5m", b"5m", True, -timedelta(1)]
SCOPE = r"unique_until is one of 'claimed', 'ended', not"
PUSHES: list[tuple[str, dict[str, Any]]] = [
    *(("delay is a number of seconds", {"delay": wrong}) for wrong in SECONDS),
    ("at is", {"at": 5}),
    ("at is", {"at": datetime(2030, 1, 1)}),
    ("delay", {"at": datetime.now(timezone.utc), "delay": 1}),
    *(("ttl is a number of seconds", {"ttl": wrong}) for wrong in (0, -1, NAN, "1", True, 10**11)),
    *(("unique is text", {"unique": key}) for key in ("", 1, b"k", "x" * 256, "\ud800")),
    (SCOPE, {"unique": "k", "unique_until": "done"}),
    ("not both", {"unique": "k", "unique_until": "claimed", "unique_for": 1}),
    ("unique_until needs a key", {"unique_until": "claimed"}),
    ("unique_for needs a key", {"unique_for": "1h"}),
    ("unique_for is a number of seconds over 0", {"unique": "k", "unique_for": 0}),
    ("unique_for is a number of seconds, or a text", {"unique": "k", "unique_for": "soon"}),
]


@pytest.mark.parametrize("kind", [PriorityQueue, Queue, TaskQueue])
def test_a_wrong_argument_of_a_push(db: Any, space: Subspace, kind: Any) -> None:
    queue = kind(space["q"])
    value = () if kind is TaskQueue else (1,)
    for error, wrong in PUSHES:
        with pytest.raises((ValueError, TypeError), match=error):
            queue.push(db, *value, **wrong)
        if kind is TaskQueue:
            with pytest.raises((ValueError, TypeError), match=error):
                queue.push_many(db, [wrong])
    assert not [*db[space.range()]]


@pytest.mark.parametrize(
    ("error", "wrong"),
    [
        ("there are 2 values and 1 unique keys", {"unique": ["k"]}),
        ("a key for each value", {"unique": "ab"}),
        ("unique is text", {"unique": ["", "k"]}),
        (SCOPE, {"unique": ["k", "l"], "unique_until": "done"}),
    ],
)
def test_wrong_keys_of_several_values(
    db: Any, queue: PriorityQueue, error: str, wrong: dict[str, Any]
) -> None:
    with pytest.raises((ValueError, TypeError), match=error):
        queue.push_many(db, [1, 2], **wrong)
    assert not [*db.get_range_startswith(queue.subspace.key())]


def test_a_wrong_argument_of_a_claim(db: Any, queue: PriorityQueue) -> None:
    item = queue.push(db, 1)
    wrong: dict[str, tuple[str, list[Any]]] = {
        "lease": ("a lease is", [0, -1, NAN, math.inf, "1", True, None]),
        "n": ("from 1", [0, -1, True, 1.5]),
        "within": ("from 1", [0, -1, True, 1.5, "3", None]),
        "client": ("printable text", ["", "two\nlines", "x" * 256]),
    }
    for argument, (error, values) in wrong.items():
        for value in values:
            with pytest.raises((ValueError, TypeError), match=error):
                queue.claim(db, **{argument: value})
    assert queue.state(db, item) == "ready"
    claim = queue.claim(db)
    for value in wrong["lease"][1]:
        with pytest.raises((ValueError, TypeError), match="a lease is"):
            queue.extend(db, claim, value)
    with pytest.raises(InvalidItemId):
        queue.retry(db, "nonsense")
    queue.nack(db, claim, dead=True)
    for by in ("", "two\nlines", "x" * 256, 7):
        with pytest.raises(ValueError, match="printable"):
            queue.retry(db, item, by=by)
    assert queue.state(db, item) == "dead"


@pytest.mark.parametrize("wait", [b"5", True, None, "5", -1, NAN])
def test_a_wrong_length_of_a_wait(db: Any, queue: PriorityQueue, wait: Any) -> None:
    queue.push(db, "stays")
    with pytest.raises((TypeError, ValueError), match=r"number of seconds|from 0"):
        queue.pop(db, wait=wait)
    with pytest.raises(ValueError, match="nothing sleeps inside a transaction"):
        queue.pop(db.create_transaction(), wait=1)
    assert queue.size(db) == 1
