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

    @property
    def batch_of_child(self) -> bytes:
        """Return the id of the batch of the job that waits for a child."""
        prefix = self.layout.batches
        ids: set[bytes] = {
            row.key[len(prefix) :] for row in self.db.get_range(*self.layout.range_of(prefix))
        }
        (id,) = ids - {self.position(self.end), self.position(self.follow)}
        return id

    def count(self, id: bytes, **counts: int) -> None:
        self.db.add(self.layout.batch_counts + id, encode_counts(BatchCounts(**counts)))

    def forget(self, id: bytes) -> None:
        for prefix in (self.layout.batches, self.layout.batch_counts):
            del self.db[prefix + id]

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


def invent_steps(jobs: Jobs) -> None:
    jobs.db[jobs.layout.step_key(NOBODY, "step")] = encode_step(StoredStep("step", "done", 0))


def lose_step(jobs: Jobs) -> None:
    del jobs.db[jobs.layout.step_key(jobs.position(jobs.wait), "before")]


def invent_wait(jobs: Jobs) -> None:
    wait = jobs.layout.signal_wait("go", "k", "step", NOBODY)
    jobs.db[jobs.layout.signal_waits + wait] = b""


def invent_second_wait(jobs: Jobs) -> None:
    wait = jobs.layout.signal_wait("stop", "", "step", jobs.position(jobs.wait))
    jobs.db[jobs.layout.signal_waits + wait] = b""


def lose_wait(jobs: Jobs) -> None:
    del jobs.db[jobs.only(jobs.layout.signal_waits)]


def invent_follower(jobs: Jobs) -> None:
    membership = encode_membership(Membership(b"", NOBODY))
    jobs.db[jobs.layout.follower_key(NOBODY, 0)] = membership


def lose_follower(jobs: Jobs) -> None:
    follow = jobs.app.jobs["follow"]
    follow.using(after=[follow.using(delay="1h").push()]).push()
    del jobs.db[jobs.only(jobs.layout.followers)]


def end_step(jobs: Jobs) -> None:
    """Store the signal in the step, and leave the row of the wait."""
    key = jobs.layout.step_key(jobs.position(jobs.wait), "go")
    step = decode_step(jobs.db[key])
    jobs.db[key] = encode_step(step._replace(state="done", ended_at=1, value=b"3"))


def end_wait(jobs: Jobs) -> None:
    """Store the signal in the step, without waking the job."""
    end_step(jobs)
    lose_wait(jobs)


def lose_end_of_signal(jobs: Jobs) -> None:
    del jobs.db[jobs.only(jobs.layout.signal_ends)]


def invent_end_of_signal(jobs: Jobs) -> None:
    jobs.db[jobs.layout.entry_key(jobs.layout.signal_ends, 1, "nothing", "")] = b""


def invent_batch(jobs: Jobs) -> None:
    jobs.db[jobs.layout.batches + NOBODY] = encode_batch(StoredBatch("continue"))
    jobs.count(NOBODY, pushed=1)


def invent_counts(jobs: Jobs) -> None:
    jobs.count(NOBODY, pushed=1)


def lose_batch(jobs: Jobs) -> None:
    jobs.forget(jobs.position(jobs.end))


def lose_batch_of_follower(jobs: Jobs) -> None:
    jobs.forget(jobs.position(jobs.follow))


def lose_batch_of_child(jobs: Jobs) -> None:
    jobs.forget(jobs.batch_of_child)


def end_member_twice(jobs: Jobs) -> None:
    jobs.count(jobs.position(jobs.end), done=1)


def end_too_many(jobs: Jobs) -> None:
    jobs.count(jobs.position(jobs.follow), done=2)


def end_batch(jobs: Jobs) -> None:
    """Count the end of the last job, without waking the job that follows it."""
    jobs.count(jobs.position(jobs.follow), done=1)


def end_batch_of_child(jobs: Jobs) -> None:
    jobs.count(jobs.batch_of_child, done=1)


@pytest.mark.parametrize(
    ("damage", "words", "is_repaired"),
    [
        (invent_steps, "steps of no item: ", True),
        (lose_step, "the number of steps of an item is 2 and there are 1: ", False),
        (invent_wait, "an index leads to no item: ", True),
        (invent_second_wait, "an index leads to no item: ", True),
        (lose_wait, "an item is not found by its index: ", True),
        (end_step, "an index leads to no item: ", True),
        (end_wait, "an item that is never due waits for nothing: ", True),
        (lose_end_of_signal, "an item is not found by its index: ", True),
        (invent_end_of_signal, "an index leads to no item: ", True),
        (invent_follower, "followers of no item: ", True),
        (lose_follower, "the number of followers of an item is 1 and there are 0: ", False),
        (invent_batch, "a batch of no item: ", True),
        (invent_counts, "the counts of no batch: ", True),
        (lose_batch, "an item whose batch is gone: ", True),
        (lose_batch_of_child, "an item that is never due waits for nothing: ", True),
        (end_member_twice, "a batch counts 0 jobs that have not ended, and there are 1: ", False),
        (end_too_many, "a batch counts -1 jobs that have not ended, and there are 0: ", False),
        (end_batch, "a job waits for a batch that has ended: ", True),
        (end_batch_of_child, "a job waits for a batch that has ended: ", True),
    ],
)
def test_damage_is_found_and_repaired(
    db: Any, jobs: Jobs, damage: Callable[[Jobs], None], words: str, is_repaired: bool
) -> None:
    damage(jobs)
    problems = check(db, jobs.queue).problems
    assert problems[0].startswith(words)
    assert check(db, jobs.queue, repair=True).problems == problems
    assert check(db, jobs.queue).problems == (() if is_repaired else problems[:1])


def test_a_repaired_wait_is_ended_by_its_signal(db: Any, jobs: Jobs) -> None:
    lose_wait(jobs)
    check(db, jobs.queue, repair=True)
    assert jobs.queue.steps.signal(db, "go", key="k", value=2) == 1
    assert jobs.work() == ["got 2"]


def test_a_job_goes_on_that_waited_for_nothing(db: Any, jobs: Jobs) -> None:
    end_wait(jobs)
    check(db, jobs.queue, repair=True)
    assert jobs.work() == ["got 3"]


def test_a_job_goes_on_that_waited_for_a_batch_that_has_ended(db: Any, jobs: Jobs) -> None:
    end_batch(jobs)
    check(db, jobs.queue, repair=True)
    assert jobs.work() == ["followed"]


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
