"""The stored bytes of requests, of the items staged for them, and of the leader's name."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from fdb.subspace_impl import Subspace
from hypothesis import given, settings
from hypothesis import strategies as st

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.coordination.pops import REQUEST_TIMEOUT, PopRequests
from fdbqueue.database.clock import milliseconds
from fdbqueue.database.retrying import run
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import pack_staged, unpack_staged
from fdbqueue.operations.payloads import write_pieces
from fdbqueue.queue.base import store_of
from tests.support.leases import let_versions_pass

WAITS = b"\x16\x01\x02\x01name\x00"
POPS = [(1, False), (20, True)]


@pytest.fixture
def requests(db: Any, space: Subspace) -> PopRequests:
    store = store_of(PriorityQueue(space))
    return PopRequests(store.layout, store.items)


def rows(db: Any, space: Subspace, number: int) -> dict[bytes, bytes]:
    """Return the rows of a key space, without the prefix of the queue."""
    prefix = space.key()
    found = db.get_range_startswith(prefix + bytes((0x15, number)))
    return {row.key[len(prefix) :]: row.value for row in found}


def test_golden_bytes_of_a_request(requests: PopRequests, db: Any, space: Subspace) -> None:
    layout = Layout(space)
    assert layout.request_key(258, b"name") == space.key() + b"\x15\x07" + WAITS
    assert layout.leader == space.key() + b"\x15\x09"
    assert layout.leader_ends == space.key() + b"\x15\x09\x02ends\x00"

    @fdbqueue.transactional
    def write(tr: Any) -> tuple[int, bytes]:
        return tr.get_read_version().wait(), requests.write(tr, b"name", POPS)

    version, key = write(db)
    assert key == layout.request_key(version, b"name")
    (value,) = rows(db, space, 7).values()
    assert value == b"\x26\x15\x01\x26\x15\x14\x27"


def test_golden_bytes_of_staged_items(requests: PopRequests, db: Any, space: Subspace) -> None:
    layout = Layout(space)
    request = layout.request_key(258, b"name")
    item = SimpleNamespace(key=layout.item_key(layout.level_prefix(5), 0, b"r"), value=b"payload")

    @fdbqueue.transactional
    def stage(tr: Any) -> None:
        pops: Any = [[item], []]
        requests.stage(tr, request, pops)

    stage(db)
    item_of_pop = b"\x05\x01\x15\x05\x14\x01r\x00\xff\x00\x01payload\x00\x00"
    result = b"\x05" + item_of_pop + b"\x00" + b"\x05\x00"
    assert rows(db, space, 8) == {b"\x15\x08" + WAITS + b"\x14": result}
    assert run(db, partial(requests.take, request=request)) == [[(item.key, item.value)], []]
    assert rows(db, space, 8) == {}


def test_a_first_pop_returns_what_was_staged_for_a_dead_process(
    db: Any, queue: PriorityQueue
) -> None:
    """It does so on every engine: a backup of a cluster can be restored to any other."""
    items = queue.push_many(db, "ab")
    store = store_of(queue)
    requests = PopRequests(store.layout, store.items)

    @fdbqueue.transactional
    def stage(tr: Any) -> None:
        taken = store.items.first(tr, 1)
        requests.stage(tr, requests.write(tr, b"dead", [(1, False)]), [taken])
        store.items.pop(tr, milliseconds(), [], taken)

    stage(db)
    let_versions_pass(db, REQUEST_TIMEOUT + 1)
    assert PriorityQueue(queue.subspace).pop_many(db, 2) == items
    report = fdbqueue.admin.check(db, queue)
    assert report.ok, report.problems


@settings(max_examples=25)
@given(
    pops=st.lists(
        st.lists(st.tuples(st.binary(min_size=1, max_size=50), st.binary(max_size=90_000)))
    )
)
def test_staged_items_are_split_into_values_that_fit_and_restored(
    pops: list[list[tuple[bytes, bytes]]],
) -> None:
    stored: Any = {}
    write_pieces(stored, b"result", pack_staged(pops))
    assert all(len(value) <= 90_000 for value in stored.values())
    assert unpack_staged(b"".join(stored[key] for key in sorted(stored))) == pops
