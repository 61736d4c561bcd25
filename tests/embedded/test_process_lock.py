"""Processes that compete for the writers' lock get it in turns of a few milliseconds."""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fdbqueue.embedded.disk.process_lock import ProcessLock


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
def join(tmp_path: Path, clock: Clock) -> Iterator[Callable[[], ProcessLock]]:
    """Return a function that adds a process."""
    processes: list[ProcessLock] = []

    def join() -> ProcessLock:
        processes.append(ProcessLock(tmp_path / "lock"))
        return processes[-1]

    yield join
    for process in processes:
        process.close()


def commit(process: ProcessLock, clock: Clock) -> None:
    """Take the lock, and release it 50 microseconds later."""
    assert process.take()
    clock.now += 50
    process.release()


def wait(process: ProcessLock) -> float:
    """Try in vain; return the microseconds until the next attempt."""
    assert not process.take()
    return round(process.wait(0.001) * 1e6)


def could_take(process: ProcessLock) -> bool:
    """Return whether the process gets the lock, which it then releases without a trace."""
    took = process.take()
    process.unlock()
    return took


@pytest.fixture
def busy(join: Callable[[], ProcessLock], clock: Clock) -> tuple[ProcessLock, ProcessLock]:
    """Return the owner of the right of way, and a process that has just got in line."""
    other, owner = join(), join()
    assert other.take()
    clock.now += wait(owner)
    other.release()
    commit(owner, clock)
    commit(owner, clock)
    assert wait(other) > 0
    return owner, other


def test_one_process_has_the_lock_until_it_releases_it(join: Callable[[], ProcessLock]) -> None:
    one, two = join(), join()
    assert one.take()
    assert not two.take()
    one.release()
    assert two.take()
    assert not one.take()


def test_without_others_a_process_gets_the_lock_at_any_time(
    join: Callable[[], ProcessLock], clock: Clock
) -> None:
    process, idle = join(), join()
    for pause in (0, 10, 1000, 100_000) * 10:
        commit(process, clock)
        assert could_take(idle)
        clock.now += pause


def test_the_owner_of_the_right_of_way_goes_on_while_others_wait(
    busy: tuple[ProcessLock, ProcessLock], clock: Clock
) -> None:
    owner, other = busy
    for _ in range(20):
        clock.now += 50
        assert 0 < wait(other) <= 1000
        commit(owner, clock)


def test_the_right_of_way_ends_when_its_owner_pauses(
    busy: tuple[ProcessLock, ProcessLock], clock: Clock
) -> None:
    _, other = busy
    clock.now += wait(other)
    assert could_take(other)


def test_a_process_that_always_pauses_gets_no_right_of_way(
    busy: tuple[ProcessLock, ProcessLock], clock: Clock
) -> None:
    owner, other = busy
    for _ in range(10):
        clock.now += 3000
        other.wait(0.0001)
        if owner.take():
            owner.release()
    assert could_take(other)


def test_at_the_end_of_a_slice_the_lock_goes_to_the_first_in_line(
    busy: tuple[ProcessLock, ProcessLock], join: Callable[[], ProcessLock], clock: Clock
) -> None:
    owner, first = busy
    wait(first)
    clock.now += 10
    second = join()
    wait(second)
    for _ in range(300):
        clock.now += 50
        if not owner.take():
            break
        clock.now += 50
        owner.release()
        first.wait(0.001)
        second.wait(0.001)
    else:
        pytest.fail("the slice does not end")
    assert wait(owner) > 0
    assert not second.take()
    commit(first, clock)
    assert wait(second) > 0
    assert wait(owner) > 0


class Competitor:
    """A process that commits again and again, for 50 microseconds each time.

    Args:
        process: Its lock.
        pause: The microseconds between two commits.
    """

    def __init__(self, process: ProcessLock, pause: int) -> None:
        self.process = process
        self.pause = pause
        self.commits = self.failures = self.longest_wait = 0
        self._wants_since: int | None = None
        self._is_inside = False

    def act(self, now: int) -> int:
        """Take the lock, wait for it or release it; return when to act again."""
        if self._is_inside:
            self.process.release()
            self.commits += 1
            self._is_inside = False
            return now + self.pause
        if self._wants_since is None:
            self._wants_since = now
        if not self.process.take():
            self.failures += 1
            return now + round(self.process.wait(0.0001) * 1e6)
        self.longest_wait = max(self.longest_wait, now - self._wants_since)
        self._wants_since = None
        self._is_inside = True
        return now + 50


def compete(competitors: list[Competitor], clock: Clock) -> None:
    """Let processes compete for three seconds."""
    turns = [(clock.now + number, number) for number in range(len(competitors))]
    end = clock.now + 3_000_000
    while clock.now < end:
        clock.now, number = turns[0]
        heapq.heapreplace(turns, (competitors[number].act(clock.now), number))


def test_processes_that_commit_all_the_time_get_equal_shares_and_rarely_wake_in_vain(
    join: Callable[[], ProcessLock], clock: Clock
) -> None:
    processes = [Competitor(join(), pause=100) for _ in range(8)]
    compete(processes, clock)
    commits = [process.commits for process in processes]
    print(commits)
    assert sum(commits) * 150 > 0.8 * 3_000_000
    assert min(commits) > 0.7 * max(commits)
    assert sum(process.failures for process in processes) < 0.2 * sum(commits)


def test_a_process_that_rarely_commits_waits_for_one_slice_at_most(
    join: Callable[[], ProcessLock], clock: Clock
) -> None:
    processes = [Competitor(join(), pause=100) for _ in range(8)]
    rare = [Competitor(join(), pause=30_000) for _ in range(2)]
    compete(processes + rare, clock)  # at first it is unknown which ones commit all the time
    for process in processes + rare:
        process.longest_wait = process.commits = 0
    compete(processes + rare, clock)
    print([process.longest_wait for process in processes + rare])
    assert max(process.longest_wait for process in rare) < 35_000
    assert min(process.longest_wait for process in processes) > 100_000
    assert min(process.commits for process in rare) > 40


def test_a_process_that_has_paused_gets_a_short_slice(
    busy: tuple[ProcessLock, ProcessLock], clock: Clock
) -> None:
    paused, other = busy
    clock.now += wait(other)
    for _ in range(100):
        commit(other, clock)
        clock.now += 50
    assert wait(paused) > 0
    for _ in range(300):
        if not other.take():
            break
        clock.now += 50
        other.release()
        clock.now += 50
        paused.wait(0.001)
    else:
        pytest.fail("the slice does not end")
    other.wait(0.001)
    for _ in range(10):
        commit(paused, clock)
        clock.now += 50
    assert could_take(other)


def test_a_process_in_line_that_was_stopped_is_not_waited_for(
    busy: tuple[ProcessLock, ProcessLock], join: Callable[[], ProcessLock], clock: Clock
) -> None:
    _, stopped = busy
    wait(stopped)
    clock.now += 10
    second = join()
    wait(second)
    clock.now += 10_000
    assert could_take(second)


def test_a_process_without_slices_respects_those_of_others_and_takes_none(
    busy: tuple[ProcessLock, ProcessLock], tmp_path: Path, clock: Clock
) -> None:
    _, first = busy
    durable = ProcessLock(tmp_path / "lock", takes_slices=False)
    clock.now += wait(durable)
    commit(durable, clock)
    assert could_take(durable)
    commit(first, clock)
    assert wait(durable) > 0
    durable.close()


def test_a_right_of_way_from_another_time_is_ignored(
    busy: tuple[ProcessLock, ProcessLock], join: Callable[[], ProcessLock], clock: Clock
) -> None:
    wait(busy[1])
    clock.now -= 900_000  # as if the machine had been started again
    process = join()
    assert could_take(process)
    process.wait(0.0001)
    assert could_take(process)


def test_a_truncated_file_lets_every_process_try(
    busy: tuple[ProcessLock, ProcessLock], tmp_path: Path
) -> None:
    os.truncate(tmp_path / "lock", 0)
    assert all(could_take(process) for process in busy)
