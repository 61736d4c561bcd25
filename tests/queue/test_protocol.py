"""The three kinds of queues have the same verbs, with the same options and results."""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import sys
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Queue, TaskQueue, admin, aio
from fdbqueue.admin import check
from fdbqueue.errors import QueueFull
from tests.support.kinds import KINDS, push, value_of
from tests.support.leases import come_due


@pytest.mark.parametrize("kind", KINDS)
def test_the_verbs_do_the_same(db: Any, name: str, kind: Any) -> None:
    queue = kind.named(db, name, max_size=4, max_attempts=1)
    push(db, queue, "first")
    push(db, queue, "later", delay=600)
    second = push(db, queue, "second", unique="k")
    for scope in ({}, {"unique_until": "claimed"}, {"unique_for": "1h"}):
        assert push(db, queue, "third", unique="k", **scope) == second
    assert [value_of(item) for item in queue.peek_many(db, 9)] == ["first", "second"]
    assert value_of(queue.peek(db)) == "first"
    push(db, queue, "fourth")
    if kind is TaskQueue:
        assert queue.push(db, payload="fifth") is None
    else:
        with pytest.raises(QueueFull):
            push(db, queue, "fifth")
    with pytest.raises(QueueFull):
        queue.push_many(db, [{}])
    assert queue.push_many(db, [{}], as_many_as_fit=True) == []
    assert value_of(queue.pop(db)) == "first"
    come_due(db, queue)
    assert [value_of(item) for item in queue.pop_many(db, 9)] == ["later", "second", "fourth"]
    assert queue.pop(db) is queue.peek(db) is None
    push(db, queue, "fails")
    queue.nack(db, queue.claim(db))
    assert queue.stats(db).dead == 1


def test_a_fifo_queue_returns_items_in_their_order_by_the_names_of_the_recipe_too(
    db: Any, space: Subspace
) -> None:
    fifo = Queue(space)
    items = [*fifo.enqueue_many(db, ["a", None, "c"]), fifo.enqueue(db, "x" * 250_000)]
    assert items[0].priority is None
    assert [*fifo.items(db)] == items
    assert [*fifo.items(db, reverse=True, limit=2)] == items[:1:-1]
    assert [*fifo.items(db, after=items[0])] == items[1:]
    assert fifo.remove(db, items[2])
    assert not fifo.remove(db, items[2].id)
    assert [fifo.dequeue(db), *fifo.dequeue_many(db, 9)] == [*items[:2], items[3]]
    for number in range(3):  # also after the queue was empty
        fifo.enqueue(db, number)
        assert fifo.dequeue(db).value == number
    assert fifo.dequeue(db) is None
    fifo.enqueue(db, "gone")
    fifo.clear(db)
    assert (fifo.size(db), fifo.is_empty(db), check(db, fifo).ok) == (0, True, True)


NO_DATABASE = r"expected a database or a transaction, as in push\(db, ...\), not 'value'"


def called(handle: Any, method: str, *args: Any) -> None:
    """Call a method of a blocking handle or of one for asyncio; go through what it lists."""

    async def awaited(returned: Any) -> Any:
        return await returned

    returned = getattr(handle, method)(*args)
    [*(asyncio.run(awaited(returned)) if hasattr(returned, "__await__") else returned)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [2**31, 2**32 + 1, sys.maxsize])
def test_a_maximum_beyond_all_items_means_all(db: Any, name: str, kind: Any, n: int) -> None:
    queue = kind.named(db, name)
    for group in (None, "ada", "bob"):
        push(db, queue, "a", group=group)
    assert len(queue.peek_many(db, n)) == 3
    assert [group.name for group in queue.groups(db, limit=n)] == ["ada", "bob"]
    claim = queue.claim(db, n=n, within=n)
    assert len(claim) == 3
    queue.release(db, claim)
    assert len(queue.pop_many(db.create_transaction(), n)) == 3
    assert len(queue.pop_many(db, n)) == 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", [(), ("more",), ("more", 3)])
def test_a_call_without_a_database_fails(db: Any, name: str, kind: Any, given: Any) -> None:
    queue = kind.named(db, name)
    other = asyncio.run(getattr(aio, kind.__name__).named(db, name))
    n = 0
    for handle in (queue, *(getattr(queue, each, queue) for each in ("schedules", "steps")), other):
        for method in dir(handle):
            if method.startswith("_") or not callable(getattr(handle, method)):
                continue
            parameters = inspect.signature(getattr(handle, method)).parameters
            names, others = [*parameters], [*parameters.values()][1:]
            if names[:1] not in (["db"], ["tr"]) or len(others) < len(given):
                continue
            needed = [each for each in others if each.default is each.empty and each.kind in (1, 3)]
            # Of several mistakes, an error names one.
            match = None if given or needed else NO_DATABASE
            if method != "configure":  # which changes nothing without settings
                with pytest.raises((TypeError, ValueError), match=match):
                    called(handle, method, "value", *given)
                n += 1
    assert n > 30
    assert queue.is_empty(db)


def test_functions_without_a_database_and_calls_with_other_mistakes_say_so(
    db: Any, name: str
) -> None:
    for function in (admin.drop, fdbqueue.existing_queue):
        with pytest.raises(TypeError, match=NO_DATABASE):
            function("value", "jobs")
    queue: Any = fdbqueue.PriorityQueue.named(db, name)
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'item'$"):
        queue.get(db)


@pytest.mark.parametrize("kind", KINDS)
def test_the_repr_shows_names_and_hides_keys_and_tokens(
    db: Any, name: str, space: Subspace, kind: Any
) -> None:
    named = kind.named(db, name)
    assert repr(named) == f"<{kind.__name__} {name!r}>"
    assert repr(kind.named(db, space)) == f"<{kind.__name__} {space!r}>"
    assert repr(getattr(aio, kind.__name__)(named)) == f"<aio.{kind.__name__} {name!r}>"
    pushed = push(db, named, 1)
    shown = repr(named.peek(db)) + repr(named.claim(db))
    assert shown.count(repr(pushed)) == 2
    assert "key" not in shown
    assert "token" not in shown


@pytest.mark.parametrize("kind", KINDS)
def test_reads_take_the_snapshot_of_a_transaction(db: Any, name: str, kind: Any) -> None:
    queue = kind.named(db, name)
    pushed = push(db, queue, 1)
    reads = db.create_transaction().snapshot
    assert queue.size(reads) == 1
    assert not queue.is_empty(reads)
    assert queue.stats(reads) == queue.stats(db)
    assert queue.get(reads, pushed) == queue.get(db, pushed)
    assert queue.position(reads, pushed) == 0
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
        assert queue.get_stats(reads).current_size == 1
    else:
        assert [item.id for item in queue.items(reads)] == [pushed]


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
    push(db, queue, 1, unique="key", ttl=60, **scope)
    queue.nack(db, queue.claim(db), error=OSError("busy"), delay=0)
    (before,) = queue.items(db, state="ready")
    queue.put_back(db, queue.pop_many(db, 2))
    (after,) = queue.items(db, state="ready")
    for field in ("id", "attempts", "expires_at", "unique", "pushed_at"):
        assert getattr(after, field) == getattr(before, field), field
    push(db, queue, 1, unique="key", **scope)
    assert queue.stats(db).ready == 1
    if not scope:
        popped = queue.pop_many(db, 1)
        push(db, queue, 1, unique="key")  # which has the key when the other one is put back
        queue.put_back(db, popped)
        assert {info.unique for info in queue.items(db, state="ready")} == {None, "key"}
