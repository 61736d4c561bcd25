"""The invariants of what jobs have besides their items: steps, waits for signals, and batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from fdbqueue.layout.batches import decode_batch, decode_counts, is_link, memberships_of
from fdbqueue.layout.jobs import decode_step
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import NEVER, NO_HEADER, Header
from fdbqueue.operations.maintainers.batches import clear_batch, end_batch, run_again
from fdbqueue.types import ENDED, State, Transaction

Note: TypeAlias = Callable[..., None]
"""Notes a problem; carries out its repair, if it has one and if that is wanted."""


class _Job(NamedTuple):
    """An item of a job: its position, its header, and whether it is delayed and never due."""

    position: bytes
    header: Header
    is_waiting: bool


class JobRows:
    """The rows that belong to the jobs of a queue, compared with its items.

    Call `add` for each item, and then `compare`.

    Args:
        tr: The transaction, which a repair changes. All reads are snapshot reads.
        layout: The keys of the queue.
        now: The time in milliseconds since 1970.
        note: What to do with a problem.
    """

    def __init__(self, tr: Transaction, layout: Layout, now: int, note: Note) -> None:
        self._tr = tr
        self._layout = layout
        self._now = now
        self._note = note
        # What has to be stored, according to the items.
        self._jobs: dict[bytes, _Job] = {}  # by the first position
        self._steps: dict[bytes, int] = {}  # numbers of steps, by the prefix of the steps
        self._followers: dict[bytes, int] = {}  # numbers of followers, by their prefix
        self._waits: dict[bytes, _Job] = {}  # by `Layout.signal_wait`
        self._members: Counter[bytes] = Counter()  # jobs that have not ended, by their batch
        self._is_linked = False
        self._signalled: set[bytes] = set()
        self._stored_steps: Counter[bytes] = Counter()
        self._run_again = partial(run_again, tr, layout, now)

    def _rows(self, prefix: bytes) -> Any:
        return self._tr.snapshot.get_range(*self._layout.range_of(prefix))

    def add(self, state: State, position: bytes, header: Header, due: int | None) -> None:
        """Note what belongs to an item."""
        if header is NO_HEADER and due != NEVER:
            return
        job = _Job(position, header, due == NEVER)
        self._jobs[header.origin or position] = job
        if header.steps:
            self._steps[self._layout.owned_prefix(self._layout.steps, position)] = header.steps
        if header.waits:
            self._waits[header.waits] = job
        if state in ENDED:
            return
        if header.followers:
            prefix = self._layout.owned_prefix(self._layout.followers, position)
            self._followers[prefix] = header.followers
        self._add_memberships(header.batch)

    def _add_memberships(self, batch: bytes) -> None:
        own = [each.id for each in memberships_of(batch) if not each.subspace]
        self._members.update(own)
        self._is_linked |= is_link(batch)

    def signal_waits(self) -> dict[bytes, bytes]:
        """Return the rows by which signals find the items whose steps wait for them."""
        layout, waiting = self._layout, set[bytes]()
        for row in self._rows(layout.steps):
            self._stored_steps[layout.prefix_of_owned(layout.steps, row.key)] += 1
            if decode_step(row.value).state == "waiting":
                waiting.add(row.key)
        self._signalled = {
            wait
            for wait, job in self._waits.items()
            if layout.step_key(job.position, layout.unpack_signal_wait(wait)[0]) in waiting
        }
        return {layout.signal_waits + wait: b"" for wait in self._signalled}

    def compare(self) -> None:
        """Compare what is stored, after `signal_waits`."""
        self._compare_numbers("steps", self._stored_steps, self._steps)
        self._compare_followers()
        running = self._compare_batches()
        mark = self._layout.linked
        if self._is_linked and not self._tr[mark].present():
            problem = "jobs count in batches of other queues, and the queue has no mark of it"
            self._note(problem, self._tr.set, mark, b"")
        for first, job in self._jobs.items():
            waits = job.header.awaits or job.header.waits in self._signalled or first in running
            if job.is_waiting and not waits:
                problem = f"an item that is never due waits for nothing: {job.position!r}"
                self._note(problem, self._run_again, job.position)

    def _compare_followers(self) -> None:
        """Compare the numbers of the jobs that follow items; note the batches of these jobs."""
        layout, stored = self._layout, Counter[bytes]()
        for row in self._rows(layout.followers):
            prefix = layout.prefix_of_owned(layout.followers, row.key)
            stored[prefix] += 1
            if prefix in self._followers:
                self._add_memberships(row.value)
        self._compare_numbers("followers", stored, self._followers)

    def _compare_numbers(
        self, what: str, stored: Counter[bytes], expected: dict[bytes, int]
    ) -> None:
        """Compare the number of rows of a kind that each item has, by prefix."""
        for prefix in sorted(stored.keys() - expected.keys()):
            problem = f"{what} of no item: {prefix!r}"
            self._note(problem, self._tr.clear_range, *self._layout.range_of(prefix))
        for prefix, number in expected.items():
            if stored[prefix] != number:
                self._note(
                    f"the number of {what} of an item is {number:,} and there are "
                    f"{stored[prefix]:,}: {prefix!r}"
                )

    def _compare_batches(self) -> set[bytes]:
        """Compare batches; return the first positions of jobs that wait for one in a step."""
        layout, running = self._layout, set[bytes]()
        awaiting = {first: job for first, job in self._jobs.items() if job.header.awaits}
        begin = len(layout.batch_counts)
        all_counts = {row.key[begin:]: row.value for row in self._rows(layout.batch_counts)}
        for row in self._rows(layout.batches):
            id, batch = row.key[len(layout.batches) :], decode_batch(row.value)
            counts, job = decode_counts(all_counts.pop(id, None)), awaiting.pop(id, None)
            if batch.kind == "run":
                running.add(batch.job)
            elif job is None:
                self._note(f"a batch of no item: {id!r}", clear_batch, self._tr, layout, id)
                continue
            left, members = counts.pushed - counts.ended, self._members[id]
            if left < members:
                what = f"a batch counts {left:,} jobs that have not ended"
                self._note(f"{what}, and there are {members:,}: {id!r}")
            elif (left, batch.stage) == (0, "closed") and (job is None or job.is_waiting):
                problem = f"a job waits for a batch that has ended: {id!r}"
                self._note(problem, end_batch, self._tr, layout, self._now, id, batch, counts)
        for id in sorted(all_counts):
            self._note(f"the counts of no batch: {id!r}", self._tr.clear, layout.batch_counts + id)
        for id, job in sorted(awaiting.items()):
            repair = self._run_again if job.is_waiting else None
            self._note(f"an item whose batch is gone: {id!r}", repair, job.position)
        return running
