"""Look at a queue, on a transaction or on a database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import chain, islice
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from fdbqueue.coordination.sweeper import Sweeper, may_sweep
from fdbqueue.coordination.waits import parent_of, waits_for
from fdbqueue.database.binding import first_key, is_database
from fdbqueue.database.clock import milliseconds
from fdbqueue.database.pages import PAGE, read_pages
from fdbqueue.database.retrying import read
from fdbqueue.errors import InvalidItemId, NoResult, UndecodableItem, error_classes
from fdbqueue.layout.codecs import decode_json
from fdbqueue.layout.items import Filter, ItemRow, StoredItem
from fdbqueue.layout.rows import RowCodec
from fdbqueue.layout.values import NEVER, UUID_SIZE, Lease, time_of, utc_time
from fdbqueue.operations.changes import Changes
from fdbqueue.operations.failures import begin_attempts, begin_last_error
from fdbqueue.operations.groups.held import Holds, begin_ahead
from fdbqueue.operations.items import Items, NewItem
from fdbqueue.operations.maintainers.history import read_history
from fdbqueue.operations.payloads import read_payload
from fdbqueue.operations.push import Pushed
from fdbqueue.operations.sweep import Sweep
from fdbqueue.operations.views.lookup import Lookup
from fdbqueue.operations.views.stats import Numbers
from fdbqueue.types import (
    Database,
    HistoryWindow,
    Item,
    ItemInfo,
    KeyValue,
    MatchCount,
    Options,
    Priority,
    Progress,
    QueueStats,
    ReadTransaction,
    ReadTransactor,
    SearchPage,
    State,
    StoredJob,
    Task,
    job_of,
)

_T = TypeVar("_T", bound=Item | Task)
_R = TypeVar("_R")

_Show: TypeAlias = Callable[[ReadTransaction, list[ItemRow]], list[_R]]
"""A function that returns, for each of the given items, what to show of it."""


def _claimed_at(found: ItemRow) -> datetime | None:
    if found.state == "done":
        return None if found.started_at is None else utc_time(found.started_at)
    return time_of(found.token[:UUID_SIZE])


def _client_of(found: ItemRow, lease: Lease | None) -> str | None:
    if found.state == "done":
        return found.client
    if found.state != "claimed":
        return None
    return lease.client if lease else ""


def _progress(lease: Lease | None) -> Progress | None:
    if lease is None or lease.report.fraction is None:
        return None
    return Progress(lease.report.fraction, lease.report.message, utc_time(lease.report.at))


class Finished(NamedTuple):
    """The end of an item that is done: what its handler returned, or `None`."""

    result: Any


class _Range(NamedTuple):
    """The items in a state and in a range of keys, as those of ready items.

    Done items are in a range of the index of their times. With `group`, the range has only the
    items of a group in it, or those without one.
    """

    state: State
    begin: bytes
    end: bytes
    reverse: bool
    group: str | None = None


class Reads(Generic[_T]):
    """The reads of one queue.

    The methods expect arguments that the queue object has validated. Given a database, they first
    sweep, in one transaction at most, or only the item that they look for. In a transaction they
    write nothing: an item whose timer is over is shown as it is stored.

    Args:
        items: The items of the queue within a transaction.
        codec: The conversion between items and rows.
        options: The options that the client opened the queue with.
        changes: The changes of its items, which also find done ones.
        sweep: The sweeps within a transaction.
        sweeper: The sweeps of this process.
    """

    def __init__(
        self,
        items: Items,
        codec: RowCodec[_T],
        options: Options,
        changes: Changes,
        sweep: Sweep,
        sweeper: Sweeper,
    ) -> None:
        self.layout = items.layout
        self.codec = codec
        self.given_options = options
        self._items = items
        self._changes = changes
        self._sweep = sweep
        self._sweeper = sweeper
        self.lookup = Lookup(items)
        self.numbers = Numbers(items, first_key)
        self._holds = Holds(items.layout, items.rate)

    def look(self, tr: ReadTransactor, body: Callable[[ReadTransaction], _R]) -> _R:
        """Run a read in the caller's transaction; given a database, sweep and run it then."""
        self._sweeper.sweep_once(tr)
        return read(tr, body)

    def options(self, tr: ReadTransactor) -> Options:
        """Return the stored options of the queue; before the first push, the given ones."""
        return read(tr, self._items.options.read) or self.given_options

    def decode(self, tr: ReadTransaction, item: StoredItem) -> _T:
        """Return a stored item as its user sees it; raise `UndecodableItem` if that fails."""
        return self.codec.decode(item, read_payload(tr, self.layout, item.content))

    def pushed(self, tr: ReadTransaction, new: NewItem, pushed: Pushed) -> Any:
        """Return what `push` returns for an item, or for the one that has its unique key."""
        shown: Any
        if pushed.found is None:
            priority = self._items.levels.level_of(pushed.key).priority
            shown = self.codec.pushed(pushed.key, new.value, priority)
        else:
            shown = self.decode(tr, pushed.found.item)
        if isinstance(shown, Task):
            return shown.id
        return shown if isinstance(shown, str) else replace(shown, is_new=pushed.is_new)

    def _decoded_if_possible(self, tr: ReadTransaction, found: ItemRow) -> _T | None:
        """Return an item; `None` if it cannot be decoded, which is why some items die."""
        with suppress(UndecodableItem):
            return self.decode(tr, found.item)
        return None

    # Single items

    def _at(
        self,
        tr: ReadTransactor,
        item: _T | str,
        show: Callable[[ReadTransaction, ItemRow | None], _R],
    ) -> _R:
        """Return what is shown of an item in any state, or of `None` if it ended."""
        reference, now, sweeps = self.codec.reference(item), milliseconds(), may_sweep(tr)

        def body(tr: Any) -> _R:
            if sweeps:  # the item alone, if its timer is over
                found = self._sweep.find(tr, now, reference)
            else:
                found = self._items.find(tr, reference)
            return show(tr, found or self.lookup.find_staged(tr, reference))

        return read(tr, body)

    def _located(self, tr: ReadTransactor, item: _T | str) -> ItemRow | None:
        return self._at(tr, item, lambda _, found: found)

    def find(self, tr: ReadTransactor, item: _T | str) -> _T | None:
        """Return an item in any state; `None` if it ended."""
        return self._at(tr, item, lambda tr, found: found and self.decode(tr, found.item))

    def state(self, tr: ReadTransactor, item: _T | str) -> State | None:
        """Return the state of an item; `None` if it ended."""
        found = self._located(tr, item)
        return None if found is None else found.state

    def get(self, tr: ReadTransactor, item: _T | str) -> ItemInfo | None:
        """Return everything about an item; `None` if it ended."""
        self._sweeper.sweep_once(tr)  # other items may hold it back
        return self._at(
            tr, item, lambda tr, found: found and self._info(tr, found, counts_ahead=True)()
        )

    def _info(
        self, tr: ReadTransaction, found: ItemRow, counts_ahead: bool = False
    ) -> Callable[[], ItemInfo]:
        """Start to read what is known of an item; return a function that waits for it."""
        state, key, header = found.state, found.key, found.item.header
        position = self.layout.position(key)
        expires = None if state in ("dead", "done") else header.expires
        returned = tr[self.layout.returned + position] if state == "done" else None
        begun_lease = self.lookup.begin_lease(tr, found)
        begun_attempts = begin_attempts(tr, self.layout, position)
        begun_options = self._items.options.begin_read(getattr(tr, "snapshot", tr))
        begun_hold = self._holds.begin(tr, found.item) if state == "ready" else None
        begun_ahead = begin_ahead(tr, found.item) if begun_hold and counts_ahead else None

        def finish() -> ItemInfo:
            options, lease, failed = begun_options(), begun_lease(), begun_attempts()
            error = found.error or (failed[-1].error if failed else None)
            item = self._decoded_if_possible(tr, found)
            return ItemInfo(
                item=item,
                id=self.codec.id_of(found.item),
                state=state,
                attempts=found.attempts,
                max_attempts=None if options is None else options.max_attempts,
                pushed_at=self.layout.pushed_at(key),
                due_at=utc_time(found.due) if state == "delayed" and found.due != NEVER else None,
                expires_at=None if expires is None else utc_time(expires),
                claimed_by=_client_of(found, lease),
                claimed_at=_claimed_at(found),
                lease_ends=lease and utc_time(lease.clock_end),
                died_at=utc_time(found.died_at) if state == "dead" else None,
                cancelling=state == "claimed" and header.cancelled is not None,
                finished_at=utc_time(found.finished_at) if state == "done" else None,
                outcome=found.outcome if state == "done" else None,
                result=None if returned is None else decode_json(returned.value),
                error=found.error if state == "done" else error,
                unique=header.unique_key,
                group=item.agent_name if isinstance(item, Task) else found.item.level.group,
                held_by=begun_hold and begun_hold(options, item, milliseconds()),
                waits_for=waits_for(tr, self.layout, found, job_of(item), failed),
                parent=parent_of(tr, self.layout, found),
                ahead_in_group=begun_ahead and begun_ahead(),
                progress=_progress(lease),
                log=lease.report.log if lease else found.log,
                stored_steps=header.steps,
                in_batch=bool(header.batch or header.followers) or header.awaits,
                failed_attempts=tuple(failed),
            )

        return finish

    def position(self, tr: ReadTransactor, item: _T | str) -> int | None:
        """Return the number of items ahead of an item; `None` if it is not ready."""
        self._sweeper.sweep_once(tr)
        found = self._located(tr, item)
        if found is None or found.state != "ready":
            return None
        begin, end = self.layout.all_items[0], found.key
        return sum(read_pages(tr, begin, end, lambda _, rows: len(rows), size=10 * PAGE))

    # All items

    def peek(self, tr: ReadTransactor, n: int, at_max: bool = False) -> list[_T]:
        """Return the items that `pop` would take."""

        def body(tr: ReadTransaction) -> list[_T]:
            return [self.decode(tr, item) for item in self._first_ready(tr, n, at_max)]

        return self.look(tr, body)

    def _first_ready(self, tr: ReadTransaction, n: int, at_max: bool = False) -> list[StoredItem]:
        """Return up to `n` first ready items, also tasks of agents that are paused."""
        if at_max:
            return self._items.first(tr, n, at_max)
        return self._items.begin_read(tr, *self.layout.all_items, n)()

    def _list(
        self, tr: ReadTransactor, show: _Show[_R], of: _Range, limit: int = 0
    ) -> Iterator[_R]:
        """Iterate over what is shown of some items.

        On a database, read them in pages. In a transaction, read only the items that the caller
        asks for, and conflict only with changes of them.
        """
        if is_database(tr):
            return self._pages(tr, show, of, limit)
        state, begin, end, reverse, _ = of
        found = self.lookup.listed(tr, begin, end, limit, reverse, state)
        return chain.from_iterable(show(tr, [item]) for item in found)

    def _pages(self, db: ReadTransactor, show: _Show[_R], of: _Range, limit: int) -> Iterator[_R]:
        """Iterate over what is shown of some items, page by page. The first one sweeps."""
        self._sweeper.sweep_once(db)
        is_one_range = of.group is None or self.given_options.kind == "task"
        for each in [of] if is_one_range else self._of_group(db, of, of.group or ""):
            yield from self._pages_of(db, show, each, limit)

    def _of_group(self, db: ReadTransactor, of: _Range, group: str) -> Iterator[_Range]:
        """Yield the ranges of the items of a group: one for each priority that has items."""
        state, begin, end, reverse, _ = of
        levels = self._items.levels
        while begin < end:

            def first(
                tr: ReadTransaction, begin: bytes = begin, end: bytes = end
            ) -> ItemRow | None:
                return next(self.lookup.listed(tr, begin, end, 1, reverse, state), None)

            found = read(db, first)
            if found is None:
                return
            level = levels.in_group(found.item.level, group or None)
            yield _Range(state, max(begin, level.begin), min(end, level.end), reverse)
            before, after = self.layout.range_of(level.of_priority)
            begin, end = (begin, before) if reverse else (after, end)

    def _pages_of(
        self, db: ReadTransactor, show: _Show[_R], of: _Range, limit: int
    ) -> Iterator[_R]:
        state, first, last, reverse, agent = of

        def done(tr: ReadTransaction, times: list[KeyValue]) -> list[_R]:
            return show(tr, self._changes.done_at(tr, times))

        if state == "done":  # in order of their times, the newest first
            pages = read_pages(db, first, last, done, limit=limit, reverse=not reverse)
            return chain.from_iterable(pages)
        rows: Callable[..., Iterable[ItemRow]] = partial(self.lookup.listed, state=state)
        if agent is not None:
            index = self.layout.entry_key(self.layout.agents, agent or None)
            rows = partial(self.lookup.indexed, index=index)
        pages = read_pages(db, first, last, show, limit=limit, reverse=reverse, rows=rows)
        return chain.from_iterable(pages)

    def indexed(self, tr: ReadTransactor, index: bytes, limit: int) -> Iterator[_T]:
        """Iterate over the first ready items of an index, page by page."""
        self._sweeper.sweep_once(tr)
        rows = partial(self.lookup.indexed, index=index)
        for page in read_pages(tr, *self.layout.all_items, self._values, limit=limit, rows=rows):
            yield from page

    def items(
        self,
        tr: ReadTransactor,
        state: State | None,
        limit: int,
        after: _T | str | None,
        reverse: bool,
        priority: Priority | None = None,
    ) -> Iterator[Any]:
        """Iterate over what is known of the items in a state, in order, or over the ready items.

        On a database, read them in pages. Done items are in order of their acknowledgement, the
        newest first.
        """
        if state == "done":
            return self.matching(tr, state, Filter(priority), limit, after, reverse)
        of = self._range(tr, state or "ready", after, reverse, priority)
        if state is None:
            return self._list(tr, self._values, of, limit)
        return self._list(tr, self._infos, of, limit)

    def matching(
        self,
        db: ReadTransactor,
        state: State,
        wanted: Filter,
        limit: int = 0,
        after: _T | str | None = None,
        reverse: bool = False,
    ) -> Iterator[ItemInfo]:
        """Iterate over the items in a state that match, in order, page by page."""
        of = self._range(db, state, after, reverse, wanted.priority, wanted.group)
        found = self._pages(db, partial(self._selected, wanted, self._infos), of, 0)
        return islice((info for _, info in found if info is not None), limit or None)

    def search(
        self,
        db: ReadTransactor,
        state: State,
        wanted: Filter,
        limit: int,
        after: _T | str | None,
        reverse: bool,
        scan: int,
    ) -> SearchPage:
        """Return up to `limit` items in a state that match, among up to `scan` items."""
        of = self._range(db, state, after, reverse, wanted.priority, wanted.group)
        return SearchPage(*self._first(db, of, wanted, self._infos, limit, scan))

    def count(
        self, db: ReadTransactor, state: State, wanted: Filter, after: _T | str | None, scan: int
    ) -> MatchCount:
        """Return how many items in a state match, among up to `scan` items."""
        of = self._range(db, state, after, False, wanted.priority, wanted.group)
        found, last, scanned = self._first(db, of, wanted, _matches, scan, scan)
        return MatchCount(len(found), last, scanned)

    def sample(
        self, db: ReadTransactor, state: State, limit: int
    ) -> Iterator[tuple[StoredJob | None, ItemRow]]:
        """Iterate over the first items in a state and their jobs; the newest done ones.

        What needs further reads is left out.
        """

        def show(
            tr: ReadTransaction, items: list[ItemRow]
        ) -> list[tuple[StoredJob | None, ItemRow]]:
            return [(job_of(self._decoded_if_possible(tr, found)), found) for found in items]

        return self._pages(db, show, self._range(db, state, None, False), limit)

    def _first(
        self,
        db: ReadTransactor,
        of: _Range,
        wanted: Filter,
        show: _Show[_R],
        limit: int,
        scan: int,
    ) -> tuple[list[_R], str | None, int]:
        """Look for up to `limit` items that match, among up to `scan` items.

        Returns:
            What is shown of them, the id of the last item that was scanned, or `None` if none
            follows, and how many were scanned.
        """

        def show_few(tr: ReadTransaction, found: list[ItemRow]) -> list[_R | None]:
            return [*show(tr, found[:limit]), *[None] * (len(found) - limit)]

        shown: list[_R] = []
        last, scanned = None, 0
        # One more item shows whether any follows.
        by_key = self.given_options.kind == "priority" and of.state != "done"
        by_range = Filter(wanted.priority if by_key else None, group=of.group)
        most = min(limit, scan) if wanted == by_range else scan
        select = partial(self._selected, wanted, show_few)
        for found, one in self._pages(db, select, of, most + 1):
            if scanned == scan or len(shown) == limit:
                return shown, last and self.codec.id_of(last.item), scanned
            last, scanned = found, scanned + 1
            if one is not None:
                shown.append(one)
        return shown, None, scanned

    def _selected(
        self, wanted: Filter, show: _Show[_R], tr: ReadTransaction, items: list[ItemRow]
    ) -> list[tuple[ItemRow, _R | None]]:
        tests = [self._begin_test(tr, wanted, found) for found in items]
        matching = [found for found, test in zip(items, tests, strict=True) if test()]
        shown = dict(zip((found.key for found in matching), show(tr, matching), strict=True))
        return [(found, shown.get(found.key)) for found in items]

    def _begin_test(
        self, tr: ReadTransaction, wanted: Filter, found: ItemRow
    ) -> Callable[[], bool]:
        """Start to read whether an item matches; return a function that waits for it."""
        priority, agent, id, error, client, job, group = wanted
        if group is not None and not self._is_in_group(group, tr, found.item):
            return _never
        if id is not None and id not in self.codec.id_of(found.item):
            return _never
        if priority is not None and self.given_options.kind == "priority":
            if not found.key.startswith(self._items.levels.level(priority).prefix):
                return _never
        elif priority is not None or agent is not None:
            task: Any = self._decoded_if_possible(tr, found)
            if task is None or priority not in (None, task.priority):
                return _never
            if not _has(task.agent_name, agent):
                return _never
        begun_error = begun_lease = None
        if error is not None and not found.error:
            position = self.layout.position(found.key)
            begun_error = begin_last_error(tr, self.layout, position)
        if client is not None:
            begun_lease = self.lookup.begin_lease(tr, found)

        def test() -> bool:
            if job is not None:
                stored = job_of(self._decoded_if_possible(tr, found))
                if stored is None or not _is_named(stored.name, job):
                    return False
            lease = begun_lease and begun_lease()
            last_error = begun_error() if begun_error else found.error
            return _has(last_error, error) and _has(lease and lease.client, client)

        return test

    def _is_in_group(self, group: str, tr: ReadTransaction, item: StoredItem) -> bool:
        return (self._items.group_of(tr, item) or "") == group

    def _infos(self, tr: ReadTransaction, items: list[ItemRow]) -> list[ItemInfo]:
        return [finish() for finish in [self._info(tr, found) for found in items]]

    def result(
        self, tr: ReadTransactor, item: _T | str, *, must_have_ended: bool = False
    ) -> Finished | None:
        """Return how an item ended; `None` if it has not.

        Raises:
            NoResult: It is dead or unknown; with `must_have_ended`, also if it has not ended.
        """

        def show(tr: ReadTransaction, found: ItemRow | None) -> Finished | None:
            id = item if isinstance(item, str) else item.id
            if found is not None and found.state in ("ready", "delayed", "claimed"):
                if must_have_ended:
                    raise NoResult(id, found.state)
                return None
            if found is None or found.state == "dead":
                raise NoResult(id, found and found.state, found and found.error)
            position = self.layout.position(found.key)
            return Finished(decode_json(tr[self.layout.returned + position].value))

        return self._at(tr, item, show)

    def _range(
        self,
        tr: ReadTransactor,
        state: State,
        after: _T | str | None,
        reverse: bool,
        priority: Priority | None = None,
        group: str | None = None,
    ) -> _Range:
        """Return the items in a state behind an item.

        The items of another priority or group are left out where keys tell them apart.
        """
        begin, end = self.layout.all_items
        if state == "done" or (self.given_options.kind == "task" and state != "ready"):
            group = None
        if state == "done":
            begin, end = self.layout.range_of(self.layout.done_times)
        elif priority is not None and self.given_options.kind == "priority":
            level = self._items.levels.level(priority)
            begin, end = self.layout.range_of(level.of_priority)
        if after is None:
            return _Range(state, begin, end, reverse, group)
        if state == "done":
            newer, older = self._times_around(tr, after, not reverse)
            return _Range(state, *((newer, end) if reverse else (begin, older)), reverse)
        passed = self._key_of(tr, after)
        if reverse:
            return _Range(state, begin, min(end, passed), reverse, group)
        return _Range(state, max(begin, passed + b"\0"), end, reverse, group)

    def _times_around(
        self, tr: ReadTransactor, after: _T | str, may_be_gone: bool
    ) -> tuple[bytes, bytes]:
        """Return the key behind that of the time of a done item, and the key itself."""
        times = self.layout.done_times
        found = self._located(tr, after)
        if found is None and may_be_gone:
            return times, times  # it is not kept any more, nor are the older ones
        if found is None or found.state != "done":
            raise InvalidItemId(after)
        passed = self.layout.timer_key(times, found.finished_at, self.layout.position(found.key))
        return passed + b"\x00", passed

    def _key_of(self, tr: ReadTransactor, item: _T | str) -> bytes:
        """Return the key that an item has while it is ready, perhaps since it was moved."""
        reference = self.codec.reference(item)
        if self.given_options.kind == "task":  # whose ids do not say where they are
            found = self._located(tr, item)
            if found is None:
                raise InvalidItemId(item)
            return found.key
        moved = read(tr, lambda tr: tr[self.layout.moved + reference].value)
        if moved is None and isinstance(item, Item):
            return item.key  # the last position of an item that was moved and ended
        return self.layout.items + (reference if moved is None else moved)

    def _values(self, tr: ReadTransaction, items: list[ItemRow]) -> list[_T]:
        return [self.decode(tr, found.item) for found in items]

    def stats(self, tr: ReadTransactor) -> QueueStats:
        """Return the numbers of the queue."""
        return self.look(tr, partial(self.numbers.stats, given=self.given_options))

    def history(self, tr: ReadTransactor) -> list[HistoryWindow]:
        """Return what happened in the last 5 minutes, hour and day."""
        return read(tr, partial(read_history, now=milliseconds(), layout=self.layout))

    def size(self, tr: ReadTransactor) -> int:
        """Return the number of ready items."""
        return self.look(tr, self.numbers.size)

    def is_empty(self, tr: ReadTransactor) -> bool:
        """Return whether no item is ready."""
        return not self.look(tr, partial(self._first_ready, n=1))

    def counts(self, tr: ReadTransactor) -> dict[Any, int]:
        """Return the number of ready items of each priority; omit priorities without items."""
        return self.look(tr, self.numbers.counts)

    def counts_text(self, db: Database) -> str:
        """Return the counts as text, for a log: an error must not hide what has happened."""
        try:
            counts = self.counts(db)
        except error_classes() as error:
            return f"unknown ({error.code})"
        return " ".join(f"{level}:{count:,}" for level, count in counts.items()) or "nothing"


def _is_named(name: str, wanted: str) -> bool:
    """Return whether a job has this name, or one that ends with it, as in `module.function`.

    >>> [_is_named("shop.send", wanted) for wanted in ("shop.send", "send", "end")]
    [True, True, False]
    """
    return f".{name}".endswith(f".{wanted}")


def _matches(_: ReadTransaction, items: list[ItemRow]) -> list[bool]:
    return [True] * len(items)


def _never() -> bool:
    return False


def _has(text: str | None, part: str | None) -> bool:
    """Return whether a text contains a part, ignoring case; any text has the part `None`."""
    return part is None or part.casefold() in (text or "").casefold()
