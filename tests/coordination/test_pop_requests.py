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
from fdbqueue.layout.keys import Layout, shard_of
from fdbqueue.layout.values import encode_request, pack_staged
from fdbqueue.queue.base import store_of
from tests.support.keys import layout_of
from tests.support.scan import assert_views_agree

WAITS = b"\x16\x01\x02\x01name\x00"


def test_golden_bytes(space: Subspace) -> None:
    layout, prefix = Layout(space), space.key()
    request = layout.entry_key(layout.requests, 258, b"name")
    assert request == prefix + b"\x15\x07" + WAITS
    assert layout.result_prefix(request) == prefix + b"\x15\x08" + WAITS
    assert layout.leader == prefix + b"\x15\x09"
    assert layout.entry_key(layout.leader, "ends") == prefix + b"\x15\x09\x02ends\x00"
    pops = [(1, False), (20, True)]
    assert encode_request(pops, is_next=False) == b"\x26\x15\x01\x26\x15\x14\x27"
    position = b"\x15\x05\x14\x01r\x00"
    item_of_pop = b"\x05\x01" + position + b"\xff\x00\x01payload\x00\x00"
    result = b"\x05" + item_of_pop + b"\x00" + b"\x05\x00"
    assert pack_staged([[(position, b"payload")], []]) == result


@fdbqueue.transactional
def stage_first(tr: Any, queue: PriorityQueue) -> bytes:
    """Stage the first item for the pop of another process; return its request."""
    store = store_of(queue)
    requests = PopRequests(store.layout, store.items)
    taken = store.items.first(tr, 1)
    request = requests.write(tr, b"other", [(1, False)])
    requests.stage(tr, request, [taken])
    store.items.pop(tr, milliseconds(), [], taken)
    return request


def test_a_first_pop_returns_what_was_staged_for_a_dead_process(
    db: Any, queue: PriorityQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does so on every engine: a backup of a cluster can be restored to any other."""
    items = queue.push_many(db, "ab")
    stage_first(db, queue)
    monkeypatch.setattr(pops, "REQUEST_TIMEOUT", 0)
    assert PriorityQueue(queue.subspace).pop_many(db, 2) == items


def test_items_staged_for_a_dead_process_return_to_the_shard_where_their_group_is_now(
    db: Any, queue: PriorityQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [f"group {number}" for number in range(10)]
    staged = queue.push_many(db, groups, groups=groups)
    for _ in groups:
        stage_first(db, queue)
    queue.configure(db, shards=8)
    others = queue.push_many(db, groups, groups=groups)
    queue.push(db, "first", priority=-1)
    monkeypatch.setattr(pops, "REQUEST_TIMEOUT", 0)
    assert PriorityQueue(queue.subspace).pop(db)
    assert_views_agree(db, queue)
    for group, first, second in zip(groups, staged, others):
        listed = [*queue.items(db, group=group)]
        assert [item.id for item in listed] == [first.id, second.id]
        assert len({shard_of(layout_of(queue).position(item.key)) for item in listed}) == 1


@pytest.mark.parametrize("is_pushed_again", [True, False])
@pytest.mark.parametrize("is_collected", [True, False])
def test_an_item_that_is_staged_holds_its_unique_key_no_more(
    db: Any, queue: PriorityQueue, is_collected: bool, is_pushed_again: bool
) -> None:
    first = queue.push(db, 1, unique="cart")
    request = stage_first(db, queue)
    second = queue.push(db, 2, unique="cart") if is_pushed_again else None
    store = store_of(queue)
    requests = PopRequests(store.layout, store.items)

    @fdbqueue.transactional
    def end(tr: Any) -> None:
        if is_collected:
            requests.note_taken(tr, milliseconds(), requests.take(tr, request) or [])
        else:
            requests.delete(tr, milliseconds(), request)

    end(db)
    last = queue.push(db, 3, unique="cart")
    waiting = [None if is_collected else first, second]
    expected = [item.id for item in waiting if item] or [last.id]
    assert [item.id for item in queue.items(db)] == expected
    assert last.id == expected[-1]
