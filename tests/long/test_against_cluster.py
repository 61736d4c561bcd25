"""The embedded engine and a real cluster must return the same results and error codes."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import fdb
import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue.embedded import KeySelector
from tests.embedded.model import KEYS
from tests.long.programs import outcomes, program, shortened
from tests.support.cluster import Cluster, Server, find_programs

PROGRAMS = int(os.environ.get("FDBQ_PROGRAMS", "300"))  # run more by hand
STEPS = 40
PARTS = 4


@pytest.fixture
def real(cluster: Cluster, space: Subspace) -> Iterator[Any]:
    """Return the cluster through a separate client, so that options stay within this test."""
    fdbqueue.open(cluster.file)
    database = fdb.impl.create_database(str(cluster.file))
    yield database
    database.clear_range_startswith(space.key())


@pytest.mark.parametrize("part", range(PARTS))
def test_both_engines_return_the_same_results(
    real: Any, space: Subspace, rng: random.Random, part: int
) -> None:
    with fdbqueue.open("memory:") as embedded:
        for _ in range(PROGRAMS // PARTS):
            seed = rng.randrange(2**32)
            steps = program(random.Random(seed), STEPS)
            if outcomes(embedded, space, steps) != outcomes(real, space, steps):
                steps = shortened(
                    steps,
                    lambda few: outcomes(embedded, space, few) != outcomes(real, space, few),
                )
                both = outcomes(embedded, space, steps), outcomes(real, space, steps)
                pytest.fail(f"program {seed}: {steps} has the outcomes {both}")


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a cluster of its own without a row, in which selectors can pass the first key."""
    programs = find_programs()
    if programs is None:
        pytest.skip("no fdbserver to start")
    with Server(tmp_path_factory.mktemp("empty"), *programs) as server:
        fdbqueue.open(server.cluster_file)
        yield fdb.impl.create_database(str(server.cluster_file))


@pytest.mark.parametrize("part", range(PARTS))
def test_both_engines_conflict_on_the_same_keys(empty: Any, rng: random.Random, part: int) -> None:
    """Selectors, limits and own writes decide which keys a read depends on.

    The cluster may also conflict with a write that cannot change the result: if the result is empty
    because both selectors pass the first key, or the last one, and if own writes are in the range.
    A range read between selectors depends on other keys in each engine, so only its rows are
    compared here. `test_serializable.py` tests its conflicts.
    """
    with fdbqueue.open("memory:") as embedded:
        for _ in range(PROGRAMS // PARTS):
            seed = rng.randrange(2**32)
            (done, keys, fails), (_, expected, expected_to_fail) = (
                _conflict(db, random.Random(seed)) for db in (embedded, empty)
            )
            assert keys == expected, (seed, done)
            may_differ = not keys or any(name in str(done) for name in ("set", "clear", "add"))
            is_between_selectors = "range" in done and any(map(_is_selector, done))
            assert (
                fails == expected_to_fail or (may_differ and not fails) or is_between_selectors
            ), (seed, done)


def _is_selector(step: Any) -> bool:
    return isinstance(step, tuple) and len(step) == 3


def _conflict(db: Any, rng: random.Random) -> tuple[list[Any], list[bytes], bool]:
    """Return what a transaction did, the keys that it read, and whether a later write conflicts."""
    kind = fdb.impl.KeySelector if isinstance(db, fdb.impl.Database) else KeySelector
    done: list[Any] = []

    def end() -> Any:
        selector = rng.choice(KEYS), rng.random() < 0.5, rng.randint(-3, 4)
        done.append(selector)
        return kind(*selector)

    stored = db.create_transaction()
    stored.clear_range(b"", b"\xff")
    chance = rng.choice([0.15, 0.3, 0.6])
    for key in KEYS:
        if rng.random() < chance:
            stored[key] = rng.choice([b"", b"x" * 3000])
            done.append(key)
    stored.commit().wait()
    tr, other = db.create_transaction(), db.create_transaction()
    tr.get_read_version().wait()
    for _ in range(rng.choice([0, 0, 1, 2])):
        name, key = rng.choice(["set", "clear", "add"]), rng.choice(KEYS)
        getattr(tr, name)(*((key,) if name == "clear" else (key, b"\x01")))
        done.append((name, key))
    if rng.random() < 0.2:
        keys = [bytes(tr.get_key(end()).value)]
    else:
        ends = [
            end() if rng.random() < 0.6 else rng.choice([b"", *KEYS, b"\xff"]) for _ in range(2)
        ]
        arguments = rng.choice([0, 1, 1, 2, 3]), rng.random() < 0.5
        keys = [row.key for row in tr.get_range(*ends, *arguments).to_list()]
        done += ["range", ([each for each in ends if isinstance(each, bytes)], arguments)]
    written = rng.choice([b"", b"0", *KEYS, b"bb", b"dd", b"z"])
    done.append(written)
    other.add_write_conflict_key(written)
    other.commit().wait()
    tr.add_write_conflict_key(b"unrelated")
    try:
        tr.commit().wait()
    except fdbqueue.error_classes() as error:
        if error.code != 1020:
            raise
        return done, keys, True
    return done, keys, False
