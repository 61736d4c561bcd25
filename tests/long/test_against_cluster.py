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
from tests.long.programs import outcomes, program, shortened
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
                steps = shortened(
                    steps,
                    lambda few: outcomes(embedded, space, few) != outcomes(real, space, few),
                )
                both = outcomes(embedded, space, steps), outcomes(real, space, steps)
                pytest.fail(f"program {seed}: {steps} has the outcomes {both}")
