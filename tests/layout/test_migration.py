"""A queue of the layout before this one is migrated, and everything in it stays usable."""

from __future__ import annotations

from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue, TaskQueue
from fdbqueue.admin import migrate
from fdbqueue.errors import LayoutVersionMismatch, QueueNotFound
from fdbqueue.layout.names import name_key
from fdbqueue.layout.values import decode_claim
from tests.support.earlier_layouts import LAYOUTS, restore, rows_of
from tests.support.keys import layout_of


@pytest.fixture(params=LAYOUTS)
def rows(request: Any) -> dict[str, dict[str, str]]:
    """The rows of two queues, as an earlier release stored them: keys without prefix, and values.

    Layout 4 is that of release 0.2. Layout 5 was never released.
    """
    return rows_of(request.param)


def test_a_queue_of_an_earlier_layout_has_to_be_migrated(
    db: Any, space: Subspace, rows: Any
) -> None:
    restore(db, space, rows["priority"])
    queue = PriorityQueue(space)
    for operation in (lambda: queue.push(db, 1), lambda: queue.claim(db)):
        with pytest.raises(LayoutVersionMismatch, match="run `fdbq migrate`"):
            operation()
    assert migrate(db, space)
    assert not migrate(db, space)
    queue.push(db, 1)


def test_a_migrated_queue_keeps_its_items_counts_and_totals(
    db: Any, space: Subspace, rows: Any
) -> None:
    restore(db, space, rows["priority"])
    migrate(db, space)
    queue = PriorityQueue(space)
    assert queue.counts(db) == {5: 2, 1000: 1}
    assert [item.value for item in queue.items(db)] == ["b", "c", "e"]
    stats = queue.stats(db)
    assert (stats.ready, stats.delayed, stats.claimed, stats.dead) == (3, 1, 1, 1)
    assert (stats.total_pushed, stats.total_completed, stats.total_died) == (7, 1, 1)
    assert [letter.item.value for letter in queue.items(db, state="dead")] == ["dead"]
    assert fdbqueue.admin.check(db, queue).ok
    assert [item.value for item in queue.pop_many(db, 9)] == ["b", "c", "e"]
    assert fdbqueue.admin.check(db, queue).ok


def test_earlier_claims_hold_their_slots_until_they_end(
    db: Any, space: Subspace, rows: Any
) -> None:
    restore(db, space, rows["priority"])
    migrate(db, space)
    queue = PriorityQueue(space)
    assert len(queue.claim(db, n=9)) == 1  # of two slots, one is taken
    assert queue.claim(db) is None
    layout = layout_of(queue)
    old = next(iter(db[slice(*layout.range_of(layout.claims))]))
    key = layout.items + old.key[len(layout.claims) :]
    item = fdbqueue.Item("a", -1, layout.item_id(key), key)
    queue.ack(db, fdbqueue.Claim((item,), (1,), (key,), decode_claim(old.value).token))
    assert fdbqueue.admin.check(db, queue).ok
    assert queue.claim(db).item.value == "c"
    assert fdbqueue.admin.check(db, queue).ok


def test_earlier_tasks_hold_the_slots_of_their_agents(db: Any, space: Subspace, rows: Any) -> None:
    restore(db, space, rows["task"])
    migrate(db, space)
    tasks = TaskQueue(space)
    stats = tasks.stats(db)
    assert (stats.ready, stats.claimed, stats.total_pushed, stats.total_completed) == (1, 2, 3, 0)
    assert tasks.claim(db) is None  # each agent has one claimed task
    tasks.push(db, agent_name="eve")
    assert tasks.claim(db).item.agent_name == "eve"
    assert fdbqueue.admin.check(db, tasks).ok


def test_a_late_pop_of_an_earlier_release_is_counted(db: Any, space: Subspace) -> None:
    """It does not read the layout version, and counts as layout 4 does."""
    restore(db, space, rows_of(4)["priority"])
    migrate(db, space)
    queue = PriorityQueue(space)
    layout, item = layout_of(queue), queue.peek(db)

    @fdbqueue.transactional
    def pop(tr: Any) -> None:
        del tr[item.key]
        tr.add(layout.counter_key(layout.level_prefix(item.priority)), bytes([255] * 8))
        tr.add(layout.level_counts, bytes([1, *[0] * 7]))

    pop(db)
    assert queue.counts(db) == {5: 1, 1000: 1}
    assert (queue.size(db), queue.stats(db).total_completed) == (2, 2)


def test_a_queue_is_migrated_by_its_name(db: Any, space: Subspace, name: str, rows: Any) -> None:
    restore(db, space, rows["priority"])
    db[name_key(name)] = space.key()
    with pytest.raises(LayoutVersionMismatch):
        fdbqueue.existing_queue(db, name)
    assert fdbqueue.admin.migrate(db, name)
    assert fdbqueue.existing_queue(db, name).size(db) == 3
    with pytest.raises(QueueNotFound):
        fdbqueue.admin.migrate(db, f"{name}none")


def test_older_and_newer_layouts_cannot_be_migrated(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space)
    queue.push(db, 1)
    layout = layout_of(queue)
    for version in (b"\x15\x03", b"\x15\x63"):
        db[layout.options] = version + b"\x02priority\x00"
        with pytest.raises(LayoutVersionMismatch, match="export the queue with that release"):
            migrate(db, space)
        assert db[layout.options] == version + b"\x02priority\x00"
