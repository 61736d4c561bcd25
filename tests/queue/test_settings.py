"""`configure` changes the stored options that it is given, all in one transaction."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import fdbqueue
from fdbqueue import PriorityQueue


def test_several_options_change_in_one_transaction(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name, max_size=5)

    @fdbqueue.transactional
    def change(tr: Any) -> None:
        queue.configure(tr, max_size=None, max_attempts=3, concurrency=2, paused=True)

    change(db)
    options = queue.options(db)
    changed = (options.max_size, options.max_attempts, options.concurrency, options.paused)
    assert changed == (None, 3, 2, True)


def test_options_that_are_not_given_stay(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name, max_size=5, keep=(timedelta(days=1), 10))
    queue.configure(db, keep_number=20)
    queue.configure(db)
    options = queue.options(db)
    assert (options.max_size, options.keep_seconds, options.keep_number) == (5, 86_400, 20)
    queue.configure(db, keep_seconds=None)
    assert queue.options(db).keep_seconds is None
    assert queue.options(db).keep_number == 20


def test_a_queue_that_keeps_nothing_any_more_forgets_its_done_items(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name, keep=10)
    item = queue.push(db, "job")
    queue.ack(db, queue.claim(db))
    assert queue.state(db, item) == "done"
    queue.configure(db, keep_number=None)
    queue.configure(db, keep=None)  # a second time, before anybody has deleted the done item
    assert not queue.options(db).keeps_done
    queue.claim(db)
    queue.claim(db)  # which trims, because the claim before it has read the options
    assert queue.state(db, item) is None
