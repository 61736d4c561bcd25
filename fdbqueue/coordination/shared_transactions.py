"""One transaction for the pushes, pops or acknowledgements of several threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from fdb.subspace_impl import Subspace

from fdbqueue.coordination.combiner import Batch
from fdbqueue.database.binding import engine_of
from fdbqueue.database.clock import milliseconds
from fdbqueue.database.exactly_once import run_once
from fdbqueue.database.retrying import run
from fdbqueue.types import Database, Transaction

_Request = TypeVar("_Request")
_Result = TypeVar("_Result")

MAX_ITEMS = 200
"""The maximum number of items that one shared transaction takes or acknowledges."""


class SharedTransactions(Generic[_Request, _Result]):
    """Performs batches of requests for a `Combiner`: each in one transaction, exactly once.

    Args:
        receipts: The subspace of the queue's receipts.
        do: `do(tr, now=now, requests=requests)` performs requests in a transaction and returns
            the results of all of them or of the first ones.
        db: The database.
        wrote: Returns whether requests with these results wrote anything.
    """

    def __init__(
        self,
        receipts: Subspace,
        do: Callable[..., list[_Result]],
        db: Database,
        wrote: Callable[[list[_Result]], bool] = lambda _: True,
    ) -> None:
        self._do = do
        engine = engine_of(db)
        self._is_remote = engine.is_remote
        # Where commits are certain, `run_once` does no more than `run`.
        self._run: Callable[[Database, Callable[[Transaction], list[_Result]]], list[_Result]] = (
            run if engine.commits_are_certain else partial(run_once, receipts=receipts, wrote=wrote)
        )
        self._expected = 1

    def __call__(self, db: Database, batch: Batch[_Request]) -> list[_Result]:
        """Perform the requests of a batch, and those that join it in time."""
        perform = partial(self._do, now=milliseconds(), requests=batch)
        if batch.line is None:
            return self._run(db, perform)

        def join_and_perform(tr: Transaction) -> list[_Result]:
            if self._is_remote and self._expected > 1:
                tr.get_read_version().wait()  # meanwhile other threads can join the batch
            batch.join()
            return perform(tr)

        results = self._run(db, join_and_perform)
        self._expected = len(results)
        return results
