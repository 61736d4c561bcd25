"""A power cut in the middle of a storm: what its ledgers claim must be in the worst legal state.

    cuts = [PowerCut.now(disk), ...]  # during the storm
    for cut, state in states_after(disk.record, cuts):
        state.write(path)
        # open the database at `path`, drain it into `left`
        verdict = account(cut.known(operations), left)

Such a verdict has a loss for each answer whose effect a power cut at that moment takes back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.long.hostile.disk.crash_model import WORST, Directory, State
from tests.long.hostile.disk.shim import Disk, read_record
from tests.long.hostile.ledger import CANCELLED, HALF_CLOSED, RECOVERY, Operation


@dataclass(frozen=True)
class PowerCut:
    """A moment of a recorded run at which the power may have failed."""

    before: float
    """A time just before it, by `time.monotonic()`."""
    position: int
    """The length of the record."""
    after: float
    """A time just after it."""

    @classmethod
    def now(cls, disk: Disk) -> PowerCut:
        """Return the present moment."""
        before = time.monotonic()
        return cls(before, disk.position, time.monotonic())

    def known(self, operations: Iterable[Operation]) -> list[Operation]:
        """Return the operations as they were known: without an outcome if they ended later."""
        return [
            replace(each, outcome="unknown", why="power cut", ended=math.inf)
            if self._is_open(each)
            else each
            for each in operations
            if each.began <= self.after
        ]

    def _is_open(self, each: Operation) -> bool:
        """Return whether an operation that had begun may have any effect or none."""
        if each.outcome != "nothing" or each.why == CANCELLED:  # which is undone before its end
            return each.ended > self.before
        # A server puts the items of a vanished client back after the client has gone.
        return each.why == HALF_CLOSED and each.ended + RECOVERY > self.before


def states_after(record: Path, cuts: Iterable[PowerCut]) -> Iterator[tuple[PowerCut, State]]:
    """Yield the worst legal state of the disk after each of some power cuts."""
    directory = Directory(is_for_worst=True)
    entries = read_record(record)
    entry = next(entries, None)
    for cut in sorted(cuts, key=lambda each: each.position):
        while entry is not None and entry.end <= cut.position:
            directory.apply(entry)
            entry = next(entries, None)
        yield cut, directory.state(WORST)
