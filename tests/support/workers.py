"""Workers in threads, and workers that behave as if they had run other jobs before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fdbqueue import FDBError, Worker
from fdbqueue.testing import FaultyDatabase
from tests.support.waiting import MAX_WAIT


def make_quick(worker: Worker, n: int = 1000, seconds: float = 1e-4) -> None:
    """Let a worker claim ahead, as if it had run `n` quick jobs."""
    pace = worker._pool.pace
    pace.seconds, pace.n_timed = seconds, n


@contextmanager
def running(
    *workers: Worker, on_end: Callable[[], object] = lambda: None, **options: Any
) -> Iterator[None]:
    """Run workers in threads; at the end stop them, call `on_end`, and wait for the threads."""
    threads = [
        threading.Thread(target=worker.run, kwargs=options, daemon=True) for worker in workers
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()
        on_end()
        for thread in threads:
            thread.join(MAX_WAIT)
            assert not thread.is_alive(), "a worker does not end"


class Cut(FaultyDatabase):
    """A database that does not answer the next `left` transactions."""

    left = 0.0

    def create_transaction(self) -> Any:
        if self.left > 0:
            self.left -= 1
            raise FDBError(1031)
        return super().create_transaction()
