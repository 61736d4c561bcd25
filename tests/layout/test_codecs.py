"""Values nested too deeply to be read everywhere are rejected in every interface."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import PriorityQueue, TaskQueue, aio
from fdbqueue.errors import InvalidLine, InvalidValue, UndecodableItem
from fdbqueue.layout.codecs import MAX_NESTING, json_bytes
from fdbqueue.queue.repeatable import import_lines
from tests.support.shell import Shell, error_of


def nested(levels: int) -> Any:
    value: Any = []
    for level in range(levels - 1):
        value = [value] if level % 2 else {"a": value}
    return value


def nested_tuple(levels: int) -> tuple[Any, ...]:
    value: tuple[Any, ...] = ()
    for _ in range(levels - 1):
        value = (value,)
    return value


PUSHES: dict[str, Callable[[Any, PriorityQueue, int], object]] = {
    "push": lambda db, queue, levels: queue.push(db, nested(levels)),
    "push_many": lambda db, queue, levels: queue.push_many(db, [nested(levels)]),
    "unique": lambda db, queue, levels: queue.push(db, nested(levels), unique="key"),
    "aio": lambda db, queue, levels: asyncio.run(_push(db, queue, nested(levels))),
    "import": lambda db, queue, levels: import_lines(
        db, queue, [b'{"a":[' * (levels // 2) + b"]}" * (levels // 2)], None
    ),
}


async def _push(db: Any, queue: PriorityQueue, value: Any) -> None:
    await aio.PriorityQueue(queue).push(db, value)


@pytest.mark.parametrize("way", PUSHES)
@pytest.mark.parametrize("levels", [MAX_NESTING + 2, 960, 974, 986, 5000])
def test_values_nested_too_deeply_are_rejected_and_nothing_is_stored(
    db: Any, queue: PriorityQueue, way: str, levels: int
) -> None:
    with pytest.raises((InvalidValue, InvalidLine), match="nested too deeply: 100 levels"):
        PUSHES[way](db, queue, levels)
    assert queue.size(db) == 0


@pytest.mark.parametrize("way", PUSHES)
def test_values_nested_to_the_limit_are_returned_unchanged(
    db: Any, queue: PriorityQueue, way: str
) -> None:
    PUSHES[way](db, queue, MAX_NESTING)
    written = json_bytes(queue.pop(db).value)
    assert written.count(b"[") + written.count(b"{") == MAX_NESTING


def test_a_value_nested_one_level_over_the_limit_is_rejected(db: Any, queue: PriorityQueue) -> None:
    with pytest.raises(InvalidValue, match="nested too deeply"):
        queue.push(db, nested(MAX_NESTING + 1))


def test_tasks_and_tuples_have_the_same_nesting_limit(db: Any, space: Subspace) -> None:
    tasks = TaskQueue(space["tasks"])
    tasks.push(db, payload=nested(MAX_NESTING))
    with pytest.raises(InvalidValue, match="nested too deeply"):
        tasks.push(db, payload=nested(MAX_NESTING + 1))
    assert tasks.pop(db).payload == nested(MAX_NESTING)
    tuples = PriorityQueue(space["tuples"], codec="tuple")
    tuples.push(db, nested_tuple(MAX_NESTING))
    with pytest.raises(InvalidValue, match="nested too deeply"):
        tuples.push(db, nested_tuple(MAX_NESTING + 1))
    assert tuples.pop(db).value == nested_tuple(MAX_NESTING)


def test_a_value_that_contains_itself_is_rejected(db: Any, queue: PriorityQueue) -> None:
    value: list[Any] = []
    value += [value, value]
    with pytest.raises(InvalidValue, match="nested too deeply"):
        queue.push(db, value)


@pytest.mark.parametrize("levels", [101, 400])
def test_deeply_nested_items_of_another_program_are_read_and_put_back(
    db: Any, queue: PriorityQueue, levels: int
) -> None:
    item = queue.push(db, [])
    db[item.key] = b"[" * levels + b"]" * levels
    popped = queue.pop(db)
    assert json_bytes(popped.value) == b"[" * levels + b"]" * levels
    queue.put_back(db, [popped])
    assert json_bytes(queue.peek(db).value) == json_bytes(popped.value)
    claim = queue.claim(db)
    queue.nack(db, claim, delay=0)
    assert queue.reprioritize(db, queue.peek(db), 7).id == queue.pop(db).id


def test_text_with_a_lone_surrogate_is_put_back(db: Any, queue: PriorityQueue) -> None:
    """Another program may have written it as a JSON escape."""
    item = queue.push(db, "")
    db[item.key] = b'["\\ud83d",NaN]'
    popped = queue.pop(db)
    queue.put_back(db, [popped])
    assert db[item.key] == b'["\\ud83d",NaN]'


def test_an_item_of_another_program_that_no_stack_has_room_for_is_undecodable(
    db: Any, queue: PriorityQueue
) -> None:
    item = queue.push(db, [])
    db[item.key] = b"[" * 5000 + b"]" * 5000
    with pytest.raises(UndecodableItem):
        queue.pop(db)
    assert queue.size(db) == 1


def test_the_command_line_has_the_same_nesting_limit_as_the_library(
    db: Any, shared_url: str, name: str, tmp_path: Path
) -> None:
    fdbq = Shell(tmp_path, shared_url, name)
    for levels in (101, 950, 980, 5000):
        text = "[" * levels + "]" * levels
        assert "nested too deeply: 100 levels" in error_of(fdbq("push", name, text))
        assert "nested too deeply" in error_of(fdbq("task", "push", name, text))
        assert "line 1" in error_of(fdbq("import", name, stdin=text))
    text = "[" * 100 + "]" * 100 + "\n"
    fdbq.output("push", name, text)
    assert [fdbq.output("peek", name), fdbq.output("pop", name)] == [text, text]
    queue = PriorityQueue.named(db, name)
    old = "[" * 400 + "]" * 400  # as another program may store it
    db[queue.push(db, []).key] = old.encode()
    for command in ("peek", "items", "export", "pop"):
        assert old in fdbq.output(command, name)
