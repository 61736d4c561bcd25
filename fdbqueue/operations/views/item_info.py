"""Everything that is known of an item, and whether it passes the filter of a search."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar, cast

from fdbqueue.errors import UndecodableItem
from fdbqueue.layout.codecs import decode_json
from fdbqueue.layout.items import Filter, ItemRow, StoredItem
from fdbqueue.layout.rows import RowCodec
from fdbqueue.layout.values import NEVER, UUID_SIZE, Lease, time_of, utc_time
from fdbqueue.operations.changes import begin_attempts, begin_last_error
from fdbqueue.operations.items import Items
from fdbqueue.operations.payloads import read_payload
from fdbqueue.operations.timers import begin_lease
from fdbqueue.operations.views.why_waiting import begin_ahead, begin_held, parent_of, waits_for
from fdbqueue.types import ENDED, Item, ItemInfo, Progress, ReadTransaction, Task, job_of

_T = TypeVar("_T", bound=Item | Task)


def _client_of(found: ItemRow, lease: Lease | None) -> str | None:
    if found.finished_at:
        return found.client
    if found.state != "claimed":
        return None
    return lease.client if lease else ""


def _progress(lease: Lease | None) -> Progress | None:
    if lease is None or lease.report.fraction is None:
        return None
    return Progress(lease.report.fraction, lease.report.message, utc_time(lease.report.at))


class ItemInfos(Generic[_T]):
    """Everything about the items of one queue. Each method is part of a transaction.

    Args:
        items: The items of the queue within a transaction.
        codec: The conversion between items and rows.
        kind: The kind of the queue.
    """

    def __init__(self, items: Items, codec: RowCodec[_T], kind: str | None) -> None:
        self._layout = items.layout
        self._items = items
        self._codec = codec
        self._kind = kind

    def decode(self, tr: ReadTransaction, item: StoredItem) -> _T:
        """Return a stored item as its user sees it; raise `UndecodableItem` if that fails."""
        return self._codec.decode(item, read_payload(tr, self._layout, item.content))

    def decoded_if_possible(self, tr: ReadTransaction, found: ItemRow) -> _T | None:
        """Return an item; `None` if it cannot be decoded, which is why some items die."""
        with suppress(UndecodableItem):
            return self.decode(tr, found.item)
        return None

    def begin(
        self, tr: ReadTransaction, found: ItemRow, counts_ahead: bool = False
    ) -> Callable[[], ItemInfo]:
        """Start to read what is known of an item; return a function that waits for it."""
        state, key, header = found.state, found.key, found.item.header
        is_done = found.finished_at > 0
        position = self._layout.position(key)
        expires = None if state in ENDED else header.expires
        returned = tr[self._layout.returned + position] if is_done else None
        claimed = time_of(found.token[:UUID_SIZE])
        if is_done:
            claimed = None if found.started_at is None else utc_time(found.started_at)
        begun_lease = begin_lease(tr, self._layout, found)
        begun_attempts = begin_attempts(tr, self._layout, position)
        begun_options = self._items.options.begin_read(getattr(tr, "snapshot", tr))
        begin_hold = partial(begin_held, tr, self._layout, self._items.rate, found.item)
        begun_hold = begin_hold() if state == "ready" else None
        begun_ahead = begin_ahead(tr, found.item) if begun_hold and counts_ahead else None

        def finish() -> ItemInfo:
            options, lease, failed = begun_options(), begun_lease(), begun_attempts()
            error = found.error or (failed[-1].error if failed else None)
            item = self.decoded_if_possible(tr, found)
            return ItemInfo(
                item=item,
                id=self._codec.id_of(found.item),
                state=state,
                attempts=found.attempts,
                max_attempts=None if options is None else options.max_attempts,
                pushed_at=self._layout.pushed_at(key),
                due_at=utc_time(found.due) if state == "delayed" and found.due != NEVER else None,
                expires_at=None if expires is None else utc_time(expires),
                claimed_by=_client_of(found, lease),
                claimed_at=claimed,
                lease_ends=lease and utc_time(lease.clock_end),
                died_at=utc_time(found.died_at) if state == "dead" else None,
                cancelling=state == "claimed" and header.cancelled is not None,
                finished_at=utc_time(found.finished_at) if is_done else None,
                outcome=found.outcome if is_done else None,
                result=None if returned is None else decode_json(returned.value),
                error=found.error if is_done else error,
                unique=header.unique_key,
                group=found.item.level.group,
                held_by=begun_hold and begun_hold(options),
                waits_for=waits_for(tr, self._layout, found, job_of(item), failed),
                parent=parent_of(tr, self._layout, found),
                ahead_in_group=begun_ahead and begun_ahead(),
                progress=_progress(lease),
                log=lease.report.log if lease else found.log,
                stored_steps=header.steps,
                in_batch=bool(header.batch or header.followers) or header.awaits,
                failed_attempts=tuple(failed),
            )

        return finish

    def begin_match(
        self, tr: ReadTransaction, wanted: Filter, found: ItemRow
    ) -> Callable[[], bool]:
        """Start to read whether an item passes a filter; return a function that waits for it."""
        if not self._may_match(tr, wanted, found):
            return _never
        error, client, job = wanted.error, wanted.client, wanted.job
        begun_error = begun_lease = None
        if error is not None and not found.error:
            position = self._layout.position(found.key)
            begun_error = begin_last_error(tr, self._layout, position)
        if client is not None:
            begun_lease = begin_lease(tr, self._layout, found)

        def test() -> bool:
            if job is not None:
                stored = job_of(self.decoded_if_possible(tr, found))
                if stored is None or not _is_named(stored.name, job):
                    return False
            lease = begun_lease and begun_lease()
            last_error = begun_error() if begun_error else found.error
            return _has(last_error, error) and _has(lease and lease.client, client)

        return test

    def _may_match(self, tr: ReadTransaction, wanted: Filter, found: ItemRow) -> bool:
        """Return whether an item matches the part of a filter that needs no other rows."""
        level, priority = found.item.level, wanted.priority
        if wanted.group is not None and (level.group or "") != wanted.group:
            return False
        if wanted.id is not None and wanted.id not in self._codec.id_of(found.item):
            return False
        if priority is not None and self._kind == "priority":
            if not found.key.startswith(self._items.levels.level(priority).prefix):
                return False
        elif priority is not None and cast("tuple[Any, ...]", level.priority)[0] != priority:
            return False
        if wanted.agent is None:
            return True
        task: Any = self.decoded_if_possible(tr, found)
        return task is not None and _has(task.agent_name, wanted.agent)


def _never() -> bool:
    return False


def _is_named(name: str, wanted: str) -> bool:
    """Return whether a job has this name, or one that ends with it, as in `module.function`.

    >>> [_is_named("shop.send", wanted) for wanted in ("shop.send", "send", "end")]
    [True, True, False]
    """
    return f".{name}".endswith(f".{wanted}")


def _has(text: str | None, part: str | None) -> bool:
    """Return whether a text contains a part, ignoring case; any text has the part `None`."""
    return part is None or part.casefold() in (text or "").casefold()
