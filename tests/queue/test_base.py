"""What all queues have in common: how they show themselves."""

from __future__ import annotations

from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue, Queue, TaskQueue, aio


@pytest.mark.parametrize("kind", [PriorityQueue, Queue, TaskQueue])
def test_a_queue_shows_its_kind_and_its_name_or_subspace(db: Any, name: str, kind: Any) -> None:
    space = Subspace(rawPrefix=b"space")
    assert repr(kind.named(db, name)) == f"<{kind.__name__} {name!r}>"
    assert repr(kind(space)) == f"<{kind.__name__} Subspace(rawPrefix=b'space')>"
    of_aio = getattr(aio, kind.__name__)
    assert repr(of_aio(kind.named(db, name))) == f"<aio.{kind.__name__} {name!r}>"


def test_items_tasks_and_claims_show_no_keys_and_no_tokens(db: Any, space: Subspace) -> None:
    jobs, tasks = PriorityQueue(space["jobs"]), TaskQueue(space["tasks"])
    item = jobs.push(db, "send", 1)
    assert repr(item) == f"Item(value='send', priority=1, id='{item.id}')"
    claim = jobs.claim(db)
    assert repr(claim) == f"Claim(items=({item!r},), attempts=(1,))"
    tasks.push(db)
    assert "key" not in repr(tasks.pop(db))


def test_the_library_shows_its_public_names_and_no_modules() -> None:
    assert dir(fdbqueue) == sorted(fdbqueue.__all__)
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        fdbqueue.nothing_of_the_kind
