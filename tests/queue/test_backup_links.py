"""Jobs that wait for jobs of another queue go on after a backup, a copy and a drop."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue.admin import backup, check, copy, drop, restore
from fdbqueue.jobs import App, Context
from tests.support.waiting import wait_until


class Shop:
    """Jobs of one queue that wait for jobs of another one, in every way; what runs is noted."""

    def __init__(self, db: Any, waiting: str, working: str) -> None:
        self.db, self.app = db, App(db)
        self.waiting, self.working = waiting, working
        self.ran: list[str] = []

        @self.app.job(queue=working, name="note")
        def note(what: str) -> str:
            self.ran.append(what)
            return what

        @self.app.job(queue=waiting, name="parent")
        def parent(context: Context) -> None:
            self.ran.append(f"parent of {context.gather('all', [note.bind(x) for x in 'ab'])}")

        @self.app.job(queue=waiting, name="follow")
        def follow(how: str) -> None:
            self.ran.append(how)

        @self.app.job(queue=waiting, name="end")
        def end(*, done: int, dead: int, cancelled: int) -> None:
            self.ran.append(f"end {done} {dead} {cancelled}")

        self.note, self.parent, self.follow, self.end = note, parent, follow, end

    def fill(self) -> None:
        with self.app.batch(then=self.end, on_dead="cancel") as batch:
            batch.push(self.note, "member")
        self.parent.push()
        self.app.work(self.waiting, drain=True)
        first = self.note.push("first")
        self.follow.using(after=[first]).push("after")
        self.follow.using(after=[first], on_dead="continue").push("anyway")

    def work(self) -> list[str]:
        for _ in range(3):
            self.app.work(self.working, drain=True)
            self.app.work(self.waiting, drain=True)
        return sorted(self.ran)

    def queues(self) -> list[Any]:
        return [fdbqueue.existing_queue(self.db, name) for name in (self.waiting, self.working)]

    def problems(self) -> list[str]:
        return [problem for queue in self.queues() for problem in check(self.db, queue).problems]


ALL = sorted([*"ab", "after", "anyway", "end 1 0 0", "first", "member", "parent of ['a', 'b']"])


@pytest.fixture
def shop(db: Any, name: str) -> Shop:
    shop = Shop(db, f"{name}waiting", f"{name}working")
    shop.fill()
    return shop


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Any]:
    with fdbqueue.open(f"embedded:{tmp_path / 'other'}") as database:
        yield database


def saved(shop: Shop, *names: str) -> tuple[io.BytesIO, dict[str, Any]]:
    file = io.BytesIO()
    return file, backup(shop.db, file, names)


def test_a_backup_of_both_queues_keeps_what_is_between_them(shop: Shop, other: Any) -> None:
    file, copies = saved(shop, shop.waiting, shop.working)
    assert [copied.notes for copied in copies.values()] == [(), ()]
    drop(shop.db, shop.waiting)
    drop(shop.db, shop.working)
    for db in (shop.db, other):
        assert restore(db, file) == copies
        assert restore(db, file) == {}
        there = Shop(db, shop.waiting, shop.working)
        assert backup(db, io.BytesIO(), [shop.waiting, shop.working]) == copies
        assert there.problems() == []
        assert there.work() == ALL
        assert there.problems() == []


def test_what_waits_for_a_queue_that_is_left_out_goes_on_after_the_restore(
    shop: Shop, other: Any
) -> None:
    file, copies = saved(shop, shop.waiting)
    (note,) = copies[shop.waiting].notes
    assert note == "its jobs wait for 5 jobs of queues that are left out"
    assert restore(other, file)[shop.waiting].notes == (note,)
    there = Shop(other, shop.waiting, shop.working)
    there.app.work(there.waiting, drain=True)
    assert sorted(there.ran) == ["anyway", "end 0 0 1"]


def test_jobs_whose_ends_count_in_a_queue_that_is_left_out_run(shop: Shop, other: Any) -> None:
    file, copies = saved(shop, shop.working)
    (note,) = copies[shop.working].notes
    assert note == f"jobs of queue {shop.waiting!r}, which is left out, wait for 5 of its jobs"
    restore(other, file)
    there = Shop(other, shop.waiting, shop.working)
    there.app.work(there.working, drain=True)
    assert sorted(there.ran) == [*"ab", "first", "member"]
    assert check(other, fdbqueue.existing_queue(other, shop.working)).ok


def test_a_backup_of_one_queue_goes_back_to_the_other_one(shop: Shop) -> None:
    file, _ = saved(shop, shop.working)
    drop(shop.db, shop.working)
    restore(shop.db, file)
    there = Shop(shop.db, shop.waiting, shop.working)
    assert there.problems() == []
    assert there.work() == ALL


def test_a_copy_of_one_queue_and_then_the_other_keeps_what_is_between_them(
    shop: Shop, other: Any
) -> None:
    assert copy(shop.db, other, shop.waiting).notes
    assert copy(shop.db, other, shop.working).notes
    there = Shop(other, shop.waiting, shop.working)
    assert there.problems() == []
    assert there.work() == ALL


def test_a_copy_beside_the_queue_does_not_count_in_its_batches(shop: Shop, name: str) -> None:
    copy(shop.db, shop.db, shop.working, f"{name}copy")
    ran: list[str] = []
    queue = fdbqueue.existing_queue(shop.db, f"{name}copy")
    while (claim := queue.claim(shop.db)) is not None:
        ran.append(claim.item.value["args"])
        queue.ack(shop.db, claim)
    assert len(ran) == 4
    assert shop.work() == ALL


def test_check_finds_a_job_that_waits_for_jobs_of_a_dropped_queue_and_ends_its_wait(
    shop: Shop,
) -> None:
    drop(shop.db, shop.working)
    (queue,) = [fdbqueue.existing_queue(shop.db, shop.waiting)]
    report = check(shop.db, queue)
    assert len(report.problems) == 4
    assert all("that are in no queue" in problem for problem in report.problems)
    assert check(shop.db, queue, repair=True).repaired
    assert check(shop.db, queue).ok
    shop.app.work(shop.waiting, drain=True)
    assert sorted(shop.ran) == ["anyway", "end 0 0 1"]
    assert check(shop.db, queue).ok


@pytest.mark.parametrize("state", ["claimed", "moved"])
def test_a_link_is_kept_in_any_state(shop: Shop, other: Any, state: str) -> None:
    queue = fdbqueue.PriorityQueue.existing(shop.db, shop.working)
    if state == "claimed":
        queue.claim(shop.db, n=9, lease=0.01)
    else:
        for item in queue.items(shop.db):
            queue.reprioritize(shop.db, item, 7)
    file, _ = saved(shop, shop.waiting, shop.working)
    restore(other, file)
    there = Shop(other, shop.waiting, shop.working)
    assert there.problems() == []
    wait_until(lambda: there.work() == ALL)  # the leases end


def test_a_retry_ends_the_wait_for_jobs_that_are_gone(shop: Shop) -> None:
    queue = fdbqueue.existing_queue(shop.db, shop.waiting)
    waiting = [info.id for info in queue.items(shop.db, state="delayed")]
    assert not any(queue.retry(shop.db, id) for id in waiting)
    drop(shop.db, shop.working)
    assert [queue.retry(shop.db, id) for id in waiting] == [True] * 4
    shop.app.work(shop.waiting, drain=True)
    assert sorted(shop.ran) == ["anyway", "end 0 0 1"]
    assert check(shop.db, queue).ok
