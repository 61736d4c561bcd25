"""Looking at thousands of queues takes few transactions, and a read of each."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, islice
from typing import Any

import pytest

from fdbqueue import PriorityQueue, Queue, admin
from fdbqueue.coordination.sans_io import Stop
from fdbqueue.queue import overview
from tests.support.asleep import Asleep
from tests.support.counting import CountingDatabase
from tests.support.keys import push_undecodable
from tests.support.many_queues import make_queues, pages_of
from tests.support.threads import later
from tests.support.waiting import MAX_WAIT

LOOKS: list[Callable[..., Any]] = [admin.queue_names, admin.overview]


def behind(name: str) -> str:
    """Return a name before all queues of a test, but behind most others."""
    return f"{name}!"


@pytest.mark.parametrize("look", LOOKS)
def test_pages_are_parts_of_the_whole(
    db: Any, name: str, look: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queues(db, name, 60, busy={1, 7, 59})
    for renamed, then in ((5, 70), (59, 30)):  # the order is that of names
        admin.rename(db, f"{name}{renamed:06}", f"{name}{then:06}+")
    whole = list(look(db, after=behind(name), limit=60))
    assert len(whole) == 60
    assert whole == sorted(whole)
    monkeypatch.setattr(overview, "_PAGE", 7)
    for limit in (5, 7, 30, 60):
        pages = list(islice(pages_of(look, db, behind(name), limit), 60 // limit))
        assert [len(page) for page in pages] == [limit] * len(pages)
        assert list(chain.from_iterable(pages)) == whole[: limit * len(pages)]
    assert list(look(db, after=f"{name}000003x", limit=1)) == whole[4:5]  # the name of no queue
    counting = CountingDatabase(db)
    look(counting, after=behind(name), limit=60)
    assert (counting.transactions, counting.commits) == (9, 0)  # a page of seven each


def test_a_queue_is_waited_for_until_it_is_there_or_the_client_stops(
    db: Any, name: str, asleep: Asleep
) -> None:
    assert overview.wait_for_queue(db, name, Stop(), 0.01) is None
    asleep.clear()
    stop = Stop()
    with later(lambda: overview.wait_for_queue(db, f"{name}never", stop, 2 * MAX_WAIT)) as stopped:
        assert asleep.wait(MAX_WAIT)
        stop.set()
        assert stopped.result(MAX_WAIT) is None
    asleep.clear()
    with later(lambda: overview.wait_for_queue(db, name, Stop(), 2 * MAX_WAIT)) as found:
        assert asleep.wait(MAX_WAIT)
        Queue.named(db, name).push(db, 1)
        assert type(found.result(MAX_WAIT)) is Queue


@pytest.mark.damaged
def test_a_queue_that_cannot_be_decoded_has_an_error_instead_of_numbers(db: Any, name: str) -> None:
    push_undecodable(db, f"{name}old")
    PriorityQueue.named(db, f"{name}young").push(db, 1)
    old, young = admin.overview(db, after=behind(name), limit=2).values()
    assert old.error is not None
    assert "cannot be read" in old.error
    assert overview.stats_as_json(old) == {"error": old.error}
    assert not old.is_empty
    assert (old.ready, old.total_pushed, young.ready, young.error) == (0, 0, 1, None)
