"""`check` finds damage, and its repair fixes wrong counts and orphaned pieces."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.coordination.pops import PopRequests
from fdbqueue.database.clock import milliseconds
from fdbqueue.errors import QueueTooLargeToCheck
from fdbqueue.layout.priorities import Priorities
from fdbqueue.layout.values import encode_count, encode_tallies
from fdbqueue.queue.base import store_of
from fdbqueue.queue.check import _Check
from fdbqueue.testing import Clock, FaultyDatabase
from tests.support.keys import layout_of


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


def test_check_keeps_the_pieces_of_staged_items(db: Any, filled: PriorityQueue) -> None:
    kept = store_of(filled).items
    requests = PopRequests(layout_of(filled), kept)

    @fdbqueue.transactional
    def stage(tr: Any) -> None:
        taken = kept.first(tr, 3)
        request = requests.write(tr, b"name", [(1, False), (1, False), (2, False)])
        requests.stage(tr, request, [taken[:1], [], taken[1:]])
        kept.pop(tr, milliseconds(), [], taken)

    stage(db)
    before = rows(db, filled)
    report = fdbqueue.admin.check(db, filled, repair=True)
    assert (report.ok, report.ready + report.claimed, report.repaired) == (True, 3, False)
    assert rows(db, filled) == before


def counter(queue: PriorityQueue, priority: int) -> bytes:
    key = Priorities(layout_of(queue), int).level(priority).counter
    assert key is not None
    return key


def break_count(db: Any, queue: PriorityQueue) -> None:
    db[counter(queue, 1)] = encode_count(7)


def drop_count(db: Any, queue: PriorityQueue) -> None:
    del db[counter(queue, 2)]


def invent_count(db: Any, queue: PriorityQueue) -> None:
    db[counter(queue, 777)] = encode_count(1)


def zero_count(db: Any, queue: PriorityQueue) -> None:
    db[counter(queue, 777)] = encode_count(0)


def break_slots(db: Any, queue: PriorityQueue) -> None:
    db[layout_of(queue).slots + layout_of(queue).slot_of_queue] = encode_count(1)


def break_total(db: Any, queue: PriorityQueue) -> None:
    db.add(layout_of(queue).tallies, encode_tallies(popped=7))


def break_states(db: Any, queue: PriorityQueue) -> None:
    db.add(layout_of(queue).tallies, encode_tallies(claimed=2))


def break_expiries(db: Any, queue: PriorityQueue) -> None:
    db.add(layout_of(queue).tallies, encode_tallies(expiring=1))


def break_pause(db: Any, queue: PriorityQueue) -> None:
    db.add(layout_of(queue).tallies, encode_tallies(paused=1))


def orphan_pieces(db: Any, queue: PriorityQueue) -> None:
    from fdb import tuple as fdb_tuple

    db[layout_of(queue).pieces + fdb_tuple.pack((b"nobody's", 0))] = b"left"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (break_count, "the count of priority 1 is 7, not 1"),
        (drop_count, "the count of priority 2 is 0, not 2"),
        (invent_count, "the count of priority 777 is 1, not 0"),
        (zero_count, "the count of priority 777 is 0, not 0"),
        (break_slots, "the count of claims is 1, not 0"),
        (break_total, "the total is -4, not 3"),
        (break_states, "the number of claimed items is 2, not 0"),
        (break_expiries, "the number of items that expire is 1, not 0"),
        (break_pause, "the number of pauses is 1, not 0"),
        (orphan_pieces, "pieces of a payload of no item"),
    ],
)
def test_check_finds_and_repairs_damage(
    db: Any, filled: PriorityQueue, damage: Any, words: str
) -> None:
    damage(db, filled)
    (problem,) = fdbqueue.admin.check(db, filled).problems
    assert problem.startswith(words)
    repaired = fdbqueue.admin.check(db, filled, repair=True)
    assert repaired.repaired
    assert repaired.problems == (problem,)
    assert fdbqueue.admin.check(db, filled).ok
    assert filled.counts(db) == {1: 1, 2: 2}
    assert filled.size(db) == 3
    assert [len(item.value) for item in filled.pop_many(db, 3)] == [1, 1, 200_000]


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


def test_check_reports_foreign_keys_and_lost_pieces_and_keeps_them(
    db: Any, filled: PriorityQueue
) -> None:
    foreign = [
        layout_of(filled).items + b"\x02text\x00",
        layout_of(filled).level_prefix(1) + b"\x14",
        filled.subspace.pack((99, "unknown section")),
        filled.subspace.pack(("unknown",)),
    ]
    for key in foreign:
        db[key] = b"theirs"
    begin, end = layout_of(filled).range_of(layout_of(filled).pieces)
    db.clear_range(begin, end)
    report = fdbqueue.admin.check(db, filled, repair=True)
    problems = report.problems
    assert not report.repaired
    assert sum(problem.startswith("foreign key") for problem in problems) == 4
    assert any("the number of pieces of a payload of an item is" in problem for problem in problems)
    assert all(db[key] == b"theirs" for key in foreign)


@pytest.mark.parametrize("state", ["delayed", "claimed", "dead", "done"])
def test_check_reports_foreign_keys_among_items_that_are_not_ready(
    db: Any, space: Subspace, state: Any
) -> None:
    queue = PriorityQueue(space)
    queue.configure(db, keep=60)
    queue.push(db, 1, delay=60 if state == "delayed" else None)
    if state != "delayed":
        claim = queue.claim(db)
        if state == "dead":
            queue.nack(db, claim, dead=True)
        elif state == "done":
            queue.ack(db, claim)
    prefix = layout_of(queue).prefix_of[state]
    (row,) = db.get_range_startswith(prefix)
    foreign = prefix + b"\x02text\x00"
    db[foreign] = row.value
    repaired = fdbqueue.admin.check(db, queue, repair=True).repaired
    report = fdbqueue.admin.check(db, queue)
    if state in ("delayed", "claimed"):
        words = f"foreign key among the {state} items: "
        assert [problem.startswith(words) for problem in report.problems] == [True]
        assert not repaired
    assert db[foreign] == row.value


def test_check_reports_an_item_that_cannot_be_read(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space)
    item = queue.push(db, 1, ttl=60)
    value = bytes(db[item.key])
    db[item.key] = value[:-5]
    (problem, *_) = fdbqueue.admin.check(db, queue, repair=True).problems
    assert problem.startswith(f"an item that cannot be read: {item.key!r}: ")
    db[item.key] = value
    assert fdbqueue.admin.check(db, queue).ok


def test_check_reports_an_item_in_two_states_and_keeps_both_rows(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space)
    item = queue.push(db, 1)
    value = bytes(db[item.key])
    assert queue.claim(db) is not None
    db[item.key] = value
    report = fdbqueue.admin.check(db, queue, repair=True)
    assert any(problem.startswith("an item that is stored twice: ") for problem in report.problems)
    assert not report.repaired
    assert (report.ready, report.claimed) == (1, 1)


def test_a_queue_opened_with_another_type_of_priorities_is_not_repaired(
    db: Any, filled: PriorityQueue
) -> None:
    other = PriorityQueue(filled.subspace, priorities=(int, int))
    report = fdbqueue.admin.check(db, other, repair=True)
    assert not report.ok
    assert not report.repaired
    assert fdbqueue.admin.check(db, filled).ok
    assert [len(item.value) for item in filled.pop_many(db, 3)] == [1, 1, 200_000]


def test_a_repair_keeps_items_pushed_during_it(db: Any, filled: PriorityQueue) -> None:
    break_count(db, filled), break_total(db, filled)
    tr = db.create_transaction()
    assert fdbqueue.admin.check(tr, filled, repair=True).repaired
    filled.push(db, "meanwhile", 1)
    filled.pop(db)
    tr.commit().wait()
    assert fdbqueue.admin.check(db, filled).ok


def test_concurrent_repairs_correct_a_count_once(
    db: Any, filled: PriorityQueue, fdb_error: Any
) -> None:
    break_total(db, filled)
    one, two = db.create_transaction(), db.create_transaction()
    fdbqueue.admin.check(one, filled, repair=True), fdbqueue.admin.check(two, filled, repair=True)
    one.commit().wait()
    with fdb_error(1020):
        two.commit().wait()
    assert fdbqueue.admin.check(db, filled).ok


def test_a_check_that_outlasts_its_transaction_raises(
    db: Any, filled: PriorityQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_old(*_: Any) -> None:
        raise fdbqueue.FDBError(1007)

    seconds = itertools.count(step=5)
    monkeypatch.setattr("fdbqueue.queue.check.monotonic", lambda: next(seconds))
    monkeypatch.setattr("fdbqueue.database.retrying._FEW", 3)
    monkeypatch.setattr("fdbqueue.queue.check._Check._scan_pieces", too_old)
    for repair in (False, True):
        with pytest.raises(QueueTooLargeToCheck, match="read 3 items"):
            fdbqueue.admin.check(db, filled, repair=repair)
    tr = db.create_transaction()
    with pytest.raises(QueueTooLargeToCheck, match="read 3 items"):
        fdbqueue.admin.check(tr, filled)


class RecoveringDatabase(FaultyDatabase):
    """A database whose first read versions are too old, as after the recovery of a cluster."""

    def __init__(self, db: Any, refused: int) -> None:
        super().__init__(db)
        self.refused = refused

    def before_call(self, name: str) -> None:
        if name in ("get", "get_range") and self.refused:
            self.refused -= 1
            raise fdbqueue.FDBError(1007)


@pytest.mark.parametrize("items", [0, 3])
def test_a_check_that_could_read_only_few_items_begins_again(
    db: Any, queue: PriorityQueue, monkeypatch: pytest.MonkeyPatch, items: int
) -> None:
    """Not its size is to blame, but a database that answers slowly or not at all."""
    queue.push_many(db, range(items + 1))
    queue.pop(db)
    scan, seconds = _Check._scan_pieces, itertools.count(step=5)
    refused = [True, True, False]

    def scan_pieces(check: Any) -> None:
        if refused.pop(0):
            raise fdbqueue.FDBError(1007)
        scan(check)

    monkeypatch.setattr(_Check, "_scan_pieces", scan_pieces)
    monkeypatch.setattr("fdbqueue.queue.check.monotonic", lambda: next(seconds))
    assert fdbqueue.admin.check(db, queue).ready == items
    assert refused == []


@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.parametrize("items", [0, 3])
def test_a_check_tries_again_after_a_recovery_of_the_database(
    db: Any, queue: PriorityQueue, items: int, repair: bool
) -> None:
    queue.push_many(db, range(items))
    recovering = RecoveringDatabase(db, refused=3)
    report = fdbqueue.admin.check(recovering, queue, repair=repair)
    assert (report.ready, report.ok, recovering.refused) == (items, True, 0)


def test_a_check_that_a_recovery_interrupts_begins_again(
    db: Any, filled: PriorityQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan, interrupted = _Check._scan_pieces, list[int]()

    def scan_pieces(check: Any) -> None:
        if not interrupted:
            interrupted.append(check.scanned)
            raise fdbqueue.FDBError(1007)
        scan(check)

    monkeypatch.setattr(_Check, "_scan_pieces", scan_pieces)
    monkeypatch.setattr("fdbqueue.queue.check.monotonic", lambda: 0.0)  # it takes no time
    assert fdbqueue.admin.check(db, filled).ready == 3
    assert interrupted == [3]


def test_a_check_in_a_transaction_that_has_read_nothing_can_be_tried_again(
    db: Any, filled: PriorityQueue, monkeypatch: pytest.MonkeyPatch, fdb_error: Any
) -> None:
    def too_old(*_: Any) -> None:
        raise fdbqueue.FDBError(1007)

    tr = db.create_transaction()
    with monkeypatch.context() as patch, fdb_error(1007):
        patch.setattr(_Check, "_scan_items", too_old)
        fdbqueue.admin.check(tr, filled)
    tr.on_error(1007).wait()
    assert fdbqueue.admin.check(tr, filled).ready == 3
