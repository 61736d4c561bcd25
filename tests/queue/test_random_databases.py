"""Random databases of all states and features, carried by each way: then all of their work ends.

`FDBQ_DATABASES` is the number of databases.
"""

from __future__ import annotations

import io
import os
import random
from typing import Any

import pytest

import fdbqueue
from fdbqueue.admin import backup, copy, restore
from fdbqueue.layout import records
from fdbqueue.layout.key_table import Space
from fdbqueue.layout.records import check_record
from fdbqueue.queue.transfer.rows import rows_of
from tests.support.random_databases import RandomDatabase

DATABASES = int(os.environ.get("FDBQ_DATABASES", "6"))


@pytest.fixture
def seeds(rng: random.Random) -> list[int]:
    return [rng.randrange(2**32) for _ in range(DATABASES)]


def test_a_random_database_is_carried_by_each_way(seeds: list[int]) -> None:
    for seed in seeds:
        print(f"seed {seed}")
        chance = random.Random(seed)
        with fdbqueue.open("memory:") as db, fdbqueue.open("memory:") as there:
            source = RandomDatabase(db, "q-", chance)
            source.fill()
            assert source.problems() == [], seed
            names = [*source.queues()]
            way = chance.choice(["backup", "copy", "one by one"])
            if way == "backup":
                file = io.BytesIO()
                copies = backup(db, file)
                assert restore(there, file) == copies, seed
                assert backup(there, io.BytesIO()) == copies, seed
                assert {name: copied.notes for name, copied in copies.items()} == dict.fromkeys(
                    names, ()
                )
            elif way == "copy":
                # Jobs of the one wait for jobs of the other.
                for name in sorted(names, key=lambda name: name != source.jobs):
                    copy(db, there, name)
            else:
                for name in names:
                    file = io.BytesIO()
                    backup(db, file, [name])
                    restore(there, file)
            target = RandomDatabase(there, "q-")
            assert target.problems() == [], (seed, way)
            assert target.finish() == {}, (seed, way)
            assert target.problems() == [], (seed, way)
            assert source.finish() == {}, seed
            assert source.problems() == [], seed


_PASSING = {"RECEIPTS", "IMPORTS", "REQUESTS", "RESULTS", "LEADER", "PLACES"}
"""Key spaces that hold nothing once all clients have stopped, or that only an import writes."""


_RARE = {"StoredSchedule.skipped", "Header.alone", "Header.unknown"}
"""Fields that need a tick that comes too early, the death of a worker, or another app."""


def test_random_databases_have_every_field_of_every_record_and_every_key_space(
    rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new field, or a new key space, has to be added to `RandomDatabase`."""
    expected: set[str] = set()
    found: set[str] = set()

    def note(record: Any, fields: Any) -> None:
        expected.update(f"{record.__name__}.{name}" for name in record._fields)
        check_record(record, fields)
        for name, value in zip(record._fields, fields):
            default = record._field_defaults.get(name, ())
            if value != default:
                found.add(f"{record.__name__}.{name}")

    monkeypatch.setattr(records, "check_record", note)
    wanted = {space.name for space in Space} - _PASSING
    for _ in range(60):
        with fdbqueue.open("memory:") as db:
            source = RandomDatabase(db, "q-", rng)
            source.fill()
            for name in source.queues():
                check = records.RowCheck()
                for row in rows_of(db, name)():
                    assert check.problem(*row) is None
                    found.add(Space(row.key[1] if row.key[0] == 0x15 else 0).name)
        if found >= (expected | wanted) - _RARE:
            return
    assert (expected | wanted) - found <= _RARE
