"""A range is read page by page."""

from __future__ import annotations

from itertools import chain
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.database.pages import read_pages


def store(db: Any, rows: dict[bytes, bytes]) -> None:
    tr = db.create_transaction()
    for key, value in rows.items():
        tr[key] = value
    tr.commit().wait()


def test_pages_have_all_rows_up_to_the_limit(db: Any, space: Subspace) -> None:
    store(db, {space.pack((n,)): b"" for n in range(20)})
    begin, end = space.range().start, space.range().stop
    for reverse in (False, True):
        expected = [space.pack((n,)) for n in range(20)][:: -1 if reverse else 1]
        for limit in (0, 1, 9, 10, 20, 30):
            taken = list(
                read_pages(
                    *(db, begin, end, lambda _, rows: [row.key for row in rows]),
                    size=5,
                    limit=limit,
                    reverse=reverse,
                )
            )
            assert list(chain.from_iterable(taken)) == expected[: limit or 20]
