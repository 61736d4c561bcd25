"""An app whose jobs go to a queue of the test."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue.jobs import App


@pytest.fixture
def app(db: Any) -> App:
    """Return an app on the database of the test."""
    return App(db)
