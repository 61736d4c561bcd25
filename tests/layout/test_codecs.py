"""Values nested too deeply to be read everywhere are rejected in every interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import PriorityQueue, TaskQueue
from fdbqueue.errors import InvalidLine, InvalidValue, UndecodableItem
from fdbqueue.layout.codecs import MAX_NESTING
from fdbqueue.queue.repeatable import import_lines
from tests.support.kinds import value_of


def nested(levels: int, around: Callable[[Any, int], Any] | None = None) -> Any:
    value: Any = [] if around is None else ()
    for level in range(levels - 1):
        value = around(value, level) if around else [value] if level % 2 else {"a": value}
    return value


PUSHES: dict[str, Callable[[Any, Any, int], object]] = {
    "push": lambda db, queue, levels: queue.push(db, nested(levels)),
    "task": lambda db, queue, levels: TaskQueue(queue.subspace).push(db, payload=nested(levels)),
    "tuple": lambda db, queue, levels: PriorityQueue(queue.subspace, codec="tuple").push(
        db, nested(levels, lambda value, _: (value,))
    ),
    "import": lambda db, queue, levels: import_lines(
        db, queue, [b"[" * levels + b"]" * levels], None
    ),
}


@pytest.mark.parametrize("way", PUSHES)
def test_values_nested_too_deeply_are_rejected_and_others_returned_unchanged(
    db: Any, queue: PriorityQueue, way: str
) -> None:
    for levels in (MAX_NESTING + 1, 980, 5000):
        with pytest.raises((InvalidValue, InvalidLine), match="nested too deeply: 100 levels"):
            PUSHES[way](db, queue, levels)
    assert queue.size(db) == 0
    PUSHES[way](db, queue, MAX_NESTING)
    kind = {"task": TaskQueue(queue.subspace)}.get(way)
    stored: Any = kind or PriorityQueue.named(db, queue.subspace)
    item = stored.pop(db)
    value, depth = value_of(item), 0
    while value:
        (value,) = value.values() if isinstance(value, dict) else value
        depth += 1
    assert depth == MAX_NESTING - 1


FOREIGN = [b"[" * 101 + b"]" * 101, b"[" * 400 + b"]" * 400, b'["\\ud83d",NaN]']
"""JSON of other programs, which the library refuses to store."""


@pytest.mark.parametrize("stored", FOREIGN)
def test_items_of_another_program_are_read_and_put_back(
    db: Any, queue: PriorityQueue, stored: bytes
) -> None:
    item = queue.push(db, [])
    db[item.key] = stored
    popped = queue.pop(db)
    queue.put_back(db, [popped])
    assert db[item.key] == stored
    queue.nack(db, queue.claim(db), delay=0)
    assert queue.update(db, queue.peek(db), priority=7).id == queue.pop(db).id
    db[queue.push(db, []).key] = b"[" * 49_000 + b"]" * 49_000  # no stack has room for it
    with pytest.raises(UndecodableItem):
        queue.pop(db)
    assert queue.size(db) == 1
