"""Contended pops, including the cases that FoundationDB's published recipe gets wrong.

A waiting process that dies, stalls or is interrupted neither loses items nor blocks others.
`test_leader` covers leadership.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import pytest
from fdb import tuple as fdb_tuple

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.errors import UndecodableItem
from tests.coordination.line import DIES_WAITING, FAST, Line
from tests.support.leases import values

pytestmark = pytest.mark.usefixtures("staging_on_every_engine")


def test_one_transaction_serves_all_waiting_pops_and_their_watches_fire(line: Line) -> None:
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


# Processes that die


@pytest.mark.parametrize("at_max", [False, True])
def test_items_served_to_a_dead_process_return_to_their_positions(line: Line, at_max: bool) -> None:
    """They return between their neighbours, also new ones, and the counts are right."""
    items = line.queue.push_many(line.db, "abcdef", priorities=[1, 1, 1, 1, 2, 2])
    line.set_idle_leader()
    line.process(DIES_WAITING).pop(3, at_max)
    line.clear_leader()
    assert line.process().pop().result() == items[:1]
    before = line.queue.push(line.db, "before", 0)
    behind = line.queue.push(line.db, "behind", 1)
    served = [items[4], items[5], items[1]] if at_max else items[1:4]
    line.sweep_requests(are_expired=False)
    assert not [item for item in line.remaining() if item in served]
    line.sweep_requests()
    in_priority_1 = [item for item in line.remaining() if item.priority == 1]
    assert [item for item in in_priority_1 if item != behind] == items[1:4]
    assert line.remaining() == [before, *in_priority_1, *items[4:]]
    line.assert_sound()


def test_the_result_of_a_request_of_another_cluster_returns(line: Line) -> None:
    """A backup of a cluster with higher versions can be restored to this one."""
    items = line.queue.push_many(line.db, range(3))
    line.set_idle_leader()
    line.process(DIES_WAITING).pop()
    line.clear_leader()
    assert line.process().pop().result() == items[:1]
    (result,) = line.results()
    prefix = line.layout.results
    version, *others = fdb_tuple.unpack(result[len(prefix) :])
    line.db[prefix + fdb_tuple.pack((version + 10**13, *others))] = line.db[result]
    del line.db[result]
    line.sweep_requests(are_expired=False)
    assert line.remaining() == items[1:]
    line.assert_sound()


# Processes that are slow, or interrupted


@pytest.mark.parametrize("was_served", [False, True])
def test_a_process_whose_request_expired_asks_again(line: Line, was_served: bool) -> None:
    """The items served to it are back in their positions by then, and are popped once."""
    items = line.queue.push_many(line.db, range(4))
    line.sleeps.may_wake.clear()
    line.set_idle_leader()
    slow = line.process().pop()
    popped = []
    if was_served:
        line.clear_leader()
        popped += line.process().pop().result()
        line.wait_until_leaderless()
        line.set_idle_leader()
    line.sweep_requests()
    assert line.remaining() == items[len(popped) :]
    line.sleeps.may_wake.set()
    line.sleeps.wait_for_sleeps(2)
    line.clear_leader()
    popped += line.process().pop().result()
    popped += slow.result()
    assert popped == items[: len(popped)]
    assert len(popped) == 2 + was_served
    line.assert_sound()


@pytest.mark.parametrize("was_served", [False, True])
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), fdbqueue.FDBError(1031)], ids=["interrupt", "1031"]
)
def test_an_interrupted_pop_removes_its_request_and_returns_the_items_served_to_it(
    line: Line, error: BaseException, was_served: bool
) -> None:
    items = line.queue.push_many(line.db, range(5))
    line.sleeps.may_wake.clear()
    line.set_idle_leader()
    interrupted = line.process().pop(2)
    popped = []
    if was_served:
        line.clear_leader()
        popped += line.process().pop().result()
        assert line.results()
    line.sleeps.error = error
    line.sleeps.end()
    line.sleeps.may_wake.set()
    assert interrupted.error() is error
    assert (line.requests(), line.results()) == ([], [])
    assert line.remaining() == items[len(popped) :]
    if not was_served:
        line.clear_leader()
    line.assert_sound()


# Undecodable items


def test_an_undecodable_item_fails_only_the_pop_it_was_served_to_and_keeps_its_position(
    line: Line,
) -> None:
    items = line.queue.push_many(line.db, range(7))
    line.db[items[3].key] = b"no JSON"
    line.set_idle_leader()
    calls = [line.process().pop(n) for n in (1, 3, 1)]
    line.clear_leader()
    assert line.process().pop().result() == items[:1]
    assert calls[0].result() == items[1:2]
    error = calls[1].error()
    assert isinstance(error, UndecodableItem)
    assert error.item_id == items[3].id
    assert calls[2].result() == items[5:6]
    line.assert_sound()
    assert line.db[items[3].key] == b"no JSON"
    assert line.queue.remove(line.db, items[3].id)
    assert line.remaining() == [items[2], items[4], items[6]]
