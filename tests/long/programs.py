"""Random programs over the transaction API, and the outcome of each step on an engine."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import fdb
from fdb.subspace_impl import Subspace

import fdbqueue

Step: TypeAlias = tuple[Any, ...]
"""The number of a transaction, the name of an operation, its arguments."""

Program: TypeAlias = list[Step]

TRANSACTIONS = 3
KEYS = [b"a", b"b", b"c", b"c\x00", b"d", b"e", b"f"]
# Not for atomic operations: their result on a versionstamp differs between engines.
STAMPED = [b"bb", b"ee"]
# Rows before and behind those of the program keep selectors within the subspace.
FENCE = [bytes([edge, n]) for edge in (1, 0xFE) for n in range(8)]
VALUES = [b"", b"\x00", b"\x01", b"\xff", b"\x01\x02", b"\xff\xff", b"\x00\x01\x00", b"12345678"]
ATOMICS = [
    *("add", "bit_and", "bit_or", "bit_xor", "max", "min", "byte_max", "byte_min"),
    *("append_if_fits", "compare_and_clear"),
]
RETRIED = [1007, 1009, 1020, 1021, 1031, 1039, 2101]
WRONG = ["long key", "long value", "system", "inverted", "limit", "option", "short stamp"]
OPTIONS = [
    *("snapshot_ryw_disable", "snapshot_ryw_enable"),
    *("next_write_no_write_conflict_range", "next_write_no_write_conflict_range"),
]


def program(rng: random.Random, steps: int) -> Program:
    """Return a program of `steps` steps: the initial rows, then operations in random order.

    It has key selectors or versionstamps, not both: which selectors pass an unreadable key without
    an error depends on what FoundationDB's client happens to have cached. And it has added read
    conflict ranges or switches read-your-writes off, not both: FoundationDB forgets such ranges
    when it is switched off after them. It does not switch read-your-writes off if it has key
    selectors: that is too late after a read, but FoundationDB does not count the read of a range
    that ends before it begins.

    A third of the programs read only single keys and have no versionstamps. Half of these let the
    first read take the read version: own writes decide whether a range is read at all.
    """
    stored = [(0, "set", key, rng.choice(VALUES)) for key in KEYS if rng.random() < 0.5]
    single = rng.random() < 0.33
    stamps, ranges = not single and rng.random() < 0.4, rng.random() < 0.5
    unpinned = [(0, "unpinned")] if single and rng.random() < 0.5 else []
    body = (_step(rng, stamps, ranges, single) for _ in range(steps))
    return [*unpinned, *stored, (0, "commit"), *body]


def _step(rng: random.Random, stamps: bool, ranges: bool, single: bool) -> Step:
    def key() -> bytes:
        return rng.choice(KEYS)

    def selector() -> tuple[bytes, bool, int]:
        return key(), rng.random() < 0.5, rng.randint(-4, 5)

    def ends() -> tuple[Any, Any]:
        if not stamps and rng.random() < 0.3:
            return selector(), selector()
        low, high = sorted([key(), key()])
        return (low, high) if rng.random() < 0.95 else (high, low)

    def range_read() -> Step:
        begin, end = ends()
        # Between selectors, the embedded engine conflicts with more keys.
        is_snapshot = snapshot or isinstance(begin, tuple)
        others = rng.choice([0, 0, 1, 2, 3, -1]), rng.random() < 0.5, rng.choice([-2, -1, 0, 1, 4])
        return ("get_range", is_snapshot, begin, end, *others)

    snapshot = rng.random() < 0.25
    choices: list[tuple[int, Callable[[], Step]]] = [
        (8, lambda: ("get", snapshot, key())),
        (3, lambda: ("hold", snapshot, key())),
        (1, lambda: ("held",)),
        (1, lambda: ("watch", key())),
        (1, lambda: ("watches",)),
        (0 if stamps or single else 4, lambda: ("get_key", snapshot, selector())),
        (0 if single else 8, range_read),
        (not single, lambda: ("get_range_startswith", snapshot, rng.choice([b"c", b"", b"x"]))),
        (8, lambda: ("set", key(), rng.choice(VALUES))),
        (4, lambda: ("clear", key())),
        (3, lambda: ("clear_range", *sorted([key(), key()]))),
        (1, lambda: ("clear_range_startswith", b"c")),
        (9, lambda: (rng.choice(ATOMICS), key(), rng.choice(VALUES))),
        (2 * stamps, lambda: ("stamped_key", rng.choice([b"", b"c", b"s"]))),
        (2 * stamps, lambda: ("stamped_value", rng.choice(STAMPED))),
        (1, lambda: ("get", snapshot, rng.choice(STAMPED))),
        (1, lambda: ("set", rng.choice(STAMPED), rng.choice(VALUES))),
        (1, lambda: ("bad_stamp", key())),
        (4 * ranges, lambda: ("add_read_conflict_range", *sorted([key(), key()]))),
        (2 * ranges, lambda: ("add_read_conflict_key", key())),
        (2, lambda: ("add_write_conflict_range", *sorted([key(), key()]))),
        (1, lambda: ("add_write_conflict_key", key())),
        (2, lambda: ("option", rng.choice(OPTIONS))),
        (not ranges and (stamps or single), lambda: ("option", "read_your_writes_disable")),
        (1, lambda: ("get_read_version",)),
        (1, lambda: ("get_committed_version",)),
        (1, lambda: ("on_error", rng.choice(RETRIED))),
        (1, lambda: ("reset",)),
        (1, lambda: ("wrong", rng.choice(WRONG))),
        (1, lambda: ("retry_limit", rng.choice([0, 1, -1]))),
        (8, lambda: ("commit",)),
    ]
    if rng.random() < 0.03:
        rare: list[Step] = [
            *(("cancel",), ("timeout", 0), ("timeout", 1), ("timeout", 60_000)),
            ("after_commit", rng.choice(WRONG)),
        ]
        return (rng.randrange(TRANSACTIONS), *rng.choice(rare))
    (choice,) = rng.choices([each for _, each in choices], [weight for weight, _ in choices])
    return (rng.randrange(TRANSACTIONS), *choice())


class _Machine:
    """An engine that runs a program in a subspace."""

    def __init__(self, db: Any, space: Subspace) -> None:
        self._db = db
        self._prefix = space.key()
        self._stamps: dict[bytes, bytes] = {}
        db.clear_range_startswith(self._prefix)
        for key in FENCE:
            db[self._prefix + key] = b"fence"
        self._is_pinned = True
        self._held: dict[int, list[Any]] = {n: [] for n in range(TRANSACTIONS)}
        self._watches: dict[int, list[Any]] = {n: [] for n in range(TRANSACTIONS)}
        self._transactions = [self._created() for _ in range(TRANSACTIONS)]

    def _created(self) -> Any:
        transaction = self._db.create_transaction()
        transaction.options.set_max_retry_delay(0)
        return self._begun(transaction)

    def _begun(self, transaction: Any) -> Any:
        """Take the read version now; otherwise it would depend on caches which read takes it."""
        if self._is_pinned:
            transaction.get_read_version().wait()
        return transaction

    def outcome(self, step: Step) -> str:
        """Run a step and return its result or the code of its error."""
        number, name, *arguments = step
        try:
            return self._shown(self._done(number, name, *arguments))
        except fdbqueue.error_classes() as error:
            return f"error {error.code}"

    def rows(self) -> str:
        """Return all stored rows."""
        return self._shown(self._db.get_range_startswith(self._prefix))

    def _shown(self, result: Any) -> str:
        if result is None or isinstance(result, (bool, int, str)):
            return repr(result)
        if isinstance(result, list):
            return repr([(self._plain(row.key), self._plain(row.value)) for row in result])
        return repr(self._plain(bytes(result)))

    def _plain(self, text: bytes) -> bytes:
        """Return a key without its prefix, with versionstamps numbered by appearance."""
        for stamp, number in self._stamps.items():
            text = text.replace(stamp, number)
        return text.removeprefix(self._prefix)

    def _end(self, end: Any) -> Any:
        if isinstance(end, tuple):
            return fdb.KeySelector(self._prefix + end[0], *end[1:])
        return self._prefix + end

    def _done(self, number: int, name: str, *arguments: Any) -> Any:
        tr = self._transactions[number]
        prefix = self._prefix
        if name in ("get", "get_key", "get_range", "get_range_startswith"):
            return self._read(tr.snapshot if arguments[0] else tr, name, *arguments[1:])
        if name == "commit":
            return self._commit(number)
        if name == "unpinned":
            self._is_pinned = False
            self._transactions = [self._created() for _ in range(TRANSACTIONS)]
            return None
        if name == "hold":
            return self._hold(number, *arguments)
        if name == "held":
            return self._taken(number)
        if name == "watch":
            return self._watch(number, arguments[0])
        if name == "watches":
            return self._watched(number)
        if name in ("on_error", "reset", "cancel", "timeout"):
            # A read that is not finished yet fails, or does not count yet.
            self._taken(number)
        if name == "stamped_key":
            at = len(prefix) + len(arguments[0])
            key = prefix + arguments[0] + bytes(10) + at.to_bytes(4, "little")
            return tr.set_versionstamped_key(key, b"stamped")
        if name == "stamped_value":
            value = b"<" + bytes(10) + b">" + (1).to_bytes(4, "little")
            return tr.set_versionstamped_value(prefix + arguments[0], value)
        if name == "bad_stamp":
            return tr.set_versionstamped_value(
                prefix + arguments[0], b"short" + bytes([9, 0, 0, 0])
            )
        if name == "option":
            return getattr(tr.options, f"set_{arguments[0]}")()
        if name == "get_read_version":
            return tr.get_read_version().wait() > 0
        if name == "get_committed_version":
            return tr.get_committed_version() > 0
        if name == "on_error":
            tr.on_error(arguments[0]).wait()
            self._watches[number].clear()
            return self._begun(tr) and "again"
        if name == "timeout":
            tr.options.set_timeout(arguments[0])
            time.sleep(0.005 if arguments[0] == 1 else 0)  # expires; no program takes a minute
            return None
        if name == "retry_limit":
            return tr.options.set_retry_limit(arguments[0])
        if name == "after_commit":
            return self._commit(number, arguments[0])
        if name == "reset":
            tr.reset()
            self._watches[number].clear()
            return self._begun(tr) and "anew"
        if name == "cancel":
            return tr.cancel()
        if name == "wrong":
            return self._wrong(tr, arguments[0])
        keys = [prefix + arguments[0]]
        if name.endswith("range"):
            return getattr(tr, name)(*keys, prefix + arguments[1])
        return getattr(tr, name)(*keys, *arguments[1:])

    def _read(self, tr: Any, name: str, *arguments: Any) -> Any:
        if name == "get":
            return tr.get(self._prefix + arguments[0]).value
        if name == "get_key":
            return tr.get_key(self._end(arguments[0])).value
        if name == "get_range_startswith":
            return list(tr.get_range_startswith(self._prefix + arguments[0]))
        begin, end, *others = arguments
        return list(tr.get_range(self._end(begin), self._end(end), *others))

    def _hold(self, number: int, snapshot: bool, key: bytes) -> None:
        tr = self._transactions[number]
        self._held[number].append((tr.snapshot if snapshot else tr).get(self._prefix + key))

    def _taken(self, number: int) -> str:
        """Return the values of the reads that were held."""
        held, self._held[number] = self._held[number], []
        return str([self._code(future) or self._shown(future.value) for future in held])

    @staticmethod
    def _code(future: Any) -> int | None:
        """Return the code of a future's error."""
        try:
            future.wait()
        except fdbqueue.error_classes() as error:
            return int(error.code)
        return None

    def _watch(self, number: int, key: bytes) -> None:
        tr = self._transactions[number]
        self._watches[number].append(tr.watch(self._prefix + key))
        self._code(tr.get(self._prefix + key))  # the watch has read its value too

    def _watched(self, number: int) -> str:
        """Return the outcomes of the watches of a transaction that is not committed."""
        self._code(self._transactions[number].get_approximate_size())  # all writes have arrived
        watches = self._watches[number]
        return str([self._code(watch) or "fired" if watch.is_ready() else "-" for watch in watches])

    @staticmethod
    def _wrong(tr: Any, what: str) -> Any:
        if what == "long key":
            tr[b"x" * 10_001] = b""
        elif what == "long value":
            tr[b"x"] = b"x" * 100_001
        elif what == "system":
            tr[b"\xff/x"] = b""
        elif what == "inverted":
            tr.clear_range(b"b", b"a")
        elif what == "option":
            tr.options.set_size_limit(1)
        elif what == "short stamp":
            tr.set_versionstamped_value(b"x", b"short")
        else:
            return list(tr.get_range(b"a", b"b", limit=-2))
        return None

    def _commit(self, number: int, wrong: str | None = None) -> Any:
        """Commit and continue with a new transaction; after an error as a retry loop would.

        With `wrong`, commit again after a write that is wrong.
        """
        tr = self._transactions[number]
        stamp = tr.get_versionstamp()
        try:
            tr.commit().wait()
        except fdbqueue.error_classes() as error:
            result = f"error {error.code} {self._taken(number)} {self._watched(number)}"
            if self._code(tr.on_error(error.code)) is None:
                self._begun(tr)
            else:
                self._transactions[number] = self._created()
            self._watches[number].clear()
            return result
        committed = tr.get_committed_version() > 0
        result = f"{self._taken(number)} {'committed' if committed else 'read only'}"
        if committed:
            self._stamps[bytes(stamp.wait())] = b"(stamp %d)" % len(self._stamps)
        for watch in self._watches[number]:
            watch.cancel()
        self._watches[number].clear()
        if wrong is not None:
            result += f" {self.outcome((number, 'wrong', wrong))} {self._code(tr.commit())}"
        self._transactions[number] = self._created()
        return result


def outcomes(db: Any, space: Subspace, steps: Program) -> list[str]:
    """Return the outcome of every step, and the rows at the end."""
    machine = _Machine(db, space)
    return [*(machine.outcome(step) for step in steps), machine.rows()]


def shortened(steps: Program, differs: Callable[[Program], bool]) -> Program:
    """Return a minimal part of a program that still differs between the engines."""
    size = len(steps) // 2
    while size:
        at = 0
        while at < len(steps):
            shorter = steps[:at] + steps[at + size :]
            if differs(shorter):
                steps = shorter
            else:
                at += size
        size //= 2
    return steps
