"""`check` finds damaged steps, waits, signals and batches, and its repair lets jobs go on."""

from __future__ import annotations

from collections.abc import Callable
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

    One waits for a signal, one for a child and one for a job before it, both in another queue, and
    one for the end of a batch, which has a job in this queue.
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

    def step(self, name: str) -> bytes:
        return self.layout.step_key(self.position(self.wait), name)

    @property
    def ended(self) -> bytes:
        """The step that waits, if it had ended."""
        waiting = decode_step(self.db[self.step("go")])
        return encode_step(waiting._replace(state="done", ended_at=1, value=b"3"))

    def wait_of(self, position: bytes | None = None) -> bytes:
        """Return the key by which a signal finds the step that waits, or a step of no item."""
        if position is None:
            return self.only(self.layout.signal_waits)
        return self.layout.signal_waits + self.layout.signal_wait("go", "k", "step", position)

    @property
    def of_child(self) -> bytes:
        """The id of the batch of the job that waits for a child."""
        prefix = self.layout.batches
        rows = self.db.get_range(*self.layout.range_of(prefix))
        known = [self.position(self.end), self.position(self.follow)]
        (id,) = {row.key[len(prefix) :] for row in rows}.difference(known)
        return bytes(id)

    def counted(self, id: bytes, **counts: int) -> dict[bytes, bytes | None]:
        return {self.layout.batch_counts + id: encode_counts(BatchCounts(**counts))}

    def batch(self, id: bytes, batch: bytes, **counts: int) -> dict[bytes, bytes | None]:
        return {self.layout.batches + id: batch, **self.counted(id, **counts)}

    def without(self, id: bytes) -> dict[bytes, bytes | None]:
        return dict.fromkeys((self.layout.batches + id, self.layout.batch_counts + id))

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


INDEX, LOST = "an index leads to no item: ", "an item is not found by its index: "
FOLLOWERS = "followers of no item: "
NEVER = "an item that is never due waits for nothing: "
ENDED = "a job waits for a batch that has ended: "
STEPS = "the number of steps of an item is 2 and there are 1: "
UNEQUAL = "a batch counts 0 jobs that have not ended, and there are 1: "
BATCH = encode_batch(StoredBatch("continue"))

Rows = dict[bytes, bytes | None]
"""Rows that a damage stores, adds to a counter, or deletes."""

DAMAGES: dict[str, tuple[str, Callable[[Jobs], Rows], str]] = {
    "steps invented": ("steps of no item: ", lambda j: {j.layout.step_key(NOBODY, "s"): STEP}, ""),
    "a step lost": (STEPS, lambda j: {j.step("before"): None}, "not repaired"),
    "a wait invented": (INDEX, lambda j: {j.wait_of(NOBODY): b""}, ""),
    "a wait lost": (LOST, lambda j: {j.only(j.layout.signal_waits): None}, "got 2"),
    "a wait ended": (NEVER, lambda j: {j.step("go"): j.ended, j.wait_of(): None}, "got 3"),
    "the end of a signal lost": (LOST, lambda j: {j.only(j.layout.signal_ends): None}, ""),
    "a follower invented": (
        FOLLOWERS,
        lambda j: {j.layout.owned_prefix(j.layout.followers, NOBODY) + b"\x14": FOLLOWER},
        "",
    ),
    "a batch invented": ("a batch of no item: ", lambda j: j.batch(NOBODY, BATCH, pushed=1), ""),
    "counts invented": ("the counts of no batch: ", lambda j: j.counted(NOBODY, pushed=1), ""),
    "a batch lost": (
        *("an item whose batch is gone: ", lambda j: j.without(j.position(j.end)), ""),
    ),
    "a member ended twice": (
        UNEQUAL,
        lambda j: j.counted(j.position(j.end), done=1),
        "not repaired",
    ),
    "the batch of a child lost": (NEVER, lambda j: j.without(j.of_child), ""),
    "the batch of a child ended": (ENDED, lambda j: j.counted(j.of_child, done=1), ""),
    "a batch ended": (ENDED, lambda j: j.counted(j.position(j.follow), done=1), "followed"),
}
"""What `check` says of a damage, its rows, and what goes on after the repair."""


@pytest.mark.damaged
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_and_repaired_and_jobs_go_on(db: Any, jobs: Jobs, damage: str) -> None:
    words, rows, then = DAMAGES[damage]
    for key, value in rows(jobs).items():
        if value is None:
            del db[key]
        elif key.startswith(jobs.layout.batch_counts):
            db.add(key, value)
        else:
            db[key] = value
    problems = check(db, jobs.queue).problems
    assert problems[0].startswith(words)
    assert check(db, jobs.queue, repair=True).problems == problems
    assert check(db, jobs.queue).problems == (problems[:1] if then == "not repaired" else ())
    if then not in ("", "not repaired"):
        sent = jobs.queue.steps.signal(db, "go", key="k", value=2)
        assert sent == (damage != "a wait ended")
        assert then in jobs.work()


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
