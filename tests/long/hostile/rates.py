"""Start very many items in simulated time, and check that no window has more than its rate.

    python -m tests.long.hostile.rates [--starts 1000000] [--seed N]

A client pushes, claims and pops items of groups with rates, in a queue with a rate, in memory. The
clock is that of `fdbqueue.testing`, moved by parts of windows. Each window that a start ends is
checked, by the time before the first call and the time after the last one.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.testing import Clock

RATES: dict[str, tuple[int, float]] = {
    "ada": (100, 1.0),
    "bob": (30, 0.3),
    "eve": (1_000, 20.0),
    "kim": (5_000, 60.0),
    "sam": (1, 0.5),
    "free": (300, 1.0),
}
QUEUE_RATE = (1_000, 2.0)
_PUSH = 500  # items of one group that are pushed at a time
_MAX_MOVE = 0.4  # seconds


@dataclass
class Window:
    """The starts of a group, or of the queue, that are within the time of its rate.

    Attributes:
        rate: The most starts, and the seconds.
        starts: The times before the calls, and the numbers of starts.
        n: The sum of these numbers.
        total: The number of all starts so far.
        most: The highest sum so far.
    """

    rate: tuple[int, float]
    starts: deque[tuple[float, int]] = field(default_factory=deque)
    n: int = 0
    total: int = 0
    most: int = 0

    def note(self, before: float, after: float, n: int) -> bool:
        """Note the starts of a call; return whether they are more than may be."""
        self.starts.append((before, n))
        self.n += n
        self.total += n
        while self.starts and after - self.starts[0][0] >= self.rate[1]:
            self.n -= self.starts.popleft()[1]
        self.most = max(self.most, self.n)
        return self.n > self.rate[0]


def run(starts: int, seed: int) -> tuple[dict[str, Window], float, list[str]]:
    """Start items; return the windows by group, the simulated seconds, and the problems."""
    rng = random.Random(seed)
    windows = {group: Window(rate) for group, rate in {**RATES, "": QUEUE_RATE}.items()}
    ready: Counter[str] = Counter()
    problems: list[str] = []
    with fdbqueue.open("memory:") as db, Clock() as clock:
        queue = PriorityQueue[Any].named(db, "jobs")
        queue.configure(db, rate=QUEUE_RATE)
        for group, rate in RATES.items():
            queue.set_group(db, group, rate=rate)
        began = clock.now().timestamp()
        while windows[""].total < starts:
            for group in RATES:
                if ready[group] < _PUSH:
                    queue.push_many(db, [group] * _PUSH, group=group)
                    ready[group] += _PUSH
            n, before = rng.choice([1, 10, 100, 100]), clock.now().timestamp()
            if rng.random() < 0.5:
                items = queue.pop_many(db, n)
            else:
                claim = queue.claim(db, n=n, lease=60)
                items = [] if claim is None else [*claim.items]
                if claim is not None:
                    queue.ack(db, claim)
            after = clock.now().timestamp()
            taken = Counter(item.value for item in items)
            ready -= taken
            for group, number in (taken + Counter({"": taken.total()})).items():
                if windows[group].note(before, after, number):
                    rate = windows[group].rate
                    problems.append(f"{group!r}: {windows[group].n} in {rate[1]} s, not {rate[0]}")
            if not items:
                clock.advance(rng.uniform(0, _MAX_MOVE))
        seconds = clock.now().timestamp() - began
        assert fdbqueue.admin.check(db, queue).problems == ()
    return windows, seconds, problems


def main() -> int:
    parser = argparse.ArgumentParser(description="Very many starts in simulated time.")
    parser.add_argument("--starts", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    given = parser.parse_args()
    print(f"--seed={given.seed}", flush=True)
    began = time.monotonic()
    windows, seconds, problems = run(given.starts, given.seed)
    for group, window in windows.items():
        most, period = window.rate
        full = window.total / (most * seconds / period)
        about = f"{window.total:,} starts, {window.most:,} in {period} s at most, {full:.0%} of all"
        print(f"{group or 'the queue':12}{about}")
    print(*problems[:20], sep="\n")
    print(
        f"{windows[''].total:,} starts in {seconds:,.0f} simulated seconds, "
        f"{len(problems)} problems, {time.monotonic() - began:.0f} s"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
