"""Many small ranges are read with few reads, and with the rows that separate reads return."""

from __future__ import annotations

import random
from itertools import chain
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue.database import pages
from fdbqueue.database.pages import read_pages, read_ranges
from tests.support.counting import CountingDatabase


def store(db: Any, rows: dict[bytes, bytes]) -> None:
    tr = db.create_transaction()
    for key, value in rows.items():
        tr[key] = value
    tr.commit().wait()


def as_pairs(rows: Any) -> list[tuple[bytes, bytes]]:
    return [(row.key, row.value) for row in rows]


@pytest.mark.parametrize("is_snapshot", [False, True])
def test_shared_reads_return_what_separate_reads_return(
    db: Any, space: Subspace, rng: random.Random, monkeypatch: pytest.MonkeyPatch, is_snapshot: bool
) -> None:
    def key(number: int) -> bytes:
        return space.key() + number.to_bytes(2, "big")

    for _ in range(30):
        monkeypatch.setattr(pages, "_NEIGHBOURS", rng.choice([1, 2, 5, 50]))
        monkeypatch.setattr(pages, "_MAX_BETWEEN", rng.choice([0, 50, 2000]))
        del db[space.range()]
        stored = rng.sample(range(1000), rng.choice([0, 10, 300]))
        store(db, {key(n): b"v" * rng.choice([0, 5, 500]) for n in stored})
        ends = sorted(rng.choices(range(1000), k=2 * rng.randrange(40)))
        ranges = [(key(begin), key(end)) for begin, end in zip(ends[::2], ends[1::2])]
        if rng.random() < 0.3:
            rng.shuffle(ranges)
        tr = db.create_transaction()
        tr[key(500)] = b"not committed"
        reads = tr.snapshot if is_snapshot else tr
        separate = [as_pairs(tr.get_range(begin, end)) for begin, end in ranges]
        assert [as_pairs(rows) for rows in read_ranges(reads, ranges)] == separate


def test_neighbours_share_a_read_up_to_the_first_that_is_far_away(db: Any, space: Subspace) -> None:
    def key(number: int) -> bytes:
        return space.pack((number,))

    store(db, {key(n): b"" for n in range(200)})
    counting = CountingDatabase(db)
    ranges = [(key(n), key(n + 1)) for n in range(0, 200, 2)]

    def reads() -> int:
        counting.clear()
        assert all(len(rows) == 1 for rows in read_ranges(counting.create_transaction(), ranges))
        return counting.reads

    assert reads() == 2
    store(db, {key(21): b"x" * 3000})  # between the 11th and the 12th
    assert reads() == 2 + 39
    store(db, {key(99): b"x" * 3000})  # between the shared reads
    assert reads() == 2 + 39


def test_a_page_may_leave_rows_to_the_next(db: Any, space: Subspace) -> None:
    store(db, {space.pack((n,)): b"" for n in range(20)})
    begin, end = space.range().start, space.range().stop
    for reverse in (False, True):
        expected = [space.pack((n,)) for n in range(20)][:: -1 if reverse else 1]
        for limit in (0, 1, 9, 10, 20, 30):
            taken = list(
                read_pages(
                    *(db, begin, end, lambda _, rows: [row.key for row in rows[:3]]),
                    size=5,
                    limit=limit,
                    reverse=reverse,
                    taken=len,
                )
            )
            assert list(chain.from_iterable(taken)) == expected[: limit or 20]
