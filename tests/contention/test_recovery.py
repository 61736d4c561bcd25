"""Those who are slow, wait for a dead one, are interrupted, or get what they cannot read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import fdbqueue
from fdbqueue import PriorityQueue

from .line import STAGED, Line


def test_who_is_only_slow_gets_items_all_the_same(
    line: Line[PriorityQueue], the_lease_is_over: Callable[[], None]
) -> None:
    """Its request and its result were taken for those of a dead one: it starts again."""
    pushed = line.queue.push_many(line.db, range(3))
    line.hold()
    slow = line.process()
    slow.db.before_commit[STAGED + 1] = lambda: (
        the_lease_is_over(),
        line.drop_the_dead(),
        line.sleeps.end(),
    )
    call = slow.pop()
    line.release()
    assert line.process().pop().result() == pushed[:1]
    assert call.result() == pushed[1:2]
    assert line.left() == pushed[2:]
    line.assert_sound()


def test_those_who_wait_for_a_dead_one_take_over(line: Line[PriorityQueue]) -> None:
    pushed = line.queue.push_many(line.db, range(4))
    line.hold()  # and never do anything with it
    calls = [line.process().pop() for _ in range(3)]
    line.sleeps.end()
    popped = [item for call in calls for item in call.result()]
    assert sorted(item.value for item in popped) == [0, 1, 2]
    assert line.left() == pushed[3:]
    line.assert_sound()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), fdbqueue.FDBError(1031)])
def test_who_is_interrupted_while_it_waits_leaves_no_request(
    line: Line[PriorityQueue], error: BaseException
) -> None:
    pushed = line.queue.push_many(line.db, range(2))
    line.hold()
    call = line.process().pop()
    assert len(line.requests()) == 1
    line.sleeps.error = error
    line.sleeps.end()
    assert call.error() is error
    line.release()
    assert line.left() == pushed
    line.assert_sound()


def test_large_payloads_are_served_a_few_at_a_time_and_in_order(
    line: Line[PriorityQueue],
) -> None:
    """In values of their own, and in pieces: no transaction is too large for ever."""
    sizes = [90_000] * 30 + [3_000_000] * 4
    pushed = [line.queue.push(line.db, str(n % 10) * size) for n, size in enumerate(sizes)]
    line.hold()
    calls = [line.process().pop(n) for n in (10, 10, 9, 1, 1, 1, 1)]
    line.sleeps.end()
    popped = [item for call in calls for item in call.result()]
    assert len(popped) == 33
    for call in calls:
        keys = [item.key for item in call.result()]
        assert keys == sorted(keys)
    rest = line.process().pop().result()
    assert sorted(popped + rest, key=lambda item: item.key) == pushed
    line.assert_sound()


def test_an_item_that_cannot_be_read_is_the_error_of_who_gets_it_and_stays(
    line: Line[PriorityQueue],
) -> None:
    good, bad, other = line.queue.push_many(line.db, ["good", "bad", "other"])
    line.db[bad.key] = b"no JSON"
    line.hold()
    call = line.process().pop(2)
    line.release()
    assert line.process().pop().result() == [good]
    assert isinstance(call.error(), fdbqueue.errors.UndecodableItem)
    assert line.db[bad.key] == b"no JSON"
    assert line.queue.remove(line.db, bad)
    assert line.process().pop(5).result() == [other]
    line.assert_sound()
