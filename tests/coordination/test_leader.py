"""Who has the turn serves the others; it goes on to one who waits or to nobody, and is taken over.

No sleep ends by itself here: that all who wait are served says that somebody has woken them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from fdbqueue import PriorityQueue
from fdbqueue.coordination import staged_pops
from tests.coordination.line import CONFLICT, DIES_WAITING, FAST, LONG, STAGED, Line, Script


class Clock:
    """In the place of `time`: who has the turn looks round when the test says so."""

    def __init__(self) -> None:
        self.may_look = threading.Event()
        self.monotonic = time.monotonic

    def sleep(self, seconds: float) -> None:
        assert self.may_look.wait(LONG)
        time.sleep(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """Until the test says so, whoever has the turn keeps it."""
    clock = Clock()
    monkeypatch.setattr(staged_pops, "time", clock)
    yield clock
    clock.may_look.set()


def test_who_has_the_turn_serves_those_who_came_meanwhile_with_each_of_its_pops(
    line: Line[PriorityQueue], clock: Clock
) -> None:
    items = line.queue.push_many(line.db, range(7))
    server = line.process()
    assert server.pop().result() == items[:1]
    for at in (1, 4):
        calls = [line.process().pop() for _ in range(2)]
        commits = server.db.commits
        assert server.pop().result() == items[at : at + 1]
        assert [call.result() for call in calls] == [items[at + 1 : at + 2], items[at + 2 : at + 3]]
        assert server.db.commits == commits + 1
    assert line.sleeps.woken == [True] * 4
    clock.may_look.set()
    line.assert_sound()


def test_a_turn_that_its_process_does_not_use_any_more_goes_on_to_one_who_waits(
    line: Line[PriorityQueue], clock: Clock
) -> None:
    items = line.queue.push_many(line.db, range(4))
    assert line.process().pop().result() == items[:1]
    calls = [line.process().pop() for _ in range(3)]
    assert len(line.requests()) == 3
    clock.may_look.set()
    assert [call.result() for call in calls] == [items[1:2], items[2:3], items[3:4]]
    assert line.sleeps.woken == [True] * 3
    line.assert_sound()


def test_who_asks_as_the_turn_is_about_to_go_to_nobody_gets_it(
    line: Line[PriorityQueue], clock: Clock
) -> None:
    """The holder has seen that nobody waits; then somebody does."""
    items = line.queue.push_many(line.db, range(2))
    holder, late = line.process(), line.process()
    calls = []
    holder.db.before_commit[STAGED + 1] = lambda: calls.append(late.pop())
    assert holder.pop().result() == items[:1]
    clock.may_look.set()
    holder.db.until_tried(STAGED + 2)
    assert calls[0].result() == items[1:]
    assert line.sleeps.woken == [True]
    line.assert_sound()


def test_who_is_about_to_ask_as_the_turn_goes_to_nobody_does_not_wait(
    line: Line[PriorityQueue], clock: Clock
) -> None:
    """It has seen that another one has the turn; then nobody has."""
    items = line.queue.push_many(line.db, range(2))
    assert line.process().pop().result() == items[:1]
    late = line.process()

    def look() -> None:
        clock.may_look.set()
        line.until_there_is_no_leader()

    late.db.before_commit[STAGED] = look
    assert late.pop().result() == items[1:]
    assert line.sleeps.woken == []
    line.assert_sound()


def test_who_serves_for_too_long_has_another_one_do_it(
    line: Line[PriorityQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One who waits is the next to serve, and the others have their items already."""
    monkeypatch.setattr(staged_pops, "_MAX_LEADERSHIP", 0)
    items = line.queue.push_many(line.db, range(6))
    line.hold()
    calls = [line.process().pop() for _ in range(3)]
    line.release()
    server = line.process()
    assert server.pop().result() == items[:1]
    assert [call.result() for call in calls[1:]] == [items[1:2], items[2:3]]
    assert calls[0].result() == items[3:4]
    assert line.sleeps.woken == [True] * 3
    assert server.db.commits == FAST + 1
    line.assert_sound()


@pytest.mark.parametrize("script", [{FAST: CONFLICT}, {FAST: CONFLICT, STAGED: CONFLICT}])
def test_those_who_wait_for_a_dead_process_take_over(
    line: Line[PriorityQueue], script: Script
) -> None:
    """When their patience is over, they serve themselves and each other."""
    items = line.queue.push_many(line.db, range(6))
    line.hold()
    calls = [line.process(script).pop() for _ in range(4)]
    assert not any(call.is_over() for call in calls)
    line.sleeps.end()
    popped = [item for call in calls for item in call.result()]
    assert sorted(item.value for item in popped) == [0, 1, 2, 3]
    assert line.left() == items[4:]
    line.assert_sound()


def test_a_turn_that_went_to_a_dead_process_is_taken_over_too(line: Line[PriorityQueue]) -> None:
    items = line.queue.push_many(line.db, range(5))
    line.hold()
    line.process(DIES_WAITING).pop()
    served = line.process().pop()
    line.release()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staged_pops, "_MAX_LEADERSHIP", 0)
        assert line.process().pop().result() == items[:1]
    assert served.result() == items[1:2]
    waiting = line.process().pop()
    assert not waiting.is_over()
    line.sleeps.end()
    assert waiting.result() == items[2:3]
    line.drop_the_dead()
    assert line.left() == items[3:]
    line.assert_sound()
