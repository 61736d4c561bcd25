"""Each transition of the table happens and is counted, and what is gone leaves nothing behind."""

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
from fdbqueue.operations.transitions import TABLE, Why
from fdbqueue.queue.base import rename_jobs, store_of
from fdbqueue.queue.batches import Batches, Members
from fdbqueue.testing import Clock
from fdbqueue.types import State
from tests.support.keys import layout_of, rows_in
from tests.support.scan import assert_views_agree

Kind = tuple[Why, State | None, State | None]

BELONGS = ("pieces", "attempts", "moved", "unique_keys", "group_passes", "group_members")
ROWS = ("items", "delayed", "claims", "dead", "done", "done_times", "returned")
TIMERS = ("leases", "dues", "expiries")


class World:
    """A queue to which everything belongs that an item can have, and what has happened in it."""

    def __init__(self, db: Any, name: str, kind: Kind) -> None:
        self.db = db
        self.queue: Any = PriorityQueue.named(db, f"{name}jobs", keep=9 if "done" in kind else None)
        self.queue.set_group(db, "g", max_size=1)
        self.batches = Batches(PriorityQueue.named(db, f"{name}reports"))
        self.batch = self.batches.open(db, {"job": "report", "kwargs": {}}, 0, "continue").id

    def push(self, state: str = "ready", **options: Any) -> Any:
        """Push an item, bring it into a state, and return it, or its claim.

        It is large, has failed and was moved; it has a unique key, a group and a batch.
        """
        db, queue = self.db, self.queue
        given = {"values": ["x" * 100_000], "priority": 5, "unique": ["k"], "group": "g", **options}
        self.batches.add(db, self.batch, "continue", [Members(queue, given)])
        queue.nack(db, queue.claim(db), delay=0, error="busy")
        item = queue.update(db, queue.peek(db), priority=1)
        if state == "ready":
            return item
        claim = queue.claim(db, lease=60)
        if state == "delayed":
            queue.release(db, claim, delay=3600)
        elif state == "dead":
            queue.nack(db, claim, dead=True)
        elif state == "done":
            queue.ack(db, claim, result=1)
        return claim if state == "claimed" else item

    def later(self, seconds: float = 9_999) -> None:
        """Sweep the queue later."""
        with Clock() as clock:
            clock.advance(seconds)
            self.queue.wait(self.db, 0)

    def stage(self, then: str) -> None:
        """Stage an item for a pop of another process, which takes it or gives it back."""
        items = store_of(self.queue).items
        requests, now = PopRequests(layout_of(self.queue), items), milliseconds()
        self.push()

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

        end(self.db, begin(self.db))

    def bury(self) -> None:
        store = store_of(self.queue)
        store.change(self.db, partial(store.claimed.bury, claim=self.push("claimed")))

    def join(self, state: State) -> None:
        pushed = self.push(state)
        key = pushed.keys[0] if state == "claimed" else self.queue.get(self.db, pushed).item.key
        store, now = store_of(self.queue), milliseconds()

        @fdbqueue.transactional
        def body(tr: Any) -> None:
            row = store.items.at(tr, layout_of(self.queue).position(key))
            store.changes.join(tr, now, row, [])

        body(self.db)

    def rename(self, state: State) -> None:
        self.push(state, values=[{"job": "old", "args": ["x" * 100_000]}])
        assert rename_jobs(self.queue, self.db, "old", "new")[state] == 1

    def trim(self) -> None:
        self.push("done")
        self.queue.configure(self.db, keep=None)
        store_of(self.queue).sweeper.trim(self.db)


def call(verb: str, state: str, *args: Any, **options: Any) -> Callable[[World], object]:
    """Call a verb with an item in a state, or with its claim."""
    return lambda w: getattr(w.queue, verb)(w.db, w.push(state), *args, **options)


ACTS: dict[Kind, Callable[[World], object]] = {
    ("pushed", None, "ready"): lambda w: w.push(),
    ("pushed", None, "delayed"): lambda w: w.queue.push(w.db, 1, delay=60),
    ("put back", None, "ready"): lambda w: (w.push(), w.queue.put_back(w.db, [w.queue.pop(w.db)])),
    ("popped", "ready", None): lambda w: (w.push(), w.queue.pop(w.db)),
    ("staged", "ready", "claimed"): lambda w: w.stage(""),
    ("collected", "claimed", None): lambda w: w.stage("collected"),
    ("unstaged", "claimed", "ready"): lambda w: w.stage("unstaged"),
    ("claimed", "ready", "claimed"): lambda w: w.push("claimed"),
    ("extended", "claimed", "claimed"): call("extend", "claimed", 9),
    ("acked", "claimed", None): call("ack", "claimed"),
    ("acked", "claimed", "done"): call("ack", "claimed"),
    ("failed", "claimed", "ready"): call("nack", "claimed", delay=0),
    ("failed", "claimed", "delayed"): call("nack", "claimed", delay=9),
    ("failed", "claimed", "dead"): call("nack", "claimed", dead=True),
    ("lease over", "claimed", "ready"): lambda w: (w.push("claimed"), w.later()),
    ("lease over", "claimed", "dead"): lambda w: (
        w.queue.configure(w.db, max_attempts=2),
        w.push("claimed"),
        w.later(),
    ),
    ("returned", "claimed", "ready"): call("release", "claimed"),
    ("returned", "claimed", "delayed"): call("release", "claimed", delay=9),
    ("buried", "claimed", "dead"): lambda w: w.bury(),
    ("due", "delayed", "ready"): lambda w: (w.push("delayed"), w.later()),
    ("expired", "ready", None): lambda w: (w.push(ttl=900), w.later()),
    ("expired", "delayed", None): lambda w: (w.push("delayed", ttl=900), w.later()),
    ("expired", "claimed", None): lambda w: (w.push("claimed", ttl=900), w.later()),
    ("retried", "dead", "ready"): call("retry", "dead"),
    ("trimmed", "done", None): lambda w: w.trim(),
    **{("removed", state, None): call("remove", state) for state in ("ready", "delayed", "dead")},
    ("removed", "done", None): call("remove", "done"),
    **{
        ("updated", state, after): call("update", state, priority=9, delay=9 * (after != "ready"))
        for state in ("ready", "delayed")
        for after in ("ready", "delayed")
    },
    **{
        ("cancelled", state, after): call("cancel", state)
        for state in ("ready", "delayed")
        for after in (None, "done")
    },
    **{
        ("marked", each, each): partial(World.join, state=each)
        for each in ("ready", "delayed", "claimed")
    },
    **{("marked", each, each): partial(World.rename, state=each) for each in ("dead", "done")},
}
"""What makes each transition happen, in a queue that keeps done items if it has some."""

OUTCOMES = {
    **dict.fromkeys(("popped", "put back", "collected", "acked", "trimmed"), "done"),
    **dict.fromkeys(("expired", "removed", "cancelled"), "cancelled"),
}
"""How the batch of an item counts the end, unless the item died before."""


def test_every_transition_of_the_table_is_tried() -> None:
    assert ACTS.keys() == TABLE.keys()


@pytest.mark.parametrize("kind", TABLE, ids=lambda kind: " ".join(map(str, kind)))
def test_each_transition_happens_and_is_counted(
    db: Any, name: str, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened = set[Any]()

    class Noting(dict[Any, Any]):
        def __getitem__(self, key: Any) -> Any:
            happened.add(key)
            return super().__getitem__(key)

    monkeypatch.setattr(transitions, "TABLE", Noting(TABLE))
    world = World(db, name, kind)
    ACTS[kind](world)
    assert kind in happened
    why, before, after = kind
    ended = {"done": 0, "dead": 0, "cancelled": 0}
    if "dead" in (before, after):
        ended["dead"] = 1
    elif before == "done" or why in OUTCOMES:
        ended["done" if before == "done" else OUTCOMES[why]] = 1
    found = world.batches.progress(db, world.batch)
    assert {outcome: getattr(found, outcome) for outcome in ended} == ended
    if "collected" not in kind and "staged" not in kind:
        assert_views_agree(db, world.queue)
    report = fdbqueue.admin.check(db, world.queue, repair=True)
    assert (report.problems, report.repaired) == ((), False)
    if after is None:
        assert rows_in(db, world.queue, *BELONGS, *ROWS, *TIMERS) == []
    if after in (None, "done", "dead"):  # the group has room again, and the key is free
        assert world.queue.push(db, "again", unique="k", group="g").is_new


@pytest.mark.parametrize(
    "end",
    [
        lambda queue, db: queue.pop_many(db, 9, max=True),
        lambda queue, db: queue.clear(db),
        lambda queue, db: (queue.claim(db), queue.clear(db)),
        lambda queue, db: (queue.nack(db, queue.claim(db), dead=True), queue.clear(db)),
        lambda queue, db: (c := queue.claim(db), queue.cancel(db, c.item), queue.nack(db, c)),
    ],
    ids=["pop_many", "clear", "clear claimed", "clear dead", "told"],
)
def test_other_ends_leave_nothing_behind_either(db: Any, name: str, end: Any) -> None:
    world = World(db, name, ("acked", "claimed", None))
    world.push(unique_until="claimed", ttl=3600)
    end(world.queue, db)
    assert rows_in(db, world.queue, *BELONGS, *ROWS, *TIMERS) == []
    assert_views_agree(db, world.queue)
    assert world.queue.push(db, "again", unique="k", group="g").is_new


def test_a_plain_item_is_seen_by_no_maintainer_of_features(
    db: Any, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them would fail the test."""
    kept = store_of(jobs).items.transitions
    monkeypatch.setattr(kept, "groups", pytest.fail)
    monkeypatch.setattr(kept, "followers", [pytest.fail])
    jobs.push(db, 1)
    jobs.push(db, 2)
    jobs.ack(db, jobs.claim(db))
    jobs.pop(db)
