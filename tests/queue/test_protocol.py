"""The three kinds of queues have the same verbs, with the same options and results."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from fdbqueue import PriorityQueue, Queue, TaskQueue, aio
from fdbqueue.admin import check
from fdbqueue.errors import QueueFull
from tests.support.leases import come_due

KINDS = [PriorityQueue, Queue, TaskQueue]
PUSH = {"delay", "at", "ttl", "unique", "unique_until", "unique_for", "if_full"}
VERBS = {
    "push": PUSH,
    "push_many": {"as_many_as_fit", "if_full"},
    "pop": {"wait"},
    "pop_many": {"n", "wait"},
    "peek": set[str](),
    "peek_many": {"n"},
    "claim": {"lease", "n", "within", "wait", "client"},
    "named": {"max_size", "max_attempts", "keep"},
    "at": {"max_size", "max_attempts", "keep"},
}


def value_of(item: Any) -> Any:
    return item.payload if hasattr(item, "payload") else item.value


def push(queue: Any, db: Any, value: str, **options: Any) -> Any:
    if isinstance(queue, TaskQueue):
        return queue.push(db, payload=value, **options)
    return queue.push(db, value, **options)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_the_verb_with_its_options(kind: Any, verb: str) -> None:
    assert VERBS[verb] <= inspect.signature(getattr(kind, verb)).parameters.keys()
    assert hasattr(getattr(aio, kind.__name__), verb)


@pytest.mark.parametrize("kind", KINDS)
def test_the_verbs_do_the_same(db: Any, name: str, kind: Any) -> None:
    queue = kind.named(db, name, max_size=4)
    push(queue, db, "first")
    push(queue, db, "later", delay=600)
    push(queue, db, "second", unique="k")
    assert push(queue, db, "third", unique="k") is not None
    assert push(queue, db, "third", unique="k", unique_until="claimed") is not None
    assert push(queue, db, "third", unique="k", unique_for="1h") is not None
    assert [value_of(item) for item in queue.peek_many(db, 9)] == ["first", "second"]
    assert value_of(queue.peek(db)) == "first"
    push(queue, db, "fourth")
    assert push(queue, db, "fifth", if_full="drop") is None
    with pytest.raises(QueueFull):
        push(queue, db, "fifth", if_full="raise")
    assert value_of(queue.pop(db)) == "first"
    come_due(db, queue)
    assert [value_of(item) for item in queue.pop_many(db, 9)] == ["later", "second", "fourth"]
    assert queue.pop(db) is None
    assert check(db, queue).ok


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_limits_attempts_from_its_first_push_on(db: Any, name: str, kind: Any) -> None:
    queue = kind.named(db, name, max_attempts=1)
    push(queue, db, "fails")
    queue.nack(db, queue.claim(db))
    assert queue.stats(db).dead == 1


def test_a_fifo_queue_has_the_verbs_of_the_recipe_as_other_names(db: Any, name: str) -> None:
    queue = Queue.named(db, name)
    queue.enqueue(db, "a")
    queue.enqueue_many(db, ["b", "c"])
    assert queue.dequeue(db).value == "a"
    assert [item.value for item in queue.dequeue_many(db, 2)] == ["b", "c"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", ["push", "push_many", "ack", "result", "put_back"])
def test_a_call_without_a_database_says_so(db: Any, name: str, kind: Any, verb: str) -> None:
    async def awaited() -> None:
        queue = await getattr(aio, kind.__name__).named(db, name)
        await getattr(queue, verb)("value")

    queue = kind.named(db, name)
    error = r"expected a database or a transaction, as in push\(db, ...\), not 'value'"
    with pytest.raises(TypeError, match=error):
        getattr(queue, verb)("value")
    with pytest.raises(TypeError, match=error):
        asyncio.run(awaited())
    assert queue.is_empty(db)
