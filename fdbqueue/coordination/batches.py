"""Perform the pushes or acknowledgements of several threads in one transaction."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from fdb.subspace_impl import Subspace

from fdbqueue.coordination.combiner import Batch
from fdbqueue.database.clock import milliseconds
from fdbqueue.database.exactly_once import run_once
from fdbqueue.database.retrying import run
from fdbqueue.types import Database, Transaction

_Request = TypeVar("_Request")
_Result = TypeVar("_Result")

MAX_ITEMS = 200
"""The maximum number of items that one shared transaction takes or acknowledges."""


class Batches(Generic[_Request, _Result]):
    """The performer of pushes or acknowledgements: one transaction per batch, exactly once.

    Args:
        do: `do(tr, now=now, requests=requests)` performs requests in a transaction and returns
            their results.
        receipts: The subspace of the queue's receipts.
        db: The database.
    """

    def __init__(self, do: Callable[..., list[_Result]], receipts: Subspace, db: Database) -> None:
        self._do = do
        self._reads_take_time = not getattr(db, "commits_are_certain", False)
        # Where commits are certain, `run_once` does no more than `run`.
        self._run: Callable[[Database, Callable[[Transaction], list[_Result]]], list[_Result]] = (
            partial(run_once, receipts=receipts) if self._reads_take_time else run
        )
        self._expected = 1

    def perform(self, db: Database, batch: Batch[_Request]) -> list[_Result]:
        """Perform the requests of a batch, and those that join it in time."""
        now = milliseconds()
        if not batch.is_open:
            return self._run(db, partial(self._do, now=now, requests=batch))

        results = self._run(db, partial(self.perform_in, now=now, batch=batch))
        self._expected = len(results)
        return results

    def perform_in(self, tr: Transaction, now: int, batch: Batch[_Request]) -> list[_Result]:
        """Perform the requests of a batch that others can join, in a transaction."""
        self.join(tr, batch)
        return self._do(tr, now=now, requests=batch)

    def join(self, tr: Transaction, batch: Batch[_Request]) -> None:
        """Add the requests that have arrived, before the transaction does anything."""
        if self._expected > 1 and self._reads_take_time:
            tr.get_read_version().wait()  # meanwhile other threads can join the batch
        batch.join()
