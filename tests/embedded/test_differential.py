"""Random interleaved transactions must agree on the engine and on a simple model."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fdbqueue.embedded import KeySelector
from tests.embedded.model import ATOMICS, KEYS, ModelStore, ModelTransaction

PROGRAMS = 150
STEPS = 60
KINDS = [
    *("get", "range", "range", "key", "selectors", "set", "set"),
    *("clear", "clear_range", "atomic", "atomic", "conflict"),
]
VALUES = [b"", b"\x00", b"\x01", b"\xff", b"\x01\x02", b"\xff\xff", b"\x00\x01\x00"]


class Pair:
    """The same transaction on both sides."""

    def __init__(self, db: Any, store: ModelStore) -> None:
        self.real = db.create_transaction()
        self.real.get_read_version().wait()
        self.model = ModelTransaction(store)


def pairs(rows: Any) -> list[tuple[bytes, bytes]]:
    return [(row.key, row.value) for row in rows]


def step(rng: random.Random, pair: Pair) -> str:
    """Run one random operation on both sides; return its description."""
    real, model = pair.real, pair.model
    key, value = rng.choice(KEYS), rng.choice(VALUES)
    begin, end = sorted([rng.choice([b"", *KEYS]), rng.choice([*KEYS, b"\xff"])])
    snapshot = rng.random() < 0.25
    reader = real.snapshot if snapshot else real
    kind = rng.choice(KINDS)
    if kind == "get":
        assert reader[key].value == model.get(key, snapshot), kind
    elif kind == "range":
        limit, reverse = rng.choice([0, 0, 1, 2, 5]), rng.random() < 0.5
        found = pairs(reader.get_range(begin, end, limit, reverse))
        assert found == model.get_range(begin, end, limit, reverse, snapshot), kind
        return f"range {begin!r} {end!r} limit={limit} reverse={reverse} snapshot={snapshot}"
    elif kind == "key":
        or_equal, offset = rng.random() < 0.5, rng.randint(-3, 4)
        resolved = bytes(reader.get_key(KeySelector(key, or_equal, offset)))
        assert resolved == model.get_key(key, or_equal, offset, snapshot), kind
        return f"key {key!r} {or_equal} {offset} snapshot={snapshot}"
    elif kind == "selectors":
        # Only rows are compared. The conflict range of such a read may differ.
        ends = [(rng.choice(KEYS), rng.random() < 0.5, rng.randint(-2, 3)) for _ in range(2)]
        found = pairs(real.snapshot.get_range(*(KeySelector(*each) for each in ends)))
        low, high = (model.selected(*each) for each in ends)
        assert found == [(k, v) for k, v in model.view().items() if low <= k < high], ends
        return f"selectors {ends}"
    elif kind == "set":
        real[key] = value
        model.write("set", key, value)
    elif kind == "clear":
        del real[key]
        model.clear_range(key, key + b"\x00")
    elif kind == "clear_range":
        real.clear_range(begin, end)
        model.clear_range(begin, end)
    elif kind == "atomic":
        name = rng.choice(ATOMICS)
        getattr(real, name)(key, value)
        model.write(name, key, value)
        return f"{name} {key!r} {value!r}"
    else:
        real.add_read_conflict_range(begin, end)
        model.get_range(begin, end, 0, False, snapshot=False)
        return f"conflict {begin!r} {end!r}"
    return f"{kind} {key!r} {value!r} {begin!r} {end!r} snapshot={snapshot}"


def test_interleaved_transactions_agree_with_the_model(db: Any, rng: random.Random) -> None:
    committed = conflicted = 0
    for _ in range(PROGRAMS):
        db.clear_range(b"", b"\xff")
        store = ModelStore()
        running = [Pair(db, store) for _ in range(3)]
        history = []
        try:
            for _ in range(STEPS):
                at = rng.randrange(len(running))
                pair = running[at]
                if rng.random() < 0.85:
                    history.append(f"{at}: {step(rng, pair)}")
                    continue
                history.append(f"{at}: commit")
                expected = pair.model.commit()
                committed, conflicted = committed + expected, conflicted + (not expected)
                if expected:
                    pair.real.commit().wait()
                else:
                    with pytest.raises(Exception, match=r"\(1020\)"):
                        pair.real.commit().wait()
                assert pairs(db[:]) == list(store.versions[-1].items())
                running[at] = Pair(db, store)
        except BaseException:
            print(*history, sep="\n")
            raise
    # The comparison is only meaningful if both outcomes occur often.
    assert committed > PROGRAMS
    assert conflicted > PROGRAMS
