"""`check` finds damaged steps, waits, signals and batches, and its repair lets jobs go on."""

from __future__ import annotations

from typing import Any

import pytest
from fdb import tuple as fdb_tuple

from fdbqueue.admin import check
from fdbqueue.jobs import App, Context, Handle
from fdbqueue.layout.batches import (
    BatchCounts,
    Membership,
    StoredBatch,
    encode_batch,
    encode_counts,
    encode_membership,
)
from fdbqueue.layout.jobs import StoredStep, decode_step, encode_step
from fdbqueue.operations.maintainers import batches as ends
from fdbqueue.queue.base import store_of
from tests.support.keys import layout_of

NOBODY = fdb_tuple.pack((0, 7, b"nobody"))
"""The position of no item."""

STEP = encode_step(StoredStep("step", "done", 0))
FOLLOWER = encode_membership(Membership(b"", NOBODY))


class Jobs:
    """A queue with jobs that wait for anything; what has run is noted.

    One waits for a signal, one for a child, one for a job before it, and one for the end of a
    batch. The batch has a job in this queue, the child and the job before are in another one.
    """

    def __init__(self, db: Any, name: str) -> None:
        self.db, self.app = db, App(db)
        self.name, self.others = name, f"{name}-others"
        self.ran: list[str] = []

        @self.app.job(queue=self.others, name="note")
        def note(what: str) -> str:
            self.ran.append(what)
            return what

        @self.app.job(queue=name, name="member")
        def member() -> None: ...

        @self.app.job(queue=name, name="wait")
        def wait(context: Context) -> None:
            context.step("before", str)
            self.ran.append(f"got {context.wait('go', key='k').value}")

        @self.app.job(queue=name, name="parent")
        def parent(context: Context) -> None:
            self.ran.append(f"child is {context.run('child', note, 'child')}")

        @self.app.job(queue=name, name="follow")
        def follow() -> None:
            self.ran.append("followed")

        @self.app.job(queue=name, name="end")
        def end(*, done: int, dead: int, cancelled: int) -> None:
            self.ran.append(f"end of {done}")

        with self.app.batch(then=end) as batch:
            batch.push(member.using(delay="1h"))
        self.end: Handle[None] = batch.handle
        self.wait, self.parent = wait.push(), parent.push()
        self.app.work(name, drain=True)
        self.follow = follow.using(after=[note.push("first")]).push()
        self.queue = self.app.queue(name)
        self.queue.steps.signal(db, "other", value=1)
        self.layout = layout_of(self.queue)

    def position(self, handle: Handle[Any]) -> bytes:
        position: bytes = store_of(self.queue).codec.reference(handle.id)
        return position

    def only(self, prefix: bytes) -> bytes:
        """Return the only key with a prefix."""
        (row,) = self.db.get_range(*self.layout.range_of(prefix))
        key: bytes = row.key
        return key

    def counted(self, id: bytes, **counts: int) -> dict[bytes, bytes | None]:
        return {self.layout.batch_counts + id: encode_counts(BatchCounts(**counts))}

    def without(self, id: bytes) -> dict[bytes, bytes | None]:
        return dict.fromkeys((self.layout.batches + id, self.layout.batch_counts + id))

    def wait_key(self, signal: str, key: str, position: bytes) -> bytes:
        layout = self.layout
        return layout.signal_waits + layout.signal_wait(signal, key, "step", position)

    def work(self) -> list[str]:
        """Run what is ready in the queue; return what has run."""
        self.app.work(self.name, drain=True)
        return self.ran


@pytest.fixture
def jobs(db: Any, name: str) -> Jobs:
    return Jobs(db, name)


def test_a_sound_queue_has_no_problem_whatever_its_jobs_wait_for(db: Any, jobs: Jobs) -> None:
    report = check(db, jobs.queue)
    assert (report.problems, report.delayed) == ((), 5)
    jobs.queue.steps.signal(db, "go", key="k", value=2)
    jobs.app.work(jobs.others, drain=True)
    assert check(db, jobs.queue).problems == ()
    assert sorted(jobs.work()) == ["child", "child is child", "first", "followed", "got 2"]
    assert check(db, jobs.queue).problems == ()


def damaged(jobs: Jobs) -> dict[str, dict[bytes, bytes | None]]:
    """Return the rows that each damage stores, or deletes."""
    layout, wait = jobs.layout, jobs.position(jobs.wait)
    key = layout.step_key(wait, "go")
    ended = decode_step(jobs.db[key])._replace(state="done", ended_at=1, value=b"3")
    signal_wait = jobs.only(layout.signal_waits)
    batch = {layout.batches + NOBODY: encode_batch(StoredBatch("continue"))}
    counts = {layout.batch_counts + NOBODY: encode_counts(BatchCounts(pushed=1))}
    return {
        "steps invented": {layout.step_key(NOBODY, "step"): STEP},
        "a step lost": {layout.step_key(wait, "before"): None},
        "a wait invented": {jobs.wait_key("go", "k", NOBODY): b""},
        "a wait lost": {signal_wait: None},
        "a wait ended": {key: encode_step(ended), signal_wait: None},
        "the end of a signal lost": {jobs.only(layout.signal_ends): None},
        "a follower invented": {layout.follower_key(NOBODY, 0): FOLLOWER},
        "a batch invented": {**batch, **counts},
        "counts invented": {**counts},
        "a batch lost": jobs.without(jobs.position(jobs.end)),
        "a member ended twice": jobs.counted(jobs.position(jobs.end), done=1),
        "a batch ended": jobs.counted(jobs.position(jobs.follow), done=1),
    }


INDEX, LOST = "an index leads to no item: ", "an item is not found by its index: "
NEVER = "an item that is never due waits for nothing: "
ENDED = "a job waits for a batch that has ended: "
REPAIRED = {
    "steps invented": "steps of no item: ",
    **{"a wait invented": INDEX, "a wait lost": LOST, "the end of a signal lost": LOST},
    "a wait ended": NEVER,
    "a follower invented": "followers of no item: ",
    "a batch invented": "a batch of no item: ",
    "counts invented": "the counts of no batch: ",
    "a batch lost": "an item whose batch is gone: ",
    "a batch ended": ENDED,
}
NOT_REPAIRED = {
    "a step lost": "the number of steps of an item is 2 and there are 1: ",
    "a member ended twice": "a batch counts 0 jobs that have not ended, and there are 1: ",
}
GOES_ON = {"a wait ended": "got 3", "a batch ended": "followed", "a wait lost": "got 2"}
"""What a job does after the repair of its wait; one of them still needs its signal."""


@pytest.mark.parametrize("damage", [*REPAIRED, *NOT_REPAIRED])
def test_damage_is_found_and_repaired_and_jobs_go_on(db: Any, jobs: Jobs, damage: str) -> None:
    for key, value in damaged(jobs)[damage].items():
        if value is None:
            del db[key]
        elif key.startswith(jobs.layout.batch_counts):
            db.add(key, value)
        else:
            db[key] = value
    problems = check(db, jobs.queue).problems
    assert problems[0].startswith((REPAIRED | NOT_REPAIRED)[damage])
    assert check(db, jobs.queue, repair=True).problems == problems
    assert check(db, jobs.queue).problems == (() if damage in REPAIRED else problems[:1])
    if damage in GOES_ON:
        sent = jobs.queue.steps.signal(db, "go", key="k", value=2)
        assert sent == (damage != "a wait ended")
        assert GOES_ON[damage] in jobs.work()


def test_the_job_at_the_end_of_a_batch_gets_its_counts_from_a_repair(
    db: Any, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    (member,) = (info for info in jobs.queue.items(db, state="delayed") if info.due_at)
    jobs.queue.retry(db, member.id, state="delayed")
    with monkeypatch.context() as patch:
        patch.setattr(ends, "make_ready", lambda *_: None)
        assert jobs.work() == []
    check(db, jobs.queue, repair=True)
    assert jobs.work() == ["end of 1"]
