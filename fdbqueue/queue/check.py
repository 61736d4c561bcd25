"""The invariants of a queue, checked at one read version."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

from fdbqueue.coordination.store import Store
from fdbqueue.database.binding import is_database
from fdbqueue.database.clock import milliseconds
from fdbqueue.database.exactly_once import run_once
from fdbqueue.database.retrying import has_read_for_too_long
from fdbqueue.errors import ForeignKey, QueueTooLargeToCheck, error_classes
from fdbqueue.layout.batches import decode_batch, decode_counts, is_link, memberships_of
from fdbqueue.layout.items import ItemRow, Level
from fdbqueue.layout.jobs import decode_schedule, decode_signal, decode_step
from fdbqueue.layout.keys import Index, Number, unpack_priority
from fdbqueue.layout.values import (
    NEVER,
    NO_HEADER,
    PARKED,
    UNDECODABLE,
    ZERO,
    decode_count,
    decode_holder,
    encode_count,
    encode_holder,
    encode_tallies,
)
from fdbqueue.operations.jobs.schedules import has_stopped
from fdbqueue.operations.maintainers.batches import clear_batch, end_batch, run_again
from fdbqueue.operations.payloads import number_of_pieces
from fdbqueue.operations.transitions import count_marks
from fdbqueue.queue.base import BaseQueue, store_of
from fdbqueue.types import ENDED, ByState, KeyValue, Transaction, Transactor

_COUNTED: dict[str, str] = {
    **{state: f"{state} items" for state in (*PARKED, "claimed")},
    "expiring": "items that expire",
    "unknown": "jobs that no worker knows",
    "paused": "pauses",
}
"""The words for each number in the tallies."""


@dataclass(frozen=True, slots=True)
class CheckReport(ByState):
    """The result of a check.

    Attributes:
        problems: One sentence for each problem.
        repaired: Whether the problems were repaired.
    """

    problems: tuple[str, ...]
    repaired: bool

    @property
    def ok(self) -> bool:
        """Tell whether all invariants hold."""
        return not self.problems


def check(tr: Transactor, queue: BaseQueue[Any], *, repair: bool = False) -> CheckReport:
    """Verify the counters, indexes and payloads of a queue at one read version, and repair them.

    - Each item is in one state, and has all parts of a large payload.
    - The counters of priorities, groups and states, and the totals, equal the numbers of items.
    - Each group with ready items has its turns, or is held back by a limit that still applies.
    - Every index leads to its items, and all other rows belong to items.
    - Each item that is never due waits for something. The counts of a batch fit its jobs here.
    - The queue's subspace contains no foreign keys.

    A repair corrects counters, indexes and holds, deletes what belongs to no item, and runs jobs
    again that wait for nothing. It leaves counts of batches, numbers of steps, and foreign keys.
    With an unreadable or foreign key among the items, it repairs nothing. Two repairs conflict; a
    check conflicts with nothing.

    On the embedded engine, SQLite's integrity check precedes a repair or the report of a problem.

    Cost: a scan of the queue, within the five seconds of a transaction. After a recovery of the
    database, the check begins again; in the caller's transaction, it raises error 1007.

    Raises:
        QueueTooLargeToCheck: The scan took longer than five seconds.
        CorruptDatabase: The file of the embedded engine is damaged.

    Example:
        >>> _ = jobs.push(db, "a")
        >>> check(db, jobs).problems
        ()
    """
    if not isinstance(queue, BaseQueue):
        raise TypeError(
            f"a queue is checked, not {queue!r}; PriorityQueue.named(db, name) opens one"
        )
    store = store_of(queue)

    def body(tr: Transaction) -> CheckReport:
        return _Check(tr, store, repair, monotonic()).report()

    db = tr if is_database(tr) else getattr(tr, "db", None)
    if repair:
        _check_files(db)
    if is_database(tr):
        report = run_once(tr, body, store.layout.receipts, lambda report: report.repaired)
    else:
        report = _Check(tr, store, repair, began=-math.inf).report()  # nobody knows its age
    if not (repair or report.ok):
        _check_files(db)
    return report


def _check_files(db: object) -> None:
    """Raise `CorruptDatabase` for a damaged file; a cluster's servers check their own."""
    check_integrity = getattr(db, "check_integrity", None)
    if check_integrity is not None:
        check_integrity()


class _Check:
    """One check in one transaction, which began to read at the monotonic time `began`."""

    def __init__(self, tr: Transaction, store: Store[Any], repair: bool, began: float) -> None:
        self._tr = tr
        self._reads = tr.snapshot
        self._items = store.items
        self._layout = store.layout
        self._may_repair = repair
        self._began = began
        self._problems: list[str] = []
        self._now = milliseconds()
        # What has to be stored, according to the items.
        self._numbers: Counter[str] = Counter()  # of items, by what is said of them
        self._counters: Counter[bytes] = Counter()
        self._indexed: dict[bytes, bytes] = {}
        self._owned: dict[bytes, int] = {}  # numbers of rows, by their prefix
        self._positions: set[bytes] = set()
        self._in_groups: set[Level] = set()
        self._jobs: dict[bytes, ItemRow] = {}  # by the first position
        self._members: Counter[bytes] = Counter()  # jobs that have not ended, by their batch
        self._is_linked = False

    def report(self) -> CheckReport:
        try:
            self._scan_items()
            self._scan_unique_keys()
            self._scan_schedules()
            self._scan_groups()
            self._scan_signals()
            self._compare_counts()
            self._compare_indexes()
            self._compare_holds()
            self._compare_total()
            self._compare_jobs()
            self._scan_parts()
            self._look_for_foreign_keys()
        except error_classes() as error:
            scanned = len(self._positions)
            if has_read_for_too_long(error, monotonic() - self._began, scanned):
                raise QueueTooLargeToCheck(scanned) from error
            raise
        repaired = bool(self._problems) and self._may_repair
        if repaired:
            # Two repairs would both add the difference: let the second one conflict.
            self._tr.add_read_conflict_key(self._layout.options)
            self._tr.add_write_conflict_key(self._layout.options)
        found = {state: self._numbers[state] for state in self._layout.prefix_of}
        return CheckReport(**found, problems=tuple(self._problems), repaired=repaired)

    def _note(
        self, problem: str, repair: Callable[..., None] | None = None, *arguments: Any
    ) -> None:
        self._problems.append(problem)
        if self._may_repair and repair is not None:
            repair(*arguments)

    def _rows(self, prefix: bytes) -> Any:
        return self._reads.get_range(*self._layout.range_of(prefix))

    # What the items need

    def _scan_items(self) -> None:
        layout, levels = self._layout, self._items.levels
        for state, prefix in layout.prefix_of.items():
            for row in self._rows(prefix):
                try:
                    found = levels.row(state, layout.items + row.key[len(prefix) :], row.value)
                except UNDECODABLE as error:
                    self._may_repair = False
                    text = f"an item that cannot be read: {row.key!r}: {error!r:.200}"
                    self._problems.append(text)
                except ForeignKey:
                    # Perhaps an item, and the queue was opened with the wrong priorities: without
                    # knowing what it is, nothing that belongs to items can be put right.
                    self._may_repair = False
                    what = "items" if state == "ready" else f"{state} items"
                    self._problems.append(f"foreign key among the {what}: {row.key!r}")
                else:
                    self._note_item(found)
        # The items staged for waiting pops count as claimed; they still own their payloads.
        for key, value in layout.staged_items(self._rows(layout.results)):
            self._note_item(levels.row("ready", key, value)._replace(state="claimed"))

    def _note_item(self, found: ItemRow) -> None:
        layout, state, item = self._layout, found.state, found.item
        level, header = item.level, item.header
        position = layout.position(found.key)
        if position in self._positions:
            self._may_repair = False  # nobody knows which of its rows is the right one
            self._problems.append(f"an item that is stored twice: {position!r}")
        self._numbers[state] += 1
        self._positions.add(position)
        self._counters.update(found.counters(layout))
        count_marks(self._numbers, found, 1)
        if state == "ready" and level.counter is not None:
            self._counters[level.counter] += 1
        if level.group is not None and state == "ready":
            self._in_groups.add(level)
        if not found.is_staged and (timer := found.timer(layout)) is not None:
            self._indexed[timer[0]] = timer[1]
        if header is not NO_HEADER or found.due == NEVER:
            self._jobs[header.origin or position] = found
        if header.unique is not None and state not in ENDED and not found.is_staged:
            self._indexed[layout.unique_key(header.unique)] = encode_holder(position, None)
        if header.origin is not None:
            self._indexed[layout.moved + header.origin] = position
        if item.is_in_pieces:
            pieces = layout.pieces_prefix(item.content)
            self._owned[pieces] = number_of_pieces(item.content)
        if header.steps:
            self._owned[layout.owned_prefix(layout.steps, position)] = header.steps
        if state in ENDED:
            return
        if header.followers:
            self._owned[layout.owned_prefix(layout.followers, position)] = header.followers
        self._add_memberships(header.batch)

    def _add_memberships(self, batch: bytes) -> None:
        self._members.update(each.id for each in memberships_of(batch) if not each.subspace)
        self._is_linked |= is_link(batch)

    def _scan_signals(self) -> None:
        """Note the ends of signals, and the rows by which they find the items that wait."""
        layout = self._layout
        steps = self._rows_of_items("steps", layout.steps)
        waiting = {row.key for row in steps if decode_step(row.value).state == "waiting"}
        for job in self._jobs.values():
            wait, position = job.item.header.waits, layout.position(job.key)
            if wait and layout.step_key(position, layout.unpack_signal_wait(wait)[2]) in waiting:
                self._indexed[layout.signal_waits + wait] = b""
        for row in self._rows(layout.signals):
            name, key = layout.unpack_entry(layout.signals, row.key)
            end = layout.entry_key(layout.signal_ends, decode_signal(row.value).ends, name, key)
            self._indexed[end] = row.value

    def _scan_schedules(self) -> None:
        """Note the timers of schedules.

        A tick that waits for the end of an item, or for a declaration, may have no timer.
        """
        layout = self._layout
        # The end of an item makes the tick that waits for it due at time 0.
        at_once = layout.timer_key(layout.dues, 0, b"")
        handed_over = {
            row.key
            for row in self._rows(at_once)
            if layout.unpack_reference(row.key[len(at_once) :])[0] is not None
        }
        self._indexed |= dict.fromkeys(handed_over, b"")
        for row in self._rows(layout.schedules):
            schedule = decode_schedule(row.value)
            if schedule.next is None:
                continue
            name = layout.unpack_entry(layout.schedules, row.key)[0]
            reference, unique = layout.schedule_reference(name), schedule.unique_key(name)
            timer = layout.timer_key(layout.dues, schedule.next, reference)
            may_lack = layout.timer_key(layout.dues, 0, reference) in handed_over
            may_lack |= has_stopped(schedule, self._now)
            may_lack |= unique is not None and layout.unique_key(unique) in self._indexed
            if not may_lack or self._reads[timer].present():
                self._indexed[timer] = b""

    def _scan_groups(self) -> None:
        for level in self._in_groups:
            self._indexed |= self._items.groups.index_entries(self._reads, level)
        layout = self._layout
        may_lack = self._items.groups.is_settling(self._reads)  # a queue that was just cleared
        for row in self._rows(layout.held_groups):
            if row.value:
                group = layout.unpack_entry(layout.held_groups, row.key)[0]
                reference = layout.group_reference(group)
                timer = layout.timer_key(layout.dues, decode_count(row.value), reference)
                if not may_lack or self._reads[timer].present():
                    self._indexed[timer] = b""

    def _scan_unique_keys(self) -> None:
        """Note the unique keys with a period, which outlive their items."""
        layout = self._layout
        for row in self._rows(layout.unique_keys):
            ends = decode_holder(row.value)[1]
            if ends is not None and row.key not in self._indexed:
                name = layout.unpack_entry(layout.unique_keys, row.key)[0]
                self._indexed[row.key] = row.value
                self._indexed[layout.entry_key(layout.unique_ends, ends, name)] = row.value

    # What is stored

    def _compare_counts(self) -> None:
        layout = self._layout
        counters = layout.prefixes(Number)
        stored = {row.key: row.value for prefix in counters for row in self._rows(prefix)}
        for counter in sorted(stored.keys() | self._counters.keys()):
            what, expected = f"the count of {self._name(counter)}", self._counters[counter]
            value = stored.get(counter)
            count = decode_count(value)
            if count != expected or value == ZERO:
                missing = encode_count(expected - count)
                self._note_difference(what, count, expected, counter, missing)
                if self._may_repair:
                    self._tr.compare_and_clear(counter, ZERO)

    def _name(self, counter: bytes) -> str:
        layout = self._layout
        try:
            for groups, what in (
                (layout.group_slots, "claims"),
                (layout.group_counts, "items"),
                (layout.group_delays, "delayed items"),
            ):
                if counter.startswith(groups):
                    return f"{what} of group {layout.unpack_entry(groups, counter)[0]!r}"
            if counter.startswith(layout.slots):
                return "claims"
            return f"priority {unpack_priority(counter[len(layout.counts) :])!r}"
        except Exception:  # of the tuple layer, which has no class of its own
            return f"the key {counter!r}"

    def _compare_indexes(self) -> None:
        indexes, leases = self._layout.prefixes(Index), self._layout.leases
        stored = {row.key: row.value for prefix in indexes for row in self._rows(prefix)}
        for key in sorted(stored.keys() | self._indexed.keys()):
            value, expected = stored.get(key), self._indexed.get(key)
            if expected is None and self._layout.is_timer_of_queue(key):
                continue  # the next sweep deletes it, also if the rate of the queue was removed
            if expected is None:
                self._note(f"an index leads to no item: {key!r}", self._tr.clear, key)
            # The timer alone knows the end of a lease by the clock, unless it is repaired.
            elif value is None or (value != expected and not key.startswith(leases)):
                problem = f"an item is not found by its index: {key!r}"
                self._note(problem, self._tr.set, key, expected)

    def _compare_holds(self) -> None:
        """Look for stuck groups, and for a queue over its rate without a timer."""
        layout, items = self._layout, self._items
        if not items.groups.is_settling(self._reads):
            self._compare_held_groups()
        options = items.options.read(self._reads)
        if items.rate.is_used_up(self._reads, options) and not any(
            layout.is_timer_of_queue(row.key) for row in self._rows(layout.dues)
        ):
            look = partial(items.groups.settle_all, self._tr, self._now)
            self._note("the queue is over its rate, and has no timer", look)

    def _compare_held_groups(self) -> None:
        layout, groups = self._layout, self._items.groups
        found = {
            layout.unpack_entry(layout.held_groups, row.key)[0]: "held back, and may go on"
            for row in self._rows(layout.held_groups)
        }
        rows = self._rows(layout.group_settings)
        limited = {layout.unpack_entry(layout.group_settings, row.key)[0] for row in rows}
        for group in {level.group for level in self._in_groups if level.group is not None}:
            if None in limited or group in limited:  # no other one has a limit
                found.setdefault(group, "not held back, and may not go on")
        for group, how in sorted(found.items()):
            if groups.is_held_wrongly(self._reads, group):
                settle = partial(groups.settle, self._tr, self._now, group, True)
                self._note(f"group {group!r} is {how}", settle)

    def _compare_total(self) -> None:
        layout, numbers = self._layout, self._numbers
        counters = self._items.begin_counters(self._reads)()
        numbers["paused"] = self._items.options.read(self._reads).paused
        tallies = {**counters.tallies, "claimed": counters.claimed}
        for tally, what in _COUNTED.items():
            if tallies[tally] != numbers[tally]:
                missing = encode_tallies(**{tally: numbers[tally] - tallies[tally]})
                what, number = f"the number of {what}", tallies[tally]
                self._note_difference(what, number, numbers[tally], layout.tallies, missing)
        total = counters.unfinished
        expected = sum(numbers[state] for state in layout.prefix_of if state not in ENDED)
        if total != expected:
            missing = encode_count(expected - total)
            self._note_difference("the total", total, expected, layout.total_in, missing)

    def _note_difference(
        self, what: str, count: int, expected: int, key: bytes, missing: bytes
    ) -> None:
        problem = f"{what} is {count:,}, not {expected:,}"
        self._note(problem, self._tr.add, key, missing)

    # What items own

    def _rows_of_items(self, what: str, space: bytes) -> Iterator[KeyValue]:
        """Yield the rows that items own in a space; compare how many each item has."""
        layout, expected, stored = self._layout, self._owned, Counter[bytes]()
        for row in self._rows(space):
            prefix = layout.entry_key(space, layout.unpack_entry(space, row.key)[0])
            stored[prefix] += 1
            if prefix in expected:
                yield row
        for prefix in sorted(stored.keys() - expected.keys()):
            problem = f"{what} of no item: {prefix!r}"
            self._note(problem, self._tr.clear_range, *layout.range_of(prefix))
        for prefix, number in expected.items():
            if prefix.startswith(space) and stored[prefix] != number:
                self._note(
                    f"the number of {what} of an item is {number:,} and there are "
                    f"{stored[prefix]:,}: {prefix!r}"
                )

    def _scan_parts(self) -> None:
        layout = self._layout
        for _ in self._rows_of_items("pieces of a payload", layout.pieces):
            pass  # their numbers tell
        for row in self._rows(layout.attempts):
            position, _ = layout.unpack_attempt_key(row.key)
            if position not in self._positions:
                self._note(f"failed attempts of no item: {row.key!r}", self._tr.clear, row.key)
        for row in self._rows(layout.returned):
            if row.key[len(layout.returned) :] not in self._positions:
                self._note(f"the result of no item: {row.key!r}", self._tr.clear, row.key)

    def _compare_jobs(self) -> None:
        """Compare batches; look for jobs that wait for nothing."""
        layout = self._layout
        for row in self._rows_of_items("followers", layout.followers):
            self._add_memberships(row.value)
        running = self._compare_batches()
        if self._is_linked and not self._tr[layout.linked].present():
            problem = "jobs count in batches of other queues, and the queue has no mark of it"
            self._note(problem, self._tr.set, layout.linked, b"")
        for first, job in self._jobs.items():
            header, position = job.item.header, layout.position(job.key)
            is_signalled = layout.signal_waits + header.waits in self._indexed
            if job.due == NEVER and not (header.awaits or is_signalled or first in running):
                problem = f"an item that is never due waits for nothing: {position!r}"
                self._note(problem, self._run_again, position)

    def _run_again(self, position: bytes) -> None:
        run_again(self._tr, self._layout, self._now, position)

    def _compare_batches(self) -> set[bytes]:
        """Compare batches; return the first positions of jobs that wait for one in a step."""
        layout, running = self._layout, set[bytes]()
        awaiting = {first: job for first, job in self._jobs.items() if job.item.header.awaits}
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
            elif (left, batch.stage) == (0, "closed") and (job is None or job.due == NEVER):
                problem = f"a job waits for a batch that has ended: {id!r}"
                self._note(problem, end_batch, self._tr, layout, self._now, id, batch, counts)
        for id in sorted(all_counts):
            self._note(f"the counts of no batch: {id!r}", self._tr.clear, layout.batch_counts + id)
        for id, job in sorted(awaiting.items()):
            repair = self._run_again if job.due == NEVER else None
            self._note(f"an item whose batch is gone: {id!r}", repair, layout.position(job.key))
        return running

    def _look_for_foreign_keys(self) -> None:
        begin, end = self._layout.range_of(self._layout.subspace.key())
        for known_begin, known_end in [*self._layout.known_ranges(), (end, end)]:
            for row in self._reads.get_range(begin, known_begin, limit=10):
                self._problems.append(f"foreign key in the queue's subspace: {row.key!r}")
            begin = known_end
