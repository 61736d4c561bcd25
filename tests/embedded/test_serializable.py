"""Interleaved transactions must have the outcome of the same transactions one after the other.

The outcome is what each committed transaction read, and the rows at the end. The order is that in
which they committed; a transaction that wrote nothing may have any place in it. Snapshot reads are
excluded.
"""

from __future__ import annotations

import os
import random
from itertools import islice, permutations
from typing import Any

import pytest

import fdbqueue
from fdbqueue.embedded import KeySelector
from fdbqueue.embedded.transaction import reads
from fdbqueue.embedded.transaction.attempt import Attempt
from tests.embedded.model import KEYS, ModelTransaction
from tests.long.programs import ATOMICS, Program, Step, shortened

PROGRAMS = int(os.environ.get("FDBQ_PROGRAMS", "500"))  # run more by hand
TRANSACTIONS = 3
VALUES = [b"", b"\x00", b"\x01", b"\x01\x02"]
STORED = -1  # the number of the rows that are there before the transactions


def program(rng: random.Random) -> Program:
    """Return the rows at the start, and the steps of a few transactions in random order."""
    chance = rng.choice([0.15, 0.3, 0.6])
    keys = [key for key in KEYS if rng.random() < chance]
    stored: Program = [(STORED, "set", key, rng.choice(VALUES)) for key in keys]
    turns = [number for number in range(TRANSACTIONS) for _ in range(rng.randint(2, 4))]
    rng.shuffle(turns)
    steps: Program = [(n, "blind") for n in range(TRANSACTIONS) if rng.random() < 0.15]
    steps += [(number, *(_read(rng) if rng.random() < 0.6 else _write(rng))) for number in turns]
    for number in rng.sample(range(TRANSACTIONS), TRANSACTIONS):
        last = max(at for at, step in enumerate(steps) if step[0] == number)
        at = rng.randint(last + 1, len(steps))
        steps[at:at] = [(number, *_write(rng)), (number, "commit")]
    return stored + steps


def _read(rng: random.Random) -> Step:
    def end() -> tuple[bytes, bool, int]:
        """Return a selector. Half of them select a key by itself, as a range of keys does."""
        if rng.random() < 0.5:
            return rng.choice([b"", *KEYS, b"\xff"]), False, 1
        return rng.choice(KEYS), rng.random() < 0.5, rng.randint(-2, 3)

    kind = rng.random()
    if kind < 0.15:
        return "get", rng.choice(KEYS)
    if kind < 0.3:
        return "get_key", end()
    limit, reverse = rng.choice([0, 1, 1, 2]), rng.random() < 0.5
    if kind < 0.35:
        return "snapshot", end(), end(), limit, reverse
    return "get_range", end(), end(), limit, reverse, rng.choice([1, 2, None])


def _write(rng: random.Random) -> Step:
    key = rng.choice(KEYS)
    kind = rng.random()
    if kind < 0.15:
        return "clear", key
    if kind < 0.3:
        return "clear_range", *sorted([key, rng.choice(KEYS)])
    return rng.choice(ATOMICS) if kind < 0.5 else "set", key, rng.choice(VALUES)


def _stored(db: Any, steps: Program) -> None:
    with_rows = db.create_transaction()
    with_rows.clear_range(b"", b"\xff")
    for number, name, *arguments in steps:
        if number == STORED:
            getattr(with_rows, name)(*arguments)
    with_rows.commit().wait()


def _real(tr: Any, name: str, *arguments: Any) -> Any:
    """Run an operation on the engine; return what it read."""
    if name == "get":
        return tr.get(*arguments).value
    if name == "get_key":
        return bytes(tr.get_key(KeySelector(*arguments[0])).value)
    if name == "get_range":
        begin, end, limit, reverse, taken = arguments
        rows = tr.get_range(KeySelector(*begin), KeySelector(*end), limit, reverse)
        return [(row.key, row.value) for row in islice(rows, taken)]
    if name == "snapshot":
        begin, end, limit, reverse = arguments
        list(tr.snapshot.get_range(KeySelector(*begin), KeySelector(*end), limit, reverse))
        return None
    if name == "blind":
        return tr.options.set_read_your_writes_disable()
    return getattr(tr, name)(*arguments)


def _modelled(tr: ModelTransaction, name: str, *arguments: Any) -> Any:
    """Run an operation on the model; return what it read."""
    if name == "get":
        return tr.view().get(arguments[0])
    if name == "get_key":
        return tr.get_key(*arguments[0])
    if name == "get_range":
        begin, end, limit, reverse, taken = arguments
        low, high = tr.selected(*begin), tr.selected(*end)
        rows = [(key, value) for key, value in tr.view().items() if low <= key < high]
        rows = rows[::-1] if reverse else rows
        return rows[: limit or None][:taken]
    if name == "clear":
        tr.operations.append(("clear_range", arguments[0], arguments[0] + b"\x00"))
    elif name not in ("snapshot", "blind"):
        tr.operations.append((name, *arguments))
    return None


def outcome(db: Any, steps: Program) -> tuple[dict[int, list[Any]], list[int], dict[bytes, bytes]]:
    """Run a program on the engine.

    Returns:
        What each committed transaction read, those that wrote in the order of their commits, and
        the rows.
    """
    _stored(db, steps)
    running = {number: db.create_transaction() for number in range(TRANSACTIONS)}
    read: dict[int, list[Any]] = {number: [] for number in running}
    committed: dict[int, list[Any]] = {}
    writers = []
    for number, name, *arguments in steps:
        if name == "commit":
            try:
                running[number].commit().wait()
            except fdbqueue.error_classes() as error:
                if error.code != 1020:
                    raise
            else:
                committed[number] = read[number]
                if running[number].get_committed_version() > 0:
                    writers.append(number)
        elif number != STORED:
            read[number].append(_real(running[number], name, *arguments))
    return committed, writers, {row.key: row.value for row in db[:]}


def is_serial(
    order: tuple[int, ...], steps: Program, read: dict[int, list[Any]], rows: dict[bytes, bytes]
) -> bool:
    """Return whether the transactions, one after the other in this order, have this outcome."""
    stored: dict[bytes, bytes] = {}
    for number in (STORED, *order):
        own = [step[1:] for step in steps if step[0] == number and step[1] != "commit"]
        tr = ModelTransaction(stored, reads_own=("blind",) not in own)
        found = [_modelled(tr, *operation) for operation in own]
        if number != STORED and found != read[number]:
            return False
        stored = tr.replayed()
    return stored == rows


def is_serializable(
    steps: Program, read: dict[int, list[Any]], writers: list[int], rows: dict[bytes, bytes]
) -> bool:
    """Return whether a program has this outcome in an order that has the writers in theirs."""
    orders = (
        order
        for order in permutations(read)
        if [number for number in order if number in writers] == writers
    )
    return any(is_serial(order, steps, read, rows) for order in orders)


@pytest.mark.parametrize("db", ["memory"], indirect=True)
def test_every_outcome_is_that_of_the_order_of_the_commits(
    db: Any, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A program has a few rows. Let even these come in several batches.
    monkeypatch.setattr(reads, "_FIRST_ROWS", dict.fromkeys(reads._FIRST_ROWS, 1))
    committed = 0
    for _ in range(PROGRAMS):
        seed = rng.randrange(2**32)
        steps = program(random.Random(seed))
        found = outcome(db, steps)
        if not is_serializable(steps, *found):
            steps = shortened(steps, lambda part: not is_serializable(part, *outcome(db, part)))
            lines = "\n".join(map(str, steps))
            pytest.fail(f"program {seed} has {outcome(db, steps)}:\n{lines}")
        committed += len(found[0])
    # The claim is only meaningful if most transactions commit, and many conflict.
    assert PROGRAMS < committed < 0.9 * TRANSACTIONS * PROGRAMS


@pytest.mark.parametrize("db", ["memory"], indirect=True)
def test_a_missing_conflict_range_is_found(
    db: Any, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Attempt, "add_read_conflict", lambda *_, **__: None)
    programs = (program(rng) for _ in range(PROGRAMS))
    assert not all(is_serializable(steps, *outcome(db, steps)) for steps in programs)
