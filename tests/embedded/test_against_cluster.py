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
from tests.embedded.programs import Program, outcomes, program, shortened
from tests.support.cluster import Cluster

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
                pytest.fail(f"program {seed}:\n{_difference(embedded, real, space, steps)}")


def test_both_engines_compute_the_same_transaction_size(real: Any, space: Subspace) -> None:
    """Each kind of operation is compared alone, as own writes divide a range that is read."""
    operations: Program = [
        (0, "set", b"a", b"value"),
        (0, "add", b"bb", b"\x01"),
        (0, "clear", b"c"),
        (0, "clear_range", b"a", b"c"),
        (0, "stamped_key", b"s"),
        (0, "stamped_value", b"bb"),
        (0, "get", False, b"a"),
        (0, "get", True, b"a"),
        (0, "get_range", False, b"a", b"d", 0, False, -1),
        (0, "add_read_conflict_key", b"a"),
        (0, "add_write_conflict_range", b"a", b"dd"),
        (0, "option", "next_write_no_write_conflict_range"),
    ]
    with fdbqueue.open("memory:") as embedded:
        for operation in operations:
            steps = [operation, (0, "set", b"f", b""), (0, "get_approximate_size")]
            assert outcomes(embedded, space, steps) == outcomes(real, space, steps), operation


def _difference(embedded: Any, real: Any, space: Subspace, steps: Program) -> str:
    """Return the shortest program that shows a difference, with both outcomes."""

    def differs(steps: Program) -> bool:
        return outcomes(embedded, space, steps) != outcomes(real, space, steps)

    steps = shortened(steps, differs)
    lines = []
    for step, embedded_outcome, real_outcome in zip(
        [*steps, "at the end"], outcomes(embedded, space, steps), outcomes(real, space, steps)
    ):
        lines.append(f"{step}: {real_outcome}")
        if embedded_outcome != real_outcome:
            lines.append(f"    but the embedded engine: {embedded_outcome}")
    return "\n".join(lines)
