"""The stored bytes of requests, of the items staged for them, and of the leader's name."""

from __future__ import annotations

from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.coordination import pops
from fdbqueue.coordination.pops import PopRequests
from fdbqueue.database.clock import milliseconds
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import encode_request, pack_staged
from fdbqueue.queue.base import store_of

WAITS = b"\x16\x01\x02\x01name\x00"


def test_golden_bytes(space: Subspace) -> None:
    layout, prefix = Layout(space), space.key()
    request = layout.request_key(258, b"name")
    assert request == prefix + b"\x15\x07" + WAITS
    assert layout.result_prefix(request) == prefix + b"\x15\x08" + WAITS
    assert layout.leader == prefix + b"\x15\x09"
    assert layout.leader_ends == prefix + b"\x15\x09\x02ends\x00"
    pops = [(1, False), (20, True)]
    assert encode_request(pops, is_next=False) == b"\x26\x15\x01\x26\x15\x14\x27"
    position = b"\x15\x05\x14\x01r\x00"
    item_of_pop = b"\x05\x01" + position + b"\xff\x00\x01payload\x00\x00"
    result = b"\x05" + item_of_pop + b"\x00" + b"\x05\x00"
    assert pack_staged([[(position, b"payload")], []]) == result


def test_a_first_pop_returns_what_was_staged_for_a_dead_process(
    db: Any, queue: PriorityQueue, monkeypatch: pytest.MonkeyPatch
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
    monkeypatch.setattr(pops, "REQUEST_TIMEOUT", 0)
    assert PriorityQueue(queue.subspace).pop_many(db, 2) == items
    report = fdbqueue.admin.check(db, queue)
    assert report.ok, report.problems
