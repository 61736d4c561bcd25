"""Each transition of the table happens and is counted, and each maintainer keeps its keys.

A bug is planted into each of them, and `admin.check` has to find it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.coordination.pops import PopRequests
from fdbqueue.database.clock import milliseconds
from fdbqueue.operations import transitions
from fdbqueue.operations.maintainers.batches import Memberships
from fdbqueue.operations.maintainers.groups import Groups
from fdbqueue.operations.maintainers.owned import OwnedRows
from fdbqueue.operations.maintainers.unique_keys import UniqueKeys
from fdbqueue.operations.transitions import TABLE, Why
from fdbqueue.queue.base import store_of
from fdbqueue.testing import Clock
from fdbqueue.types import State
from tests.support.keys import layout_of

Kind = tuple[Why, State | None, State | None]
Act = Callable[[Any, PriorityQueue], object]


def push(db: Any, queue: PriorityQueue, state: State) -> Any:
    """Push an item and bring it into a state."""
    item = queue.push(db, "job", delay=3600 if state == "delayed" else None)
    if state in ("claimed", "dead", "done"):
        claim = queue.claim(db, lease=60)
        if state == "dead":
            queue.nack(db, claim, dead=True)
        elif state == "done":
            queue.ack(db, claim)
        return claim if state == "claimed" else item
    return item


def later(db: Any, queue: PriorityQueue, seconds: float) -> None:
    """Sweep the queue later."""
    with Clock() as clock:
        clock.advance(seconds)
        queue.wait(db, 0)


def stage(db: Any, queue: PriorityQueue, then: str) -> None:
    """Stage an item for a pop of another process, which takes it or gives it back."""
    items = store_of(queue).items
    requests, now = PopRequests(layout_of(queue), items), milliseconds()
    queue.push(db, "job")

    @fdbqueue.transactional
    def begin(tr: Any) -> bytes:
        taken = items.first(tr, 1)
        request = requests.write(tr, b"name", [(1, False)])
        requests.stage(tr, request, [taken])
        items.pop(tr, now, [], taken)
        return request

    @fdbqueue.transactional
    def end(tr: Any, request: bytes) -> None:
        if then == "unstaged":
            requests.delete(tr, now, request)
        elif then == "collected":
            requests.note_taken(tr, now, requests.take(tr, request) or [])

    end(db, begin(db))


def bury(db: Any, queue: PriorityQueue, claim: Any) -> None:
    store = store_of(queue)
    store.change(db, partial(store.claimed.bury, claim=claim))


def join(db: Any, queue: PriorityQueue, state: State) -> None:
    pushed = push(db, queue, state)
    key = pushed.keys[0] if state == "claimed" else pushed.key
    store, now = store_of(queue), milliseconds()

    @fdbqueue.transactional
    def body(tr: Any) -> None:
        row = store.items.at(tr, layout_of(queue).position(key))
        store.changes.join(tr, now, row, [])

    body(db)


def remove(db: Any, queue: PriorityQueue, state: State) -> None:
    queue.remove(db, push(db, queue, state))


def acts() -> dict[Kind, Act]:
    """Return what makes each transition happen, in a queue that keeps done items if it has some."""
    in_state: dict[Any, Act] = {
        ("removed", state, None): partial(remove, state=state)
        for state in ("ready", "delayed", "dead", "done")
    }
    for state in ("ready", "delayed", "dead"):
        moved: Any = lambda db, q, s=state: q.reprioritize(db, push(db, q, s), 9)  # noqa: E731
        in_state["moved", state, state] = moved
    for state in ("ready", "delayed"):
        for after in (None, "done"):
            cancel: Any = lambda db, q, s=state: q.cancel(db, push(db, q, s))  # noqa: E731
            in_state["cancelled", state, after] = cancel
    for state in ("ready", "delayed", "claimed"):
        in_state["marked", state, state] = partial(join, state=state)
    return {
        ("pushed", None, "ready"): lambda db, q: push(db, q, "ready"),
        ("pushed", None, "delayed"): lambda db, q: push(db, q, "delayed"),
        ("put back", None, "ready"): lambda db, q: (q.push(db, 1), q.put_back(db, [q.pop(db)])),
        ("popped", "ready", None): lambda db, q: (q.push(db, 1), q.pop(db)),
        ("staged", "ready", "claimed"): partial(stage, then=""),
        ("collected", "claimed", None): partial(stage, then="collected"),
        ("unstaged", "claimed", "ready"): partial(stage, then="unstaged"),
        ("claimed", "ready", "claimed"): lambda db, q: push(db, q, "claimed"),
        ("extended", "claimed", "claimed"): lambda db, q: q.extend(db, push(db, q, "claimed"), 9),
        ("acked", "claimed", None): lambda db, q: q.ack(db, push(db, q, "claimed")),
        ("acked", "claimed", "done"): lambda db, q: q.ack(db, push(db, q, "claimed")),
        ("failed", "claimed", "ready"): lambda db, q: q.nack(db, push(db, q, "claimed"), delay=0),
        ("failed", "claimed", "delayed"): lambda db, q: q.nack(db, push(db, q, "claimed"), delay=9),
        ("failed", "claimed", "dead"): lambda db, q: q.nack(db, push(db, q, "claimed"), dead=True),
        ("lease over", "claimed", "ready"): lambda db, q: (
            push(db, q, "claimed"),
            later(db, q, 99),
        ),
        ("lease over", "claimed", "dead"): lambda db, q: (
            q.configure(db, max_attempts=1),
            push(db, q, "claimed"),
            later(db, q, 99),
        ),
        ("returned", "claimed", "ready"): lambda db, q: q.release(db, push(db, q, "claimed")),
        ("returned", "claimed", "delayed"): lambda db, q: q.release(
            db, push(db, q, "claimed"), delay=9
        ),
        ("buried", "claimed", "dead"): lambda db, q: bury(db, q, push(db, q, "claimed")),
        ("due", "delayed", "ready"): lambda db, q: (push(db, q, "delayed"), later(db, q, 9999)),
        ("run now", "delayed", "ready"): lambda db, q: q.retry(db, push(db, q, "delayed")),
        ("expired", "ready", None): lambda db, q: (q.push(db, 1, ttl=9), later(db, q, 99)),
        ("expired", "delayed", None): lambda db, q: (
            q.push(db, 1, ttl=9, delay=60),
            later(db, q, 99),
        ),
        ("expired", "claimed", None): lambda db, q: (
            q.push(db, 1, ttl=9),
            q.claim(db, lease=60),
            later(db, q, 99),
        ),
        ("retried", "dead", "ready"): lambda db, q: q.retry(db, push(db, q, "dead")),
        ("trimmed", "done", None): lambda db, q: (
            push(db, q, "done"),
            push(db, q, "done"),
            q.configure(db, keep=1),
            store_of(q).sweeper.trim(db),
        ),
        **in_state,
    }


ACTS = acts()


@pytest.fixture
def queue(db: Any, name: str, request: pytest.FixtureRequest) -> PriorityQueue:
    kind = request.node.callspec.params.get("kind", ())
    return PriorityQueue.named(db, f"{name}jobs", keep=9 if "done" in kind else None)


def test_every_transition_of_the_table_is_tried() -> None:
    assert ACTS.keys() == TABLE.keys()


@pytest.mark.parametrize("kind", TABLE, ids=lambda kind: " ".join(map(str, kind)))
def test_each_transition_is_counted(
    db: Any, queue: PriorityQueue, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    ACTS[kind](db, queue)
    assert fdbqueue.admin.check(db, queue).ok
    queue.clear(db)
    wrong = {**TABLE[kind], "dead": TABLE[kind].get("dead", 0) + 1}
    monkeypatch.setitem(TABLE, kind, wrong)
    ACTS[kind](db, queue)
    assert any("dead" in each for each in fdbqueue.admin.check(db, queue).problems)


@pytest.mark.parametrize("kind", TABLE, ids=lambda kind: " ".join(map(str, kind)))
def test_each_transition_moves_the_row_of_its_item(
    db: Any, queue: PriorityQueue, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it only counted them, the numbers of rows would differ."""
    why = kind[0]
    if why in ("extended", "marked", "moved", "staged", "collected", "unstaged"):
        pytest.skip("the item stays in its state, or has no row of its own")

    def not_for(method: Any) -> Any:
        def unless(self: Any, tr: Any, first: Any, *args: Any) -> Any:
            reason = first if isinstance(first, str) else first.why
            return False if reason == why else method(self, tr, first, *args)

        return unless

    for name in ("_clear", "_store"):
        method = getattr(transitions.Transitions, name)
        monkeypatch.setattr(transitions.Transitions, name, not_for(method))
    ACTS[kind](db, queue)
    assert not fdbqueue.admin.check(db, queue).ok


def in_groups(db: Any, name: str) -> PriorityQueue:
    queue = PriorityQueue.named(db, f"{name}groups")
    queue.set_group(db, "ada", concurrency=1)
    queue.push_many(db, [1, 2], group="ada")
    queue.claim(db)
    return queue


def with_unique_key(db: Any, name: str) -> PriorityQueue:
    queue = PriorityQueue.named(db, f"{name}unique")
    queue.push(db, 1, unique="key")
    return queue


def with_pieces(db: Any, name: str) -> PriorityQueue:
    queue = PriorityQueue.named(db, f"{name}pieces")
    queue.push(db, "x" * 100_000)
    queue.pop(db)
    return queue


def with_a_batch(db: Any, name: str) -> PriorityQueue:
    app = fdbqueue.App(db)

    @app.job(queue=f"{name}batch")
    def job() -> None: ...

    first = job.push()
    job.using(after=[first]).push()
    queue = PriorityQueue.named(db, f"{name}batch")
    queue.pop(db)
    return queue


@pytest.mark.parametrize(
    ("maintainer", "use"),
    [
        (Groups, in_groups),
        (UniqueKeys, with_unique_key),
        (OwnedRows, with_pieces),
        (Memberships, with_a_batch),
    ],
)
def test_what_a_maintainer_does_not_keep_is_found(
    db: Any, name: str, maintainer: Any, use: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fdbqueue.admin.check(db, use(db, name)).ok
    method = "begin" if maintainer is Groups else "follow"
    monkeypatch.setattr(maintainer, method, lambda *_: None)
    assert fdbqueue.admin.check(db, use(db, f"{name}broken")).problems


def test_a_plain_item_is_seen_by_no_maintainer_of_features(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = PriorityQueue.named(db, f"{name}plain")
    transitions = store_of(queue).items.transitions
    monkeypatch.setattr(transitions.groups, "begin", pytest.fail)
    for maintainer in transitions.followers:
        monkeypatch.setattr(maintainer, "follow", pytest.fail)
    queue.push(db, 1)
    queue.push(db, 2)
    queue.ack(db, queue.claim(db))
    queue.pop(db)
