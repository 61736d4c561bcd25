"""Fixtures of the simulations."""

from __future__ import annotations

from typing import Any

import pytest

import fdbqueue

_TRANSACTION = "fdbqueue.embedded.transaction.transaction"


@pytest.fixture(autouse=True)
def _lock_is_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no transaction of the embedded engine keep the lock while other clients run.

    They would wait for it until its time is over, and the outcome would depend on this time.
    """
    monkeypatch.setattr(f"{_TRANSACTION}._STARVED", 10**9)
    monkeypatch.setattr(f"{_TRANSACTION}._SHORT", 0.0)


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
