"""What all queues offer, and how one is opened with the options that are stored with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from fdb.subspace_impl import Subspace

from fdbqueue.coordination.steps import Steps, driven
from fdbqueue.coordination.store import Store
from fdbqueue.database.retrying import read
from fdbqueue.errors import QueueNotFound
from fdbqueue.layout import Layout, decode_options
from fdbqueue.operations.claim import told_error
from fdbqueue.operations.items import State
from fdbqueue.operations.names import find, place
from fdbqueue.operations.options import agreed
from fdbqueue.operations.slots import MOST_SLOTS
from fdbqueue.queue.arguments import (
    checked_bound,
    checked_delay,
    checked_lease,
    checked_number,
    checked_wait,
)
from fdbqueue.types import Claim, DeadLetter, Item, Options, Task

__all__ = ["BaseQueue", "find_stored", "open_stored", "read_stored", "store_of"]

_T = TypeVar("_T", bound=Item | Task)
_Q = TypeVar("_Q", bound="BaseQueue[Any]")


class BaseQueue(Generic[_T]):
    """What all queues offer: each method is one call of what is behind the queue."""

    def __init__(self, store: Store[_T]) -> None:
        checked_bound("max_size", store.given_options.max_size)
        checked_bound("max_attempts", store.given_options.max_attempts)
        self._store = store

    def __repr__(self) -> str:
        layout = self._store.layout
        return f"<{type(self).__name__} {layout.name or layout.subspace!r}>"

    @classmethod
    def existing(cls: type[_Q], db: Any, name: str) -> _Q:
        """The queue of this name, with the options that it has.

        Raises `QueueNotFound` if it was never pushed to, and as `named`.

        >>> import fdbqueue
        >>> fdbqueue.PriorityQueue.existing(fdbqueue.open("memory:"), "nope")
        Traceback (most recent call last):
        fdbqueue.errors.QueueNotFound: there is no queue named 'nope'; ...
        """
        return open_stored(cls, read(db, partial(find_stored, name=name, must_exist=True)))

    @classmethod
    def _kept(cls, stored: Options) -> dict[str, Any]:
        """Return the arguments of a queue that keeps to the options stored with it."""
        raise NotImplementedError

    @property
    def subspace(self) -> Subspace:
        """The subspace of the whole queue."""
        return self._store.layout.subspace

    # Options

    def options(self, tr: Any) -> Options:
        """What the queue is: its kind, codec, priorities and bound.

        Until the first push they are those with which it was opened. Cost: one read.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> fdbqueue.PriorityQueue.named(db, "jobs", max_size=100).options(db)
        Options(kind='priority', codec='json', priorities=<class 'int'>, max_size=100, ...)
        """
        return self._store.options(tr)

    def set_max_size(self, tr: Any, max_size: int | None) -> None:
        """Give the queue another bound, or none; items that are over it stay.

        Items count that wait, are delayed, or are claimed, whenever that was. All clients that have
        the queue open keep to the bound from their next push on. Given a database it takes effect
        exactly once; in a transaction the caller's own retry rules hold. Conflicts with pushes.

        Parameters: `max_size`, from 1, or `None`. Raises `OptionsMismatch`, `ValueError`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs", max_size=1)
        >>> _ = jobs.push(db, "a")
        >>> jobs.set_max_size(db, 2)
        >>> jobs.push(db, "b") is None
        False
        """
        self._store.set_option(tr, "max_size", checked_bound("max_size", max_size))

    def set_max_attempts(self, tr: Any, max_attempts: int | None) -> None:
        """Let items be claimed so often before they are dead letters, from now on.

        As `set_max_size`. Parameters: `max_attempts`, from 1, or `None` for any number of times.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> jobs.set_max_attempts(db, 3)
        >>> jobs.options(db).max_attempts
        3
        """
        self._store.set_option(tr, "max_attempts", checked_bound("max_attempts", max_attempts))

    # Claims

    @driven
    def claim(
        self, tr: Any, *, lease: float = 30, n: int = 1, within: int = 256, wait: float = 0
    ) -> Steps[Claim | None]:
        """Claim the first items for a time: nobody else gets them while the lease lasts.

        Who has done the job calls `ack`, in the transaction that writes what the job did; who
        could not, `nack`; who needs longer, `extend`. When the lease has run out, the items go back
        to their own places, and the claim is over: `LeaseLost` keeps whoever comes late with it
        from committing. The lease is counted in the database's versions, not by clients' clocks.

        Given a database, a lease of which more than a tenth is over when the outcome is known, for
        example because the process was stopped, begins again before the call returns. If the items
        are lost by then, the call claims others; if the database fails then, it raises that error,
        and the items are back after what is left of the lease. A process that is stopped later, or
        a caller whose own transaction is slow, finds out by `extend` or `ack`.

        Conflicts with who takes the same items, nothing else. Given a database it takes effect
        exactly once, and claims the first items as long as that meets no conflict; the more
        conflicts, the further it looks, up to `within`. In a transaction it claims any of them, and
        the caller's own retry rules hold. Cost: reads of what is due, of the options and of
        the items; of each item three keys written, and of each priority one.

        Parameters: `lease`, in seconds, over 0; `n`, how many items at most, from 1; `within`, from
        how many of the first items, from 1; `wait`, how many seconds to wait for an item if there
        is none, `math.inf` for ever, for which it needs a database.

        An item that the codec cannot read is no claim's: it counts as claimed and failed, is tried
        again later, and at last a dead letter.

        Source: Gray and Cheriton, Leases (1989).

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push(db, "send")
        >>> claim = jobs.claim(db, lease=60)
        >>> claim.item.value, claim.attempt, jobs.claim(db)
        ('send', 1, None)
        >>> jobs.ack(db, claim)
        """
        n, within = checked_number(n, "n", 1), checked_number(within, "within", 1)
        lease, wait = checked_lease(lease), checked_wait(tr, wait)
        return (yield from self._store.claim(tr, lease, n, within, wait))

    @driven
    def ack(self, tr: Any, claim: Claim) -> Steps[None]:
        """Be done with the items of a claim: they are gone for good.

        In the transaction that writes what the job did, that and the end of the job are one: it
        takes effect once, however often the job was begun. Conflicts with who takes the items away
        because the lease ran out. Given a database it takes effect exactly once, together with what
        other threads acknowledge at the time; in a transaction the caller's own retry rules hold
        (use `fdbqueue.transactional(receipts=...)`: after an unknown commit result the claim is
        gone). Cost: a read for each item.

        Raises `LeaseLost` if the claim is over; the transaction must not commit then.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push(db, "send")
        >>> claim = jobs.claim(db)
        >>> jobs.ack(db, claim)
        >>> jobs.ack(db, claim)
        Traceback (most recent call last):
        fdbqueue.errors.LeaseLost: the claim of item ... is over: ...
        """
        yield from self._store.ack(tr, claim)

    def nack(
        self,
        tr: Any,
        claim: Claim,
        *,
        delay: float | None = None,
        error: str | BaseException | None = None,
    ) -> None:
        """Give the items of a claim back, because the job failed; they are tried again later.

        After the first failure in one second, after each further one in twice that, up to an hour,
        less a random part of up to a half. What was claimed `max_attempts` times is a dead letter
        instead, with the error. Conflicts, retries and cost as `ack`.

        Parameters: `delay`, in seconds, instead of that; `error`, what went wrong, a text or an
        exception, of which 1,000 characters are kept. Raises `LeaseLost` if the claim is over.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push(db, "send")
        >>> jobs.nack(db, jobs.claim(db), delay=0, error="the line was busy")
        >>> jobs.claim(db).attempt
        2
        """
        self._store.nack(tr, claim, checked_delay(delay), told_error(error))

    def extend(self, tr: Any, claim: Claim, lease: float = 30) -> None:
        """Let the lease of a claim begin anew, and last for so many seconds from now.

        Given a database, it begins once more if a tenth of it is over before the call returns.
        Conflicts, retries and cost as `ack`. Raises `LeaseLost` if the claim is over.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push(db, "send")
        >>> jobs.extend(db, jobs.claim(db, lease=1), lease=60)
        """
        self._store.extend(tr, claim, checked_lease(lease))

    def release(self, tr: Any, claim: Claim) -> None:
        """Give the items of a claim back to their own places, as if nobody had claimed them.

        Conflicts, retries and cost as `ack`. Raises `LeaseLost` if the claim is over.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push(db, "send")
        >>> jobs.release(db, jobs.claim(db))
        >>> jobs.claim(db).attempt
        1
        """
        self._store.release(tr, claim)

    # Dead letters

    def dead_letters(self, tr: Any) -> Iterator[DeadLetter]:
        """The items that failed too often, in the order in which they stood.

        Given a database in pages of 500, each its own transaction.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs", max_attempts=1)
        >>> _ = jobs.push(db, "send")
        >>> jobs.nack(db, jobs.claim(db), error="no such address")
        >>> [(letter.item.value, letter.error) for letter in jobs.dead_letters(db)]
        [('send', 'no such address')]
        """
        return self._store.dead_letters(tr)

    def retry_dead_letter(self, tr: Any, item: _T | str) -> bool:
        """Put a dead letter back to its own place, to be tried anew; false if there is none.

        It has all its attempts again, and does not expire. If it is to be unique, and another item
        has its key meanwhile, it stays a dead letter: false, too. In a queue with a bound it takes
        a place, as a push does. Given a database it takes effect exactly once; in a transaction the
        caller's own retry rules hold.

        Raises `QueueFull` if there is no place for it (it stays a dead letter), `InvalidItemId`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs", max_attempts=1)
        >>> item = jobs.push(db, "send")
        >>> jobs.nack(db, jobs.claim(db))
        >>> jobs.retry_dead_letter(db, item.id), jobs.claim(db).attempt
        (True, 1)
        """
        return self._store.retry_dead_letter(tr, item)

    def drop_dead_letter(self, tr: Any, item: _T | str) -> bool:
        """Drop a dead letter; false if there is none. As `retry_dead_letter`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs", max_attempts=1)
        >>> item = jobs.push(db, "send")
        >>> jobs.nack(db, jobs.claim(db))
        >>> jobs.drop_dead_letter(db, item.id), jobs.drop_dead_letter(db, item.id)
        (True, False)
        """
        return self._store.drop_dead_letter(tr, item)

    # What may be taken

    def pause(self, tr: Any) -> None:
        """Hand out nothing until `resume`: claims and pops find nothing, pushes go on.

        What is claimed stays so. Stored with the queue, for all clients: claims heed it at once,
        pops within a second. Given a database it takes effect exactly once; in a transaction the
        caller's own retry rules hold. Conflicts with pushes and claims.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push(db, "send")
        >>> jobs.pause(db)
        >>> jobs.claim(db), jobs.pop(db), jobs.size(db)
        (None, None, 1)
        >>> jobs.resume(db)
        >>> jobs.pop(db).value
        'send'
        """
        self._store.set_limit(tr, "paused", True)

    def resume(self, tr: Any) -> None:
        """Hand items out again, after `pause`; who waits for one is woken. As `pause`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> jobs.resume(db)
        >>> jobs.options(db).paused
        False
        """
        self._store.set_limit(tr, "paused", False)

    def set_concurrency(self, tr: Any, concurrency: int | None) -> None:
        """Let so many items be claimed at a time at most, in the whole queue, by all workers.

        What is claimed beyond stays so, and what was claimed before there was a limit does not
        count. Never exceeded: each claimed item holds one of as many slots, which its end, or that
        of its lease, frees for others. Given a database it takes effect exactly once; in a
        transaction the caller's own retry rules hold. Conflicts with pushes and claims. A claim
        costs one read of the slots that are held then.

        Parameters: `concurrency`, from 1 to 10,000, or `None` for no limit.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push_many(db, ["a", "b"])
        >>> jobs.set_concurrency(db, 1)
        >>> claim = jobs.claim(db)
        >>> jobs.claim(db) is None
        True
        >>> jobs.ack(db, claim)
        >>> jobs.claim(db).item.value
        'b'
        """
        bound = checked_bound("concurrency", concurrency, MOST_SLOTS)
        self._store.set_limit(tr, "concurrency", bound)

    # Single items

    def state(self, tr: Any, item: _T | str) -> State | None:
        """Where an item is: `"waiting"`, `"delayed"`, `"claimed"` or `"dead"`; `None` if it ended.

        Conflicts with whatever changes the item. Cost: one read, of one that does not wait four.

        Parameters: `item`, an `Item` (of a task queue, a `Task`), or its id. Raises
        `InvalidItemId`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> item = jobs.push(db, "send", delay=60)
        >>> jobs.state(db, item.id)
        'delayed'
        """
        return self._store.state(tr, item)

    def pushed_at(self, item: _T | str) -> datetime | None:
        """When an item was pushed, by the clock of who did; `None` if another client did.

        It is a part of the item's id: nothing is read. Raises `InvalidItemId`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> jobs.pushed_at(jobs.push(db, "a")).tzname()
        'UTC'
        """
        return self._store.codec.pushed_at(item)

    def remove(self, tr: Any, item: _T | str) -> bool:
        """Take one item out of the queue, wherever it stands; false if it is there no more.

        A delayed one too; not one that is claimed, or a dead letter. Given a database it takes
        effect exactly once; in a transaction the caller's own retry rules hold. Conflicts with what
        takes or moves the same item, nothing else. Cost: one read, of a delayed one four.

        Parameters: `tr`, a transaction or a database; `item`, an `Item` or its id. Raises
        `InvalidItemId`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> item = jobs.push(db, "send")
        >>> jobs.remove(db, item.id), jobs.remove(db, item.id)
        (True, False)
        """
        return self._store.remove(tr, item)

    @driven
    def put_back(self, tr: Any, items: Iterable[_T]) -> Steps[None]:
        """Put items that were taken back into their own places, even beyond a bound.

        For whoever popped them and cannot use them after all. Given a database it takes effect
        exactly once, in one transaction for each 1,000,000 bytes; in a transaction the caller's own
        retry rules hold. An item that is back already is not counted twice. Cost: a read for each
        item, and what a push writes.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push_many(db, ["first", "second"])
        >>> jobs.put_back(db, [jobs.pop(db)])
        >>> jobs.pop(db).value
        'first'
        """
        yield from self._store.putting_back(tr, list(items))

    # All items

    @driven
    def wait(self, db: Any, seconds: float) -> Steps[bool]:
        """Sleep until there is an item, and leave it; whether there is one.

        Another client may take it before this one does: `pop(db, wait=...)` waits and takes. This
        is for who must not be interrupted between taking an item and using it, and may be while it
        waits. Cost: one read transaction for each time that it wakes.

        Parameters: `db`, a database; `seconds`, from 0, `math.inf` for ever.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push(db, "send")
        >>> jobs.wait(db, 60)
        True
        """
        return (yield from self._store.wait(db, checked_wait(db, seconds)))

    def size(self, tr: Any) -> int:
        """How many items are in the queue.

        Two reads at once of counters, which pushes and pops change: in a transaction that writes,
        read them by `size(tr.snapshot)` unless it is to conflict with them all.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push_many(db, ["a", "b"])
        >>> jobs.size(db)
        2
        """
        return self._store.size(tr)

    def is_empty(self, tr: Any) -> bool:
        """Whether there is no item, by a look at the items themselves.

        Conflicts with what changes the head of the queue. Cost: one read of one row.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> fdbqueue.PriorityQueue.named(db, "jobs").is_empty(db)
        True
        """
        return self._store.is_empty(tr)

    def throughput(self, tr: Any) -> tuple[int, int]:
        """How many items ever came into the queue, and how many went, since it was cleared.

        The differences between two moments are what was pushed and popped between them.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push_many(db, ["a", "b"]), jobs.pop(db)
        >>> jobs.throughput(db)
        (2, 1)
        """
        return self._store.throughput(tr)

    def clear(self, tr: Any) -> None:
        """Take all items out of the queue; the queue itself stays, with its options.

        Claims and dead letters end too, counters begin at zero, and an import of the same file
        stores its lines anew. Idempotency keys stay for their 24 hours: a request that is repeated
        by mistake is not done again.

        Given a database it takes effect exactly once; in a transaction the caller's own retry
        rules hold. A push that commits before it is cleared, one that commits later is not. Pops
        and other reads that run at the same time conflict with it. Cost: a few
        clears of ranges, whatever the number of items.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push(db, "send")
        >>> jobs.clear(db)
        >>> jobs.is_empty(db)
        True
        """
        self._store.clear(tr)


def store_of(queue: BaseQueue[_T]) -> Store[_T]:
    """Return what is behind a queue, for other parts of the library."""
    return queue._store


class Stored(NamedTuple):
    """A queue as it is stored: without options if it was never pushed to."""

    subspace: Subspace
    options: Options | None
    name: str | None = None


def read_stored(tr: Any, subspace: Subspace, name: str | None = None) -> Stored:
    """Read what is stored of the queue in a subspace."""
    options = tr[Layout(subspace).options].value
    return Stored(subspace, None if options is None else decode_options(options), name)


def find_stored(tr: Any, name: str, must_exist: bool = False) -> Stored:
    """Read what is stored of the queue of a name; raise `QueueNotFound` if it must exist."""
    subspace = find(tr, name) if must_exist else place(tr, name)
    if subspace is None:
        raise QueueNotFound(name)
    return read_stored(tr, subspace, name)


def open_stored(kind: type[_Q], stored: Stored, **given: Any) -> _Q:
    """Return a queue object with the options given, and those stored where they are `None`.

    Raises `OptionsMismatch` for an option that is stored otherwise.
    """
    make: Any = kind
    chosen = {option: value for option, value in given.items() if value is not None}
    if stored.options is not None:
        chosen = {**kind._kept(stored.options), **chosen}
    queue: _Q = make(stored.subspace, **chosen)
    if stored.options is not None:
        agreed(queue._store.given_options, stored.options)
    queue._store.layout.name = stored.name
    return queue
