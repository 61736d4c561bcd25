"""`check` finds damage, and its repair fixes wrong counts and orphaned pieces."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from fdb import tuple as fdb_tuple

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.errors import QueueTooLargeToCheck
from fdbqueue.layout.priorities import Priorities
from fdbqueue.layout.values import encode_count, encode_tallies
from fdbqueue.queue.check import _Check
from fdbqueue.testing import Clock
from tests.support.keys import layout_of, rows_in


@pytest.fixture
def filled(db: Any, queue: PriorityQueue) -> PriorityQueue:
    queue.push_many(db, ["a", "b", "x" * 200_000], priorities=[1, 2, 2])
    return queue


def rows(db: Any, queue: PriorityQueue) -> list[tuple[bytes, bytes]]:
    return [(row.key, row.value) for row in db.get_range_startswith(queue.subspace.key())]


def test_check_reports_no_problems_of_a_sound_queue_and_changes_nothing(
    db: Any, filled: PriorityQueue
) -> None:
    before = rows(db, filled)
    report = fdbqueue.admin.check(db, filled, repair=True)
    assert (report.ok, report.ready, report.repaired) == (True, 3, False)
    assert rows(db, filled) == before


def counter(queue: PriorityQueue, priority: int) -> bytes:
    key = Priorities(layout_of(queue), int).level(priority).counter
    assert key is not None
    return key


def tally(**changes: int) -> Any:
    return lambda db, queue: db.add(layout_of(queue).tallies, encode_tallies(**changes))


def put(key: Any, value: bytes) -> Any:
    return lambda db, queue: db.__setitem__(key(queue), value)


DAMAGES: list[tuple[Any, str]] = [
    (put(partial(counter, priority=2), encode_count(0)), "the count of priority 2 is 0, not 2"),
    (put(partial(counter, priority=7), encode_count(1)), "the count of priority 7 is 1, not 0"),
    (put(partial(counter, priority=7), encode_count(0)), "the count of priority 7 is 0, not 0"),
    (put(lambda queue: layout_of(queue).counts + b"\x03", encode_count(1)), "the count of the key"),
    (put(lambda queue: slots_key(queue), encode_count(1)), "the count of claims is 1, not 0"),
    (tally(popped=7), "the total is -4, not 3"),
    (tally(claimed=2), "the number of claimed items is 2, not 0"),
    (tally(expiring=1), "the number of items that expire is 1, not 0"),
    (tally(paused=1), "the number of pauses is 1, not 0"),
    (tally(unknown=5), "the number of jobs that no worker knows is 5, not 0"),
    (put(lambda queue: pieces_key(queue), b"left"), "pieces of a payload of no item"),
]


def slots_key(queue: PriorityQueue) -> bytes:
    return layout_of(queue).slots + layout_of(queue).slot_of_queue


def pieces_key(queue: PriorityQueue) -> bytes:
    return layout_of(queue).pieces + fdb_tuple.pack((b"nobody's", 0))


@pytest.mark.parametrize(("damage", "words"), DAMAGES, ids=[words for _, words in DAMAGES])
def test_check_finds_and_repairs_damage(
    db: Any, filled: PriorityQueue, damage: Any, words: str
) -> None:
    damage(db, filled)
    (problem,) = fdbqueue.admin.check(db, filled).problems
    assert problem.startswith(words)
    repaired = fdbqueue.admin.check(db, filled, repair=True)
    assert (repaired.repaired, repaired.problems) == (True, (problem,))
    assert fdbqueue.admin.check(db, filled).ok
    assert (filled.counts(db), filled.size(db)) == ({1: 1, 2: 2}, 3)
    assert [len(item.value) for item in filled.pop_many(db, 3)] == [1, 1, 200_000]


def moved(db: Any, queue: PriorityQueue) -> None:
    queue.update(db, queue.push(db, 1), priority=5)


def failed(db: Any, queue: PriorityQueue) -> None:
    queue.push(db, 1)
    queue.nack(db, queue.claim(db), delay=0)


def kept(db: Any, queue: PriorityQueue) -> None:
    queue.configure(db, keep=9)
    queue.push(db, 1)
    queue.ack(db, queue.claim(db), result=1)


def unique(db: Any, queue: PriorityQueue) -> None:
    queue.push(db, 1, unique="k", unique_for="1h")
    queue.pop(db)


@pytest.mark.parametrize(
    ("given", "lost", "words"),
    [
        (moved, "moved", ["an item is not found by its index"]),
        (failed, "items", ["the count of priority 0 is 1, not 0", "failed attempts of no item"]),
        (kept, "done", ["number of done items", "index leads to no item", "result of no item"]),
        (unique, "unique_ends", ["not found by its index"]),
        (unique, "unique_keys", ["leads to no item"]),
    ],
)
def test_check_repairs_what_depends_on_rows_that_are_lost(
    db: Any, queue: PriorityQueue, given: Any, lost: str, words: list[str]
) -> None:
    given(db, queue)
    for row in rows_in(db, queue, lost):
        del db[row.key]
    problems = fdbqueue.admin.check(db, queue, repair=True).problems
    assert [each for each in words if not any(each in problem for problem in problems)] == []
    assert fdbqueue.admin.check(db, queue).ok


def hold(db: Any, queue: PriorityQueue) -> None:
    layout = layout_of(queue)
    db[layout.group_key(layout.held_groups, "ada")] = b""
    for row in db.get_range(*layout.range_of(layout.turns)):
        del db[row.key]


def release(db: Any, queue: PriorityQueue) -> None:
    queue.set_group(db, "ada", paused=True)
    layout = layout_of(queue)
    del db[layout.group_key(layout.held_groups, "ada")]
    settings = bytes(db[layout.group_key(layout.group_settings, "ada")])
    db[layout.turn_key(layout.turns, b"\x14", 0, "ada")] = settings


def forget_timer(db: Any, queue: PriorityQueue) -> None:
    queue.configure(db, rate=(1, "1h"))
    assert queue.pop(db) is not None
    queue.push(db, "b", 0, group="ada")
    layout = layout_of(queue)
    for row in db.get_range(*layout.range_of(layout.dues)):
        del db[row.key]


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (hold, "group 'ada' is held back, and may go on"),
        (release, "group 'ada' is not held back, and may not go on"),
        (forget_timer, "the queue is over its rate, and has no timer"),
    ],
)
def test_check_finds_and_releases_what_is_stuck(
    db: Any, queue: PriorityQueue, damage: Any, problem: str
) -> None:
    queue.push(db, "a", 0, group="ada")
    damage(db, queue)
    assert fdbqueue.admin.check(db, queue).problems == (problem,)
    assert fdbqueue.admin.check(db, queue, repair=True).repaired
    assert fdbqueue.admin.check(db, queue).ok
    queue.set_group(db, "ada", paused=False)
    with Clock() as clock:
        clock.advance("1h")
        assert queue.pop(db) is not None
    assert fdbqueue.admin.check(db, queue).ok


@pytest.mark.damaged
def test_check_reports_foreign_keys_and_lost_pieces_and_keeps_them(
    db: Any, filled: PriorityQueue
) -> None:
    filled.push(db, "later", delay=60)
    layout = layout_of(filled)
    foreign = [
        layout.items + b"\x02text\x00",
        layout.level_prefix(1) + b"\x14",
        layout.delayed + b"\x02text\x00",
        filled.subspace.pack((99, "unknown section")),
        filled.subspace.pack(("unknown",)),
    ]
    (delayed,) = db.get_range_startswith(layout.delayed)
    for key in foreign:
        db[key] = delayed.value
    db.clear_range(*layout.range_of(layout.pieces))
    report = fdbqueue.admin.check(db, filled, repair=True)
    problems = report.problems
    assert not report.repaired
    assert sum(problem.startswith("foreign key") for problem in problems) == 5
    assert any(problem.startswith("foreign key among the delayed items: ") for problem in problems)
    assert any("the number of pieces of a payload of an item is" in problem for problem in problems)
    assert all(db[key] == delayed.value for key in foreign)


@pytest.mark.damaged
def test_check_reports_an_item_that_cannot_be_read_or_is_in_two_states(
    db: Any, queue: PriorityQueue
) -> None:
    item = queue.push(db, 1, ttl=60)
    value = bytes(db[item.key])
    db[item.key] = value[:-5]
    (problem, *_) = fdbqueue.admin.check(db, queue, repair=True).problems
    assert problem.startswith(f"an item that cannot be read: {item.key!r}: ")
    db[item.key] = value
    assert fdbqueue.admin.check(db, queue).ok
    assert queue.claim(db) is not None
    db[item.key] = value
    report = fdbqueue.admin.check(db, queue, repair=True)
    assert any(problem.startswith("an item that is stored twice: ") for problem in report.problems)
    assert (report.repaired, report.ready, report.claimed) == (False, 1, 1)


def test_a_queue_opened_with_another_type_of_priorities_is_not_repaired(
    db: Any, filled: PriorityQueue
) -> None:
    other = PriorityQueue(filled.subspace, priorities=(int, int))
    report = fdbqueue.admin.check(db, other, repair=True)
    assert not report.ok
    assert not report.repaired
    assert fdbqueue.admin.check(db, filled).ok
    assert [len(item.value) for item in filled.pop_many(db, 3)] == [1, 1, 200_000]


# Reads at versions that are too old


def too_old(is_so: Iterator[bool], scan: Any) -> Any:
    """Return a scan that fails, as an iterator says, at read versions that are too old."""

    def scans(check: Any) -> None:
        if next(is_so):
            raise fdbqueue.FDBError(1007)
        scan(check)

    return scans


@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.parametrize(("scan", "step"), [("_scan_parts", 5), ("_scan_items", 0)])
def test_a_check_begins_again_that_could_read_only_few_items(
    db: Any,
    filled: PriorityQueue,
    monkeypatch: pytest.MonkeyPatch,
    scan: str,
    step: int,
    repair: bool,
) -> None:
    """Not its size is to blame, but a database that recovers, or answers slowly or not at all."""
    refused, seconds = iter([True, True, False]), itertools.count(step=step)
    monkeypatch.setattr(_Check, scan, too_old(refused, getattr(_Check, scan)))
    monkeypatch.setattr("fdbqueue.queue.check.monotonic", lambda: next(seconds))
    report = fdbqueue.admin.check(db, filled, repair=repair)
    assert (report.ready, report.ok, [*refused]) == (3, True, [])


def test_a_check_that_outlasts_its_transaction_raises(
    db: Any, filled: PriorityQueue, monkeypatch: pytest.MonkeyPatch, fdb_error: Any
) -> None:
    tr = db.create_transaction()
    with monkeypatch.context() as patch, fdb_error(1007):  # has read nothing
        patch.setattr(_Check, "_scan_items", too_old(itertools.repeat(True), None))
        fdbqueue.admin.check(tr, filled)
    tr.on_error(1007).wait()
    assert fdbqueue.admin.check(tr, filled).ready == 3
    seconds = itertools.count(step=5)
    monkeypatch.setattr("fdbqueue.queue.check.monotonic", lambda: next(seconds))
    monkeypatch.setattr("fdbqueue.database.retrying._FEW", 3)
    monkeypatch.setattr(_Check, "_scan_parts", too_old(itertools.repeat(True), None))
    for database, repair in ((db, False), (db, True), (db.create_transaction(), False)):
        with pytest.raises(QueueTooLargeToCheck, match="read 3 items"):
            fdbqueue.admin.check(database, filled, repair=repair)
