"""The names in the examples of the methods of queues, and the modules without examples."""

from __future__ import annotations

from typing import Any

import pytest

import fdbqueue

collect_ignore = ["fdbqueue/contrib/django/models.py"]  # only with settings of Django


@pytest.fixture(autouse=True)
def names_in_examples(request: pytest.FixtureRequest, doctest_namespace: dict[str, Any]) -> None:
    """Give an example a new database `db`, and `jobs`, `mail` and `tasks`, a queue of each kind."""
    if request.node.name.startswith("fdbqueue.queue."):
        db = fdbqueue.open("memory:")
        doctest_namespace["fdbqueue"] = fdbqueue
        doctest_namespace["db"] = db
        doctest_namespace["jobs"] = fdbqueue.PriorityQueue.named(db, "jobs")
        doctest_namespace["mail"] = fdbqueue.Queue.named(db, "mail")
        doctest_namespace["tasks"] = fdbqueue.TaskQueue.named(db, "tasks")
