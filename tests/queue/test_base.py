"""The behaviour that all queues share: their `repr` and `dir`."""

from __future__ import annotations

import importlib.metadata
from functools import partial
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue, Queue, TaskQueue, aio
from tests.support.kinds import KINDS


@pytest.mark.parametrize("kind", [PriorityQueue, Queue, TaskQueue])
def test_the_repr_of_a_queue_shows_its_kind_and_its_name_or_subspace(
    db: Any, name: str, space: Subspace, kind: Any
) -> None:
    named = kind.named(db, name)
    assert repr(named) == f"<{kind.__name__} {name!r}>"
    assert repr(kind.named(db, space)) == f"<{kind.__name__} {space!r}>"
    assert repr(getattr(aio, kind.__name__)(named)) == f"<aio.{kind.__name__} {name!r}>"
    assert repr(Queue(Subspace(rawPrefix=b"space"))) == "<Queue Subspace(rawPrefix=b'space')>"


def test_the_repr_of_items_tasks_and_claims_hides_keys_and_tokens(db: Any, space: Subspace) -> None:
    jobs, tasks = PriorityQueue(space["jobs"]), TaskQueue(space["tasks"])
    item = jobs.push(db, "send", 1)
    assert repr(item) == f"Item(value='send', priority=1, id='{item.id}')"
    claim = jobs.claim(db)
    assert repr(claim) == f"Claim(items=({item!r},), attempts=(1,))"
    tasks.push(db)
    assert "key" not in repr(tasks.pop(db))


@pytest.mark.parametrize("kind", [PriorityQueue, Queue, TaskQueue])
def test_reads_take_the_snapshot_of_a_transaction(db: Any, name: str, kind: Any) -> None:
    queue = kind.named(db, name)
    push = queue.enqueue if kind is Queue else queue.push
    pushed = push(db, payload=1) if kind is TaskQueue else push(db, 1)
    reads = db.create_transaction().snapshot
    assert queue.size(reads) == 1
    assert not queue.is_empty(reads)
    assert queue.stats(reads) == queue.stats(db)
    assert queue.get(reads, pushed) == queue.get(db, pushed)
    assert queue.options(reads) == queue.options(db)
    assert queue.state(reads, pushed) == "ready"
    assert list(queue.items(reads, state="dead")) == []
    assert queue.peek(reads) == queue.peek(db)
    assert fdbqueue.admin.overview(reads)[name].ready == 1
    assert name in fdbqueue.admin.queue_names(reads)
    if kind is not Queue:
        assert sum(queue.counts(reads).values()) == 1
    if kind is TaskQueue:
        assert [task.id for task in queue.get_all_tasks(reads)] == [pushed]
        assert queue.get_task(reads, pushed) == queue.peek(db)
        assert queue.position(reads, pushed) == 0
        assert queue.get_stats(reads).current_size == 1
    else:
        assert list(queue.items(reads)) == [pushed]


def test_dir_of_the_library_lists_the_public_names_and_modules() -> None:
    modules = {"admin", "aio", "errors", "jobs", "testing", "types"}
    assert {*dir(fdbqueue)} == {*fdbqueue.__all__, *modules, "__version__"}
    assert all(hasattr(fdbqueue, name) for name in dir(fdbqueue))
    assert fdbqueue.__version__ == importlib.metadata.version("fdbqueue")
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        fdbqueue.nothing_of_the_kind


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scope", [{}, {"unique_until": "claimed"}, {"unique_for": 3600}])
def test_an_item_that_is_put_back_keeps_what_was_stored_with_it(
    db: Any, name: str, kind: Any, scope: dict[str, Any]
) -> None:
    queue = kind.named(db, name)
    push = partial(queue.push, db, payload=1) if kind is TaskQueue else partial(queue.push, db, 1)
    push(unique="key", ttl=60, **scope)
    queue.nack(db, queue.claim(db), error=OSError("busy"), delay=0)
    (before,) = queue.items(db, state="ready")
    queue.put_back(db, queue.pop_many(db, 2))
    (after,) = queue.items(db, state="ready")
    for field in ("id", "attempts", "expires_at", "unique", "pushed_at"):
        assert getattr(after, field) == getattr(before, field), field
    push(unique="key", **scope)
    assert queue.stats(db).ready == 1
    assert fdbqueue.admin.check(db, queue).ok


@pytest.mark.parametrize("kind", KINDS)
def test_an_item_that_is_put_back_leaves_its_unique_key_to_another_one(
    db: Any, name: str, kind: Any
) -> None:
    queue = kind.named(db, name)
    push = partial(queue.push, db, payload=1) if kind is TaskQueue else partial(queue.push, db, 1)
    push(unique="key")
    popped = queue.pop_many(db, 1)
    push(unique="key")
    queue.put_back(db, popped)
    assert sorted(str(info.unique) for info in queue.items(db, state="ready")) == ["None", "key"]
    assert fdbqueue.admin.check(db, queue).ok
