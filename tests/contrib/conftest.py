"""Django, set up once for a process of the tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
import pytest
from django.conf import settings
from django.test import override_settings

BACKEND = "fdbqueue.contrib.django.FdbqueueBackend"

if not settings.configured:
    settings.configure(
        INSTALLED_APPS=["fdbqueue.contrib.django", "tests.contrib"],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": Path(tempfile.mkdtemp()) / "db",  # closing one in memory has no effect
            }
        },
        TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": {"database": "memory:"}}},
        USE_TZ=True,
    )
    django.setup()


@pytest.fixture
def options(db: Any) -> dict[str, Any]:
    """Return the OPTIONS of the backend, which a test may change before it uses the backend."""
    return {"database": db}


@pytest.fixture
def backend(options: dict[str, Any], name: str) -> Iterator[Any]:
    """Return the default backend, on the database of the test, with two queues of the test."""
    from fdbqueue.contrib.django.api import task_backends

    entry = {"BACKEND": BACKEND, "QUEUES": ["default", name, f"{name}other"], "OPTIONS": options}
    with override_settings(TASKS={"default": entry}):
        yield task_backends["default"]
