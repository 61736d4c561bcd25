"""Jobs that wait for jobs of another queue go on after a backup, a copy and a drop."""

from __future__ import annotations

import io
from contextlib import suppress
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.admin import backup, check, copy, drop, queue_names, restore
from fdbqueue.errors import QueueExists
from fdbqueue.jobs import App, Context
from fdbqueue.operations.maintainers import batches as ends
from fdbqueue.queue import backup as rows
from fdbqueue.queue.batches import Batches, Members
from tests.support.interrupted import Cut
from tests.support.keys import lose


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


GONE = sorted(["anyway", "end 0 0 1"])
"""What runs if all jobs of the working queue are gone. The parent is a dead letter."""


def reasons(shop: Shop) -> Any:
    """Return what each item shows of the items that it waits for, and its steps."""
    waiting, _ = shop.queues()
    ids = [info.id for info in waiting.items(shop.db, state="delayed")]
    infos = [waiting.get(shop.db, id) for id in ids]
    steps = [waiting.steps.all(shop.db, id) for id in ids]
    return [(info.waits_for, info.due_at) for info in infos], steps


def saved(shop: Shop, *names: str) -> tuple[io.BytesIO, dict[str, Any]]:
    file = io.BytesIO()
    return file, backup(shop.db, file, names)


def test_a_copy_and_a_backup_of_both_queues_keep_what_is_between_them(
    shop: Shop, other: Any
) -> None:
    waits = reasons(shop)
    file, copies = saved(shop, shop.waiting, shop.working)
    assert copy(shop.db, other, [shop.waiting, shop.working]) == copies
    there = Shop(other, shop.waiting, shop.working)
    assert there.problems() == []
    assert there.work() == ALL
    for name in (shop.waiting, shop.working):
        drop(other, name)
    drop(shop.db, shop.waiting)
    drop(shop.db, shop.working)
    for db in (shop.db, other):
        assert restore(db, file) == copies
        there = Shop(db, shop.waiting, shop.working)
        assert reasons(there) == waits
        assert backup(db, io.BytesIO(), [shop.waiting, shop.working]) == copies
        assert there.problems() == []
        assert there.work() == ALL
        assert there.problems() == []


def test_a_restore_that_is_interrupted_after_any_transaction_continues(
    shop: Shop, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_BATCH_ROWS", 15)
    names = [shop.waiting, shop.working]
    file, copies = saved(shop, *names)
    commits, is_done = 0, False
    while not is_done:
        with suppress(KeyboardInterrupt):
            restore(Cut(other, commits), file)
            is_done = True
        assert is_done or not set(names) & set(queue_names(other))
        restored = restore(other, file) if not is_done else copies
        assert restored == copies
        there = Shop(other, shop.waiting, shop.working)
        with pytest.raises(QueueExists, match="or drop that queue"):
            restore(other, file)
        assert there.problems() == []
        assert there.work() == ALL
        for name in names:
            drop(other, name)
        commits += 1
    assert commits > 5


@pytest.mark.parametrize("kept", ["waiting", "working"])
def test_one_of_the_queues_is_used_without_the_other_one(shop: Shop, other: Any, kept: str) -> None:
    name = getattr(shop, kept)
    file, _ = saved(shop, name)
    restore(other, file)
    there = Shop(other, shop.waiting, shop.working)
    there.app.work(name, drain=True)
    queue = fdbqueue.existing_queue(other, name)
    waiting = [info.id for info in queue.items(other, state="delayed")]
    assert sorted(there.ran) == ([] if kept == "waiting" else [*"ab", "first", "member"])
    assert len(waiting) == (4 if kept == "waiting" else 0)  # until they are cancelled
    assert all(queue.cancel(other, id) for id in waiting)
    there.app.work(name, drain=True)  # one has begun
    assert queue.is_empty(other)
    assert check(other, queue).ok


def test_a_backup_of_one_queue_goes_back_to_the_other_one(shop: Shop) -> None:
    file, _ = saved(shop, shop.working)
    lose(shop.db, shop.working)
    restore(shop.db, file)
    there = Shop(shop.db, shop.waiting, shop.working)
    assert there.problems() == []
    assert there.work() == ALL


def test_what_waits_for_a_dropped_queue_ends_once_also_if_the_queue_is_restored(shop: Shop) -> None:
    file, _ = saved(shop, shop.working)
    drop(shop.db, shop.working)
    restore(shop.db, file)
    there = Shop(shop.db, shop.waiting, shop.working)
    assert there.problems() == []
    assert there.work() == sorted([*GONE, *"ab", "first", "member"])
    assert there.problems() == []


@pytest.mark.parametrize("how", ["drop", "drop in a transaction", "clear", "drop in chunks"])
def test_what_waits_for_jobs_of_a_queue_that_is_emptied_goes_on(
    shop: Shop, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    working = fdbqueue.existing_queue(shop.db, shop.working)
    working.claim(shop.db)
    if how == "drop in chunks":
        monkeypatch.setattr(ends, "_CHUNK_ROWS", 1)
    if how == "clear":
        working.clear(shop.db)
    elif how == "drop in a transaction":
        tr = shop.db.create_transaction()
        drop(tr, shop.working)
        tr.commit().wait()
    else:
        drop(shop.db, shop.working)
    queue = fdbqueue.existing_queue(shop.db, shop.waiting)
    assert check(shop.db, queue).ok
    shop.app.work(shop.waiting, drain=True)
    assert sorted(shop.ran) == GONE
    (dead,) = queue.items(shop.db, state="dead")
    assert "the job is gone: its queue was dropped or cleared" in (dead.error or "")


@pytest.mark.parametrize("commits", [0, 2, 4])
def test_an_interrupted_drop_ends_each_wait_once_and_is_run_again(
    shop: Shop, commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "_CHUNK_ROWS", 1)
    working = fdbqueue.existing_queue(shop.db, shop.working)
    claim = working.claim(shop.db)
    with pytest.raises(KeyboardInterrupt):
        drop(Cut(shop.db, commits), shop.working)
    assert shop.problems() == []
    working.ack(shop.db, claim)  # its end may count already
    assert shop.problems() == []
    drop(shop.db, shop.working)
    queue = fdbqueue.existing_queue(shop.db, shop.waiting)
    assert check(shop.db, queue).ok
    shop.app.work(shop.waiting, drain=True)
    assert len(shop.ran) + len([*queue.items(shop.db, state="dead")]) >= 3
    assert not [*queue.items(shop.db, state="delayed")]


def test_jobs_of_other_queues_run_after_a_drop_of_the_queue_that_waits_for_them(shop: Shop) -> None:
    drop(shop.db, shop.waiting)
    shop.app.work(shop.working, drain=True)
    assert sorted(shop.ran) == [*"ab", "first"]  # the batch of the other one is cancelled


def test_a_restored_queue_counts_in_one_without_a_name_and_a_copy_beside_it_does_not(
    db: Any, space: Subspace, name: str
) -> None:
    waiting, working = PriorityQueue(space), PriorityQueue.named(db, f"{name}working")
    batches = Batches(waiting)
    id = batches.open(db, {"job": "end"}, 0, "continue").id
    batches.add(db, id, "continue", [Members(working, {"values": [1, 2], "priority": 0})])
    batches.close(db, id)
    copy(db, db, [f"{name}working"], new_name=f"{name}copy")
    copied = fdbqueue.existing_queue(db, f"{name}copy")
    while claim := copied.claim(db):
        copied.ack(db, claim)
    assert waiting.pop(db) is None
    file = io.BytesIO()
    backup(db, file, [f"{name}working"])
    lose(db, f"{name}working")
    restore(db, file)
    restored = fdbqueue.existing_queue(db, f"{name}working")
    while claim := restored.claim(db):
        restored.ack(db, claim)
    assert waiting.pop(db, wait=60).value["kwargs"] == {"done": 2, "dead": 0, "cancelled": 0}
