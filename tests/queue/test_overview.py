"""Looking at thousands of queues takes few transactions, and a read of each."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import chain, islice
from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue, Queue, TaskQueue
from fdbqueue.errors import InvalidQueueName
from fdbqueue.queue import overview
from tests.support.counting import CountingDatabase
from tests.support.keys import push_undecodable
from tests.support.many_queues import make_queues, pages_of

NUMBER = 2_500

LOOKS: list[Callable[..., Any]] = [fdbqueue.admin.queue_names, fdbqueue.admin.overview]


def behind(name: str) -> str:
    """Return a name before all queues of a test, but behind most others."""
    return f"{name}!"


def test_many_queues_share_transactions(db: Any, name: str) -> None:
    busy = set(range(0, NUMBER, 500))
    sizes = make_queues(db, name, NUMBER, busy)
    counting = CountingDatabase(db)
    pages = math.ceil(NUMBER / 500)
    for look, reads in zip(LOOKS, (pages, pages + NUMBER + 2 * len(busy))):
        counting.clear()
        found: Any = look(counting, after=behind(name), limit=NUMBER)
        assert (counting.transactions, counting.commits) == (pages, 0)
        assert counting.reads == reads, look
        if look is fdbqueue.admin.overview:
            assert {each: stats.ready for each, stats in found.items()} == sizes
            by_priority = [stats.by_priority for stats in found.values() if stats.ready]
            assert by_priority == [{0: 1, 7: 1}] * len(busy)
            totals = [(stats.total_pushed, stats.total_completed) for stats in found.values()]
            assert totals == [(3, 1) if size else (1, 1) for size in sizes.values()]
            ages = {each for each, stats in found.items() if stats.oldest is not None}
            assert ages == {each for each, size in sizes.items() if size}
        else:
            assert list(found) == list(sizes)


@pytest.mark.parametrize("look", LOOKS)
def test_pages_are_parts_of_the_whole(
    db: Any, name: str, look: Any, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queues(db, name, 60, busy=set(rng.sample(range(60), 10)))
    for size in (7, 1000):
        monkeypatch.setattr(overview, "_PAGE", size)
        whole = list(look(db, after=behind(name), limit=60))
        assert len(whole) == 60
        for limit in (5, 7, 30, 59, 60):
            pages = list(islice(pages_of(look, db, behind(name), limit), 60 // limit))
            assert [len(page) for page in pages] == [limit] * len(pages)
            assert list(chain.from_iterable(pages)) == whole[: limit * len(pages)]
    every = look(db)
    assert [each for each in every if each in whole] == whole
    between = look(db, after=f"{name}000003x", limit=1)  # the name of no queue
    assert list(between) == whole[4:5]


@pytest.mark.parametrize("look", LOOKS)
def test_an_invalid_page_is_rejected(db: Any, look: Any) -> None:
    with pytest.raises(InvalidQueueName):
        look(db, after=" ")
    with pytest.raises(ValueError, match="limit is a number of queues from 0, not -1"):
        look(db, limit=-1)


def test_the_order_is_that_of_names_wherever_renamed_queues_are_stored(
    db: Any, name: str, rng: random.Random
) -> None:
    expected = {}
    for n in range(60):
        queue = PriorityQueue.named(db, f"{name}{n:02}")
        queue.push_many(db, [n] * rng.randrange(1, 4))
        expected[f"{name}{n:02}"] = queue.size(db)
    for n in rng.sample(range(60), 30):
        old, new = f"{name}{n:02}", f"{name}{rng.randrange(60):02}+{n}"
        fdbqueue.admin.rename(db, old, new)
        expected[new] = expected.pop(old)
        if rng.random() < 0.5:
            PriorityQueue.named(db, old).push(db, "of a later queue")
            expected[old] = 1
    overview = fdbqueue.admin.overview(db, after=behind(name), limit=len(expected))
    assert [(each, stats.ready) for each, stats in overview.items()] == sorted(expected.items())


def test_every_kind_of_queue_has_an_oldest_item_while_one_is_ready(db: Any, name: str) -> None:
    tasks = TaskQueue.named(db, f"{name}tasks")
    fifo = Queue.named(db, f"{name}fifo")
    jobs = PriorityQueue.named(db, f"{name}jobs")
    delayed = PriorityQueue.named(db, f"{name}later")
    Queue.named(db, f"{name}unused").configure(db, max_size=5)
    tasks.push(db, cost=2)
    tasks.push(db, cost=1)
    fifo.enqueue_many(db, "ab")
    jobs.push_many(db, "ab", priorities=[2, 1])
    delayed.push(db, "x", delay=3600)
    oldest = {
        each.removeprefix(name): stats.oldest
        for each, stats in fdbqueue.admin.overview(db, after=behind(name), limit=5).items()
    }
    assert oldest == {
        "fifo": fifo.pushed_at(fifo.peek(db)),
        "jobs": jobs.pushed_at(next(iter(jobs.items(db, priority=2)))),
        "later": None,
        "tasks": tasks.get_stats(db).oldest,
        "unused": None,
    }


def test_a_transaction_sees_its_own_changes_of_many_queues(db: Any, name: str) -> None:
    sizes = make_queues(db, name, 300, busy={7})

    def body(tr: Any) -> dict[str, int]:
        PriorityQueue.named(tr, f"{name}000100").push(tr, "x")
        PriorityQueue.named(tr, f"{name}000100+").push(tr, "y")
        fdbqueue.admin.drop(tr, f"{name}000200")
        found = fdbqueue.admin.overview(tr, after=behind(name), limit=300)
        return {each: stats.ready for each, stats in found.items()}

    del sizes[f"{name}000200"]
    sizes |= {f"{name}000100": 1, f"{name}000100+": 1}
    tr = db.create_transaction()
    assert body(tr) == sizes
    tr.reset()


def test_a_queue_that_cannot_be_decoded_has_an_error_instead_of_numbers(db: Any, name: str) -> None:
    push_undecodable(db, f"{name}old")
    PriorityQueue.named(db, f"{name}young").push(db, 1)
    old, young = fdbqueue.admin.overview(db, after=behind(name), limit=2).values()
    assert old.error is not None
    assert "cannot be read" in old.error
    assert not old.is_empty
    assert (old.ready, old.total_pushed, young.ready, young.error) == (0, 0, 1, None)
