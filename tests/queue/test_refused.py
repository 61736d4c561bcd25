"""A wrong argument is refused, the error says what is wrong, and nothing changes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import App, Claim, Item, PriorityQueue, Queue, TaskQueue, admin
from fdbqueue.errors import (
    FdbqueueError,
    InvalidItemId,
    InvalidPriority,
    InvalidQueueName,
    InvalidSchedule,
    InvalidTask,
    InvalidValue,
    PayloadTooLarge,
    PushTooLarge,
)
from tests.support.kinds import KINDS

NAN = math.nan
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


def refuses(expected: Any, call: Callable[..., object], *args: Any, **options: Any) -> None:
    """Expect that a call raises an error of a class, or one whose message matches."""
    with pytest.raises((ValueError, TypeError, FdbqueueError)) as caught:
        call(*args, **options)
    if isinstance(expected, str):
        assert re.search(expected, str(caught.value))
    else:
        assert isinstance(caught.value, expected), caught.value


# Pushes

SECONDS: list[Any] = [-1, NAN, math.inf, "1", "soon", "5 m", "-5m", b"5m", True, -timedelta(1)]
SCOPE = r"unique_until is one of 'claimed', 'ended', not"
PUSHES: list[tuple[str, dict[str, Any]]] = [
    *(("delay is a number of seconds", {"delay": wrong}) for wrong in SECONDS),
    ("at is", {"at": 5}),
    ("at is", {"at": datetime(2030, 1, 1)}),
    ("delay", {"at": datetime.now(UTC), "delay": 1}),
    *(("ttl is a number of seconds", {"ttl": wrong}) for wrong in (0, -1, NAN, "1", True, 10**11)),
    *(("unique is text", {"unique": key}) for key in ("", 1, b"k", "x" * 256, "\ud800")),
    (SCOPE, {"unique": "k", "unique_until": "done"}),
    ("not both", {"unique": "k", "unique_until": "claimed", "unique_for": 1}),
    ("unique_until needs a key", {"unique_until": "claimed"}),
    ("unique_for needs a key", {"unique_for": "1h"}),
    ("unique_for is a number of seconds over 0", {"unique": "k", "unique_for": 0}),
    ("unique_for is a number of seconds, or a text", {"unique": "k", "unique_for": "soon"}),
    *(("text of 1 to 255", {"group": wrong}) for wrong in ("", "x" * 256, 7, b"ada")),
    *(("cost", {"group": "ada", "cost": wrong}) for wrong in ("1", NAN)),
    (r"there is no option '|importance", {"importance": 1}),
]
TASKS: list[tuple[str, dict[str, Any]]] = [
    *(("priority", {"priority": wrong}) for wrong in (0, 6, True, "HIGH", 1.0, None)),
    *(("cost", {"cost": wrong}) for wrong in (-0.01, math.inf, 10**400, Decimal("NaN"), None)),
    *(("cost", {"cost": wrong}) for wrong in ("5", True)),
    *(
        ("deadline", {"deadline": wrong})
        for wrong in (datetime(2026, 5, 4), NOON.date(), NOON.timestamp(), NOON.isoformat())
    ),
    *(("agent_name", {"agent_name": wrong}) for wrong in ("", 7, "x" * 256)),
    *(("client_id", {"client_id": wrong}) for wrong in (b"7", "\ud800")),
    *(("cannot be stored", {"payload": wrong}) for wrong in ({1, 2}, NAN)),
    ("8,000,0", {"payload": "x" * 8_000_001}),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_option_of_a_push(db: Any, space: Subspace, kind: Any) -> None:
    queue = kind(space["q"])
    for words, wrong in [*PUSHES, *(TASKS if kind is TaskQueue else ())]:
        if kind is TaskQueue:
            refuses(words, queue.push, db, **wrong)
            refuses(words, queue.push_many, db, [{"payload": "good"}, wrong])
        else:
            refuses(words, queue.push, db, 1, **wrong)
    assert not [*db[space.range()]]


def recursive() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


class NotBytes:
    """A codec that returns text."""

    def encode(self, value: Any) -> Any:
        return "text"

    def decode(self, payload: bytes) -> Any: ...


VALUES: list[tuple[Any, list[Any], Any]] = [
    ("json", [b"bytes", {1, 2}, {1: "a"}, (1, 2), NAN, math.inf, object()], "cannot be stored"),
    ("json", [[object()], "\ud800", recursive()], InvalidValue),
    ("json", ["x" * 8_000_001], "8,000,003 bytes and an item holds at most 8,000,000"),
    ("bytes", ["text"], InvalidValue),
    ("tuple", [[1], (object(),)], InvalidValue),
    (NotBytes(), [1], "the codec returned str, not bytes"),
]


def test_a_value_that_the_codec_does_not_take(db: Any, space: Subspace) -> None:
    for codec, values, expected in VALUES:
        queue = PriorityQueue[Any](space, codec=codec)
        for value in values:
            refuses(expected, queue.push, db, value)
            refuses(expected, queue.push_many, db, [value] * 2)
    assert not [*db[space.range()]]


TUPLE = (int, float, str)
PRIORITIES: list[tuple[Any, Any, list[Any], str]] = [
    (int, 1, [True, 1.0, "1", None, (1,), 2**63, -(2**63) - 1], "must be a 64-bit integer"),
    (
        *(TUPLE, (1, 2.0, "a")),
        [1, (1, 2.0), [1, 2.0, "a"], (1, 2.0, 3), (True, 2.0, "a"), (1, NAN, "")],
        r"must be a tuple \(int, float, str\)",
    ),
    ((str,), ("a",), [("\ud800",), ("x" * 11_000,)], "priority"),
]


@pytest.mark.parametrize(("kind", "right", "wrong", "words"), PRIORITIES)
def test_a_priority_of_another_type(
    db: Any, space: Subspace, kind: Any, right: Any, wrong: list[Any], words: str
) -> None:
    queue: Any = PriorityQueue(space, priorities=kind)
    item = queue.push(db, "x", right)
    for priority in wrong:
        with pytest.raises(InvalidPriority, match=words) as caught:
            queue.push(db, "y", priority)
        assert caught.value.priority is priority
        refuses(words, queue.push_many, db, ["y", "z"], priorities=[right, priority])
        refuses(words, queue.update, db, item, priority=priority)
    assert [*queue.items(db)] == [item]


# Everything else


class Queues(NamedTuple):
    """A queue of each kind, with items in one of them.

    Attributes:
        claim: A claim of an item of `jobs`.
        dead: A dead letter of `jobs`.
        foreign: An item of `fifo`.
    """

    jobs: Any
    fifo: Any
    tasks: Any
    claim: Claim[Any]
    dead: Item[Any]
    foreign: Item[Any]


@pytest.fixture
def queues(db: Any, name: str) -> Queues:
    jobs: PriorityQueue[Any] = PriorityQueue.named(db, f"{name}jobs")
    fifo: Queue[Any] = Queue.named(db, f"{name}fifo")
    dead = jobs.push(db, "dead")
    jobs.nack(db, jobs.claim(db), dead=True)
    jobs.push(db, "claimed")
    claim: Any = jobs.claim(db, lease=600)
    jobs.push(db, "ready", group="ada")
    return Queues(
        jobs, fifo, TaskQueue.named(db, f"{name}tasks"), claim, dead, fifo.enqueue(db, "foreign")
    )


Call = Callable[[Any, Queues, Any], object]
"""What is called with a database, the queues and a wrong value."""


def configure(option: str) -> Call:
    return lambda db, q, x: q.jobs.configure(db, **{"paused": True, option: x})


def opened(option: str) -> Call:
    return lambda db, q, x: PriorityQueue[Any](q.jobs.subspace, **{option: x})


def set_group(option: str, group: Any = "ada") -> Call:
    return lambda db, q, x: q.jobs.set_group(db, group, **{"weight": 2, option: x})


def push_two(option: str, **others: Any) -> Call:
    return lambda db, q, x: q.jobs.push_many(db, [1, 2], **{option: x, **others})


def claim(option: str) -> Call:
    return lambda db, q, x: q.jobs.claim(db, **{option: x})


def schedule(**options: Any) -> Call:
    """Add a schedule with these options, and one of them in place of a `...`."""

    def add(db: Any, q: Queues, x: Any) -> None:
        given: dict[str, Any] = {"name": "bad", "value": "tick"}
        given |= {key: x if value is ... else value for key, value in options.items()}
        q.jobs.schedules.add(db, given.pop("name"), given.pop("value"), **given)

    return add


def change(verb: Any, state: str | None = "ready", kind: str = "jobs", **options: Any) -> Call:
    given = {"state": state, **options} if state else options
    return lambda db, q, x: getattr(q, kind).change_all(db, verb, **given)


def found(state: str, option: str, kind: str = "jobs") -> Call:
    """Search, count and change what a filter finds; each of them is refused."""

    def call(db: Any, q: Queues, x: Any) -> None:
        queue, given = getattr(q, kind), {"state": state, option: x}
        if option != "scan":
            with pytest.raises((ValueError, FdbqueueError)):
                queue.change_all(db, "remove", **given)
        with pytest.raises((ValueError, FdbqueueError)):
            queue.count(db, **given)
        queue.search(db, **given)

    return call


app: Any = App
NAMES: list[Any] = ["", " x", "x ", "a\nb", "a\x00", "é" * 128, 5, None, b"x"]
IDS: list[Any] = ["", "?", "é", "FQE", "FQEUAQA=", "x" * 1000, None]
TASK_IDS: list[Any] = ["", "x" * 32, "0" * 31, "A" * 32, None, 7, b"0" * 32]
RATES: list[Any] = [(0, 1), (1, 0), (1,), 5, (1.5, 1), (20_000, 1), (1, "soon")]
KEEPS: list[Any] = [0, -1, True, 1.5, timedelta(0), (1, 2), (timedelta(1), "1d"), (), "7", "0.5s"]
FROM_1: list[Any] = [0, -1, True, 1.5, "2"]
LEASES: list[Any] = [0, -1, NAN, math.inf, "1", True, None]
WAITS: list[Any] = [b"5", True, None, "5", -1, NAN]
LARGE = ["x" * 5_000_000] * 2  # which one transaction does not hold
LINES = ["", "two\nlines", "x" * 256]
ALONE = "for 'update' alone"
NO_TRANSACTION = "give a database, not a transaction"
IN: list[Any] = [lambda db: db.create_transaction()]
NO_OPTION = "there is no option '"

CALLS: dict[str, list[tuple[Any, Call, list[Any]]]] = {
    "an option of a queue": [
        ("keep is a timedelta", configure("keep"), [*KEEPS, "99999999999999w"]),
        ("max_size is a number from 1, or None", configure("max_size"), FROM_1),
        ("max_attempts is a number from 1, or None, not 0", configure("max_attempts"), [0]),
        ("concurrency is a number from 1 to 10,000", configure("concurrency"), [0, 10_001, "3"]),
        ("is a number from", configure("kept_attempts"), [0, 1001]),
        ("from 0 to 30,000, not", configure("traceback_bytes"), [-1, 30_001]),
        ("keep_seconds is a number from 1, or None", configure("keep_seconds"), [-1]),
        ("rate", configure("rate"), RATES),
        ("paused is True or False, not 1", configure("paused"), [1]),
        ("there is no option 'size': .*max_size", configure("size"), [3]),
        ("give it without them", lambda db, q, x: q.jobs.configure(db, keep=5, keep_number=x), [3]),
    ],
    "an option of a handle": [
        ("keep is a", opened("keep"), KEEPS),
        ("max_size", opened("max_size"), FROM_1),
        ("priorities must be int or a tuple", opened("priorities"), [str, (), "int", (bool,)]),
        ("no codec is named|a codec must be", opened("codec"), ["pickle", "", 5, bytes]),
    ],
    "a setting of a group": [
        ("max_size", set_group("max_size"), [0, "2"]),
        ("rate", set_group("rate"), RATES),
        ("weight", set_group("weight"), [0, "1", NAN]),
        (NO_OPTION, set_group("weights"), [1]),
        ("have only a weight", set_group("concurrency", group=""), [1]),
        ("have only a weight", set_group("rate", group=""), [(1, 1)]),
        ("a group", lambda db, q, x: q.jobs.group_settings(db, x), ["x" * 256]),
        ("text of 0 to 255", lambda db, q, x: q.jobs.groups(db, after=x), ["\ud800", 7]),
    ],
    "several values": [
        ("2 values and 1 priorities", push_two("priorities"), [[1]]),
        ("there are 2 values and 1 unique keys", push_two("unique"), [["k"]]),
        ("a key for each value", push_two("unique"), ["ab"]),
        ("unique is text", push_two("unique"), [["", "k"]]),
        (SCOPE, push_two("unique_until", unique=["k", "l"]), ["done"]),
        ("text of 1 to 255", push_two("groups"), [["", "ada"]]),
        (NO_OPTION, push_two("uniques"), [["k", "l"]]),
        *(
            (PushTooLarge, lambda db, q, x, keys=keys: q.jobs.push_many(db, x, **keys), [LARGE])
            for keys in ({}, {"unique": ["k", "l"]})
        ),
    ],
    "a pop or a claim": [
        ("n is a number", lambda db, q, x: q.jobs.pop_many(db, x), [-1, True, 1.0, "2", None]),
        ("number of seconds|from 0", lambda db, q, x: q.jobs.pop(db, wait=x), WAITS),
        ("nothing sleeps", lambda db, q, x: q.jobs.pop(db.create_transaction(), wait=x), [1]),
        ("a lease is", claim("lease"), LEASES),
        ("from 1", claim("n"), FROM_1),
        ("from 1", claim("within"), [*FROM_1, None]),
        ("printable text", claim("client"), LINES),
        ("a lease is", lambda db, q, x: q.jobs.extend(db, q.claim, x), LEASES),
        ("a text or an exception", lambda db, q, x: q.jobs.nack(db, q.claim, error=x), [b"x", 1]),
        ("printable", lambda db, q, x: q.jobs.retry(db, q.dead, by=x), [*LINES, 7]),
        ("limit", lambda db, q, x: [*q.jobs.items(db, limit=x)], [-1]),
        (NO_OPTION, lambda db, q, x: [*q.jobs.items(db, grouped=x)], ["ada"]),
    ],
    "an id": [
        ("is not the id of an item", lambda db, q, x: q.jobs.remove(db, x), IDS),
        (InvalidItemId, lambda db, q, x: q.jobs.retry(db, x), IDS),
        (InvalidItemId, lambda db, q, x: q.jobs.pushed_at(x), ["nonsense"]),
        (InvalidItemId, lambda db, q, x: q.jobs.remove(db, q.foreign), [""]),
        (InvalidItemId, lambda db, q, x: q.jobs.update(db, q.foreign, priority=1), [""]),
        (InvalidItemId, lambda db, q, x: q.jobs.put_back(db, [q.foreign]), [""]),
        (InvalidItemId, lambda db, q, x: [*q.jobs.items(db, after=q.foreign)], [""]),
        (InvalidItemId, lambda db, q, x: q.tasks.get_task(db, x), TASK_IDS),
        (InvalidItemId, lambda db, q, x: q.tasks.position(db, x), TASK_IDS),
        (InvalidItemId, lambda db, q, x: q.tasks.update(db, x, priority=2), TASK_IDS),
        (InvalidItemId, lambda db, q, x: q.tasks.put_back(db, [x]), TASK_IDS),
        (InvalidTask, lambda db, q, x: q.tasks.get_tasks_for_agent(db, x), ["", None]),
        (InvalidTask, lambda db, q, x: q.tasks.get_tasks_for_client(db, x), ["", 7]),
    ],
    "a filter": [
        ("agent: the items", found("ready", "agent"), ["ada"]),
        ("error: done items", found("done", "error"), ["refused"]),
        ("client: only claimed", found("dead", "client"), ["mail-1"]),
        ("error is text", found("dead", "error"), [""]),
        ("id is text", found("dead", "id"), [7]),
        ("job is text", found("dead", "job"), [""]),
        ("scan is a number", found("dead", "scan"), [0]),
        ("priority", found("dead", "priority"), ["high"]),
        ("a state is one of", found("late", "limit"), [1]),
        ("priority: the items of a fifo", found("ready", "priority", "fifo"), [1]),
        ("priority", found("ready", "priority", "tasks"), [9]),
    ],
    "a change of all items": [
        ("is not a change of claimed items", change("remove", "claimed"), [None]),
        ("is not a change of ready items", change("retry"), [None]),
        ("is not a change of done items", change("release", "done"), [None]),
        ("is not a change of ready items", change("explode"), [None]),
        (InvalidPriority, change("update", kind="fifo", to={"priority": 1}), [None]),
        (NO_OPTION, change("update", to={"cost": 1}), [None]),
        ("a fifo queue have no priorities", change("remove", kind="fifo", priority=1), [None]),
        (ALONE, change("update"), [None]),
        (ALONE, change("remove", to={"priority": 1}), [None]),
        ("None matches every item", change("clear", None, group=None), [None]),
        ("a group is text of 0 to 255 bytes", change("cancel", None, group=7), [None]),
    ],
    "a transaction where a call makes its own": [
        (NO_TRANSACTION, lambda db, q, x: q.jobs.change_all(x(db), "remove", state="ready"), IN),
        (NO_TRANSACTION, lambda db, q, x: q.tasks.search(x(db), state="ready"), IN),
        (NO_TRANSACTION, lambda db, q, x: q.fifo.count(x(db), state="ready"), IN),
    ],
    "a schedule": [  # the plain mistakes are those of every door
        (InvalidSchedule, schedule(cron=...), ["* * *", "0 0 31 2 *"]),
        ("there is no time zone", schedule(cron="* * * * *", tz=...), ["../etc/passwd"]),
        ("overlap is one of", schedule(every="1h", overlap=...), ["some"]),
        ("a name is printable text", schedule(every="1h", name=...), [""]),
        (PayloadTooLarge, schedule(every="1h", value=...), ["x" * 100_000]),
        (NO_OPTION, schedule(every="1h", overlaps=...), ["skip"]),
    ],
    "a name": [
        *(
            ("cannot be the name of a queue", lambda db, q, x, call=call: call(db, x), NAMES)
            for call in (PriorityQueue.named, admin.drop)
        ),
        (InvalidQueueName, lambda db, q, x: admin.rename(db, "any", x), NAMES),
        *(
            (InvalidQueueName, lambda db, q, x, look=look: look(db, after=x), [" "])
            for look in (admin.queue_names, admin.overview)
        ),
        ("limit is a number of queues from 0", lambda db, q, x: admin.overview(db, limit=x), [-1]),
    ],
    "an option of a job": [
        (NO_OPTION, lambda db, q, x: app(db).job(prio=x), [1]),
        (NO_OPTION, lambda db, q, x: app(db).job(name="job")(print).using(delays=x), [1]),
        (NO_OPTION, lambda db, q, x: type(q.jobs).named(db, "any", concurrency=x), [1]),
    ],
}


@pytest.mark.parametrize("area", CALLS)
def test_a_wrong_argument_changes_nothing(db: Any, queues: Queues, area: str) -> None:
    def stored() -> list[tuple[bytes, bytes]]:
        handles = (queues.jobs, queues.fifo, queues.tasks)
        rows = [db.get_range_startswith(each.subspace.key()) for each in handles]
        return [(row.key, row.value) for each in rows for row in each]

    before = stored()
    for expected, call, values in CALLS[area]:
        for value in values:
            refuses(expected, call, db, queues, value)
    assert stored() == before
