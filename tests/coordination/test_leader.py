"""The leader serves waiting processes, then hands over or resigns; a dead leader is replaced.

No sleep times out here, so a waiting process that is served must have been woken by its watch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from fdbqueue.coordination import pops
from tests.coordination.line import FAST, MEETS_CONFLICT, STAGED, TIMEOUT, Line

pytestmark = pytest.mark.usefixtures("staging_on_every_engine")


@pytest.fixture
def may_check(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Keep the leader in office until the test sets this event."""
    event = threading.Event()

    def sleep(seconds: float) -> None:
        assert event.wait(TIMEOUT)
        time.sleep(seconds)

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    monkeypatch.setattr(pops, "time", clock)
    yield event
    event.set()


def test_the_leader_serves_requests_that_arrive_during_its_pops(
    line: Line, may_check: threading.Event
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
    may_check.set()
    line.assert_sound()


def test_a_request_made_while_the_leader_resigns_receives_leadership(
    line: Line, may_check: threading.Event
) -> None:
    """The request arrives after the leader has seen that no process waits."""
    items = line.queue.push_many(line.db, range(2))
    leader, late = line.process(), line.process()
    calls = []
    leader.db.before_commit[STAGED + 1] = lambda: calls.append(late.pop())
    assert leader.pop().result() == items[:1]
    may_check.set()
    assert leader.db.wait_for_commits(STAGED + 2)
    assert calls[0].result() == items[1:]
    assert line.sleeps.woken == [True]
    line.assert_sound()


def test_a_process_does_not_wait_if_the_leader_resigns_before_its_request(
    line: Line, may_check: threading.Event
) -> None:
    """The leader resigns after the process has seen it."""
    items = line.queue.push_many(line.db, range(2))
    assert line.process().pop().result() == items[:1]
    late = line.process()

    def resign_leader() -> None:
        may_check.set()
        line.wait_until_leaderless()

    late.db.before_commit[STAGED] = resign_leader
    assert late.pop().result() == items[1:]
    assert line.sleeps.woken == []
    line.assert_sound()


def test_the_leader_hands_over_when_its_leadership_has_lasted_too_long(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiting process leads next; the others already have their items."""
    monkeypatch.setattr(pops, "_MAX_LEADERSHIP", 0)
    items = line.queue.push_many(line.db, range(6))
    line.set_idle_leader()
    calls = [line.process().pop() for _ in range(3)]
    line.clear_leader()
    server = line.process()
    assert server.pop().result() == items[:1]
    assert [call.result() for call in calls[1:]] == [items[1:2], items[2:3]]
    assert calls[0].result() == items[3:4]
    assert line.sleeps.woken == [True] * 3
    assert server.db.commits == FAST + 1
    line.assert_sound()


def test_waiting_processes_replace_a_dead_leader(line: Line) -> None:
    """After the request timeout, they serve themselves and each other."""
    items = line.queue.push_many(line.db, range(6))
    line.set_idle_leader()
    calls = [line.process().pop() for _ in range(4)]
    assert not any(call.is_done() for call in calls)
    line.sleeps.end()
    popped = [item for call in calls for item in call.result()]
    assert sorted(item.value for item in popped) == [0, 1, 2, 3]
    assert line.remaining() == items[4:]
    line.assert_sound()


def test_a_leader_that_cannot_start_a_thread_returns_its_items(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(function: Callable[..., object], arguments: tuple[object, ...]) -> int:
        raise RuntimeError("can't start new thread")

    items = line.queue.push_many(line.db, range(2))
    monkeypatch.setattr(pops, "_thread", SimpleNamespace(start_new_thread=refuse))
    assert line.process(MEETS_CONFLICT).pop().result() == items[:1]
    waiting = line.process(MEETS_CONFLICT).pop()
    line.sleeps.end()
    assert waiting.result() == items[1:]
    line.assert_sound()
