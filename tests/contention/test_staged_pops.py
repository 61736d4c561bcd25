"""Pops that meet others: what FoundationDB's published high-contention queue gets wrong, right.

What happens as a commit fails is in `test_failures`, who serves in `test_turn`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Item, PriorityQueue, Queue

from .line import CONFLICT, DIES_AFTER, FAST, STAGED, Line

REGISTERED_LAST = {FAST: CONFLICT, STAGED: DIES_AFTER}
"""The script of a process that dies as soon as it waits."""


def values(items: list[Item]) -> list[Any]:
    return [item.value for item in items]


# Serving


def test_one_transaction_serves_all_who_wait_and_the_watch_wakes_them(
    line: Line[PriorityQueue],
) -> None:
    """No commit is wasted on a conflict but the first, and nobody backs off."""
    line.queue.push_many(line.db, range(9))
    line.hold()
    waiting = [line.process() for _ in range(8)]
    calls = [process.pop() for process in waiting]
    assert len(line.requests()) == 8
    line.release()
    server = line.process()
    assert values(server.pop().result()) == [0]
    assert [values(call.result()) for call in calls] == [[number] for number in range(1, 9)]
    assert line.sleeps.woken == [True] * 8
    line.assert_sound()
    # After the conflict: one that serves all, and one by which nobody has the turn any more; for
    # each who waits, one to ask and one to take.
    assert server.db.commits == FAST + 2
    assert [process.db.commits for process in waiting] == [FAST + 2] * 8


def test_each_gets_what_it_asked_for_in_the_order_of_asking(line: Line[PriorityQueue]) -> None:
    """From either end, one or many; after the last item a pop gets fewer or none."""
    line.queue.push_many(
        line.db,
        ["a", "b", "c", "d", "e", "f", "g", "x", "y", "z"],
        priorities=[1, 1, 1, 2, 3, 4, 5, 8, 9, 9],
    )
    line.hold()
    asked = [(3, False), (1, True), (2, True), (1, False), (9, False), (1, True), (2, False)]
    calls = [line.process().pop(*each) for each in asked]
    line.release()
    assert values(line.process().pop().result()) == ["a"]
    assert [values(call.result()) for call in calls] == [
        ["b", "c", "d"],
        ["y"],
        ["z", "x"],
        ["e"],
        ["f", "g"],
        [],
        [],
    ]
    assert line.sleeps.woken == [True] * len(asked)
    line.assert_sound()


def test_who_serves_an_empty_queue_lets_nobody_wait(line: Line[PriorityQueue]) -> None:
    line.hold()
    calls = [line.process().pop(), line.process().pop(2, at_max=True)]
    line.release()
    assert line.process({}).pop().result() == []  # it looks no further: nobody waits for nothing
    item = line.queue.push(line.db, "the only one")
    assert line.process().pop().result() == [item]
    assert [call.result() for call in calls] == [[], []]
    assert line.sleeps.woken == [True, True]
    line.assert_sound()


def test_a_fifo_queue_serves_those_who_wait_too_and_outlives_the_dead(
    fifo_line: Line[Queue], the_lease_is_over: Callable[[], None]
) -> None:
    line = fifo_line
    items = line.queue.enqueue_many(line.db, range(9))
    line.hold()
    dead = line.process(REGISTERED_LAST).pop(2)
    calls = [line.process().pop(n) for n in (1, 2, 3, 1)]
    line.release()
    assert values(line.process().pop().result()) == [0]
    assert [values(call.result()) for call in calls] == [[3], [4, 5], [6, 7, 8], []]
    assert line.sleeps.woken == [True] * 4
    assert dead.error() is not None
    the_lease_is_over()
    line.drop_the_dead()
    assert line.left() == items[1:3]
    line.assert_sound()


class TestLargeValues:
    """What is put aside for others is stored again: it must fit, and all must come out."""

    @pytest.mark.parametrize(
        ("count", "size", "n"),
        [(4, 7_900_000, 1), (30, 90_000, 1), (30, 90_000, 9), (12, 300_000, 2)],
    )
    def test_several_processes_pop_them_all_in_order(
        self, db: Any, queue: PriorityQueue, count: int, size: int, n: int
    ) -> None:
        pushed = [f"{number:02} " + "x" * (size - 10) for number in range(count)]
        for value in pushed:
            queue.push(db, value)

        def work(process: int) -> list[str]:
            own = PriorityQueue(queue.subspace)
            taken: list[str] = []
            while items := own.pop_many(db, n):
                taken += [item.value[:2] for item in items]
            return taken

        with ThreadPoolExecutor(4) as pool:
            taken = list(pool.map(work, range(4)))
        assert all(numbers == sorted(numbers) for numbers in taken)
        assert sorted(chain(*taken)) == [value[:2] for value in pushed]
        report = fdbqueue.check(db, queue)
        assert report.ok, report.problems

    def test_who_waits_for_one_gets_it_in_the_end(self, line: Line[PriorityQueue]) -> None:
        """The one that serves takes its own; what it has no room for, others take themselves."""
        values = [str(number) * 3_000_000 for number in range(4)]
        for value in values:
            line.queue.push(line.db, value)
        line.hold()
        calls = [line.process().pop() for _ in range(3)]
        line.release()
        calls.append(line.process().pop())
        line.sleeps.end()
        taken = [item.value for call in calls for item in call.result()]
        assert sorted(taken) == values
        assert calls[-1].result()[0].value == values[0]
        line.assert_sound()


# Processes that die, and those that only seem to


def test_a_request_whose_process_died_delays_nobody_and_is_dropped_after_its_lease(
    line: Line[PriorityQueue], the_lease_is_over: Callable[[], None]
) -> None:
    items = line.queue.push_many(line.db, range(2))
    line.hold()
    dead = line.process(REGISTERED_LAST).pop()
    assert dead.error() is not None
    line.drop_the_dead()
    assert len(line.requests()) == 1  # its lease is not over: it may live
    the_lease_is_over()
    line.drop_the_dead()
    assert line.requests() == []
    line.release()
    assert line.process().pop(3).result() == items
    line.assert_sound()


def test_others_are_served_beside_a_dead_process_without_waiting_for_it(
    line: Line[PriorityQueue],
) -> None:
    line.queue.push_many(line.db, range(5))
    line.hold()
    calls = [line.process().pop()]
    dead = line.process(REGISTERED_LAST).pop()
    calls.append(line.process().pop())
    line.release()
    assert values(line.process().pop().result()) == [0]
    assert [values(call.result()) for call in calls] == [[1], [3]]
    assert line.sleeps.woken == [True, True]
    assert dead.error() is not None


def test_a_request_whose_lease_is_over_is_not_served_any_more(
    line: Line[PriorityQueue], the_lease_is_over: Callable[[], None]
) -> None:
    """So a dead process takes nothing out of the order once it is known to be dead."""
    line.queue.push_many(line.db, range(3))
    line.hold()
    line.process(REGISTERED_LAST).pop(2)
    the_lease_is_over()
    line.release()
    assert values(line.process().pop().result()) == [0]
    assert values(line.left()) == [1, 2]
    line.assert_sound()


@pytest.mark.parametrize("at_max", [False, True])
def test_what_a_dead_process_was_served_goes_back_to_its_own_place(
    line: Line[PriorityQueue], the_lease_is_over: Callable[[], None], at_max: bool
) -> None:
    """Between its neighbours, those that came meanwhile too, and with the counts right."""
    items = line.queue.push_many(line.db, "abcdef", priorities=[1, 1, 1, 1, 2, 2])
    line.hold()
    line.process(REGISTERED_LAST).pop(3 if at_max else 2, at_max)
    line.release()
    assert line.process().pop().result() == items[:1]
    line.until_nobody_has_the_turn()
    before = line.queue.push(line.db, "before", 0)
    behind = line.queue.push(line.db, "behind", 1)
    last = line.queue.push(line.db, "last", 2)
    line.drop_the_dead()
    assert line.queue.size(line.db) == 8 - (3 if at_max else 2)  # its lease is not over
    the_lease_is_over()
    line.drop_the_dead()
    assert line.left()[:4] == [before, *items[1:4]]
    assert {*line.left()[4:]} == {behind, *items[4:], last}
    assert [item.priority for item in line.left()] == [0, 1, 1, 1, 1, 2, 2, 2]
    line.assert_sound()


def test_large_values_of_a_dead_process_go_back_whole(
    line: Line[PriorityQueue], the_lease_is_over: Callable[[], None]
) -> None:
    pushed = line.queue.push_many(
        line.db, ["first", "\x00" * 40_000, "y" * 95_000, "z" * 80_000, "last"]
    )
    line.hold()
    line.process(REGISTERED_LAST).pop(3)
    line.release()
    line.process().pop().result()
    the_lease_is_over()
    line.drop_the_dead()
    assert line.left() == pushed[1:]
    line.assert_sound()
