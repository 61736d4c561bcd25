"""The methods that all queues share, and how a queue is opened with its stored options."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar, overload

from fdb.subspace_impl import Subspace

from fdbqueue.coordination.sans_io import SansIO, Stop, drive, driven, sans_io_of
from fdbqueue.database.binding import check_database, engine_name
from fdbqueue.database.clock import milliseconds, uuids
from fdbqueue.database.exactly_once import run_once
from fdbqueue.database.retrying import read
from fdbqueue.errors import (
    PayloadTooLarge,
    QueueFull,
    UndecodableItem,
    WrongState,
    error_classes,
    error_text,
)
from fdbqueue.layout.items import Filter
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import (
    Header,
    decode_claim_text,
    decode_options,
    encode_claim_text,
)
from fdbqueue.operations.changes import MOVABLE
from fdbqueue.operations.groups.listing import GroupInfo, HeldBy, list_groups
from fdbqueue.operations.items import Moved, NewItem, Tail
from fdbqueue.operations.names import find_existing, location
from fdbqueue.operations.options import reconcile_options
from fdbqueue.queue.arguments import (
    NamesDatabase,
    due_time,
    validate_bound,
    validate_by,
    validate_claim,
    validate_client_name,
    validate_delay,
    validate_filter,
    validate_flag,
    validate_key,
    validate_lease,
    validate_log,
    validate_number,
    validate_report,
    validate_result,
    validate_state,
    validate_wait,
)
from fdbqueue.queue.settings import (
    GroupSettings,
    Settings,
    change_group,
    read_group_settings,
    settings_to_store,
)
from fdbqueue.types import (
    Change,
    Claim,
    Database,
    Duration,
    HistoryWindow,
    Item,
    ItemInfo,
    MatchCount,
    Options,
    Priority,
    Progress,
    QueueStats,
    ReadTransaction,
    ReadTransactor,
    SearchPage,
    State,
    Task,
    Transaction,
    Transactor,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from fdbqueue.coordination.store import Store

__all__ = [
    "MAX_SCAN",
    "BaseQueue",
    "GroupInfo",
    "HeldBy",
    "Stop",
    "change_once",
    "claim_from_text",
    "claim_text",
    "claim_until",
    "each_group",
    "end_cancelled",
    "find_stored",
    "new_items",
    "open_stored",
    "read_stored",
    "store_of",
]

_T = TypeVar("_T", bound=Item | Task)
_Q = TypeVar("_Q", bound="BaseQueue[Any]")
_R = TypeVar("_R")

_Begin: TypeAlias = Callable[[Transaction], Callable[[str], bool]]
"""Begins the changes of one transaction; the result changes an item and returns if it did so."""

_CHANGES = 100  # items that one transaction of `change_all` changes
_MAX_RETURNED = 6_500_000  # bytes for a claim; its items take up to 3,000,000 besides
_TOO_LARGE = 2101

MAX_SCAN = 10_000
"""How many items one call of `search` or `count` looks at, unless the caller gives `scan`."""


class BaseQueue(NamesDatabase, ABC, Generic[_T]):
    """The methods that all queues share."""

    def __init__(self, store: Store[_T]) -> None:
        validate_bound("max_size", store.given_options.max_size)
        validate_bound("max_attempts", store.given_options.max_attempts)
        self._store = store
        self._engine: str | None = None

    def __repr__(self) -> str:
        layout = self._store.layout
        where = "" if self._engine is None else f" on {self._engine}"
        return f"<{type(self).__name__} {layout.name or layout.subspace!r}{where}>"

    @classmethod
    def existing(cls: type[_Q], db: Transactor, name: str) -> _Q:
        """Return the queue of this name with its stored options.

        Args:
            db: A database or a transaction.
            name: The name of a queue, as for `named`.

        Raises:
            QueueNotFound: No queue of this name was ever pushed to.
            InvalidQueueName: A queue cannot have this name.
            OptionsMismatch: The queue is of another kind.
            LayoutVersionMismatch: Another release of this library stored the queue.

        Example:
            >>> import fdbqueue
            >>> fdbqueue.PriorityQueue.existing(fdbqueue.open("memory:"), "nope")
            Traceback (most recent call last):
            fdbqueue.errors.QueueNotFound: there is no queue named 'nope'; ...
        """
        queue: _Q = cls._open(db, partial(find_stored, name=name, must_exist=True))
        return queue

    @classmethod
    def _open(cls, db: Transactor, find: Callable[[Any], Stored], **given: Any) -> Any:
        """Return the queue that `find(tr)` finds, with the given options and the stored others."""
        return open_stored(cls, read(db, find), **given)

    @classmethod
    @abstractmethod
    def _kept(cls, stored: Options) -> dict[str, Any]:
        """Return the constructor arguments that reproduce the stored options."""

    @property
    def subspace(self) -> Subspace:
        """The subspace that holds everything of this queue."""
        return self._store.layout.subspace

    # Options

    def options(self, tr: ReadTransactor) -> Options:
        """Return the kind, codec, priorities and limits of the queue.

        Before the first push these are the options that this queue object was given. Cost: one
        read.

        Args:
            tr: A transaction or a database.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> fdbqueue.PriorityQueue.named(db, "jobs", max_size=100).options(db)
            Options(kind='priority', codec='json', priorities=<class 'int'>, max_size=100, ...)
        """
        return self._store.reads.options(tr)

    def configure(self, tr: Transactor, **settings: Unpack[Settings]) -> None:
        """Change stored options of the queue: those that are given.

        Every client that has the queue open obeys the new options: pushes at once, claims from the
        next one on, pops within a second. Conflicts with pushes, and `concurrency`, `rate` and
        `paused` also with claims.

        Args:
            tr: A transaction or a database.
            settings: Any of these:

                - `max_size`: The maximum number of ready, delayed and claimed items, from 1, or
                  `None` for no limit. Items beyond a lower limit stay in the queue.
                - `max_attempts`: How many times an item may be claimed before it becomes a dead
                  letter, from 1, or `None` for any number of times.
                - `concurrency`: How many items all workers together may have claimed at the same
                  time, from 1 to 10,000, or `None` for no limit. The limit is never exceeded: each
                  claimed item holds a slot until its claim ends. Items that are already claimed
                  beyond the limit stay claimed, and claims made before there was a limit hold no
                  slot. Each claim reads one more counter, and two claims at the same time may
                  conflict when few slots are free.
                - `agent_concurrency`: The same for the tasks of each agent, only for a `TaskQueue`.
                  Tasks without an agent are not limited. A claim skips the tasks of agents at their
                  limit and takes the first ones of the others. It costs one more read for each such
                  agent.
                - `rate`: How many items may be started, which means claimed or popped, in any
                  window of some time, such as `(100, "1m")`; from 1 to 10,000 items; `None` for no
                  limit. Each start is counted, so claims and pops of a queue with a rate conflict
                  with each other.
                - `paused`: `True` to stop handing out items: pops and claims find nothing, pushes
                  go on, and existing claims stay valid. `False` to hand them out again.
                - `keep`: Which acknowledged items stay in the queue as done. A time of at least one
                  second, as a `timedelta` or a text such as `"7d"`, keeps the items that were done
                  within this time. A number of at least 1 keeps that many of the newest items. A
                  tuple of both keeps the items to which both apply. `None` keeps none. `get` and
                  `items(state="done")` show them, and `result` returns what their handlers
                  returned, if the worker stores it. Popped items are not kept. An acknowledgement
                  then writes three more keys for each item, and its payload once more.
                - `keep_seconds`, `keep_number`: One of the two parts of `keep`; the other part
                  stays as it is.
                - `kept_attempts`: How many failed attempts of an item `get` shows until it ends,
                  the last ones, from 1 to 1,000; 10 until it is set.
                - `traceback_bytes`: How many bytes of the traceback of each of them are kept, the
                  last ones, from 0 to 30,000; 8,000 until it is set.

        Raises:
            OptionsMismatch: The stored options differ from those of this queue object.
            TypeError: There is no such option.
            ValueError: A value is out of its range.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
            >>> _ = jobs.push_many(db, ["a", "b"])
            >>> jobs.configure(db, concurrency=1, keep=1000)
            >>> claim = jobs.claim(db)
            >>> jobs.claim(db) is None
            True
            >>> jobs.ack(db, claim)
            >>> jobs.state(db, claim.item)
            'done'
            >>> jobs.configure(db, paused=True)
            >>> jobs.pop(db) is None
            True
        """
        is_task = self._store.given_options.kind == "task"
        self._store.configure(tr, settings_to_store(settings, has_agents=is_task))

    # Claims

    @driven
    def claim(
        self,
        tr: Transactor,
        *,
        lease: Duration = 30,
        n: int = 1,
        within: int = 256,
        wait: Duration = 0,
        client: str | None = None,
    ) -> SansIO[Claim[_T] | None]:
        """Claim the first items for the time of a lease; return `None` if nothing can be claimed.

        No other client receives the items while the lease lasts. Call `ack` when the job is done,
        in the transaction that writes its result. Call `nack` when it failed, and `extend` when it
        needs more time. When the lease expires, the items return to their places, and `LeaseLost`
        keeps the late worker from committing. Leases are measured in the database's versions, not
        by the clocks of clients.

        Given a database, a lease starts again before the call returns if more than a tenth of it
        has passed by then, for example because the process was stopped. If another client has taken
        the items meanwhile, the call claims others. If the database fails at that moment, the call
        raises its error, and the items return when the rest of the lease has passed. `extend` and
        `ack` detect a lease that expired later.

        Conflicts only with clients that take the same items. Given a database, the call takes the
        very first items as long as it meets no conflict, and looks further ahead the more conflicts
        it meets, up to `within` items. In a transaction it picks any of the first `within` items.

        An item that the codec cannot decode is not handed out. It counts as claimed and failed: it
        is retried later, and finally becomes a dead letter.

        Cost: reads of the due items, of the options and of the claimed items; three keys written
        for each item and one for each priority.

        Args:
            tr: A transaction or a database.
            lease: The length of the lease in seconds, over 0.
            n: The maximum number of items, from 1. Fewer are claimed if one transaction has no room
                for their rows.
            within: How many of the first items to choose from, from 1.
            wait: How many seconds to wait for an item, `math.inf` for ever. Needs a database.
            client: The name that `get` shows for the client, printable text of 1 to 255 bytes; by
                default its host and process id.

        Source: Gray and Cheriton, Leases (1989).

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
            >>> _ = jobs.push(db, "send")
            >>> claim = jobs.claim(db, lease=60)
            >>> claim.item.value, claim.attempt, jobs.claim(db)
            ('send', 1, None)
            >>> jobs.ack(db, claim)
        """
        n, within = validate_number(n, "n", 1), validate_number(within, "within", 1)
        lease, wait = validate_lease(lease), validate_wait(tr, wait)
        client = None if client is None else validate_client_name(client)
        return self._store.claim(tr, lease, n, within, wait, client)

    @driven
    def ack(
        self,
        tr: Transactor,
        claim: Claim,
        *,
        result: Any = None,
        discarded: str | None = None,
        log: str = "",
    ) -> SansIO[None]:
        """Acknowledge a claim: its jobs are done, and its items are removed for good.

        In a queue that keeps done items (`configure(db, keep=...)`), they stay as done, and
        `result` is stored with each.

        Call it in the transaction that writes the result of the job: then the result and the end of
        the job are committed together or not at all, however often the job was started. In a
        transaction with an unknown commit result, the retry finds that the claim has ended; use
        `fdbqueue.transactional(receipts=...)` there. Given a database, the call shares transactions
        with the acknowledgements of other threads.

        Conflicts with the sweep that takes the items back when the lease has expired. Cost: one
        read for each item.

        Args:
            tr: A transaction or a database.
            claim: A claim that `claim` returned.
            result: A JSON value of up to 90,000 bytes, or `None`. It is stored for each item of the
                claim, together with the log, with up to 6,500,000 bytes in all.
            discarded: Why the jobs were given up instead of done, as text: a queue that keeps done
                items keeps it with each, and their `ItemInfo.outcome` is `"discarded"`.
            log: Lines to keep with each done item, as text; its last 8,000 bytes are kept.

        Raises:
            LeaseLost: The claim has ended. The transaction must not commit.
            ForeignClaim: The claim is one of another queue.
            InvalidValue: `result` is not a JSON value.
            PayloadTooLarge: `result` is too large.

        Example:
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
        claim, returned, log = validate_claim(claim), validate_result(result), validate_log(log)
        size = 0 if returned is None else len(claim) * (len(returned) + len(log.encode()))
        if size > _MAX_RETURNED:
            raise PayloadTooLarge(size, _MAX_RETURNED, "a claim")
        return self._store.ack(tr, claim, returned, error_text(discarded), log)

    @driven
    def result(self, tr: Transactor, item: _T | str, *, wait: Duration = 0) -> SansIO[Any]:
        """Return what the handler of a done item returned, or what `ack` was given; wait for it.

        A `Worker` with `store_results` stores it, if the queue keeps done items
        (`configure(db, keep=...)`). Returns `None` for a done item without a result. The call wakes
        as soon as the item is done or becomes a dead letter, and looks every 25 seconds in any
        case. In a transaction it conflicts with every change of the item.

        Args:
            tr: A transaction or a database.
            item: An `Item` (in a task queue, a `Task`), or its id.
            wait: How many seconds to wait, `math.inf` for ever. Needs a database.

        Raises:
            NoResult: The item is not done in time, it is a dead letter, or the queue does not know
                it, for example because it is not kept any more.
            InvalidItemId: The text is not an item id.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs", keep=1000)
            >>> item = jobs.push(db, 20)
            >>> def double(item):
            ...     return 2 * item.value
            >>> _ = fdbqueue.Worker(db, jobs, double, store_results=True).run(drain=True)
            >>> jobs.result(db, item)
            40
        """
        return self._store.result(tr, item, validate_wait(tr, wait))

    def nack(
        self,
        tr: Transactor,
        claim: Claim,
        *,
        delay: Duration | None = None,
        error: str | BaseException | None = None,
        dead: bool = False,
        log: str = "",
    ) -> None:
        """Report that a claimed job failed: its items are retried after a delay.

        The delay is one second after the first failure and doubles with each further one, up to an
        hour; a random part of up to one half is subtracted. An item that was claimed `max_attempts`
        times becomes a dead letter with the error instead. Conflicts and cost are those of `ack`.

        Args:
            tr: A transaction or a database.
            claim: A claim that `claim` returned.
            delay: Seconds until the next attempt, instead of the computed delay.
            error: What went wrong, as text or as an exception. Its first 1,000 characters are kept,
                and the end of the traceback of an exception (see `configure`).
            dead: Whether to make the items dead letters now, however often they were claimed.
            log: Lines to keep with the attempt, as text; its last 8,000 bytes are kept.

        Raises:
            LeaseLost: The claim has ended. The transaction must not commit.
            ForeignClaim: The claim is one of another queue.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
            >>> _ = jobs.push(db, "send")
            >>> jobs.nack(db, jobs.claim(db), delay=0, error="the line was busy")
            >>> jobs.claim(db).attempt
            2
        """
        claim, log = validate_claim(claim), validate_log(log)
        dead = validate_flag("dead", dead)
        self._store.nack(tr, claim, validate_delay(delay), error, dead, log)

    def extend(
        self,
        tr: Transactor,
        claim: Claim,
        lease: Duration = 30,
        *,
        progress: Progress | None = None,
        log: str = "",
    ) -> None:
        """Restart the lease of a claim: it lasts for `lease` seconds from now.

        Given a database, the lease starts once more if a tenth of it has passed before the call
        returns. Conflicts and cost are those of `ack`.

        With `progress` or `log`, the call also reports on the work; `get` and `search` return the
        report until the claim ends. If the lease runs out, the log is kept with the attempt.

        Args:
            tr: A transaction or a database.
            claim: A claim that `claim` returned.
            lease: The length of the new lease in seconds, over 0.
            progress: How far the work is. Without `progress` and `log`, the report stays as it was.
            log: All lines that were logged so far, as text; its last 8,000 bytes are kept.

        Raises:
            LeaseLost: The claim has ended. The transaction must not commit.
            ForeignClaim: The claim is one of another queue.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
            >>> _ = jobs.push(db, "send")
            >>> claim = jobs.claim(db, lease=1)
            >>> jobs.extend(db, claim, lease=60, progress=fdbqueue.types.Progress(0.4, "page 4"))
            >>> jobs.get(db, claim.item).progress.message
            'page 4'
        """
        report = validate_report(progress, log, milliseconds())
        self._store.extend(tr, (validate_claim(claim), report), validate_lease(lease))

    @overload
    def release(self, tr: Transactor, claim: Claim, *, delay: Duration | None = None) -> None: ...

    @overload
    def release(self, tr: Transactor, claim: _T | str) -> bool: ...

    def release(
        self, tr: Transactor, claim: Claim | _T | str, *, delay: Duration | None = None
    ) -> bool | None:
        """Return the items of a claim to their places, as if they had never been claimed.

        The attempt does not count. Given an item or its id, the call takes the item away from the
        client that has claimed it, whose `ack` then raises `LeaseLost`. It returns false if the
        item is not claimed. Conflicts and cost are those of `ack`.

        Args:
            tr: A transaction or a database.
            claim: A claim that `claim` returned; or an item, or its id.
            delay: Seconds until the items of a claim are ready again; by default at once.

        Raises:
            LeaseLost: The claim has ended. The transaction must not commit.
            ForeignClaim: The claim is one of another queue.
            InvalidItemId: The text is not an item id.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
            >>> item = jobs.push(db, "send")
            >>> jobs.release(db, jobs.claim(db))
            >>> jobs.claim(db).attempt
            1
            >>> jobs.release(db, item.id), jobs.release(db, item.id)
            (True, False)
        """
        if isinstance(claim, (str, Item, Task)):
            if delay is not None:
                raise TypeError("only the items of a claim are released with a delay")
            return self._store.take_back(tr, claim)
        self._store.release(tr, validate_claim(claim), validate_delay(delay))
        return None

    def change_all(
        self,
        db: Database,
        change: Change,
        *,
        state: State,
        priority: Priority | None = None,
        agent: str | None = None,
        id: str | None = None,
        error: str | None = None,
        client: str | None = None,
        job: str | None = None,
        group: str | None = None,
        limit: int = 0,
        to: Priority | None = None,
        by: str | None = None,
    ) -> dict[str, bool]:
        """Make the same change of all items in a state; return by id whether each was changed.

        With `priority`, `agent`, `id`, `error`, `client`, `job` and `group`, only the items that
        match are changed, as `search` finds them.

        Each transaction changes up to 100 items, and takes effect exactly once. Items that come
        into the state meanwhile may be changed or not. An item is not changed if it has left the
        state meanwhile, if it cannot be retried (see `retry`), or if an item to
        reprioritize has the priority `to` already, or cannot be decoded.

        Cost: reads of the items page by page, and for each item those of the single change. If the
        items are too large for one transaction, it changes fewer of them.

        Args:
            db: A database.
            change: `"remove"` for items in any state but claimed, `"retry"` for dead letters and
                delayed items, `"release"` for claimed ones, `"cancel"` for ready, delayed and
                claimed ones, or `"reprioritize"` for ready, delayed or dead ones of a priority or
                task queue; those keep their order.
            state: The state of the items.
            priority: Only the items of this priority; not for a FIFO queue.
            agent: Only tasks whose agent's name contains this text, ignoring case.
            id: Only items whose id contains this text.
            error: Only items whose last failed attempt has an error that contains this text,
                ignoring case; for any state but done.
            client: Only items that are claimed by a client whose name contains this text, ignoring
                case.
            job: Only items whose value is a job of this name, or of one that ends with it behind a
                dot: `send` finds `shop.send`.
            group: Only items of this group (in a task queue, of this agent); an empty string for
                the items without one. They are found without looking at others, except for done
                items and for tasks that are not ready.
            limit: The maximum number of items, 0 for all.
            to: The new priority, for `"reprioritize"`.
            by: The name of the client that retries dead letters, as for `retry`.

        Raises:
            ValueError: The change is not one of items in this state, or of this queue, or such
                items do not have what a filter names.
            InvalidPriority: `priority` or `to` is not of the queue's type (in a task queue,
                `InvalidTask`).

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
            >>> _ = jobs.push_many(db, ["a", "b", "c"], delay=3600)
            >>> sum(jobs.change_all(db, "retry", state="delayed").values()), jobs.size(db)
            (3, 3)
        """
        store = self._store
        changes: dict[str, tuple[_Begin, tuple[State, ...]]] = {
            "remove": (
                _each(partial(store.remove, state=state)),
                ("ready", "delayed", "dead", "done"),
            ),
            "retry": (
                _each(partial(store.retry, state=state, by=validate_by(by))),
                ("delayed", "dead"),
            ),
            "release": (_each(store.take_back), ("claimed",)),
            "cancel": (_each(store.cancel), ("ready", "delayed", "claimed")),
        }
        if (change == "reprioritize") != (to is not None):
            raise ValueError("`to` is the new priority, for 'reprioritize' alone")
        if to is not None:
            changes["reprioritize"] = (partial(_begin_moves, store, self._move_to(to)), MOVABLE)
        if change not in changes or validate_state(state) not in changes[change][1]:
            raise ValueError(f"{change!r} is not a change of {state} items")
        wanted = self._wanted(db, state, Filter(priority, agent, id, error, client, job, group))
        begin = changes[change][0]
        return _change_matching(store, db, begin, state, wanted, validate_number(limit, "limit"))

    def search(
        self,
        db: Database,
        *,
        state: State,
        priority: Priority | None = None,
        agent: str | None = None,
        id: str | None = None,
        error: str | None = None,
        client: str | None = None,
        job: str | None = None,
        group: str | None = None,
        limit: int = 100,
        after: _T | str | None = None,
        reverse: bool = False,
        scan: int = MAX_SCAN,
    ) -> SearchPage:
        """Return a page of the items in a state that match all filters, in order.

        The call looks at up to `scan` items. So the page may have fewer items than `limit`, or
        none, although more items match: call again with the `next` of the page as `after`, until
        `next` is `None`. Every 500 items are read in a separate transaction.

        Cost: one read for each 500 items, and up to four for each item that matches. `error` reads
        the last failed attempt of each item that is not dead, `client` the lease of each item,
        `job` the pieces of each value over 10,000 bytes. The priority of a priority queue is found
        without looking at other items, except for done ones.

        Args:
            db: A database.
            state: `"ready"`, `"delayed"`, `"claimed"`, `"dead"` or `"done"`.
            priority: Only the items of this priority; not for a FIFO queue.
            agent: Only tasks whose agent's name contains this text, ignoring case.
            id: Only items whose id contains this text.
            error: Only items whose last failed attempt has an error that contains this text,
                ignoring case; for any state but done.
            client: Only items that are claimed by a client whose name contains this text, ignoring
                case.
            job: Only items whose value is a job of this name, or of one that ends with it behind a
                dot: `send` finds `shop.send`.
            group: Only items of this group (in a task queue, of this agent); an empty string for
                the items without one. They are found without looking at others, except for done
                items and for tasks that are not ready.
            limit: The maximum number of items in the page, from 1.
            after: An item or the id of one: only the items behind it.
            reverse: Search in the opposite order.
            scan: The maximum number of items to look at, from 1.

        Raises:
            ValueError: Items of this queue, in this state, do not have what a filter names.
            InvalidItemId: `after` is not the id of an item.
            InvalidPriority: The priority is not of the queue's type (in a task queue,
                `InvalidTask`).

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs", max_attempts=1)
            >>> for error in ("no such address", "Timeout", "timeout"):
            ...     _ = jobs.push(db, error)
            ...     jobs.nack(db, jobs.claim(db), error=error)
            >>> page = jobs.search(db, state="dead", error="timeout", scan=2)
            >>> [info.error for info in page.items], page.scanned
            (['Timeout'], 2)
            >>> page = jobs.search(db, state="dead", error="timeout", after=page.next)
            >>> [info.error for info in page.items], page.next
            (['timeout'], None)
        """
        wanted = self._wanted(db, state, Filter(priority, agent, id, error, client, job, group))
        limit, scan = validate_number(limit, "limit", 1), validate_number(scan, "scan", 1)
        return self._store.reads.search(db, state, wanted, limit, after, reverse, scan)

    def count(
        self,
        db: Database,
        *,
        state: State,
        priority: Priority | None = None,
        agent: str | None = None,
        id: str | None = None,
        error: str | None = None,
        client: str | None = None,
        job: str | None = None,
        group: str | None = None,
        after: _T | str | None = None,
        scan: int = MAX_SCAN,
    ) -> MatchCount:
        """Return how many items in a state match all filters, among up to `scan` items.

        Like `search`, the call looks at up to `scan` items, and `next` is the `after` of the call
        that counts the items behind them. `stats` has the number of all items in a state.

        Cost: that of `search`, without that of the items that match.

        Args:
            db: A database.
            state: `"ready"`, `"delayed"`, `"claimed"`, `"dead"` or `"done"`.
            priority: Only the items of this priority; not for a FIFO queue.
            agent: Only tasks whose agent's name contains this text, ignoring case.
            id: Only items whose id contains this text.
            error: Only items whose last failed attempt has an error that contains this text,
                ignoring case; for any state but done.
            client: Only items that are claimed by a client whose name contains this text, ignoring
                case.
            job: Only items whose value is a job of this name, or of one that ends with it behind a
                dot: `send` finds `shop.send`.
            group: Only items of this group (in a task queue, of this agent); an empty string for
                the items without one. They are found without looking at others, except for done
                items and for tasks that are not ready.
            after: An item or the id of one: only the items behind it.
            scan: The maximum number of items to look at, from 1.

        Raises:
            ValueError: Items of this queue, in this state, do not have what a filter names.
            InvalidItemId: `after` is not the id of an item.
            InvalidPriority: The priority is not of the queue's type (in a task queue,
                `InvalidTask`).

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> tasks = fdbqueue.TaskQueue.named(db, "tasks")
            >>> for agent in ("ada", "bob", "ada"):
            ...     _ = tasks.push(db, agent_name=agent)
            >>> tasks.count(db, state="ready", agent="ada")
            MatchCount(count=2, next=None, scanned=3)
        """
        wanted = self._wanted(db, state, Filter(priority, agent, id, error, client, job, group))
        scan = validate_number(scan, "scan", 1)
        return self._store.reads.count(db, state, wanted, after, scan)

    def _wanted(self, db: Database, state: State, wanted: Filter) -> Filter:
        """Return what to look for; raise an error unless it fits and a database is given."""
        check_database(db)
        return validate_filter(self._store.given_options.kind, validate_state(state), wanted)

    def _move_to(self, to: Any) -> Callable[[_T], Moved | None]:
        """Return how to move an item to this priority; `None` if it has this one already."""
        raise ValueError("the items of this queue have no priorities")

    # The first items

    @driven
    def pop_many(self, tr: Transactor, n: int, *, wait: Duration = 0) -> SansIO[list[_T]]:
        """Remove and return up to `n` of the first items in order, in one transaction.

        Args:
            tr: A transaction or a database.
            n: The maximum number of items, from 0.
            wait: How many seconds to wait for the first item, as for `PriorityQueue.pop_min`.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> mail = fdbqueue.Queue.named(db, "mail")
            >>> _ = mail.push_many(db, ["a", "b"])
            >>> [item.value for item in mail.pop_many(db, 5)]
            ['a', 'b']
        """
        n, wait = validate_number(n), validate_wait(tr, wait)
        return self._store.pop(tr, n, False, wait)

    def peek_many(self, tr: ReadTransactor, n: int) -> list[_T]:
        """Return the items that `pop_many` would take, without removing them.

        Args:
            tr: A transaction or a database.
            n: The maximum number of items, from 0.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> mail = fdbqueue.Queue.named(db, "mail")
            >>> _ = mail.push_many(db, ["a", "b"])
            >>> [item.value for item in mail.peek_many(db, 5)]
            ['a', 'b']
        """
        return self._store.reads.peek(tr, validate_number(n))

    # Single items

    def state(self, tr: ReadTransactor, item: _T | str) -> State | None:
        """Return the state of an item: `"ready"`, `"delayed"`, `"claimed"`, `"dead"` or `"done"`.

        Returns `None` if the item has left the queue. Given a database, an item whose lease is
        over, or whose time has come, is made ready first, and one that has expired is deleted. In a
        transaction, the state is the stored one. Conflicts with everything that changes the item.
        Cost: one read for a ready item, six or seven for another.

        Args:
            tr: A transaction or a database.
            item: An `Item` (in a task queue, a `Task`), or its id.

        Raises:
            InvalidItemId: The text is not an item id.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
            >>> item = jobs.push(db, "send", delay=60)
            >>> jobs.state(db, item.id)
            'delayed'
        """
        return self._store.reads.state(tr, item)

    def get(self, tr: ReadTransactor, item: _T | str) -> ItemInfo | None:
        """Return everything about an item; `None` if it has left the queue.

        The last failed attempts of an item are kept until it ends, 10 by default (see
        `configure`): when they failed, the client that had claimed the item, the error,
        and the end of the traceback.

        `held_by` says why a ready item is not handed out, and `ahead_in_group` says how many items
        of its group are ahead of it. In a transaction, an item may be delayed although `due_at` has
        come, claimed although `lease_ends` is over, and ready after `expires_at`, until a client
        sweeps.

        Conflicts with everything that changes the item. Cost: three reads for a ready item, six to
        nine for another; two more for a task. For a ready item two more if it has a group, and one
        for each concurrency of the queue; up to two more if something holds it back.

        Args:
            tr: A transaction or a database.
            item: An `Item` (in a task queue, a `Task`), or its id.

        Raises:
            InvalidItemId: The text is not an item id.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
            >>> item = jobs.push(db, "send")
            >>> jobs.nack(db, jobs.claim(db), delay=60, error="the line was busy")
            >>> info = jobs.get(db, item.id)
            >>> info.item.value, info.state, info.attempts, info.error
            ('send', 'delayed', 1, 'the line was busy')
        """
        return self._store.reads.get(tr, item)

    def position(self, tr: ReadTransactor, item: _T | str) -> int | None:
        """Return the number of ready items ahead of this one; `None` if it is not ready.

        Groups are in the order of their names here, because their turns change all the time.
        Given a database, items are counted page by page while other clients push and pop;
        `position(tr.snapshot, ...)` conflicts with nothing. Cost: a scan of the items ahead.

        Args:
            tr: A transaction or a database.
            item: An `Item` (in a task queue, a `Task`), or its id.

        Raises:
            InvalidItemId: The text is not an item id.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
            >>> last, first = jobs.push(db, "b", 5), jobs.push(db, "a", 1)
            >>> jobs.position(db, first), jobs.position(db, last.id)
            (0, 1)
        """
        return self._store.reads.position(tr, item)

    def pushed_at(self, item: _T | str) -> datetime | None:
        """Return the time at which an item was pushed, by the clock of the client that pushed it.

        The time is part of the item's id, so nothing is read. Returns `None` if the item was pushed
        by another implementation of FoundationDB's recipe.

        Args:
            item: An `Item` (in a task queue, a `Task`), or its id.

        Raises:
            InvalidItemId: The text is not an item id.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
            >>> jobs.pushed_at(jobs.push(db, "a")).tzname()
            'UTC'
        """
        return self._store.codec.pushed_at(item)

    def retry(
        self,
        tr: Transactor,
        item: _T | str,
        *,
        state: State | None = None,
        by: str | None = None,
    ) -> bool:
        """Make a dead letter or a delayed item ready at once; return false if it is neither.

        A delayed item keeps the number of its attempts. A dead letter returns to its place in the
        queue with all its attempts again, and no longer expires. Its failed attempts are kept, and
        the last one notes the retry. In a queue with a maximum size it needs a free place, as a
        push does. If another item has taken its unique key meanwhile, it stays a dead letter, and
        the call returns false.

        A delayed item that waits for jobs that are in no queue goes on as if they were cancelled,
        and one that waits for nothing is ready. An item that waits for anything else stays as it
        is.

        Conflicts with clients that take, move or remove the item. Cost: five reads; for an item
        that waits for others, a read of the items of its queue, or of all queues.

        Args:
            tr: A transaction or a database.
            item: An `Item` (in a task queue, a `Task`), or its id.
            state: `"dead"` or `"delayed"` to retry the item only if it is in this state.
            by: The name of the client that retries a dead letter, for `FailedAttempt.retried_by`:
                printable text of up to 255 bytes; `None` for the host and process id.

        Raises:
            QueueFull: The queue has no free place. The item stays a dead letter.
            QueueTooLargeToCheck: To find the jobs that an item waits for took over five seconds.
            InvalidItemId: The text is not an item id.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs", max_attempts=1)
            >>> item = jobs.push(db, "send", delay=3600)
            >>> jobs.retry(db, item)
            True
            >>> jobs.nack(db, jobs.claim(db), error="no such address")
            >>> [(info.item.value, info.error) for info in jobs.items(db, state="dead")]
            [('send', 'no such address')]
            >>> jobs.retry(db, item.id), jobs.claim(db).attempt
            (True, 1)
        """
        state = None if state is None else validate_state(state)
        is_ready = self._store.retry(tr, item, state, validate_by(by))
        return is_ready or (state != "dead" and self._store.end_wait(tr, item))

    def cancel(self, tr: Transactor, item: _T | str) -> bool:
        """Cancel a job: end its item, or tell its worker; return false if it has ended.

        An item that is ready or delayed ends at once. If a client has claimed it, the item ends
        with the claim, however that ends, and is not handed out again. A `Worker` learns of
        it by a watch, and tells the handler (`Context.cancelled`). If the worker dies instead, the
        item ends when the lease is over. A queue that keeps done items keeps it in either case,
        with the `ItemInfo.outcome` `"cancelled"`, its steps and its failed attempts.

        Conflicts only with clients that take, move or end the same item. Cost: that of `remove`,
        and one or two more reads.

        Args:
            tr: A transaction or a database.
            item: An `Item` (in a task queue, a `Task`), or its id.

        Raises:
            InvalidItemId: The text is not an item id.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs", keep=1000)
            >>> item = jobs.push(db, "send")
            >>> claim = jobs.claim(db)
            >>> jobs.cancel(db, item)
            True
            >>> jobs.nack(db, claim, error="it was told to stop")
            >>> jobs.get(db, item).outcome
            'cancelled'
            >>> jobs.cancel(db, item)
            False
        """
        return self._store.cancel(tr, item)

    def remove(self, tr: Transactor, item: _T | str, *, state: State | None = None) -> bool:
        """Remove one item in any state but claimed; return false if it is claimed or unknown.

        A done item is deleted with its result. To remove a claimed item, `release` it first.
        Conflicts only with clients that take or move the same item. Cost: one read for a ready
        item, five for another.

        Args:
            tr: A transaction or a database.
            item: An `Item` (in a task queue, a `Task`), or its id.
            state: A state, to remove the item only if it is in this one.

        Raises:
            InvalidItemId: The text is not an item id.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
            >>> item = jobs.push(db, "send")
            >>> jobs.remove(db, item.id), jobs.remove(db, item.id)
            (True, False)
        """
        return self._store.remove(tr, item, None if state is None else validate_state(state))

    @driven
    def put_back(self, tr: Transactor, items: Iterable[_T]) -> SansIO[None]:
        """Return popped items to their places, even beyond the maximum size.

        Use it when the items could not be used after all. They keep their attempts and times to
        live, and their unique keys unless other items have these meanwhile. Jobs begin from the
        top: a pop deletes their steps, and has ended them in their batches. An item that is already
        back is not counted twice. Given a database, the call takes effect exactly once, in one
        transaction for each 1,000,000 bytes. Cost: four reads for each item, and the writes of a
        push.

        Args:
            tr: A transaction or a database.
            items: Items that a pop returned.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
            >>> _ = jobs.push_many(db, ["first", "second"])
            >>> jobs.put_back(db, [jobs.pop(db)])
            >>> jobs.pop(db).value
            'first'
        """
        return self._store.putting_back(tr, list(items))

    # All items

    @driven
    def wait(self, db: Database, seconds: Duration) -> SansIO[bool]:
        """Sleep until the queue has an item, without taking it; return whether it has one.

        Another client may take the item first; `pop(db, wait=...)` waits and takes. Use this method
        when an interrupt may end the wait, but must not come between taking an item and using it.
        Cost: one read transaction each time the client wakes up.

        Args:
            db: A database.
            seconds: How long to wait, from 0, `math.inf` for ever.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
            >>> _ = jobs.push(db, "send")
            >>> jobs.wait(db, 60)
            True
        """
        return self._store.wait(db, validate_wait(db, seconds))

    def size(self, tr: ReadTransactor) -> int:
        """Return the number of ready items, which is the sum of `counts`; see `stats` for others.

        Given a database, sweeps first, as `stats` does. Cost: one read of counters that every
        operation changes. In a transaction that writes, use `size(tr.snapshot)`, which does not
        conflict with them.

        Args:
            tr: A transaction or a database.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
            >>> _ = jobs.push_many(db, ["a", "b"])
            >>> jobs.size(db)
            2
        """
        return self._store.reads.size(tr)

    def counts(self, tr: ReadTransactor) -> dict[Any, int]:
        """Return the number of ready items of each priority that has any.

        They are the `by_priority` of `stats`, without the reads of the other numbers. A FIFO queue
        has no priorities. In a transaction that writes, use `counts(tr.snapshot)`, as for `size`.

        Given a database, sweeps first, as `stats` does. Cost: one range read of the counters.

        Args:
            tr: A transaction or a database.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
            >>> _ = jobs.push_many(db, ["a", "b", "c"], priorities=[1, 5, 5])
            >>> jobs.counts(db)
            {1: 1, 5: 2}
        """
        return self._store.reads.counts(tr)

    def is_empty(self, tr: ReadTransactor) -> bool:
        """Return whether no item is ready, by looking at the items themselves.

        Given a database, sweeps first, as `stats` does. Conflicts with changes at the head of the
        queue. Cost: one read of one row.

        Args:
            tr: A transaction or a database.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> fdbqueue.PriorityQueue.named(db, "jobs").is_empty(db)
            True
        """
        return self._store.reads.is_empty(tr)

    def stats(self, tr: ReadTransactor) -> QueueStats:
        """Return how many items are in each state, the totals, and the limits of the queue.

        Given a database, sweeps first, whether or not a client is there to take items: up to 256
        items whose leases are over, up to 256 whose time has come, and up to 256 that have expired,
        unless this process has swept in the last 0.05 seconds. In a transaction, the numbers are
        those that are stored, and a `next_due` in the past says that an item is due. Every
        operation changes the counters: in a transaction that writes, use `stats(tr.snapshot)`,
        which does not conflict with them.

        Cost: two reads, of the counters and of the options. If items are ready, one more, and one
        for each priority, to find the oldest one, for up to 100 priorities; if items have groups,
        one more for each of up to 100 groups in a priority. If items are delayed, one more. A sweep
        that finds nothing takes three reads; in a queue that never had claims, delays, times to
        live or limits, it is one read a second.

        Args:
            tr: A transaction or a database.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
            >>> _ = jobs.push_many(db, ["a", "b"]), jobs.push(db, "c", delay=60), jobs.claim(db)
            >>> stats = jobs.stats(db)
            >>> stats.ready, stats.delayed, stats.claimed, stats.dead, stats.total_pushed
            (1, 1, 1, 0, 3)
        """
        return self._store.reads.stats(tr)

    def history(self, tr: ReadTransactor) -> list[HistoryWindow]:
        """Return what happened within the last 5 minutes, hour and day.

        The history is stored with the queue, by the transactions that change it. So it is complete
        whenever it is read, and takes a bounded number of keys. Its times are those of the
        clients that change the queue; a client whose clock is wrong counts in the wrong period. In
        a transaction that writes, use `history(tr.snapshot)`, as for `stats`.

        Cost: three reads of up to 220 small rows.

        Args:
            tr: A transaction or a database.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
            >>> _ = jobs.push_many(db, ["a", "b"]), jobs.pop(db)
            >>> minutes, hour, day = jobs.history(db)
            >>> minutes.seconds, minutes.pushed, minutes.taken, hour.pushed, day.pushed
            (300, 2, 1, 2, 2)
        """
        return self._store.reads.history(tr)

    def clear(self, tr: Transactor) -> None:
        """Remove all items; the queue and its options stay.

        Claims and dead letters are removed too, counters start from zero, and a repeated import of
        the same file stores its lines again. Idempotency keys stay for their 24 hours, so that a
        request repeated by mistake is not executed again. An item is removed if its push was
        committed before, and stays if it was committed later. Conflicts with pops and reads of the
        queue. A job of another queue that waits for removed ones goes on: they count as cancelled.

        Cost: a few range clears. If jobs of the queue ever counted in batches of other queues, all
        unfinished items are read. Given a database, this takes a transaction for each 1,000 of
        them, the last of which removes the items.

        Args:
            tr: A transaction or a database.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
            >>> _ = jobs.push(db, "send")
            >>> jobs.clear(db)
            >>> jobs.is_empty(db)
            True
        """
        self._store.clear(tr)

    # Groups

    def set_group(
        self, tr: Transactor, group: str | None, **settings: Unpack[GroupSettings]
    ) -> None:
        """Set the weight and the limits of a group; settings that are not given stay.

        Groups need not be declared: a group exists while it has items or settings. Weights apply
        from the next item taken. Waiting clients are woken if the group may go on. With `None`,
        further transactions hold and release existing groups, up to 200 in each; if a transaction
        is given, it does so itself.

        Args:
            tr: A transaction or a database.
            group: The name of the group; an empty string for the items without one, which have only
                a weight. `None` sets the defaults of all groups of the queue.
            settings: `weight`, a number over 0: within a priority, each group that has items there
                is served in proportion to its weight; by default 1. `concurrency`, the maximum
                number of its items that may be claimed at a time, from 1. `rate`, a number n and a
                time such as `(10, "1m")`: at most n of its items are claimed or popped in any
                window of this length. `in_order`, whether an item that failed is retried before
                those behind it, if only one may be claimed at a time; by default true. `max_size`,
                the maximum number of ready, delayed and claimed items, from 1: a push without room
                is refused as by a full queue. `latest`, whether a push cancels the waiting items of
                the group instead: up to 100 ready or delayed ones, but no job that has stored
                steps. `paused`, whether none of its items are handed out. `None` is the default of
                all groups.

        The groups of a task queue are its agents, which have `concurrency`, `rate` and `paused`.
        The default `concurrency` of all agents is the option `agent_concurrency` of the queue.

        Raises:
            ValueError: A setting is out of its range, or one that agents do not have.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
            >>> jobs.set_group(db, "ada", weight=2)
            >>> for group in ("ada", "bob"):
            ...     _ = jobs.push_many(db, [group] * 4, group=group)
            >>> [jobs.pop(db).value for _ in range(6)]
            ['ada', 'bob', 'ada', 'ada', 'bob', 'ada']
        """
        change_group(self._store, tr, group, settings)

    def group_settings(self, tr: ReadTransactor, group: str | None = None) -> GroupSettings:
        """Return what `set_group` has set for a group; with `None`, for all groups.

        Settings that were not set are left out, so `set_group` takes the result as its keyword
        arguments. `groups` returns the settings that apply to each group. Cost: one read.

        Args:
            tr: A transaction or a database.
            group: The name of the group; an empty string for the items without one.

        Raises:
            ValueError: It is not the name of a group.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
            >>> jobs.set_group(db, None, concurrency=2, rate=(10, "1m"))
            >>> jobs.group_settings(db), jobs.group_settings(db, "ada")
            ({'concurrency': 2, 'rate': (10, 60.0)}, {})
        """
        return read_group_settings(self._store, tr, group)

    def groups(
        self, tr: ReadTransactor, *, after: str | None = None, limit: int = 1000
    ) -> list[GroupInfo]:
        """Return the groups that have ready, delayed or claimed items or settings, ordered by name.

        If there are items without a group, they come first in a queue that has groups, with an
        empty name. They are counted unless more than 10,000 groups have items. In a transaction,
        the call conflicts with every change of these groups. Cost: reads of up to six small rows
        for each group, and for the items without a group, of two rows for each group of the queue.

        Args:
            tr: A transaction or a database.
            after: Begin behind the group of this name.
            limit: The maximum number of groups to return, from 1.

        Raises:
            ValueError: `after` is not the name of a group, or `limit` is below 1.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
            >>> _ = jobs.push_many(db, [1, 2], group="ada")
            >>> jobs.set_group(db, "ada", concurrency=1)
            >>> claim = jobs.claim(db)
            >>> [(each.name, each.ready, each.claimed, each.held_by) for each in jobs.groups(db)]
            [('ada', 1, 1, 'concurrency')]
        """
        limit = validate_number(limit, "limit", 1)
        if after is not None:
            after = validate_key("a group", after, may_be_empty=True)
        store = self._store
        layout, begin_counters = store.layout, store.items.begin_counters

        def body(tr: ReadTransaction) -> list[GroupInfo]:
            has_agents = store.given_options.kind == "task"
            options = store.reads.options(tr) if has_agents else None
            return list_groups(tr, layout, begin_counters, after, limit, options)

        return read(tr, body)

    def clear_group(self, db: Database, group: str) -> dict[str, bool]:
        """Remove the items of a group in all states; return by id whether each was removed.

        Delayed, ready and claimed items, dead letters and done items are removed, in this order. A
        client that works on a claimed item can no longer acknowledge it. The settings of the group
        stay. An item that is pushed or enters another state in the meantime may or may not be
        removed. Transactions and cost are those of `change_all`, plus those of `release` for a
        claimed item.

        Args:
            db: A database.
            group: The name of the group; an empty string for the items without one.

        Raises:
            ValueError: The group is `None`, or not a name.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
            >>> for group in ("ada", "bob"):
            ...     _ = jobs.push_many(db, [group] * 2, group=group)
            >>> sum(jobs.clear_group(db, "ada").values()), jobs.size(db)
            (2, 2)
        """
        states: tuple[State, ...] = ("delayed", "ready", "claimed", "dead", "done")
        return self._change_group(db, group, partial(_clear_item, self._store), states)

    def cancel_group(self, db: Database, group: str) -> dict[str, bool]:
        """Cancel the jobs of a group, as `cancel` does; return by id whether each was cancelled.

        Delayed and ready items end at once. Claimed ones end with their claims, and their workers
        are told. Dead letters and done items stay. An item that is pushed or enters another state
        in the meantime may or may not be cancelled. Transactions and cost are those of
        `change_all`.

        Args:
            db: A database.
            group: The name of the group; an empty string for the items without one.

        Raises:
            ValueError: The group is `None`, or not a name.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
            >>> _ = jobs.push_many(db, ["a", "b"], group="ada")
            >>> claim = jobs.claim(db)
            >>> [*jobs.cancel_group(db, "ada").values()], jobs.get(db, claim.item).cancelling
            ([True, True], True)
        """
        states: tuple[State, ...] = ("delayed", "ready", "claimed")
        return self._change_group(db, group, self._store.cancel, states)

    def retry_group(self, db: Database, group: str, *, by: str | None = None) -> dict[str, bool]:
        """Make the dead letters of a group ready; return by id whether each was retried.

        A dead letter is not retried if the queue is full or if another item has its unique key, as
        for `retry`. Transactions and cost are those of `change_all`.

        Args:
            db: A database.
            group: The name of the group; an empty string for the items without one.
            by: The name of the client that retries them, as for `retry`.

        Raises:
            ValueError: The group is `None`, or not a name.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs", max_attempts=1)
            >>> item = jobs.push(db, "send", group="ada")
            >>> jobs.nack(db, jobs.claim(db))
            >>> jobs.retry_group(db, "ada") == {item.id: True}, jobs.state(db, item)
            (True, 'ready')
        """
        retry = partial(self._store.retry, state="dead", by=validate_by(by))
        return self._change_group(db, group, retry, ("dead",))

    def _change_group(
        self,
        db: Database,
        group: str | None,
        change: Callable[[Transaction, str], bool],
        states: tuple[State, ...],
    ) -> dict[str, bool]:
        if group is None:  # which a filter takes for all groups
            raise ValueError('give the name of a group, or "" for the items without one, not None')
        wanted = self._wanted(db, "ready", Filter(group=group))
        results: dict[str, bool] = {}
        for state in states:
            results |= _change_matching(self._store, db, _each(change), state, wanted)
        return results


def new_items(
    store: Store[Item],
    values: Sequence[Any],
    priorities: Iterable[Priority | None],
    groups: Iterable[str | None] | None,
    delay: Duration | None,
    at: datetime | None,
    headers: list[Header],
) -> list[NewItem]:
    """Return what a push of these arguments stores."""
    due = None if delay is None and at is None else due_time(delay, at)
    levels = list(map(store.levels.level, priorities))
    if groups is not None:
        levels = list(map(store.levels.in_group, levels, map(_group, groups)))
    payloads = map(store.codec.encode, values)
    randoms = uuids(len(values))
    return [*map(NewItem, levels, payloads, randoms, repeat(due), headers, values)]


def _group(name: object) -> str | None:
    return None if name is None else validate_key("a group", name)


def each_group(
    n: int, group: str | None, groups: Iterable[str | None] | None
) -> Iterable[str | None] | None:
    """Return the group of each of `n` values, `None` for no groups; raise `ValueError`."""
    if groups is None:
        return None if group is None else repeat(group)
    if group is not None:
        raise ValueError("give one group for all values or one for each, not both")
    if isinstance(groups, str):
        raise TypeError(f"groups is a group for each value, not one for all, {groups!r}")
    given = list(groups)
    if len(given) != n:
        raise ValueError(f"there are {n} values and {len(given)} groups")
    return given


def _is_changed(change: Callable[[str], bool], item_id: str) -> bool:
    """Change an item; return false also if this is not possible now."""
    try:
        return change(item_id)
    except (QueueFull, WrongState, UndecodableItem):
        return False


def _clear_item(store: Store[Any], tr: Transaction, item_id: str) -> bool:
    """Remove an item in any state, a claimed one with its claim; return false if it has ended."""
    is_claimed = store.take_back(tr, item_id)
    return store.remove(tr, item_id) or is_claimed


def _each(change: Callable[[Transaction, str], bool]) -> _Begin:
    """Return a beginning without state that changes of one transaction share."""
    return lambda tr: partial(change, tr)


def _begin_moves(
    store: Store[_T], moved: Callable[[_T], Moved | None], tr: Transaction
) -> Callable[[str], bool]:
    """Begin the moves of one transaction, which share the ends of the levels."""
    tails: dict[bytes, Tail] = {}
    return lambda item_id: store.move(tr, item_id, moved, tails) is not None


def _change_matching(
    store: Store[Any], db: Database, begin: _Begin, state: State, wanted: Filter, limit: int = 0
) -> dict[str, bool]:
    """Change all items in a state that match, some in each transaction."""
    items = store.reads.matching(db, state, wanted, limit)
    results: dict[str, bool] = {}
    # An item that was moved to a later priority comes once more.
    new = (info.id for info in items if info.id not in results)
    while ids := [*islice(new, _CHANGES)]:
        results |= _change_some(store, db, begin, ids)
    return results


def _change_some(store: Store[Any], db: Database, begin: _Begin, ids: list[str]) -> dict[str, bool]:
    """Change items in one transaction, or in several if they are too large for one."""

    def body(tr: Transaction) -> dict[str, bool]:
        change = begin(tr)
        return {item_id: _is_changed(change, item_id) for item_id in ids}

    try:
        return run_once(db, body, store.layout.receipts, lambda changed: any(changed.values()))
    except error_classes() as error:
        half = len(ids) // 2
        if error.code != _TOO_LARGE or not half:
            raise
    change_some = partial(_change_some, store, db, begin)
    return {**change_some(ids[:half]), **change_some(ids[half:])}


def claim_until(stop: Stop, queue: BaseQueue[Any], db: Database, **options: Any) -> Claim | None:
    """Claim as `claim` does, but stop waiting for items once `stop` is set."""
    claim: Any = sans_io_of(type(queue).claim)
    claimed: Claim | None = drive(claim(queue, db, **options), stop)
    return claimed


def wait_to_claim(queue: BaseQueue[Any], db: Database, stop: Stop) -> None:
    """Sleep until it is worth claiming items, without claiming them, or until `stop` is set."""
    drive(queue._store.wait_to_claim(db), stop)


def store_of(queue: BaseQueue[_T]) -> Store[_T]:
    """Return the store behind a queue, for other parts of the library."""
    return queue._store


def change_once(queue: BaseQueue[Any], db: Database, body: Callable[[Transaction], _R]) -> _R:
    """Run `body(tr)` in a transaction that takes effect exactly once, with the queue's receipts."""
    return run_once(db, body, queue._store.layout.receipts)


def end_cancelled(queue: BaseQueue[Any], db: Database, claim: Claim, log: str) -> None:
    """Acknowledge a claim whose items are cancelled."""
    drive(queue._store.ack(db, claim, log=log, cancelled=True))


class _Id(NamedTuple):
    """An item of which only the id is known."""

    id: str


def claim_text(queue: BaseQueue[Any], claim: Claim) -> str:
    """Return the text of a claim of one item. A client that has the text has the claim.

    It contains the fencing token, the position, the attempt, the name of the client, and the id if
    that does not follow from the position.
    """
    layout, key = queue._store.layout, claim.keys[0]
    id = "" if claim.item.id == layout.item_id(key) else claim.item.id
    position = layout.position(key)
    return encode_claim_text(claim.token, position, claim.attempt, claim.client, id)


def claim_from_text(queue: BaseQueue[Any], text: str) -> Claim:
    """Return the claim with this text, of whose item it has the id; raise `InvalidClaimToken`."""
    layout = queue._store.layout
    token, position, attempt, client, id = decode_claim_text(text)
    key = layout.items + position
    return Claim((_Id(id or layout.item_id(key)),), (attempt,), (key,), token, client)


class Stored(NamedTuple):
    """A queue as it is stored; `options` is `None` if it was never pushed to."""

    subspace: Subspace
    options: Options | None
    name: str | None
    engine: str


def read_stored(tr: ReadTransaction, subspace: Subspace, name: str | None = None) -> Stored:
    """Read the stored options of the queue in a subspace."""
    options = tr[Layout(subspace).options].value
    found = None if options is None else decode_options(options)
    return Stored(subspace, found, name, engine_name(tr))


def find_stored(tr: Transaction, name: str, must_exist: bool = False) -> Stored:
    """Read the stored options of the queue of a name; raise `QueueNotFound` if it must exist."""
    subspace = find_existing(tr, name) if must_exist else location(tr, name)
    return read_stored(tr, subspace, name)


def open_stored(kind: type[_Q], stored: Stored, **given: Any) -> _Q:
    """Return a queue object with the given options, and with the stored ones where they are `None`.

    Raises:
        OptionsMismatch: A given option differs from the stored one.
    """
    make: Any = kind
    chosen = {option: value for option, value in given.items() if value is not None}
    if stored.options is not None:
        chosen = {**kind._kept(stored.options), **chosen}
    queue: _Q = make(stored.subspace, **chosen)
    if stored.options is not None:
        reconcile_options(queue._store.given_options, stored.options)
    queue._store.layout.name = stored.name
    queue._engine = stored.engine
    return queue
