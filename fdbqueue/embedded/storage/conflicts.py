"""The decision that a transaction conflicts: another one has written what it read.

A commit notes its write conflict ranges in the log of commits. A transaction conflicts if a commit
that its snapshot may not contain wrote a key of its read conflict ranges.
"""

from __future__ import annotations

from fdbqueue.embedded.disk.commit_log import CommitLog
from fdbqueue.embedded.ranges import Range, RangeSet
from fdbqueue.errors import FDBError


def check(reads: list[Range], log: CommitLog, offset: int, tail: int) -> None:
    """Check the reads of a transaction against the commits between two offsets of the log.

    Args:
        reads: The read conflict ranges.
        log: The log of commits.
        offset: The offset of the transaction's snapshot.
        tail: The tail of the log. Later commits do not count.

    Raises:
        FDBError: 1020, one of the commits wrote a key of `reads`. 1007, the log no longer has all
            of the commits.
    """
    if not reads:
        return
    lowest, highest = min(reads)[0], max(end for _, end in reads)
    keys: RangeSet | None = None
    for begin, end in log.between(offset, tail):
        # Compare with all reads at once: most commits write elsewhere.
        if begin < highest and lowest < end:
            keys = keys or RangeSet(reads)
            if keys.overlaps(begin, end):
                raise FDBError(1020)
