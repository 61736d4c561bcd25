"""Random databases of all states and features, carried by each way: then all of their work ends.

`FDBQ_DATABASES` is the number of databases per engine. A seed that fails is run again by `--seed N`
with a single database.
"""

from __future__ import annotations

import inspect
import io
import os
import random
from typing import Any

import pytest
from fdbq.common import item_json

import fdbqueue
from fdbqueue.admin import backup, check, copy, drop, restore, workers
from fdbqueue.layout import records
from fdbqueue.layout.key_table import Space
from fdbqueue.layout.records import check_record
from fdbqueue.queue.base import store_of
from fdbqueue.queue.schedules import ScheduleOptions
from fdbqueue.queue.settings import GroupSettings, Settings
from fdbqueue.queue.transfer.importing import import_lines
from fdbqueue.queue.transfer.rows import rows_of
from fdbqueue.testing import Clock
from tests.support import random_options
from tests.support.random_databases import GROUP_SETTINGS, RandomDatabase
from tests.support.random_options import LATE, SETTINGS, TASK_SETTINGS, TIMINGS

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
    assert {name: copied.notes for name, copied in copies.items()} == dict.fromkeys(names, ())
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


def copy_each(source: RandomDatabase, there: Any, engine: str) -> None:
    """Copy one queue after the other: jobs of the first go on waiting for jobs of the second.

    The reverse is lost, and `check` ends these waits.
    """
    for name in sorted(source.queues(), key=lambda name: name != source.jobs):
        copy(source.db, there, name)
    second = fdbqueue.existing_queue(there, source.other_jobs)
    problems = check(there, second, repair=True).problems
    assert all("a job waits for jobs that are in no queue" in each for each in problems)


def export_and_import(source: RandomDatabase, there: Any, engine: str) -> None:
    """Import the lines of ready items as `fdbq export` writes them, to priority
    queues; tasks have none."""
    for name, queue in source.queues().items():
        if queue.kind == "task":
            continue
        level_of, items = store_of(queue).levels.level_of, [*queue.items(source.db)]
        lines = [item_json(item, group=level_of(item.key).group).encode() for item in items]
        fields = {"value_field": "value", "group_field": "group"}
        priorities: Any = int
        if queue.kind == "priority":
            priorities = queue.options(source.db).priorities
            fields["priority_field"] = "priority"
        new = fdbqueue.PriorityQueue.named(there, name, priorities=priorities)
        assert import_lines(there, new, lines, "a file", **fields).stored == len(items)
        assert [item.value for item in new.items(there)] == [item.value for item in items]


WAYS = [carry_in_one_file, carry_one_by_one, copy_each, export_and_import]


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


_PASSING = {"RECEIPTS", "IMPORTS", "REQUESTS", "RESULTS", "LEADER", "PLACES"}
"""Key spaces that hold nothing once all clients have stopped, or that only an import writes."""


def test_random_databases_have_every_field_of_every_record_and_every_key_space(
    rng: random.Random, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new field, or a new key space, has to be added to `RandomDatabase`."""
    expected = {space.name for space in Space} - _PASSING
    found: set[str] = set()

    def note(record: Any, fields: Any) -> None:
        expected.update(f"{record.__name__}.{name}" for name in record._fields)
        check_record(record, fields)
        for name, value in zip(record._fields, fields):
            default = record._field_defaults.get(name, ())
            if value != default:
                found.add(f"{record.__name__}.{name}")

    monkeypatch.setattr(records, "check_record", note)
    for _ in range(100):
        with fdbqueue.open("memory:") as db:
            source = RandomDatabase(db, "q-", clock, rng)
            source.fill()
            workers(db)
            for name in source.queues():
                check = records.RowCheck()
                for row in rows_of(db, name)():
                    assert check.problem(*row) is None
                    found.add(Space(row.key[1] if row.key[0] == 0x15 else 0).name)
        if found >= expected:
            return
    assert expected - found == set()


def test_every_option_is_chosen(rng: random.Random) -> None:
    """A new option has to be added to `random_options`."""

    def named(*choices: dict[str, Any]) -> set[str]:
        return {name for choice in choices for name in choice}

    pushes = [random_options.item_options(rng, "key") for _ in range(1_000)]
    parameters = inspect.signature(fdbqueue.PriorityQueue.push).parameters.values()
    assert named(*pushes) == {each.name for each in parameters if each.kind == each.KEYWORD_ONLY}
    assert named(*SETTINGS, *TASK_SETTINGS) == {*Settings.__annotations__}
    assert named(*GROUP_SETTINGS) == {*GroupSettings.__annotations__}
    assert named(*TIMINGS, *LATE, {"group": None}) == {*ScheduleOptions.__annotations__}
