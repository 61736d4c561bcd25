"""Contended pops, including the cases that FoundationDB's published recipe gets wrong.

`test_leader` covers leadership; `test_recovery` covers processes that die, stall or fail.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import pytest

from fdbqueue import Item, PriorityQueue
from tests.coordination.line import FAST, Line

pytestmark = pytest.mark.usefixtures("staging_on_every_engine")


def values(items: list[Item]) -> list[Any]:
    return [item.value for item in items]


def test_one_transaction_serves_all_waiting_pops_and_their_watches_fire(
    line: Line,
) -> None:
    """Only the first commit of each pop conflicts, and no pop backs off."""
    line.queue.push_many(line.db, range(9))
    line.set_idle_leader()
    waiting = [line.process() for _ in range(8)]
    calls = [process.pop() for process in waiting]
    assert len(line.requests()) == 8
    line.clear_leader()
    server = line.process()
    assert values(server.pop().result()) == [0]
    assert [values(call.result()) for call in calls] == [[number] for number in range(1, 9)]
    assert line.sleeps.woken == [True] * 8
    line.assert_sound()
    # After the conflict, the server commits twice: to serve all requests and to resign. Each
    # waiting process commits twice: to store its request and to take its result.
    assert server.db.commits == FAST + 2
    assert [process.db.commits for process in waiting] == [FAST + 2] * 8


def test_requests_are_served_in_the_order_they_were_made(line: Line) -> None:
    """Pops may be of either end and of any size; those after the last item get fewer or none."""
    line.queue.push_many(
        line.db,
        ["a", "b", "c", "d", "e", "f", "g", "x", "y", "z"],
        priorities=[1, 1, 1, 2, 3, 4, 5, 8, 9, 9],
    )
    line.set_idle_leader()
    asked = [(3, False), (1, True), (2, True), (1, False), (9, False), (1, True), (2, False)]
    calls = [line.process().pop(*each) for each in asked]
    line.clear_leader()
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


# Staged items are stored again, so they must fit, and all of them must come out.


@pytest.mark.parametrize(("count", "size", "n"), [(3, 7_900_000, 1), (30, 90_000, 9)])
def test_several_processes_pop_all_large_items_in_order(
    db: Any, queue: PriorityQueue, count: int, size: int, n: int
) -> None:
    for number in range(count):
        queue.push(db, f"{number:02} " + "x" * (size - 5))

    def work(_: int) -> list[int]:
        own = PriorityQueue(queue.subspace)
        taken: list[int] = []
        while items := own.pop_many(db, n):
            taken += [int(item.value[:2]) for item in items]
        return taken

    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(work, range(4)))
    assert all(numbers == sorted(numbers) for numbers in taken)
    assert sorted(chain(*taken)) == list(range(count))


@pytest.mark.parametrize(("size", "n", "served"), [(3_000_000, 1, 0), (89_000, 3, 3)])
def test_a_request_that_does_not_fit_into_the_transaction_leads_next(
    line: Line, size: int, n: int, served: int
) -> None:
    for number in range(1 + 5 * n):
        line.queue.push(line.db, f"{number:02}" + "x" * size)
    line.set_idle_leader()
    calls = [line.process().pop(n) for _ in range(5)]
    line.clear_leader()
    server, waiting = line.process(), []
    server.db.before_commit[FAST + 2] = lambda: waiting.append(len(line.requests()))
    taken = [values(call.result()) for call in (server.pop(), *calls)]
    assert [[int(value[:2]) for value in pop] for pop in taken] == [
        [0],
        *([*range(1 + at, 1 + at + n)] for at in range(0, 5 * n, n)),
    ]
    assert waiting == [5 - served]  # when the leadership passes on
    assert line.sleeps.woken == [True] * 5
    line.assert_sound()
