"""The recipes with levels: one key per item with a map of counts, or one key per segment."""

from __future__ import annotations

import random
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from recipes.n_queue import NQueue
from recipes.segmented_queue import SegmentedQueue

KINDS: list[Any] = [NQueue, SegmentedQueue]


def test_a_level_is_drained_in_order_before_the_next(db: Any, space: Subspace) -> None:
    levels = NQueue(space)
    for value, level in [(b"later", 1), (b"a", 0), (b"b", 0), (b"last", 1000)]:
        levels.push(db, value, level)
    levels.push(db, b"c")  # the default is the most urgent level
    assert levels.pop(db, 0) == []
    assert levels.pop(db, 3) == [(0, b"a"), (0, b"b"), (0, b"c")]
    assert levels.pop(db, 100) == [(1, b"later"), (1000, b"last")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", [-1, 1.0, "1", None, True])
def test_an_invalid_level_is_rejected(db: Any, space: Subspace, kind: Any, level: Any) -> None:
    with pytest.raises(ValueError, match="a level is an integer from 0"):
        kind(space).push(db, b"x", level)
    assert list(db.get_range_startswith(space.key())) == []


def test_a_count_without_an_item_does_not_hide_the_next_level(db: Any, space: Subspace) -> None:
    queue = NQueue(space)
    queue.push(db, b"x", 5)
    db[space["counts"].pack((0,))] = (3).to_bytes(8, "little")
    assert queue.pop(db) == [(5, b"x")]


def test_concurrent_threads_pop_each_item_of_a_segmented_queue_once(
    db: Any, space: Subspace
) -> None:
    def push(first: int) -> None:
        for number in range(first, first + 40):
            SegmentedQueue(space, 7).push(db, b"%03d" % number)

    def pop(_: int) -> list[bytes]:
        queue = SegmentedQueue(space, 7, buffer_segments=2)
        return [item[1] for _ in range(60) if (item := queue.pop(db)) is not None]

    with ThreadPoolExecutor(4) as pool:
        pushing = [pool.submit(push, first) for first in (0, 100)]
        popped = [*pool.map(pop, range(2))]
    for each in pushing:
        each.result()
    for values in popped:
        for is_first in (True, False):  # of the two that push, each in its order
            mine = [value for value in values if (value < b"1") is is_first]
            assert mine == sorted(mine)
    left = [item[1] for item in iter(lambda: SegmentedQueue(space, 7).pop(db), None)]
    numbers = sorted(int(value) for value in [*popped[0], *popped[1], *left])
    assert numbers == [*range(40), *range(100, 140)]


@pytest.mark.parametrize("kind", KINDS)
def test_levels_agree_with_lists(db: Any, space: Subspace, rng: random.Random, kind: Any) -> None:
    """Random pushes and pops through two queue objects, with segments of random sizes."""
    size, ahead = (rng.randrange(1, 5), rng.randrange(3)) if kind is SegmentedQueue else ((), ())
    clients = [kind(space, size, buffer_segments=ahead) if size else kind(space) for _ in range(2)]
    model: dict[int, deque[bytes]] = {}
    for number in range(120):
        client = rng.choice(clients)
        if rng.random() < 0.55:
            level = rng.choice([0, 5, 1000])
            client.push(db, b"%d" % number, level)
            model.setdefault(level, deque()).append(b"%d" % number)
        else:
            level = min((level for level, items in model.items() if items), default=-1)
            expected = None if level < 0 else (level, model[level].popleft())
            taken = client.pop(db)
            assert (taken if size else next(iter(taken), None)) == expected
        assert client.counts(db) == {level: len(items) for level, items in model.items() if items}


@pytest.mark.parametrize("ahead", [0, 3])
def test_a_pop_loads_few_segments(db: Any, space: Subspace, ahead: int) -> None:
    queue = SegmentedQueue(space, segment_size=10, buffer_segments=ahead)

    @fdbqueue.transactional
    def fill(tr: Any) -> None:
        for number in range(100):
            queue.push(tr, b"%d" % number)

    fill(db)
    most = 0
    for number in range(60):
        assert queue.pop(db) == (0, b"%d" % number)
        most = max(most, sum(map(len, queue.buffer.values())))
    assert most == (1 + ahead) * 10


def test_large_items_make_shorter_segments(db: Any, space: Subspace) -> None:
    queue = SegmentedQueue(space)
    values = [bytes([65 + number]) * 40_000 for number in range(7)]
    for value in values:
        queue.push(db, value)
    assert [queue.pop(db) for _ in values] == [(0, value) for value in values]
    with pytest.raises(ValueError, match="at most 45,000 bytes"):
        queue.push(db, b"x" * 45_001)
