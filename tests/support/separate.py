"""Processes that inherit nothing from the test."""

from __future__ import annotations

import multiprocessing
import sys
from typing import Any

_PRELOADED = ["fdbqueue.http", "fdbqueue.testing", "fdbqueue.worker.worker", "pytest"]


def separate_processes() -> Any:
    """Return a context of `multiprocessing` whose processes inherit nothing from this one.

    On Linux they are forked from a process that has the library loaded and has done nothing else.
    So they start much faster than with "spawn", which other systems need.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context
