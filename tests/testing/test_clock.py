"""What waits for a time is due once the test has moved the clock, on every engine."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fdbqueue import PriorityQueue, Worker
from fdbqueue.admin import check
from fdbqueue.database.clock import monotonic
from fdbqueue.errors import LeaseLost
from fdbqueue.testing import Clock
from tests.support.leases import read_version
from tests.support.waiting import wait_until


def test_a_lease_is_over_after_its_length(db: Any, queue: PriorityQueue, clock: Clock) -> None:
    """On both engines leases end by versions, which nothing but time moves."""
    queue.push(db, "a")
    first = queue.claim(db, lease="1h")
    clock.advance("59m")
    assert queue.claim(db) is None
    queue.extend(db, first, "1h")
    clock.advance("59m")
    assert queue.claim(db) is None
    clock.advance("1m")
    second = queue.claim(db)
    assert second.attempt == 2
    with pytest.raises(LeaseLost):
        queue.ack(db, first)
    assert check(db, queue).ok
    queue.ack(db, second)


def test_a_waiting_worker_wakes_up_when_the_clock_moves(
    db: Any, queue: PriorityQueue, clock: Clock
) -> None:
    """Nothing is written that would wake it."""
    done = []
    worker = Worker(db, queue, lambda item: done.append(item.value))
    thread = threading.Thread(target=worker.run)
    thread.start()
    queue.push(db, "now")
    wait_until(lambda: done and queue.stats(db).claimed == 0)  # a move ends its lease
    queue.push(db, "later", delay="1h")
    clock.advance("1h")
    wait_until(lambda: len(done) == 2)
    worker.stop()
    thread.join()
    assert done == ["now", "later"]


def test_a_transaction_of_a_moved_clock_reads_at_its_version(
    db: Any, space: Any, clock: Clock
) -> None:
    """The versions that a program gets and gives are those of one clock."""
    before = read_version(db)
    clock.advance("1h")
    key = space.pack(("k",))
    tr = db.create_transaction()
    tr[key] = b"v"
    assert tr.get_committed_version() == -1
    tr.commit().wait()
    committed = tr.get_committed_version()
    assert committed > before + 3600 * 10**6
    reading = db.create_transaction()
    reading.set_read_version(committed)
    assert reading[key] == b"v"
    assert reading.get_read_version().wait() == committed
    snapshot = db.create_transaction().snapshot
    assert snapshot.get_read_version().wait() >= committed


def test_the_clock_of_the_machine_returns_after_the_block(db: Any, queue: PriorityQueue) -> None:
    queue.push(db, "a", delay="1h")
    began = datetime.now(UTC)
    with Clock() as clock:
        clock.move_to(began + timedelta(minutes=59))
        assert clock.now() >= began + timedelta(minutes=59)
        assert queue.state(db, next(iter(queue.items(db, state="delayed"))).id) == "delayed"
        with Clock() as inner:
            inner.advance("1m")
            assert inner.now() >= began + timedelta(minutes=60)
            assert queue.size(db) == 1
        assert clock.now() < began + timedelta(minutes=60)
        moved, ahead = monotonic(), read_version(db)
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(minutes=1)
    assert read_version(db) < ahead
    assert monotonic() > moved  # or handles would not sweep any more


def test_the_clock_refuses_to_go_back_and_to_move_outside_of_a_block() -> None:
    with Clock() as clock:
        clock.move_to(datetime(2100, 1, 31, tzinfo=UTC))
        assert clock.now().isoformat().startswith("2100-01-31T00:0")
        with pytest.raises(ValueError, match="does not go back"):
            clock.move_to(datetime(2099, 1, 1, tzinfo=UTC))
        with pytest.raises(TypeError, match="time zone"):
            clock.move_to(datetime(2101, 1, 1))
        with pytest.raises(ValueError, match="from 0"):
            clock.advance(-1)
        now = clock.now()
    with pytest.raises(RuntimeError, match="with Clock"):
        clock.advance(1)
    assert now.year == 2100
    assert clock.now().year < 2100
