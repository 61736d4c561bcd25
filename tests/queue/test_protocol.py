"""The three kinds of queues have the same verbs, with the same options and results."""

from __future__ import annotations

import asyncio
import inspect
import re
from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue, Queue, TaskQueue, admin, aio, options
from fdbqueue.admin import check
from fdbqueue.errors import QueueFull
from fdbqueue.options import Filters
from tests.support.leases import come_due

KINDS = [PriorityQueue, Queue, TaskQueue]
PUSH = {"group", "delay", "at", "ttl", "unique", "unique_until", "unique_for"}
VERBS = {
    "push": PUSH,
    "push_many": {"as_many_as_fit"},
    "pop": {"wait"},
    "pop_many": {"n", "wait"},
    "peek": set[str](),
    "peek_many": {"n"},
    "claim": {"lease", "n", "within", "wait", "client"},
    "items": {"state", "limit", "after", "reverse", *Filters.__annotations__},
    "named": {"max_size", "max_attempts", "keep"},
}


def value_of(item: Any) -> Any:
    return item.payload if hasattr(item, "payload") else item.value


def push(queue: Any, db: Any, value: str, **options: Any) -> Any:
    if isinstance(queue, TaskQueue):
        return queue.push(db, payload=value, **options)
    return queue.push(db, value, **options)


def arguments(function: Any) -> set[str]:
    """Return the names of the arguments of a method, with its options."""
    named = set[str]()
    for name, parameter in inspect.signature(function).parameters.items():
        kind = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
        named |= {name} if kind is None else {*getattr(options, kind[1]).__annotations__}
    return named


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_the_verb_with_its_options(kind: Any, verb: str) -> None:
    assert VERBS[verb] <= arguments(getattr(kind, verb))
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
    if isinstance(queue, TaskQueue):
        assert push(queue, db, "fifth") is None
    else:
        with pytest.raises(QueueFull):
            push(queue, db, "fifth")
    with pytest.raises(QueueFull):
        queue.push_many(db, [{}] if isinstance(queue, TaskQueue) else ["fifth"])
    assert queue.push_many(db, [{}], as_many_as_fit=True) == []
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


NO_DATABASE = r"expected a database or a transaction, as in push\(db, ...\), not 'value'"


def called(handle: Any, method: str, *args: Any) -> None:
    """Call a method of a blocking handle or of one for asyncio; go through what it lists."""

    async def awaited(returned: Any) -> Any:
        return await returned

    returned = getattr(handle, method)(*args)
    [*(asyncio.run(awaited(returned)) if hasattr(returned, "__await__") else returned)]


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


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (admin.queue_names, ()),
        (admin.overview, ()),
        (admin.drop, ("jobs",)),
        (admin.rename, ("jobs", "mail")),
        (fdbqueue.existing_queue, ("jobs",)),
    ],
)
def test_a_function_without_a_database_says_so(function: Any, given: tuple[str, ...]) -> None:
    with pytest.raises(TypeError, match=NO_DATABASE):
        function("value", *given)


def test_an_error_of_a_call_with_a_database_stays(db: Any, name: str) -> None:
    queue: Any = fdbqueue.PriorityQueue.named(db, name)
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'item'$"):
        queue.get(db)
    with pytest.raises(TypeError, match="a claim is needed"):
        queue.nack(db, None)
