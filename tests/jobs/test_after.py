"""Jobs that follow others: they are ready once these have ended."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import transactional
from fdbqueue.admin import check
from fdbqueue.jobs import App, Dead, Discard, Handle, Retry
from fdbqueue.layout.jobs import TooManyFollowing
from fdbqueue.queue.batches import batches_of
from fdbqueue.testing import Clock
from fdbqueue.types import Transaction
from tests.support.keys import rows_in


class Jobs:
    """Jobs that note that they ran; one kind fails."""

    def __init__(self, app: App, name: str) -> None:
        self.app = app
        self.ran: list[str] = []
        app.queue(name).configure(app.db, keep=100)

        @app.job(queue=name, name="note")
        def note(what: str) -> str:
            self.ran.append(what)
            return what

        @app.job(queue=name, name="fail", retry=Retry(attempts=1))
        def fail(outcome: str) -> None:
            raise Dead("no") if outcome == "dead" else Discard("no need")

        self.note = note
        self.fail = fail

    def work(self) -> list[str]:
        """Run what is ready, and return which jobs have run since the beginning."""
        self.app.work(drain=True)
        return self.ran


@pytest.fixture
def jobs(app: App, name: str) -> Jobs:
    return Jobs(app, name)


def outcome(handle: Handle[Any]) -> str | None:
    """Return how a job has ended, or its state."""
    info = handle.info()
    return None if info is None else info.outcome or info.state


def test_a_job_runs_once_all_jobs_before_it_have_ended(jobs: Jobs, name: str) -> None:
    early = [jobs.note.using(priority=9).push(each) for each in "abc"]
    last = jobs.note.using(priority=1, after=early).push("last")
    after_last = jobs.note.using(queue=f"{name}-2", after=[last]).push("after last")
    assert (last.state(), after_last.state()) == ("delayed", "delayed")
    jobs.app.work(name, f"{name}-2", drain=True)
    assert (sorted(jobs.ran[:3]), jobs.ran[3:]) == (["a", "b", "c"], ["last", "after last"])
    assert outcome(last) == "done"


def test_jobs_that_have_ended_or_are_not_known_hold_nothing_up(jobs: Jobs, name: str) -> None:
    first, gone = jobs.note.push("first"), jobs.note.push("gone")
    gone.cancel()
    jobs.work()
    follower = jobs.note.using(after=[first, gone]).push("next")
    assert follower.state() == "ready"
    assert jobs.note.using(after=[]).push("none").state() == "ready"


@pytest.mark.parametrize("state", ["ready", "delayed", "claimed"])
def test_a_job_follows_one_in_any_state(jobs: Jobs, name: str, clock: Clock, state: str) -> None:
    db, queue = jobs.app.db, jobs.app.queue(name)
    first = jobs.note.using(delay="1h" if state == "delayed" else None).push("first")
    claim = queue.claim(db) if state == "claimed" else None
    follower = jobs.note.using(after=[first]).push("next")
    assert (first.state(), follower.state()) == (state, "delayed")
    if claim is not None:
        queue.nack(db, claim, delay="1h")  # it still holds up the next
        assert jobs.work() == []
    clock.advance("1h")
    assert jobs.work() == ["first", "next"]


@pytest.mark.parametrize("end", ["dead", "discarded", "cancelled", "expired"])
@pytest.mark.parametrize("on_dead", ["cancel", "continue"])
def test_what_a_failure_means_for_the_jobs_that_follow(
    jobs: Jobs, name: str, clock: Clock, end: str, on_dead: Any
) -> None:
    """A chain of three: the second and the third are cancelled, or run all the same."""
    kind: Any = jobs.fail if end in ("dead", "discarded") else jobs.note
    first = kind.using(ttl="1h" if end == "expired" else None).push(end)
    second = jobs.note.using(after=[first], on_dead=on_dead).push("second")
    third = jobs.note.using(after=[second], on_dead=on_dead).push("third")
    if end == "cancelled":
        first.cancel()
    if end == "expired":
        clock.advance("2h")
    jobs.work()  # what expires makes the next one ready after this has looked for ready jobs
    runs = on_dead == "continue" or end == "discarded"
    assert jobs.work() == (["second", "third"] if runs else [])
    assert {outcome(second), outcome(third)} == {"done" if runs else "cancelled"}


def test_many_are_pushed_after_others_in_the_callers_transaction(jobs: Jobs) -> None:
    first = jobs.note.push("first")

    def push(tr: Transaction) -> None:
        other = jobs.note.using(tr).push("other")
        followers = jobs.note.using(tr, after=[first, other])
        pushed = followers.push_many(map(jobs.note.bind, ["x", "y"]))
        jobs.note.using(tr, after=[*pushed, first]).push("second")

    tr = jobs.app.db.create_transaction()
    push(tr)
    tr.reset()  # not committed
    assert jobs.work() == ["first"]
    transactional(push)(jobs.app.db)
    jobs.work()
    assert jobs.ran[:2] == ["first", "other"]
    assert (sorted(jobs.ran[2:4]), jobs.ran[4:]) == (["x", "y"], ["second"])


@pytest.mark.parametrize("taken", ["claimed", "popped", "acknowledged", "after the push"])
def test_a_push_conflicts_with_what_happens_to_the_job_before_it(
    jobs: Jobs, name: str, fdb_error: Any, taken: str
) -> None:
    """Either the push sees that it has ended, or the end sees the push: nothing waits for ever."""
    queue = jobs.app.queue(name)
    item = jobs.note.push("first")
    claim = queue.claim(jobs.app.db) if taken == "acknowledged" else None
    takes, pushes = jobs.app.db.create_transaction(), jobs.app.db.create_transaction()
    if claim is not None:
        queue.ack(takes, claim)
    elif taken == "popped":
        queue.pop(takes)
    else:
        queue.claim(takes)
    jobs.note.using(pushes, after=[item]).push("next")
    one, other = (pushes, takes) if taken == "after the push" else (takes, pushes)
    one.commit().wait()
    with fdb_error(1020):
        other.commit().wait()


@pytest.mark.parametrize("size", [1, 89_990])
def test_a_job_has_as_many_followers_as_are_allowed_whatever_its_size(
    jobs: Jobs, name: str, size: int
) -> None:
    first, queue = jobs.note.push("x" * size), jobs.app.queue(name)
    other = jobs.note.using(queue=f"{name}-other", after=first)
    followers = [other.push("other")]
    followers += jobs.note.using(after=[first]).push_many(jobs.note.bind(str(n)) for n in range(99))
    with pytest.raises(TooManyFollowing, match="100 jobs and batches wait for the job"):
        other.push("one too many")
    assert len(batches_of(jobs.app.db, queue, first.id)) == 100
    queue.update(jobs.app.db, first.id, priority=7)
    assert check(jobs.app.db, queue).problems == ()
    jobs.app.work(name, f"{name}-other", drain=True)
    assert {outcome(each) for each in followers} == {"done"}
    assert check(jobs.app.db, queue).problems == ()
    assert rows_in(jobs.app.db, queue, "followers") == []


def test_mistakes(jobs: Jobs, name: str) -> None:
    first = jobs.note.push("first")
    for wrong in ("abc", [None], 7):
        with pytest.raises(TypeError, match=r"after must be a handle, .*, not "):
            jobs.note.using(after=wrong)
    with pytest.raises(ValueError, match="jobs to follow, or a delay"):
        jobs.note.using(after=[first], delay="1h")
    with pytest.raises(ValueError, match="on_dead is one of 'continue', 'cancel', not"):
        jobs.note.using(after=[first], on_dead="stop")

    @jobs.app.job(queue=name, name="end")
    def end(*, done: int, dead: int, cancelled: int) -> None: ...

    with jobs.app.batch(then=end) as batch, pytest.raises(TypeError, match="after"):
        batch.push(jobs.note.using(after=[first]), "x")


@pytest.mark.parametrize("how", ["expired", "delayed", "lease", "last lease"])
def test_a_job_has_the_unique_key_of_one_that_it_follows_and_whose_time_is_over(
    jobs: Jobs, name: str, clock: Clock, how: str
) -> None:
    queue = jobs.app.queue(name)
    queue.configure(jobs.app.db, max_attempts=1 if how == "last lease" else 2)
    times: dict[str, Any] = {"expired": {"ttl": 5}, "delayed": {"delay": 5}}
    first = jobs.note.using(unique="k", **times.get(how, {})).push("first")
    if "lease" in how:
        assert queue.claim(jobs.app.db, lease=5) is not None
    clock.advance(6)
    second = jobs.note.using(unique="k", after=[first]).push("second")
    assert check(jobs.app.db, queue).problems == ()
    assert second.is_new == (how in ("expired", "last lease"))
    expected = {"expired": ["second"], "last lease": []}
    assert jobs.work() == expected.get(how, ["first"])
    assert outcome(second) == ("cancelled" if how == "last lease" else "done")
