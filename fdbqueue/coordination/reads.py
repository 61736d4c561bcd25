"""Look at a queue, on a transaction or on a database. Nothing here writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from fdbqueue.database.binding import error_classes, first_key, is_database
from fdbqueue.database.clock import milliseconds
from fdbqueue.database.pages import PAGE, read_pages
from fdbqueue.database.retrying import read
from fdbqueue.errors import InvalidItemId, NoResult, UndecodableItem
from fdbqueue.layout.codecs import RowCodec, decode_json
from fdbqueue.layout.items import UUID_SIZE, StoredItem, time_of
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.priorities import Levels
from fdbqueue.layout.values import decode_options, utc_time
from fdbqueue.operations.done import DoneItems
from fdbqueue.operations.failures import begin_attempts, begin_last_error
from fdbqueue.operations.history import read_history
from fdbqueue.operations.items import Items, LocatedItem
from fdbqueue.operations.slots import ReadFirst
from fdbqueue.operations.views.listing import Views
from fdbqueue.types import (
    Database,
    HistoryWindow,
    Item,
    ItemInfo,
    KeyValue,
    MatchCount,
    Options,
    Priority,
    QueueStats,
    ReadTransaction,
    ReadTransactor,
    SearchPage,
    State,
    Task,
)

_T = TypeVar("_T", bound=Item | Task)
_R = TypeVar("_R")

_Show: TypeAlias = Callable[[ReadTransaction, list[LocatedItem]], list[_R]]
"""A function that returns, for each of the given items, what to show of it."""


class Finished(NamedTuple):
    """The end of an item that is done: what its handler returned, or `None`."""

    result: Any


class Filter(NamedTuple):
    """The items that a search looks for: those to which all of these apply. `None` is for any.

    Attributes:
        priority: Their priority.
        agent: Text within the name of the agent of a task, ignoring case.
        id: Text within the id.
        error: Text within the error of the last failed attempt, ignoring case.
        client: Text within the name of the client that has claimed the item, ignoring case.
    """

    priority: Any = None
    agent: str | None = None
    id: str | None = None
    error: str | None = None
    client: str | None = None


class Reads(Generic[_T]):
    """The reads of one queue.

    The methods expect arguments that the queue object has validated. They show leases and delays
    that are over as the next sweep leaves them (see `Views`).

    Args:
        layout: The keys of the queue.
        levels: The levels of the queue.
        items: The items of the queue within a transaction.
        codec: The conversion between items and rows.
        options: The options that the client opened the queue with.
    """

    def __init__(
        self,
        layout: Layout,
        levels: Levels,
        items: Items,
        codec: RowCodec[_T],
        options: Options,
        done: DoneItems,
    ) -> None:
        self.layout = layout
        self.levels = levels
        self.codec = codec
        self.given_options = options
        self._items = items
        self._done_items = done
        self.views = Views(layout, items, first_key)

    def options(self, tr: ReadTransactor) -> Options:
        """Return the stored options of the queue; before the first push, the given ones."""

        def body(tr: ReadTransaction) -> Options:
            stored = tr[self.layout.options].value
            return self.given_options if stored is None else decode_options(stored)

        return read(tr, body)

    # Single items

    def find(self, tr: ReadTransactor, item: _T | str) -> _T | None:
        """Return an item in any state; `None` if it ended."""
        reference, now = self.codec.reference(item), milliseconds()

        def body(tr: ReadTransaction) -> _T | None:
            found = self.views.locate(tr, reference, now)
            return None if found is None else self.codec.decode(tr, found.item)

        return read(tr, body)

    def state(self, tr: ReadTransactor, item: _T | str) -> State | None:
        """Return the state of an item; `None` if it ended."""
        reference, now = self.codec.reference(item), milliseconds()
        found = read(tr, lambda tr: self.views.locate(tr, reference, now))
        return None if found is None else found.state

    def get(self, tr: ReadTransactor, item: _T | str) -> ItemInfo | None:
        """Return everything about an item; `None` if it ended."""
        reference, now = self.codec.reference(item), milliseconds()

        def body(tr: ReadTransaction) -> ItemInfo | None:
            found = self.views.locate(tr, reference, now)
            return None if found is None else self._info(tr, found)()

        return read(tr, body)

    def _info(self, tr: ReadTransaction, found: LocatedItem) -> Callable[[], ItemInfo]:
        """Start to read what is known of an item; return a function that waits for it."""
        state, key, header, metadata = found.state, found.key, found.item.header, found.metadata
        attempts = header.attempts
        due_at = died_at = error = claimed_at = finished_at = returned = None
        position = self.layout.position(key)
        if state == "delayed":
            due_at = utc_time(metadata[0])
        elif state == "claimed" and metadata:
            attempts, claimed_at = metadata[2], time_of(metadata[0][:UUID_SIZE])
        elif state == "dead":
            attempts, died_at, error = metadata[0], utc_time(metadata[1]), metadata[2]
        elif state == "done":
            finished_at, attempts = utc_time(metadata[0]), metadata[1]
            returned = tr[self.layout.returned + position]
        expires = None if state in ("dead", "done") else header.expires
        begun_lease = self.views.begin_lease(tr, found)
        begun_attempts = begin_attempts(tr, self.layout, position)
        options = getattr(tr, "snapshot", tr).get(self.layout.options)

        def finish() -> ItemInfo:
            stored, lease, failed = options.value, begun_lease(), begun_attempts()
            last = failed[-1].error if failed else None
            return ItemInfo(
                item=self._decoded_if_possible(tr, found),
                id=self.codec.id_of(found.item),
                state=state,
                attempts=attempts,
                max_attempts=None if stored is None else decode_options(stored).max_attempts,
                pushed_at=self.layout.pushed_at(key),
                due_at=due_at,
                expires_at=None if expires is None else utc_time(expires),
                claimed_by=None if state != "claimed" else lease.client if lease else "",
                claimed_at=claimed_at,
                lease_ends=lease and utc_time(lease.clock_end),
                died_at=died_at,
                finished_at=finished_at,
                result=None if returned is None else decode_json(returned.value),
                error=None if state == "done" else error or last,
                unique=header.unique,
                failed_attempts=tuple(failed),
            )

        return finish

    def position(self, tr: ReadTransactor, item: _T | str) -> int | None:
        """Return the number of items ahead of an item; `None` if it is not ready."""
        reference, now = self.codec.reference(item), milliseconds()
        found = read(tr, lambda tr: self.views.locate(tr, reference, now))
        if found is None or found.state != "ready":
            return None
        begin, key = self.layout.all_items[0], found.key
        n = sum(read_pages(tr, begin, key, lambda _, rows: len(rows), size=10 * PAGE))
        return read(tr, lambda tr: self.views.count_before(tr, key, n, now))

    # All items

    def _decoded_if_possible(self, tr: ReadTransaction, found: LocatedItem) -> _T | None:
        """Return an item; `None` if it cannot be decoded, which is why some items die."""
        with suppress(UndecodableItem):
            return self.codec.decode(tr, found.item)
        return None

    def peek(self, tr: ReadTransactor, n: int, at_max: bool = False) -> list[_T]:
        """Return the items that `pop` would take."""
        now = milliseconds()

        def body(tr: ReadTransaction) -> list[_T]:
            return [self.codec.decode(tr, item) for item in self.views.first(tr, n, now, at_max)]

        return read(tr, body)

    def peek_of(
        self,
        tr: ReadTransactor,
        first: ReadFirst,
        is_one: Callable[[ReadTransaction, StoredItem], bool],
    ) -> _T | None:
        """Return the item that `pop_of` would take: the first one that `is_one` accepts."""
        now = milliseconds()

        def body(tr: ReadTransaction) -> _T | None:
            found = self.views.first_of(tr, first, is_one, now)
            return None if found is None else self.codec.decode(tr, found)

        return read(tr, body)

    def _list(
        self,
        tr: ReadTransactor,
        state: State,
        begin_show: Callable[[ReadTransaction, LocatedItem], Callable[[], _R]],
        begin: bytes | None = None,
        end: bytes | None = None,
        limit: int = 0,
        reverse: bool = False,
    ) -> Iterator[_R]:
        """Iterate over what is shown of the items in a state and in a range of keys.

        On a database, read them in pages. In a transaction, read only the items that the caller
        asks for, and conflict only with changes of them.

        `begin_show(tr, item)` starts reads and returns a function that waits for them.
        """
        now = milliseconds()
        first, last = self.layout.all_items
        begin, end = begin or first, end or last
        if not is_database(tr):
            found = self.views.listed(tr, state, begin, end, now, limit, reverse)
            return (begin_show(tr, item)() for item in found)

        def rows(
            tr: ReadTransaction, begin: bytes, end: bytes, n: int, reverse: bool
        ) -> Iterator[LocatedItem]:
            return self.views.listed(tr, state, begin, end, now, n, reverse)

        def page(tr: ReadTransaction, items: list[LocatedItem]) -> list[_R]:
            return [finish() for finish in [begin_show(tr, item) for item in items]]

        pages = read_pages(tr, begin, end, page, limit=limit, reverse=reverse, rows=rows)
        return chain.from_iterable(pages)

    def browse(
        self,
        tr: ReadTransactor,
        limit: int,
        after: _T | str | None,
        reverse: bool,
        priority: Priority | None = None,
    ) -> Iterator[_T]:
        """Iterate over the ready items in order; on a database, read them in pages."""
        bounds = self._bounds(tr, after, reverse, priority)
        return self._list(tr, "ready", self._shown, *bounds, limit, reverse)

    def inspect(
        self,
        tr: ReadTransactor,
        state: State,
        limit: int,
        after: _T | str | None,
        reverse: bool,
        priority: Priority | None = None,
    ) -> Iterator[ItemInfo]:
        """Iterate over the items in a state in order; on a database, read them in pages.

        Done items are in order of their acknowledgement, the newest first.
        """
        if state == "done":
            infos = self._done(tr, Filter(priority), self._infos, after, reverse)
            return islice((info for _, info in infos if info is not None), limit or None)
        bounds = self._bounds(tr, after, reverse, priority)
        return self._list(tr, state, self._info, *bounds, limit, reverse)

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
        found = self._scan(db, state, wanted, self._infos, after, reverse, 0)
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

        def show(tr: ReadTransaction, found: list[LocatedItem]) -> list[ItemInfo | None]:
            return [*self._infos(tr, found[:limit]), *[None] * (len(found) - limit)]

        items: list[ItemInfo] = []
        last, scanned = None, 0
        # One more item shows whether any follows.
        most = min(limit, scan) if self._matches_by_key(state, wanted) else scan
        for found, info in self._scan(db, state, wanted, show, after, reverse, most + 1):
            if scanned == scan or len(items) == limit:
                return SearchPage(items, last and self.codec.id_of(last.item), scanned)
            last, scanned = found, scanned + 1
            if info is not None:
                items.append(info)
        return SearchPage(items, None, scanned)

    def count(
        self, db: ReadTransactor, state: State, wanted: Filter, after: _T | str | None, scan: int
    ) -> MatchCount:
        """Return how many items in a state match, among up to `scan` items."""
        last, count, scanned = None, 0, 0
        for found, is_match in self._scan(db, state, wanted, _matches, after, False, scan + 1):
            if scanned == scan:
                return MatchCount(count, last and self.codec.id_of(last.item), scanned)
            last, scanned = found, scanned + 1
            count += is_match is not None
        return MatchCount(count, None, scanned)

    def _scan(
        self,
        db: ReadTransactor,
        state: State,
        wanted: Filter,
        show: _Show[_R],
        after: _T | str | None,
        reverse: bool,
        limit: int,
    ) -> Iterator[tuple[LocatedItem, _R | None]]:
        """Iterate over all items in a state, each with what is shown of it if it matches.

        The items of another priority are left out where the range of keys tells them apart.
        """
        if state == "done":
            return self._done(db, wanted, show, after, reverse, limit)
        by_key = self.given_options.kind == "priority"
        begin, end = self._bounds(db, after, reverse, wanted.priority if by_key else None)
        now = milliseconds()

        def rows(
            tr: ReadTransaction, begin: bytes, end: bytes, n: int, reverse: bool
        ) -> Iterator[LocatedItem]:
            return self.views.listed(tr, state, begin, end, now, n, reverse)

        page = partial(self._selected, wanted, show)
        pages = read_pages(db, begin, end, page, limit=limit, reverse=reverse, rows=rows)
        return chain.from_iterable(pages)

    def _matches_by_key(self, state: State, wanted: Filter) -> bool:
        """Return whether all items that `_scan` iterates over match."""
        by_range = self.given_options.kind == "priority" and state != "done"
        return wanted == (Filter(wanted.priority) if by_range else Filter())

    def _selected(
        self, wanted: Filter, show: _Show[_R], tr: ReadTransaction, items: list[LocatedItem]
    ) -> list[tuple[LocatedItem, _R | None]]:
        # Start all reads before waiting for the first.
        tests = [self._begin_test(tr, wanted, found) for found in items]
        matching = [found for found, test in zip(items, tests, strict=True) if test()]
        shown = dict(zip((found.key for found in matching), show(tr, matching), strict=True))
        return [(found, shown.get(found.key)) for found in items]

    def _begin_test(
        self, tr: ReadTransaction, wanted: Filter, found: LocatedItem
    ) -> Callable[[], bool]:
        """Start to read whether an item matches; return a function that waits for it."""
        priority, agent, id, error, client = wanted
        if id is not None and id not in self.codec.id_of(found.item):
            return _never
        if priority is not None and self.given_options.kind == "priority":
            if not found.key.startswith(self.levels.level(priority).prefix):
                return _never
        elif priority is not None or agent is not None:
            task: Any = self._decoded_if_possible(tr, found)
            if task is None or priority not in (None, task.priority):
                return _never
            if not _has(task.agent_name, agent):
                return _never
        known = found.metadata[2] if found.state == "dead" else None
        begun_error = begun_lease = None
        if error is not None and not known:
            position = self.layout.position(found.key)
            begun_error = begin_last_error(tr, self.layout, position)
        if client is not None:
            begun_lease = self.views.begin_lease(tr, found)

        def test() -> bool:
            lease = begun_lease and begun_lease()
            return _has(begun_error() if begun_error else known, error) and _has(
                lease and lease.client, client
            )

        return test

    def _infos(self, tr: ReadTransaction, items: list[LocatedItem]) -> list[ItemInfo]:
        return [finish() for finish in [self._info(tr, found) for found in items]]

    def _done(
        self,
        tr: ReadTransactor,
        wanted: Filter,
        show: _Show[_R],
        after: _T | str | None,
        reverse: bool,
        limit: int = 0,
    ) -> Iterator[tuple[LocatedItem, _R | None]]:
        times = self.layout.done_times
        begin, end = self.layout.range_of(times)
        if after is not None:
            reference, now = self.codec.reference(after), milliseconds()
            found = read(tr, lambda tr: self.views.locate(tr, reference, now))
            if found is None and not reverse:
                return iter(())  # it is not kept any more, nor are the older ones
            if found is None or found.state != "done":
                raise InvalidItemId(after)
            position = self.layout.position(found.key)
            passed = self.layout.timer_key(times, found.metadata[0], position)
            begin, end = (passed + b"\x00", end) if reverse else (begin, passed)

        def page(tr: ReadTransaction, rows: list[KeyValue]) -> list[tuple[LocatedItem, _R | None]]:
            return self._selected(wanted, show, tr, self._done_items.at(tr, rows))

        return chain.from_iterable(
            read_pages(tr, begin, end, page, limit=limit, reverse=not reverse)
        )

    def result(
        self, tr: ReadTransactor, item: _T | str, *, must_have_ended: bool = False
    ) -> Finished | None:
        """Return how an item ended; `None` if it has not.

        Raises:
            NoResult: It is dead or unknown; with `must_have_ended`, also if it has not ended.
        """
        reference, now = self.codec.reference(item), milliseconds()

        def body(tr: ReadTransaction) -> Finished | None:
            found = self.views.locate(tr, reference, now)
            id = item if isinstance(item, str) else item.id
            if found is not None and found.state in ("ready", "delayed", "claimed"):
                if must_have_ended:
                    raise NoResult(id, found.state)
                return None
            if found is None or found.state == "dead":
                raise NoResult(id, found and found.state, found and found.metadata[2])
            position = self.layout.position(found.key)
            return Finished(decode_json(tr[self.layout.returned + position].value))

        return read(tr, body)

    def _bounds(
        self,
        tr: ReadTransactor,
        after: _T | str | None,
        reverse: bool,
        priority: Priority | None,
    ) -> tuple[bytes, bytes]:
        """Return the range of the keys of the items of a priority, behind an item."""
        begin, end = self.layout.all_items
        if priority is not None:
            _, begin, end, *_ = self.levels.level(priority)
        if after is not None:
            reference, now = self.codec.reference(after), milliseconds()
            passed = self.layout.items + reference
            if self.given_options.kind == "task":  # whose ids do not say where they are
                found = read(tr, lambda tr: self.views.locate(tr, reference, now))
                if found is None:
                    raise InvalidItemId(after)
                passed = found.key
            else:
                moved = read(tr, lambda tr: tr[self.layout.moved + reference].value)
                if moved is not None:
                    passed = self.layout.items + moved
                elif isinstance(after, Item):
                    passed = after.key  # the last position of an item that was moved and ended
            return (begin, min(end, passed)) if reverse else (max(begin, passed + b"\0"), end)
        return begin, end

    def _shown(self, tr: ReadTransaction, found: LocatedItem) -> Callable[[], _T]:
        return partial(self.codec.decode, tr, found.item)

    def stats(self, tr: ReadTransactor) -> QueueStats:
        """Return the numbers of the queue."""
        now = milliseconds()
        return read(tr, lambda tr: self.views.stats(tr, now, self.given_options))

    def history(self, tr: ReadTransactor) -> list[HistoryWindow]:
        """Return what happened in the last 5 minutes, hour and day."""
        now = milliseconds()
        return read(tr, lambda tr: read_history(tr, self.layout, now))

    def size(self, tr: ReadTransactor) -> int:
        """Return the number of ready items."""
        now = milliseconds()
        return read(tr, lambda tr: self.views.size(tr, now))

    def is_empty(self, tr: ReadTransactor) -> bool:
        """Return whether no item is ready."""
        now = milliseconds()
        return read(tr, lambda tr: not self.views.first(tr, 1, now))

    def counts(self, tr: ReadTransactor) -> dict[Any, int]:
        """Return the number of ready items of each priority; omit priorities without items."""
        now = milliseconds()
        return read(tr, lambda tr: self.views.counts(tr, now))

    def counts_text(self, db: Database) -> str:
        """Return the counts as text, for a log: an error must not hide what has happened."""
        try:
            counts = self.counts(db)
        except error_classes() as error:
            return f"unknown ({error.code})"
        return " ".join(f"{level}:{count:,}" for level, count in counts.items()) or "nothing"


def _matches(_: ReadTransaction, items: list[LocatedItem]) -> list[bool]:
    return [True] * len(items)


def _never() -> bool:
    return False


def _has(text: str | None, part: str | None) -> bool:
    """Return whether a text contains a part, ignoring case; any text has the part `None`."""
    return part is None or part.casefold() in (text or "").casefold()
