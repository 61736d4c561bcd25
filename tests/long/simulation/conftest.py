"""Fixtures of the simulations."""

from __future__ import annotations

from typing import Any

import pytest

import fdbqueue


@pytest.fixture
def steady(db: Any) -> Any:
    """Return a database that never sleeps."""
    db.options.set_transaction_max_retry_delay(0)
    return db


@pytest.fixture
def memory() -> Any:
    """Return a database in memory that never sleeps."""
    with fdbqueue.open("memory:") as db:
        db.options.set_transaction_max_retry_delay(0)
        yield db
