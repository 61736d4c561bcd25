"""One queue, used concurrently by the threads of several processes through a faulty database.

Each thread pushes its own values and pops any values. At the end it pops until the queue is empty.
So every pushed value must have been popped exactly once.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, TypeVar

import fdb
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue.database.opening import API_VERSION
from fdbqueue.testing import FaultyDatabase, FaultyTransaction
from tests.support.separate import separate_processes

PROCESSES = THREADS = 4
PRIORITIES = 5

_T = TypeVar("_T")


SIZES = (1, 1, 2, 5, 20)
"""The maximum number of values per call."""


class TroubledDatabase(FaultyDatabase):
    """A faulty database that records the error codes of its transactions.

    After a transaction of a thread timed out (1031), its next one has no timeout. So `run_once` can
    always find out whether the commit took effect, and every value is accounted for.
    """

    def __init__(self, db: Any, *, time_out: int = 0, **faults: Any) -> None:
        super().__init__(db, **faults)
        self._time_out = time_out  # milliseconds; 0 disables it
        self._thread = threading.local()
        self.codes: list[int] = []

    def create_transaction(self) -> TroubledTransaction:
        may_time_out = not getattr(self._thread, "timed_out", False)
        self._thread.timed_out = False
        transaction = TroubledTransaction(self, self.db.create_transaction(), may_time_out)
        if may_time_out and self._time_out:
            transaction.options.set_timeout(self._time_out)
        return transaction

    def commit(self, transaction: FaultyTransaction) -> None:
        try:
            super().commit(transaction)
        except fdbqueue.FDBError as error:
            if error.code == 1031 and not transaction.may_time_out:
                raise fdbqueue.FDBError(1021) from None
            raise

    def note(self, code: int) -> None:
        self.codes.append(code)
        self._thread.timed_out = code == 1031


class TroubledTransaction(FaultyTransaction):
    """A transaction of a troubled database."""

    def __init__(self, db: TroubledDatabase, wrapped: Any, may_time_out: bool) -> None:
        super().__init__(db, wrapped)
        self.may_time_out = may_time_out

    def on_error(self, error: Any) -> Any:
        self._db.note(error if isinstance(error, int) else error.code)
        return super().on_error(error)


def injected(url: str, seed: int) -> TroubledDatabase:
    """Open a database with the seeded faults of `fdbqueue.testing`."""
    return TroubledDatabase(
        fdbqueue.open(url),
        before=0.05,
        after=0.05,
        lost_as=(1021, 1031, 1039),
        conflict=0.05,
        too_old=0.01,
        seed=seed,
    )


def buggified(url: str, _: int) -> TroubledDatabase:
    """Open a cluster with the faults of FoundationDB's client, which cannot be seeded.

    Reads fail with 1007 and 1009, read versions with 1078, commits with 1007, 1020 and 1042, and
    with 1021 after they took effect. A timeout can also occur by itself: the client gets 1031, and
    the commit takes effect up to five seconds later.

    Source: FoundationDB documentation, "Client Testing".
    """
    fdb.api_version(API_VERSION)
    fdb.options.set_client_buggify_enable()
    fdb.options.set_client_buggify_section_activated_probability(100)  # percent
    fdb.options.set_client_buggify_section_fired_probability(5)
    return TroubledDatabase(fdbqueue.open(url), time_out=60_000)


@dataclass(frozen=True)
class Outcome:
    """The values that the processes pushed and popped, and their errors."""

    processes: int
    pushed: Counter[str]
    popped: Counter[str]
    errors: Counter[int]
    """The number of errors by code."""

    @property
    def lost(self) -> Counter[str]:
        return self.pushed - self.popped

    @property
    def doubled(self) -> Counter[str]:
        return self.popped - self.pushed


@dataclass(frozen=True)
class Work:
    """The work that the processes share."""

    open: Callable[[str, int], TroubledDatabase]
    url: str
    space: bytes
    values: int

    def run(self, rng: random.Random, meanwhile: Callable[[], object]) -> Outcome:
        """Run the processes; call `meanwhile` from time to time until they end."""
        context = separate_processes()
        all_are_there = context.Barrier(PROCESSES, timeout=60)
        seeds = [rng.randrange(2**32) for _ in range(PROCESSES)]
        with ProcessPoolExecutor(PROCESSES, context, all_are_there.wait) as pool:
            futures = [pool.submit(self._process, *each) for each in enumerate(seeds)]
            while wait(futures, timeout=0.5).not_done:
                meanwhile()
        processes, *lists = zip(*(future.result() for future in futures))
        outcome = Outcome(len(set(processes)), *(Counter(chain(*each)) for each in lists))
        print(f"{outcome.lost.total()} lost, {outcome.doubled.total()} doubled, {outcome.errors}")
        return outcome

    def _process(self, number: int, seed: int) -> tuple[int, list[str], list[str], list[int]]:
        """Run one process; return its id, the values pushed and popped, and the errors."""
        db = self.open(self.url, seed)
        count = self.values // (PROCESSES * THREADS)
        own = [[f"{number} {thread} {n}" for n in range(count)] for thread in range(THREADS)]
        draws = [random.Random(f"{seed} {thread}") for thread in range(THREADS)]
        with ThreadPoolExecutor(THREADS) as threads:
            popped = threads.map(self._thread, repeat(db), own, draws)
        return os.getpid(), [*chain(*own)], [*chain(*popped)], db.codes

    def _thread(self, db: TroubledDatabase, values: list[str], draw: random.Random) -> list[str]:
        queue = fdbqueue.PriorityQueue(Subspace(rawPrefix=self.space))
        popped: list[str] = []
        done = 0
        while done < len(values):
            n = draw.choice(SIZES)
            if draw.random() < 0.5:
                some = values[done : done + n]
                retry_timeouts(queue.push_many, db, some, draw.randrange(PRIORITIES))
                done += n
            elif n == 1:
                item = retry_timeouts(queue.pop, db)
                popped += [item.value] if item else []
            else:
                items = retry_timeouts(queue.pop_many, db, n, max=draw.random() < 0.3)
                popped += [item.value for item in items]
        while items := retry_timeouts(queue.pop_many, db, SIZES[-1]):
            popped += [item.value for item in items]
        return popped


def retry_timeouts(call: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
    """Retry a call after a timeout, which had no effect, as `run_once` promises."""
    while True:
        try:
            return call(*arguments, **options)
        except fdbqueue.error_classes() as error:
            if error.code != 1031:
                raise
