"""Who dies, is slow or is interrupted as it waits loses nothing, and holds nobody up."""

from __future__ import annotations

import pytest

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.coordination import staged_pops
from fdbqueue.errors import UndecodableItem
from tests.coordination.line import CONFLICT, DIES_WAITING, STAGED, Line

# Processes that die


def test_a_request_is_dropped_when_its_lease_is_over_and_not_before(
    line: Line[PriorityQueue],
) -> None:
    items = line.queue.push_many(line.db, range(2))
    line.hold()
    line.process(DIES_WAITING).pop()
    line.drop_the_dead(lease_is_over=False)
    assert len(line.requests()) == 1  # perhaps it lives
    line.drop_the_dead()
    assert line.requests() == []
    assert line.left() == items
    line.release()
    line.assert_sound()


def test_a_request_whose_lease_is_over_takes_no_item_away(
    line: Line[PriorityQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even as long as nobody has dropped it."""
    items = line.queue.push_many(line.db, range(4))
    server = line.process({STAGED: CONFLICT})
    assert server.pop().result() == items[:1]
    line.hold()
    line.process(DIES_WAITING).pop(2)
    line.release()
    monkeypatch.setattr(staged_pops, "_REQUEST_TIMEOUT_VERSIONS", 0)
    assert server.pop().result() == items[1:2]
    assert (len(line.requests()), line.results()) == (1, [])
    assert line.left() == items[2:]


def test_others_are_served_beside_a_dead_process_and_do_not_wait_for_it(
    line: Line[PriorityQueue],
) -> None:
    items = line.queue.push_many(line.db, range(5))
    line.hold()
    before = line.process().pop()
    line.process(DIES_WAITING).pop()
    behind = line.process().pop()
    line.release()
    assert line.process().pop().result() == items[:1]
    assert before.result() == items[1:2]
    assert behind.result() == items[3:4]
    assert line.sleeps.woken == [True, True]
    line.drop_the_dead()
    assert line.left() == [items[2], items[4]]
    line.assert_sound()


@pytest.mark.parametrize("at_max", [False, True])
def test_what_a_dead_process_was_served_goes_back_to_its_own_place(
    line: Line[PriorityQueue], at_max: bool
) -> None:
    """Between its neighbours, those that came meanwhile too, and the counts are right."""
    items = line.queue.push_many(line.db, "abcdef", priorities=[1, 1, 1, 1, 2, 2])
    line.hold()
    line.process(DIES_WAITING).pop(3, at_max)
    line.release()
    assert line.process().pop().result() == items[:1]
    before = line.queue.push(line.db, "before", 0)
    behind = line.queue.push(line.db, "behind", 1)
    served = [items[4], items[5], items[1]] if at_max else items[1:4]
    line.drop_the_dead(lease_is_over=False)
    assert not [item for item in line.left() if item in served]
    line.drop_the_dead()
    in_priority_1 = [item for item in line.left() if item.priority == 1]
    assert [item for item in in_priority_1 if item != behind] == items[1:4]
    assert line.left() == [before, *in_priority_1, *items[4:]]
    line.assert_sound()


def test_a_result_that_takes_several_values_goes_back_whole(line: Line[PriorityQueue]) -> None:
    pushed = line.queue.push_many(
        line.db, ["first", *(letter * 80_000 for letter in "abc"), "y" * 95_000, "last"]
    )
    line.hold()
    line.process(DIES_WAITING).pop(3)
    line.release()
    assert line.process().pop().result() == pushed[:1]
    assert len(line.results()) == 3
    line.drop_the_dead()
    assert line.left() == pushed[1:]
    line.assert_sound()


# Processes that are slow, or interrupted


@pytest.mark.parametrize("was_served", [False, True])
def test_a_process_so_slow_that_it_passes_for_dead_asks_again(
    line: Line[PriorityQueue], was_served: bool
) -> None:
    """What it was served is back in its place by then, and comes out once."""
    items = line.queue.push_many(line.db, range(4))
    line.sleeps.may_wake.clear()
    line.hold()
    slow = line.process().pop()
    popped = []
    if was_served:
        line.release()
        popped += line.process().pop().result()
        line.until_there_is_no_leader()
        line.hold()
    line.drop_the_dead()
    assert line.left() == items[len(popped) :]
    line.sleeps.may_wake.set()
    line.sleeps.until_begun(2)
    line.release()
    popped += line.process().pop().result()
    popped += slow.result()
    assert popped == items[: len(popped)]
    assert len(popped) == 2 + was_served
    line.assert_sound()


@pytest.mark.parametrize("was_served", [False, True])
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), fdbqueue.FDBError(1031)], ids=["interrupt", "1031"]
)
def test_who_is_interrupted_as_it_waits_leaves_no_request_and_gives_back_what_it_was_served(
    line: Line[PriorityQueue], error: BaseException, was_served: bool
) -> None:
    items = line.queue.push_many(line.db, range(5))
    line.sleeps.may_wake.clear()
    line.hold()
    interrupted = line.process().pop(2)
    popped = []
    if was_served:
        line.release()
        popped += line.process().pop().result()
        assert line.results()
    line.sleeps.error = error
    line.sleeps.end()
    line.sleeps.may_wake.set()
    assert interrupted.error() is error
    assert (line.requests(), line.results()) == ([], [])
    assert line.left() == items[len(popped) :]
    if not was_served:
        line.release()
    line.assert_sound()


# Items that cannot be read


def test_an_item_that_cannot_be_read_is_the_error_of_who_got_it_and_stays_in_its_place(
    line: Line[PriorityQueue],
) -> None:
    items = line.queue.push_many(line.db, range(7))
    line.db[items[3].key] = b"no JSON"
    line.hold()
    calls = [line.process().pop(n) for n in (1, 3, 1)]
    line.release()
    assert line.process().pop().result() == items[:1]
    assert calls[0].result() == items[1:2]
    error = calls[1].error()
    assert isinstance(error, UndecodableItem)
    assert error.item_id == items[3].id
    assert calls[2].result() == items[5:6]
    line.assert_sound()
    assert line.db[items[3].key] == b"no JSON"
    assert line.queue.remove(line.db, items[3].id)
    assert line.left() == [items[2], items[4], items[6]]


def test_an_item_that_cannot_be_read_is_an_error_for_all_who_would_get_it_first(
    line: Line[PriorityQueue],
) -> None:
    """Nobody waits for ever, and nobody gets what comes behind it."""
    items = line.queue.push_many(line.db, range(4))
    line.hold()
    calls = [line.process().pop() for _ in range(2)]
    line.db[items[0].key] = b"no JSON"
    line.release()
    calls.append(line.process().pop())
    line.sleeps.end()
    assert [type(call.error()) for call in calls] == [UndecodableItem] * 3
    line.assert_sound()
    assert line.queue.remove(line.db, items[0].id)
    assert line.left() == items[1:]
