"""The filters of a search, applied to items."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from fdbqueue.layout.items import Filter, ItemRow
from fdbqueue.layout.rows import RowCodec
from fdbqueue.operations.changes import begin_last_error
from fdbqueue.operations.items import Items
from fdbqueue.operations.timers import begin_lease
from fdbqueue.types import Item, ReadTransaction, Task, job_of

if TYPE_CHECKING:
    from fdbqueue.operations.views.item_info import ItemInfos

_T = TypeVar("_T", bound=Item | Task)


class Matching(Generic[_T]):
    """The tests of the items of one queue. Each method is part of a transaction.

    Args:
        items: The items of the queue within a transaction.
        codec: The conversion between items and rows.
        infos: What is known of the items.
        kind: The kind of the queue.
    """

    def __init__(
        self, items: Items, codec: RowCodec[_T], infos: ItemInfos[_T], kind: str | None
    ) -> None:
        self._layout = items.layout
        self._levels = items.levels
        self._codec = codec
        self._infos = infos
        self._kind = kind

    def begin(self, tr: ReadTransaction, wanted: Filter, found: ItemRow) -> Callable[[], bool]:
        """Start to read whether an item matches; return a function that waits for it."""
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
                stored = job_of(self._infos.decoded_if_possible(tr, found))
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
            if not found.key.startswith(self._levels.level(priority).prefix):
                return False
        elif priority is not None and cast("tuple[Any, ...]", level.priority)[0] != priority:
            return False
        if wanted.agent is None:
            return True
        task: Any = self._infos.decoded_if_possible(tr, found)
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
