"""Reads of a queue, in a transaction or on a database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from heapq import merge
from itertools import chain, islice
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from fdbqueue.coordination.sweeper import Sweeper, may_sweep
from fdbqueue.database.binding import first_key, is_database
from fdbqueue.database.clock import milliseconds
from fdbqueue.database.pages import PAGE, ReadRows, read_pages, stored_rows
from fdbqueue.database.retrying import read
from fdbqueue.errors import InvalidItemId, NoResult
from fdbqueue.layout.codecs import decode_json
from fdbqueue.layout.items import Filter, ItemRow, Selection
from fdbqueue.layout.keys import shard_of, shard_prefix
from fdbqueue.layout.rows import RowCodec
from fdbqueue.operations.changes import Changes
from fdbqueue.operations.items import Items, NewItem
from fdbqueue.operations.maintainers.history import read_history
from fdbqueue.operations.options import NO_OPTIONS
from fdbqueue.operations.push import Pushed
from fdbqueue.operations.sweep import Sweep
from fdbqueue.operations.views.item_info import ItemInfos
from fdbqueue.operations.views.stats import read_counts, read_size, read_stats
from fdbqueue.types import (
    ENDED,
    HistoryWindow,
    Item,
    ItemInfo,
    MatchCount,
    Options,
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
"""Returns what to show of each item."""


class Finished(NamedTuple):
    """The end of a done item."""

    result: Any


@dataclass(eq=False)
class Reads(Generic[_T]):
    """The reads of one queue.

    On a database, the methods first sweep, in one transaction, or only the sought item. In a
    transaction they write nothing, and show what is stored. They return `None` for an item that is
    gone.
    """

    items: Items
    codec: RowCodec[_T]
    given_options: Options
    changes: Changes
    sweep: Sweep
    sweeper: Sweeper

    def __post_init__(self) -> None:
        self.layout = self.items.layout
        self._infos = ItemInfos(self.items, self.codec, self.given_options.kind)
        self.decode = self._infos.decode

    def look(self, tr: ReadTransactor, body: Callable[[ReadTransaction], _R]) -> _R:
        """Run a read in a transaction, or on a database after a sweep."""
        self._sweep_once(tr)
        return read(tr, body)

    def _sweep_once(self, tr: ReadTransactor) -> None:
        if may_sweep(tr):
            self.sweeper.sweep(tr, 0)

    def options(self, tr: ReadTransactor) -> Options:
        """Return the stored options; before the first push, the given ones."""
        stored = read(tr, self.items.options.read)
        return self.given_options if stored is NO_OPTIONS else stored

    def pushed(self, tr: ReadTransaction, new: NewItem, pushed: Pushed) -> Any:
        """Return what `push` returns for an item."""
        shown: Any
        if pushed.found is None:
            priority = self.items.levels.level_of(pushed.key).priority
            shown = self.codec.pushed(pushed.key, new.value, priority)
        else:
            shown = self.decode(tr, pushed.found.item)
        if isinstance(shown, Task):
            return shown.id
        return shown if isinstance(shown, str) else replace(shown, is_new=pushed.is_new)

    # Single items

    def _at(
        self,
        tr: ReadTransactor,
        item: _T | str,
        show: Callable[[ReadTransaction, ItemRow | None], _R],
    ) -> _R:
        reference, now, sweeps = self.codec.reference(item), milliseconds(), may_sweep(tr)

        def body(tr: Any) -> _R:
            if sweeps:  # the item alone, if its timer is over
                found = self.sweep.find(tr, now, reference)
            else:
                found = self.items.at(tr, reference)
            return show(tr, found)

        return read(tr, body)

    def _located(self, tr: ReadTransactor, item: _T | str) -> ItemRow | None:
        return self._at(tr, item, lambda _, found: found)

    def find(self, tr: ReadTransactor, item: _T | str) -> _T | None:
        """Return an item in any state."""
        return self._at(tr, item, lambda tr, found: found and self.decode(tr, found.item))

    def state(self, tr: ReadTransactor, item: _T | str) -> State | None:
        """Return the state of an item."""
        found = self._located(tr, item)
        return None if found is None else found.state

    def get(self, tr: ReadTransactor, item: _T | str) -> ItemInfo | None:
        """Return everything about an item."""
        self._sweep_once(tr)  # other items may hold it back
        begin = partial(self._infos.begin, counts_ahead=True)
        return self._at(tr, item, lambda tr, found: found and begin(tr, found=found)())

    def position(self, tr: ReadTransactor, item: _T | str) -> int | None:
        """Return the number of items ahead of a ready item, or `None`."""
        self._sweep_once(tr)
        found = self._located(tr, item)
        if found is None or found.state != "ready":
            return None
        levels, level, ahead = self.items.levels, found.item.level, 0
        for shard, (begin, end) in self._shards(tr, self.layout.items):
            if shard == level.shard:
                end = found.key
            else:
                end = self.layout.range_of_priority(levels.in_shard(level, shard))[0]
            ahead += sum(read_pages(tr, begin, end, lambda _, rows: len(rows), size=10 * PAGE))
        return ahead

    def _shards(self, tr: ReadTransactor, prefix: bytes) -> list[tuple[bytes, tuple[bytes, bytes]]]:
        """Return each shard with the range of its keys below a prefix."""
        shards = read(tr, self.items.options.known_shards)
        ranges = self.layout.shard_ranges(prefix, shards)
        return [(shard_prefix(number), each) for number, each in enumerate(ranges)]

    # All items

    def peek(self, tr: ReadTransactor, n: int, at_max: bool = False) -> list[_T]:
        """Return the items that `pop` would take."""

        def body(tr: ReadTransaction) -> list[_T]:
            return [self.decode(tr, item) for item in self.items.first(tr, n, at_max)]

        return self.look(tr, body)

    def matching(
        self, tr: ReadTransactor, of: Selection, limit: int, show: _Show[_R]
    ) -> Iterator[_R]:
        """Yield what `show` returns for some items."""
        scanned = self.scan(tr, of, show, limit)
        return islice((shown for _, shown in scanned if shown is not None), limit or None)

    def search(self, db: ReadTransactor, of: Selection, limit: int, scan: int) -> SearchPage:
        """Return up to `limit` matches among up to `scan` items."""
        return SearchPage(*self._first(db, of, self.infos, limit, scan))

    def count(self, db: ReadTransactor, of: Selection, scan: int) -> MatchCount:
        """Count the matches among up to `scan` items."""
        found, last, scanned = self._first(db, of, _matches, scan, scan)
        return MatchCount(len(found), last, scanned)

    def _first(
        self, db: ReadTransactor, of: Selection, show: _Show[_R], limit: int, scan: int
    ) -> tuple[list[_R], str | None, int]:
        """Look for up to `limit` matches among up to `scan` items.

        Return what is shown of them, the last scanned id if more follow, and the number scanned.
        """

        def show_few(tr: ReadTransaction, found: list[ItemRow]) -> list[_R | None]:
            return [*show(tr, found[:limit]), *[None] * (len(found) - limit)]

        shown: list[_R] = []
        last, scanned = None, 0
        # One more item shows whether any follows.
        for found, one in self.scan(db, of, show_few, min(limit, scan) + 1, scan + 1):
            if scanned == scan or len(shown) == limit:
                return shown, last and self.codec.id_of(last.item), scanned
            last, scanned = found, scanned + 1
            if one is not None:
                shown.append(one)
        return shown, None, scanned

    def scan(
        self, tr: ReadTransactor, of: Selection, show: _Show[_R], limit: int = 0, scan: int = 0
    ) -> Iterator[tuple[ItemRow, _R | None]]:
        """Yield items in a state, each with what is shown of it, or `None` if it does not match.

        On a database, read in pages. In a transaction, read item by item (done items in pages).

        If all items match, read up to `limit`, otherwise up to `scan`; 0 for all. Items whose keys
        do not match are left out.
        """
        self._sweep_once(tr)
        by_keys, by_time = self._by_keys(of), of.state == "done"
        all_match = by_keys == of.wanted
        rows: ReadRows[Any] = partial(self.items.listed, state=of.state)
        if by_time:
            rows = stored_rows  # of the index of their times

        def page(tr: ReadTransaction, read: list[Any]) -> list[tuple[ItemRow, _R | None]]:
            found = self.changes.done_at(tr, read) if by_time else read
            if all_match:
                return [*zip(found, show(tr, found), strict=True)]
            tests = [self._infos.begin_match(tr, of.wanted, each) for each in found]
            matching = [each for each, test in zip(found, tests, strict=True) if test()]
            shown = dict(zip((each.key for each in matching), show(tr, matching), strict=True))
            return [(each, shown.get(each.key)) for each in found]

        n, is_backward = limit if all_match else scan, of.reverse != by_time

        def in_shard(
            shard: bytes, whole: tuple[bytes, bytes]
        ) -> Iterator[tuple[ItemRow, _R | None]]:
            for begin, end in self._ranges(tr, of, by_keys, shard, *whole):
                if by_time or is_database(tr):
                    pages = read_pages(
                        *(tr, begin, end, page), limit=n, reverse=is_backward, rows=rows
                    )
                    yield from chain.from_iterable(pages)
                else:
                    for row in rows(tr, begin, end, n, is_backward):
                        yield from page(tr, [row])

        def place(scanned: tuple[ItemRow, _R | None]) -> tuple[int, bytes]:
            row = scanned[0]
            position = self.layout.position(row.key)[len(row.item.level.shard) :]
            return row.finished_at if by_time else 0, position

        prefix = self.layout.done_times if by_time else self.layout.items
        shards = [in_shard(*each) for each in self._shards(tr, prefix)]
        yield from shards[0] if len(shards) == 1 else merge(*shards, key=place, reverse=is_backward)

    def _by_keys(self, of: Selection) -> Filter:
        kind, wanted = self.given_options.kind, of.wanted
        if of.state == "done":
            return Filter()
        return Filter(
            priority=wanted.priority if kind == "priority" else None,
            # Hardly any tasks share a priority: look at all of them.
            group=None if kind == "task" else wanted.group,
        )

    def _ranges(
        self,
        tr: ReadTransactor,
        of: Selection,
        by_keys: Filter,
        shard: bytes,
        begin: bytes,
        end: bytes,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the ranges of a shard's keys, or of done items' times, that can match."""
        by_time = of.state == "done"
        if not by_time and by_keys.priority is not None:
            level = self.items.levels.in_shard(self.items.levels.level(by_keys.priority), shard)
            begin, end = self.layout.range_of_priority(level)
        if of.after is not None:
            passed = self._time_of(tr, of, shard) if by_time else self._key_of(tr, of.after, shard)
            if of.reverse == by_time:
                begin = max(begin, passed + b"\x00")
            else:
                end = min(end, passed)
        if by_keys.group is None:
            yield begin, max(begin, end)
            return

        def first(tr: ReadTransaction, begin: bytes, end: bytes) -> ItemRow | None:
            return next(self.items.listed(tr, begin, end, 1, of.reverse, of.state), None)

        while begin < end and (found := read(tr, partial(first, begin=begin, end=end))):
            level = self.items.levels.in_group(found.item.level, by_keys.group or None)
            yield max(begin, level.begin), min(end, level.end)
            before, after = self.layout.range_of_priority(level)
            begin, end = (begin, before) if of.reverse else (after, end)

    def jobs(self, tr: ReadTransaction, items: list[ItemRow]) -> list[StoredJob | None]:
        """Return the jobs in some items."""
        return [job_of(self._infos.decoded_if_possible(tr, found)) for found in items]

    def infos(self, tr: ReadTransaction, items: list[ItemRow]) -> list[ItemInfo]:
        """Return everything about some items."""
        return [finish() for finish in [self._infos.begin(tr, found) for found in items]]

    def result(
        self, tr: ReadTransactor, item: _T | str, *, must_have_ended: bool = False
    ) -> Finished | None:
        """Return how an item ended; `None` if it has not.

        Raises:
            NoResult: It is dead or unknown; with `must_have_ended`, also if it has not ended.
        """

        def show(tr: ReadTransaction, found: ItemRow | None) -> Finished | None:
            id = item if isinstance(item, str) else item.id
            if found is not None and found.state not in ENDED:
                if must_have_ended:
                    raise NoResult(id, found.state)
                return None
            if found is None or found.state == "dead":
                raise NoResult(id, found and found.state, found and found.error)
            position = self.layout.position(found.key)
            return Finished(decode_json(tr[self.layout.returned + position].value))

        return self._at(tr, item, show)

    def _time_of(self, tr: ReadTransactor, of: Selection, shard: bytes) -> bytes:
        found = self._located(tr, of.after)
        if found is None and not of.reverse:
            return self.layout.done_times + shard  # it is not kept any more, nor are the older ones
        if found is None or found.state != of.state:
            raise InvalidItemId(of.after)
        position = self.layout.position(found.key)[len(found.item.level.shard) :]
        return self.layout.timer_key(self.layout.done_times, found.finished_at, shard + position)

    def _key_of(self, tr: ReadTransactor, item: _T | str, shard: bytes) -> bytes:
        """Return an item's key, or one at the same place of another shard."""
        reference = self.codec.reference(item)
        moved = read(tr, lambda tr: tr[self.layout.moved + reference].value)
        if moved is None and not isinstance(item, str):
            moved = self.layout.position(item.key)  # of an item that was moved and ended
        position = reference if moved is None else moved
        return self.layout.items + shard + position.removeprefix(shard_of(position))

    def values(self, tr: ReadTransaction, items: list[ItemRow]) -> list[_T]:
        """Return some items as their user sees them."""
        return [self.decode(tr, found.item) for found in items]

    def stats(self, tr: ReadTransactor) -> QueueStats:
        """Return the statistics of the queue."""
        given = self.given_options
        body = partial(read_stats, items=self.items, given=given, first_key=first_key)
        return self.look(tr, body)

    def history(self, tr: ReadTransactor) -> list[HistoryWindow]:
        """Return the last 5 minutes, hour and day."""
        return read(tr, partial(read_history, now=milliseconds(), layout=self.layout))

    def size(self, tr: ReadTransactor) -> int:
        """Return the number of ready items."""
        return self.look(tr, partial(read_size, items=self.items))

    def is_empty(self, tr: ReadTransactor) -> bool:
        """Return whether no item is ready."""
        return not self.look(tr, partial(self.items.first, n=1))

    def counts(self, tr: ReadTransactor) -> dict[Any, int]:
        """Return the ready items by priority."""
        return self.look(tr, partial(read_counts, items=self.items))


def _matches(_: ReadTransaction, items: list[ItemRow]) -> list[bool]:
    return [True] * len(items)
