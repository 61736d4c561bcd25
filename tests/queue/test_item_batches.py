"""The batches of an item: those in which it counts, and the one that it waits for."""

from __future__ import annotations

from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import PriorityQueue
from fdbqueue.admin import rename
from fdbqueue.jobs import App, Context
from fdbqueue.queue.batches import Batches, ItemBatch, Members, batches_of

CALL: Any = {"job": "report", "args": [], "kwargs": {}}

Queue = PriorityQueue[Any]


@pytest.fixture
def queue(db: Any, name: str) -> Queue:
    """Return the queue of the jobs, which keeps them."""
    queue = PriorityQueue.named(db, name)
    queue.configure(db, keep=100)
    return queue


def begin(db: Any, reports: Queue, queue: Queue, n: int) -> tuple[str, list[str]]:
    """Begin and close a batch of `n` jobs; return its id, and those of the jobs."""
    batches = Batches(reports)
    id = batches.open(db, CALL, 0, "continue").id
    batches.add(db, id, "continue", [Members(queue, {"values": range(n), "priority": 0})])
    batches.close(db, id)
    return id, [item.id for item in queue.items(db)]


def one(db: Any, queue: Queue, id: str) -> ItemBatch:
    (found,) = batches_of(db, queue, id)
    return found


def ack(db: Any, queue: Queue) -> str:
    """Acknowledge an item; return its id."""
    claim = queue.claim(db)
    queue.ack(db, claim)
    return claim.item.id


def test_a_batch_names_its_queue_as_it_is_called_now_and_is_gone_after_its_end(
    db: Any, name: str, space: Subspace, queue: Queue
) -> None:
    reports = PriorityQueue.named(db, f"{name}-reports")
    id, (job,) = begin(db, reports, queue, 1)
    rename(db, f"{name}-reports", f"{name}-new")
    PriorityQueue.named(db, f"{name}-reports").push(db, CALL)
    assert one(db, queue, job).queue == f"{name}-new"
    ack(db, queue)
    assert one(db, queue, job).has_ended
    ack(db, reports)
    assert (batches_of(db, queue, job), batches_of(db, reports, id)) == ([], [])
    id, (job,) = begin(db, PriorityQueue(space), queue, 1)
    found = one(db, queue, job)
    assert (found.id, found.queue) == (id, None)


def test_a_job_that_follows_others_waits_for_a_batch_of_them(
    db: Any, name: str, queue: Queue
) -> None:
    app = App(db)

    @app.job(queue=name)
    def note(what: str) -> None: ...

    before = [note.push("first"), note.push("second")]
    after = note.using(after=before).push("third")
    found = one(db, queue, after.id)
    assert (found.kind, found.id, found.is_member) == ("after", after.id, False)
    assert (found.pushed, found.left, found.on_dead) == (2, 2, "cancel")
    ack(db, queue)
    seen = one(db, queue, before[1].id)
    assert (seen.kind, seen.id, seen.left, seen.is_member) == ("after", after.id, 1, True)
    assert batches_of(db, queue, before[0].id) == []  # nothing follows a job that has ended


def test_a_job_that_a_step_runs_leads_to_that_step(db: Any, name: str, queue: Queue) -> None:
    app = App(db)

    @app.job(queue=name)
    def resize(width: int) -> int:
        return width

    @app.job(queue=f"{name}-pages")
    def publish(context: Context) -> list[int]:
        return context.gather("small", [resize.bind(200), resize.bind(400)])

    handle = publish.push()
    app.work(f"{name}-pages", drain=True)
    for number, item in enumerate(queue.items(db)):
        found = one(db, queue, item.id)
        assert (found.kind, found.queue, found.id) == ("run", f"{name}-pages", handle.id)
        assert (found.step, found.pushed, found.is_member) == (f"small {number}", 2, True)
