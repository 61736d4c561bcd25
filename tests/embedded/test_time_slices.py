"""Processes that compete for the writers' lock get it in turns of a few milliseconds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fdbqueue.embedded.disk.time_slices import TimeSlices


class Clock:
    """A clock in microseconds that the test moves."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now * 1000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic_ns", clock)
    return clock


@pytest.fixture
def join(tmp_path: Path, clock: Clock) -> Iterator[Callable[[], TimeSlices]]:
    """Return a function that adds a process."""
    file = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    yield lambda: TimeSlices(file)
    os.close(file)


def commit(process: TimeSlices, clock: Clock) -> None:
    """Take the lock, and release it 50 microseconds later."""
    assert process.may_try()
    process.begin()
    clock.now += 50
    process.extend()


def wait(process: TimeSlices) -> float:
    """Try in vain; return the microseconds until the next attempt."""
    assert not process.may_try()
    return round(process.wait(0.001) * 1e6)


@pytest.fixture
def busy(join: Callable[[], TimeSlices], clock: Clock) -> tuple[TimeSlices, TimeSlices]:
    """Return the owner of the right of way, and a process that has just got in line."""
    owner, other = join(), join()
    assert owner.may_try()
    assert other.may_try()
    other.wait(0.0001)  # the owner has the lock
    commit(owner, clock)
    return owner, other


def test_a_process_alone_needs_no_slices(join: Callable[[], TimeSlices], clock: Clock) -> None:
    process, _ = join(), join()
    for _ in range(100):
        assert process.may_try()
        assert not process.are_needed
        clock.now += 1000


def test_the_owner_of_the_right_of_way_goes_on_while_others_wait(
    busy: tuple[TimeSlices, TimeSlices], clock: Clock
) -> None:
    owner, other = busy
    for _ in range(20):
        clock.now += 50
        assert 0 < wait(other) <= 1000
        commit(owner, clock)


def test_the_right_of_way_ends_when_its_owner_pauses(
    busy: tuple[TimeSlices, TimeSlices], clock: Clock
) -> None:
    _, other = busy
    clock.now += wait(other)
    assert other.may_try()


def test_a_process_that_always_pauses_gets_no_right_of_way(
    busy: tuple[TimeSlices, TimeSlices], clock: Clock
) -> None:
    owner, other = busy
    for _ in range(10):
        clock.now += 3000
        other.wait(0.0001)
        if owner.may_try():
            owner.begin()
            owner.extend()
    assert other.may_try()


def test_at_the_end_of_a_slice_the_lock_goes_to_the_first_in_line(
    busy: tuple[TimeSlices, TimeSlices], join: Callable[[], TimeSlices], clock: Clock
) -> None:
    owner, first = busy
    wait(first)
    clock.now += 10
    second = join()
    wait(second)
    for _ in range(100):
        clock.now += 50
        if not owner.may_try():
            break
        commit(owner, clock)
        wait(first)
        wait(second)
    else:
        pytest.fail("the slice does not end")
    assert wait(owner) > 0
    assert not second.may_try()
    assert first.may_try()
    commit(first, clock)
    assert wait(second) > 0
    assert wait(owner) > 0


def test_a_process_in_line_that_was_stopped_is_not_waited_for(
    busy: tuple[TimeSlices, TimeSlices], join: Callable[[], TimeSlices], clock: Clock
) -> None:
    _, stopped = busy
    wait(stopped)
    clock.now += 10
    second = join()
    wait(second)
    clock.now += 20_000
    assert second.may_try()


def test_a_right_of_way_from_another_time_is_ignored(
    busy: tuple[TimeSlices, TimeSlices], join: Callable[[], TimeSlices], clock: Clock
) -> None:
    wait(busy[1])
    clock.now -= 900_000  # as if the machine had been started again
    process = join()
    assert process.may_try()
    assert not process.are_needed
    process.wait(0.0001)
    assert process.may_try()


def test_a_truncated_file_lets_every_process_try(
    busy: tuple[TimeSlices, TimeSlices], tmp_path: Path
) -> None:
    os.truncate(tmp_path / "lock", 0)
    assert all(process.may_try() for process in busy)
