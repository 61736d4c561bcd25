"""The methods that all queues share, and how a queue is opened with its stored options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice, repeat
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

from fdb.subspace_impl import Subspace

from fdbqueue.coordination.sans_io import SansIO, driven
from fdbqueue.coordination.sans_io import Stop as Stop
from fdbqueue.coordination.sans_io import drive as drive
from fdbqueue.database.binding import check_database
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
from fdbqueue.layout.codecs import stored_codec
from fdbqueue.layout.items import Filter, Level, Selection, decode_group_settings
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import NO_HEADER, decode_claim_text, decode_options, encode_claim_text
from fdbqueue.operations.changes import Update
from fdbqueue.operations.items import NewItem
from fdbqueue.operations.names import find_existing, location
from fdbqueue.operations.options import reconcile_options
from fdbqueue.operations.views.groups import GroupInfo as GroupInfo
from fdbqueue.operations.views.groups import list_groups
from fdbqueue.options import (
    Filters,
    GroupSettings,
    PushManyOptions,
    QueueSettings,
    Selecting,
    UpdateOptions,
)
from fdbqueue.queue.arguments import (
    due_time,
    group_settings,
    new_headers,
    new_time,
    of_each,
    postponed_for,
    settings_to_store,
    validate_by,
    validate_claim,
    validate_client_name,
    validate_delay,
    validate_filter,
    validate_flag,
    validate_group,
    validate_lease,
    validate_log,
    validate_most,
    validate_number,
    validate_options,
    validate_report,
    validate_result,
    validate_state,
    validate_wait,
)
from fdbqueue.queue.steps import JobSteps
from fdbqueue.types import (
    STATES,
    Change,
    Claim,
    Database,
    Duration,
    HistoryWindow,
    Item,
    ItemInfo,
    MatchCount,
    Options,
    Progress,
    QueueStats,
    ReadTransactor,
    SearchPage,
    State,
    Task,
    Transaction,
    Transactor,
    states_with,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from fdbqueue.coordination.store import Store

_T = TypeVar("_T", bound=Item | Task)
_Q = TypeVar("_Q", bound="BaseQueue[Any]")
_R = TypeVar("_R")

_Change: TypeAlias = Callable[[Transaction, str], object]
"""Changes an item in a transaction, if possible."""

_HOLDING = ("concurrency", "rate", "in_order")
"""The default settings that may hold a group."""

_CHANGES = 100  # items that one transaction of `change_all` changes
WITHIN = 256  # items at the head of the queue of which a claim picks some, by default
_MAX_RETURNED = 6_500_000  # bytes for a claim; its items take up to 3,000,000 besides
_TOO_LARGE = 2101
_IS_LATER = "delayed".__ne__  # delayed items come first, because they may become ready meanwhile

MAX_SCAN = 10_000
"""The default number of items that one `search` or `count` looks at."""


class BaseQueue(Generic[_T]):
    """The methods that all queues share; `PriorityQueue` describes their arguments."""

    _stored: ClassVar[tuple[str, ...]] = ()
    """The stored options of its constructor, beside `QueueOptions`."""

    def __init__(self, store: Store[_T]) -> None:
        self._store = store

    def __repr__(self) -> str:
        layout = self._store.layout
        return f"<{type(self).__name__} {layout.name or layout.subspace!r}>"

    @classmethod
    def existing(cls: type[_Q], db: Transactor, name: str) -> _Q:
        """Return the queue of this name as `named` does; raise `QueueNotFound` without one.

        Example:
            >>> fdbqueue.PriorityQueue.existing(db, "nope")
            Traceback (most recent call last):
            fdbqueue.errors.QueueNotFound: there is no queue named 'nope'; ...
        """
        return open_stored(cls, read(db, partial(find_stored, name=name, must_exist=True)))

    @classmethod
    def _open(cls, db: Transactor, name: str | Subspace, **given: Any) -> Any:
        return open_stored(cls, read(db, partial(find_stored, name=name)), **given)

    @property
    def subspace(self) -> Subspace:
        """The subspace that holds everything of this queue."""
        return self._store.layout.subspace

    # Options

    def options(self, tr: ReadTransactor) -> Options:
        """Return the options; before the first push, the given ones. Cost: one read.

        Example:
            >>> fdbqueue.PriorityQueue.named(db, "jobs", max_size=100).options(db)
            Options(kind='priority', codec='json', priorities=<class 'int'>, max_size=100, ...)
        """
        return self._store.reads.options(tr)

    def configure(self, tr: Transactor, **settings: Unpack[QueueSettings]) -> None:
        """Change stored options of the queue, the given `fdbqueue.options.QueueSettings`.

        Pushes and claims of all clients obey at once, pops within a second. Conflicts with pushes;
        `concurrency`, `rate` and `paused` also with claims.

        Raises:
            ValueError: A value is out of its range.

        Example:
            >>> jobs.configure(db, max_size=1000, keep="7d")
        """
        self._store.configure(tr, settings_to_store(settings))

    # Claims

    @driven
    def claim(
        self,
        tr: Transactor,
        *,
        lease: Duration = 30,
        n: int = 1,
        within: int = WITHIN,
        wait: Duration = 0,
        client: str | None = None,
    ) -> SansIO[Claim[_T] | None]:
        """Claim the first items for the time of a lease; return `None` if there are none to claim.

        No other client gets the items during the lease, which counts from before the call. After
        it, the items return to their places.

        In a transaction, or after conflicts, the call takes any of the first `within` items. Claims
        conflict over the same item, within a group, and near a limit. An item that cannot be
        decoded fails, and is not returned.

        Cost: two reads, sometimes a sweep; three keys written for each item, and one for each
        priority.

        Args:
            tr: See the class.
            lease: The length, over 0.
            n: The maximum number of items, from 1.
            within: The number of first items, from 1.
            wait: As for `pop`.
            client: The client's name for `get`, 1 to 255 bytes; by default its host and process id.

        Source: Gray and Cheriton, Leases (1989).

        Example:
            >>> _ = jobs.push(db, "send")
            >>> claim = jobs.claim(db, lease="1m")
            >>> claim.item.value, claim.attempt, jobs.claim(db)
            ('send', 1, None)
        """
        n, within = validate_most(n, "n", 1), validate_most(within, "within", 1)
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
        """Acknowledge a claim: the work is done, and the items leave the queue.

        In a transaction, a plain retry after an unknown commit result raises `LeaseLost`;
        `fdbqueue.transactional(receipts=...)` does not.

        A queue with `keep` keeps the items as done, with `result` (JSON of up to 90,000 bytes),
        `log`, and `discarded`, the reason if the work was given up. Cost: one read for each item,
        also for `nack`, `extend` and `release`.

        Raises:
            InvalidValue: The result is not JSON.
            PayloadTooLarge: The result is too large, or all results and logs exceed 6,500,000
                bytes.

        Example:
            >>> _ = jobs.push(db, "send")
            >>> jobs.ack(db, jobs.claim(db))
            >>> jobs.stats(db).total_completed
            1
        """
        claim, returned, log = validate_claim(claim), validate_result(result), validate_log(log)
        size = 0 if returned is None else len(claim) * (len(returned) + len(log.encode()))
        if size > _MAX_RETURNED:
            raise PayloadTooLarge(size, _MAX_RETURNED, "a claim")
        request = self._store.ack_request(claim, returned, error_text(discarded), log)
        return self._store.ack(tr, request)

    @driven
    def result(self, tr: Transactor, item: _T | str, *, wait: Duration = 0) -> SansIO[Any]:
        """Return the result of a done item, or `None` if it has none; wait until the item is done.

        `ack`, or a `Worker` with `store_results`, stores it in a queue that keeps done items.

        Raises:
            NoResult: The item is not done in time, is a dead letter, or is no longer kept.

        Example:
            >>> jobs.configure(db, keep=1000)
            >>> item = jobs.push(db, 20)
            >>> jobs.ack(db, jobs.claim(db), result={"sent": 3})
            >>> jobs.result(db, item)
            {'sent': 3}
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
        """Report that the work on a claim failed; its items are retried after a delay.

        After `max_attempts` claims, an item becomes a dead letter.

        Args:
            tr: See the class.
            claim: See the class.
            delay: By default one second, doubled with each further failure up to an hour, less up
                to a half at random.
            error: A text or an exception: 1,000 characters and the end of the traceback are kept.
            dead: Whether the items become dead letters at once.
            log: See the class.

        Example:
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
        """Restart the lease of a claim from now, and report on the work.

        Until the claim ends, `get` and `search` show `progress` and `log`, all lines so far. If the
        lease runs out, the attempt keeps the log.

        Example:
            >>> _ = jobs.push(db, "send")
            >>> jobs.extend(db, jobs.claim(db), lease="1m", log="page 4")
        """
        report = validate_report(progress, log, milliseconds())
        self._store.extend(tr, (validate_claim(claim), report, validate_lease(lease)))

    def release(
        self, tr: Transactor, claim: Claim | _T | str, *, delay: Duration | None = None
    ) -> bool:
        """Return the items of a claim to their places; the attempt does not count.

        Given an item or its id, the call ends the claim that holds it, and returns false if none
        does.

        Example:
            >>> _ = jobs.push(db, "send")
            >>> jobs.release(db, jobs.claim(db)), jobs.claim(db).attempt
            (True, 1)
        """
        if isinstance(claim, (str, Item, Task)):
            if delay is not None:
                raise TypeError("only the items of a claim are released with a delay")
            return self._store.take_back(tr, claim)
        self._store.release(tr, validate_claim(claim), validate_delay(delay))
        return True

    # The first items

    @driven
    def pop(self, tr: Transactor, *, wait: Duration = 0) -> SansIO[_T | None]:
        """Remove and return the first item, or `None` if there is none.

        In a transaction, a pop conflicts with another pop, a claim or removal of its item, and a
        push ahead of it; in an empty queue, with every push. Cost: one read of one row, and three
        keys written. On a cluster, a pop that met a conflict costs two commits and a share of
        another transaction.

        `wait` is the time to wait for an item: a push wakes one waiting client, and pushes by
        another implementation of the recipe are noticed within 25 seconds. Waiting writes two or
        three keys.

        Raises:
            UndecodableItem: The codec cannot decode the item, which stays in the queue.

        Example:
            >>> _ = jobs.push_many(db, ["b", "a"], priorities=[2, 1])
            >>> jobs.pop(db).value, jobs.pop(db).value, jobs.pop(db)
            ('a', 'b', None)
        """
        taken = yield from self._store.pop(tr, 1, False, validate_wait(tr, wait))
        return next(iter(taken), None)

    @driven
    def pop_many(self, tr: Transactor, n: int, *, wait: Duration = 0) -> SansIO[list[_T]]:
        """Remove and return up to `n` of the first items, as `pop`, in one transaction.

        Cost: one read of `n` rows, whose keys must fit into the 10,000,000 bytes of a transaction.

        Example:
            >>> _ = mail.push_many(db, ["a", "b"])
            >>> [item.value for item in mail.pop_many(db, 5)]
            ['a', 'b']
        """
        return self._store.pop(tr, validate_most(n), False, validate_wait(tr, wait))

    def peek(self, tr: ReadTransactor) -> _T | None:
        """Return the item that `pop` would take. Conflicts with pops. Cost: one read of one row.

        Example:
            >>> jobs.peek(db) is None
            True
        """
        return next(iter(self.peek_many(tr, 1)), None)

    def peek_many(self, tr: ReadTransactor, n: int) -> list[_T]:
        """Return the items that `pop_many` would take.

        Example:
            >>> _ = mail.push_many(db, ["a", "b"])
            >>> [item.value for item in mail.peek_many(db, 5)]
            ['a', 'b']
        """
        return self._store.reads.peek(tr, validate_most(n))

    # Find items, and change what is found

    @overload
    def items(
        self, tr: ReadTransactor, *, state: None = None, **which: Unpack[Selecting]
    ) -> Iterator[_T]: ...

    @overload
    def items(
        self, tr: ReadTransactor, *, state: State, **which: Unpack[Selecting]
    ) -> Iterator[ItemInfo]: ...

    def items(
        self, tr: ReadTransactor, *, state: State | None = None, **which: Unpack[Selecting]
    ) -> Iterator[_T] | Iterator[ItemInfo]:
        """Iterate over the ready items, or over an `ItemInfo` for each item in a state.

        The order is by priority, name of the group, and arrival; done items come newest first.
        Given a database, each 500 items take a transaction; an item that stays in the queue is
        always found. Cost: one read for each 500 items, and with a state up to four for each item.

        `which` are `fdbqueue.options.Selecting`.

        Raises:
            UndecodableItem: The codec cannot decode an item, and there is no `state`.
            InvalidPriority: The priority is not of the queue's type (`InvalidTask` for tasks).
            ValueError: A filter does not apply to this queue or state.

        Example:
            >>> _ = jobs.push_many(db, ["b", "a"], priorities=[2, 1])
            >>> [(item.priority, item.value) for item in jobs.items(db)]
            [(1, 'a'), (2, 'b')]
        """
        of = self._selection("ready" if state is None else state, which)
        reads, limit = self._store.reads, validate_number(which.get("limit", 0), "limit")
        show: Any = reads.values if state is None else reads.infos
        return reads.matching(tr, of, limit, show)

    def search(
        self,
        db: Database,
        *,
        state: State,
        scan: int = MAX_SCAN,
        **which: Unpack[Selecting],
    ) -> SearchPage:
        """Return a page of up to `limit` items in a state, by default 100, that match all filters.

        The call reads up to `scan` items, so more may match: pass the page's `next` as `after`,
        until it is `None`. Order, cost and errors are as for `items`.

        Example:
            >>> _ = jobs.push_many(db, ["a", "b"], delay=60)
            >>> page = jobs.search(db, state="delayed", limit=1)
            >>> page.items[0].item.value, page.next is None
            ('a', False)
        """
        check_database(db)
        limit = validate_number(which.get("limit", 100), "limit", 1)
        of, scan = self._selection(state, which), validate_number(scan, "scan", 1)
        return self._store.reads.search(db, of, limit, scan)

    def count(
        self,
        db: Database,
        *,
        state: State,
        after: _T | str | None = None,
        scan: int = MAX_SCAN,
        **filters: Unpack[Filters],
    ) -> MatchCount:
        """Return how many of up to `scan` items in a state, behind `after`, match all filters.

        Example:
            >>> _ = tasks.push_many(db, [{"agent_name": name} for name in ("ada", "bob")])
            >>> tasks.count(db, state="ready", agent="ada")
            MatchCount(count=1, next=None, scanned=2)
        """
        check_database(db)
        of = self._selection(state, {**filters, "after": after})
        return self._store.reads.count(db, of, validate_number(scan, "scan", 1))

    def change_all(
        self,
        db: Database,
        change: Change,
        *,
        state: State | None = None,
        limit: int = 0,
        to: UpdateOptions | None = None,
        by: str | None = None,
        **filters: Unpack[Filters],
    ) -> dict[str, bool]:
        """Make the same change of all items that match; return by id whether each was changed.

        Each transaction changes up to 100 items, exactly once. An item that has left the state, or
        cannot be decoded, retried or updated, stays. Cost: a read of all items, and each change.

        Args:
            db: A database.
            change: `"remove"` (items that are not claimed), `"clear"` (all, with their claims),
                `"retry"` (delayed and dead), `"release"` (claimed), `"cancel"` (ready, delayed and
                claimed), or `"update"` (ready and delayed).
            state: The state of the items; `None`, which needs a filter, for each of these states.
            limit: The maximum number of items, 0 for all.
            to: `fdbqueue.options.UpdateOptions` of an update. Ready items keep their order.
            by: See the class.
            filters: See `fdbqueue.options.Filters`.

        Raises:
            ValueError: The change does not apply to this state or queue; also as for `items`.

        Example:
            >>> _ = jobs.push_many(db, ["a", "b"], delay=3600)
            >>> [*jobs.change_all(db, "retry", state="delayed").values()]
            [True, True]
        """
        check_database(db)
        if (change == "update") != (to is not None):
            raise ValueError("`to` is what changes, for 'update' alone")
        if state is None and all(value is None for value in filters.values()):
            raise ValueError("give a state, or a filter: None matches every item")
        states = sorted(states_with(change), key=_IS_LATER)
        if not states or (state is not None and validate_state(state) not in states):
            raise ValueError(f"{change!r} is not a change of {state or 'any'} items")
        store, limit = self._store, validate_number(limit, "limit")
        one: dict[Change, _Change] = {
            "remove": partial(store.remove, state=state),
            "clear": partial(_clear_item, store, state),
            "retry": partial(store.retry, state=state, by=validate_by(by)),
            "release": store.take_back,
            "cancel": store.cancel,
            "update": partial(cast("Any", self).update, **(to or {})),
        }
        each = [self._selection(one, filters) for one in (states if state is None else (state,))]
        return _change_matching(store, db, one[change], each, limit)

    def _selection(self, state: State, which: Mapping[str, object]) -> Selection:
        """Return which items to look for; raise an error unless the queue can have them."""
        kind, filters = self._store.given_options.kind, dict[str, Any](which)
        after, reverse = filters.pop("after", None), filters.pop("reverse", False)
        filters.pop("limit", None)
        wanted = validate_filter(kind, validate_state(state), cast("Filters", filters))
        return Selection(state, wanted, after, reverse)

    # Single items

    def state(self, tr: ReadTransactor, item: _T | str) -> State | None:
        """Return the state of an item; `None` if it has left the queue.

        Example:
            >>> jobs.state(db, jobs.push(db, "send", delay=60))
            'delayed'
        """
        return self._store.reads.state(tr, item)

    def get(self, tr: ReadTransactor, item: _T | str) -> ItemInfo | None:
        """Return everything about an item; `None` if it has left the queue.

        Cost: up to eight reads more than to find it.

        Example:
            >>> jobs.get(db, jobs.push(db, "send", group="ada")).group
            'ada'
        """
        return self._store.reads.get(tr, item)

    def position(self, tr: ReadTransactor, item: _T | str) -> int | None:
        """Return the number of ready items ahead of this one; `None` if it is not ready.

        Groups count in the order of their names; of other shards, only better priorities. Cost: a
        scan of the items ahead.

        Example:
            >>> last, first = jobs.push(db, "b", 5), jobs.push(db, "a", 1)
            >>> jobs.position(db, last)
            1
        """
        return self._store.reads.position(tr, item)

    def pushed_at(self, item: _T | str) -> datetime | None:
        """Return when an item was pushed, by the clock of its client, from the id alone.

        `None` if another implementation of the recipe pushed it.

        Example:
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

        A dead letter returns to its place with all attempts again, keeps its failed attempts, and
        no longer expires. The call also returns false if the item is not in `state`, waits for
        other items or a signal, or if another item has its unique key by now.

        Raises:
            QueueFull: There is no place for the dead letter.

        Example:
            >>> item = jobs.push(db, "send")
            >>> jobs.nack(db, jobs.claim(db), dead=True)
            >>> jobs.state(db, item), jobs.retry(db, item.id), jobs.claim(db).attempt
            ('dead', True, 1)
        """
        state = None if state is None else validate_state(state)
        return self._store.retry(tr, item, state, validate_by(by))

    def cancel(
        self, tr: Transactor, item: _T | str, *, force: bool = False, children: bool = False
    ) -> bool:
        """Cancel a job; return false if it has ended.

        - A job that has not begun ends at once.
        - A claimed item without steps ends with its claim, however that ends. A `Worker` tells the
          handler (`Context.cancelled`).
        - A job with steps goes on, at once if it sleeps or waits, and the step at which it stands
          raises `JobCancelled`: the job can compensate with further steps. Without one, it ends as
          done.

        A queue with `keep` keeps the item, with the outcome `"cancelled"`. Cost: as `remove`; with
        `children` a read, and as much again for each of them.

        With `force`, the job ends now, and its worker can store nothing more. With `children`, the
        jobs that it runs in its steps are cancelled, too, and it goes on when they have ended: on a
        database, each in its own transaction, before the job. After an error, call again.

        Example:
            >>> jobs.cancel(db, jobs.push(db, "send"))
            True
        """
        validate_flag("force", force)
        steps: Any = JobSteps(self._store)
        for step in steps.all(tr, item) if validate_flag("children", children) else ():
            if (step.kind, step.state) == ("run", "waiting"):
                queue = self.existing(tr, step.queue) if step.queue else self
                queue.cancel(tr, step.key, force=force, children=True)
        return self._store.cancel(tr, item, force=force, children=children)

    def remove(self, tr: Transactor, item: _T | str, *, state: State | None = None) -> bool:
        """Remove an item; return false if it is claimed or unknown, or not in `state`.

        Example:
            >>> jobs.remove(db, jobs.push(db, "send"))
            True
        """
        return self._store.remove(tr, item, None if state is None else validate_state(state))

    @driven
    def put_back(self, tr: Transactor, items: Iterable[_T]) -> SansIO[None]:
        """Return popped items to their places, even beyond the maximum size.

        They keep their attempts, times to live, and free unique keys. Jobs have lost their steps,
        and have ended in their batches. Given a database, each megabyte takes a transaction. Cost:
        four reads for each item, and the writes of a push.

        Example:
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

        Another client may take it first: prefer `pop(db, wait=...)`.

        Example:
            >>> _ = jobs.push(db, "send")
            >>> jobs.wait(db, 60)
            True
        """
        return self._store.wait(db, validate_wait(db, seconds))

    def size(self, tr: ReadTransactor) -> int:
        """Return the number of ready items. Cost: one read of counters.

        Example:
            >>> _ = jobs.push_many(db, ["a", "b"])
            >>> jobs.size(db)
            2
        """
        return self._store.reads.size(tr)

    def counts(self, tr: ReadTransactor) -> dict[Any, int]:
        """Return the number of ready items of each priority that has any. Cost: as for `size`.

        Example:
            >>> _ = jobs.push_many(db, ["a", "b", "c"], priorities=[1, 5, 5])
            >>> jobs.counts(db)
            {1: 1, 5: 2}
        """
        return self._store.reads.counts(tr)

    def is_empty(self, tr: ReadTransactor) -> bool:
        """Return whether no item is ready. Conflicts and cost are as for `peek`.

        Example:
            >>> jobs.is_empty(db)
            True
        """
        return self._store.reads.is_empty(tr)

    def stats(self, tr: ReadTransactor) -> QueueStats:
        """Return the numbers of items by state, the totals and the options.

        Cost: two reads, one more if items are delayed, and one for each priority and group, up to
        100, for the oldest item.

        Example:
            >>> _ = jobs.push(db, "a"), jobs.push(db, "b", delay=60)
            >>> jobs.stats(db).by_state
            {'ready': 1, 'delayed': 1, 'claimed': 0, 'dead': 0, 'done': 0}
        """
        return self._store.reads.stats(tr)

    def history(self, tr: ReadTransactor) -> list[HistoryWindow]:
        """Return the changes of the last 5 minutes, hour and day, by the clocks of clients.

        Cost: three reads of up to 220 small rows.

        Example:
            >>> _ = jobs.push_many(db, ["a", "b"]), jobs.pop(db)
            >>> [(window.seconds, window.taken) for window in jobs.history(db)]
            [(300, 1), (3600, 1), (86400, 1)]
        """
        return self._store.reads.history(tr)

    def clear(self, tr: Transactor) -> None:
        """Remove all items, in every state, with their claims; the queue and its options stay.

        Totals start from zero; idempotency keys stay. Jobs of other queues that wait for removed
        ones see them as cancelled. Conflicts with pops and reads of the queue.

        Cost: a few range clears; a read of all unfinished items, given a database 1,000 in a
        transaction, if jobs of the queue ever counted in batches of other queues.

        Example:
            >>> jobs.clear(db)
            >>> jobs.is_empty(db)
            True
        """
        self._store.clear(tr)

    # Groups

    def set_group(
        self, tr: Transactor, group: str | None, **settings: Unpack[GroupSettings]
    ) -> None:
        """Change settings of a group, the given `fdbqueue.options.GroupSettings`.

        Weights apply from the next item. The group `None` sets the defaults of all groups; each of
        the next sweeps holds or releases up to 200 groups. Items without a group have only a
        weight.

        Example:
            >>> jobs.set_group(db, "ada", weight=2, concurrency=10)
        """
        store, name = self._store, validate_group(group, may_be_empty=True)
        changes = group_settings(settings, name)
        if changes.get("rate") is not None:
            number, seconds = changes["rate"]
            changes["rate"] = number, round(1000 * seconds)

        def body(tr: Transaction, now: int) -> None:
            if changes:
                store.items.groups.set(tr, now, name, changes)
            if name is None and not changes.keys().isdisjoint(_HOLDING):
                store.items.groups.settle_all(tr, now)
            if changes.get("max_size"):
                store.options.agree(tr)
                store.options.note(tr, limited_groups=True)
            store.options.note_limit(tr)

        store.change(tr, body)
        store.sweeper.invalidate()  # pops of this client look at once

    def group_settings(self, tr: ReadTransactor, group: str | None = None) -> GroupSettings:
        """Return what `set_group` has set for a group, or for all groups (`None`). Cost: one read.

        Example:
            >>> jobs.set_group(db, None, concurrency=2, rate=(10, "1m"))
            >>> jobs.group_settings(db), jobs.group_settings(db, "ada")
            ({'concurrency': 2, 'rate': (10, 60.0)}, {})
        """
        layout, name = self._store.layout, validate_group(group, may_be_empty=True)
        key = layout.group_key(layout.group_settings, name)
        fields = decode_group_settings(read(tr, lambda tr: tr[key].value))._asdict()
        if fields["rate"] is not None:
            fields["rate"] = fields["rate"][0], fields["rate"][1] / 1000
        fields["paused"] = fields["paused"] or None
        known: Any = {each: value for each, value in fields.items() if value is not None}
        return cast("GroupSettings", known)

    def groups(
        self, tr: ReadTransactor, *, after: str | None = None, limit: int = 1000
    ) -> list[GroupInfo]:
        """Return up to `limit` groups with unfinished items or settings, by name, behind `after`.

        Conflicts with every change of these groups. Cost: up to six small rows for each group.

        Example:
            >>> _ = jobs.push_many(db, [1, 2], group="ada")
            >>> [(group.name, group.ready) for group in jobs.groups(db)]
            [('ada', 2)]
        """
        limit = validate_most(limit, "limit", 1)
        name, layout = validate_group(after, may_be_empty=True), self._store.layout
        return read(tr, lambda tr: list_groups(tr, layout, name, limit))


def new_item(
    store: Store[Any], value: Any, priority: Any, kind: type, options: Mapping[str, Any]
) -> NewItem:
    """Return what a push of one value stores; `kind` is the type of its options."""
    each: Any = options
    if options:
        validate_options(kind, options)
    if (unique := options.get("unique")) is not None:
        each = {**options, "unique": (unique,)}
    (item,) = new_items(store, (value,), (priority,), **each)
    return item


def new_items(
    store: Store[Any],
    values: Sequence[Any],
    priorities: Iterable[Any],
    **options: Unpack[PushManyOptions],
) -> list[NewItem]:
    """Return what a push of these values, each with its priority, stores."""
    n = len(values)
    due = at_most = None
    headers = [NO_HEADER] * n
    levels = list(map(store.levels.level, priorities))
    if options:
        validate_options(PushManyOptions, options)
        due = due_time(options.get("delay"), options.get("at"))
        headers, at_most = new_headers(n, options), postponed_for(options)
        if due is not None and at_most is not None:
            due = int(min(due, milliseconds() + at_most))
        group, groups = options.get("group"), options.get("groups")
        if groups is not None:
            if group is not None:
                raise ValueError("give one group for all values or one for each, not both")
            each = map(validate_group, of_each(n, "groups", groups))
            levels = list(map(store.levels.in_group, levels, each))
        elif group is not None:
            levels = list(map(store.levels.in_group, levels, repeat(validate_group(group))))
    payloads, rest = map(store.codec.encode, values), repeat(at_most)
    return [*map(NewItem, levels, payloads, uuids(n), repeat(due), headers, values, rest)]


def _is_changed(change: _Change, tr: Transaction, item_id: str) -> bool:
    try:
        return bool(change(tr, item_id))
    except (QueueFull, WrongState, UndecodableItem):
        return False


def _clear_item(store: Store[Any], state: State | None, tr: Transaction, item_id: str) -> bool:
    if state in (None, "claimed") and store.take_back(tr, item_id):
        store.remove(tr, item_id)  # unless the claim was cancelled
        return True
    return state != "claimed" and store.remove(tr, item_id, state)


def update_item(
    store: Store[_T],
    tr: Transactor,
    item: _T | str,
    options: Mapping[str, Any],
    change: Callable[[_T, Level], tuple[Level, bytes | None]],
) -> _T:
    """Change what `options` say of an item, and the level and payload that `change` returns."""
    due, id, group = new_time(options), uuids(1)[0], validate_group(options.get("group"))

    def update(item: _T, before: Level) -> Update:
        level, payload = change(item, before)
        into = group if "group" in options else before.group
        return Update(store.levels.in_group(level, into), payload, id, due)

    return store.update(tr, item, update)


def _change_matching(
    store: Store[Any], db: Database, change: _Change, each: list[Selection], limit: int
) -> dict[str, bool]:
    results: dict[str, bool] = {}
    reads = store.reads
    found = (info.id for of in each for info in reads.matching(db, of, limit, reads.infos))
    # An item that was changed comes once more if it moves to a later priority or state.
    new = islice((id for id in found if not results.get(id)), limit or None)
    while ids := [*dict.fromkeys(islice(new, _CHANGES))]:
        results |= _change_some(store, db, change, ids)
    return results


def rename_jobs(queue: BaseQueue[Any], db: Database, old: str, new: str) -> dict[str, int]:
    """Rename the stored calls of a job; return how many in each state, and of `schedules`."""
    store, renamed = queue._store, dict[str, int]()
    one = partial(store.rename_job, old=old, new=new)
    for state in sorted(STATES, key=_IS_LATER):
        each = [Selection(state, Filter(job=old))]
        renamed[state] = sum(_change_matching(store, db, one, each, limit=0).values())
    change = partial(store.schedules.rename_job, old=old, new=new)
    names = read(db, store.schedules.all)
    return renamed | {"schedules": sum(store.change(db, partial(change, name=n)) for n in names)}


def _change_some(
    store: Store[Any], db: Database, change: _Change, ids: list[str]
) -> dict[str, bool]:
    """Change items in one transaction, or in several if they are too large."""

    def body(tr: Transaction) -> dict[str, bool]:
        return {item_id: _is_changed(change, tr, item_id) for item_id in ids}

    try:
        return run_once(db, body, store.layout.receipts, lambda changed: any(changed.values()))
    except error_classes() as error:
        half = len(ids) // 2
        if error.code != _TOO_LARGE or not half:
            raise
    some, others = ids[:half], ids[half:]
    return _change_some(store, db, change, some) | _change_some(store, db, change, others)


def store_of(queue: BaseQueue[_T]) -> Store[_T]:
    """Return the store behind a queue."""
    return queue._store


def change_once(queue: BaseQueue[Any], db: Database, body: Callable[[Transaction], _R]) -> _R:
    """Run `body(tr)` exactly once, with the receipts of the queue."""
    return run_once(db, body, queue._store.layout.receipts)


def end_cancelled(queue: BaseQueue[Any], db: Database, claim: Claim, log: str) -> None:
    """Acknowledge a claim whose items are cancelled."""
    drive(queue._store.ack(db, queue._store.ack_request(claim, log=log, cancelled=True)))


class _Id(NamedTuple):
    """An item of which only the id is known."""

    id: str


def claim_text(queue: BaseQueue[Any], claim: Claim) -> str:
    """Return the text of a claim of one item: its bearer has the claim."""
    layout, key = queue._store.layout, claim.keys[0]
    id = "" if claim.item.id == layout.item_id(key) else claim.item.id
    position = layout.position(key)
    return encode_claim_text(claim.token, position, claim.attempt, claim.client, id)


def claim_from_text(queue: BaseQueue[Any], text: str) -> Claim:
    """Return the claim with this text; raise `InvalidClaimToken`. Its item has only an id."""
    layout = queue._store.layout
    token, position, attempt, client, id = decode_claim_text(text)
    key = layout.items + position
    return Claim((_Id(id or layout.item_id(key)),), (attempt,), (key,), token, client)


class Stored(NamedTuple):
    """A queue as it is stored; `options` is `None` if it was never pushed to."""

    subspace: Subspace
    options: Options | None
    name: str | None


def find_stored(tr: Transaction, name: str | Subspace, must_exist: bool = False) -> Stored:
    """Read the stored options of a queue; `must_exist` may raise `QueueNotFound`."""
    if isinstance(name, Subspace):
        subspace, known_name = name, None
    else:
        subspace, known_name = (find_existing if must_exist else location)(tr, name), name
    options = tr[Layout(subspace).options].value
    found = None if options is None else decode_options(options)
    return Stored(subspace, found, known_name)


def open_stored(kind: type[_Q], stored: Stored, **given: Any) -> _Q:
    """Return a queue with the given options and the stored others; raise `OptionsMismatch`."""
    make: Any = kind
    chosen = {option: value for option, value in given.items() if value is not None}
    if stored.options is not None:
        codec, priorities = stored_codec(stored.options.codec), stored.options.priorities
        known = {"codec": codec, "priorities": priorities}
        chosen = {**{name: known[name] for name in kind._stored}, **chosen}
    queue: _Q = make(stored.subspace, **chosen)
    if stored.options is not None:
        reconcile_options(queue._store.given_options, stored.options)
    queue._store.layout.name = stored.name
    return queue
