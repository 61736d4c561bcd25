"""Random databases of all states and features, carried by each way: then all of their work ends.

`FDBQ_DATABASES` is the number of databases per engine. A seed that fails is run again by `--seed N`
with a single database.
"""

from __future__ import annotations

import io
import os
import random
from collections.abc import Callable
from typing import Any

import fdb.tuple
import pytest
from fdbq.output import item_fields, json_line

import fdbqueue
from fdbqueue.admin import backup, copy, drop, restore
from fdbqueue.layout.batches import decode_batch, memberships_of
from fdbqueue.layout.items import decode_group_settings
from fdbqueue.layout.jobs import decode_schedule, decode_signal, decode_step
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import (
    Header,
    decode_attempt,
    decode_metadata,
    header_of,
)
from fdbqueue.queue.backup import Moment, rows_of
from fdbqueue.queue.base import store_of
from fdbqueue.queue.repeatable import import_lines
from fdbqueue.testing import Clock
from tests.long.random_databases import RandomDatabase

DATABASES = int(os.environ.get("FDBQ_DATABASES", "4"))


@pytest.fixture
def seeds(rng: random.Random, request: pytest.FixtureRequest) -> list[int]:
    given = request.config.getoption("--seed")
    return [rng.randrange(2**32) for _ in range(DATABASES)] if given is None else [given]


def carry_in_one_file(source: RandomDatabase, there: Any, engine: str) -> None:
    """Back up all queues and the keys beside them, and restore both."""
    file, names = io.BytesIO(), [*source.queues()]
    # Other tests use the same cluster.
    is_all = engine != "cluster"
    copies = backup(
        source.db, file, None if is_all else names, prefixes=[b"" if is_all else source.own]
    )
    restored = restore(there, file)
    assert restored == copies
    assert restored.prefixes == copies.prefixes
    assert backup(there, io.BytesIO(), names) == copies
    assert source.own_rows(there) == source.own_rows(source.db)


def carry_one_by_one(source: RandomDatabase, there: Any, engine: str) -> None:
    """Back up each queue in a file of its own, and restore them in this order."""
    for name in source.queues():
        file = io.BytesIO()
        backup(source.db, file, [name])
        restore(there, file)


def copy_all(source: RandomDatabase, there: Any, engine: str) -> None:
    """Copy all queues at once."""
    copy(source.db, there, source.queues())


def copy_each(source: RandomDatabase, there: Any, engine: str) -> None:
    """Copy one queue after the other: what jobs of one wait for in another is cancelled."""
    for name in source.queues():
        copy(source.db, there, [name])


def export_and_import(source: RandomDatabase, there: Any, engine: str) -> None:
    """Import the lines of ready items as `fdbq export` writes them, to priority
    queues; tasks have none."""
    for name, queue in source.queues().items():
        if queue.kind == "task":
            continue
        level_of, items = store_of(queue).levels.level_of, [*queue.items(source.db)]
        lines = [
            json_line(item_fields(item, group=level_of(item.key).group)).encode() for item in items
        ]
        fields = {"value_field": "value", "group_field": "group"}
        priorities: Any = int
        if queue.kind == "priority":
            priorities = queue.options(source.db).priorities
            fields["priority_field"] = "priority"
        new = fdbqueue.PriorityQueue.named(there, name, priorities=priorities)
        assert import_lines(there, new, lines, "a file", **fields).stored == len(items)
        assert [item.value for item in new.items(there)] == [item.value for item in items]


WAYS = [carry_in_one_file, carry_one_by_one, copy_all, copy_each, export_and_import]


def test_a_random_database_is_carried_by_each_way(
    db: Any, name: str, engine: str, seeds: list[int], clock: Clock
) -> None:
    for number, seed in enumerate(seeds):
        print(f"--seed={seed}")
        chance = random.Random(seed)
        with fdbqueue.open("memory:") as memory:
            here, there = chance.sample([db, memory], 2)
            source = RandomDatabase(here, f"{name}{number}-", clock, chance)
            target = RandomDatabase(there, f"{name}{number}-", clock)
            source.fill()
            assert source.problems() == []
            way = chance.choice(WAYS)
            print(way.__name__)
            way(source, there, engine)
            assert target.problems() == []
            if way in (carry_one_by_one, copy_each):
                target.cancel_waits()
            lost, queue = chance.choice([*source.queues().items()])
            if chance.random() < 0.5:
                drop(here, lost)
            else:
                queue.clear(here)
            assert source.problems() == []
            for each in (target, source):
                assert each.finish() == []
                assert each.problems() == []
                each.drop()


_PASSING = {7, 8, 9, 10}
"""Key spaces that hold nothing once all clients have stopped."""

_RECORDS: dict[str, Callable[[bytes], Any]] = {
    "items": header_of,
    **dict.fromkeys(
        ("claims", "delayed", "dead", "done"), lambda value: header_of(decode_metadata(value)[1])
    ),
    "attempts": decode_attempt,
    "steps": decode_step,
    "signals": decode_signal,
    "schedules": decode_schedule,
    "batches": decode_batch,
    "followers": memberships_of,
    "group_settings": decode_group_settings,
}
"""The decoders of records, by the key space that has them."""


def test_random_databases_have_every_field_of_every_record_and_every_key_space(
    rng: random.Random, clock: Clock
) -> None:
    """A new field, or a new key space, has to be added to `RandomDatabase`."""
    spaces = {
        name: each for name in vars(Layout) if isinstance(each := getattr(Layout, name), bytes)
    }
    expected = {fdb.tuple.unpack(prefix)[0] for prefix in spaces.values()} - _PASSING
    found: set[Any] = set()

    def note(record: Any) -> None:
        if isinstance(record, list) or type(record) is tuple:
            for each in record:
                note(each)
        if not hasattr(record, "_fields"):
            return
        kind = type(record)
        expected.update(f"{kind.__name__}.{name}" for name in kind._fields)
        for name, value in zip(kind._fields, record):
            if value != kind._field_defaults.get(name, ()):
                found.add(f"{kind.__name__}.{name}")
            note(value)
        if isinstance(record, Header):
            note(memberships_of(record.batch))

    for _ in range(100):
        with fdbqueue.open("memory:") as db:
            source = RandomDatabase(db, "q-", clock, rng)
            source.fill()
            for name in source.queues():
                for key, value in rows_of(db, name, Moment(db)):
                    space = max(
                        (each for each in spaces if key.startswith(spaces[each])),
                        key=lambda each: len(spaces[each]),
                    )
                    found.add(fdb.tuple.unpack(spaces[space])[0])
                    note(_RECORDS.get(space, bytes)(value))
        if found >= expected:
            return
    assert expected - found == set()
