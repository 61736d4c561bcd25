"""The same change of all items in a state, in bounded transactions."""

from __future__ import annotations

from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue, Queue, TaskQueue
from fdbqueue.queue import base
from fdbqueue.testing import FaultyDatabase
from tests.support.counting import CountingDatabase
from tests.support.scan import assert_views_agree

N = 25


def filled(db: Any, queue: Any, state: str) -> None:
    """Push items and bring them into a state."""
    for number in range(N):
        if isinstance(queue, Queue):
            queue.enqueue(db, number)
        elif isinstance(queue, TaskQueue):
            queue.push(db, payload=number)
        else:
            queue.push(db, number, number % 2)
    if state == "ready":
        return
    claim = queue.claim(db, n=N)
    if state == "delayed":
        queue.nack(db, claim, delay=600)
    elif state == "dead":
        queue.configure(db, max_attempts=1)
        queue.nack(db, claim)
    elif state == "done":
        queue.configure(db, keep=100)
        queue.ack(db, claim)


@pytest.mark.parametrize("kind", [PriorityQueue, Queue, TaskQueue])
@pytest.mark.parametrize(
    ("change", "state", "after"),
    [
        ("remove", "ready", None),
        ("remove", "delayed", None),
        ("remove", "dead", None),
        ("remove", "done", None),
        ("retry", "dead", "ready"),
        ("retry", "delayed", "ready"),
        ("release", "claimed", "ready"),
        ("cancel", "ready", None),
        ("cancel", "delayed", None),
    ],
)
def test_all_items_in_a_state_are_changed(
    db: Any,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    kind: Any,
    change: Any,
    state: Any,
    after: str | None,
) -> None:
    monkeypatch.setattr(base, "_CHANGES", 10)
    queue = kind.named(db, name)
    filled(db, queue, state)
    counting = CountingDatabase(db)
    results = queue.change_all(counting, change, state=state)
    assert [*results.values()] == [True] * N
    assert counting.commits == 3
    stats = assert_views_agree(db, queue)
    assert getattr(stats, state) == 0
    assert after is None or getattr(stats, after) == N
    assert queue.change_all(db, change, state=state) == {}


def test_all_claimed_items_are_cancelled_and_their_workers_told(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name)
    filled(db, queue, "claimed")
    results = queue.change_all(db, "cancel", state="claimed")
    assert [*results.values()] == [True] * N
    assert [info.cancelling for info in queue.items(db, state="claimed")] == [True] * N


@pytest.mark.parametrize("kind", [PriorityQueue, TaskQueue])
@pytest.mark.parametrize("state", ["ready", "delayed", "dead"])
def test_all_items_in_a_state_get_another_priority_and_keep_their_order(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch, kind: Any, state: Any
) -> None:
    monkeypatch.setattr(base, "_CHANGES", 10)
    queue = kind.named(db, name)
    filled(db, queue, state)
    before = [info.id for info in queue.items(db, state=state)]
    first = queue.push(db, 99, 5) if kind is PriorityQueue else queue.push(db, priority=5)
    results = queue.change_all(db, "reprioritize", state=state, to=5)
    ended = {first.id if kind is PriorityQueue else first: False} if state == "ready" else {}
    assert results == dict.fromkeys(before, True) | ended
    after = [info.id for info in queue.items(db, state=state)]
    assert after == [*ended, *before]
    assert {info.item.priority for info in queue.items(db, state=state)} == {5}
    assert_views_agree(db, queue)
    again = queue.change_all(db, "reprioritize", state=state, to=5)
    assert not any(again.values())
    assert len(again) == len(after)


def test_large_items_are_moved_without_their_payloads(db: Any, name: str) -> None:
    """One transaction could not store them again."""
    queue = PriorityQueue.named(db, name)
    ids = [queue.push(db, f"{number}" * 3_000_000, 5).id for number in range(5)]
    counting = CountingDatabase(db)
    assert queue.change_all(counting, "reprioritize", state="ready", to=1) == dict.fromkeys(
        ids, True
    )
    assert counting.commits == 1
    assert [queue.pop(db).value[0] for _ in ids] == ["0", "1", "2", "3", "4"]
    assert_views_agree(db, queue)


def test_items_are_chosen_by_priority_and_number(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name)
    filled(db, queue, "ready")
    assert len(queue.change_all(db, "remove", state="ready", priority=1)) == N // 2
    assert queue.counts(db) == {0: N - N // 2}
    assert len(queue.change_all(db, "remove", state="ready", limit=3)) == 3
    assert queue.size(db) == N - N // 2 - 3


def test_dead_letters_that_cannot_be_retried_stay(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name, max_attempts=1)
    ids = [queue.push(db, n, unique=f"key{n}").id for n in range(4)]
    queue.nack(db, queue.claim(db, n=4))
    queue.push(db, "other", unique="key1")
    queue.configure(db, max_size=3)
    results = queue.change_all(db, "retry", state="dead")
    assert results == dict(zip(ids, [True, False, True, False]))
    stats = assert_views_agree(db, queue)
    assert (stats.ready, stats.dead) == (3, 2)


def test_each_item_is_changed_once_despite_lost_results(db: Any, name: str, rng: Any) -> None:
    faulty = FaultyDatabase(
        db, before=0.3, after=0.3, conflict=0.1, lost_as=(1021, 1039), seed=rng.randrange(99)
    )
    queue = PriorityQueue.named(faulty, name)
    filled(faulty, queue, "dead")
    assert sum(queue.change_all(faulty, "retry", state="dead").values()) == N
    stats = assert_views_agree(db, queue)
    assert (stats.ready, stats.total_retried) == (N, N)


def test_a_dead_letter_that_was_retried_meanwhile_is_not_cleared(
    db: Any, queue: PriorityQueue
) -> None:
    class Retrying(FaultyDatabase):
        """A database in which another client retries all dead letters before a commit."""

        def commit(self, transaction: Any) -> None:
            queue.change_all(db, "retry", state="dead")
            super().commit(transaction)

    filled(db, queue, "dead")
    assert sum(queue.change_all(Retrying(db), "clear", state="dead").values()) == 0
    assert queue.size(db) == N


def test_a_change_that_does_not_fit_the_state_is_rejected(db: Any, queue: PriorityQueue) -> None:
    change: Any
    for change, state in [
        ("remove", "claimed"),
        ("retry", "ready"),
        ("retry", "claimed"),
        ("release", "done"),
        ("explode", "ready"),
    ]:
        with pytest.raises(ValueError, match=f"is not a change of {state} items"):
            queue.change_all(db, change, state=state)
    fifo = Queue(queue.subspace["fifo"])
    with pytest.raises(ValueError, match="have no priorities"):
        fifo.change_all(db, "reprioritize", state="ready", to=1)
    with pytest.raises(fdbqueue.errors.InvalidPriority):
        queue.change_all(db, "reprioritize", state="ready", to="high")
    for change, to in [("reprioritize", None), ("remove", 1)]:
        with pytest.raises(ValueError, match="for 'reprioritize' alone"):
            queue.change_all(db, change, state="ready", to=to)
    with pytest.raises(ValueError, match="a fifo queue have no priorities"):
        fifo.change_all(db, "remove", state="ready", priority=1)


@pytest.mark.parametrize("kind", [PriorityQueue, Queue, TaskQueue])
def test_a_call_that_makes_transactions_is_not_part_of_another(
    db: Any, name: str, kind: Any
) -> None:
    queue = kind.named(db, name)
    filled(db, queue, "ready")

    @fdbqueue.transactional
    def in_transaction(tr: Any, call: str, *args: Any, **given: Any) -> None:
        with pytest.raises(TypeError, match="give a database, not a transaction"):
            getattr(queue, call)(tr, *args, **given)

    in_transaction(db, "change_all", "remove", state="ready")
    in_transaction(db, "search", state="ready")
    in_transaction(db, "count", state="ready")
    assert queue.size(db) == N
