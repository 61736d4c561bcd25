"""The invariants of a queue, checked at one read version."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from time import monotonic
from typing import Any

from fdbqueue.coordination.store import Store
from fdbqueue.database.binding import is_database
from fdbqueue.database.clock import milliseconds
from fdbqueue.database.exactly_once import run_once
from fdbqueue.database.retrying import run
from fdbqueue.errors import ForeignKey, QueueTooLargeToCheck, error_classes
from fdbqueue.layout.values import (
    PIECES,
    ZERO,
    decode_count,
    decode_level,
    decode_metadata,
    decode_options,
    encode_count,
    encode_expiry,
    encode_level,
    encode_tallies,
    header_of,
)
from fdbqueue.queue.base import BaseQueue, store_of
from fdbqueue.types import Transaction, Transactor

_WHOLE = 4.0
"""Seconds after which a transaction is too old because of its reads, not of a recovery."""

_FEW = 1_000
"""Items that a transaction reads in far less time, unless the database recovers or is cut off."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of a check.

    Attributes:
        ready: The number of ready items.
        delayed: The number of delayed items.
        claimed: The number of claimed items.
        dead: The number of dead letters.
        done: The number of done items that are kept.
        problems: One sentence for each problem.
        repaired: Whether the problems were repaired.
    """

    ready: int
    delayed: int
    claimed: int
    dead: int
    done: int
    problems: tuple[str, ...]
    repaired: bool

    @property
    def ok(self) -> bool:
        """Tell whether all invariants hold."""
        return not self.problems


def check(tr: Transactor, queue: BaseQueue[Any], *, repair: bool = False) -> CheckReport:
    """Verify the counters, indexes and payloads of a queue at one read version, and repair them.

    - Each counter of a priority or an agent equals the number of its items.
    - The stored number of items in each state equals the actual number, and the totals add up to
      these numbers (see `QueueStats`).
    - Every index (tasks by id, agent and client, claims by the end of their leases, and so on)
      leads to its items, and to nothing else.
    - Each failed attempt, and each result of a handler, belongs to an item that exists.
    - The parts of a large payload all belong to an item, and no item lacks a part.
    - The queue's subspace contains no foreign keys.

    A repair corrects counters and indexes, and deletes parts of payloads that belong to no item. It
    does not touch foreign keys. If there is one among the items, nothing is repaired: it may be an
    item, and the queue may have been opened with the wrong type of priorities. A repair adds
    differences to counters, so that concurrent pushes and pops keep their effect; two concurrent
    repairs conflict with each other.

    On the embedded engine, a damaged database file is not reported as a wrong counter: before a
    problem is reported or repaired, SQLite's integrity check reads the whole file, and raises
    `CorruptDatabase` if it finds damage (see `Database.check_integrity`).

    A check uses snapshot reads and conflicts with nothing. Cost: a scan of the whole queue, which
    has to end within the five seconds of a transaction. If a recovery of the database ends the
    transaction before, or lets it read fewer than 1,000 items, the check begins again. Within the
    caller's transaction, error 1007 is raised if it has read fewer than 1,000 items.

    Args:
        tr: A transaction or a database.
        queue: The queue to check.
        repair: Repair the problems that can be repaired.

    Raises:
        QueueTooLargeToCheck: The scan took longer than five seconds.
        CorruptDatabase: The file of the embedded engine is damaged.
        TypeError: `queue` is not a queue object.

    Example:
        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push(db, "a")
        >>> check(db, jobs)
        CheckReport(ready=1, delayed=0, claimed=0, dead=0, done=0, problems=(), repaired=False)
    """

    if not isinstance(queue, BaseQueue):
        raise TypeError(
            f"a queue is checked, not {queue!r}; PriorityQueue.named(db, name) opens one"
        )

    store = store_of(queue)
    attempt: _Check | None = None
    began = 0.0

    def begin() -> None:
        nonlocal attempt, began
        now = monotonic()
        if attempt is not None and attempt.is_too_large and now - began >= _WHOLE:
            raise QueueTooLargeToCheck(attempt.scanned)  # others would come to the same end
        attempt, began = None, now

    def body(tr: Transaction) -> CheckReport:
        nonlocal attempt
        attempt = _Check(tr, store, repair)
        return attempt.report()

    db = tr if is_database(tr) else getattr(tr, "db", None)
    if repair:
        _check_files(db)
    if not is_database(tr):
        report = _Check(tr, store, repair).report_at_once()
    elif repair:
        receipts = store.layout.receipts
        return run_once(tr, body, receipts, lambda report: report.repaired, begin=begin)
    else:
        report = run(tr, body, begin)
    if not report.ok:
        _check_files(db)
    return report


def _check_files(db: object) -> None:
    """Raise `CorruptDatabase` for a damaged file; a cluster's servers check their own."""
    check_integrity = getattr(db, "check_integrity", None)
    if check_integrity is not None:
        check_integrity()


class _Check:
    """One check in one transaction."""

    def __init__(self, tr: Transaction, store: Store[Any], repair: bool) -> None:
        self._tr = tr
        self._reads = tr.snapshot
        self._items = store.items
        self._layout = store.layout
        self._views = store.reads.views
        self._may_repair = repair
        self._problems: list[str] = []
        self._counters: Counter[bytes] = Counter()
        self._indexed: dict[bytes, bytes] = {}
        self._lease_timers: set[bytes] = set()
        self._due_timers: set[bytes] = set()
        self._owners: set[bytes] = set()
        self._parked: Counter[str] = Counter()
        self._positions: set[bytes] = set()
        self._expiring = 0
        self.items = 0
        self.is_too_large = False
        """True once the transaction became too old after many items were read."""

    @property
    def scanned(self) -> int:
        return self.items + self._parked.total()

    def report_at_once(self) -> CheckReport:
        """Return the report of the only attempt: nobody knows how old the transaction is."""
        try:
            return self.report()
        except error_classes() as error:
            if self.is_too_large:
                raise QueueTooLargeToCheck(self.scanned) from error
            raise

    def report(self) -> CheckReport:
        try:
            self._compare_all()
        except error_classes() as error:
            self.is_too_large = error.code == 1007 and self.scanned >= _FEW
            raise
        repaired = bool(self._problems) and self._may_repair
        if repaired:
            # Two repairs would both add the difference: let the second one conflict.
            self._tr.add_read_conflict_key(self._layout.options)
            self._tr.add_write_conflict_key(self._layout.options)
        return CheckReport(**self._states(), problems=tuple(self._problems), repaired=repaired)

    def _states(self) -> dict[str, int]:
        """Return the number of items in each state, as views show them."""
        overdue = self._views.overdue(self._reads, milliseconds())
        stored = {**self._parked, "ready": self.items}
        return {
            state: stored.get(state, 0) + overdue.change(state) for state in self._layout.prefix_of
        }

    def _compare_all(self) -> None:
        self._scan_items()
        self._scan_results()
        self._scan_elsewhere()
        self._compare_counts()
        self._compare_indexes()
        self._compare_total()
        self._scan_pieces()
        self._scan_attempts()
        self._look_for_foreign_keys()

    def _rows(self, prefix: bytes) -> Any:
        return self._reads.get_range(*self._layout.range_of(prefix))

    def _scan_items(self) -> None:
        layout = self._layout
        for row in self._rows(layout.items):
            try:
                item = self._items.levels.item(row.key, row.value)
            except ForeignKey:
                # Perhaps an item, and the queue was opened with the wrong priorities: without
                # knowing what it is, nothing that belongs to items can be put right.
                self._may_repair = False
                self._problems.append(f"foreign key among the items: {row.key!r}")
                continue
            self.items += 1
            indexes, counters = self._items.index_entries(self._reads, item)
            self._indexed |= indexes
            self._counters.update(counters)
            if item.level.counter is not None:
                self._counters[item.level.counter] += 1
            self._expiring += item.header.expires is not None
            self._positions.add(layout.position(row.key))
            self._note_unique(layout.position(row.key), row.value)
            self._own(layout.position(row.key), row.value)

    def _scan_results(self) -> None:
        """Count the items staged for waiting pops as claimed; they still own their payloads."""
        layout = self._layout
        for key, value in layout.staged_items(self._rows(layout.results)):
            self._parked["claimed"] += 1
            self._positions.add(layout.position(key))
            self._note_unique(layout.position(key), value)
            self._own(layout.position(key), value)

    def _scan_elsewhere(self) -> None:
        """Scan delayed, claimed, dead and done items."""
        layout = self._layout
        for state, prefix in layout.prefix_of.items():
            if state == "ready":
                continue
            for row in self._rows(prefix):
                self._parked[state] += 1
                metadata, value = decode_metadata(row.value)
                position = row.key[len(prefix) :]
                self._positions.add(position)
                self._indexed |= self._items.parked_index_entries(position)
                self._own(position, value)
                if state == "dead":
                    continue
                if state == "done":
                    self._indexed[layout.timer_key(layout.done_times, metadata[0], position)] = b""
                    continue
                self._note_unique(position, value)
                if prefix == layout.delayed:
                    timer = layout.timer_key(layout.dues, metadata[0], position)
                    self._indexed[timer] = encode_expiry(header_of(value)[0].expires)
                    self._due_timers.add(timer)
                else:
                    _, end, _, *slots = metadata
                    timer = layout.timer_key(layout.leases, end, position)
                    self._indexed[timer] = b""
                    self._lease_timers.add(timer)
                    self._counters.update(map(layout.slot_counter, slots))

    def _note_unique(self, position: bytes, value: bytes) -> None:
        unique = header_of(value)[0].unique
        if unique is not None:
            self._indexed[self._layout.unique_key(unique)] = position

    def _own(self, position: bytes, value: bytes) -> None:
        """Note what an item has in any state: the pieces of its payload, and the way by its id."""
        header, content = header_of(value)
        if content.startswith(PIECES):
            self._owners.add(self._layout.pieces_prefix(content))
        if header.origin is not None:
            self._indexed[self._layout.moved + header.origin] = position

    def _compare_counts(self) -> None:
        layout = self._layout
        stored = {row.key: row.value for prefix in layout.counters for row in self._rows(prefix)}
        for counter in sorted(stored.keys() | self._counters.keys()):
            what, expected = f"the count of {self._name(counter)}", self._counters[counter]
            value = stored.get(counter)
            if counter.startswith(layout.level_counts):
                ready = 0 if value is None else decode_level(value)[0]
                if ready != expected:
                    missing = encode_level(expected - ready)
                    self._note_difference(what, ready, expected, counter, missing)
            elif value is None or value == ZERO or decode_count(value) != expected:
                missing = encode_count(expected - decode_count(value))
                self._note_difference(what, decode_count(value), expected, counter, missing)
                if self._may_repair:
                    self._tr.compare_and_clear(counter, ZERO)

    def _name(self, counter: bytes) -> str:
        layout = self._layout
        try:
            if counter.startswith(layout.agent_counts):
                return f"agent {layout.unpack_entry_key(layout.agent_counts, counter)!r}"
            if counter.startswith(layout.agent_slots):
                agent = layout.unpack_entry_key(layout.agent_slots, counter)
                return f"claims of agent {agent!r}"
            if counter.startswith(layout.slots):
                return "claims"
            return f"priority {layout.unpack_counter_key(counter)!r}"
        except Exception:  # of the tuple layer, which has no class of its own
            return f"the key {counter!r}"

    def _compare_indexes(self) -> None:
        indexes = self._layout.indexes
        stored = {row.key: row.value for prefix in indexes for row in self._rows(prefix)}
        # The timer of a lease alone knows its end by the clock. A repaired one has none.
        for timer in self._lease_timers & stored.keys():
            self._indexed[timer] = stored[timer]
        # Layout 5 did not store when a delayed item expires.
        for timer in self._due_timers & stored.keys():
            if stored[timer] == b"":
                self._indexed[timer] = b""
        for key in sorted(stored.keys() | self._indexed.keys()):
            expected = self._indexed.get(key)
            if stored.get(key) == expected:
                continue
            self._problems.append(
                f"an index leads to no item: {key!r}"
                if expected is None
                else f"an item is not found by its index: {key!r}"
            )
            if not self._may_repair:
                continue
            if expected is None:
                del self._tr[key]
            else:
                self._tr[key] = expected

    def _compare_total(self) -> None:
        counters = self._items.begin_counters(self._reads)()
        numbers = {
            "delayed": counters.tallies["delayed"],
            "claimed": counters.claimed,
            "dead": counters.tallies["dead"],
            "done": counters.tallies["done"],
        }
        for state, number in numbers.items():
            expected = self._parked[state]
            if number != expected:
                missing = encode_tallies(**{state: expected - number})
                what = f"the number of {state} items"
                self._note_difference(what, number, expected, self._layout.tallies, missing)
        if (expiring := counters.tallies["expiring"]) != self._expiring:
            missing = encode_tallies(expiring=self._expiring - expiring)
            what = "the number of items that expire"
            self._note_difference(what, expiring, self._expiring, self._layout.tallies, missing)
        self._compare_pause(counters.tallies["paused"])
        unfinished = self.items + self._parked["delayed"] + self._parked["claimed"]
        total = counters.unfinished + numbers["dead"]
        expected = unfinished + self._parked["dead"]
        if total != expected:
            key, missing = self._layout.total_in, encode_count(expected - total)
            self._note_difference("the total", total, expected, key, missing)

    def _compare_pause(self, paused: int) -> None:
        stored = self._reads[self._layout.options].value
        is_paused = stored is not None and decode_options(stored).paused
        if paused != is_paused:
            really = "paused" if is_paused else "not paused"
            self._problems.append(f"the queue is {really}, and its counters say otherwise")
            if self._may_repair:
                self._tr.add(self._layout.tallies, encode_tallies(paused=is_paused - paused))

    def _note_difference(
        self, what: str, count: int, expected: int, key: bytes, missing: bytes
    ) -> None:
        """Note a wrong counter; a repair adds what is missing."""
        self._problems.append(f"{what} is {count:,} and there are {expected:,} items")
        if self._may_repair:
            self._tr.add(key, missing)

    def _scan_pieces(self) -> None:
        owners_found = set[bytes]()
        for row in self._rows(self._layout.pieces):
            owner = self._layout.prefix_of_piece(row.key)
            if owner in owners_found:
                continue
            owners_found.add(owner)
            if owner not in self._owners:
                self._problems.append(f"pieces of a payload that belong to no item: {owner!r}")
                if self._may_repair:
                    self._tr.clear_range(*self._layout.range_of(owner))
        for owner in self._owners - owners_found:
            self._problems.append(f"an item whose payload is gone: its pieces were at {owner!r}")

    def _scan_attempts(self) -> None:
        layout = self._layout
        for row in self._rows(layout.attempts):
            position, _ = layout.unpack_attempt_key(row.key)
            if position not in self._positions:
                self._problems.append(f"failed attempts of no item: {row.key!r}")
                if self._may_repair:
                    del self._tr[row.key]
        for row in self._rows(layout.returned):
            if row.key[len(layout.returned) :] not in self._positions:
                self._problems.append(f"the result of no item: {row.key!r}")
                if self._may_repair:
                    del self._tr[row.key]

    def _look_for_foreign_keys(self) -> None:
        begin, end = self._layout.range_of(self._layout.subspace.key())
        for known_begin, known_end in self._layout.known_ranges():
            self._foreign(begin, known_begin)
            begin = known_end
        self._foreign(begin, end)

    def _foreign(self, begin: bytes, end: bytes) -> None:
        for row in self._reads.get_range(begin, end, limit=10):
            self._problems.append(f"foreign key in the queue's subspace: {row.key!r}")
